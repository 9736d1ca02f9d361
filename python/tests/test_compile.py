"""``torch.compile(.., backend="unisono")``: as eager PyTorch, for unmodified models and for what is particular to compiled functions."""

from __future__ import annotations

import copy
import threading

import pytest
import steps
import test_models
import torch
import torch.nn.functional as F
from backend import compiled, fresh
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

from unisono.errors import CompileNotice


@pytest.fixture(autouse=True)
def _fresh():
    with fresh():
        yield


def trained(model, call, seed=3):
    """The loss, the gradients and the buffers after a step of ``call`` with its own random numbers."""
    torch.manual_seed(seed)
    model.zero_grad()
    loss = call()
    loss.backward()
    left = {**dict(model.named_buffers()), **{f"{name}.grad": one.grad for name, one in model.named_parameters()}}
    return {"loss": loss.detach(), **{name: one.clone() for name, one in left.items() if one is not None}}


def assert_close(found, expected, bound=1e-5):
    assert found.keys() == expected.keys()
    for name, one in expected.items():
        # What has no gradient but noise (the bias of keys) stays near zero.
        scale = one.abs().max() + 1e-4
        assert (found[name] - one).abs().max() <= bound * scale, name


@test_models.MODELS
def test_an_unmodified_model_is_trained_as_in_eager_pytorch(make):
    torch.manual_seed(0)
    model, loss_of, batch = make()
    reference, call = copy.deepcopy(model), compiled(loss_of)
    for _ in range(2):
        assert_close(
            trained(model, lambda: call(model, *batch)), trained(reference, lambda: loss_of(reference, *batch))
        )


@pytest.mark.parametrize("make", [test_models.gpt2, test_models.wan], ids=lambda make: make.__name__)
def test_a_model_is_trained_as_in_eager_pytorch_where_forward_keeps_all_that_backward_reads(make):
    torch.manual_seed(0)
    model, loss_of, batch = make()
    reference, call = copy.deepcopy(model), compiled(loss_of, options={"partition": "default"})
    assert_close(trained(model, lambda: call(model, *batch)), trained(reference, lambda: loss_of(reference, *batch)))


class Mixed(nn.Module):
    """Convolutions, batch norm, dropout and pointwise operations that are fused."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.Dropout(0.3)
        self.up, self.gate, self.down = (nn.Linear(*sizes) for sizes in ((8, 32), (8, 32), (32, 4)))

    def forward(self, x_BCHW):
        x = self.drop(F.relu(self.norm(self.conv(x_BCHW)))).mean((2, 3))
        return self.down(torch.tanh(self.gate(x) * 0.5) * F.silu(self.up(x)) + self.up(x).sigmoid() * 2)


@pytest.mark.parametrize("options", [{}, {"fuse": False}, {"partition": "default"}], ids=str)
def test_every_option_gives_the_same_numbers(options):
    torch.manual_seed(0)
    model, x = Mixed(), torch.randn(5, 3, 8, 8)
    reference, call = copy.deepcopy(model), compiled(model, options=options)
    for _ in range(3):
        assert_close(
            trained(model, lambda: call(x).square().mean()), trained(reference, lambda: reference(x).square().mean())
        )
    model.eval(), reference.eval()
    with torch.no_grad():
        torch.testing.assert_close(call(x), reference(x))
    with torch.inference_mode():
        torch.testing.assert_close(call(x), reference(x))


def test_the_second_size_is_captured_again_and_serves_all_others():
    counter = CompileCounterWithBackend("unisono")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
    reference, call = copy.deepcopy(model), torch.compile(model, backend=counter)
    for size in (4, 6, 9, 1 + 30, 6):
        x = torch.randn(size, 3, 8)
        assert_close(
            trained(model, lambda x=x: call(x).square().sum()),
            trained(reference, lambda x=x: reference(x).square().sum()),
        )
    assert counter.frame_count == 2


def test_what_a_function_returns_and_writes_is_as_in_eager_pytorch():
    def function(x, y):
        y.mul_(2)
        whole = x + 1
        return {
            "view": x.t(),
            "itself": x,
            "made": torch.ones(3),
            "parts": (whole[0], whole),
            "plain": (3, None),
            "y": y,
        }

    call = compiled(function)
    for _ in range(2):
        x, y = torch.randn(2, 3), torch.randn(2)
        expected_y = y.clone()
        expected = function(x, expected_y)
        found = call(x, y)
        assert found["itself"] is x
        assert found["y"] is y
        assert found["view"].data_ptr() == x.data_ptr()
        assert found["parts"][0].data_ptr() == found["parts"][1].data_ptr()
        assert found["plain"] == (3, None)
        torch.testing.assert_close(
            [found["view"], found["made"], *found["parts"]], [x.t(), torch.ones(3), *expected["parts"]]
        )
        torch.testing.assert_close(y, expected_y)
        # What was made is the caller's to write into.
        found["made"].fill_(9)
        found["parts"][1].zero_()


def test_what_a_function_returns_may_be_written_into():
    def several(x):
        y = x.relu()
        return x * 1, y, x.relu(), y.t().t(), y / 1, torch.empty_like(x).copy_(x)

    def two_views(x):
        y = x / 1
        return y, y.view(4, 3)

    def views_of_what_is_always_the_same(x):
        y = torch.full((3, 4), 1.5)
        return y, y.t(), y[1:], torch.ones(3) + x.sum()

    for function in (several, two_views, views_of_what_is_always_the_same):
        x = torch.randn(3, 4)
        before = x.clone()
        found, expected = compiled(function)(x), function(x)
        for number, (one, eager) in enumerate(zip(found, expected, strict=True)):
            one.mul_(number + 2)
            eager.mul_(number + 2)
        torch.testing.assert_close(x, before, rtol=0, atol=0)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_what_shares_memory_is_several_tensors():
    def function(x):
        y = x * 2
        return y, y.detach(), y.t().t()

    with torch.no_grad():
        found = compiled(function)(torch.randn(3, 4))
    assert len({id(one) for one in found}) == 3
    assert len({one.data_ptr() for one in found}) == 1


def test_parts_of_what_is_always_the_same_lie_as_in_eager_pytorch():
    def function(x):
        return torch.ones(4, 4).tril()[:, 1], torch.zeros(3)[:1].expand(3), x * 2

    x = torch.randn(3, 4)
    for found, expected in zip(compiled(function)(x), function(x), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0, check_stride=True)


def test_parts_of_a_function_that_cannot_be_captured_run_between_those_that_can():
    def function(x):
        y = (x * 2).relu()
        print(end="")
        torch._dynamo.graph_break()
        return (y + 1).tanh() if y.sum() > 0 else y

    x = torch.ones(3, requires_grad=True)
    found = compiled(function)(x)
    found.sum().backward()
    gradient, x.grad = x.grad, None
    function(x).sum().backward()
    torch.testing.assert_close(gradient, x.grad)


def test_types_and_casts_are_those_of_eager_pytorch():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))
    reference, call, x = copy.deepcopy(model), compiled(model), torch.randn(4, 8)

    def loss(function):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = function(x)
        assert y.dtype == torch.bfloat16
        return y.float().square().sum()

    assert_close(trained(model, lambda: loss(call)), trained(reference, lambda: loss(reference)), bound=1e-2)
    whole, halves = torch.arange(4), torch.randn(4, dtype=torch.float64)
    function = lambda a, b: (a + 1, b.half() * 2, a > 1, (a / 3).long())  # noqa: E731
    torch.testing.assert_close(compiled(function)(whole, halves), function(whole, halves))


@pytest.mark.parametrize("shape", [(0, 4), (1, 4), ()])
def test_tensors_without_elements_and_without_dimensions_are_as_in_eager_pytorch(shape):
    function = lambda x: ((x + 1).exp() * 2, x.sum())  # noqa: E731
    x = torch.randn(shape)
    torch.testing.assert_close(compiled(function)(x), function(x))


def test_second_derivatives_and_gradients_that_nobody_asks_for_end_as_in_pytorch():
    model = nn.Linear(4, 4)
    x, y = torch.randn(2, 4, requires_grad=True), torch.randn(2, 4)
    found = torch.autograd.grad((compiled(model)(x) * y).sum(), x)
    torch.testing.assert_close(found, torch.autograd.grad((model(x) * y).sum(), x))


def test_threads_may_call_one_function():
    torch.manual_seed(0)
    model = steps.GPT()
    call, tokens = compiled(model), torch.randint(0, 128, (4, 16))
    with torch.no_grad():
        expected = call(tokens)
        found = [None] * 4

        def run(number):
            with torch.no_grad():
                found[number] = call(tokens)

        threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    for one in found:
        torch.testing.assert_close(one, expected)


def test_sizes_are_lowered_without_a_tracer_which_changes_what_modules_do_in_all_threads(monkeypatch):
    call = compiled(lambda x: F.gelu(x.view(-1, 2)) * x.shape[0], dynamic=True)
    torch.testing.assert_close(call(torch.ones(6, 4)), F.gelu(torch.ones(12, 2)) * 6)
    traced = []
    monkeypatch.setattr(torch.fx.Tracer, "trace", lambda *_args, **_settings: traced.append(1))
    torch.testing.assert_close(call(torch.ones(5, 4)), F.gelu(torch.ones(10, 2)) * 5)
    assert not traced


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.silu(F.elu(x)).amax(-1),
        lambda x: (lambda y: (y * (y == y.amax(-1, keepdim=True))).sum(-1))(F.silu(F.elu(x))),
        lambda x: F.silu(F.elu(x)).t().amin(0).exp(),
    ],
    ids=["greatest", "equal", "least"],
)
def test_what_is_compared_is_not_made_again_with_another_last_bit(function):
    x = torch.randn(120, 24, generator=torch.Generator().manual_seed(0)).requires_grad_()
    found, expected = (torch.autograd.grad(call(x).sum(), x)[0] for call in (compiled(function), function))
    torch.testing.assert_close(found, expected)


def test_activations_are_let_go_of_while_backward_runs():
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(6)))
    call, x = compiled(model), torch.randn(2048, 64)
    call(x).sum().backward()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiled:
        call(x).sum().backward()
    held, most, at_last_allocation = 0, 0, 0
    for event in profiled.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
            at_last_allocation = held if event.nbytes() > 1000 else at_last_allocation
    assert at_last_allocation < most - 3 * x.nbytes


@pytest.mark.parametrize("order", [(2, 0, 3, 1, 4), (2, 0, 1, 3, 4), (1, 2, 0, 4, 3), (4, 3, 2, 1, 0)])
@pytest.mark.parametrize("dim", [0, -1])
def test_gradients_of_what_was_taken_apart_along_a_dimension_are_stacked_in_its_order(order, dim):
    def function(x):
        parts = x.view(2, 5, 3, 4, 2).permute(order).unbind(dim)
        return sum((part * (number + 2)).square().sum() for number, part in enumerate(parts))

    x = torch.randn(2, 5, 24, generator=torch.Generator().manual_seed(0)).requires_grad_()
    found, expected = (torch.autograd.grad(call(x), x)[0] for call in (compiled(function), function))
    torch.testing.assert_close(found, expected)


def test_frequencies_of_embedded_times_are_those_of_eager_pytorch_to_the_last_bit():
    def function(t_B):
        frequencies = torch.exp(-9.21 * torch.arange(0, 16, dtype=torch.float32) / 16)
        return torch.sin(t_B[:, None] * frequencies) * 2

    # A phase of 5e5 makes 0.03 of an error in the last bit.
    t_B = torch.tensor([5e5, 123_456.0])
    torch.testing.assert_close(compiled(function)(t_B), function(t_B))


def turns(out, x):
    out[..., 0::2], out[..., 1::2] = x[..., 0::2] * 2, x[..., 1::2].exp()


def halves(out, x):
    out[:, 3:], out[:, :3] = x[:, :-3].sin(), x[:, -3:] * 3


def blocks_of_rows(out, x):
    out[2:3], out[:2], out[-1:] = x[:1], x[1:3].tanh(), x[3:] * 2


def twice(out, x):
    out[..., 0::2], out[..., 1::2], out[1:] = x[..., 0::2] * 2, 1, x[1:] * x[:-1]


def some(out, x):
    out[..., 1::3], out[..., 0::3] = x[..., 0:2] * 2, x[..., :1]


@pytest.mark.parametrize("write", [turns, halves, blocks_of_rows, twice, some])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tensors_that_are_written_slice_by_slice(write, dtype):
    def function(x):
        out = torch.zeros_like(x, dtype=dtype)
        write(out, x)
        return out, out[:, 1:] * 2

    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)).requires_grad_()
    made = [call(x) for call in (compiled(function), function)]
    gradients = [torch.autograd.grad([one.sin().sum() for one in outputs], x)[0] for outputs in made]
    torch.testing.assert_close(*made)
    torch.testing.assert_close(*gradients)


def test_elements_of_a_type_that_graphs_do_not_have_run_as_in_eager_pytorch_with_a_notice():
    def function(x):
        return torch.view_as_real(torch.complex(x, x))

    x = torch.randn(3, 4).half()
    with pytest.warns(CompileNotice, match=r"runs as in eager PyTorch: .*torch\.complex32"):
        found = compiled(function)(x)
    torch.testing.assert_close(found, function(x))


@pytest.mark.parametrize("dynamic", [False, True])
def test_an_error_in_a_compiled_function_names_the_line(dynamic):
    def function(x, at):
        return x[at] * 2

    call = compiled(function, dynamic=dynamic)
    assert torch.equal(call(torch.ones(3), torch.tensor([0, 2])), torch.full((2,), 2.0))
    with pytest.raises(Exception, match=r"test_compile\.py") as caught:
        call(torch.ones(3), torch.tensor([0, 7]))
    assert "out of bounds" in str(caught.value) or "out of range" in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"options": {"max_autotune": True}}, "max_autotune"),
        ({"options": {"partition": "most"}}, "most"),
        ({"mode": "reduce-overhead"}, "reduce-overhead"),
    ],
)
def test_options_that_are_not_known_are_refused(settings, named):
    with pytest.raises(Exception, match=named) as caught:
        compiled(lambda x: x + 1, **settings)(torch.ones(2))
    assert "U0012" in str(caught.value)


def test_a_number_that_becomes_a_tensor_by_itself_is_computed_as_in_eager_pytorch():
    def function(x):
        # `vmap` makes a tensor in double precision of the number.
        return torch.vmap(lambda row: (row * 2).sin())(x)

    x = torch.randn(4, dtype=torch.float64, requires_grad=True)
    found, expected = compiled(function)(x), function(x)
    assert found.dtype == expected.dtype and torch.equal(found, expected)
