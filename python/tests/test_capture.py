import copy
import itertools
import linecache
import math
import random
import re
import types
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import unisono
from unisono._interpret import interpret
from unisono.errors import StepError, UnsupportedError


class Classifier(nn.Module):
    """Embedding, linear layers and batch norm: every class of input."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.up = nn.Linear(8, 16, bias=False)  # before a norm, a bias has no gradient but noise
        self.norm = nn.BatchNorm1d(16)
        self.down = nn.Linear(16, 11)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.norm(self.up(self.embed(x)))))


def make_step(model, optimizer, clip=1.0):
    parameters = list(model.parameters())

    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, clip)
        optimizer.step()
        return loss

    return step


def batches(count, size=6):
    generator = torch.Generator().manual_seed(1)
    return [tuple(torch.randint(0, 11, (2, size), generator=generator)) for _ in range(count)]


def run_graph(graph, data):
    """The returns of each step, and all inputs after the last, with the graph run node by node."""
    decoded = graph.decoded()
    inputs = [item.tensor.detach().clone() for item in graph.capture.inputs.inputs]
    positions = [p for p in graph.capture.inputs.leaves if p is not None]
    returns = []
    for batch in data:
        for position, tensor in zip(positions, batch, strict=True):
            inputs[position] = tensor
        result, updates = interpret(decoded, inputs)
        returns.append(result[0])
        for position, tensor in updates.items():
            inputs[position] = tensor
    return returns, {item.name: t for item, t in zip(graph.capture.inputs.inputs, inputs, strict=True)}


OPTIMIZERS = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "AdamW in groups": lambda p: torch.optim.AdamW(
        [{"params": p[:2], "lr": 1e-2}, {"params": p[2:], "weight_decay": 0.3}]
    ),
    "Adam with amsgrad": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "SGD, not fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=False),
    "SGD, fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
    "Adadelta": lambda p: torch.optim.Adadelta(p),
    "Adamax": lambda p: torch.optim.Adamax(p),
    "NAdam": lambda p: torch.optim.NAdam(p),
    "RAdam": lambda p: torch.optim.RAdam(p),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, centered=True),
    "ASGD": lambda p: torch.optim.ASGD(p),
    "Rprop": lambda p: torch.optim.Rprop(p),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_graph_of_a_step_gives_what_eager_pytorch_gives_with_every_optimizer(name):
    torch.manual_seed(0)
    model = Classifier()
    reference = copy.deepcopy(model)
    optimizer = OPTIMIZERS[name](list(model.parameters()))
    eager = OPTIMIZERS[name](list(reference.parameters()))
    before = copy.deepcopy(model.state_dict())
    graph = unisono.capture(make_step(model, optimizer), model=model, optimizer=optimizer, example=batches(1)[0])
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())

    losses, after = run_graph(graph, batches(5))
    eager_step = make_step(reference, eager)
    expected = [eager_step(x, y) for x, y in batches(5)]
    torch.testing.assert_close(losses, [loss.detach() for loss in expected], rtol=1e-5, atol=0)
    for key, value in reference.named_parameters():
        torch.testing.assert_close(after[f"params.{key}"], value.detach(), rtol=1e-5, atol=1e-6, msg=key)
    for key, value in reference.named_buffers():
        torch.testing.assert_close(after[f"buffers.{key}"], value, rtol=1e-5, atol=1e-6, msg=key)


def captured(step=None, **changes):
    torch.manual_seed(0)
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    step = step(model, optimizer) if step else make_step(model, optimizer)
    return unisono.capture(step, model=model, optimizer=optimizer, example=changes.get("example", batches(1)[0]))


def test_inputs_are_classed_and_named():
    names = {item["name"]: item["class"] for item in captured().decoded()["inputs"]}
    assert names["params.embed.weight"] == "parameter"
    assert names["buffers.norm.running_mean"] == "buffer"
    assert names["optimizer.up.weight.exp_avg_sq"] == "optimizer"
    assert (names["hyper.0.lr"], names["batch.x"], names["batch.y"]) == ("hyper", "batch", "batch")


def test_no_in_place_operation_is_left_and_no_value_is_read_back():
    graph = captured().decoded()
    for op in graph["ops"]:
        assert "(a!" not in op["schema"], op
        assert "_local_scalar_dense" not in op["name"]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_writing_into_parts_of_a_tensor_is_made_of_operations_that_can_be_sharded(order):
    linear = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(linear.parameters(), lr=0.1)

    def train_step(x):
        optimizer.zero_grad()
        made = linear(x).permute(order).contiguous().permute([order.index(dim) for dim in range(3)])
        made = made * 2.0
        made[..., 4:] = made[..., 4:] * x[..., 4:]
        loss = made.square().mean()
        loss.backward()
        optimizer.step()
        return loss

    x = torch.randn(4, 6, 8)
    graph = unisono.capture(train_step, model=linear, optimizer=optimizer, example=(x,))
    assert "aten::new_empty(" in graph.text()
    assert "runs replicated" not in graph.plan("h100:1x2").explain()
    (returned,), state = run_graph(graph, [(x,)])
    torch.testing.assert_close(returned, train_step(x).detach())
    for name, value in linear.named_parameters():
        torch.testing.assert_close(state[f"params.{name}"], value.detach())


def test_a_diagonal_that_is_filled_in_place_is_sharded_as_one():
    linear = nn.Linear(6, 8)

    def similarity(x):
        made = linear(x)
        return (made @ made.t()).fill_diagonal_(-9.0).logsumexp(1)

    x = torch.randn(4, 6)
    graph = unisono.capture(similarity, model=linear, example=(x,))
    assert "aten::diagonal_scatter" in graph.text()
    assert "as_strided" not in graph.text()
    assert "runs replicated" not in graph.plan("h100:1x2").explain()
    (returned,), _ = run_graph(graph, [(x,)])
    torch.testing.assert_close(returned, similarity(x).detach())


@pytest.mark.parametrize(
    ("pool", "shape"), [(nn.AdaptiveAvgPool1d(1), (4, 5, 6)), (nn.AdaptiveAvgPool2d(1), (4, 5, 3, 6))]
)
def test_averages_of_images_in_which_channels_lie_last_are_made_of_operations_that_can_be_sharded(pool, shape):
    linear = nn.Linear(6, 6)
    optimizer = torch.optim.SGD(linear.parameters(), lr=0.1)

    def train_step(x):
        optimizer.zero_grad()
        loss = pool(linear(x).tanh().movedim(-1, 1)).flatten(1).square().sum()
        loss.backward()
        optimizer.step()
        return loss

    x = torch.randn(shape)
    graph = unisono.capture(train_step, model=linear, optimizer=optimizer, example=(x,))
    assert "as_strided" not in graph.text()
    assert "runs replicated" not in graph.plan("h100:1x2").explain()
    (returned,), state = run_graph(graph, [(x,)])
    torch.testing.assert_close(returned, train_step(x).detach())
    for name, value in linear.named_parameters():
        torch.testing.assert_close(state[f"params.{name}"], value.detach())


def test_every_node_keeps_the_users_line_and_module_and_its_part_of_the_step():
    graph = captured().decoded()
    ops = [op["name"] for op in graph["ops"]]
    by_op = {ops[node["op"]]: node for node in graph["nodes"]}
    with open(__file__) as file:
        lines = file.read().splitlines()

    def line(op):
        place = graph["places"][by_op[op]["place"]]
        assert place["file"] == __file__
        return lines[place["line"] - 1].strip()

    assert line("aten::embedding").startswith("return self.down(")
    assert line("aten::embedding_dense_backward").startswith("return self.down(")
    assert line("aten::_fused_adamw.tensor_lr") == "optimizer.step()"
    assert graph["modules"][by_op["aten::_native_batch_norm_legit_functional"]["module"]] == "norm"
    assert graph["modules"][by_op["aten::native_batch_norm_backward"]["module"]] == "norm"
    kinds = [
        graph["parts"][by_op[op]["part"]]["kind"] for op in ("aten::embedding", "aten::gelu_backward", "aten::stack")
    ]
    assert kinds == ["forward", "backward", "update"]


def test_a_parameter_that_is_a_single_number_is_like_any_other():
    model = nn.Sequential(nn.Linear(4, 1))
    model.scale = nn.Parameter(torch.tensor(1.5))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        loss = (model(x) * model.scale).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    graph = unisono.capture(step, model=model, optimizer=optimizer, example=(torch.ones(3, 4),))
    assert model.scale.item() == 1.5
    returns, after = run_graph(graph, [(torch.ones(3, 4),)] * 3)
    eager = [step(torch.ones(3, 4)).detach() for _ in range(3)]
    torch.testing.assert_close(torch.stack(returns), torch.stack(eager))
    torch.testing.assert_close(after["params.scale"], model.scale.detach())


def test_gradients_zeroed_at_the_end_of_the_step_are_as_good_as_at_its_beginning():
    def at_the_end(model, optimizer):
        def step(x, y):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        return step

    assert captured(at_the_end).decoded()["updates"]


def test_gradients_that_earlier_steps_left_to_parameters_of_nobodys_are_refused():
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(3))], lr=0.1)

    def step(x):
        (parameter,) = optimizer.param_groups[0]["params"]
        (parameter * x).sum().backward()
        optimizer.step()

    example = torch.ones(3)
    assert unisono.capture(step, optimizer=optimizer, example=example).decoded()["updates"]
    optimizer.param_groups[0]["params"][0].grad = torch.zeros(3)
    with pytest.raises(StepError, match="adds to gradients") as caught:
        unisono.capture(step, optimizer=optimizer, example=example)
    assert "zero_grad" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("math.gcd(int(loss.item()), 2)", "reads the value of a tensor"),
        ("x[: int(loss.item())].sum()", "does more with a part of a tensor"),
        ("[bool(loss > bound) for bound in range(4)]", "chooses by the value of a tensor"),
        ("model(x)[x > 3].max()", "depends on data"),
        ("torch.nonzero(x)", "depends on data"),
        ("torch.rand(3).sum().numpy()", "reads the value of a tensor"),
    ],
)
def test_a_step_that_depends_on_data_is_refused_with_the_users_line(line, says, tmp_path):
    source = "\n".join(
        ["def step(x, y):", "    loss = F.cross_entropy(model(x), y)", f"    z = {line}", "    return loss"]
    )
    file = tmp_path / "users_step.py"
    file.write_text(source)

    def compiled(model, optimizer):
        scope = {"F": F, "torch": torch, "math": math, "model": model}
        exec(compile(source, str(file), "exec"), scope)
        return scope["step"]

    with pytest.raises(StepError, match=says) as caught:
        captured(compiled)
    assert caught.value.place == f"{file}:3"
    assert caught.value.hint


def test_many_distributions_that_check_their_arguments_are_refused_with_the_setting_that_helps(monkeypatch):
    # PyTorch's own default, which `torch.compile` turns off in the whole process.
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)

    def drawing(validate, count):
        def step(x):
            return sum(
                torch.distributions.Normal(x, 1 + n, validate_args=validate).log_prob(x).sum() for n in range(count)
            )

        return step

    with pytest.raises(StepError, match="value of a tensor") as caught:
        unisono.capture(drawing(None, 40), example=torch.zeros(3))
    assert "validate_args=False" in (caught.value.hint or "")
    assert unisono.capture(drawing(False, 40), example=torch.zeros(3)).decoded()["returns"]


def test_gradients_zeroed_in_place_are_captured_as_zeros():
    def zeroing(model, optimizer):
        def step(x, y):
            optimizer.zero_grad(set_to_none=False)
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        return step

    names = [op["name"] for op in captured(zeroing).decoded()["ops"]]
    assert "aten::full" in names


def test_a_scheduler_between_two_updates_of_a_step_is_refused():
    def scheduling(model, optimizer):
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        inner = make_step(model, optimizer)

        def step(x, y):
            inner(x, y)
            scheduler.step()
            return inner(x, y)

        return step

    with pytest.raises(StepError, match="between two steps of its optimizer") as caught:
        captured(scheduling)
    assert caught.value.code == "U0103"


def test_an_example_that_does_not_fit_the_step_is_refused():
    with pytest.raises(unisono.errors.ConfigurationError, match="does not fit"):
        captured(example=(torch.zeros(1),))


def test_an_example_can_be_what_a_data_loader_gives():
    pairs = torch.utils.data.TensorDataset(torch.randn(6, 3), torch.randn(6, 2))
    batch = next(iter(torch.utils.data.DataLoader(pairs, batch_size=6)))
    assert isinstance(batch, list)
    model = nn.Linear(3, 2)

    def step(x, y):
        return F.mse_loss(model(x), y)

    def step_of_one(pair):
        return step(*pair)

    for kind in (step, step_of_one):
        inputs = unisono.capture(kind, model=model, example=batch).capture.inputs.inputs
        assert [list(one.tensor.shape) for one in inputs if one.cls == "batch"] == [[6, 3], [6, 2]]


def test_optimizer_state_is_created_as_the_first_step_would():
    model = nn.Linear(3, 2)
    optimizer = torch.optim.NAdam(model.parameters())
    reference = copy.deepcopy(model)
    eager = torch.optim.NAdam(reference.parameters())

    def step(x):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    unisono.capture(step, model=model, optimizer=optimizer, example=torch.ones(4, 3))
    reference(torch.ones(4, 3)).sum().backward()
    eager.step()
    state, expected = optimizer.state[model.weight], eager.state[reference.weight]
    assert state.keys() == expected.keys()
    assert (state["step"], state["mu_product"], state["exp_avg"].abs().sum()) == (0, 1, 0)


def test_a_question_that_the_code_alone_answers_is_answered():
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        mask = torch.full((4, 4), float("-inf")).triu_(1)
        causal = bool((mask == torch.triu(torch.full((4, 4), float("-inf")), 1)).all())
        weights = torch.tensor([1.0, 2.0])
        scale = 2.0 if causal and weights.sum().item() == 3.0 else 100.0
        loss = model(x).square().mean() * scale
        loss.backward()
        optimizer.step()
        return loss

    x = torch.randn(2, 4)
    graph = unisono.capture(step, model=model, optimizer=optimizer, example=(x,))
    (found,), _ = run_graph(graph, [(x,)])
    torch.testing.assert_close(found, step(x).detach())


class Counting:
    """A trainer that counts its steps where the captured step cannot."""

    def __init__(self) -> None:
        self.model = nn.Linear(4, 4)
        self.taken, self.kept, self.made, self.form = 0, [], False, "step %d"

    def step(self, x: torch.Tensor) -> torch.Tensor:
        self.taken += 1
        self.made = True
        loss = self.model(x).sum()
        self.kept.append(1)
        return loss


def test_numbers_and_lists_that_a_step_changes_are_as_they_were_when_it_is_captured():
    trainer = Counting()
    unisono.capture(trainer.step, model=trainer.model, example=(torch.ones(2, 4),))
    assert (trainer.taken, trainer.kept) == (0, [])


def test_numbers_and_lists_that_a_step_changes_once_are_named_in_a_warning():
    trainer = Counting()

    def step(x):
        loss = trainer.step(x)
        trainer.told = trainer.form % trainer.taken
        return loss

    with pytest.warns(RuntimeWarning) as caught:
        unisono.capture(step, model=trainer.model, example=(torch.ones(2, 4),))
    (warning,) = [one for one in caught if "runs once" in str(one.message)]
    assert "`trainer.taken` (0 to 1), `trainer.kept` (0 to 1 entries of a list)" in str(warning.message)
    assert "made" not in str(warning.message)
    assert warning.filename == __file__


@pytest.mark.parametrize(("draw", "name"), [(random.random, "random"), (np.random.standard_normal, "numpy.random")])
def test_random_numbers_that_are_not_torchs_are_refused_where_the_step_computes_with_them(draw, name):
    model = nn.Linear(4, 4)
    with pytest.raises(StepError, match=f"computes with what it draws from `{name}`") as caught:
        unisono.capture(lambda x: (model(x) * draw()).sum(), model=model, example=(torch.ones(2, 4),))
    assert caught.value.code == "U0119"


def test_random_numbers_that_the_step_cannot_be_given_and_does_not_compute_with_are_drawn_once_with_a_warning():
    model = nn.Linear(4, 4)

    def step(x):
        random.shuffle([1, 2, 3])
        return model(x).sum()

    random.seed(3)
    with pytest.warns(RuntimeWarning, match="what it drew from `random` is a constant"):
        unisono.capture(step, model=model, example=(torch.ones(2, 4),))
    after = random.random()
    random.seed(3)
    random.shuffle([1, 2, 3])
    assert after == random.random()


@pytest.mark.parametrize("own", [random.Random(0), np.random.default_rng(0), np.random.RandomState(0)])
def test_random_numbers_of_generators_of_the_users_own_are_refused_and_not_drawn(own):
    model, settings = nn.Linear(4, 4), types.SimpleNamespace(own=own)
    other = copy.deepcopy(own)
    with pytest.raises(StepError, match=r"computes with what it draws from `settings\.own`"):
        unisono.capture(
            lambda x: (model(x) * settings.own.uniform(0, 1)).sum(), model=model, example=(torch.ones(2, 4),)
        )
    assert own.uniform(0, 1) == other.uniform(0, 1)


def test_what_derivatives_forward_need_is_loaded_before_functions_have_stand_ins(monkeypatch):
    model, seen = nn.Linear(4, 4), []
    real = torch.max
    monkeypatch.setattr("torch.autograd.forward_ad._maybe_load_decompositions", lambda: seen.append(torch.max is real))

    def step(x):
        return torch.func.jvp(model, (x,), (torch.ones_like(x),))[1].sum()

    unisono.capture(step, model=model, example=(torch.ones(2, 4),))
    assert seen[0]


class Growing(Counting):
    """Computes with what it counts."""

    def __init__(self, use):
        super().__init__()
        self.use = use

    def step(self, x):
        return super().step(x) * self.use(self)


@pytest.mark.parametrize(
    ("use", "named"),
    [
        (lambda one: one.taken, "`self.taken` (1 to 2)\n"),
        (lambda one: len(one.kept), "`self.kept` (1 to 2 entries of a list)\n"),
        (lambda one: torch.tensor(float(one.taken)), "`self.taken` (1 to 2)"),
        (lambda one: 1.0 if one.taken % 2 else 0.5, "`self.taken` (1 to 2)"),
    ],
)
def test_a_step_that_computes_with_what_it_counts_is_refused_and_has_not_counted(use, named):
    trainer = Growing(use)
    with pytest.raises(StepError, match=re.escape(named)) as caught:
        unisono.capture(trainer.step, model=trainer.model, example=(torch.ones(2, 4),))
    assert caught.value.code == "U0119"
    assert (trainer.taken, trainer.kept) == (0, [])


def test_what_the_first_call_alone_changes_is_a_constant():
    cached = {"size": 0}

    def step(x):
        cached["size"] = max(cached["size"], x.shape[0])
        return x.sum() * cached["size"]

    unisono.capture(step, example=(torch.ones(2),))
    assert cached == {"size": 2}


@pytest.mark.parametrize("kept", [iter([1.0, 2.0]), itertools.cycle([1.0]), (one for one in (1.0, 2.0))])
def test_an_iterator_that_the_step_goes_on_with_is_refused_and_not_advanced(kept):
    model, settings = nn.Linear(4, 4), {"numbers": kept}

    def step(x):
        first = next(iter(model.parameters())).sum()  # of an iterator of the step's own
        return model(x).sum() * first * next(settings["numbers"])

    with pytest.raises(StepError, match="takes the next item of a") as caught:
        unisono.capture(step, model=model, example=(torch.ones(2, 4),))
    assert caught.value.code == "U0117" and "test_capture.py" in str(caught.value.place)
    assert next(kept) == 1.0


def test_a_choice_between_results_of_other_shapes_or_types_is_refused():
    def of_shapes(x):
        return x.sum() if x.mean() < 0 else x

    def of_types(x):
        return x.double() if x.mean() < 0 else x

    for step in (of_shapes, of_types):
        with pytest.raises(StepError, match="reads the value") as caught:
            unisono.capture(step, example=(torch.ones(3),))
        assert caught.value.code == "U0101" and "test_capture.py" in str(caught.value.place)


def test_an_argument_that_is_changed_in_place_is_refused_by_the_line_that_does():
    for change in (lambda y: y.masked_fill_(y == 3, 0), lambda y: y.__setitem__(y == 3, 0), lambda y: y[:1].zero_()):
        with pytest.raises(StepError, match=r"`batch\.y` in place") as caught:
            unisono.capture(
                lambda y, change=change: (change(y), y.sum())[1], example=(torch.ones(2, dtype=torch.long),)
            )
        assert caught.value.code == "U0107" and "test_capture.py" in str(caught.value.place)


@pytest.mark.parametrize(
    ("call", "instead"),
    [
        (lambda y: torch.bincount(y), "minlength"),
        (lambda y: torch._VF._pack_padded_sequence(torch.ones(3, 2, 1), y, False)[0], "padding"),
        (lambda y: y.unique(), "which values there are"),
        (lambda y: y.repeat_interleave(y), "output_size"),
        (lambda y: y.nonzero(), "torch.where"),
    ],
)
def test_an_operation_whose_shape_depends_on_data_is_refused_with_what_to_write_instead(call, instead):
    with pytest.raises(StepError, match="depends on data") as caught:
        unisono.capture(lambda y: call(y).sum(), example=(torch.ones(2, dtype=torch.long),))
    assert caught.value.code == "U0101" and instead in str(caught.value.hint)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: torch.full((2,), 1j) * x.sum(),
        lambda x: torch.add(x * 1j, x, alpha=1j),
        lambda x: (x * 1j).fill_(1j),
    ],
)
def test_a_complex_setting_of_an_operation_is_refused_with_what_to_write_instead(make):
    with pytest.raises(UnsupportedError, match="of type complex") as caught:
        unisono.capture(lambda x: make(x).real.sum(), example=(torch.ones(2),))
    assert caught.value.code == "U0108" and "test_capture.py" in str(caught.value.place)
    assert "* 1j" in str(caught.value.hint)


def takes_another_way(x):
    """Asks as libraries do: for a compiler, and for tensors without data."""
    rows = torch.arange(x.shape[1])
    factor = 3 if torch.compiler.is_compiling() else 2
    if isinstance(rows, torch._subclasses.FakeTensor) or rows[-1] > 100:
        factor += 2
    return x * factor


def reads_without_a_compiler(x):
    if torch.compiler.is_compiling():
        return x * 2
    return x[: int(x.detach().exp().sum())] * 2


def trained(asking):
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        loss = asking(model(x)).sum()
        loss.backward()
        optimizer.step()
        return loss

    return model, optimizer, step


def test_code_that_asks_for_a_compiler_goes_the_way_of_eager_pytorch():
    model, optimizer, step = trained(takes_another_way)
    x = torch.randn(4, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        graph = unisono.capture(step, model=model, optimizer=optimizer, example=(x,))
    found, _ = interpret(graph.decoded(), [item.tensor for item in graph.capture.inputs.inputs])
    torch.testing.assert_close(found[0], step(x).detach())


def test_code_that_is_only_captured_as_compiled_is_told_so_with_a_warning():
    model, optimizer, step = trained(reads_without_a_compiler)
    x = torch.ones(4, 3)
    with pytest.warns(RuntimeWarning, match="asks whether a compiler runs it") as caught:
        graph = unisono.capture(step, model=model, optimizer=optimizer, example=(x,))
    line = str(caught[0].message).split(" ")[0]
    file, _, number = line.rpartition(":")
    assert "is_compiling" in linecache.getline(file, int(number))
    found, _ = interpret(graph.decoded(), [item.tensor for item in graph.capture.inputs.inputs])
    torch.testing.assert_close(found[0], step(x).detach())


def test_an_error_that_has_nothing_to_do_with_a_compiler_is_the_users_own():
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    calls = []

    def step(x):
        calls.append(torch.compiler.is_compiling())
        raise KeyError(f"mine {calls}")

    with pytest.raises(KeyError, match=r"mine \[False\]"):
        unisono.capture(step, model=model, optimizer=optimizer, example=(torch.randn(4, 3),))
    assert calls == []


def test_a_step_without_such_effects_is_captured_without_a_warning():
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters())
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        step = make_step(model, optimizer)
        unisono.capture(
            step, model=model, optimizer=optimizer, example=(torch.randint(11, (4,)), torch.randint(11, (4,)))
        )


def test_a_scripted_module_is_refused_by_name():
    model = nn.Sequential(torch.jit.script(nn.Linear(4, 4)))
    with pytest.raises(StepError) as caught:
        unisono.capture(lambda x: model(x).sum(), model=model, example=(torch.ones(2, 4),))
    assert caught.value.code == "U0127" and caught.value.message.startswith("`0` of the model is scripted")


@pytest.mark.parametrize("how", ["wrapped", "within"])
def test_a_model_that_is_distributed_already_is_refused_by_name(how):
    wrapped = nn.DataParallel(nn.Linear(4, 4))
    model = wrapped if how == "wrapped" else nn.Sequential(nn.Linear(4, 4), wrapped)
    with pytest.raises(StepError) as caught:
        unisono.capture(lambda x: model(x).sum(), model=model, example=(torch.ones(2, 4),))
    assert caught.value.code == "U0127"
    who = "the model" if how == "wrapped" else "`1` of the model"
    assert caught.value.message.startswith(f"{who} is a DataParallel")


def kinds_of_parts(train_step, **arguments):
    graph = unisono.capture(train_step, **arguments).decoded()
    assert [graph["nodes"][node]["part"] for node in graph["order"]] == sorted(
        graph["nodes"][node]["part"] for node in graph["order"]
    )
    return [part["kind"] for part in graph["parts"]]


def test_a_step_has_as_many_parts_as_it_has_passes_and_updates():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
    generator, critic = nn.Linear(4, 4), nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    first, second = torch.optim.SGD(generator.parameters(), lr=0.1), torch.optim.SGD(critic.parameters(), lr=0.1)

    def accumulated(x):
        for half in x.chunk(2):
            model(half).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    def in_turn(x):
        second.zero_grad()
        critic(generator(x).detach()).mean().backward()
        second.step()
        first.zero_grad()
        critic(generator(x)).mean().neg().backward()
        first.step()

    def by_hand(x):
        for parameter in model.parameters():
            parameter.grad = None
        model(x).square().mean().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(0.1 * parameter.grad)
                parameter.grad = None

    x = torch.randn(8, 4)
    passes = ["forward", "backward"]
    found = kinds_of_parts(accumulated, model=model, optimizer=optimizer, example=(x,))
    assert found == [*passes, *passes, "update"]
    both = nn.ModuleDict({"generator": generator, "critic": critic})
    found = kinds_of_parts(in_turn, model=both, optimizer=[first, second], example=(x,))
    assert found == [*passes, "update", *passes, "update"]
    assert kinds_of_parts(by_hand, model=model, example=(x,)) == [*passes, "update"]


def test_a_lazy_parameter_is_refused_by_name():
    model = nn.Sequential(nn.LazyLinear(8), nn.Linear(8, 3))
    with pytest.raises(StepError, match=r"`0\.weight` of the model has no shape yet") as caught:
        unisono.capture(lambda x: model(x).sum(), model=model, example=(torch.ones(2, 4),))
    assert caught.value.code == "U0130"
