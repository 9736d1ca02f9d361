"""Operations that run as one kernel give what PyTorch gives for them one by one."""

from __future__ import annotations

import math
import subprocess
import sys

import msgpack
import pytest
import torch
import torch.nn.functional as F

import unisono
from unisono import _native
from unisono._executor import Executor, lower_graph

aten = torch.ops.aten
ROWS = {row["name"]: row["formula"] for row in msgpack.unpackb(_native.operation_rows()) if row["formula"]}
EDGES = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 1e-40, 3e38, -90.0]


def numbers(seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A few ordinary numbers, with all the edges behind them in another order for each seed."""
    generator = torch.Generator().manual_seed(seed)
    edges = torch.tensor(EDGES)[torch.randperm(len(EDGES), generator=generator)]
    return torch.cat([torch.randn(1024 - len(EDGES), generator=generator) * 3, edges]).reshape(2, 512).to(dtype)


#: For each operation with a formula how it is called, on tensors of numbers.
SAMPLES = {
    "aten::add.Tensor": [lambda x, y: aten.add(x, y), lambda x, y: aten.add(x, y, alpha=0.5)],
    "aten::sub.Tensor": [lambda x, y: aten.sub(x, y), lambda x, y: aten.sub(x, y[:1], alpha=2)],
    "aten::add.Scalar": [lambda x: aten.add.Scalar(x, 0.3)],
    "aten::sub.Scalar": [lambda x: aten.sub.Scalar(x, 0.3, 2)],
    "aten::rsub.Scalar": [lambda x: aten.rsub.Scalar(x, 1)],
    "aten::mul.Tensor": [lambda x, y: aten.mul(x, y), lambda x, y: aten.mul(x, y[:, :1])],
    "aten::mul.Scalar": [lambda x: aten.mul.Scalar(x, 0.3)],
    "aten::div.Tensor": [lambda x, y: aten.div(x, y)],
    "aten::div.Scalar": [lambda x: aten.div.Scalar(x, 3.0)],
    "aten::neg": [aten.neg],
    "aten::reciprocal": [aten.reciprocal],
    "aten::pow.Tensor_Scalar": [lambda x, p=p: aten.pow(x, p) for p in (2, 3, 0.5, -1, -2)],
    "aten::sqrt": [aten.sqrt],
    "aten::rsqrt": [aten.rsqrt],
    "aten::square": [aten.square],
    "aten::exp": [aten.exp],
    "aten::log": [aten.log],
    "aten::erf": [aten.erf],
    "aten::abs": [aten.abs],
    "aten::clamp_min": [lambda x: aten.clamp_min(x, 0.25)],
    "aten::clamp_max": [lambda x: aten.clamp_max(x, 0.25)],
    "aten::maximum": [lambda x, y: aten.maximum(x, y)],
    "aten::minimum": [lambda x, y: aten.minimum(x, y)],
    "aten::addcmul": [lambda x, y, z: aten.addcmul(x, y, z, value=0.5)],
    "aten::addcdiv": [lambda x, y, z: aten.addcdiv(x, y, z, value=0.5)],
    "aten::where.self": [lambda x, y: aten.where.self(x > 0.5, x, y), lambda x, y: aten.where.self(x[:, :1] > y, y, x)],
    "aten::masked_fill.Scalar": [
        lambda x: aten.masked_fill.Scalar(x, x < 0.25, -math.inf),
        lambda x, y: aten.masked_fill.Scalar(x, y[:1] < 0.25, 2),
    ],
    "aten::native_dropout_backward": [lambda g, x: aten.native_dropout_backward(g, x > 0.5, 1.25)],
    "aten::cat": [
        lambda x, y: aten.cat([x * 2, y], -1),
        lambda x, y: aten.cat([x[:, 256:], y, x[:, :256]], 1)[:, :256] * 2,
    ],
    "aten::slice_backward": [
        lambda x: aten.slice_backward(x * 2, [2, 1024], 1, 512, 9223372036854775807, 1)[:, 512:],
        lambda x: aten.slice_backward(x[:, :256] * 2, [2, 768], -1, 256, 512, 1)[:, :512],
    ],
    "aten::lerp.Scalar": [lambda x, y: aten.lerp(x, y, 0.1)],
    "aten::relu": [aten.relu],
    "aten::silu": [aten.silu],
    "aten::sigmoid": [aten.sigmoid],
    "aten::tanh": [aten.tanh],
    "aten::gelu": [lambda x: aten.gelu(x), lambda x: aten.gelu(x, approximate="tanh")],
    "aten::threshold_backward": [lambda g, x: aten.threshold_backward(g, x, 0.5)],
    "aten::silu_backward": [lambda g, x: aten.silu_backward(g, x)],
    "aten::tanh_backward": [lambda g, y: aten.tanh_backward(g, y)],
    "aten::sigmoid_backward": [lambda g, y: aten.sigmoid_backward(g, y)],
    "aten::gelu_backward": [
        lambda g, x: aten.gelu_backward(g, x),
        lambda g, x: aten.gelu_backward(g, x, approximate="tanh"),
    ],
    "aten::_to_copy": [lambda x: aten._to_copy(x, dtype=torch.bfloat16).float()],
    "aten::clone": [aten.clone],
    "aten::sum": [lambda x, y: aten.sum(x * y)],
    "aten::sum.dim_IntList": [
        lambda x: aten.sum.dim_IntList(x, [-1], True),
        lambda x: aten.sum.dim_IntList(x, [1]),
        lambda x, y: aten.sum.dim_IntList(x * y, [0]),
        lambda x, y: aten.sum.dim_IntList(x * y, [0, 1], True),
    ],
    "aten::mean": [lambda x, y: aten.mean(x * y)],
    "aten::mean.dim": [lambda x: aten.mean.dim(x, [-1], True)],
    "aten::amax": [lambda x: aten.amax(x, [-1], True)],
    "aten::_softmax": [lambda x: aten._softmax(x, -1, False), lambda x: aten._softmax(x - math.inf, 1, False)],
    "aten::_log_softmax": [lambda x: aten._log_softmax(x, 1, False)],
    "aten::_safe_softmax": [lambda x: aten._safe_softmax(x, -1), lambda x: aten._safe_softmax(x - math.inf, -1)],
    "aten::_softmax_backward_data": [
        lambda g, x: aten._softmax_backward_data(g, aten.sigmoid(x), -1, x.dtype),
    ],
    "aten::_log_softmax_backward_data": [
        lambda g, x: aten._log_softmax_backward_data(g, -aten.abs(x), -1, x.dtype),
    ],
    "aten::nll_loss_backward": [
        lambda g, x: aten.nll_loss_backward(g[0, 0], x, torch.arange(2) * 511, None, 1, -100, x.new_full((), 3.0)),
        lambda g, x, w: aten.nll_loss_backward(g[0, 1], x, torch.arange(2) + 4, w[0], 2, 5, x.new_full((), 3.0)),
    ],
    "aten::native_layer_norm": [
        lambda x, w, b: aten.native_layer_norm(x, [512], w[0], b[0], 1e-5)[0],
        lambda x: aten.native_layer_norm(x, [512], None, None, 1e-5)[0],
        lambda x: aten.native_layer_norm(x * 2, [512], None, None, 1e-5)[1],
        lambda x: aten.native_layer_norm(x * 2, [512], None, None, 1e-5)[2],
    ],
    "aten::native_layer_norm_backward": [
        lambda g, x, w, m, index=index: aten.native_layer_norm_backward(
            g * 2, x, [512], m[:, :1].contiguous(), m[:, 1:2].contiguous(), w[0], w[1], [True, True, True]
        )[index]
        for index in range(3)
    ],
    "aten::_fused_rms_norm": [
        lambda x, w: aten._fused_rms_norm(x, [512], w[0], 1e-5)[0],
        lambda x: aten._fused_rms_norm(x * 2, [512], None, None)[1],
    ],
}
CASES = [(name, index) for name, calls in SAMPLES.items() for index in range(len(calls))]


#: What comes of many numbers: its error is that of its rows.
OF_ROWS = {name for name, formula in ROWS.items() if "over " in formula or "_over(" in formula}


def executed(function, inputs, *, fuse: bool = True, device="cpu") -> tuple[list[torch.Tensor], Executor]:
    """What a captured function gives in the executor, and the program."""
    graph = unisono.capture(function, example=inputs)
    run = Executor(lower_graph(graph.native, device=device, fuse=fuse))
    run.bind([])
    return run(list(inputs)), run


def names(run: Executor) -> list[str]:
    return [name for name, _ in run.program.instructions()]


def kernels(run: Executor) -> int:
    return sum(name.startswith("kernel") for name in names(run))


def operands(call) -> int:
    code = getattr(call, "__code__", None)
    return 1 if code is None else code.co_argcount - len(call.__defaults__ or ())


def test_every_formula_has_a_sample():
    assert set(ROWS) == set(SAMPLES)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize(("name", "index"), CASES)
def test_a_formula_is_what_pytorch_computes(name, index, dtype):
    call = SAMPLES[name][index]
    inputs = tuple(numbers(seed, dtype) for seed in range(operands(call)))
    # Before others, so that there is something to save.
    (found,), run = executed(lambda *x: aten.neg(aten.neg(aten.neg(call(*x)))), inputs)
    assert kernels(run) == 1 or name in OF_ROWS
    assert kernels(run) >= 1
    assert name not in "".join(names(run))
    exact = aten.neg(call(*(x.double() if name != "aten::_to_copy" else x for x in inputs)))
    expected = aten.neg(call(*inputs))
    assert found.dtype == expected.dtype
    # Where PyTorch's own kernel overflows (its GELU does, on some processors), the exact result is as good.
    assert ((found.isnan() == expected.isnan()) | (found.isnan() == exact.isnan())).all()
    # As near to the exact result as PyTorch's, or to within a few units of the last place: of the gradient that is passed on, where what is
    # multiplied with it is 1 less a number near 1.
    unit = 2.0 ** (-22 if dtype == torch.float32 else -7)
    scale = exact.abs() + (16 * inputs[0].double().abs().nan_to_num() if "backward" in name else 0)
    ordinary = expected.isfinite() & exact.isfinite()
    if name in OF_ROWS:
        return check_rows(found.double()[ordinary], expected.double()[ordinary], exact[ordinary], 4 * unit)
    error = (found.double() - exact).abs()[ordinary]
    allowed = ((expected.double() - exact).abs() * 1.5 + unit * scale + (1e-7 if name == "aten::gelu" else 1e-37))[
        ordinary
    ]
    assert (error <= allowed).all(), (error - allowed).max()
    infinite = expected.isinf()
    is_infinite = (found == expected) | (found == exact.to(dtype))
    assert is_infinite[infinite].all() or dtype == torch.bfloat16


def check_rows(found, expected, exact, unit):
    """Checks that results that come of many numbers are as near to the exact ones as PyTorch's, as a whole."""
    error, others = (found - exact).abs(), (expected - exact).abs()
    scale = exact.abs().max() if exact.numel() else 0
    assert (error <= others.max() * 1.5 + unit * scale).all() if exact.numel() else True


def swiglu(x, y, b):
    return F.silu(x) * (y + b), x.exp()


def test_broadcast_operands_are_read_where_they_lie():
    x, y, b = torch.randn(40, 600), torch.randn(40, 600), torch.randn(600)
    (first, second), run = executed(swiglu, (x, y, b))
    assert kernels(run) >= 1
    torch.testing.assert_close(first, F.silu(x) * (y + b))
    torch.testing.assert_close(second, x.exp())


@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (3, 0), (5,), (7, 1), (3, 129), (2, 3, 4, 5)])
def test_shapes_of_any_size_are_computed(shape):
    x, y = torch.randn(shape), torch.randn(shape)
    for dtype in (torch.float32, torch.bfloat16):
        (found,), _ = executed(lambda x, y: torch.tanh(x * y) + 1, (x.to(dtype), y.to(dtype)))
        torch.testing.assert_close(found, (torch.tanh(x.to(dtype) * y.to(dtype)) + 1), rtol=2e-2, atol=1e-2)


def test_an_input_is_not_written_over_and_what_ends_is():
    def step(x):
        made = x @ x
        return torch.tanh(made * 2) + x

    x = torch.randn(300, 300)
    before = x.clone()
    (found,), run = executed(step, (x,))
    assert " over " in str(run.program)
    torch.testing.assert_close(found, torch.tanh((x @ x) * 2) + x)
    for _ in range(3):
        assert torch.equal(run([x])[0], found)
    assert torch.equal(x, before)


def test_kernels_of_constants_run_once_and_are_not_written_over():
    def step(x):
        weights = torch.linspace(0, 1, 256).exp() * 2
        return (x * weights).tanh(), weights + 1

    x = torch.randn(4, 256)
    found, run = executed(step, (x,))
    prologue, body = str(run.program).split("body:")
    assert "kernel" in prologue
    assert "kernel" in body
    assert run.program.constant_bytes() >= 4 * 256
    for _ in range(2):
        assert all(torch.equal(a, b) for a, b in zip(run([x]), found, strict=True))
        found[1].zero_()
        found = run([x])
        for one, expected in zip(found, step(x), strict=True):
            torch.testing.assert_close(one, expected)


def test_what_stays_as_it_is_has_a_reason():
    graph = unisono.capture(
        lambda x, y: (x.cos() * 2, (x @ y).exp() + 1, y.long() + 1), example=(torch.ones(64, 64),) * 2
    )
    text = graph.native.kernels()
    assert text.startswith("1 kernels for 2 operations")
    assert "1 of aten::cos: no formula" in text
    assert "a tensor of i64" in text
    assert "no kernel with it would pay" in text


def test_a_kernel_without_fusing_is_not_there():
    _, run = executed(lambda x: (x * 2).exp(), (torch.ones(4),), fuse=False)
    assert kernels(run) == 0


def shares(x):
    return torch.softmax(x * 2, -1), (x * x).sum(0), (x * 2).exp()


@pytest.mark.parametrize("size", [(0, 64), (3, 0), (0, 0)])
def test_tensors_without_elements_are_as_without_kernels(size):
    x = torch.ones(size)
    found, _ = executed(shares, (x,))
    for one, expected in zip(found, shares(x), strict=True):
        torch.testing.assert_close(one, expected)


def test_operands_whose_elements_share_memory_are_read_where_they_lie():
    windows = numbers(3)[0, :160].as_strided((4, 128), (8, 1))
    found, run = executed(shares, (windows,))
    assert kernels(run) > 0
    for one, expected in zip(found, shares(windows), strict=True):
        torch.testing.assert_close(one, expected, equal_nan=True)


FORBIDDEN = """
import ctypes, sys, warnings
import torch, unisono
from unisono._executor import Executor, lower_graph

graph = unisono.capture(lambda x: (x * 2).exp(), example=(torch.ones(100),))
sys.exit(77) if ctypes.CDLL(None).prctl(65, 1, 0, 0, 0) else None
with warnings.catch_warnings(record=True) as caught:
    run = Executor(lower_graph(graph.native, fuse=True))
assert "forbids executable memory" in str(caught[0].message)
run.bind([])
torch.testing.assert_close(run([torch.ones(100)])[0], torch.full((100,), 2.0).exp())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a setting of Linux")
def test_a_host_that_forbids_executable_memory_interprets_and_says_so():
    ended = subprocess.run([sys.executable, "-c", FORBIDDEN], check=False, timeout=120)
    if ended.returncode == 77:
        pytest.skip("Linux before 6.3")
    assert ended.returncode == 0


def rotated(x):
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def rotary(x, cos, sin):
    return (x * cos + rotated(x) * sin).transpose(1, 2)


def rotary_backward(x, cos, sin, gradient):
    return torch.func.vjp(lambda x: rotary(x, cos, sin), x)[1](gradient)[0].transpose(1, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("size", [(2, 4, 6, 64), (1, 3, 5, 18), (3, 1, 1, 32), (0, 2, 3, 16), (2, 2, 0, 16)])
def test_rotary_embeddings_are_one_kernel_each_way(size, dtype):
    batch, heads, count, width = size
    x = numbers(1, dtype).repeat(1, 1 + batch * heads * count * width // 1024).flatten()[: math.prod(size)]
    x = x.view(batch, count, heads, width).transpose(1, 2)
    cos, sin = torch.randn(count, width, dtype=dtype), torch.randn(count, width, dtype=dtype)
    gradient = torch.randn(batch, count, heads, width, dtype=dtype)
    tolerance = 1e-5 if dtype == torch.float32 else 3e-2
    for function, inputs in [(rotary, (x, cos, sin)), (rotary_backward, (x, cos, sin, gradient))]:
        (found,), run = executed(function, inputs)
        expected = function(*inputs)
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True)
        if math.prod(size) and width // 2 >= 8:
            assert kernels(run) == 1
            assert function is rotary_backward or names(run) == ["kernel 0", "aten::transpose.int"]


def test_operands_that_lie_otherwise_than_expected_are_followed():
    x, cos, sin = torch.randn(2, 4, 6, 64), torch.randn(6, 64), torch.randn(6, 64)
    _, run = executed(rotary, (x, cos, sin))
    for other in (x.transpose(0, 2).contiguous().transpose(0, 2), torch.randn(2, 4, 6, 128)[..., ::2]):
        torch.testing.assert_close(run([other, cos, sin])[0], rotary(other, cos, sin))


SIZES = [(2, 3, 32), (6, 32), (2, 3, 16), (6, 16), (3, 2, 32), (2, 3, 1), (6, 1), (3, 2, 16)]


def random_program(seed):
    """Random operations on tensors of a few sizes, with views between them, and what is returned of them."""
    random = torch.Generator().manual_seed(seed)

    def below(count):
        return int(torch.randint(count, (), generator=random))

    plan = [(below(18), below(1 << 20), below(1 << 20), below(1 << 20)) for _ in range(4 + below(14))]
    returned = [below(1 << 20) for _ in range(1 + below(3))]

    def step(x, y, z, mask):
        values, sums = [x, y, z, x.reshape(6, 32), z * 0.5], []
        for kind, first, second, third in plan:
            a = values[first % len(values)]
            alike = [value for value in values if value.shape == a.shape]
            b = alike[second % len(alike)]
            rows = [value for value in values if value.shape == (*a.shape[:-1], 1)]
            made = operation(kind, a, b, rows[second % len(rows)] if rows else None, mask, third)
            values.append(made if tuple(made.shape) in SIZES else a * 0.5)
            sums.append(made.sum(tuple(range(made.dim() - 1))))
        return (*(values[one % len(values)] + 1 for one in returned), sums[returned[0] % len(sums)])

    return step


def operation(kind, a, b, row, mask, number):
    width = a.shape[-1]
    match kind:
        case 0:
            return a + b
        case 1:
            return a * b
        case 2:
            return torch.tanh(a)
        case 3:
            return -a
        case 4 | 5 if width == 32:
            return rotated(a)
        case 6 if width == 32:
            return a[..., 16 * (number % 2) :][..., :16]
        case 7 | 8 if width == 16:
            return torch.cat((a, b), -1)
        case 9 if width == 16:
            return (
                torch.nn.functional.pad(a, (16, 0))
                if number % 2
                else aten.slice_backward(a, [*a.shape[:-1], 32], -1, 0, 16, 1)
            )
        case 10 | 11:
            return a.reshape(6, width) if a.dim() == 3 else a.reshape(2, 3, width)
        case 12 if a.dim() == 3:
            return a.transpose(0, 1)
        case 13 if row is not None:
            return a * row
        case 14 if row is not None:
            return row.expand(a.shape) - a
        case 15 if width > 1:
            return a.mean(-1, keepdim=True)
        case 16 if width == 32 and a.shape[-2:] == (3, 32):
            return torch.where(mask, a, b)
        case 17:
            return a.clone()
        case _:
            return a * 0.5


@pytest.mark.parametrize("seed", range(40))
def test_kernels_of_random_programs_give_what_pytorch_gives(seed):
    check_program(seed)


def check_program(seed):
    step = random_program(seed)
    generator = torch.Generator().manual_seed(seed)
    inputs = [torch.randn(size, generator=generator) for size in ((2, 3, 32), (3, 2, 32), (2, 3, 1))]
    inputs.append(torch.rand((2, 3, 32), generator=generator) < 0.5)
    if seed % 3 == 0:
        inputs[0] = inputs[0].transpose(0, 2).contiguous().transpose(0, 2)
    if seed % 5 == 0:
        inputs[1].view(-1)[:: 1 + seed % 7] = math.nan if seed % 2 else math.inf
    found, _ = executed(step, tuple(inputs))
    for one, other in zip(found, step(*inputs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4, equal_nan=True)
