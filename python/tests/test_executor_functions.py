"""Operations that PyTorch's dispatcher and proxy misread, and products that are written into buffers, are called by the C functions that it
has for them on a device.
"""

from __future__ import annotations

import re
from pathlib import Path

import attention_kernels
import pytest
import torch

import unisono
from unisono import _native, errors
from unisono._executor import Executor, load, lower, lower_graph
from unisono._program import ProgramBuilder, Slot
from unisono._reference import operation

aten = torch.ops.aten
HEADERS = Path(torch.__file__).parent / "include/torch/csrc/inductor/aoti_torch/generated"
#: Functions of CUDA can be called without a device, as long as nothing that they call needs one.
of_cuda = pytest.mark.skipif(not torch.backends.cuda.is_built(), reason="this PyTorch is built without CUDA")
FLASH, CUDNN = "_scaled_dot_product_flash_attention", "_scaled_dot_product_cudnn_attention"


def schemas():
    """The schemas of all of PyTorch's own operations."""
    return {str(one) for one in torch._C._jit_get_all_schemas() if one.name.startswith("aten::")}


def declared(kind):
    """The C types of each function of a header, of those with versions the last."""
    text = (HEADERS / f"c_shim_{kind}.h").read_text()
    functions = {}
    for name, arguments in re.findall(rf"AOTITorchError aoti_torch_{kind}_(\w+)\((.*?)\);", text):
        base, _, version = name.rpartition("_v")
        key, number = (base, int(version)) if base and version.isdigit() else (name, 1)
        types = [argument.rsplit(" ", 1)[0] for argument in arguments.split(", ")]
        functions[key] = max(functions.get(key, (0, [])), (number, types))
    return {name: types for name, (_, types) in functions.items()}


def flat(schema):
    """The name that the rule gives the function of a schema."""
    name = schema.split("(")[0].removeprefix("aten::")
    return name.replace(".", "_")


@pytest.mark.parametrize("kind", ["cpu", "cuda", "xpu"])
def test_words_of_functions_are_those_of_pytorch_s_headers(kind):
    load()
    functions = declared(kind)
    known = {flat(text): _native.torch_function_of(text, kind)[0] for text in schemas() if flat(text) in functions}
    known = {name: types for name, types in known.items() if types}
    assert {name: functions[name] for name in known} == known
    assert len(known) > {"cpu": 30, "cuda": 40, "xpu": 10}[kind]
    if kind == "cuda":
        assert {FLASH, CUDNN, "_scaled_dot_product_fused_attention_overrideable"} <= known.keys()


def test_no_operation_that_is_misread_has_the_name_of_a_version_of_another():
    names = {text.split("(")[0] for text in schemas()}
    mixed = {text.split("(")[0] for text in schemas() if re.search(r"-> \(Tensor.*(SymInt|int)", text)}
    assert f"aten::{FLASH}" in mixed
    assert not {name for name in mixed if re.fullmatch(re.escape(name) + r"_v\d+", "\n".join(names), re.MULTILINE)}


def attention(name, tensors, *args, scale):
    """A program of attention by one of CUDA's kernels that returns all its tensors of results."""
    builder = ProgramBuilder()
    given = [builder.slot(one) for one in tensors]
    builder.inputs.extend(given)
    op = operation(f"aten::{name}")
    made = [builder.slot() if at in (0, 1, 6, 7) else None for at in range(len(op._schema.returns))]
    builder.call(op, [*(Slot(one) for one in given), *args], {"scale": scale}, made, ("step.py", 7))
    builder.returns.extend(one for one in made if one is not None)
    return builder.spec()


@pytest.fixture
def seen():
    """The arguments that arrive at what CUDA's functions hand on to, which is done by the formulas here."""
    seen = []

    def flash(q, k, v, _q, _k, queries, keys, p, causal, debug=False, *, scale=None):
        seen.append((queries, keys, p, causal, debug, scale))
        q, k, v = (one.transpose(1, 2) for one in (q, k, v))
        out, logsumexp = attention_kernels._forward(q, k, v, None, causal, scale)
        state = torch.arange(2), torch.tensor(5)
        return out.transpose(1, 2), logsumexp, *state, q.new_empty(0)

    def cudnn(q, k, v, bias, _q, _k, queries, keys, logsumexp, p=0.0, causal=False, debug=False, *, scale=None):
        seen.append((queries, keys, logsumexp, p, causal, debug, scale))
        out, sums = attention_kernels._forward(q, k, v, bias, causal, scale)
        return out, sums, None, None, queries, keys, torch.tensor(3), torch.tensor(4), q.new_empty(0)

    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("_flash_attention_forward", flash, "CPU")
        library.impl("_cudnn_attention_forward", cudnn, "CPU")
        yield seen


@of_cuda
@pytest.mark.parametrize(("causal", "scale"), [(True, None), (False, 0.3)])
def test_attention_of_cuda_is_called_without_python_and_gives_all_it_returns(causal, scale, seen):
    torch.manual_seed(0)
    q, k, v, bias = torch.randn(2, 4, 6, 8), torch.randn(2, 4, 6, 8), torch.randn(2, 4, 6, 8), torch.randn(2, 4, 6, 6)
    for name, tensors, args, state in (
        (FLASH, [q, k, v], (0.0, causal, False), [torch.arange(2), torch.tensor(5)]),
        (CUDNN, [q, k, v, bias], (True, 0.25, causal, False), [torch.tensor(3), torch.tensor(4)]),
        (CUDNN, [q, k, v], (None, True, 0.25, causal, False), [torch.tensor(3), torch.tensor(4)]),
    ):
        program = lower(attention(name, tensors, *args, scale=scale), torch.device("cuda", 0))
        assert program.counts() == (0, 0, 0, 1, 0, 0), str(program)
        expected = attention_kernels._forward(*[*tensors, None][:4], causal, scale)
        run = Executor(program)
        for _ in range(2):
            found = run(tensors)
            assert all(torch.equal(a, b) for a, b in zip(found, [*expected, *state], strict=True)), name
        assert run._native.live() == 0, "a call has left tensors behind"
    flags = (causal, False, scale)
    assert seen[:2] == [(6, 6, 0.0, *flags)] * 2
    assert seen[2:] == [(6, 6, True, 0.25, *flags)] * 4


@of_cuda
def test_a_failing_function_is_named_with_its_place():
    q = torch.randn(2, 4, 6, 8)
    program = lower(attention(FLASH, [q, q, q], 0.0, True, False, scale=None), torch.device("cuda", 0))
    with pytest.raises(errors.StepError, match=FLASH) as caught:
        Executor(program)([q, q, q])
    assert caught.value.place == "step.py:7"


def test_where_there_is_no_such_function_python_calls_the_operation():
    q = torch.randn(2, 4, 6, 8)
    spec = attention(FLASH, [q, q, q], 0.0, True, False, scale=None)
    assert lower(spec, torch.device("meta")).counts() == (0, 0, 0, 0, 1, 0)


def products(x, y, bias):
    made = torch.addmm(bias, x, y, beta=2, alpha=3)
    both = torch.bmm(torch.stack([made, x]), torch.stack([y, torch.mm(made, y)]))
    return torch.baddbmm(both, both, both, beta=3, alpha=2).sum(0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64])
def test_products_in_buffers_are_called_by_functions_of_their_own_and_give_the_same_bits(dtype):
    tensors = [torch.randint(-9, 9, size).to(dtype) for size in ((6, 6), (6, 6), (6,))]
    run = Executor(lower_graph(unisono.capture(products, example=tuple(tensors)).native))
    run.bind([])
    text = str(run.program)
    assert "aten::mm.out" in text
    # Their functions take numbers with a point alone.
    expected = {"addmm", "bmm", "mm"} if dtype.is_floating_point else {"bmm", "mm"}
    assert {name for name in ("addmm", "bmm", "mm") if re.search(rf"aten::{name}\.out\(.*\) by shim", text)} == expected
    for _ in range(2):
        assert torch.equal(run(tensors)[0], products(*tensors))
