"""Collectives run from the executor over two gloo processes, as they do node by node."""

from __future__ import annotations

import subprocess
import sys

WORKER = """
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from unisono import _reference
from unisono._executor import Executor, lower
from unisono._program import ProgramBuilder, Slot

rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=timedelta(seconds=240))
group = dist.group.WORLD.group_name
functional = torch.ops._c10d_functional
torch.set_num_threads(1)

builder = ProgramBuilder()
x = torch.arange(8.0).reshape(4, 2) * (rank + 1)
state = torch.zeros(4, 2)
s, i = builder.slot(state), builder.slot(x)
builder.state.append(s)
builder.inputs.append(i)


def waited(op, *args):
    issued, done = builder.slot(), builder.slot()
    builder.call(op, args, {}, [issued])
    builder.call(functional.wait_tensor.default, [Slot(issued)], {}, [done])
    return done


def computed(op, *args):
    target = builder.slot()
    builder.call(op, args, {}, [target])
    return target


builder.returns += [
    waited(functional.all_reduce.default, Slot(i), "sum", group),
    waited(functional.all_reduce.default, Slot(i), "max", group),
    waited(functional.all_gather_into_tensor.default, Slot(i), 2, group),
    waited(functional.reduce_scatter_tensor.default, Slot(i), "sum", 2, group),
    waited(functional.all_to_all_single.default, Slot(i), [2, 2], [2, 2], group),
    waited(functional.broadcast.default, Slot(i), 1, group),
]
# in place, into state
added = computed(torch.ops.aten.add_.Tensor, Slot(s), Slot(i))
builder.returns.append(waited(functional.all_reduce_.default, Slot(added), "sum", group))
# two in flight at once
first, second = builder.slot(), builder.slot()
builder.call(functional.all_reduce.default, [Slot(i), "sum", group], {}, [first])
builder.call(functional.all_gather_into_tensor.default, [Slot(i), 2, group], {}, [second])
between = computed(torch.ops.aten.mm.default, Slot(i), Slot(computed(torch.ops.aten.t.default, Slot(i))))
for one in (second, first):
    builder.returns.append(computed(functional.wait_tensor.default, Slot(one)))
builder.returns.append(between)
# point to point, which torch has from 2.12 on
if hasattr(functional, "isend"):
    operation = functional.isend.default if rank == 0 else functional.irecv.default
    buffer = computed(torch.ops.aten.mul.Scalar, Slot(i), 1.5)
    builder.returns.append(waited(operation, Slot(buffer), 1 - rank, 7, group))

spec = builder.spec()
run = Executor(lower(spec))
run.bind([state])
other = state.clone()
for step in range(5):
    found, expected = run([x]), _reference.run(spec, [other], [x])
    live = run._native.live()
    assert live == 1, live
    for k, (a, b) in enumerate(zip([*found, state], [*expected, other], strict=True)):
        assert torch.equal(a, b), (step, k, a, b)
assert torch.equal(found[0], torch.arange(8.0).reshape(4, 2) * 3)
_, records = run.record([x])
names = [name for name, _ in run.program.instructions()]
assert sum(name.startswith("_c10d_functional::wait_tensor") for name in names) == 9 + hasattr(functional, "isend")
assert len(records) == len(names)
dist.barrier()
dist.destroy_process_group()
print("equal", rank)
"""


def test_collectives_and_point_to_point_are_equal_to_node_by_node(tmp_path):
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    command = [sys.executable, str(script)]
    workers = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "store")], stdout=-1, stderr=-1, text=True)
        for rank in range(2)
    ]
    try:
        for rank, worker in enumerate(workers):
            out, err = worker.communicate(timeout=300)
            assert worker.returncode == 0, err[-3000:]
            assert f"equal {rank}" in out
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
