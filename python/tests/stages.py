"""Pipeline stages in one process: their programs run side by side, and wait for each other as over gloo."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import msgpack
import torch
from machines import machine
from rank_programs import check_types

import unisono
from unisono import _host, _native  # noqa: F401 (the operations of copies)
from unisono._interpret import arguments, bind
from unisono._placements import holders
from unisono._reference import call, operation
from unisono.errors import ConfigurationError

#: A machine on which sending takes its time.
MACHINE = machine(memory_bandwidth=1e10, flops=1e10, latency_ns=1e3, bandwidth=1e9)


def plan(graph: unisono.StepGraph, stages: int, micro_batches: int, **settings: Any) -> _native.Plan:
    """A plan with so many stages on their own."""
    settings |= {"mesh": {"stages": stages}, "micro_batches": micro_batches, "effort": "quick"}
    return graph.native.plan(MACHINE, msgpack.packb(settings))


def forward_length(graph: unisono.StepGraph) -> int:
    """How many operations of forward a step has in canonical form, as the refusal of a cut behind all of them says."""
    try:
        plan(graph, 2, 1, cuts=[10**6])
    except ConfigurationError as error:
        return int(str(error).partition("has ")[2].split()[0])
    raise AssertionError("a cut behind all operations is accepted")


@torch.no_grad()
def train(
    graph: unisono.StepGraph, plan: _native.Plan, batches: Sequence[Sequence[torch.Tensor]]
) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    """Trains a captured step by a plan; what each step returns (the same on every stage), and the parameters after the last."""
    content = msgpack.unpackb(plan.content())
    stages, state = content["mesh"]["stages"], content["stages"]["state"]
    programs = [msgpack.unpackb(graph.native.program(plan, stage)[0].message())["graph"] for stage in range(stages)]
    items = graph.capture.inputs.inputs
    on = [state.get(item.name, list(range(stages))) for item in items]
    assert all(holders(f"stage({', '.join(map(str, one))})") == one for one in on)
    held = [
        [item.tensor.detach().clone() if stage in on[p] else item.tensor.new_empty(0) for p, item in enumerate(items)]
        for stage in range(stages)
    ]
    returned = []
    generators = [torch.get_rng_state() for _ in range(stages)]
    for batch in batches:
        for position, tensor in zip(graph.capture.inputs.leaves, batch, strict=True):
            assert position is not None
            for one in held:
                one[position] = tensor
        results = run(programs, held, generators)
        assert all(torch.equal(mine[0], results[0][0][0]) for mine, _ in results)
        returned.append(results[0][0][0])
        for one, (_, updates) in zip(held, results, strict=True):
            for position, tensor in updates.items():
                one[position] = torch.empty_like(one[position]).copy_(tensor)
    names = {item.name.removeprefix("params."): p for p, item in enumerate(items) if item.cls == "parameter"}
    return returned, {name: held[on[p][0]][p] for name, p in names.items()}


def run(programs: list[dict[str, Any]], inputs: list[list[torch.Tensor]], generators: list[torch.Tensor]) -> list[Any]:
    """Runs the programs of all stages; fails where they wait for each other without end, or something that was sent is left.

    Each stage draws from a generator of its own, whose states are taken and left behind.
    """
    sent: dict[str, list[torch.Tensor]] = {}
    begun: dict[str, int] = {}
    stages = [
        _stage(number, one, held, sent, begun) for number, (one, held) in enumerate(zip(programs, inputs, strict=True))
    ]
    results: list[Any] = [None] * len(stages)
    # Who comes first is never to matter.
    chance = random.Random(0)
    while open_ := [number for number, result in enumerate(results) if result is None]:
        moved = False
        for number in chance.sample(open_, len(open_)):
            torch.set_rng_state(generators[number])
            made = next(stages[number])
            generators[number] = torch.get_rng_state()
            moved |= made != "waits"
            results[number] = made if isinstance(made, tuple) else None
        assert moved, "stages wait for each other for ever"
    assert {group: len(tensors) for group, tensors in sent.items()} == begun, "not all that was sent is received"
    return results


def _stage(
    number: int,
    graph: dict[str, Any],
    inputs: list[torch.Tensor],
    sent: dict[str, list[torch.Tensor]],
    begun: dict[str, int],
) -> Iterator[Any]:
    """Runs one stage: yields ``"waits"`` where it cannot go on, ``"goes on"`` now and then, and at last what it returns and updates."""
    values = {item["value"]: tensor for item, tensor in zip(graph["inputs"], inputs, strict=True)}
    for tensor, item in zip(inputs, graph["inputs"], strict=True):
        assert list(tensor.shape) == graph["values"][item["value"]]["type"]["shape"], item["name"]
    # For each transfer that has begun: its group, which of the group's it is, and whether it comes here.
    transfers: dict[int, tuple[str, int, bool]] = {}
    for place in graph["order"]:
        node = graph["nodes"][place]
        name = graph["ops"][node["op"]]["name"]
        given = [next(iter(a.values())) if isinstance(a, dict) else a for a in node["args"]]
        if name == "_c10d_functional::broadcast":
            tensor, group = values[given[0]], given[-1]
            assert tensor.is_contiguous()
            sender = int(group.rpartition(":")[2].split(">")[0])
            result = tensor.clone()
            if sender == number:
                sent.setdefault(group, []).append(result)
                count = len(sent[group])
            else:
                count = begun[group] = begun.get(group, 0) + 1
            made = next(iter(node["returns"][0].values()))
            transfers[made] = group, count, sender != number
            yield "goes on"
        elif name == "_c10d_functional::wait_tensor":
            group, count, comes = transfers.pop(given[0])
            while (len(sent.get(group, ())) if comes else begun.get(group, 0)) < count:
                yield "waits"
            result = sent[group][count - 1].clone() if comes else values[given[0]]
            assert result.shape == values[given[0]].shape
            assert result.dtype == values[given[0]].dtype
        else:
            op = operation(name)
            result = call(op, arguments(node, values, {}))
        bind(node["returns"], result, values)
        check_types(graph, node, values, layouts=True, varying=set())
    assert not transfers, "what was sent or received is not waited for"
    yield [values[v] for v in graph["returns"]], {p: values[v] for p, v in graph["updates"]}
