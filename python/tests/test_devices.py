"""Steps captured for a device from parameters that are not there."""

from __future__ import annotations

import contextlib
import re
import weakref

import msgpack
import pytest
import steps
import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
from fakes import fake_tensors, new_among
from machines import machine
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import unisono
from unisono._capture import kernels
from unisono._capture.casts import Casts
from unisono._capture.target import Target
from unisono.errors import ConfigurationError, UnsupportedError


def _encoder(device):
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True).to(device)
    return nn.Sequential(layer, nn.Linear(32, 16)), lambda model, x, y: F.mse_loss(model(x), y)


def _gpt(device):
    return steps.GPT().to(device), lambda model, x, y: F.cross_entropy(model(x).flatten(0, 1), y.flatten())


def _llama(device):
    return steps.llama(1).model.to(device), lambda model, x, y: model(input_ids=x, labels=y).loss


MODELS = {"encoder": _encoder, "gpt": _gpt, "llama": _llama}


def captured(make, device, dtype=torch.float32, for_device=None):
    """A step with clipping and AdamW."""
    model, loss_of = make(device)
    model = model.to(device=device, dtype=dtype)
    optimizer = torch.optim.AdamW(model.parameters())

    def step(x, y):
        optimizer.zero_grad()
        loss = loss_of(model, x, y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    x, y = torch.zeros(4, 16, dtype=torch.int64, device=device), torch.zeros(4, 16, dtype=torch.int64, device=device)
    if make is _encoder:
        x, y = torch.zeros(4, 16, 32, dtype=dtype, device=device), torch.zeros(4, 16, 16, dtype=dtype, device=device)
    return unisono.capture(step, model=model, optimizer=optimizer, example=(x, y), device=for_device)


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("name", MODELS)
def test_without_parameters_the_graph_is_that_of_a_processor(name, device):
    here, nowhere = captured(MODELS[name], "cpu"), captured(MODELS[name], "meta", for_device=device)
    assert nowhere.text() == here.text()


def test_in_half_precision_too():
    here, nowhere = (captured(_gpt, device, torch.bfloat16) for device in ("cpu", "meta"))
    assert nowhere.text() == here.text()


def attention(query, key, value, mask=None, device="cuda", **settings):
    """The operations of a step that is one attention, captured for CUDA, by their names."""
    operands = [tensor.requires_grad_(tensor.is_floating_point()) for tensor in (query, key, value)]
    model = nn.Module()
    model.q, model.k, model.v = map(nn.Parameter, operands)

    def step(scale, mask):
        loss = (F.scaled_dot_product_attention(model.q, model.k, model.v, mask, **settings) * scale).sum()
        loss.backward()
        return loss, model.q.grad, model.k.grad, model.v.grad

    scale = torch.ones((), device="meta", dtype=query.dtype)
    graph = unisono.capture(step, model=model, example=(scale, mask), device=device)
    decoded = graph.decoded()
    assert {value["type"]["device"]["kind"] for value in decoded["values"]} == {"cuda"}
    names = [decoded["ops"][node["op"]]["name"].removeprefix("aten::") for node in decoded["nodes"]]
    return graph, names


def heads(*shape, dtype=torch.bfloat16):
    return torch.empty(*shape, dtype=dtype, device="meta")


FLASH, EFFICIENT = "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention"
CUDNN = "_scaled_dot_product_cudnn_attention"
Q = (2, 4, 16, 32)
MASK = torch.empty(16, 16, dtype=torch.bool, device="meta")


@pytest.mark.parametrize(
    ("operands", "mask", "settings", "kernel"),
    [
        ([heads(*Q)] * 3, None, {"is_causal": True}, FLASH),
        ([heads(*Q, dtype=torch.float16)] * 3, None, {"scale": 0.3}, FLASH),
        ([heads(*Q), *[heads(2, 2, 16, 32)] * 2], None, {"enable_gqa": True}, FLASH),
        ([heads(*Q), *[heads(2, 4, 12, 32)] * 2], None, {}, FLASH),
        ([heads(*Q), *[heads(2, 4, 12, 32)] * 2], None, {"is_causal": True}, EFFICIENT),
        ([heads(*Q)] * 3, MASK, {}, EFFICIENT),
        ([heads(*Q, dtype=torch.float32)] * 3, None, {}, EFFICIENT),
        ([heads(*Q)] * 2 + [heads(2, 4, 16, 64)], None, {}, EFFICIENT),
        ([heads(2, 4, 16, 264)] * 3, None, {}, EFFICIENT),
        ([heads(2, 4, 16, 6, dtype=torch.float32)] * 3, None, {}, None),
        ([heads(*Q, dtype=torch.float64)] * 3, None, {}, None),
        ([heads(4, 16, 32)] * 3, None, {}, None),
        ([heads(*Q), *[heads(2, 2, 16, 32)] * 2], MASK, {"enable_gqa": True}, None),
    ],
)
def test_cuda_takes_the_kernel_of_attention_that_fits(operands, mask, settings, kernel):
    _, names = attention(*(tensor.clone() for tensor in operands), mask, **settings)
    found = [name for name in names if "attention" in name]
    assert found == ([] if kernel is None else [kernel, f"{kernel}_backward"])
    assert ("bmm" in names) == (kernel is None)


FULL = [heads(*Q)] * 3
SINGLE, WIDE = [heads(*Q, dtype=torch.float32)] * 3, [heads(2, 4, 16, 208)] * 3


@pytest.mark.parametrize(
    ("device", "operands", "mask", "settings", "kernel"),
    [
        # Hopper, and the Blackwell of data centres.
        ("h100", FULL, None, {"is_causal": True}, CUDNN),
        ("h200:8x8", FULL, MASK, {"scale": 0.3}, CUDNN),
        ("b200", [heads(*Q), *[heads(2, 2, 12, 32)] * 2], None, {"enable_gqa": True}, CUDNN),
        ("h100", FULL, None, {"dropout_p": 0.125}, CUDNN),
        ("h100", FULL, None, {"dropout_p": 0.1}, FLASH),
        ("h100", [heads(2, 4, 16, 20)] * 3, None, {}, FLASH),
        ("h100", [heads(2, 4, 16, 192)] * 2 + [heads(2, 4, 16, 128)], None, {}, CUDNN),
        ("h100", WIDE, None, {}, FLASH),
        ("h100", [heads(*Q), *[heads(2, 4, 1, 32)] * 2], None, {}, FLASH),
        ("h100", SINGLE, None, {}, EFFICIENT),
        # Before them, and with less shared memory.
        ("a100", FULL, None, {}, FLASH),
        ("a100", WIDE, None, {}, FLASH),
        ("l4", WIDE, None, {}, EFFICIENT),
        ("l40s", FULL, None, {}, FLASH),
        ("v100", [heads(*Q, dtype=torch.float16)] * 3, None, {}, EFFICIENT),
        ("v100", FULL, None, {}, None),
    ],
)
def test_the_kernel_of_attention_depends_on_the_gpu_that_is_named(operands, mask, settings, kernel, device):
    graph, names = attention(*(tensor.clone() for tensor in operands), mask, device, **settings)
    found = [name for name in names if "attention" in name]
    assert found == ([] if kernel is None else [kernel, f"{kernel}_backward"])
    if kernel == CUDNN:
        assert "cudnn" in graph.text()


def test_cudnn_is_not_preferred_where_that_is_said_or_it_is_too_old(monkeypatch):
    assert CUDNN in attention(*(one.clone() for one in FULL), device="h100")[1]
    with torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.FLASH_ATTENTION]):
        assert FLASH in attention(*(one.clone() for one in FULL), device="h100")[1]
    monkeypatch.setattr(kernels.attention, "_cudnn_version", lambda: 91002)
    assert FLASH in attention(*(one.clone() for one in FULL), device="h100")[1]
    monkeypatch.undo()
    monkeypatch.setenv("TORCH_CUDNN_SDPA_DEPRIORITIZED", "1")
    assert FLASH in attention(*(one.clone() for one in FULL), device="h100")[1]


def test_what_flash_attention_pads_is_taken_off_again():
    graph, names = attention(*[heads(2, 4, 16, 20)] * 3)
    assert FLASH in names
    values = graph.decoded()["values"]
    flash = next(node for node in graph.decoded()["nodes"] if len(node["returns"]) == 9)
    assert values[flash["returns"][0]["value"]]["type"]["shape"] == [2, 4, 16, 24]
    assert values[graph.decoded()["returns"][1]]["type"]["shape"] == [2, 4, 16, 20]


def test_the_results_of_flash_attention_have_its_types():
    graph, _ = attention(*[heads(*Q)] * 3, is_causal=True)
    line = next(line for line in graph.text().splitlines() if f"= aten::{FLASH}(" in line)
    types = re.findall(r"v\d+: (\S+\[.*?\])", line.partition(" = ")[0])
    assert types == ["bf16[2, 4, 16, 32]", "f32[2, 4, 16]", "u64[2]", "u64[]", "bf16[0]"]


@pytest.mark.parametrize(("device", "statistics"), [("cuda", "f32"), ("cpu", "bf16")])
def test_statistics_have_the_types_of_the_device(device, statistics):
    norm = nn.LayerNorm(8, device="meta", dtype=torch.bfloat16)

    def step(x):
        norm(x).sum().backward()
        return norm.weight.grad

    x = torch.empty(4, 8, device="meta", dtype=torch.bfloat16)
    graph = unisono.capture(step, model=norm, example=(x,), device=device)
    line = next(line for line in graph.text().splitlines() if "= aten::native_layer_norm(" in line)
    assert re.findall(r"v\d+: (\w+)\[", line.partition(" = ")[0]) == ["bf16", statistics, statistics]


def test_kernels_that_are_switched_off_are_not_taken():
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION):
        _, names = attention(*[heads(*Q)] * 3)
    assert EFFICIENT in names


def test_on_cuda_dropout_is_one_operation():
    names = captured(_encoder, "meta", for_device="cuda").native.operators()
    assert "aten::native_dropout" in names
    assert not any("bernoulli" in name for name in names)


def test_optimizers_take_the_devices_form():
    assert "aten::_fused_adamw.tensor_lr" in captured(_gpt, "meta", for_device="cuda").native.operators()
    half = captured(_gpt, "meta", torch.bfloat16, for_device="cuda").native.operators()
    assert not any("_fused" in name for name in half)


def test_a_step_on_processors_can_be_captured_for_cuda():
    from_here, from_nowhere = (captured(_gpt, device, for_device="cuda") for device in ("cpu", "meta"))
    assert from_here.text() == from_nowhere.text()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_attention_of_cuda_is_sharded_by_heads_or_batch(dtype):
    graph = captured(_gpt, "meta", dtype, for_device="cuda")
    cluster = machine(memory_bandwidth=1e9, flops=1e9, latency_ns=100.0, bandwidth=1e11, operation_ns=10.0)
    plan = graph.native.plan(cluster, msgpack.packb({"mesh": {"a": 4}, "pins": {}, "memory_limit": None}))
    rank = msgpack.unpackb(graph.native.rank_graph(plan, 0).message())["graph"]
    elements = [
        torch.Size(rank["values"][node["returns"][0]["value"]]["type"]["shape"]).numel()
        for node in rank["nodes"]
        if "attention" in rank["ops"][node["op"]]["name"]
    ]
    assert elements == [4 * 4 * 16 * 8 // 4] * 4


def test_tensors_that_are_made_or_held_elsewhere_are_on_the_device():
    model = nn.Linear(4, 4, device="meta")
    offset = torch.zeros(4, device="meta")

    def step(x):
        return (model(x) + offset + torch.ones(4, device=x.device) + torch.zeros(4, device="meta")).sum()

    graph = unisono.capture(step, model=model, example=(torch.zeros(2, 4, device="meta"),), device="cuda")
    assert {value["type"]["device"]["kind"] for value in graph.decoded()["values"]} == {"cuda"}


class Calls(TorchDispatchMode):
    """Operations with the types of their tensors, but for those that only look."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        tensors = [leaf.dtype for leaf in pytree.tree_leaves((args, kwargs, result)) if isinstance(leaf, torch.Tensor)]
        if func.namespace == "aten":
            self.calls.append((func, tensors))
        return result


def _operations(x, y, image, kernel, targets):
    """Calls that are cast in all the ways that there are, and such that are not."""
    yield from (
        lambda: x @ y,
        lambda: F.linear(x, y),
        lambda: torch.einsum("ab,bc->ac", x, y),
        lambda: torch.addmm(x, x, y),
    )
    yield from (
        lambda: F.conv2d(image, kernel),
        lambda: torch.baddbmm(image[0], image[0], image[0]),
        lambda: x.half() @ y,
    )
    yield from (
        lambda: F.softmax(x, -1),
        lambda: F.layer_norm(x, (8,)),
        lambda: torch.exp(x),
        lambda: x**2,
        lambda: x.sum(),
    )
    yield from (lambda: torch.sum(x.bfloat16()), lambda: torch.norm(x.bfloat16()), lambda: x.bfloat16().cumsum(0))
    yield from (lambda: F.softmax(x.bfloat16(), -1), lambda: torch.log_softmax(x.bfloat16(), 0, dtype=torch.bfloat16))
    yield from (lambda: F.cross_entropy(x.bfloat16(), targets), lambda: F.mse_loss(x.bfloat16(), y))
    yield from (
        lambda: torch.addcmul(x, x.bfloat16(), y),
        lambda: torch.cat([x, y.bfloat16()]),
        lambda: x.bfloat16() + y,
    )
    yield from (lambda: F.gelu(x), lambda: F.avg_pool2d(image, 2), lambda: F.interpolate(image, scale_factor=2))
    yield from (lambda: x.double() @ y.double(), lambda: F.group_norm(image.bfloat16(), 2), lambda: torch.fft.rfft(x))
    yield from (lambda: F.binary_cross_entropy_with_logits(x.bfloat16(), y), lambda: torch.stack([x.bfloat16(), y]))


LAYERS = {
    "LSTM": (nn.LSTM, {"num_layers": 2, "bidirectional": True, "batch_first": True, "dropout": 0.3}),
    "LSTM with projections": (nn.LSTM, {"proj_size": 3, "bias": False}),
    "GRU": (nn.GRU, {"num_layers": 2, "bidirectional": True}),
    "LSTM cell": (nn.LSTMCell, {}),
    "GRU cell": (nn.GRUCell, {"bias": False}),
}


@pytest.mark.parametrize("name", LAYERS)
def test_recurrent_layers_are_those_of_a_device_that_is_not_there(name):
    make, settings = LAYERS[name]

    def calls(device):
        with FakeTensorMode(), torch.device(device), Calls() as seen, torch.backends.cudnn.flags(enabled=False):
            make(4, 8, **settings)(torch.zeros(*(() if "cell" in name else (3,)), 2, 4))
        # How PyTorch's dropout is made is another row of the table; in which order last states are stacked is its compiler's choice.
        return sorted(str(one) for one in seen.calls if "dropout" not in str(one))

    kernels.register()
    expected = calls("cuda")
    with kernels.chosen(Target("cuda", elsewhere=True)):
        found = calls("cpu")
    assert any("_thnn_fused" in one for one in found)
    assert found == expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, None])
def test_automatic_casts_are_those_of_a_device_that_is_not_there(dtype):
    def tensors(device):
        with FakeTensorMode():
            made = [torch.empty(8, 8, device=device) for _ in range(2)]
            made += [torch.empty(8, 8, 8, 8, device=device) for _ in range(2)]
            return [*made, torch.empty(8, dtype=torch.int64, device=device)]

    def calls(casts, device):
        with torch.no_grad(), casts, contextlib.ExitStack() as ways:
            # PyTorch switches what it is asked for here off where there is no such device, so its own switches are turned.
            enabled, kind = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
            ways.callback(torch.set_autocast_dtype, "cuda", kind)
            ways.callback(torch.set_autocast_enabled, "cuda", enabled)
            if device == "cuda":
                torch.set_autocast_enabled("cuda", True)
                torch.set_autocast_dtype("cuda", dtype or torch.float16)
            else:
                ways.enter_context(torch.autocast("cuda", dtype=dtype))
            for call in _operations(*tensors(device)):
                with Calls() as seen:
                    call()
                yield seen.calls

    expected = [*calls(contextlib.nullcontext(), "cuda")]
    found = [*calls(Casts("cuda").replaced(), "cpu")]
    assert len(expected) == 30
    for one, other in zip(found, expected, strict=True):
        # In which order PyTorch casts the arguments of one call is its compiler's choice.
        assert sorted(map(str, one)) == sorted(map(str, other))
    assert not torch.is_autocast_enabled("cpu")
    assert torch.get_autocast_dtype("cpu") == torch.bfloat16


def test_parameters_are_cast_once_and_nothing_is_cast_where_casts_are_off():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).to("meta")

    def step(x, kind, casts):
        with torch.autocast(kind, dtype=torch.bfloat16, enabled=casts):
            assert torch.is_autocast_enabled("cuda") == casts
            y = model(model(x))
            with torch.autocast(x.device.type, enabled=False):
                y = y.float() @ model[0].weight
        y.sum().backward()
        return y

    def casts(*settings):
        x = torch.zeros(2, 4, device="meta")
        graph = unisono.capture(step, model=model, example=(x, *settings), device="cuda").text()
        return [
            line for line in graph.splitlines() if "_to_copy(" in line and line.startswith("v") and ": bf16" in line
        ]

    assert casts("cuda", False) == []
    # The batch and two weights and biases forward; the gradient of what left the casts backward.
    assert len(casts("cuda", True)) == 6
    # A device that is not there is the processor while a step is captured for it, and code may ask a tensor.
    assert casts("cpu", True) == casts("cuda", True)


def test_casts_hold_no_tensor_after_the_capture():
    def captured_once():
        model = nn.Linear(4, 4, device="meta")

        def step(x):
            with torch.autocast("cuda"):
                model(x).sum().backward()

        unisono.capture(step, model=model, example=(torch.zeros(2, 4, device="meta"),), device="cuda")
        return weakref.ref(model.weight)

    before = fake_tensors()
    weight = captured_once()
    after = fake_tensors()
    assert weight() is None
    assert not new_among(after, before)


def test_an_operation_that_cannot_be_cast_safely_is_refused_as_on_the_device():
    model = nn.Linear(4, 4, device="meta")

    def step(x):
        with torch.autocast("cuda"):
            return F.binary_cross_entropy(model(x).sigmoid(), x)

    with pytest.raises(Exception, match="unsafe to autocast"):
        unisono.capture(step, model=model, example=(torch.zeros(2, 4, device="meta"),), device="cuda")


def test_automatic_casts_of_the_processor_around_a_capture_for_another_device_are_refused():
    model = nn.Linear(4, 4, device="meta")
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(UnsupportedError) as caught:
        unisono.capture(
            lambda x: model(x).sum(), model=model, example=(torch.zeros(2, 4, device="meta"),), device="cuda"
        )
    assert caught.value.code == "U0128"


def test_devices_that_nothing_is_known_of_and_that_are_not_here_are_refused():
    with pytest.raises(ConfigurationError) as caught:
        captured(_gpt, "meta", for_device="xpu")
    assert caught.value.code == "U0012"
    assert "'cuda'" in str(caught.value)
