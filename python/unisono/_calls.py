"""What a step takes on the host around its program: its call is looked at, and what it returns is put together."""

from __future__ import annotations

import statistics
import time
from typing import NamedTuple

import torch
from torch import nn

from unisono import _devices
from unisono._call import Caller
from unisono._ranks import Ranks
from unisono._state import State
from unisono._watch import Watch
from unisono.errors import UnisonoError

#: How many layers the two steps have that are measured, and how wide they are.
_LAYERS, _WIDTH = (1, 8), 8
#: How often a step runs before it is measured, and how often then.
_WARM, _ROUNDS = 3, 15
#: Elements that are copied between two steps: the operations of a step leave as little of the caches to what Python looks at.
_ELEMENTS = 1 << 22
#: After how many seconds without progress a step has failed.
_TIMEOUT = 1200.0


class CallTimes(NamedTuple):
    """Nanoseconds of a host around a step's program.

    Attributes:
        each: those of any step.
        tensor: what each tensor of state adds.
    """

    each: float
    tensor: float


def measured(ranks: Ranks) -> CallTimes | None:
    """Measures two made-up steps, each rank its own, while all do; ``None`` where such steps cannot be made here, as under a user's hooks.

    PyTorch's generators are left as they are.
    """
    states = _devices.generator_states(_devices.HOST)
    try:
        with torch.enable_grad():
            points = [_around(layers, ranks) for layers in _LAYERS]
    except UnisonoError:
        points = None
    finally:
        _devices.set_generator_states(_devices.HOST, states)
    mine = torch.tensor(points or [(float("nan"), 0.0)] * len(_LAYERS), dtype=torch.float64)
    every = torch.stack(ranks.gathered(mine)) if ranks.count > 1 else mine[None]
    (few, less), (many, more) = every.mean(0).tolist()
    if not few < many:  # not a number where a rank has none
        return None
    tensor = max((more - less) / (many - few), 0.0)
    return CallTimes(max(less - few * tensor, 0.0), tensor)


def _around(layers: int, ranks: Ranks) -> tuple[float, float]:
    """The number of tensors of state of a step of so many layers, and the nanoseconds around its program."""
    from unisono._captured_step import CapturedStep  # which measures by this module
    from unisono.session import Session

    kind = {"dtype": torch.float32, "device": _devices.HOST}
    one = nn.TransformerEncoderLayer(_WIDTH, 1, _WIDTH, batch_first=True, **kind)
    model = nn.TransformerEncoder(one, layers, enable_nested_tensor=False)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.ones(1, 1, _WIDTH, **kind)

    def train_step(batch: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    alone, caller = Ranks(alone=True), Caller(train_step)
    mesh = {"ranks": 1}
    state = State(alone, mesh, model, (optimizer,))
    session = Session(alone, mesh, model, (optimizer,), state, None, "cpu", {}, 0, keep_grads=False)
    session.watch = Watch(alone, _TIMEOUT)
    step = CapturedStep(session, train_step, caller.of_example((batch,)), None)
    block = torch.ones(_ELEMENTS, **kind)
    copy = torch.empty_like(block)
    wholes, programs = [], []
    ranks.meet()
    for number in range(_WARM + _ROUNDS):
        copy.copy_(block)
        start = time.perf_counter_ns()
        call = caller((batch,), {})
        step.serves(call)
        step.activate()
        step.run(call, number)
        wholes.append(time.perf_counter_ns() - start)
        copy.copy_(block)
        returned, records = step.record(caller((batch,), {}))
        programs.append(sum(duration for _, _, duration in records))
        step.finish(returned)
    whole, program = (statistics.median(times[_WARM:]) for times in (wholes, programs))
    return float(len(step.state_tensors())), max(whole - program, 0.0)
