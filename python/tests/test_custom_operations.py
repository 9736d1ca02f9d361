"""Operations of the user's own are sharded by rules that are examined, and run replicated without."""

from __future__ import annotations

import re
import warnings

import custom_ranks
import launch
import pytest
import torch
import torch.utils._pytree as pytree
from custom_ranks import gated
from machines import DEAR_COMPUTING

import unisono
from unisono import _rules
from unisono._capture.probe import found_rule
from unisono.errors import ConfigurationError, RuleNotice

RULE = custom_ranks.RULES["unisono_test::gated"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    found = launch.found_by_ranks("custom_ranks:compare", lambda name: tmp_path_factory.mktemp(name))
    return lambda ranks: found(ranks)[0]


@pytest.fixture(autouse=True)
def forgotten():
    """Rules end with the test."""
    before = dict(_rules._RULES)
    yield
    _rules._RULES.clear()
    _rules._RULES.update(before)


def calls(program, name):
    """The types of operands and results at each call of an operation in a graph's text."""
    return [line for line in program.splitlines() if f"= {name}(" in line]


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_registered_operation_is_sharded_forward_and_backward_and_trains_as_one_device(trained, ranks):
    found, shard = trained(ranks)["registered"], {2: 4, 3: 3}[ranks]
    assert found["off"] < 1e-5
    (forward,) = calls(found["program"], "unisono_test::gated")
    (backward,) = calls(found["program"], "unisono_test::gated_backward")
    assert f"f32[{shard}, 4, 8]" in forward
    assert f"f32[{shard}, 4, 12]" in backward
    assert "no row" not in found["explained"]


def test_an_operation_without_a_rule_runs_replicated_and_the_plan_says_what_that_costs(trained):
    found = trained(2)["unknown"]
    assert found["off"] < 1e-5
    (forward,) = calls(found["program"], "unisono_test::gated")
    assert "f32[8, 4, 8]" in forward
    assert re.search(r"1 x unisono_test::gated runs replicated: .* takes [\d.]+ \w+ on every rank", found["explained"])


def captured():
    model, optimizer, step, batch = custom_ranks.training()
    return unisono.capture(step, model=model, optimizer=optimizer, example=(batch,))


def refused(operator, rule, **settings):
    unisono.register_rule(operator, rule, **settings)
    with pytest.raises(ConfigurationError) as caught:
        captured()
    return caught.value


def test_a_wrong_rule_is_refused_with_the_operation_the_dimension_and_the_first_difference():
    error = refused("unisono_test::gated", "b s h, h d -> b s d")
    assert error.code == "U0207"
    assert "unisono_test::gated" in error.message
    assert error.cause is not None
    assert re.search(r"with `h` sharded over 2 ranks, result 0 .* element \[0, 0, 0\] is \S+, and not", error.cause)
    assert error.place is not None
    assert "custom_ranks.py" in error.place
    assert "keep=" in (error.hint or "")


def test_a_tensor_from_outside_of_the_step_is_an_operand_like_others():
    weight_HD = torch.randn(12, 8)
    unisono.register_rule(gated, RULE)
    graph = unisono.capture(lambda x: gated(x, weight_HD, 0.5), example=(torch.randn(4, 8, 12),))
    assert f'rule "{RULE}"' in graph.text()


def test_a_rule_that_shards_only_one_operand_of_two_is_refused():
    error = refused("unisono_test::gated_backward", "b _ _, _ _ _, _ _ -> b _ _, _ _")
    assert "with `b` sharded over 2 ranks, the operation fails" in (error.cause or "")


@pytest.mark.parametrize(
    ("rule", "cause"),
    [
        ("b s h -> b s h", "it has 2 tensors as operands, and the rule is for 1"),
        ("b h, h d -> b d", "operand 0 has 3 dimensions, and the rule says `b h`"),
        ("b s h, h d -> b s d, d", "it has 1 tensors as results, and the rule is for 2"),
    ],
)
def test_a_rule_for_other_tensors_is_refused(rule, cause):
    assert refused("unisono_test::gated", rule).cause == cause


def test_names_that_are_kept_and_dimensions_that_are_left_are_understood():
    unisono.register_rule(gated, "... h, h d -> ... d", keep=["h"])
    text = captured().text()
    assert 'rule "rest* _, _ d -> rest* d"' in text
    assert unisono._native.Graph(captured().message).text() == text


def test_a_rule_changes_what_identifies_the_step():
    unisono.register_rule(gated, None)
    without = captured().fingerprint
    unisono.register_rule(gated, RULE)
    assert captured().fingerprint != without


@pytest.mark.parametrize(
    ("operator", "rule", "what"),
    [
        ("unisono_test::gated", "b s h", "no arrow"),
        ("unisono_test::gated", "b b -> b", "a name comes twice"),
        ("unisono_test::gated", "b s -> b d", "no operand has the dimension `d`"),
        ("unisono_test::gated", "b (s h) -> b", "no name of a dimension"),
        ("gated", "b -> b", "no name of an operation"),
        ("aten::mm", "m k, k n -> m n", "has a rule for `aten::mm` already"),
    ],
)
def test_what_cannot_be_read_is_refused_at_once(operator, rule, what):
    with pytest.raises(ConfigurationError, match=re.escape(what)):
        unisono.register_rule(operator, rule)


@torch.library.custom_op("unisono_test::looked_up", mutates_args=())
def looked_up(table_VD: torch.Tensor, index_B: torch.Tensor) -> torch.Tensor:
    """Rows of a table, the last one where the index is 7."""
    assert bool((index_B > 1).all())
    return table_VD[index_B.clamp(max=6)]


@looked_up.register_fake
def _(table_VD, index_B):
    return table_VD.new_empty(len(index_B), table_VD.shape[1])


@torch.library.custom_op("unisono_test::noisy", mutates_args=())
def noisy(x_BD: torch.Tensor) -> torch.Tensor:
    """Draws random numbers."""
    return x_BD + torch.rand_like(x_BD)


noisy.register_fake(torch.empty_like)


def plan_of(function, *tensors):
    return unisono.capture(function, example=tensors).plan(cluster=DEAR_COMPUTING, mesh={"ranks": 2})


def test_operands_that_the_operation_takes_can_be_given():
    tensors = torch.randn(8, 4), torch.tensor([2, 3, 4, 5])
    unisono.register_rule(looked_up, "_ d, b -> b d")
    with pytest.raises(ConfigurationError, match="wrong") as caught:
        unisono.capture(looked_up, example=tensors)
    assert "sample=" in (caught.value.hint or "")
    unisono.register_rule(looked_up, "_ d, b -> b d", sample=lambda: tensors)
    assert 'rule "_ d, b -> b d"' in unisono.capture(looked_up, example=tensors).text()


def test_a_rule_for_an_operation_that_draws_random_numbers_is_refused():
    unisono.register_rule(noisy, "b d -> b d")
    with pytest.raises(ConfigurationError) as caught:
        unisono.capture(noisy, example=(torch.randn(4, 6),))
    assert "other results when it is called again" in (caught.value.cause or "")


def test_an_examination_leaves_the_users_random_numbers_alone():
    unisono.register_rule(noisy, "b d -> b d")
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    with pytest.raises(ConfigurationError):
        unisono.capture(noisy, example=(torch.randn(4, 6, generator=torch.Generator().manual_seed(1)),))
    assert torch.equal(torch.rand(3), wanted)


def test_a_rule_that_nobody_registered_is_found_by_trying_and_said():
    with pytest.warns(RuleNotice, match="unisono_test::gated_backward") as told:
        text = captured().text()
    assert 'rule "a b _, _ c -> a b c"' in text
    assert 'rule "a b c, a b _, _ c -> a b _, _ c"' in text
    assert any("'a b _, _ c -> a b c'" in str(one.message) for one in told)


def test_an_operation_that_was_registered_to_stay_replicated_is_not_tried():
    for name in custom_ranks.RULES:
        unisono.register_rule(name, None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "rule" not in captured().text()


@pytest.mark.parametrize(
    ("function", "shapes", "rule"),
    [
        (lambda x, y: x + y, [(4, 6), (4, 6)], "a b, a b -> a b"),
        (lambda x, y: x @ y, [(6, 6), (6, 6)], "a b, b c -> a c"),
        (lambda x: x.cumsum(1), [(4, 6)], "a _ -> a _"),
        (lambda x: x.sum(), [(4, 6)], "a b -> "),
        (lambda x: x.softmax(-1), [(2, 3, 5)], "a b _ -> a b _"),
        (lambda x, y: (x.amax(0), x * y), [(4, 6), (6,)], "_ a, a -> a, _ a"),
        (lambda x: x.flatten(), [(4, 6)], None),
        (lambda x: x.relu().mean(), [(4, 6)], None),
        (lambda x: x.sort(0)[0], [(4, 4)], "_ a -> _ a"),
    ],
)
def test_the_dimensions_that_may_be_sharded_are_found(function, shapes, rule):
    tensors = [torch.randn(shape, generator=torch.Generator().manual_seed(3)) for shape in shapes]

    def run(args):
        return pytree.tree_leaves(function(*args))

    found = found_rule(tensors, run(tensors), run, lambda a, b: a.shape != b.shape or not torch.allclose(a, b))
    assert found == rule


@torch.library.custom_op("unisono_test::scaled", mutates_args=())
def scaled(x_BD: torch.Tensor, scale_D: torch.Tensor | None, bias_D: torch.Tensor) -> torch.Tensor:
    """A product, where there is something to multiply by, and a sum."""
    return (x_BD if scale_D is None else x_BD * scale_D) + bias_D


scaled.register_fake(lambda x_BD, scale_D, bias_D: torch.empty_like(x_BD))


@pytest.mark.parametrize("scale", [None, torch.ones(8)])
def test_an_operand_may_be_absent(scale):
    tensors = torch.randn(4, 8), torch.randn(8)
    unisono.register_rule(scaled, "b d, d, d -> b d")
    assert 'rule "b d, d, d -> b d"' in unisono.capture(lambda x, b: scaled(x, scale, b), example=tensors).text()
    unisono.register_rule(scaled, "b d, d, _ -> b d")
    with pytest.raises(ConfigurationError) as caught:
        unisono.capture(lambda x, b: scaled(x, scale, b), example=tensors)
    assert "with `d` sharded over 2 ranks" in (caught.value.cause or "")


def test_a_name_for_dimensions_of_several_sizes_is_refused():
    unisono.register_rule(scaled, "b d, d, b -> b d")
    with pytest.raises(ConfigurationError) as caught:
        unisono.capture(lambda x, b: scaled(x, None, b), example=(torch.randn(4, 8), torch.randn(8)))
    assert caught.value.cause == "`b` stands for dimensions of sizes 4 and 8"


@torch.library.custom_op("unisono_test::joined", mutates_args=())
def joined(parts: list[torch.Tensor]) -> torch.Tensor:
    """One behind the other."""
    return torch.cat(parts)


joined.register_fake(lambda parts: torch.cat([torch.empty_like(one) for one in parts]))


def test_a_list_of_tensors_runs_replicated_and_takes_no_rule():
    tensors = torch.randn(4, 8), torch.randn(2, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "rule" not in unisono.capture(lambda *parts: joined(list(parts)), example=tensors).text()
    unisono.register_rule(joined, "_ d -> _ d")
    with pytest.raises(ConfigurationError) as caught:
        unisono.capture(lambda *parts: joined(list(parts)), example=tensors)
    assert "a list of tensors" in (caught.value.cause or "")
