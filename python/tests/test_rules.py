"""Every claim of the operation table, proved on samples, on programs with their backward, and on single calls."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from rule_calls import DIRECT, MORE
from rule_exam import (
    CLAIMS,
    TOLERANCE,
    ask,
    call_message,
    integers,
    message,
    note,
    odd,
    overload,
    qualified,
    rand,
    ranks_for,
    rows,
)
from rule_programs import BACKWARD, FIXED, backward
from torch.testing._internal.common_methods_invocations import op_db

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


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 7])
@pytest.mark.parametrize("name", BACKWARD)
def test_every_strategy_of_an_operation_and_its_backward_gives_the_whole_result(name, ranks):
    assert ask(*backward(name), ranks)


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


#: Rows that claim nothing: their operations run replicated, and no partial value passes; and `empty_like`, which is `empty` before it is
#: planned where its operand is made by an operation.
SILENT = {
    "aten::empty_like",
    "aten::scalar_tensor",
    "aten::arange",
    "aten::arange.start",
    "aten::arange.start_step",
    "aten::linspace",
    "aten::logspace",
    *("aten::eye", "aten::eye.m", "aten::tril_indices", "aten::triu_indices"),
    *(f"aten::{name}_window" for name in ("bartlett", "blackman", "hann", "hamming", "kaiser")),
    *(f"aten::{name}_window.periodic" for name in ("bartlett", "blackman", "hann", "hamming", "kaiser")),
    "aten::kaiser_window.beta",
    "aten::prod",
    "unisono::assignment",
    "unisono::padded_targets",
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
