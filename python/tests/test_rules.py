"""Every claim of the operation table, proved: operands are cut as a strategy requires, each rank runs its graph, and the results put
together as the strategy says must be the whole result."""

from __future__ import annotations

import functools
import itertools
import operator
import re

import attention_kernels
import msgpack
import pytest
import recurrent_kernels
import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
from ranks import cut, run_ranks, whole
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.common_methods_invocations import op_db

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
        graphs = [msgpack.unpackb(g)["graph"] for g in question["graphs"]]
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


#: Samples are random, or not worth the time.
LEFT_OUT = {"bernoulli", "normal", "nn.functional.dropout"}
SUPPORTED = [op for op in op_db if torch.float64 in op.dtypes and op.name not in LEFT_OUT]
#: Variants that lead to operators without a row, or that nothing can be cut in: they run replicated.
WITHOUT_A_ROW = {
    "linalg.vector_norm",  # its first samples are too small to be cut; "norms" below asks
    *(
        "tril",
        "triu",
        "argmax",
        "isinf",
        "index_select",
        "clamp",
        "round.decimals_0",
        "round.decimals_3",
        "round.decimals_neg_3",
    ),
    *("std.unbiased", "var.unbiased", "var_mean.unbiased"),
    *(f"nn.functional.pad.{mode}" for mode in ("reflect", "replicate", "replicate_negative", "circular")),
}
NAMES = set(
    """
    add sub mul div neg reciprocal pow sqrt rsqrt square exp log log1p expm1 sin cos erf abs sign sgn floor ceil round
    clamp maximum minimum floor_divide remainder addcmul addcdiv lerp nn.functional.relu nn.functional.gelu
    nn.functional.silu tanh sigmoid nn.functional.leaky_relu nn.functional.elu nn.functional.softplus
    nn.functional.hardtanh eq ne lt le gt ge isnan isinf logical_not logical_and logical_or bitwise_and bitwise_or
    bitwise_not where masked_fill clone zeros_like ones_like full_like view reshape t transpose permute unsqueeze
    squeeze expand select unbind split split_with_sizes chunk cat stack flip sum mean linalg.vector_norm amax amin
    argmax cumsum sort topk nn.functional.mse_loss softmax log_softmax nn.functional.layer_norm nn.functional.rms_norm
    nn.functional.nll_loss nn.functional.cross_entropy nn.functional.embedding gather scatter scatter_add index_select
    mm bmm addmm baddbmm matmul nn.functional.linear nn.functional.conv2d nn.functional.conv1d constant_pad_nd
    nn.functional.pad new_zeros new_ones new_full tril triu nn.functional.batch_norm
    nn.functional.scaled_dot_product_attention
    erfc exp2 log2 log10 tan asin acos atan atan2 sinh cosh asinh acosh atanh hypot trunc frac nan_to_num fmod fmax fmin
    xlogy logaddexp copysign logical_xor bitwise_xor nn.functional.hardswish nn.functional.hardsigmoid nn.functional.mish
    nn.functional.prelu nn.functional.glu all any max min median prod var std var_mean cumprod cummax cummin logcumsumexp
    roll index_add nn.functional.smooth_l1_loss nn.functional.huber_loss nn.functional.group_norm
    nn.functional.max_pool2d nn.functional.max_pool3d nn.functional.avg_pool2d nn.functional.avg_pool3d
    nn.functional.adaptive_avg_pool2d nn.functional.adaptive_avg_pool3d nn.functional.adaptive_max_pool2d
    nn.functional.interpolate nn.functional.grid_sample
    """.split()  # noqa: SIM905 - a list of a hundred words
)


def sampled(op, sample):
    """A sample as a function of its tensors, and these."""
    flat, spec = torch.utils._pytree.tree_flatten(([sample.input, *sample.args], sample.kwargs))
    tensors = [x for x in flat if isinstance(x, torch.Tensor)]

    def function(*given):
        given = iter(given)
        full = [next(given) if isinstance(x, torch.Tensor) else x for x in flat]
        args, kw = torch.utils._pytree.tree_unflatten(full, spec)
        made = op.op(*args, **kw)
        return [t for t in torch.utils._pytree.tree_leaves(made) if isinstance(t, torch.Tensor)]

    return function, tensors


SAMPLED = [op for op in SUPPORTED if op.name in NAMES]
#: The graphs of the samples of operations that tests of this file have met, by the operation's name.
MESSAGES: dict[str, list[bytes]] = {}


def traced_samples(op):
    """The samples of an operation: the tensors of each, and its graph with those that this reads."""
    messages = MESSAGES[op.full_name] = []
    for sample in itertools.islice(op.sample_inputs("cpu", torch.float64), 24):
        function, tensors = sampled(op, sample)
        if not any(t.numel() > 20_000 or t.is_complex() for t in tensors):
            traced = message(function, tensors)
            messages.append(traced[0])
            yield tensors, traced


@pytest.mark.parametrize("op", SAMPLED, ids=lambda op: op.full_name)
def test_every_strategy_of_the_samples_of_an_operation_gives_the_whole_result(op):
    seen: set = set()
    asked = 0
    for tensors, traced in traced_samples(op):
        for ranks in ranks_for(tensors):
            asked += sum(ask(*traced, ranks, seen).values())
    assert asked or op.full_name in WITHOUT_A_ROW


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


BACKWARD = {
    "linear": (lambda x, w, b: F.linear(x, w, b), [rand(4, 6, 8), rand(12, 8), rand(12)]),
    "a fused projection, split into heads": (
        lambda x, w: torch.cat([p.view(2, 4, 6, 2).transpose(1, 2) for p in F.linear(x, w).split(12, 2)], 3),
        [rand(2, 4, 6), rand(36, 6)],
    ),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (8,), w, b), [rand(4, 6, 8), rand(8), rand(8)]),
    "rms norm": (lambda x, w: F.rms_norm(x, (8,), w), [rand(4, 6, 8), rand(8)]),
    "gelu": (lambda x: F.gelu(x), [rand(4, 6)]),
    "silu": (lambda x: F.silu(x), [rand(4, 6)]),
    "tanh and sigmoid": (lambda x: torch.tanh(x) * torch.sigmoid(x), [rand(4, 6)]),
    "relu": (lambda x: F.relu(x), [rand(4, 6)]),
    "softmax": (lambda x: F.softmax(x, -1) * x, [rand(4, 12)]),
    "cross entropy": (lambda x, y: F.cross_entropy(x, y), [rand(6, 12), integers(12, 6)]),
    "cross entropy with ignored targets": (
        lambda x, y: F.cross_entropy(x, torch.where(y < 6, y, -100)),
        [rand(6, 12), integers(12, 6)],
    ),
    "cross entropy that ignores a class": (
        lambda x, y: F.cross_entropy(x, y, ignore_index=3),
        [rand(12, 12), integers(12, 12)],
    ),
    "mean square error": (lambda x, y: F.mse_loss(x, y), [rand(4, 6), rand(4, 6)]),
    "rows at numbers": (lambda w, i: w[i], [rand(12, 4), integers(12, 6)]),
    "rows at numbers from the end": (lambda w, i: w[i - 6], [rand(12, 4), integers(12, 6, 2)]),
    "rows put at numbers": (lambda w, i, v: w.index_put((i,), v), [rand(12, 4), torch.randperm(12)[:6], rand(6, 4)]),
    "embedding": (lambda w, i: F.embedding(i, w), [rand(12, 4), integers(12, 6, 2)]),
    "embedding with padding": (lambda w, i: F.embedding(i, w, padding_idx=3), [rand(12, 4), integers(12, 6, 4)]),
    "batch norm": (
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        [rand(6, 4), rand(4), rand(4)],
    ),
    "batch norm of images": (
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        [rand(4, 6, 2, 2), rand(6), rand(6)],
    ),
    "convolution": (lambda x, w, b: F.conv2d(x, w, b, padding=1), [rand(4, 3, 5, 5), rand(6, 3, 3, 3), rand(6)]),
    "group norm": (lambda x, w, b: F.group_norm(x, 3, w, b), [rand(12, 6, 4), rand(6), rand(6)]),
    "pooling": (
        lambda x: F.max_pool2d(x, 2) * F.avg_pool2d(x, 2) + F.adaptive_avg_pool2d(x, 2).mean(),
        [rand(12, 6, 4, 4)],
    ),
    "pooling of volumes": (lambda x: F.max_pool3d(x, 2) + F.avg_pool3d(x, 2), [rand(6, 12, 4, 4, 2)]),
    "resizing": (
        lambda x: F.interpolate(x, scale_factor=2) + F.interpolate(x, size=(8, 6), mode="bilinear"),
        [rand(6, 12, 4, 3)],
    ),
    "resizing of signals": (
        lambda x: (
            F.interpolate(x, scale_factor=2, mode="linear") * F.interpolate(x, scale_factor=2, mode="nearest-exact")
        ),
        [rand(6, 12, 4)],
    ),
    "resizing of volumes": (lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"), [rand(6, 12, 2, 2, 2)]),
    "borders": (lambda x: F.pad(x, (1, 1, 1, 1), "reflect") * F.pad(x, (1, 1, 1, 1), "replicate"), [rand(6, 12, 3, 3)]),
    "sampling by a grid": (
        lambda x, g: F.grid_sample(x, g.tanh(), align_corners=False),
        [rand(12, 2, 4, 4), rand(12, 3, 3, 2)],
    ),
    "sampling of volumes by a grid": (
        lambda x, g: F.grid_sample(x, g.tanh(), align_corners=False),
        [rand(12, 2, 4, 4, 4), rand(12, 3, 3, 2, 3)],
    ),
    "further activations": (
        lambda x: F.elu(x) + F.softplus(x) + F.hardtanh(x) + F.hardswish(x) + F.hardsigmoid(x) + F.mish(x),
        [rand(12, 6)],
    ),
    "ctc loss of padded targets": (
        lambda x, y, n, m: F.ctc_loss(x.log_softmax(-1), y, n, m, reduction="none", zero_infinity=True),
        [rand(10, 12, 7), integers(6, 12, 3) + 1, torch.full((12,), 10), torch.full((12,), 3)],
    ),
    "cross entropy of images": (
        lambda x, y: F.cross_entropy(x, torch.where(y < 5, y, -100)),
        [rand(6, 7, 4, 12), integers(7, 6, 4, 12)],
    ),
    "binary cross entropy": (
        lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid().detach()),
        [rand(6, 12), rand(12, 12)[:6]],
    ),
    "binary cross entropy of each": (
        lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid().detach(), reduction="none").sum(),
        [rand(6, 12), rand(12, 12)[:6]],
    ),
    "binary cross entropy of logits": (
        lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()),
        [rand(6, 12), rand(12, 12)[:6]],
    ),
    "binary cross entropy of logits with weights": (
        lambda x, w: F.binary_cross_entropy_with_logits(
            x, x.detach().sigmoid(), w.detach().abs(), pos_weight=w.detach().square(), reduction="sum"
        ),
        [rand(6, 12), rand(12)],
    ),
    "logarithms of sigmoids": (lambda x: F.logsigmoid(x), [rand(6, 12)]),
    "further shrinking": (
        lambda x: F.softshrink(x, 0.3) + F.hardshrink(x, 0.3) + x.sigmoid().logit(1e-6),
        [rand(6, 12)],
    ),
    "products with vectors": (lambda x, y: (x @ y) * torch.dot(y, y), [rand(6, 12), rand(12)]),
    "resizing without aliasing": (
        lambda x: (
            F.interpolate(x, size=(3, 2), mode="bilinear", antialias=True)
            + F.interpolate(x, size=(3, 2), mode="bicubic", antialias=True)
        ),
        [rand(6, 12, 5, 4)],
    ),
    "triangular systems": (
        lambda a, b: torch.linalg.solve_triangular(a.tanh() + 3 * torch.eye(4, dtype=torch.float64), b, upper=False),
        [rand(6, 4, 4), rand(6, 4, 12)],
    ),
    "triangular systems from the right": (
        lambda a, b: torch.linalg.solve_triangular(
            a.tanh() + 3 * torch.eye(4, dtype=torch.float64), b, upper=True, left=False
        ),
        [rand(6, 4, 4), rand(6, 12, 4)],
    ),
    "division that rounds": (
        lambda x, y: x * torch.div(x, y, rounding_mode="floor") + torch.div(x, 0.3, rounding_mode="trunc"),
        [rand(6, 12), rand(12)],
    ),
    "distances": (lambda x, y: torch.cdist(x, y, 1.0) + torch.cdist(x, y), [rand(2, 6, 4), rand(2, 12, 4)]),
    "windows": (lambda x: x.unfold(1, 3, 2).tanh(), [rand(6, 8, 12)]),
    "diagonals": (lambda x: x.diagonal(0, 1, 3) * 2, [rand(6, 5, 12, 5)]),
    "columns of windows": (
        lambda x: F.fold(F.unfold(x, 3, padding=1).tanh(), (4, 4), 3, padding=1),
        [rand(6, 12, 4, 4)],
    ),
    "frequencies": (
        lambda x, w: torch.fft.irfft(torch.fft.rfft(x, dim=1) * torch.complex(w, w + 1).conj(), n=8, dim=1),
        [rand(6, 8, 12), rand(5, 12)],
    ),
    "gated linear units": (lambda x: F.glu(x, 1), [rand(12, 8)]),
    "turning by complex factors": (
        lambda x, a: torch.view_as_real(torch.view_as_complex(x) * torch.view_as_complex(a)),
        [rand(12, 6, 2), rand(6, 2)],
    ),
    "parametric relu": (lambda x, w: F.prelu(x, w), [rand(12, 6, 4), rand(6)]),
    "robust losses": (lambda x, y: F.smooth_l1_loss(x, y) + F.huber_loss(x, y), [rand(12, 6), rand(12, 6)]),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
        [rand(2, 4, 6, 8), rand(2, 4, 6, 8) + 1, rand(2, 4, 6, 8) - 1],
    ),
    "causal attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        [rand(2, 4, 6, 8), rand(2, 4, 6, 8) + 1, rand(2, 4, 6, 8) - 1],
    ),
    "attention with a mask": (
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m),
        [rand(2, 4, 6, 8), rand(2, 4, 6, 8) + 1, rand(2, 4, 6, 8) - 1, rand(2, 1, 6, 6)],
    ),
    "attention over a sequence": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
        [rand(2, 2, 12, 8), rand(2, 2, 12, 8) + 1, rand(2, 2, 12, 8) - 1],
    ),
    "causal attention over a sequence": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.7),
        [rand(2, 2, 24, 8), rand(2, 2, 24, 8) + 1, rand(2, 2, 24, 8) - 1],
    ),
    "causal attention of grouped queries over a sequence": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),
        [rand(1, 6, 40, 8), rand(1, 3, 40, 8) + 1, rand(1, 3, 40, 8) - 1],
    ),
    "flash attention over a sequence": (
        lambda q, k, v: torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, scale=0.3)[0],
        [rand(2, 2, 12, 8).float(), rand(2, 2, 12, 8).float() + 1, rand(2, 2, 12, 8).float() - 1],
    ),
    "causal flash attention of grouped queries over a sequence": (
        lambda q, k, v: torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, is_causal=True)[0],
        [rand(2, 4, 24, 8).float(), rand(2, 2, 24, 8).float() + 1, rand(2, 2, 24, 8).float() - 1],
    ),
    "flash attention": (
        lambda q, k, v: torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, is_causal=True)[0],
        [rand(12, 4, 6, 8), rand(12, 4, 6, 8) + 1, rand(12, 4, 6, 8) - 1],
    ),
    "flash attention of grouped queries": (
        lambda q, k, v: torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, scale=0.3)[0],
        [rand(4, 12, 6, 8), rand(4, 6, 5, 8) + 1, rand(4, 6, 5, 8) - 1],
    ),
    "flash attention of an odd number of groups of queries": (
        lambda q, k, v: torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, scale=0.3)[0],
        [rand(3, 10, 6, 8), rand(3, 5, 5, 8) + 1, rand(3, 5, 5, 8) - 1],
    ),
    "group norm of an odd batch": (lambda x, w, b: F.group_norm(x, 3, w, b), [rand(11, 6, 4), rand(6), rand(6)]),
    "memory-efficient attention": (
        lambda q, k, v, m: torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, m, compute_log_sumexp=True)[
            0
        ],
        [rand(4, 12, 6, 8), rand(4, 12, 5, 8) + 1, rand(4, 12, 5, 8) - 1, rand(4, 12, 6, 5)],
    ),
    "memory-efficient attention without a mask": (
        lambda q, k, v: torch.ops.aten._scaled_dot_product_efficient_attention(
            q, k, v, None, compute_log_sumexp=True, is_causal=True
        )[0],
        [rand(12, 4, 6, 8), rand(12, 4, 6, 8) + 1, rand(12, 4, 6, 8) - 1],
    ),
    "cuDNN's attention": (
        lambda q, k, v, m: torch.ops.aten._scaled_dot_product_cudnn_attention(
            q, k, v, m.detach(), compute_log_sumexp=True
        )[0],
        [rand(4, 12, 6, 8), rand(4, 12, 5, 8) + 1, rand(4, 12, 5, 8) - 1, rand(4, 1, 6, 5)],
    ),
    "attention of another backend": (
        lambda q, k, v, m: torch.ops.aten._scaled_dot_product_fused_attention_overrideable(q, k, v, m)[0],
        [rand(4, 12, 6, 8), rand(4, 12, 5, 8) + 1, rand(4, 12, 5, 8) - 1, rand(4, 12, 6, 5)],
    ),
    "a time step of an LSTM": (
        lambda x, h, c, *biases: sum(one.sin() for one in torch.ops.aten._thnn_fused_lstm_cell(x, h, c, *biases)[:2]),
        [rand(6, 20), rand(6, 20) + 1, rand(6, 5), rand(20), rand(20) - 1],
    ),
    "a time step of an LSTM without biases": (
        lambda x, h, c: torch.ops.aten._thnn_fused_lstm_cell(x, h, c)[0],
        [rand(12, 20), rand(12, 20) + 1, rand(12, 5)],
    ),
    "a time step of a GRU": (
        lambda x, h, c, *biases: torch.ops.aten._thnn_fused_gru_cell(x, h, c, *biases)[0],
        [rand(6, 15), rand(6, 15) + 1, rand(6, 5), rand(15), rand(15) - 1],
    ),
    "a time step of a GRU without biases": (
        lambda x, h, c: torch.ops.aten._thnn_fused_gru_cell(x, h, c)[0],
        [rand(12, 15), rand(12, 15) + 1, rand(12, 5)],
    ),
    "slices, selects, stacks": (
        lambda x: torch.stack([x[:, 1:3].sum(), x[:, 0].sum(), x.cumsum(1).select(0, 1).sum()]),
        [rand(4, 6)],
    ),
    "norms": (lambda x, y: torch.stack([x.norm(), y.norm()]).norm() * x.sum(), [rand(4, 6), rand(6)]),
    "expand and mean": (lambda x, y: (x + y.expand(4, 6)).mean(1, keepdim=True) * x, [rand(4, 6), rand(1, 6)]),
    "choice": (lambda x, y: torch.where(x > 0, x, y) / (1 + y * y), [rand(4, 6), rand(4, 6)]),
    "look-up by an index": (lambda x, i: x[i] * 2, [rand(12, 4), integers(12, 6)]),
}


@functools.cache
def backward(name, is_odd=False):
    """The graph of an operation and its backward, with its tensors, at odd sizes or not."""
    function, tensors = BACKWARD[name]
    return message(*with_gradients(function, odd(tensors) if is_odd else tensors))


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 7])
@pytest.mark.parametrize("name", BACKWARD)
def test_every_strategy_of_an_operation_and_its_backward_gives_the_whole_result(name, ranks):
    assert ask(*backward(name), ranks)


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


#: Programs of fixed sizes.
FIXED = {
    "a fused projection, split into heads",
    "expand and mean",
    "group norm",
    "group norm of an odd batch",
    "causal attention of grouped queries over a sequence",
    "flash attention of grouped queries",
}


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("name", [name for name in BACKWARD if name not in FIXED])
def test_every_strategy_at_odd_sizes_gives_the_whole_result(name, ranks):
    assert ask(*backward(name, is_odd=True), ranks)


#: Fused optimizers, with the number of moments that each keeps.
OPTIMIZERS = {"adamw": 2, "adam": 2, "sgd": 1, "adagrad": 1}


def fused_update(kind):
    """A fused optimizer's update of one parameter, and its tensors."""
    state = OPTIMIZERS[kind]
    tensors = [rand(8, 6), rand(8, 6) + 1, *[rand(8, 6).abs() for _ in range(state)]]
    lr = torch.tensor(0.1, dtype=torch.float64)

    def update(p, g, *moments):
        op = getattr(torch.ops.aten, f"_fused_{kind}").tensor_lr
        lists = [[m] for m in moments]
        if kind in ("adam", "adamw"):
            common = {
                "beta1": 0.9,
                "beta2": 0.99,
                "weight_decay": 0.1,
                "eps": 1e-8,
                "amsgrad": False,
                "maximize": False,
            }
            made = op([p], [g], *lists, [], [torch.tensor(3.0)], lr=lr, **common)
        elif kind == "sgd":
            common = {"weight_decay": 0.1, "momentum": 0.9, "dampening": 0.0, "nesterov": False, "maximize": False}
            made = op([p], [g], *lists, lr=lr, is_first_step=False, **common)
        else:
            made = op(
                [p], [g], *lists, [torch.tensor(3.0)], lr=lr, lr_decay=0.0, weight_decay=0.1, eps=1e-8, maximize=False
            )
        return [t for group in made for t in group]

    return update, tensors


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_every_strategy_of_a_fused_optimizer_gives_the_whole_result(kind):
    update, tensors = fused_update(kind)
    traced = message(update, tensors)
    for ranks in (2, 3, 7):
        assert f"aten::_fused_{kind}.tensor_lr" in ask(*traced, ranks)


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


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("kind", "gates"), [("LSTM", 4), ("GRU", 3)])
def test_what_stands_for_kernels_of_recurrent_layers_does_what_such_layers_do(kind, gates, bias):
    layer = getattr(torch.nn, f"{kind}Cell")(5, 4, bias=bias, dtype=torch.float64)
    x, *states = (rand(3, size).requires_grad_() for size in ((5, 4, 4) if kind == "LSTM" else (5, 4)))
    wanted = layer(x, tuple(states) if kind == "LSTM" else states[0])
    biases = (layer.bias_ih, layer.bias_hh) if bias else ()
    operation = getattr(torch.ops.aten, f"_thnn_fused_{kind.lower()}_cell")
    found = operation(x @ layer.weight_ih.t(), states[0] @ layer.weight_hh.t(), states[-1], *biases)[: len(states)]
    leaves = [x, *states, *layer.parameters()]
    for one, other in zip(wanted if kind == "LSTM" else [wanted], found, strict=True):
        torch.testing.assert_close(other, one, **TOLERANCE)
        gradients = [torch.autograd.grad(made.sin().sum(), leaves, retain_graph=True) for made in (one, other)]
        torch.testing.assert_close(gradients[1], gradients[0], **TOLERANCE)


_IMAGE, _VOLUME, _SIGNAL = rand(6, 12, 4, 4), rand(6, 12, 4, 4, 4), rand(6, 12, 4)
_MASK = integers(2, 6, 12).bool()
#: Calls of operators that samples and programs above lead past, as PyTorch takes them apart or does them otherwise.
DIRECT = {
    "sub.Scalar": (rand(6, 12), 2.0),
    "rsub.Scalar": (rand(6, 12), 2.0),
    "pow.Scalar": (2.0, rand(6, 12)),
    "square": (rand(6, 12),),
    "clamp": (rand(6, 12), -0.5, 0.5),
    "clamp_min": (rand(6, 12), -0.5),
    "clamp_max": (rand(6, 12), 0.5),
    "clamp_min.Tensor": (rand(6, 12), rand(12)),
    "clamp_max.Tensor": (rand(6, 12), rand(12)),
    "remainder.Scalar": (rand(6, 12), 0.3),
    "fmod.Scalar": (rand(6, 12), 0.3),
    "leaky_relu_backward": (rand(6, 12), rand(6, 12) + 0.1, 0.1, False),
    "native_dropout_backward": (rand(6, 12), _MASK, 2.0),
    "eq.Scalar": (integers(3, 6, 12), 1),
    "ne.Scalar": (integers(3, 6, 12), 1),
    "le.Scalar": (integers(3, 6, 12), 1),
    "ge.Scalar": (integers(3, 6, 12), 1),
    "bitwise_xor.Tensor": (integers(9, 6, 12), integers(9, 12)),
    "bitwise_and.Tensor": (integers(9, 6, 12), integers(9, 12)),
    "bitwise_or.Tensor": (integers(9, 6, 12), integers(9, 12)),
    "bitwise_not": (integers(9, 6, 12),),
    "_to_copy": (rand(6, 12),),
    "alias": (rand(6, 12),),
    "lift_fresh_copy": (rand(6, 12),),
    "zero": (rand(6, 12),),
    "fill.Scalar": (rand(6, 12), 3.0),
    "fill.Tensor": (rand(6, 12), torch.tensor(3.0, dtype=torch.float64)),
    "_thnn_fused_lstm_cell_backward_impl": (*(rand(6, 5) + i for i in range(4)), rand(6, 20), True),
    "_thnn_fused_gru_cell_backward": (rand(6, 5), rand(6, 25), True),
    "zeros": ([6, 12],),
    "full": ([6, 12], 3.0),
    "empty.memory_format": ([6, 12],),
    "reshape": (rand(6, 12), [72]),
    "repeat": (rand(6, 12), [2, 1]),
    "tril": (rand(6, 12),),
    "triu": (rand(6, 12),),
    "_fused_rms_norm": (rand(6, 4, 12), [12], rand(12), 1e-6),
    "_fused_rms_norm_backward": (rand(6, 4, 12), rand(6, 4, 12) + 1, [12], rand(6, 4, 1).abs(), rand(12), [True, True]),
    "scatter.value": (rand(6, 12), 1, integers(12, 6, 3), 2.0),
    "stack": ([rand(6, 12), rand(6, 12) + 1], 1),
    "reflection_pad1d": (_SIGNAL, [1, 1]),
    "replication_pad1d": (_SIGNAL, [1, 1]),
    "replication_pad3d": (_VOLUME, [1] * 6),
    "reflection_pad3d": (_VOLUME, [1] * 6),
    "_adaptive_avg_pool3d_backward": (rand(6, 12, 2, 2, 2), _VOLUME),
    "adaptive_max_pool2d_backward": (rand(6, 12, 2, 2), _IMAGE, integers(16, 6, 12, 2, 2)),
    "reflection_pad1d_backward": (rand(6, 12, 6), _SIGNAL, [1, 1]),
    "replication_pad1d_backward": (rand(6, 12, 6), _SIGNAL, [1, 1]),
    "replication_pad3d_backward": (rand(6, 12, 6, 6, 6), _VOLUME, [1] * 6),
    "reflection_pad3d_backward": (rand(6, 12, 6, 6, 6), _VOLUME, [1] * 6),
    "pixel_shuffle": (rand(6, 12, 8, 3, 3), 2),
    "pixel_unshuffle": (rand(6, 12, 2, 8, 8), 2),
    "_weight_norm_interface": (rand(14, 6, 4), rand(14, 1, 1), 0),
    "_weight_norm_interface_backward": (
        rand(14, 6, 4),
        rand(14, 6, 4) + 1,
        rand(14, 1, 1),
        rand(14, 1, 1).abs() + 1,
        0,
    ),
    "argmin": (rand(6, 12), 1),
    "logsumexp": (rand(6, 12), [1]),
    "histc": (rand(6, 12), 5, 0.0, 1.0),
    "index_copy": (rand(6, 12), 1, torch.tensor([3, 0, 7]), rand(6, 3)),
    "index_fill.int_Scalar": (rand(6, 12), 1, torch.tensor([3, 0, 7]), 2.0),
    "select_scatter": (rand(6, 12, 4), rand(6, 4), 1, 5),
    "upsample_nearest1d_backward": (rand(6, 12, 8), [8], [6, 12, 4]),
    "_upsample_nearest_exact2d_backward": (rand(6, 12, 8, 8), [8, 8], [6, 12, 4, 4]),
    "_upsample_nearest_exact3d_backward": (rand(6, 12, 8, 8, 8), [8, 8, 8], [6, 12, 4, 4, 4]),
    "upsample_nearest3d_backward": (rand(6, 12, 8, 8, 8), [8, 8, 8], [6, 12, 4, 4, 4]),
    "upsample_bicubic2d_backward": (rand(6, 12, 8, 8), [8, 8], [6, 12, 4, 4], False),
    "softshrink": (rand(6, 12), 0.3),
    "hardshrink": (rand(6, 12), 0.3),
    "kthvalue": (rand(6, 12), 2, 0),
    "std_mean.correction": (rand(6, 12), [1]),
    "searchsorted.Tensor": (rand(6, 7).sort().values, rand(6, 12)),
    "isin.Tensor_Tensor": (integers(9, 6, 12), torch.tensor([1, 5])),
    "channel_shuffle": (rand(6, 8, 3, 12), 2),
    "celu": (rand(6, 12), 0.7),
    "selu": (rand(6, 12),),
    "erfinv": (rand(6, 12).tanh(),),
    "lgamma": (rand(6, 12),),
    "digamma": (rand(6, 12),),
    "logit": (rand(6, 12).sigmoid(), 1e-6),
    "i0": (rand(6, 12),),
    "sinc": (rand(6, 12),),
    "heaviside": (rand(6, 12), rand(12)),
    "gcd": (integers(99, 6, 12), integers(99, 12)),
    "lcm": (integers(99, 6, 12), integers(99, 12)),
    "polar": (rand(6, 12).abs(), rand(12)),
    "complex": (rand(6, 12), rand(12)),
    "angle": (torch.complex(rand(6, 12), rand(6, 12)),),
    "conj_physical": (torch.complex(rand(6, 12), rand(6, 12)),),
    "isposinf": (1 / integers(3, 6, 12),),
    "isneginf": (-1 / integers(3, 6, 12),),
    "signbit": (rand(6, 12),),
    "bitwise_left_shift.Tensor": (integers(9, 6, 12), integers(9, 12)),
    "bitwise_right_shift.Tensor": (integers(99, 6, 12), integers(5, 12)),
    "bitwise_and.Scalar": (integers(9, 6, 12), 3),
    "bitwise_or.Scalar": (integers(9, 6, 12), 3),
    "unsafe_split.Tensor": (rand(6, 8, 12), 4, 1),
    "unsafe_split_with_sizes": (rand(6, 8, 12), [4, 4], 1),
    "diagonal": (rand(5, 12, 5), 1, 0, 2),
    "diagonal_backward": (rand(6, 12, 4), [6, 12, 5, 5], 1, 2, 3),
    "diagonal_scatter": (rand(5, 12, 5), rand(12, 4), 1, 0, 2),
    "unfold": (rand(6, 8, 12), 1, 3, 2),
    "unfold_backward": (rand(6, 12, 3, 3), [6, 12, 8], 2, 3, 2),
    "im2col": (rand(6, 12, 5, 5), [3, 3], [1, 1], [1, 1], [2, 2]),
    "col2im": (rand(6, 12 * 9, 9), [5, 5], [3, 3], [1, 1], [1, 1], [2, 2]),
    "nansum": (rand(6, 12).log(), [1]),
    "scatter.reduce": (rand(6, 12), 1, integers(12, 6, 3), rand(6, 3), "multiply"),
    "scatter_reduce.two": (rand(6, 12), 1, integers(12, 6, 3), rand(6, 3), "amax", True),
    "index_fill.int_Tensor": (rand(6, 12), 1, torch.tensor([3, 0, 7]), torch.tensor(2.0, dtype=torch.float64)),
    "index_reduce": (rand(6, 12), 1, torch.tensor([3, 0, 7]), rand(6, 3), "prod", True),
    "bucketize.Tensor": (rand(6, 12), rand(7).sort().values),
    "linalg_inv_ex": (rand(6, 4, 4) + 3 * torch.eye(4, dtype=torch.float64),),
    "linalg_cholesky_ex": (rand(6, 4, 4) @ rand(6, 4, 4).mT + torch.eye(4, dtype=torch.float64),),
    "linalg_cross": (rand(6, 12, 3), rand(6, 12, 3) + 1, -1),
    "_euclidean_dist": (rand(6, 4), rand(12, 4)),
    "_cdist_forward": (rand(2, 6, 4), rand(2, 12, 4), 1.0, None),
    "_cdist_backward": (
        rand(2, 6, 12),
        rand(2, 6, 4),
        rand(2, 12, 4),
        1.0,
        torch.cdist(rand(2, 6, 4), rand(2, 12, 4), 1.0),
    ),
    "_fft_r2c": (rand(6, 8, 12), [1], 0, True),
    "_fft_c2c": (torch.complex(rand(6, 8, 12), rand(6, 8, 12)), [1], 0, True),
    "_fft_c2r": (torch.complex(rand(6, 5, 12), rand(6, 5, 12)), [1], 0, 8),
}


def narrow(*shape):
    """Whole numbers in 8 bits, whose sums of products are exact."""
    return integers(5, *shape).to(torch.float8_e4m3fn)


def whole_numbers(*shape):
    """Whole numbers in 16 bits, of which that is true up to 64 of them."""
    return integers(3, *shape).bfloat16()


_SCALES = 2.0 ** integers(3, 12, 1).float(), 2.0 ** integers(3, 1, 96).float()
_SCALED = narrow(12, 32), narrow(96, 32).t()
_OFFSETS = torch.tensor([16, 48, 96], dtype=torch.int32)
DIRECT |= {
    "_scaled_mm": (*_SCALED, *_SCALES, None, None, torch.float32),
    "_grouped_mm": (whole_numbers(6, 96, 32), whole_numbers(6, 32, 96)),
    "unisono::to_host": (torch.randn(12, 96),),
    "unisono::to_host_over": (torch.randn(12, 96), torch.randn(12, 96)),
    "unisono::from_host": (torch.randn(12, 96), torch.device("cpu")),
    "unisono::wait_copy": (torch.randn(12, 96),),
    "unisono::random_at": (
        torch.tensor([7, 3]),
        [torch.arange(12), torch.arange(96)],
        [12, 96],
        2,
        "uniform",
        0.0,
        1.0,
        24,
        torch.float32,
    ),
}
#: Further calls of operators.
MORE = {
    "one scale for a whole operand": (
        "_scaled_mm",
        (*_SCALED, torch.tensor(0.5), torch.tensor(2.0), None, None, torch.float32),
    ),
    "columns that do not stay aligned": (
        "_scaled_mm",
        (narrow(12, 32), narrow(24, 32).t(), torch.tensor(0.5), torch.tensor(2.0), None, None, torch.float32),
    ),
    "one scale at odd sizes": (
        "_scaled_mm",
        (narrow(11, 32), narrow(80, 32).t(), torch.tensor(0.5), torch.tensor(2.0), None, None, torch.float32),
    ),
    "what is searched for in one row": ("searchsorted.Tensor", (rand(7).sort().values, rand(6, 12))),
    "windows that lie side by side": ("unfold", (rand(6, 12), 1, 3, 3)),
    "numbers of windows in one image": ("im2col", (rand(1, 12, 4, 4), [2, 2], [1, 1], [0, 0], [2, 2])),
    "groups of rows": ("_grouped_mm", (whole_numbers(96, 32), whole_numbers(3, 32, 96), _OFFSETS)),
    "groups of columns": ("_grouped_mm", (whole_numbers(3, 96, 32), whole_numbers(32, 96), _OFFSETS)),
    "groups of inner elements": ("_grouped_mm", (whole_numbers(96, 96), whole_numbers(96, 96), _OFFSETS)),
    "groups of columns and rows": ("_grouped_mm", (whole_numbers(96, 96).t(), whole_numbers(96, 96), _OFFSETS)),
    "one group has all rows": (
        "_grouped_mm",
        (whole_numbers(96, 32).t(), whole_numbers(96, 96)[:, :32], torch.tensor([0, 0, 0, 96], dtype=torch.int32)),
    ),
    "some groups without rows": (
        "_grouped_mm",
        (whole_numbers(96, 32), whole_numbers(5, 32, 96), torch.tensor([0, 16, 16, 96, 96], dtype=torch.int32)),
    ),
}


def expert_layer(rows, up, down, weights):
    """Two products of groups with a gate between them, each row weighted, and what it is to all operands; whole numbers stay whole."""
    leaves = [one.detach().requires_grad_() for one in (rows, up, down, weights)]
    rows, up, down, weights = leaves
    offsets = torch.tensor([5, 5, 7, 8, 17, 17, 24], dtype=torch.int32)
    with torch.enable_grad():
        gate, wide = torch._grouped_mm(rows, up.transpose(1, 2), offsets).chunk(2, -1)
        made = torch._grouped_mm(F.relu(gate) * wide, down.transpose(1, 2), offsets) * weights.unsqueeze(-1)
        return [made, *torch.autograd.grad(made.sum(), leaves)]


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_groups_of_rows_go_through_what_lies_between_their_products(ranks):
    def small(*shape):
        return integers(3, *shape).float() - 1

    tensors = [small(24, 16), small(7, 32, 16), small(7, 16, 16), small(24)]
    # Parts of sums are not whole.
    asked = ask(*message(expert_layer, tensors), ranks, tolerance={"rtol": 1e-5, "atol": 1e-4})
    in_groups = {"aten::_grouped_mm", "aten::relu", "aten::mul.Tensor", "aten::split.Tensor", "aten::unsqueeze"}
    assert in_groups <= asked.keys()


def qualified(name):
    """The name of an operator with its namespace, PyTorch's own where it has none."""
    return name if "::" in name else f"aten::{name}"


def overload(name):
    """PyTorch's operator of a name such as `add.Tensor` or `aten::mm`."""
    namespace, _, rest = qualified(name).partition("::")
    base, _, variant = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), base), variant or "default")


@pytest.mark.parametrize("ranks", [2, 3, 7])
@pytest.mark.parametrize("name", DIRECT)
def test_every_strategy_of_a_call_gives_the_whole_result(name, ranks):
    bytes_, tensors = call_message(overload(name), DIRECT[name])
    asked = ask(bytes_, tensors, ranks)
    # Kernels that refuse empty tensors are not asked on more ranks than there is for.
    assert qualified(name) in asked or (ranks == 7 and name in {"_scaled_mm", "_grouped_mm"})


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("name", DIRECT)
def test_every_strategy_of_a_call_at_odd_sizes_gives_the_whole_result(name, ranks):
    bytes_, tensors = call_message(overload(name), odd(DIRECT[name], 2 if "pad" in name else 9))
    assert qualified(name) in ask(bytes_, tensors, ranks)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("case", MORE)
def test_every_strategy_of_further_calls_gives_the_whole_result(case, ranks):
    name, args = MORE[case]
    bytes_, tensors = call_message(overload(name), args)
    assert f"aten::{name}" in ask(bytes_, tensors, ranks)


def rows():
    return {row["name"]: row for row in msgpack.unpackb(_native.operation_rows())}


#: Rows that claim nothing: their operations run replicated, and no partial value passes; and `empty_like`, which is `empty` before it is
#: planned where its operand is made by an operation.
SILENT = {
    "aten::empty_like",
    "aten::scalar_tensor",
    "aten::arange",
    "aten::arange.start",
    "aten::arange.start_step",
    "aten::linspace",
}

#: What makes rows of experts and exchanges them stands in a rank's graph only, and runs replicated along axes within: asked by the meshes
#: of `test_experts.py`.
OF_EXPERTS = {
    f"unisono::{name}"
    for name in (
        *("group_bounds", "own_rows", "among_zeros", "deal_columns"),
        *("join_columns", "for_each_rank", "exchange_rows"),
    )
}


def test_every_claim_of_every_row_is_asked():
    """What the tests above have asked is noted in `CLAIMS`; where they have not run, the questions are only counted."""

    def missing():
        asked = {operator for (operator, _), is_asked in CLAIMS.items() if is_asked}
        unasked = [claim for claim, is_asked in CLAIMS.items() if not is_asked and not claim[1].endswith(", uneven")]
        # Collectives along another axis are asked by the meshes of `test_plans.py`.
        expected = [name for name, row in rows().items() if row["has_rule"] and "c10d" not in name]
        # `test_every_strategy_of_a_call_gives_the_whole_result` asserts that each of these is asked.
        directly = {qualified(name) for name in DIRECT}
        return [name for name in expected if name not in asked | directly | SILENT | OF_EXPERTS], unasked

    if missing() != ([], []):
        for name, args in DIRECT.items():
            note(*call_message(overload(name), args))
            note(*call_message(overload(name), odd(args, 2 if "pad" in name else 9)))
        for name, args in MORE.values():
            note(*call_message(overload(name), args))
        for kind in OPTIMIZERS:
            note(*message(*fused_update(kind)))
        for name in BACKWARD:
            note(*backward(name))
            if name not in FIXED:
                note(*backward(name, is_odd=True))
        for op in SAMPLED:
            for bytes_ in MESSAGES.get(op.full_name) or [bytes_ for _, (bytes_, _) in traced_samples(op)]:
                note(bytes_, None)
    assert missing() == ([], [])
    # Batches of four are asked with equal and empty shards only; random graphs ask such with unequal ones.
    uneven = [is_asked for (_, claim), is_asked in CLAIMS.items() if claim.endswith(", uneven")]
    assert sum(uneven) > 0.9 * len(uneven)


def written(schema):
    return [position for position, a in enumerate(schema.arguments) if a.alias_info and a.alias_info.is_write]


def plain(schema):
    """The arguments and returns of a PyTorch schema as rows write them."""
    kind = lambda item: re.sub(r"\[\d+\]", "[]", str(item.real_type if hasattr(item, "real_type") else item.type))  # noqa: E731
    text = lambda item: kind(item).replace("SymInt", "int").replace("number", "Scalar")  # noqa: E731
    return [(text(a), a.name) for a in schema.arguments], [text(r) for r in schema.returns]


def parsed(text):
    """A row's schema in the same form."""
    return plain(torch._C.parse_schema("x::x" + text))


@pytest.mark.parametrize("name", rows())
def test_a_row_fits_the_schema_of_this_pytorch(name):
    row, schema = rows()[name], overload(name)._schema
    names = lambda found: ([(kind, name) for kind, name in found[0]], found[1])  # noqa: E731
    (given, returns), (known, made) = names(plain(schema)), names(parsed(row["schema"]))
    # What is a tensor to PyTorch may be an undefined one.
    undefined = [(kind.replace("Optional[Tensor]", "Tensor"), name) for kind, name in known]
    assert all(one in choice for one, *choice in zip(given, known, undefined, strict=False))
    assert len(given) >= len(known)
    assert returns == made
    # The group of a collective is the last argument, whose type differs between releases.
    assert all(a.has_default_value() or a.name == "group_name" for a in schema.arguments[len(known) :])
    arguments = [(a.name, str(a.type)) for a in schema.arguments]
    for form in filter(None, [row["in_place"], row["out"]]):
        other = overload(form)._schema
        theirs = [(a.name, str(a.type)) for a in other.arguments]
        if form == row["in_place"]:
            assert theirs == arguments
            assert written(other) == list(range(len(schema.returns)))
        else:
            assert theirs[:-1] == arguments
            assert written(other) == [len(arguments)]
    if row["with_tensor"]:
        assert len(overload(row["with_tensor"])._schema.arguments) >= len(arguments)
    aliased = any(r.alias_info for r in schema.returns) and not schema.is_mutable
    assert aliased <= (row["memory"] != "own")
    for single, roles in row["list_of"]:
        one = overload(single)._schema.arguments
        assert len(roles) == len(one)
        kept = [(role, a) for role, a in zip(roles, one, strict=True) if role != "neutral"]
        assert len(kept) == len(schema.arguments)
        for (role, _), a in zip(kept, schema.arguments, strict=True):
            assert (role == "each") == str(a.type).startswith("List[Tensor")
            assert (role == "static") == ("Tensor" not in str(a.type))


def test_every_random_operator_of_this_pytorch_is_known_as_such():
    known = rows()
    for schema in torch._C._jit_get_all_schemas():
        name = schema.name + (f".{schema.overload_name}" if schema.overload_name else "")
        if not name.startswith("aten::") or schema.is_mutable:
            continue
        try:
            op = overload(name)
        except AttributeError:
            continue
        if torch.Tag.nondeterministic_seeded not in op.tags:
            continue
        if torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd"):
            continue
        by_schema = any("Generator" in str(a.type) or a.name in ("dropout_p", "dropout") for a in schema.arguments)
        assert known[name]["random"] != "no" if name in known else by_schema, name
