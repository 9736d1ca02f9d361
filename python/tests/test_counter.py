"""Random numbers by a counter: the same on any mesh, in any number of micro-batches and whatever is computed again."""

from __future__ import annotations

import functools
import json
import re

import counter_ranks
import launch
import pytest
import ranks
import steps
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import unisono
from unisono import _native
from unisono._counter import KEY, key_of, philox
from unisono._executor import Executor, lower
from unisono._message import pack
from unisono._program import ProgramBuilder, slots
from unisono.errors import ConfigurationError, UnsupportedError

#: Counter, key and result, from ``kat_vectors`` of Random123.
PUBLISHED = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]

DISTRIBUTIONS = [
    ("bernoulli", 0.3, 0.0, 0.0),
    ("uniform", -1.0, 2.0, 0.0),
    ("normal", 1.0, 2.0, 1e-5),
    ("exponential", 2.0, 0.0, 1e-6),
    ("cauchy", 0.5, 2.0, 1e-4),
    ("geometric", 0.4, 0.0, 0.0),
    ("integers", -3.0, 9.0, 0.0),
]
#: Those that give whole numbers.
WHOLE = ("bernoulli", "geometric", "integers")
DRAWN = [
    (*one, dtype)
    for one in DISTRIBUTIONS
    for dtype in (torch.float32, torch.bfloat16, *([torch.int64] if one[0] in WHOLE else []))
]


@pytest.mark.parametrize(("counter", "key", "words"), PUBLISHED)
def test_blocks_are_the_published_ones(counter, key, words):
    found = philox([torch.tensor(word) for word in counter], [torch.tensor(word) for word in key])
    assert [int(word) for word in found] == words


def drawn(distribution: str, a: float, b: float, dtype: torch.dtype, index: list[torch.Tensor], key: torch.Tensor):
    """What the executor draws, and what the operation gives by tensors of whole numbers."""
    digits = 8 if dtype == torch.bfloat16 else 24
    numbers = [[7, 5, 48], 3, distribution, a, b, digits, dtype]
    expected = torch.ops.unisono.random_at.default(key, index, *numbers)
    builder = ProgramBuilder()
    given = [builder.slot(one) for one in (key, *index)]
    made = builder.slot(expected)
    builder.inputs += given
    builder.call(torch.ops.unisono.random_at.default, [slots(given[:1])[0], slots(given[1:]), *numbers], {}, [made])
    builder.returns.append(made)
    return Executor(lower(builder.spec()))([key, *index])[0], expected


@pytest.mark.parametrize(("distribution", "a", "b", "error", "dtype"), DRAWN)
def test_the_executor_draws_what_the_operation_says(distribution, a, b, error, dtype):
    whole = [torch.arange(7), torch.arange(5), torch.arange(48)]
    parts = [
        whole,
        [whole[0][2:5], *whole[1:]],
        [whole[0][6:], whole[1][1:3], torch.cat([whole[2][3:9], whole[2][30:]])],
    ]
    key = torch.tensor([-5, 7])
    for part in [*parts, [whole[0][:0], *whole[1:]]]:
        found, expected = drawn(distribution, a, b, dtype, part, key)
        tolerance = max(error, 1e-2 if error and dtype == torch.bfloat16 else 0.0)
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.fixture(scope="module")
def captured():
    return [captured_graph(size) for size in (12, 7)]


def captured_graph(size):
    given = counter_ranks.training(size)
    graph = unisono.capture(
        given.step, model=given.model, optimizer=given.optimizer, example=given.batches[0], rng="counter"
    )
    return graph, given.batches


def lock_step(graph, batches, mesh, pins):
    settings = {"mesh": mesh, "pins": pins}
    plan = graph.native.plan(steps.EAGER_TO_CUT, pack(settings))
    masks, after = ranks.train(graph, plan, mesh, batches, passes=True)
    return plan, masks, after


@functools.cache
def alone(which):
    graph, batches = captured_graph((12, 7)[which])
    return lock_step(graph, batches, {"a": 1}, {})[1:]


@pytest.mark.parametrize(
    ("which", "mesh", "pins"),
    # 7 samples are shared along one axis only.
    [
        (which, *one)
        for which in (0, 1)
        for count in (2, 3, 4)
        for one in counter_ranks.families(count)
        if not which or len(one[0]) == 1
    ],
)
def test_masks_and_parameters_do_not_depend_on_the_mesh(captured, which, mesh, pins):
    graph, batches = captured[which]
    _, masks, after = lock_step(graph, batches, mesh, pins)
    expected, wanted = alone(which)
    assert all(torch.equal(one, other) for one, other in zip(masks, expected, strict=True))
    for name, one in wanted.items():
        torch.testing.assert_close(after[name], one, rtol=0, atol=1e-5, msg=name)


def test_each_rank_draws_its_part_and_the_planner_counts_that(captured):
    graph, batches = captured[0]
    plan, _, _ = lock_step(graph, batches[:1], {"a": 4}, {"batch.*": {"a": "shard(0)"}})
    local = graph.native.rank_graph(plan, 1)

    def flops(native):
        return sum(row[2] for row in native.amounts() if row is not None and row[0] == "unisono::random_at")

    assert flops(local) * 4 == flops(graph.native)


@pytest.mark.parametrize(
    "settings",
    [{"micro_batches": 2}, {"micro_batches": 4}, {"recompute": "full"}, {"recompute": "none"}, {"fuse": True}],
)
def test_slices_recomputation_and_kernels_change_no_mask(settings):
    found = counter_ranks.difference(counter_ranks.trained(**settings), counter_ranks.trained())
    assert found["masks"]
    assert found["losses"] < 1e-5
    assert found["parameters"] < 1e-5


@pytest.mark.parametrize("drop", [F.dropout, lambda h: torch.native_dropout(h, 0.5, True)[0]])
def test_a_checkpoint_draws_again_what_it_drew(drop):
    def given(checkpoints):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 8))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def block(x):
            return model[1](drop(model[0](x)))

        def step(x):
            optimizer.zero_grad()
            loss = (checkpoint(block, x, use_reentrant=False) if checkpoints else block(x)).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return steps.Training(model, optimizer, step, [(torch.randn(4, 8),) for _ in range(2)])

    def trained(checkpoints):
        one = given(checkpoints)
        step = steps.parallelize(one, rng="counter", seed=3)
        return [step(*batch) for batch in one.batches]

    def draws(checkpoints):
        one = given(checkpoints)
        graph = unisono.capture(
            one.step, model=one.model, optimizer=one.optimizer, example=one.batches[0], rng="counter"
        )
        return graph.text().count("= unisono::random_at(")

    assert trained(True) == trained(False)
    assert (draws(True), draws(False)) == (2, 1)


@pytest.mark.parametrize("count", [2, 4])
def test_ranks_draw_what_one_process_draws(tmp_path, count):
    counter_ranks.save(str(tmp_path / "alone.pt"), 12)
    for rank, one in enumerate(
        launch.run("counter_ranks:compare", count, tmp_path, 150, alone=str(tmp_path / "alone.pt"), size=12)
    ):
        assert one.status == 0, one.err[-3000:]
        for case, found in json.loads((tmp_path / f"{rank}.json").read_text()).items():
            assert found["masks"], case
            assert found["losses"] < 1e-5, case
            assert found["parameters"] < 1e-5, case


def dropping(**settings):
    """A step that gives a mask."""
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def step(x):
        optimizer.zero_grad()
        mask = F.dropout(torch.ones(64, 64), 0.25)
        loss = model(x).mean() * mask.mean()
        loss.backward()
        optimizer.step()
        return mask

    example = (torch.ones(2, 4),)
    return unisono.parallelize(
        step, model=model, optimizer=optimizer, example=example, cluster=steps.EAGER_TO_CUT, **settings
    )


def test_steps_and_seeds_draw_other_masks_whatever_the_generator_is_in():
    step, same, other = (dropping(rng="counter", seed=seed) for seed in (1, 1, 2))
    x = torch.ones(2, 4)
    first, second = step(x), step(x)
    torch.rand(5)
    assert torch.equal(same(x), first)
    torch.manual_seed(99)
    assert torch.equal(same(x), second)
    masks = [one.bool().float() for one in (first, second, other(x))]
    for mask in masks:
        assert abs(float(mask.mean()) - 0.75) < 0.03
    for one, two in ((0, 1), (0, 2), (1, 2)):
        both = torch.corrcoef(torch.stack([masks[one].flatten(), masks[two].flatten()]))[0, 1]
        assert abs(float(both)) < 0.08


def test_a_step_goes_on_from_a_checkpoint_with_the_masks_that_come_next(tmp_path):
    x, step = torch.ones(2, 4), dropping(rng="counter", seed=-3)
    step(x)
    step.save(tmp_path / "checkpoint")
    assert step.state_dict()["kept"][KEY].tolist() == [-3, 1]
    expected = [step(x) for _ in range(2)]
    again = dropping(rng="counter", seed=8)
    again(x)
    again.load(tmp_path / "checkpoint")
    assert all(torch.equal(again(x), mask) for mask in expected)


def test_a_call_of_another_shape_draws_the_next_numbers():
    step = dropping(rng="counter", seed=1)
    expected = dropping(rng="counter", seed=1)
    masks = [step(torch.ones(2, 4)), step(torch.ones(3, 4))]
    assert all(torch.equal(expected(torch.ones(2, 4)), mask) for mask in masks)


def test_by_default_masks_are_pytorch_s():
    step = dropping(seed=4)
    torch.manual_seed(4)
    assert torch.equal(step(torch.ones(2, 4)), (torch.manual_seed(4), F.dropout(torch.ones(64, 64), 0.25))[1])
    assert KEY not in step.state_dict().get("kept", {})


def test_a_plan_says_that_masks_of_pytorch_are_drawn_whole_and_how_they_need_not_be():
    given = counter_ranks.training()
    graph = unisono.capture(given.step, model=given.model, optimizer=given.optimizer, example=given.batches[0])
    said = graph.plan(steps.EAGER_TO_CUT, mesh={"a": 4}).explain()
    assert re.search(r'aten::bernoulli\.p runs replicated: .* with `rng="counter"` each rank draws its part', said)


def test_seeds_wrap_around():
    assert key_of(2**64 - 1).tolist() == [-1, 0]
    assert key_of(-(2**63)).tolist() == [-(2**63), 0]


def test_what_is_no_way_to_draw_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="`rng` is 'philox'") as caught:
        dropping(rng="philox")
    assert "counter" in str(caught.value.hint)
    file = tmp_path / "unisono.toml"
    file.write_text("rng = 3")
    with pytest.raises(ConfigurationError, match="`rng` is 3"):
        dropping(config=file)
    file.write_text('rng = "counter"\nseed = 1')
    assert torch.equal(dropping(config=file)(torch.ones(2, 4)), dropping(rng="counter", seed=1)(torch.ones(2, 4)))


def test_what_cannot_draw_by_a_counter_is_refused_by_its_line():
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).mean() * torch.poisson(x).mean()
        loss.backward()
        optimizer.step()
        return loss

    with pytest.raises(UnsupportedError, match="`aten::poisson` cannot draw by a counter") as caught:
        unisono.parallelize(step, model=model, optimizer=optimizer, example=(torch.ones(2, 4),), rng="counter")
    assert caught.value.place == f"{__file__}:{step.__code__.co_firstlineno + 2}"
    assert "torch" in str(caught.value.hint)


@pytest.mark.parametrize(
    "draw",
    [
        torch.rand_like,
        torch.randn_like,
        lambda t: torch.rand(t.shape),
        lambda t: torch.randint_like(t, 3, 9),
        lambda t: torch.randint(-2, 5, t.shape),
        lambda t: torch.empty_like(t).uniform_(-1, 1),
        lambda t: torch.empty_like(t).normal_(1, 2),
        lambda t: torch.empty_like(t).exponential_(),
        lambda t: torch.empty_like(t).cauchy_(),
        lambda t: torch.empty_like(t).geometric_(0.4),
        lambda t: torch.empty_like(t).log_normal_(),
        lambda t: torch.empty_like(t).random_(0, 9),
        lambda t: torch.empty_like(t).bernoulli_(t.detach().sigmoid()),
        lambda t: torch.bernoulli(t.detach().sigmoid()),
        lambda t: torch.normal(t.detach(), 0.5),
        lambda t: torch.normal(0.5, t.detach().exp()),
        lambda t: torch.normal(t.detach(), t.detach().exp()),
        lambda t: F.alpha_dropout(t, 0.4),
        lambda t: F.dropout1d(t, 0.4),
        lambda t: torch.native_dropout(t, 0.4, True)[0],
        lambda t: t.detach()[torch.randperm(6)],
        lambda t: torch.rand(t.shape, dtype=torch.float64),
        lambda t: torch.rand_like(t, dtype=torch.float16),
        lambda t: torch.rand(()),
    ],
)
def test_every_random_operation_is_the_same_on_two_ranks(draw):
    torch.manual_seed(0)
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        hidden = model(x)
        noise = draw(hidden.t().contiguous().t() if x.shape[0] == 6 else hidden)
        loss = (hidden * noise.float().tanh().mean()).square().mean()
        loss.backward()
        optimizer.step()
        return noise.detach()

    batch = (torch.randn(6, 8),)
    graph = unisono.capture(step, model=model, optimizer=optimizer, example=batch, rng="counter")
    (_, expected, wanted), (_, found, after) = (
        lock_step(graph, [batch], {"a": count}, {"batch.*": {"a": "shard(0)"}} if count > 1 else {}) for count in (1, 2)
    )
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(after, wanted, rtol=1e-5, atol=1e-5)
    assert expected[0].float().isfinite().all()


def test_a_step_that_draws_nothing_has_no_key():
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = steps.squares(model, optimizer)
    graph = unisono.capture(training.step, model=model, optimizer=optimizer, example=training.batches[0], rng="counter")
    assert KEY not in [item.name for item in graph.capture.inputs.inputs]
    assert graph.native.drawing_by_counter() is None
    assert isinstance(graph.native, _native.Graph)
