"""Balancing side by side in one run: quality as makespan over its lower bound, time as processor time.

    python benches/balance.py            # about two minutes; --quick leaves the slow baselines out

Against: the order of arrival, sorted and strided, greedy (least loaded rank first), and the largest differencing method
of Karmarkar and Karp in Python, the kind of program that training frameworks ship.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import sys
import time

import numpy as np

from unisono.data import BatchSampler, Cost, SequenceParallel, balance

TEXT_WIDTH, VIDEO_WIDTH = 24576, 29696  # `linear` of a 7B language model and of a 14B video model; `quadratic` is 1


def text_lengths(count: int, seed: int, sigma: float = 1.1) -> np.ndarray:
    """Long-tail text: log-normal, median 342 tokens."""
    drawn = np.random.default_rng(seed).lognormal(np.log(342), sigma, count)
    return np.clip(drawn, 32, 131072).astype(np.int64)


def video_lengths(count: int, seed: int) -> np.ndarray:
    """Clips of 1-8.5 s at 16 frames per second in four resolutions, as Wan 2.1 makes tokens of them (4 x 16 x 16)."""
    rng = np.random.default_rng(seed)
    per_frame = rng.choice([480 * 832, 720 * 1280, 480 * 480, 320 * 320], size=count, p=[0.4, 0.2, 0.2, 0.2]) // 256
    frames = np.clip(rng.gamma(2.0, 4.0, count) * 16 / 4, 1, 41).astype(np.int64)
    return per_frame * frames


def karmarkar_karp(costs: list[int], ranks: int) -> list[int]:
    """Loads by rank: repeatedly merges the two partial partitions of largest spread, largest sums to smallest."""
    ids = itertools.count()
    heap = [
        (-cost, next(ids), [0] * (ranks - 1) + [cost], [[] for _ in range(ranks - 1)] + [[i]])
        for i, cost in enumerate(costs)
    ]
    heapq.heapify(heap)
    while len(heap) > 1:
        _, _, sums_a, items_a = heapq.heappop(heap)
        _, _, sums_b, items_b = heapq.heappop(heap)
        sums = [a + b for a, b in zip(sums_a, reversed(sums_b), strict=True)]
        items = [a + b for a, b in zip(items_a, reversed(items_b), strict=True)]
        order = sorted(range(ranks), key=sums.__getitem__)
        sums, items = [sums[i] for i in order], [items[i] for i in order]
        heapq.heappush(heap, (sums[0] - sums[-1], next(ids), sums, items))
    return heap[0][2]


def greedy(costs: list[int], ranks: int) -> list[int]:
    """Each sample to the least loaded rank, as it comes."""
    heap = [(0, rank) for rank in range(ranks)]
    for cost in costs:
        load, rank = heap[0]
        heapq.heapreplace(heap, (load + cost, rank))
    return [load for load, _ in heap]


def arrival(costs: list[int], ranks: int) -> list[int]:
    """Equal stretches of the order of arrival."""
    return [int(part.sum()) for part in np.array_split(np.asarray(costs), ranks)]


def strided(costs: list[int], ranks: int) -> list[int]:
    """Sorted, then dealt out."""
    falling = sorted(costs, reverse=True)
    return [sum(falling[rank::ranks]) for rank in range(ranks)]


def timed(function, *arguments):
    start = time.process_time()
    result = function(*arguments)
    return result, (time.process_time() - start) * 1e3


def best_solve(problem: dict, repeats: int = 25) -> tuple[dict, float]:
    """A plan and the least of several solving times, without reading and writing JSON."""
    plans = [balance(problem) for _ in range(repeats)]
    return plans[0], min(plan["solve_ms"] for plan in plans)


def partitions(quick: bool) -> None:
    print("\npartition: makespan / lower bound, and milliseconds")
    print(
        f"{'case':<22}{'arrival':>9}{'strided':>9}{'greedy':>9}{'KK':>9}{'':>10}{'lpt':>9}{'auto':>9}{'':>10}{'local':>9}"
    )
    cases = [("text", text_lengths, TEXT_WIDTH), ("video", video_lengths, VIDEO_WIDTH)]
    for (name, lengths_of, linear), (count, ranks) in itertools.product(
        cases, [(512, 8), (512, 64), (4096, 64), (4096, 512)]
    ):
        lengths = lengths_of(count, 7)
        problem = {"lengths": lengths.tolist(), "ranks": ranks, "cost": {"linear": linear, "quadratic": 1}}
        costs = [linear * length + length * length for length in problem["lengths"]]
        auto, auto_ms = best_solve(problem)
        bound = auto["lower_bound"]
        others = [max(way(costs, ranks)) / bound for way in (arrival, strided, greedy)]
        slow = quick and count * ranks > 100_000
        kk, kk_ms = ([float("nan")], float("nan")) if slow else timed(karmarkar_karp, costs, ranks)
        tiers = {tier: balance({**problem, "tier": tier})["makespan"] / bound for tier in ("lpt", "local_search")}
        print(
            f"{name} {count:>6} / {ranks:<5}   "
            + "".join(f"{ratio:9.4f}" for ratio in others)
            + f"{max(kk) / bound:9.5f}{kk_ms:8.0f}ms{tiers['lpt']:9.5f}{auto['makespan'] / bound:9.5f}{auto_ms:8.3f}ms"
            + f"{tiers['local_search']:9.5f}"
        )
    for count, ranks in ((4096, 512), (65536, 4096)):
        for name, lengths_of, linear in cases:
            lengths = lengths_of(count, 11).tolist()
            plan, ms = best_solve({"lengths": lengths, "ranks": ranks, "cost": {"linear": linear, "quadratic": 1}})
            print(f"{name} {count} over {ranks}: {ms:.3f} ms, {1 + plan['gap']:.5f} of the bound")


def equal_counts() -> None:
    print("\nequal count: makespan / lower bound")
    for name, lengths, linear in (
        ("text", text_lengths(4096, 7), TEXT_WIDTH),
        ("video", video_lengths(4096, 7), VIDEO_WIDTH),
    ):
        for ranks in (8, 64, 256):
            problem = {"lengths": lengths.tolist(), "ranks": ranks, "cost": {"linear": linear, "quadratic": 1}}
            print(f"{name} 4096 / {ranks:<4} {1 + balance({**problem, 'equal_count': True})['gap']:.5f}")


MODELS = {  # linear, quadratic (operations), bytes per token, tokens that a rank can hold
    "Wan 14B": (24.33e9, 819200, 4915200, 12288, video_lengths),
    "HunyuanVideo": (13.59e9, 737280, 4423680, 12288, video_lengths),
    "7B text": (12.88e9, 262144, 3145728, 8192, text_lengths),
}


DEGREES = [1, 2, 4, 8, 16, 32, 64]


def grouped(name: str, lengths: np.ndarray, ranks: int, objective: str) -> tuple[dict, float]:
    """The problem of a model on nodes of eight, and its ideal: the sum of the least rank-times over the ranks, in seconds."""
    linear, quadratic, size, cap, _ = MODELS[name]
    network = SequenceParallel(DEGREES, size, [(8, 300e9), (64, 40e9)], rate=4e14, passes=4)
    problem = {
        "lengths": lengths.tolist(),
        "ranks": ranks,
        "cost": Cost(int(linear), quadratic).settings(),
        "tokens_per_rank": cap,
        "objective": objective,
        **network.settings(),
    }
    work = np.full(len(lengths), np.inf)
    for degree in DEGREES:
        seconds = 4 * (linear * lengths + quadratic * lengths.astype(float) ** 2) / (degree * 4e14)
        if degree > 1:
            bandwidth = 300e9 if degree <= 8 else 40e9
            seconds += size * lengths / degree * (degree - 1) / degree / bandwidth
        fits = (lengths <= cap * degree) & (degree <= ranks)
        work = np.where(fits, np.minimum(work, degree * seconds), work)
    return problem, work.sum() / ranks


def sequence_parallel() -> None:
    print(
        "\nsequence-parallel groups: makespan / ideal (sum of least rank-time / ranks), bound / ideal, and milliseconds"
    )
    for objective, name, (count, ranks) in itertools.product(
        ("free", "lockstep"), MODELS, ((512, 64), (4096, 512), (512, 512), (32768, 4096))
    ):
        if objective == "lockstep" and ranks > 512:
            continue
        problem, ideal = grouped(name, MODELS[name][4](count, 7), ranks, objective)
        plan, ms = best_solve(problem, 5)
        ratio, bound = plan["makespan"] / ideal, plan["lower_bound"] / ideal
        print(f"{objective:<9}{name:<13}{count:>6} / {ranks:<5}{ratio:9.4f}{bound:9.4f}{ms:9.1f} ms")


def many_groups() -> None:
    """Every model on clips and on text with tails of three weights: how many plans are above the goal, or proved to have to be."""
    kinds = {
        "clips": video_lengths,
        **{f"text, sigma {s}": lambda count, seed, s=s: text_lengths(count, seed, s) for s in (1.1, 1.3, 1.5)},
    }
    print(
        "\nmany problems with groups: plans, of these above the goal, of these with a bound below it; makespan / bound"
    )
    for objective, (kind, lengths_of), (count, ranks) in itertools.product(
        ("free", "lockstep"), kinds.items(), ((512, 64), (1024, 64), (4096, 512), (512, 512))
    ):
        goal = 1.03 if objective == "free" else 1.05 if kind == "clips" else 1.10
        above, open_, gaps = 0, [], []
        for name, seed in itertools.product(MODELS, range(1, 6)):
            problem, ideal = grouped(name, lengths_of(count, seed), ranks, objective)
            plan = balance(problem)
            gaps.append(plan["makespan"] / plan["lower_bound"])
            if plan["makespan"] > goal * ideal:
                above += 1
                if plan["lower_bound"] <= goal * ideal:
                    open_.append(f"{name} {seed}: {plan['makespan'] / ideal:.4f} ({plan['lower_bound'] / ideal:.4f})")
        size = f"{count} / {ranks}"
        print(
            f"{objective:<9}{kind:<16}{size:<11}{len(gaps):>4}{above:>4}{len(open_):>4}   "
            f"median {np.median(gaps):.4f}, most {max(gaps):.4f}  {'; '.join(open_)}"
        )


def stream_bound(costs: np.ndarray, batch: int, ranks: int) -> float:
    """What no order of steps can beat, over the sum of means: for each number of steps, that many are as long as their
    longest samples (no less than every ``batch``-th of all), and the ranks share the work of the others."""
    falling = np.sort(costs)[::-1].astype(float)
    done = np.add.reduceat(falling, np.arange(0, len(falling), batch)).cumsum()
    long, total = falling[::batch].cumsum(), falling.sum()
    return max(total / ranks, (long + (total - done) / ranks).max()) / (total / ranks)


def delay_bound(costs: np.ndarray, batch: int, ranks: int, window: int, delay: int) -> float:
    """What no order of steps can beat that holds no sample back for more than ``delay`` windows, over the sum of means:
    samples that arrive further apart are in different steps, each as long as its sample, and the ranks share the work of
    what no so many steps could hold."""
    tops = np.maximum.reduceat(costs, np.arange(0, len(costs), batch * window)).astype(float)
    falling = np.sort(costs)[::-1].astype(float)
    held = np.add.reduceat(falling, np.arange(0, len(falling), batch)).cumsum()
    best = mean = falling.sum() / ranks
    chains = np.zeros(len(tops) + 1)  # by windows seen: the most that so many samples, far apart, add up to
    for steps in range(1, len(tops) + 1):
        longer = np.full(len(tops) + 1, -np.inf)
        for window_index, top in enumerate(tops):
            before = chains[max(window_index - delay, 0)]
            longer[window_index + 1] = max(longer[window_index], top + before)
        chains = longer
        best = max(best, chains[-1] + (falling.sum() - held[steps - 1]) / ranks)
    return best / mean


def streams() -> None:
    print("\nstreams, 128 samples per step over 64 ranks: sum of steps / sum of means, and what no order can beat")
    for name, lengths, linear in (
        ("text, 4,096 samples", text_lengths(4096, 7), TEXT_WIDTH),
        ("text", text_lengths(65536, 2), TEXT_WIDTH),
        ("text", text_lengths(65536, 5), TEXT_WIDTH),
        ("text, 262,144", text_lengths(262144, 11), TEXT_WIDTH),
        *((f"sigma 1.5, seed {seed}", text_lengths(262144, seed, 1.5), TEXT_WIDTH) for seed in (3, 4, 5)),
        ("video", video_lengths(65536, 2), VIDEO_WIDTH),
    ):
        costs = lengths * (linear + lengths)
        bound = stream_bound(costs, 128, 64)
        for window, delay in ((1, 0), (16, 0), (16, 7), (16, 15), (16, 31), (16, 63)):
            sampler = BatchSampler(
                lengths,
                batch_size=128,
                cost=Cost(linear, 1),
                ranks=64,
                rank=0,
                window=window,
                delay=delay,
                shuffle=False,
            )
            plans = list(sampler.plans())
            ratio = sum(plan.makespan for plan in plans) / sum(np.mean(plan.loads) for plan in plans)
            waited = max(plan.delay for plan in plans)
            told = f"window {window:>2}, delay {delay:>2}: {ratio:.4f} (waited at most {waited} windows)"
            within = max(bound, delay_bound(costs, 128, 64, window, delay))
            print(f"{name:<20}{told}, bound {within:.4f}, with any delay {bound:.4f}")


def phases() -> None:
    print("\ntwo phases (encoder, language model), one assignment: sum of the slowest ranks / sum of means")
    for count, ranks in ((512, 8), (4096, 64), (4096, 256)):
        rng = np.random.default_rng(5)
        images = np.where(rng.random(count) < 0.6, rng.integers(256, 4096, count), 0)
        text = rng.integers(100, 2000, count) + images // 4
        costs = [{"linear": 7680, "quadratic": 1}, {"linear": TEXT_WIDTH, "quadratic": 1}]
        plan = balance({"lengths": np.stack([images, text], 1).tolist(), "ranks": ranks, "cost": costs})
        means = sum(np.mean(loads) for loads in plan["phase_loads"])
        print(f"{count:>5} / {ranks:<4} {plan['makespan'] / means:.5f}  {plan['solve_ms']:.1f} ms")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="leave the slow baselines out")
    options = parser.parse_args()
    partitions(options.quick)
    equal_counts()
    sequence_parallel()
    many_groups()
    streams()
    phases()
    print(json.dumps({"benchmark": "balance", "numpy": np.__version__}), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
