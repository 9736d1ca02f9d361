"""Captures that are kept: what is another step has another key, and what is the same need not be captured again."""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib.util
import itertools
import logging
import os
import random
import re
import subprocess
import sys
import time
import types
import warnings

import pytest
import steps
import torch
import torch.nn.functional as F
from machines import DEAR_COMPUTING
from torch import nn

import unisono
from unisono import _captures
from unisono._call import Caller
from unisono._capture.optimizer import create_state
from unisono._captures import Captures, Roots

SOURCE = """
import torch
import torch.nn.functional as F
from torch import nn

FACTOR = 2.0


def activation(x, shift=1.0):
    return F.relu(x) * FACTOR + shift


class Model(nn.Module):
    scale = 1.5

    def __init__(self):
        super().__init__()
        self.up, self.down, self.dropout = nn.Linear(8, 8), nn.Linear(8, 8), nn.Dropout(0.1)
        self.register_buffer("offset", torch.zeros(8))

    def forward(self, x):
        return self.down(self.dropout(activation(self.up(x)))) * self.scale + self.offset


def make(weight=1.0, options=None):
    torch.manual_seed(0)
    options = options or {"clip": 1.0}
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())

    def step(x, y):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y) * weight
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), options["clip"])
        optimizer.step()
        return loss

    return model, optimizer, step
"""


def loaded(folder, source):
    """A module of this source, as another process would load it."""
    (folder / "model.py").write_text(source)
    spec = importlib.util.spec_from_file_location("user_model", folder / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["user_model"] = module
    spec.loader.exec_module(module)
    return module


def examined(folder, source=SOURCE, edit=None, rows=4, **arguments):
    """The key of a step, and the text of its graph."""
    module = loaded(folder, source)
    model, optimizer, step = module.make(**arguments)
    if edit is not None:
        step = edit(types.SimpleNamespace(module=module, model=model, optimizer=optimizer, step=step)) or step
    example = torch.zeros(rows, 8), torch.zeros(rows, 8)
    create_state(optimizer)
    call = Caller(step).of_example(example)
    key = Captures(folder).key(Roots(step, model, (optimizer,), call, {}, None))
    graph = unisono.capture(step, model=model, optimizer=optimizer, example=example)
    return key, graph.text()


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    """Where the user's module stands. The first capture of a process, made here, makes PyTorch import more of itself."""
    folder = tmp_path_factory.mktemp("user")
    examined(folder)
    yield folder
    sys.modules.pop("user_model", None)


@pytest.fixture(scope="module")
def as_written(folder):
    """The key and the graph of the step as it is written."""
    return examined(folder)


def test_the_same_step_has_the_same_key(folder, as_written):
    assert examined(folder) == as_written
    assert as_written[0] is not None


def tied(user):
    user.model.down.weight = user.model.up.weight


def hooked(user):
    user.model.up.register_forward_hook(lambda module, given, made: made * 2)


def wrapped(user):
    def forward(self, x):
        return self.down(x)

    user.model.forward = types.MethodType(forward, user.model)


def cast(user):
    def step(x, y):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return user.step(x, y)

    return step


EDITS = {
    "a line": {"source": SOURCE.replace("F.relu(x)", "F.gelu(x)")},
    "a constant of a line": {"source": SOURCE.replace("nn.Dropout(0.1)", "nn.Dropout(0.2)")},
    "the place of a line": {"source": "\n" + SOURCE},
    "a global number": {"source": SOURCE.replace("FACTOR = 2.0", "FACTOR = 3.0")},
    "a number of the closure": {"weight": 2.0},
    "a number in a container": {"options": {"clip": 2.0}},
    "the shape of the example": {"rows": 6},
    "a global that is set": {"edit": lambda user: setattr(user.module, "FACTOR", 4.0)},
    "a global function": {"edit": lambda user: setattr(user.module, "activation", torch.tanh)},
    "a default": {"edit": lambda user: setattr(user.module.activation, "__defaults__", (2.0,))},
    "a class's attribute": {"edit": lambda user: setattr(user.module.Model, "scale", 2.5)},
    "an object's attribute": {"edit": lambda user: setattr(user.model, "scale", 3.5)},
    "an object's method": {"edit": wrapped},
    "evaluation": {"edit": lambda user: setattr(user, "mode", user.model.eval())},
    "evaluation of a part": {"edit": lambda user: setattr(user, "mode", user.model.dropout.eval())},
    "dropout": {"edit": lambda user: setattr(user.model.dropout, "p", 0.3)},
    "a frozen parameter": {"edit": lambda user: setattr(user, "mode", user.model.up.requires_grad_(False))},
    "a buffer's shape": {"edit": lambda user: setattr(user.model, "offset", torch.zeros(1))},
    "a buffer's type": {"edit": lambda user: setattr(user.model, "offset", torch.zeros(8, dtype=torch.float64))},
    "a shared parameter": {"edit": tied},
    "a hook": {"edit": hooked},
    "a hook of a gradient": {
        "edit": lambda user: setattr(user, "mode", user.model.up.weight.register_hook(lambda g: g * 2))
    },
    "a further module": {
        "edit": lambda user: setattr(user.model, "dropout", nn.Sequential(nn.Dropout(0.1), nn.Tanh()))
    },
    "a setting of the optimizer": {"edit": lambda user: user.optimizer.param_groups[0].update(weight_decay=0.5)},
    "the form of the optimizer": {"edit": lambda user: user.optimizer.param_groups[0].update(fused=False)},
    "a cast": {"edit": cast},
}


@pytest.mark.parametrize("name", EDITS)
def test_another_graph_has_another_key(name, folder, as_written):
    key, text = as_written
    other_key, other_text = examined(folder, **EDITS[name])
    assert other_text != text
    assert key != other_key
    assert None not in (key, other_key)


def test_what_is_patched_into_pytorch_changes_the_key(folder, as_written, monkeypatch):
    for name, patch in {
        "relu": lambda x: x * (x > 0),
        "relu ": F.gelu,
        "mse_loss": functools.partial(F.l1_loss, reduction="sum"),
    }.items():
        with monkeypatch.context() as patched:
            patched.setattr(F, name.strip(), patch)
            key, text = examined(folder)
        assert text != as_written[1]
        assert key != as_written[0]
    with monkeypatch.context() as patched:
        patched.setattr(nn.Linear, "forward", lambda self, x: F.linear(x, self.weight) * 2)
        key, text = examined(folder)
    assert text != as_written[1]
    assert key != as_written[0]
    handle = nn.modules.module.register_module_forward_hook(lambda module, given, made: made * 2)
    try:
        key, text = examined(folder)
    finally:
        handle.remove()
    assert text != as_written[1]
    assert key != as_written[0]
    assert examined(folder) == as_written


def test_what_is_set_for_the_process_changes_the_key(folder, as_written, monkeypatch):
    keys = [as_written[0]]
    with monkeypatch.context() as patched:
        patched.setenv("TORCH_SOMETHING", "1")
        keys.append(examined(folder)[0])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        keys.append(examined(folder)[0])
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        keys.append(examined(folder)[0])
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    keys.append(examined(folder)[0])
    torch.set_float32_matmul_precision(before)
    torch.use_deterministic_algorithms(mode=True)
    keys.append(examined(folder)[0])
    torch.use_deterministic_algorithms(mode=False)
    assert len(set(keys)) == len(keys)
    assert examined(folder)[0] == keys[0]


def unknown(reach):
    """The key of a step that reaches something, and whether it says what is in the way."""

    def step(x):
        return x * reach(x)

    call = Caller(step).of_example((torch.zeros(2),))
    return Captures("nowhere").key(Roots(step, None, (), call, {}, None))


_COUNT, _PATTERN, _FILE = itertools.count(), re.compile("a"), sys.stderr


@functools.lru_cache
def remembered(number):
    return number


@pytest.mark.parametrize(
    "reach",
    [
        lambda x: random.random(),
        lambda x: time.time(),
        lambda x: len(os.environ),
        lambda x: next(_COUNT),
        lambda x: len(_PATTERN.pattern),
        lambda x: _FILE.fileno(),
        lambda x: remembered(1),
        lambda x: eval("2"),
        lambda x: globals()["ALWAYS"],
        lambda x: id(x),
        lambda x: torch.Generator(),
        lambda x: torch.ops.aten.relu(x),
        lambda x: torch.backends.cuda.matmul.allow_tf32,
        lambda x: sys.getrecursionlimit(),
        lambda x: sum(y for y in ITERATOR),
    ],
)
def test_what_is_not_known_has_no_key(reach, caplog):
    with caplog.at_level(logging.DEBUG, "unisono"):
        assert unknown(reach) is None
    assert "captured anew" in caplog.text


ITERATOR = iter([1, 2])


@dataclasses.dataclass
class Config:
    width: int = 4
    names: list[str] = dataclasses.field(default_factory=list)


class Kind(enum.Enum):
    ONE = 1


def test_settings_in_a_dataclass_and_other_plain_values_have_a_key():
    def of(value):
        return unknown(lambda x: value)

    values = [Config(), Config(5), Config(names=["a"]), Kind.ONE, slice(1, 2), slice(1, 3), types.SimpleNamespace(a=1)]
    keys = [of(value) for value in values]
    assert None not in keys
    assert len(set(keys)) == len(values)
    assert keys == [of(value) for value in values]


def test_what_is_read_of_a_tensor_from_outside_changes_the_key():
    def of(values):
        table = torch.tensor(values)
        return unknown(lambda x: table)

    assert of([1.0, 2.0]) == of([1.0, 2.0]) != of([1.0, 3.0])


def test_a_kept_capture_gives_the_graph_and_is_captured_anew_where_it_is_damaged(tmp_path, monkeypatch):
    module = loaded(tmp_path, SOURCE)

    def graph():
        model, optimizer, step = module.make()
        example = torch.zeros(4, 8), torch.zeros(4, 8)
        return unisono.capture(step, model=model, optimizer=optimizer, example=example, cache=tmp_path / "kept")

    captures = []
    capture_step = _captures.capture_step
    monkeypatch.setattr(_captures, "capture_step", lambda *a, **k: captures.append(1) or capture_step(*a, **k))
    text = graph().text()
    assert graph().text() == text
    assert len(captures) == 1
    (kept,) = (tmp_path / "kept" / "captures").iterdir()
    kept.write_bytes(kept.read_bytes()[:-1] + b"x")
    assert graph().text() == text
    assert len(captures) == 2


@pytest.mark.parametrize("asks", [True, False])
def test_a_capture_that_warns_is_made_anew_and_warns_again(asks, tmp_path):
    asking = "if isinstance(x, torch._subclasses.FakeTensor): x = x * 1" if asks else "x = x * 1"
    module = loaded(tmp_path, f"import torch\n\ndef step(x):\n    {asking}\n    return (x * 2).sum()\n")
    for _ in range(2):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", RuntimeWarning)
            unisono.capture(module.step, example=(torch.zeros(4),), cache=tmp_path / "kept")
        assert len([one for one in caught if "has data" in str(one.message)]) == asks
    assert (tmp_path / "kept" / "captures").exists() != asks


def trained(folder):
    """What three steps of a session return."""
    training = steps.gpt(count=3, adamw=True)
    step = steps.parallelize(training, cache=folder)
    results = [step(*batch) for batch in training.batches]
    step.sync()
    return results, [parameter.detach().clone() for parameter in training.model.parameters()]


def test_a_session_from_a_kept_capture_computes_the_same(tmp_path, monkeypatch):
    first = trained(tmp_path / "kept")
    assert len(list((tmp_path / "kept" / "captures").iterdir())) == 1
    monkeypatch.setattr(_captures, "capture_step", lambda *a, **k: pytest.fail("captured again"))
    second = trained(tmp_path / "kept")
    for one, other in zip(itertools.chain(*first), itertools.chain(*second), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def trained_by_shapes(folder):
    """What a session returns that captures again for a smaller batch, and captures an evaluation."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1), nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters())

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    def evaluate(x):
        with torch.no_grad():
            return model(x).sum()

    both = unisono.parallelize(
        step,
        model=model,
        optimizer=optimizer,
        example=(torch.ones(4, 8),),
        seed=0,
        cache=folder,
        cluster=DEAR_COMPUTING,
    )
    losses = [both(torch.ones(size, 8)) for size in (4, 3, 4)]
    return [*losses, both.share(evaluate, example=(torch.ones(5, 8),))(torch.ones(5, 8)), both(torch.ones(3, 8))]


@pytest.mark.filterwarnings("ignore::unisono.errors.CaptureNotice")
def test_later_captures_of_a_session_are_kept_too(tmp_path, monkeypatch):
    first = trained_by_shapes(tmp_path / "kept")
    assert len(list((tmp_path / "kept" / "captures").iterdir())) == 3
    monkeypatch.setattr(_captures, "capture_step", lambda *a, **k: pytest.fail("captured again"))
    for one, other in zip(first, trained_by_shapes(tmp_path / "kept"), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_steps_that_do_more_than_compute_are_not_kept(tmp_path):
    kept = {"loss": torch.zeros(())}
    counts = [0]

    def replaces(x):
        kept["loss"] = x.sum() + kept["loss"]
        return kept["loss"]

    def speaks(x):
        print("a step")
        return x.sum()

    def counted(x):
        counts[0] += 1
        return x.sum()

    folder = tmp_path / "kept"
    for step in (replaces, speaks, counted):
        unisono.capture(step, example=(torch.zeros(2),), cache=folder)
    assert not folder.exists()


SCRIPT = """
import sys
import torch
import unisono
from torch import nn

with torch.device("meta"):
    model = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    x = torch.zeros(2, 8, 32)
optimizer = torch.optim.AdamW(model.parameters())

def step(x):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss

if __name__ == "__main__":
    graph = unisono.capture(step, model=model, optimizer=optimizer, example=(x,), device="cuda", cache=sys.argv[1])
    print(graph.fingerprint(), graph._capture is None)
"""


def test_another_process_finds_what_was_kept(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    lines = []
    for _ in range(2):
        line = [sys.executable, str(tmp_path / "train.py"), str(tmp_path / "kept")]
        found = subprocess.run(line, capture_output=True, text=True, timeout=120, check=True)
        lines.append(found.stdout.split())
    assert lines[0][0] == lines[1][0]
    assert [found for _, found in lines] == ["False", "True"]
