"""What a step leaves in numbers, texts and lists of the user's is there behind each step, as in eager PyTorch."""

from __future__ import annotations

import collections
import copy
import dataclasses
import json
import math
import time
import types
import warnings
from time import perf_counter as clock

import numpy
import pytest
import torch
from counted import X, refused
from machines import DEAR_COMPUTING
from torch import nn

import unisono
from unisono.errors import StepError


class Meter:
    """An average of numbers, as many scripts have it."""

    def __init__(self) -> None:
        self.val = self.avg = self.sum = self.count = 0

    def update(self, val, n=1):
        assert isinstance(val, int | float)
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count


@dataclasses.dataclass(frozen=True)
class Progress:
    """Where a run is."""

    taken: int = 0
    loss: float = math.inf


class Trainer:
    """Keeps numbers in every place that it has."""

    total = 0

    def __init__(self) -> None:
        self.model = nn.Linear(4, 4)
        self.model.calls = 0  # type: ignore[assignment]
        self.meter, self.n, self.text, self.last, self.metrics = Meter(), 0, "", None, {}
        self.losses: list[float] = []
        self.best, self.moving, self.history = math.inf, 0.0, {"log": []}
        self.sums, self.counter = collections.defaultdict(float), collections.Counter()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.window: collections.deque[float] = collections.deque(maxlen=2)
        self.rows, self.short = 0, collections.deque(maxlen=1)
        self.pair, self.table, self.numbers = (0, 0.5), {"n": 0}, [7, 0]
        self.progress = Progress()

    def seen(self):
        return copy.deepcopy(
            {key: one for key, one in vars(self).items() if key not in ("model", "optimizer")} | {"total": self.total}
        )


def a_meter(one, loss):
    one.meter.update(loss.item(), len(X))


def a_list(one, loss):
    one.losses.append(loss.item())


def a_list_of_dictionaries(one, loss):
    one.n += 1
    one.losses.append({"step": one.n, "loss": round(loss.item(), 3)})


def a_window(one, loss):
    one.window.append(float(loss))


def a_list_that_is_extended(one, loss):
    one.losses += [loss.item(), one.n]
    one.losses.extend(value for value in (1, loss.item()))


def a_count(one, loss):
    one.n += 1


def a_count_of_its_class(one, loss):
    one.total += 1


def a_count_of_a_module(one, loss):
    one.model.calls += 1
    one.n = one.model.calls * 2


def an_entry(one, loss):
    one.table["n"] += 2
    one.numbers[1] += 1


def a_tuple(one, loss):
    one.pair = (one.pair[0] + 1, one.pair[1] * loss.item())


def a_tuple_of_counts(one, loss):
    one.pair = (one.pair[0] + 1, one.pair[1] / 2)


def a_text(one, loss):
    one.n += 1
    one.text = f"step {one.n:03d}: {loss.item():.4f}"


def what_is_not_there(one, loss):
    one.new = loss.item()
    one.newer = one.n + 1
    one.n += 1


def what_was_nothing(one, loss):
    one.last = loss.item()


def a_dictionary_that_is_made_anew(one, loss):
    one.n += 1
    one.metrics = {"loss": loss.item(), "step": one.n, "of": {"what": "training"}}


def entries_that_are_not_there(one, loss):
    one.metrics["loss"] = loss.item()
    one.metrics.update(mean=float(loss) / 4)


def an_object_that_is_replaced(one, loss):
    one.progress = dataclasses.replace(one.progress, taken=one.progress.taken + 1, loss=loss.item())


def what_follows_from_a_count(one, loss):
    one.n += 1
    one.table["n"] = one.n // 2


def the_best(one, loss):
    one.last = one.best = min(one.best, loss.item())
    one.n = max([one.n, 2, one.model.calls])
    one.model.calls += 1


def a_perplexity(one, loss):
    one.perplexity = math.exp(min(loss.item() / 8, 20))
    one.root = round(math.sqrt(one.n) + numpy.log(loss.item()), 2)
    one.n += 1
    one.scale = math.exp(loss.detach() / 100)


def what_numpy_makes_of_it(one, loss):
    one.last = float(numpy.mean([loss.item(), one.n]))
    one.n += 1


def a_counter(one, loss):
    one.sums["loss"] += loss.item()
    one.sums["n"] += 1
    one.counter["steps"] += 1


def a_learning_rate(one, loss):
    one.rate = one.optimizer.param_groups[0]["lr"]
    one.losses.append([loss.item(), one.optimizer.param_groups[0]["lr"]])


def a_history(one, loss):
    one.n += 1
    one.history["log"].append({**{"loss": round(loss.item(), 4)}, "step": one.n})
    one.moving = 0.9 * one.moving + 0.1 * loss.item()


def tensors_in_a_list(one, loss):
    one.n += 1
    one.losses.append(loss.detach())
    one.history["log"].append({"loss": loss.detach() * 2, "step": one.n})
    one.losses.extend([loss.detach().expand(3), one.n])


def containers_of_tensors(one, loss):
    one.metrics = {"loss": loss.detach(), "rows": one.rows, "of": ["training"]}
    one.last = (loss.detach(), "text", one.rows)
    one.history = {"log": [{"loss": loss.detach() + 1, "mean": loss.item()}]}
    one.short.append({"loss": loss.detach(), "rows": one.rows})
    one.window.append((loss.item(), one.rows))


def tensors_in_a_window(one, loss):
    one.window.append(loss.detach())


def by_hooks_of_parameters(one, loss):
    one.n += 1


def a_text_of_json(one, loss):
    one.n += 1
    one.text = json.dumps({"n": one.n, "loss": [round(loss.item(), 2)], "of": "training"}) + "!"


LEAVE = [
    the_best,
    a_perplexity,
    a_text_of_json,
    a_meter,
    a_list,
    a_list_of_dictionaries,
    a_window,
    a_list_that_is_extended,
    a_count,
    a_count_of_its_class,
]
LEAVE += [a_count_of_a_module, an_entry, a_tuple, a_tuple_of_counts, a_text, what_is_not_there, what_was_nothing]
LEAVE += [a_dictionary_that_is_made_anew, entries_that_are_not_there, an_object_that_is_replaced]
LEAVE += [what_follows_from_a_count]


def made(leave):
    torch.manual_seed(0)
    trainer = Trainer()
    optimizer = trainer.optimizer
    if leave is by_hooks_of_parameters:
        norms = trainer.norms = {}  # type: ignore[attr-defined]
        for name, parameter in trainer.model.named_parameters():
            parameter.register_hook(lambda g, name=name: norms.__setitem__(name, [g.norm().item(), g.sum().detach()]))

    def step(x):
        optimizer.zero_grad()
        trainer.rows = len(x)
        loss = trainer.model(x).pow(2).sum()
        loss.backward()
        optimizer.step()
        leave(trainer, loss)
        return loss

    return trainer, optimizer, step


def run(step, trainer, batches):
    return [(step(batch).item(), trainer.seen()) for batch in batches]


@pytest.mark.parametrize("leave", LEAVE)
def test_what_a_step_leaves_is_there_behind_each_step(leave):
    batches = [X, X * 2, X[:1], X, X[:1], X * 3]
    trainer, _, step = made(leave)
    expected = run(step, trainer, batches)
    trainer, optimizer, step = made(leave)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*runs once")
        parallel = unisono.parallelize(
            step, model=trainer.model, optimizer=optimizer, example=(X,), cluster=DEAR_COMPUTING
        )
        assert _rounded(trainer.seen()) == _rounded(made(leave)[0].seen())
        found = run(parallel, trainer, batches)
    for (loss, seen), (wanted, there) in zip(found, expected, strict=True):
        assert loss == pytest.approx(wanted, rel=1e-5)
        assert _rounded(seen) == _rounded(there)
    assert len(parallel._captured) == 2  # one for each number of rows


def _rounded(value):
    value = value.tolist() if isinstance(value, torch.Tensor) else value
    if isinstance(value, float):
        return float(f"{value:.3g}")
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    if isinstance(value, list | tuple | collections.deque):
        return [_rounded(one) for one in value]
    if hasattr(value, "__dict__"):
        return _rounded(vars(value))
    return value


def test_settings_that_are_returned_are_numbers():
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        return optimizer.param_groups[0]["lr"]

    parallel = unisono.parallelize(step, model=model, optimizer=optimizer, example=(X,), cluster=DEAR_COMPUTING)
    first = parallel(X)
    optimizer.param_groups[0]["lr"] = 0.05
    assert (type(first), first, parallel(X)) == (float, 0.1, 0.05)


def test_what_is_returned_and_printed_counts_too(capsys):
    state = types.SimpleNamespace(n=5)

    def step(x):
        state.n += 1
        print(f"step {state.n}: {x.sum():.1f}")
        return x.sum().item() / state.n, state.n

    parallel = unisono.parallelize(step, example=(X,), cluster=DEAR_COMPUTING)
    assert [parallel(X) for _ in range(3)] == [(8 / 6, 6), (8 / 7, 7), (8 / 8, 8)]
    assert capsys.readouterr().out.splitlines() == [f"step {n}: 8.0" for n in (6, 7, 8)]


def test_a_way_through_the_step_counts_for_itself():
    state = types.SimpleNamespace(skipped=0, taken=0)

    def step(x):
        if x.sum() < 0:
            state.skipped += 1
            return x * 0
        state.taken += 1
        return x

    parallel = unisono.parallelize(step, example=(X,), cluster=DEAR_COMPUTING)
    for batch in (X, -X, X, X, -X):
        parallel(batch)
    assert (state.skipped, state.taken) == (2, 3)


def test_a_step_that_ends_with_an_exception_has_counted_until_then():
    seen = []
    for parallel in (False, True):
        state = types.SimpleNamespace(begun=0, done=0, losses=[])

        def step(x, state=state):
            state.begun += 1
            state.losses.append(x.sum().item())
            if x.sum() > 10:
                raise ValueError(f"step {state.begun}: this is much")
            state.done += 1
            return x

        run = unisono.parallelize(step, example=(X,), cluster=DEAR_COMPUTING) if parallel else step
        run(X)
        with pytest.raises(ValueError, match="is much") as caught:
            run(X * 2)
        seen.append((str(caught.value), vars(state)))
    assert seen[0] == seen[1]


def test_what_is_counted_may_be_reset_between_steps():
    meter, losses = Meter(), [1.5] * 2000

    def step(x):
        meter.update(x.sum().item())
        losses.append(x.sum().item())
        return x * 2

    parallel = unisono.parallelize(step, example=(X,), cluster=DEAR_COMPUTING)
    parallel(X)
    meter.__init__()
    losses.clear()
    for _ in range(2):
        parallel(X)
    assert (meter.count, meter.avg, losses) == (2, 8.0, [8.0, 8.0]) and len(parallel._captured) == 1


def test_long_lists_are_filled_as_short_ones():
    state = types.SimpleNamespace(tensors=[0.5] * 1500, tables=[{}] * 1500, plain=[1] * 1500)

    def step(x):
        state.tensors.append(x.sum())
        state.tables.append({"sum": x.sum().item(), "rows": len(x)})
        state.plain.append(2)
        return x * 2

    parallel = unisono.parallelize(step, example=(X,), cluster=DEAR_COMPUTING)
    assert [len(one) for one in vars(state).values()] == [1500] * 3
    for factor in (1, 2):
        parallel(X * factor)
    assert [one.item() for one in state.tensors[1500:]] == [8.0, 16.0]
    assert state.tables[1500:] == [{"sum": 8.0, "rows": 2}, {"sum": 16.0, "rows": 2}] and state.plain[1500:] == [2, 2]


def test_what_was_counted_with_and_is_gone_is_noticed():
    state = types.SimpleNamespace(n=0)

    def step(x):
        state.n += 1
        return x * 2

    parallel = unisono.parallelize(step, example=(X,), on_change="refuse", cluster=DEAR_COMPUTING)
    parallel(X)
    state.n = None
    with pytest.raises(StepError, match=r"`state.n` is None") as caught:
        parallel(X)
    assert caught.value.code == "U0122"


def steered_by_a_mean(meter, x):
    return x * 2 if meter.avg > 3 else x  # used


def steered_by_a_list(meter, x):
    return x * len(meter.losses)  # used


def the_last_of_a_list(meter, x):
    meter.losses.append(x.mean().item())
    print(meter.losses[-1])  # used
    return x


def steered_by_a_text(meter, x):
    return x * 2 if meter.text == "" else x  # used


def computed_with(meter, x):
    return x * meter.avg  # used


@pytest.mark.parametrize(
    "use", [the_last_of_a_list, steered_by_a_mean, steered_by_a_list, steered_by_a_text, computed_with]
)
def test_what_is_kept_must_not_steer_the_next_step(use):
    meter = Meter()
    meter.losses, meter.text = [], ""  # type: ignore[attr-defined]

    def step(x):
        y = use(meter, x)
        meter.update(x.sum().item())
        meter.losses.append(x.sum().item())  # type: ignore[attr-defined]
        meter.text = f"{x.sum().item():.2f}"  # type: ignore[attr-defined]
        return y

    with pytest.raises(StepError) as caught:
        unisono.capture(step, example=(X,))
    assert caught.value.code in ("U0119", "U0101") and "# used" in _line(caught.value.place)
    assert (meter.avg, meter.losses, meter.text) == (0, [], "")  # type: ignore[attr-defined]


def _line(place):
    import linecache

    file, _, number = str(place).rpartition(":")
    return linecache.getline(file, int(number))


def test_what_the_first_step_cannot_have_is_refused_by_name():
    state = types.SimpleNamespace(mean=None)

    def step(x):
        value = x.sum().item()
        state.mean = value if state.mean is None else 0.9 * state.mean + 0.1 * value
        return x * 2

    with pytest.raises(StepError, match=r"`state\.mean` is left by a step, and read by the next one") as caught:
        unisono.capture(step, example=(X,))
    assert caught.value.code == "U0115" and state.mean is None


def test_what_cannot_be_put_where_it_belongs_is_refused_by_its_line():
    state = types.SimpleNamespace(meter=None)

    def step(x):
        state.meter = Meter()
        state.meter.update(x.sum().item())  # here
        return x * 2

    with pytest.raises(StepError, match="with a Meter in it") as caught:
        unisono.capture(step, example=(X,))
    assert caught.value.code == "U0101" and state.meter is None


def test_a_list_that_is_made_longer_each_time_is_refused():
    state = types.SimpleNamespace(losses=[1.0])

    def step(x):
        state.losses = [x.sum().item()] + state.losses  # noqa: RUF005
        return x * 2

    with pytest.raises(StepError, match="is left by a step, and read by the next one") as caught:
        unisono.capture(step, example=(X,))
    assert caught.value.code == "U0115" and state.losses == [1.0]


def test_a_tensor_in_a_dictionary_that_the_next_step_reads_is_refused():
    state = types.SimpleNamespace(logs={})

    def step(x):
        y = x.sum() + state.logs.get("sum", 0)
        state.logs = {"sum": y.detach(), "rows": len(x)}
        return y

    with pytest.raises(StepError, match=r"`state\.logs` is left by a step, and read by the next one") as caught:
        unisono.capture(step, example=(X,))
    assert caught.value.code == "U0115" and state.logs == {}


def test_a_clock_that_may_steer_is_refused():
    state = types.SimpleNamespace(n=0, told=0.0)

    def step(x):
        state.n += 1
        if time.time() - state.told > 1e9:  # used
            state.told = time.time()
        return x.sum()

    with pytest.raises(StepError, match="a clock"):
        unisono.capture(step, example=(X,))


def test_a_count_that_may_steer_is_refused_where_others_are_kept():
    state = types.SimpleNamespace(n=0, losses=[])

    def step(x):
        state.n += 1
        state.losses.append(x.sum().item())
        return x * 2 if state.n % 1000 == 0 else x  # used

    refused(step, named="state.n")
    assert (state.n, state.losses) == (0, [])


def timed(state, x):
    began = time.perf_counter()
    y = (x * 2).sum()
    state.seconds = time.perf_counter() - began
    state.total += state.seconds
    return y


def timed_by_a_name_of_its_own(state, x):
    state.n += 1
    began = clock()
    y = (x * 2).sum().item()
    state.seconds, state.total = clock() - began, clock()
    return y


@pytest.mark.parametrize("step", [timed, timed_by_a_name_of_its_own])
def test_clocks_say_when_a_step_began_and_was_over(step):
    state = types.SimpleNamespace(seconds=0.0, total=0.0, n=0)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*runs once")
        parallel = unisono.parallelize(lambda x: step(state, x), example=(X,), cluster=DEAR_COMPUTING)
    seen = []
    for _ in range(4):
        before = time.perf_counter()
        parallel(X)
        assert 0 < state.seconds <= time.perf_counter() - before
        seen.append((state.seconds, state.total))
    assert len({seconds for seconds, _ in seen}) > 1 and sorted({total for _, total in seen}) == [t for _, t in seen]


def test_a_clock_that_is_read_amid_a_step_is_read_once_with_a_warning():
    state = types.SimpleNamespace(seconds=0.0, n=0)

    def step(x):
        state.n += 1
        y = x * 2
        state.seconds = time.time()
        return y.sum()

    with pytest.warns(RuntimeWarning, match="what it read from a clock") as caught:
        parallel = unisono.parallelize(step, example=(X,), cluster=DEAR_COMPUTING)
    assert any("`state.seconds` (0.0 to" in str(one.message) for one in caught)
    parallel(X)
    parallel(X)
    assert state.n == 2
