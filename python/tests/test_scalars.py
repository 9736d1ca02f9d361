"""Numbers that a step counts or is given, and computes tensors with, are inputs of it: no call asks for another capture."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from counted import captures_where_all_is_as_in_eager, parallel
from torch import nn

from unisono.errors import StepError

CALLS = 8


def anneals(run, loss, number):
    return loss * min(1.0, number / 5) + 0.1


def anneals_by_its_count(run, loss, number):
    run.n += 1
    weight = 2 / (1 + math.exp(-10 * run.n / CALLS)) - 1
    run.seen.append(weight)
    return loss + weight * run.model.weight.pow(2).sum()


def averages_in_place(run, loss, number):
    run.n += 1
    decay = min(0.99, (1 + run.n) / (10 + run.n))
    with torch.no_grad():
        for average, parameter in zip(run.averages, run.model.parameters(), strict=True):
            average.mul_(decay).add_(parameter, alpha=1 - decay)
    return loss


def averages_by_operators(run, loss, number):
    run.n += 1
    for at, parameter in enumerate(run.model.parameters()):
        run.averages[at] *= 1 - 1 / run.n
        run.averages[at] += parameter.detach() / run.n
    return loss


def interpolates(run, loss, number):
    run.n += 1
    with torch.no_grad():
        for average, parameter in zip(run.averages, run.model.parameters(), strict=True):
            average.lerp_(parameter, 1 / run.n)
    return loss


def bounds(run, loss, number):
    out = run.model(run.x).clamp(max=0.1 * number).clamp(-0.5, number)
    return loss + out.sum() + run.x.clamp_min(-number / 4).mean()


def fills(run, loss, number):
    run.filled = [
        torch.full((2, 4), 0.1 * number),
        torch.tensor(number),
        torch.full_like(run.x, number),
        torch.zeros(2, 4).fill_(number),
        torch.full((2,), number),
    ]
    return loss * sum(one.sum() for one in run.filled)


def compares(run, loss, number):
    return loss + torch.where(run.x > 0.3 * number, run.x, torch.zeros(())).sum() + (run.x <= number).sum()


def asks_a_loss_beside_it(run, loss, number):
    return loss * 2 if loss.item() > 0.02 * number else loss


def goes_on_with_its_last_loss(run, loss, number):
    scaled = loss / (1 + run.last)
    run.last = loss.item()
    return scaled


def chooses_by_a_loss_and_its_last(run, loss, number):
    scaled = loss * 2 if loss.item() < run.last + 0.001 else loss
    run.last = loss.item()
    return scaled


def reverses_gradients(run, loss, number):
    return loss + _Reversed.apply(run.model(run.x), number / CALLS).mean()


class _Reversed(torch.autograd.Function):
    """Gradients of the other sign, as domains are told apart with."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -ctx.factor * gradient, None


def embeds_its_time(run, loss, number):
    return loss * torch.sin(torch.arange(4) * math.exp(-number / 10)).sum()


@pytest.mark.parametrize(
    "use",
    [
        anneals,
        anneals_by_its_count,
        averages_in_place,
        averages_by_operators,
        interpolates,
        bounds,
        fills,
        compares,
        asks_a_loss_beside_it,
        goes_on_with_its_last_loss,
        chooses_by_a_loss_and_its_last,
        reverses_gradients,
        embeds_its_time,
    ],
)
def test_a_step_that_computes_tensors_with_a_number_is_captured_for_all_numbers(use, capsys):
    # Numbers of the first call may be the only ones: they become inputs when the second call has others.
    assert captures_where_all_is_as_in_eager(use, [(n,) for n in range(CALLS)], capsys) <= 2


def scales_by_its_maximum(run, loss):
    return loss + run.model(run.x / run.model(run.x).abs().max().item()).sum()


def weighs_by_its_loss(run, loss):
    weight = 1 / (1 + loss.item())
    run.seen.append(weight)
    return loss * weight + math.sqrt(loss.item()) * run.model.weight.sum()


def converts(run, loss):
    return float(loss) * loss + int(100 * loss) * torch.arange(4).sum() + round(loss.item() * 10) * loss


def lists_tensors_without_dimensions(run, loss):
    now = loss.detach()
    made = torch.tensor([now, 2, now * 0.5])
    counts = torch.tensor([(run.x > 0).sum(), 3], device=run.x.device)
    assert made.dtype == torch.float32 and counts.dtype == torch.int64
    return loss / (1 + made.abs().sum()) + loss / (1 + counts.sum())


def clips_by_itself(run, loss):
    def clip():
        norm = sum(one.grad.norm().item() ** 2 for one in run.model.parameters()) ** 0.5
        run.last = norm
        for one in run.model.parameters():
            one.grad.mul_(min(1.0, 0.01 / (norm + 1e-6)))
            one.grad /= 1 + norm

    loss.register_hook(lambda gradient: gradient * 2)
    (loss * 0.5).backward(retain_graph=True)
    clip()
    return loss


def counts_entries(run, loss):
    entries = (run.model(run.x) > 0).sum().item()
    run.n += entries
    return loss / max(entries, 1)


def fills_with_its_loss(run, loss):
    value = loss.item()
    run.filled = [
        torch.full((2, 2), value),
        torch.tensor(value),
        torch.tensor([value, 1, 2 * value]),
        torch.ones(()) * value,
    ]
    return loss + sum(one.sum() for one in run.filled)


def bounds_by_its_mean(run, loss):
    mean = run.model(run.x).mean().item()
    above = torch.where(run.x > mean, run.x, torch.zeros_like(run.x)).clamp(max=mean + 1, min=-1)
    return loss + run.model(above).sum() + (run.x == mean).sum() + (mean < run.x).sum()


def averages_its_loss(run, loss):
    run.last = 0.9 * run.last + 0.1 * loss.item()
    return loss / (1e-3 + run.last)


def adds_with_a_factor(run, loss):
    value = loss.item()
    with torch.no_grad():
        for average, parameter in zip(run.averages, run.model.parameters(), strict=True):
            average.add_(parameter, alpha=-value).lerp_(parameter, 1 / (2 + value))
    return loss


def divides_in_place(run, loss):
    value = 1 + loss.item()
    other = run.averages[0]
    alias = other.view(-1)
    other //= 0.1 * value
    other %= value
    other **= 2 * value / value
    run.filled = [alias.clone(), other.masked_fill(other > 0, value), torch.where(other > 1, value, other)]
    return loss + torch.where(run.model(run.x) > 0, run.x, value).sum()


def sums_a_list(run, loss):
    return loss * sum(one.item() for one in run.model(run.x).mean(1)) + run.model(run.x).mean(1).tolist()[0] * loss


def sets_its_rate_by_its_loss(run, loss):
    run.optimizer.param_groups[0]["lr"] = min(0.05, loss.item())
    return loss


def of_half_precision_by_its_maximum(run, loss):
    scaled = run.x.bfloat16() / run.model(run.x).bfloat16().abs().max().item()
    return loss + run.model(scaled.float()).sum()


@pytest.mark.parametrize(
    "use",
    [
        scales_by_its_maximum,
        weighs_by_its_loss,
        converts,
        lists_tensors_without_dimensions,
        clips_by_itself,
        counts_entries,
        fills_with_its_loss,
        bounds_by_its_mean,
        averages_its_loss,
        adds_with_a_factor,
        divides_in_place,
        sums_a_list,
        sets_its_rate_by_its_loss,
        of_half_precision_by_its_maximum,
    ],
)
def test_tensors_are_computed_with_numbers_that_the_step_has_read(use, capsys):
    # One that finds gradients is captured once more where there are none.
    assert captures_where_all_is_as_in_eager(use, [()] * CALLS, capsys) <= 1 + (use is clips_by_itself)


def takes_a_slope(run, loss):
    return loss * F.leaky_relu(run.x, run.model(run.x).abs().mean().item()).sum()


def takes_a_size(run, loss):
    return loss * torch.ones((run.model(run.x) > 0).sum().item()).sum()


@pytest.mark.parametrize("use", [takes_a_slope, takes_a_size])
def test_a_number_that_is_read_is_refused_where_no_tensor_will_do(use):
    with pytest.raises(StepError, match="reads the value of a tensor") as caught:
        parallel(use)
    file, _, line = str(caught.value.place).rpartition(":")
    assert caught.value.code == "U0101" and f"{use.__code__.co_filename}" == file
    assert int(line) == use.__code__.co_firstlineno + 1


@pytest.mark.parametrize(
    "settings", [{}, {"scale_parameter": False, "relative_step": False, "lr": 0.01}, {"warmup_init": True}]
)
def test_the_optimizer_of_a_library_that_reads_its_counts_is_as_in_eager(settings, capsys):
    from transformers.optimization import Adafactor

    def make(parameters, lr):
        return Adafactor(parameters, **{"lr": None, **settings})

    def plain(run, loss):
        return loss

    assert captures_where_all_is_as_in_eager(plain, [()] * CALLS, capsys, make=make) == 1


def of_whole_numbers(run, loss, number):
    x = torch.arange(4)
    made = [
        x * number,
        x * (number / 2),
        x + number > 3,
        number - torch.ones(()),
        x // (number + 1),
        x % (number + 1),
        x**number,
    ]
    run.seen.append(" ".join(f"{one.dtype} {one.dim()}" for one in made))
    return loss * sum(one.sum() for one in made)


def of_half_precision(run, loss, number):
    x, weight = run.model(run.x).bfloat16(), 0.3 * number + 0.1
    run.filled = [
        *(weight * x, x * weight, weight + x, weight - x, x - weight, weight / x, x / weight),
        *(x.clamp(max=weight), torch.where(x > weight, x, weight), x.masked_fill(x < weight, weight)),
    ]
    run.seen.append(" ".join(str(one.dtype) for one in run.filled))
    return loss + 1e-3 * sum(one.float().mean() for one in run.filled)


def of_half_precision_without_dimensions(run, loss, number):
    x = run.model(run.x).bfloat16()
    run.filled = [x.sum() * (0.1 * number), x.lerp(x + 1, number / 9)]
    return loss + 1e-3 * sum(one.float().mean() for one in run.filled)


def takes_numbers_only(run, loss, number):
    return (
        loss
        * F.dropout(run.x, 0.0 * number).sum()
        * run.x.view(number % 2 + 1, -1).sum(0)[0]
        * torch.zeros(number + 1).numel()
    )


def of_another_kind(run, loss, number):
    return loss * min(2, number / 2)


@pytest.mark.parametrize(
    "use",
    [of_whole_numbers, of_half_precision, of_half_precision_without_dimensions, takes_numbers_only, of_another_kind],
)
def test_types_and_sizes_are_those_that_numbers_give(use, capsys):
    captures_where_all_is_as_in_eager(use, [(n,) for n in range(CALLS)], capsys)


def test_a_number_that_only_grows_beside_a_loss_is_no_input_where_nothing_is_computed_with_it(capsys):
    def counts(run, loss, number):
        run.n += number
        print(f"{run.n}: {number / 3:.2f}")
        return loss

    assert captures_where_all_is_as_in_eager(counts, [(n,) for n in range(CALLS)], capsys) == 2


def rate_of(step):
    return 0.1 * min(1.0, (step + 1) / 4)


def sets_its_rate_by_its_count(run, loss, number):
    for group in run.optimizer.param_groups:
        group["lr"] = rate_of(run.n)
    run.n += 1
    run.seen.append(run.optimizer.param_groups[0]["lr"])
    return loss


def sets_its_rate_by_a_number(run, loss, number):
    run.optimizer.param_groups[0]["lr"] = rate = rate_of(number)
    print(f"rate {rate:.3f}, {number}")
    return loss


def sets_a_rate_for_good(run, loss, number):
    run.optimizer.param_groups[0]["lr"] = 0.02
    return loss


def sets_the_rate_of_the_next(run, loss, number):
    return loss, lambda: run.optimizer.param_groups[0].update(lr=0.5 / (number + 1))


@pytest.mark.parametrize("maker", ["SGD", "AdamW", "Adafactor", "NAdam"])
@pytest.mark.parametrize(
    "use", [sets_its_rate_by_its_count, sets_its_rate_by_a_number, sets_a_rate_for_good, sets_the_rate_of_the_next]
)
def test_a_rate_that_the_step_sets_is_that_of_its_update_and_is_left(use, maker, capsys):
    made = getattr(torch.optim, maker)
    rates = []

    def between(run, number):
        rates.append(run.optimizer.param_groups[0]["lr"])

    captures = captures_where_all_is_as_in_eager(use, [(n,) for n in range(CALLS)], capsys, between, made)
    assert captures <= 2 and rates[:CALLS] == pytest.approx(rates[CALLS:])


def test_a_rate_that_follows_from_what_it_was_is_refused():
    def decays(run, loss):
        run.optimizer.param_groups[0]["lr"] *= 0.9
        return loss

    with pytest.raises(StepError, match=r"changes the learning rate \(`hyper.0.lr`\)") as caught:
        parallel(decays)
    assert caught.value.code == "U0103"


def test_a_rate_that_is_set_beside_a_scheduler_is_refused():
    def both(run, loss):
        run.optimizer.param_groups[0]["lr"] = 0.1
        run.scheduler.step()
        return loss

    with pytest.raises(StepError, match="learning rate of parameter group 0, and calls a scheduler") as caught:
        parallel(both)
    assert caught.value.code == "U0103"


def test_a_division_by_what_is_counted_is_refused_by_python_as_in_eager(capsys):
    def divides(run, loss, number):
        run.n += 1
        return loss / (3 - run.n) if run.n != 3 else loss * nn.functional.relu(torch.tensor(1.0 / (4 - run.n)))

    assert captures_where_all_is_as_in_eager(divides, [(0,)] * CALLS, capsys) == 2
