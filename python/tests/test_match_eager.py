"""With ``match_eager`` kernels give the bits of eager PyTorch: operation by operation, in chains, in models and in whole steps."""

from __future__ import annotations

import copy
import random

import msgpack
import pytest
import test_models
import torch
import torch.nn.functional as F
from backend import compiled, fresh
from test_kernels import EDGES, SAMPLES, kernels, names, operands

import unisono
from unisono import _native
from unisono._backend import Options
from unisono._executor import Executor, lower_graph
from unisono.errors import ConfigurationError

aten = torch.ops.aten
#: The element type in which kernels have the bits of each operation, ``all``, or nothing.
EAGER = {row["name"]: row["eager"] for row in msgpack.unpackb(_native.operation_rows()) if row["formula"]}
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
#: Calls whose numbers have no exact form in 16 bits, and exponents that not all types have.
MORE = {
    "aten::add.Tensor": [lambda x, y: aten.add(x, y, alpha=0.3), lambda x: x + 0.3],
    "aten::sub.Tensor": [lambda x, y: aten.sub(x, y, alpha=0.3), lambda x: x - 0.3],
    "aten::add.Scalar": [lambda x: aten.add.Scalar(x, 0.3, 0.7)],
    "aten::sub.Scalar": [lambda x: aten.sub.Scalar(x, 0.3, 0.7)],
    "aten::rsub.Scalar": [lambda x: aten.rsub.Scalar(x, 0.3, 0.7), lambda x: 0.3 - x],
    "aten::mul.Tensor": [lambda x: x * 0.3],
    "aten::div.Tensor": [lambda x: x / 0.3],
    "aten::pow.Tensor_Scalar": [lambda x: aten.pow(x.abs(), 1), lambda x: aten.pow(x.abs(), 3)],
    "aten::clamp_min": [lambda x: aten.clamp_min(x, 0.3)],
    "aten::addcmul": [lambda x, y, z: aten.addcmul(x, y, z, value=0.3)],
    "aten::addcdiv": [lambda x, y, z: aten.addcdiv(x, y, z, value=0.3)],
    "aten::lerp.Scalar": [lambda x, y, w=w: aten.lerp(x, y, w) for w in (0.3, 0.5, 0.7, -0.7, 1.0)],
    "aten::threshold_backward": [lambda g, x: aten.threshold_backward(g, x.round(decimals=1), 0.1)],
}
CASES = [(name, call) for name in EAGER for call in [*SAMPLES[name], *MORE.get(name, [])]]
#: What is given rows of 512 numbers.
FIXED = {name for name in EAGER if "norm" in name or "nll" in name} | {"aten::cat", "aten::slice_backward"}
IDS = [f"{name}-{at}" for at, (name, _) in enumerate(CASES)]


def executed(function, inputs) -> tuple[list[torch.Tensor], Executor]:
    """What a captured function gives with kernels that match eager PyTorch, and the program."""
    graph = unisono.capture(function, example=inputs)
    run = Executor(lower_graph(graph.native, fuse=True, match_eager=True))
    run.bind([])
    return run(list(inputs)), run


def same_bits(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether tensors are equal to the bit, the signs of zeros included; NaN is NaN."""
    whole = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[found.element_size()]
    bits = [one.detach().contiguous().view(whole) for one in (found, expected)]
    return (
        found.dtype == expected.dtype
        and bool(((bits[0] == bits[1]) | (found.isnan() & expected.isnan())).all())
        and found.shape == expected.shape
    )


def drawn(count: int, dtype: torch.dtype, *shape: int) -> list[torch.Tensor]:
    """Tensors of ordinary numbers, of large and small ones, and of edges among them."""
    made = []
    for _ in range(count):
        x = torch.randn(shape) * torch.exp2(torch.randint(-20, 20, shape).float() * torch.randint(0, 2, shape))
        edge = torch.tensor(EDGES)[torch.randint(0, len(EDGES), shape)]
        made.append(torch.where(torch.rand(shape) < 0.02, edge, x).to(dtype))
    return made


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "call"), CASES, ids=IDS)
def test_an_operation_in_a_kernel_has_the_bits_of_pytorch(name, call, dtype):
    torch.manual_seed(0)
    # Vectors alone, and with something left of them, which PyTorch computes by itself.
    for shape in [(2, 512)] if name in FIXED else [(2, 512), (2, 515), (1, 3)]:
        inputs = tuple(drawn(operands(call), DTYPES[dtype], *shape))
        found, _ = executed(lambda *x: [call(*x), aten.neg(aten.neg(call(*x)))], inputs)
        assert same_bits(found[0], call(*inputs)) and same_bits(found[1], call(*inputs))


@pytest.mark.parametrize("dtype", DTYPES)
# What the table's sample of `sub.Scalar` has is a factor that stays.
@pytest.mark.parametrize("name", [name for name, only in EAGER.items() if only and name != "aten::sub.Scalar"])
def test_an_operation_with_the_bits_of_pytorch_is_in_a_kernel(name, dtype):
    (call, *_) = SAMPLES[name]
    _, run = executed(lambda *x: aten.neg(call(*x)), tuple(drawn(operands(call), DTYPES[dtype], 2, 512)))
    operator = name.removeprefix("aten::").partition(".")[0]
    assert (operator in "".join(names(run))) == (EAGER[name] not in ("all", dtype))


def test_what_pytorch_rounds_in_two_ways_in_16_bits_stays():
    x, y = drawn(2, torch.bfloat16, 2, 512)
    graph = unisono.capture(lambda x, y: -torch.add(x, y, alpha=0.3), example=(x, y))
    assert "the factor 0.3, which PyTorch rounds in two ways" in graph.native.kernels(match_eager=True)
    graph = unisono.capture(lambda x, y: -torch.maximum(x, y), example=(x, y))
    assert "other bits than PyTorch's" in graph.native.kernels(match_eager=True)


@pytest.mark.parametrize("name", [name for name, only in EAGER.items() if only == "bf16"])
def test_a_function_of_16_bits_has_the_bits_of_pytorch_for_each_operand(name):
    (call, *_) = SAMPLES[name]
    every = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.bfloat16)
    for size in (2048, 7):
        graph = unisono.capture(lambda x: call(x), example=(every[:size],))
        run = Executor(lower_graph(graph.native, fuse=True, match_eager=True))
        run.bind([])
        assert names(run)[0].startswith("kernel")
        for part in every.split(size):
            if len(part) == size:
                assert same_bits(run([part])[0], call(part))


#: Operations on two tensors of one shape.
STEPS = {
    "add": lambda x, y: x + y,
    "scaled sum": lambda x, y: torch.add(x, y, alpha=0.3),
    "difference": lambda x, y: x - y,
    "product": lambda x, y: x * y,
    "quotient": lambda x, y: x / (y.abs() + 0.1),
    "by a number": lambda x, _: x * 0.3,
    "over a number": lambda x, _: x / 7,
    "less a number": lambda x, _: 0.7 - x,
    "cube": lambda x, _: x**3,
    "square": lambda x, _: x.square(),
    "reciprocal": lambda x, _: (x.abs() + 1).reciprocal(),
    "root": lambda x, _: x.abs().sqrt(),
    "one over a root": lambda x, _: (x.abs() + 1).rsqrt(),
    "silu": lambda x, _: F.silu(x),
    "gelu": lambda x, _: F.gelu(x),
    "tanh": lambda x, _: x.tanh(),
    "sigmoid": lambda x, _: x.sigmoid(),
    "exp": lambda x, _: (-x.abs()).exp(),
    "relu": lambda x, _: x.relu(),
    "larger": lambda x, y: torch.maximum(x, y),
    "between": lambda x, _: x.clamp(-0.3, 0.7),
    "lerp": lambda x, y: torch.lerp(x, y.to(x.dtype), 0.7),
    "addcmul": lambda x, y: torch.addcmul(x, y.to(x.dtype), x, value=0.3),
    "where": lambda x, y: torch.where(x > y, x, y * 2),
    "filled": lambda x, y: x.masked_fill(y > 0, 0.3),
    "turned halves": lambda x, _: torch.cat([-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]], -1),
    "row": lambda x, y: x * y[:1],
    "column": lambda x, y: x + y[:, :1],
    "mean": lambda x, _: x - x.mean(-1, keepdim=True),
    "softmax": lambda x, _: x.softmax(-1),
    "copied": lambda x, _: x.clone(),
    "f32": lambda x, _: x.float(),
    "bf16": lambda x, _: x.bfloat16(),
    "f16": lambda x, _: x.half(),
}


def chain(seed: int):
    """The function of a seed, of two tensors: a chain of steps, each on what the last has made and on something before it."""
    rng = random.Random(seed)
    steps = [(STEPS[rng.choice(list(STEPS))], rng.randrange(2 + at)) for at in range(rng.randint(3, 14))]
    returned = rng.sample(range(2, 2 + len(steps)), rng.randint(1, 2))

    def function(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        made = [y, x]
        for step, other in steps:
            made.append(step(made[-1], made[other]))
        return [made[at] for at in (*returned, -1)]

    return function


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("first", range(0, 200, 50))
def test_a_chain_of_operations_gives_the_bits_of_pytorch(first, dtype):
    some = 0
    for seed in range(first, first + 50):
        torch.manual_seed(seed)
        shape = random.Random(seed).choice([(4, 16), (3, 34), (40, 130), (64, 64)])
        function, inputs = chain(seed), tuple(drawn(2, dtype, *shape))
        found, run = executed(function, inputs)
        assert all(map(same_bits, found, function(*inputs))), (seed, str(run.program))
        some += kernels(run)
    # On processors kernels have no 16 bits but `bf16`.
    assert some >= (10 if dtype == torch.float16 else 50)


def test_without_it_a_chain_is_rounded_once():
    x, y = drawn(2, torch.bfloat16, 8, 512)

    def function(x, y):
        return (x + y) * y - x

    graph = unisono.capture(function, example=(x, y))
    found = {}
    for match_eager in (False, True):
        run = Executor(lower_graph(graph.native, fuse=True, match_eager=match_eager))
        run.bind([])
        assert names(run) == ["kernel 0"] or kernels(run) == 1
        (found[match_eager],) = run([x, y])
    assert same_bits(found[True], function(x, y)) and not same_bits(found[False], function(x, y))


def trained(model, call) -> list[torch.Tensor]:
    """The loss of a step and all gradients."""
    torch.manual_seed(3)
    model.zero_grad()
    loss = call()
    loss.backward()
    return [loss, *(one.grad for one in model.parameters())]


def llama(dtype: torch.dtype):
    """A small LLaMA, what gives its loss, and a batch."""
    sizes = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2, "max_position_embeddings": 32}
    model, loss_of, batch = test_models.language(
        "LlamaForCausalLM", num_attention_heads=4, num_key_value_heads=2, **sizes
    )
    return model.to(dtype), loss_of, batch


def dropped(dtype: torch.dtype):
    """A model with dropouts, what gives its loss, and a batch."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.ReLU(), torch.nn.Dropout(0.3), torch.nn.Linear(96, 8))
    return (
        model.to(dtype),
        lambda model, x: (F.dropout(model(x), 0.1) * x[:, :8]).mean(),
        (torch.randn(40, 64, dtype=dtype),),
    )


@pytest.mark.parametrize("fuse", [True, "auto"])
@pytest.mark.parametrize(
    ("make", "dtype"), [(llama, "f32"), (llama, "bf16"), (dropped, "f32")], ids=["llama", "llama in bf16", "dropouts"]
)
def test_a_compiled_model_has_the_loss_and_gradients_of_eager_pytorch_to_the_bit(make, dtype, fuse):
    torch.manual_seed(0)
    model, loss_of, batch = make(DTYPES[dtype])
    reference = copy.deepcopy(model)
    with fresh():
        call = compiled(loss_of, options={"match_eager": True, "fuse": fuse})
        for _ in range(2):
            found = trained(model, lambda: call(model, *batch))
            expected = trained(reference, lambda: loss_of(reference, *batch))
            assert all(map(same_bits, found, expected))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_step_trains_as_eager_pytorch_does_to_the_bit(dtype):
    torch.manual_seed(0)
    model, loss_of, batch = llama(DTYPES[dtype])

    def step_of(model):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)

        def step(*batch):
            optimizer.zero_grad()
            loss = loss_of(model, *batch)
            loss.backward()
            optimizer.step()
            return loss

        return step, optimizer

    reference = copy.deepcopy(model)
    expected, (step, optimizer) = step_of(reference)[0], step_of(model)
    parallel = unisono.parallelize(
        step, model=model, optimizer=optimizer, example=batch, cluster="cpu:1", fuse=True, match_eager=True
    )
    for _ in range(3):
        assert same_bits(parallel(*batch), expected(*batch))
    parallel.sync()
    assert all(map(same_bits, model.parameters(), reference.parameters()))
    assert int(parallel.kernels().split()[0]) >= 10
    assert "other bits than PyTorch's" in parallel.kernels()


@pytest.mark.parametrize("value", [1, "yes", None])
def test_what_is_neither_true_nor_false_is_refused(value):
    with pytest.raises(ConfigurationError, match="`match_eager` is"):
        Options(match_eager=value)
