"""The executor gives, bit for bit, what the same operations give one by one in PyTorch."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import json
import math
import re

import pytest
import torch
from fx_program import executor, from_fx, trace
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode

import unisono.trace
from unisono import _native, _reference, errors
from unisono._executor import Executor, lower
from unisono._program import ProgramBuilder

aten = torch.ops.aten


def check(function, inputs, state=(), steps=3):
    """Runs some steps here and there, on separate state, and compares everything."""
    torch.manual_seed(0)
    ours, theirs = ([one.clone() for one in state] for _ in range(2))
    run, spec, constants = executor(function, inputs, ours)
    live = None
    for step in range(steps):
        found = run(inputs)
        if step == 0:
            live = run._native.live()
        assert run._native.live() == live, "a step has left tensors behind"
        expected = _reference.run(spec, [*theirs, *constants], inputs)
        assert len(found) == len(expected)
        for a, b in zip([*found, *ours], [*expected, *theirs], strict=True):
            assert a.dtype == b.dtype
            assert a.shape == b.shape
            assert torch.equal(a.nan_to_num(nan=7.5), b.nan_to_num(nan=7.5))
    return run


X = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
NUMBERS = torch.arange(24).reshape(4, 6)
OPERATIONS = {
    "tensor": lambda x, i: aten.relu(x),
    "scalar float": lambda x, i: aten.mul.Scalar(x, 0.3),
    "scalar int": lambda x, i: aten.add.Tensor(i, i, alpha=3),
    "scalar bool": lambda x, i: aten.eq.Scalar(i, True),
    "scalar infinity": lambda x, i: aten.masked_fill.Scalar(x, x > 0, -math.inf),
    "scalar list": lambda x, i: aten._foreach_mul.ScalarList([x, x], [0.5, 2.0]),
    "mixed scalar list": lambda x, i: aten._foreach_add.ScalarList([x, i], [0.5, 2]),
    "number for a tensor": lambda x, i: aten.mul.Tensor(x, 0.9) + aten.add.Tensor(i, 2),
    "float beside integers": lambda x, i: aten.mul.Tensor(i, 0.5),
    "number beside a scalar tensor": lambda x, i: aten.mul.Tensor(x.sum(), 0.3),
    "number beside bfloat16": lambda x, i: aten.mul.Tensor(x.bfloat16(), 0.3),
    "number beside float64": lambda x, i: aten.mul.Tensor(x.double(), 0.3),
    "int and bool": lambda x, i: aten.softmax.int(x, 1),
    "int list": lambda x, i: aten.sum.dim_IntList(x, [0, 1], True),
    "empty int list": lambda x, i: aten.sum.dim_IntList(x, []),
    "empty int list with a scalar": lambda x, i: aten.new_full(x, [], 2.5),
    "float": lambda x, i: aten.native_layer_norm(x, [6], None, None, 1e-5),
    "float infinity": lambda x, i: aten.nan_to_num(x / 0, 1.0, math.inf, -5.0),
    "float list": lambda x, i: aten.upsample_nearest2d.vec(x[None, None], None, [2.0, 2.0]),
    "bool list": lambda x, i: aten.convolution_backward(
        x[None, :3],
        x[None],
        x[:3, :4, None].contiguous(),
        [3],
        [1],
        [0],
        [1],
        False,
        [0],
        1,
        [True, True, False],
    ),
    "string": lambda x, i: aten.gelu(x, approximate="tanh"),
    "optional string": lambda x, i: aten.div.Tensor_mode(x, x + 1, rounding_mode="floor"),
    "dtype": lambda x, i: aten._to_copy(x, dtype=torch.float64),
    "layout, device and memory format": lambda x, i: aten._to_copy(
        x[None, None],
        dtype=torch.bfloat16,
        layout=torch.strided,
        device=torch.device("cpu"),
        memory_format=torch.channels_last,
    ),
    "optional tensor": lambda x, i: aten.native_layer_norm(x, [6], x[0], None, 1e-5)[0],
    "tensor list": lambda x, i: aten.cat([x, x * 2, x], 1),
    "optional tensor list": lambda x, i: aten.index.Tensor(x, [None, i[0] % 6]),
    "list return": lambda x, i: aten.split.Tensor(x, 2, 1)[1:],
    "unused return": lambda x, i: aten.max.dim(x, 1)[0],
    "undefined return": lambda x, i: aten.convolution_backward(
        x[None], x[None], x[:4, :4, None].contiguous(), [4], [1], [0], [1], False, [0], 1, [False, True, True]
    )[1:],
    "constants": lambda x, i: x + torch.arange(6) * torch.full((4, 1), 2.0),
    "constant that is written": lambda x, i: torch.zeros(4, 6).add_(x),
    "complex scalar": lambda x, i: torch.view_as_real(aten.mul.Scalar(x, 2j)),
    "complex": lambda x, i: torch.view_as_real(torch.view_as_complex(x.reshape(4, 3, 2)).conj() * 2),
    "generator is default": lambda x, i: aten.native_dropout(x, 0.0, True),
    "views": lambda x, i: x.t().unsqueeze(0).expand(2, 6, 4)[1, 2:5, ::2].diagonal() * 2,
    "view of a view that is returned": lambda x, i: (x * 2).view(2, 12)[1:].t(),
    "aliases": lambda x, i: aten.detach(aten.alias(x * 2)) + 1,
    "same output twice": lambda x, i: (lambda y: (y, y))(x * 2),
    "input is returned": lambda x, i: (x, x + 1),
    "zero sizes": lambda x, i: x[:0].t() * 2,
    "unbind": lambda x, i: torch.unbind((x * 3).view(2, 2, 6), 0),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_kind_of_argument_and_return_is_bitwise_equal(name):
    check(OPERATIONS[name], [X, NUMBERS])


def test_random_operations_draw_the_same_numbers():
    def function(x):
        return torch.ops.aten.native_dropout(x, 0.5, True)[0] + torch.ops.aten.rand([4, 6])

    run, spec, _ = executor(function, [X])
    for _ in range(3):
        torch.manual_seed(3)
        found = run([X])
        torch.manual_seed(3)
        assert torch.equal(found[0], _reference.run(spec, [], [X])[0])


def test_state_is_written_in_place():
    def function(w, m, x):
        w.add_(x, alpha=0.5)
        m.mul_(0.9).add_(w.sum(0))
        return (w * m).sum()

    check(function, [X], [torch.ones(4, 6), torch.ones(6)])


def test_updates_are_written_after_all_reads_even_when_they_cross():
    graph = trace(lambda a, b, x: (a + x, b, a), [X], [X * 2, X * 3])
    builder, _ = from_fx(graph, 2)
    added, b, a = builder.returns
    builder.update(a, b)
    builder.update(b, added)
    spec = builder.spec()
    state = [X * 2, X * 3]
    run = Executor(lower(spec))
    run.bind(state)
    found = run([X])
    for one, expected in zip([*found, *state], [X * 3, X * 3, X * 2, X * 3, X * 3], strict=True):
        assert torch.equal(one, expected)


def test_fused_and_foreach_optimizers_write_their_lists():
    def function(p, q, m, n, v, w, s, t, x):
        grads = [x * 2, x[0] * 3]
        aten._fused_adamw_(
            [p, q],
            grads,
            [m, n],
            [v, w],
            [],
            [s, t],
            lr=0.1,
            beta1=0.9,
            beta2=0.99,
            weight_decay=0.01,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )
        aten._foreach_add_.Scalar([s, t], 1)
        norms = aten._foreach_norm.Scalar(grads, 2.0)
        aten._foreach_mul_.Tensor([m, n], norms[0])
        aten._foreach_addcdiv_.ScalarList([p, q], [m, n], [v + 1, w + 1], [-0.1, -0.2])
        return p.sum()

    state = [X, X[0], X * 0, X[0] * 0, X * 0, X[0] * 0, torch.tensor(1.0), torch.tensor(1.0)]
    check(function, [X], [one.clone() for one in state], steps=5)


def test_out_variants_write_into_their_argument():
    check(lambda w, x: aten.mm.out(x, x.t(), out=w).sum(), [X], [torch.zeros(4, 4)])


def test_operations_with_python_kernels_run():
    @torch.library.custom_op("unisono_test::halve", mutates_args=())
    def halve(x: torch.Tensor, times: int) -> torch.Tensor:
        return x / 2**times

    @halve.register_fake
    def _(x, times):
        return torch.empty_like(x)

    check(lambda x: torch.ops.unisono_test.halve(x * 2, 3) + 1, [X])


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.int64, torch.bfloat16, torch.float64])
def test_types_beside_numbers_arrive_as_they_are(dtype):
    def function(x):
        return x, aten.full.default([2], 3, dtype=dtype, layout=torch.strided), aten.arange.start(1, 4, dtype=counted)

    counted = torch.int64 if dtype == torch.bool else dtype
    run, _, _ = executor(function, [X])
    assert [tensor.dtype for tensor in run([X])[1:]] == [dtype, counted]


def reason(text: str) -> str:
    """What an error says of an operation's failure; before 2.13 PyTorch does not hand its own words on."""
    absent = _native.torch_functions()[1]
    return "printed the reason to stderr" if "torch_exception_get_what_without_backtrace" in absent else text


def test_an_error_in_a_python_kernel_arrives():
    @torch.library.custom_op("unisono_test::fail", mutates_args=())
    def fail(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("not today")

    @fail.register_fake
    def _(x):
        return torch.empty_like(x)

    run, _, _ = executor(lambda x: torch.ops.unisono_test.fail(x * 2), [X])
    with pytest.raises(errors.StepError, match="unisono_test::fail") as caught:
        run([X])
    assert reason("not today") in (caught.value.cause or "")


def test_views_and_aliases_cost_no_dispatch_and_constants_run_once():
    run, _, _ = executor(lambda w, x: x.detach() @ w.t() + torch.arange(4), [X], [X * 2])
    views, dispatcher, proxy, function, python, once = run.program.counts()
    assert (views, dispatcher, proxy, function, python, once) == (0, 1, 1, 0, 0, 2), str(run.program)


ROWS = torch.tensor([[2, 0, 1], [2, 2, 3]])
#: Operations that only move elements. All results go out.
MOVED = {
    "copy in order": lambda x, i: aten.clone(x.t(), memory_format=torch.contiguous_format),
    "copy as it lies": lambda x, i: aten.clone(x.t()),
    "copy of repeated rows": lambda x, i: aten.clone(x[:1].expand(3, 6), memory_format=torch.contiguous_format),
    "side by side": lambda x, i: aten.cat([x, x[:, :2], x[:, :0]], 1),
    "one above the other": lambda x, i: aten.cat([x[:0, 0], x[1:3], x], 0),
    "stacked": lambda x, i: aten.stack([x[:, :4], x[:, 1:5].t(), x[:, 2:]], -1),
    "repeated": lambda x, i: aten.repeat(x.t(), [2, 1, 3]),
    "repeated as it is": lambda x, i: aten.repeat(x[:, ::2], [1, 2, 1, 1]),
    "zeros": lambda x, i: aten.cat([aten.new_zeros(x, [2, 3]), aten.zeros_like(x[:2, :3])]),
    "padded": lambda x, i: aten.constant_pad_nd(x[:, 1:4], [2, 1, 0, 3], 0.25),
    "whole numbers padded": lambda x, i: aten.constant_pad_nd(i, [0, 1], -100),
    "whole numbers padded by a number of floating point": lambda x, i: aten.constant_pad_nd(i, [1, 0], -100.0),
    "back from a slice": lambda x, i: aten.slice_backward(x, [4, 12], 1, 1, 12, 2),
    "back from the end": lambda x, i: aten.slice_backward(x[:2], [5, 6], 0, -3, -1, 1),
    "rows": lambda x, i: aten.embedding(x, i),
    "rows that lie apart": lambda x, i: aten.embedding(x[:, ::2], i.t()),
    "rows added up": lambda x, i: aten.embedding_dense_backward(x, i.view(6)[:4], 5, -1, False),
    "rows added up but one": lambda x, i: aten.embedding_dense_backward(x.t().view(2, 3, 4), i, 4, 2, False),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", MOVED)
def test_few_elements_are_moved_without_pytorch(name, dtype):
    run = check(MOVED[name], [X.to(dtype), ROWS])
    _, dispatcher, proxy, function, python, _ = run.program.counts()
    left = dtype == torch.bfloat16 and name in ("padded", "rows added up", "rows added up but one")
    assert dispatcher + proxy + function + python == left, str(run.program)


def test_many_elements_are_moved_by_pytorch():
    run, _, _ = executor(lambda x: aten.clone(x), [torch.ones(1 << 17)])
    assert run.program.counts()[1] == 1


def test_a_row_beyond_the_table_is_told():
    run, _, _ = executor(lambda x, i: aten.embedding(x, i), [X, ROWS])
    for beyond in (4, -1):
        with pytest.raises(errors.StepError, match="embedding") as caught:
            run([X, ROWS.new_tensor([[0, 1, 2], [0, beyond, 1]])])
        assert "index out of range" in (caught.value.cause or "")
    assert torch.equal(run([X, ROWS])[0], X[ROWS])


def test_inputs_in_another_order_of_memory_are_brought_into_the_first_one():
    run, spec, _ = executor(lambda x: x[1:3].sum(0) + x.t()[:, 0], [X])
    run([X])
    other = torch.randn(6, 4).t()
    assert torch.equal(run([other])[0], _reference.run(spec, [], [other])[0])


def test_a_failing_operation_is_named_with_its_place_and_the_executor_goes_on():
    def function(x, i):
        return aten.relu(aten.index_select(x, 0, i))

    run, _, _ = executor(function, [X, torch.tensor([0, 1])])
    good = run([X, torch.tensor([1, 2])])[0]
    for _ in range(3):
        with pytest.raises(errors.StepError, match="aten::index_select") as caught:
            run([X, torch.tensor([9, 9])])
        assert caught.value.code == "U0310"
        assert reason("out of range") in (caught.value.cause or "")
        assert caught.value.place == "step.py:2"
        assert run._native.live() == 0
    assert torch.equal(run([X, torch.tensor([1, 2])])[0], good)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([torch.zeros(5, 6)], r"input 0 is float32 \[5, 6\], but .* float32 \[4, 6\]"),
        ([torch.zeros(4, 6).int()], "input 0 is int32"),
        ([], "0 inputs are passed where the program has 1"),
    ],
)
def test_other_inputs_than_captured_are_refused(inputs, message):
    run, _, _ = executor(lambda x: x * 2, [X])
    for _ in range(2):
        with pytest.raises(errors.StepError, match=message):
            run(inputs)
        run([X])


def test_other_state_than_captured_is_refused():
    builder, _ = from_fx(trace(lambda w, x: w + x, [X], [X]), 1)
    run = Executor(lower(builder.spec()))
    with pytest.raises(errors.StepError, match="no state is bound"):
        run([X])
    with pytest.raises(errors.StepError, match="tensor of state 0 is float32 \\[2\\]"):
        run.bind([torch.zeros(2)])
    with pytest.raises(errors.StepError, match="0 tensors of state"):
        run.bind([])
    with pytest.raises(errors.StepError, match=r"tensor of state 0 has strides \[1, 4\], but .* \[6, 1\]"):
        run.bind([torch.zeros(6, 4).t()])


def test_modes_of_the_calling_thread_do_not_reach_in():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Refuse(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            raise AssertionError(func)

    run, _, _ = executor(lambda x: x @ x.t(), [X])
    expected = X @ X.t()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(run([X])[0], expected)
    with torch.enable_grad():
        assert not run([X.clone().requires_grad_()])[0].requires_grad
        assert torch.is_grad_enabled()
    with Refuse():
        found = run([X])[0]
    assert torch.equal(found, expected)


def test_other_python_threads_go_on_during_a_step():
    import threading

    def function(x):
        for _ in range(200):
            x = x @ x * 1e-3
        return x

    big = torch.randn(256, 256)
    run, _, _ = executor(function, [big])
    ticks, stop = 0, threading.Event()

    def tick():
        nonlocal ticks
        while not stop.wait(0.001):
            ticks += 1

    thread = threading.Thread(target=tick)
    run([big])
    thread.start()
    before = ticks
    for _ in range(20):
        run([big])
    during = ticks - before
    stop.set()
    thread.join()
    assert during >= 3


def test_a_recorded_step_has_a_time_for_every_instruction():
    run, _, _ = executor(lambda x: (x @ x.t()).relu(), [X])
    run([X])
    _, records = run.record([X])
    assert [index for index, _, _ in records] == list(range(len(run.program.instructions())))
    assert all(duration > 0 for _, _, duration in records)
    starts = [start for _, start, _ in records]
    assert starts == sorted(starts)


def test_a_recorded_step_is_a_trace_that_the_analyses_read(tmp_path):
    run, _, _ = executor(lambda x: (x @ x.t()).relu(), [X])
    run([X])
    _, records = run.record([X])
    file = tmp_path / "step.json"
    file.write_text(run.program.trace_json(records, 3))
    found = unisono.trace.load(file)
    assert found._native.events() == len(records) + 1, "the instructions, and the step around them"
    names = [event["name"] for event in json.loads(file.read_text())["traceEvents"] if event["ph"] == "X"]
    assert names == ["ProfilerStep#0", *(name for name, _ in run.program.instructions())]
    with pytest.raises(errors.StepError, match="records of another program"):
        run.program.trace_json([(99, 0, 1)], 0)


class _Malloc(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in [
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        ]
    ]


def _in_use():
    """Bytes that malloc has handed out."""
    gc.collect()
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = _Malloc
    info = mallinfo()
    return info.uordblks + info.hblkhd


def test_a_thousand_steps_leave_no_memory_behind():
    def function(w, x, i):
        y = aten.gelu(x, approximate="tanh") + aten.index.Tensor(w, [None, i[0] % 6])
        y = aten.native_layer_norm(y, [6], None, None, 1e-5)[0] * 0.5
        w.add_(torch.cat([part * 2 for part in aten.split.Tensor(y, 3, 1)], 1))
        return [*aten._foreach_mul.ScalarList([y, w], [0.5, 2.0]), aten.masked_fill.Scalar(y, y > 0, -math.inf)]

    run, _, _ = executor(function, [X, NUMBERS], [X.clone()])
    assert run.program.counts()[4] == 2, "two calls go by Python"
    for _ in range(20):
        run([X, NUMBERS])
    before = _in_use()
    kept = [torch.ones(4096) for _ in range(16)]
    # Half of it, because other threads may give some back meanwhile.
    assert _in_use() - before >= 2 * sum(one.numel() for one in kept), "the measurement sees what is kept"
    growth = []
    for _ in range(3):
        before = _in_use()
        for _ in range(1000):
            run([X, NUMBERS])
        growth.append(_in_use() - before)
    # Other threads of the process (a test runner's, torch's) may take some in one round; a leak takes some in every round.
    assert min(growth) < 1024, growth


def _storages(values):
    tensors = [x for x in torch.utils._pytree.tree_leaves(values) if isinstance(x, torch.Tensor)]
    dense = [x for x in tensors if x.layout == torch.strided and x.numel()]
    return {x.untyped_storage().data_ptr() for x in dense}


class SharedMemory(TorchDispatchMode):
    """Notes the operations whose results share memory with an argument although their schemas have them new."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.silent: set[str] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        schema = function._schema
        self.seen.add(schema.name)
        says_so = any(argument.alias_info is not None for argument in schema.arguments)
        if not says_so and _storages((args, kwargs)) & _storages(result):
            self.silent.add(schema.name)
        return result


@pytest.mark.filterwarnings("ignore")
def test_results_share_memory_with_an_argument_only_where_the_executor_knows():
    """The roles of operations (``effects.rs``) and the lives of buffers (``buffers.rs``) rest on this."""
    mode = SharedMemory()
    for op in op_db:
        if torch.float32 not in op.dtypes:
            continue
        # Not by `sample_inputs`, which looks through the whole stack each time.
        samples = op.sample_inputs_func(op, "cpu", torch.float32, op.supports_autograd)
        for sample in itertools.islice(samples, 4):
            # A sample may be one that the operation refuses, or that needs another device.
            with contextlib.suppress(RuntimeError, ValueError, IndexError, AssertionError), mode:
                result = op.op(sample.input, *sample.args, **sample.kwargs)
                leaves = torch.utils._pytree.tree_leaves(result)
                ends = [x for x in leaves if isinstance(x, torch.Tensor) and x.requires_grad]
                torch.autograd.backward(ends, [torch.ones_like(x) for x in ends])
    assert len(mode.seen) > 400
    assert mode.silent <= {"aten::_unsafe_view", "aten::unsafe_split", "aten::unsafe_split_with_sizes"}


def test_forms_that_write_into_a_buffer_have_kernels_of_their_own_on_this_processor(monkeypatch):
    asked: list[str] = []
    spec = ProgramBuilder().spec()
    spec["schemas"] = [
        str(schema)
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith("aten::") and re.match(r"[^!.]*(\.\w+)?\([^!.]*\) -> Tensor$", str(schema))
    ]
    monkeypatch.setattr("unisono._executor._schema_of", asked.append)
    lower(spec, rewrite=True)
    forms = [name for name in asked if name.endswith(("out", ".grad_input"))]
    assert len(forms) > 25
    # stack.out is one for all devices, by way of cat.out
    slow = [name for name in forms if not torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU")]
    assert slow == ["aten::stack.out"]
