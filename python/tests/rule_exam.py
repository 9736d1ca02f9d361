"""How the claims of the operation table are proved: operands are cut as a strategy requires, each rank runs its graph, and the results put
together as the strategy says must be the whole result."""

from __future__ import annotations

import itertools
import operator

import attention_kernels
import msgpack
import recurrent_kernels
import torch
import torch.utils._pytree as pytree
from ranks import cut, run_ranks, whole
from torch._subclasses.fake_tensor import FakeTensorMode

from unisono import _counter as _counter  # the operation that draws at positions
from unisono import _host as _host  # the operations that copy to the host and back
from unisono import _native
from unisono._capture import kernels
from unisono._capture.inputs import StepInput, StepInputs
from unisono._capture.record import Recorder
from unisono._capture.trace import _functionalise as functionalised
from unisono._capture.traced import Traced
from unisono._capture.wire import Encoder
from unisono._interpret import arguments, bind
from unisono._reference import call, operation

#: A sum of so many roundings; samples are in double precision.
TOLERANCE = {"rtol": 1e-7, "atol": 1e-8}
#: The same for operations whose logarithms are in single precision, and so are their samples.
SINGLE = {"rtol": 1e-4, "atol": 1e-5}


#: Numbers of ranks that leave samples with shards of one size, of several, and empty ones.
RANKS = (2, 5, 7)


def ranks_for(tensors):
    """Numbers of ranks to ask a sample on."""
    return (*RANKS, 11) if any(20 in tensor.shape for tensor in tensors) else RANKS


#: What the table claims of the operators that tests of this file have met, and whether one has asked it.
CLAIMS: dict[tuple[str, str], bool] = {}


def message(function, tensors):
    """The graph of a function of tensors, traced as capture traces."""
    fakes = FakeTensorMode(allow_non_fake_inputs=True)
    plain = [fakes.from_tensor(tensor, static_shapes=True) for tensor in tensors]

    def returned(*given):
        return [leaf for leaf in pytree.tree_leaves(function(*given)) if isinstance(leaf, torch.Tensor)]

    graph = functionalised(Recorder().record(returned, plain, fakes), plain)
    inputs = StepInputs([StepInput("constant", f"constants.{i}", t) for i, t in enumerate(tensors)])
    graph.graph.eliminate_dead_code()
    output = next(node for node in graph.graph.nodes if node.op == "output")
    output.args = ([n for n in output.args[0] if isinstance(n, torch.fx.Node)],)
    encoder = Encoder(Traced(graph=graph, leaves=len(output.args[0]), returns=None), inputs)  # type: ignore[arg-type]
    return encoder.bytes(), [item.tensor for item in inputs.inputs]


def call_message(op, args):
    """The graph of one call, its arguments in the order of the schema, as it is: nothing is taken apart."""
    named = [a.name for a in op._schema.arguments if a.kwarg_only]
    plain = len(op._schema.arguments) - len(named)
    flat, spec = torch.utils._pytree.tree_flatten(args)
    tensors = [x for x in flat if isinstance(x, torch.Tensor)]
    graph = torch.fx.Graph()
    nodes = [graph.placeholder(f"x{i}") for i in range(len(tensors))]
    with torch._subclasses.FakeTensorMode() as fakes:
        made = [fakes.from_tensor(t) for t in tensors]
        left = iter(made)
        given = torch.utils._pytree.tree_unflatten(
            [next(left) if isinstance(x, torch.Tensor) else x for x in flat], spec
        )
        value = op(*given[:plain], **dict(zip(named, given[plain:], strict=False)))
    for node, fake in zip(nodes, made, strict=True):
        node.meta["val"] = fake
    left = iter(nodes)
    given = torch.utils._pytree.tree_unflatten([next(left) if isinstance(x, torch.Tensor) else x for x in flat], spec)
    call_node = graph.call_function(op, tuple(given[:plain]), dict(zip(named, given[plain:], strict=False)))
    call_node.meta["val"] = value
    outputs = [call_node]
    if isinstance(value, tuple | list):
        outputs = [graph.call_function(operator.getitem, (call_node, i)) for i in range(len(value))]
        for node, part in zip(outputs, value, strict=True):
            node.meta["val"] = part
    graph.output(outputs)
    inputs = StepInputs([StepInput("constant", f"constants.{i}", t) for i, t in enumerate(tensors)])
    traced = Traced(graph=torch.fx.GraphModule({}, graph), leaves=len(outputs), returns=None)  # type: ignore[arg-type]
    return Encoder(traced, inputs).bytes(), tensors


def values_of(graph, inputs):
    """All values of a graph."""
    values = {item["value"]: tensor for item, tensor in zip(graph["inputs"], inputs, strict=True)}
    with torch.no_grad():
        for number in graph["order"]:
            node = graph["nodes"][number]
            op = operation(graph["ops"][node["op"]]["name"])
            bind(node["returns"], call(op, arguments(node, values, {})), values)
    return values


def operands(node):
    """The values that a node reads, lists flattened."""
    found = []
    for arg in node["args"]:
        if arg != "none" and "value" in arg:
            found.append(arg["value"])
        elif arg != "none" and "values" in arg:
            found.extend(v for v in arg["values"] if v is not None)
    return found


def results(node):
    found = []
    for returned in node["returns"]:
        if returned != "none":
            made = next(iter(returned.values()))
            found.extend(made if isinstance(made, list) else [made])
    return found


def offsets_of(graph, values):
    """The offsets by which products divide rows into groups, if a graph has such."""
    nodes = (node for node in graph["nodes"] if graph["ops"][node["op"]]["name"] == "aten::_grouped_mm")
    return next((values[operands(node)[2]] for node in nodes if len(operands(node)) == 3), None)


def own_groups(offsets, ranks):
    """Where the groups of each rank begin, and how many elements they have."""
    bounds = [0, *offsets.tolist()]
    sizes = [len(one) for one in torch.arange(len(offsets)).chunk(ranks)]
    ends = list(itertools.accumulate(sizes, initial=0))
    return [(bounds[first], bounds[last] - bounds[first]) for first, last in itertools.pairwise(ends)]


def in_groups(tensor, dim, start, count):
    """The elements of some groups, in memory in the order of the whole."""
    return torch.empty_like(tensor.narrow(dim, start, count)).copy_(tensor.narrow(dim, start, count))


def parts(tensor, placement, ranks, generator, offsets=None):
    """The parts of a tensor; those of a sum are uneven and of both signs."""
    if placement.startswith("groups"):
        dim = int(placement[7:-1])
        return [in_groups(tensor, dim, *own) for own in own_groups(offsets, ranks)]
    if placement == "partial(sum)":
        others = [torch.randn(tensor.shape, generator=generator, dtype=torch.float64) * 3 for _ in range(ranks - 1)]
        others = [other.to(tensor.dtype) for other in others]
        return [*others, tensor - sum(others)]
    if placement == "partial(norm)":
        shares = torch.rand((ranks, *tensor.shape), generator=generator, dtype=torch.float64) + 0.1
        return list(tensor * (shares / shares.sum(0)).sqrt().to(tensor.dtype))
    return [cut(tensor, placement, rank, ranks) for rank in range(ranks)]


def combined(pieces, placement, offsets=None):
    if placement.startswith("groups"):
        return torch.cat(pieces, int(placement[7:-1]))
    if placement == "partial(sum)":
        return sum(pieces)
    if placement == "partial(norm)":
        return torch.stack(pieces).square().sum(0).sqrt()
    if placement == "partial(max)":
        return torch.stack(pieces).amax(0)
    return whole(pieces, placement)


def remember(claims):
    for name, claim, is_asked in claims:
        CLAIMS[name, claim] = CLAIMS.get((name, claim), False) or is_asked


def note(bytes_, _):
    """Notes what a graph asks without running it."""
    for ranks in (*RANKS, 3, 4, 11):
        remember(_native.Graph(bytes_).exam(ranks)[2])


def ask(bytes_, tensors, ranks, seen=None, tolerance=None):
    """Asks all questions of a graph; returns how many there were beside the trivial ones, by operator.

    The tolerance is that of the element type unless it is given.
    """
    canonical, questions, claims = _native.Graph(bytes_).exam(ranks)
    remember(claims)
    graph = msgpack.unpackb(canonical.message())["graph"]
    values = values_of(graph, tensors)
    generator, offsets = torch.Generator().manual_seed(0), offsets_of(graph, values)
    asked: dict[str, int] = {}
    for question in msgpack.unpackb(questions):
        placements = question["operands"] + question["results"]
        if all(placement == "replicate" for placement in placements):
            continue
        node = graph["nodes"][question["node"]]
        name = graph["ops"][node["op"]]["name"]
        key = (name, ranks, tuple(placements), str(node["args"]), tuple(values[v].shape for v in operands(node)))
        if seen is not None:
            if key in seen:
                continue
            seen.add(key)
        cuts = [
            parts(values[v], p, ranks, generator, offsets)
            for v, p in zip(operands(node), question["operands"], strict=True)
        ]
        floating = {values[v].dtype for v in operands(node) if values[v].is_floating_point()}
        within = tolerance or (SINGLE if floating == {torch.float32} else TOLERANCE)
        run = [canonical.without_empty_parts(_native.Graph(one)) for one in question["graphs"]]
        graphs = [msgpack.unpackb(one.message())["graph"] for one in run]
        varying = [number for number, placement in enumerate(question["operands"]) if placement.startswith("groups")]
        given = [[pieces[rank] for pieces in cuts] for rank in range(ranks)]
        made = run_ranks(graphs, given, layouts=False, in_groups=varying)
        for position, (value, placement) in enumerate(zip(results(node), question["results"], strict=True)):
            if "empty" in name:
                continue
            put_together = combined([returned[position] for returned, _ in made], placement, offsets)
            what = f"{name}: {', '.join(question['operands'])} -> {', '.join(question['results'])} over {ranks}"
            torch.testing.assert_close(
                put_together, values[value], equal_nan=True, msg=lambda m, w=what: f"{w}\n{m}", **within
            )
        asked[name] = asked.get(name, 0) + 1
    return asked


def with_gradients(function, tensors):
    """A function's result and the gradients of its sum to all floating-point tensors."""

    def both(*given):
        leaves = [t.detach().requires_grad_(t.is_floating_point()) for t in given]
        with torch.enable_grad():
            result = function(*leaves)
            wanted = [t for t in leaves if t.requires_grad]
            return [result.detach(), *torch.autograd.grad(result, wanted, torch.ones_like(result), allow_unused=True)]

    return both, tensors


def rand(*shape):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def integers(high, *shape):
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(sum(shape)))


#: Sizes that no number of ranks divides, in place of such as 2 and 3 divide.
ODD = {12: 11, 6: 5, 72: 55, 96: 80}


def odd(args, dims=9):
    """Arguments of odd sizes along so many first dimensions: tensors without their last elements, lists of sizes, numbers within."""

    def size_of(dim, size):
        return ODD.get(size, size) if dim < dims or size == 96 else size

    def smaller(one):
        if isinstance(one, torch.Tensor):
            sizes = tuple(slice(size_of(dim, size)) for dim, size in enumerate(one.shape))
            kept = one[sizes].clone(memory_format=torch.preserve_format)
            return kept.clamp(max=10) if one.dtype in (torch.int32, torch.int64) else kept
        if not isinstance(one, list | tuple):
            return one
        if all(isinstance(part, int) for part in one):
            return [ODD.get(size, size) for size in one] if list(one[:2]) in ([6, 12], [72]) else one
        return [smaller(part) for part in one]

    return [smaller(one) for one in args]


def qualified(name):
    """The name of an operator with its namespace, PyTorch's own where it has none."""
    return name if "::" in name else f"aten::{name}"


def overload(name):
    """PyTorch's operator of a name such as `add.Tensor` or `aten::mm`."""
    namespace, _, rest = qualified(name).partition("::")
    base, _, variant = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), base), variant or "default")


def rows():
    return {row["name"]: row for row in msgpack.unpackb(_native.operation_rows())}


def _rms_norm_backward(gradient, x, shape, rstd, weight, mask):
    """What PyTorch has a kernel for on other devices only."""
    dims, normal = tuple(range(-len(shape), 0)), x * rstd
    scaled = gradient if weight is None else gradient * weight
    found = rstd * (scaled - normal * (scaled * normal).mean(dims, keepdim=True))
    return found, (gradient * normal).sum(tuple(range(x.dim() - len(shape))))


_KERNELS = torch.library.Library("aten", "IMPL")
_KERNELS.impl("_fused_rms_norm_backward", _rms_norm_backward, "CPU")
_ATTENTION = attention_kernels.register()
_RECURRENT = recurrent_kernels.register(), kernels.register()
