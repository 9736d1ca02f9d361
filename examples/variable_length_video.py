"""Trains a small Wan video transformer on clips of mixed resolution and length, split naively and balanced.

    python examples/variable_length_video.py --ranks 3 --out out/variable_length_video.html

Both runs see the same clips in every step and start from the same weights, so their loss curves must be equal.  Each
rank measures the processor time of its own forward and backward passes; what it lacks to the slowest rank of a step is
idle time (processor time, so that other programs on the machine do not count; the wall clock's figure is printed
beside it).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from diffusers import WanTransformer3DModel

from unisono.data import BatchSampler, Cost, fit_cost

SHAPES = [  # (latent frames, height, width): a patch is 1 x 2 x 2 latents, so tokens = frames * height * width / 4
    (1, 16, 16),
    (3, 16, 16),
    (3, 24, 16),
    (5, 16, 24),
    (7, 24, 24),
    (9, 24, 24),
    (11, 24, 32),
]
SHARES = [0.30, 0.22, 0.16, 0.12, 0.09, 0.07, 0.04]
TEXT_TOKENS, TEXT_WIDTH = 8, 16


def make_clips(count: int) -> list[tuple[int, int, int]]:
    """The shapes of a dataset: many short clips, few long ones."""
    chosen = np.random.default_rng(3).choice(len(SHAPES), size=count, p=SHARES)
    return [SHAPES[index] for index in chosen]


def tokens_of(shape: tuple[int, int, int]) -> int:
    """Tokens of a clip."""
    frames, height, width = shape
    return frames * height * width // 4


def make_model() -> WanTransformer3DModel:
    """The real class in a small configuration."""
    torch.manual_seed(0)
    return WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=4,
        attention_head_dim=24,
        in_channels=4,
        out_channels=4,
        text_dim=TEXT_WIDTH,
        freq_dim=32,
        ffn_dim=192,
        num_layers=2,
        cross_attn_norm=True,
        qk_norm="rms_norm_across_heads",
        rope_max_seq_len=64,
    )


def clip_loss(model: WanTransformer3DModel, index: int, shape: tuple[int, int, int]) -> torch.Tensor:
    """The flow-matching loss of one clip; its noise depends on its index alone."""
    noise = torch.Generator().manual_seed(index)
    clean_BCFHW = torch.randn(1, 4, *shape, generator=noise)
    noise_BCFHW = torch.randn(1, 4, *shape, generator=noise)
    text_BTD = torch.randn(1, TEXT_TOKENS, TEXT_WIDTH, generator=noise)
    share = torch.rand((), generator=noise)
    mixed_BCFHW = (1 - share) * clean_BCFHW + share * noise_BCFHW
    predicted_BCFHW = model(
        hidden_states=mixed_BCFHW, timestep=(share * 1000).reshape(1), encoder_hidden_states=text_BTD, return_dict=False
    )[0]
    return torch.nn.functional.mse_loss(predicted_BCFHW, noise_BCFHW - clean_BCFHW)


def measure_cost() -> Cost:
    """Times every shape and fits the cost of a clip to its tokens."""
    model, measured = make_model(), []
    for repeat in range(4):
        for index, shape in enumerate(SHAPES):
            start = time.process_time()
            clip_loss(model, index, shape).backward()
            if repeat:
                measured.append(([tokens_of(shape)], time.process_time() - start))
    fit = fit_cost(measured)
    print(
        f"fitted: {fit.linear * 1e6:.2f} us per token, {fit.quadratic * 1e9:.2f} ns per squared token, "
        f"{fit.constant * 1e3:.2f} ms per clip, {fit.r_squared:.3f} of the variance explained",
        file=sys.stderr,
    )
    return fit.cost()


def naive_split(samples: tuple[int, ...], rank: int, ranks: int) -> list[int]:
    """What a distributed sampler does: every rank takes as many clips, whatever their lengths."""
    return list(samples[rank::ranks])


def train(rank: int, options: argparse.Namespace, cost: Cost, folder: str) -> None:
    """One rank: a naive and a balanced run."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=options.ranks)
    clips = make_clips(options.steps * options.batch)
    results = {}
    for way in ("naive", "balanced"):
        model = make_model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        # Loaded and timed once, so that the first step is like the others.
        clip_loss(model, 0, SHAPES[-1]).backward()
        tokens = [tokens_of(clip) for clip in clips]
        # Steps of clips drawn at random: windows of like samples would help the naive run as well.
        sampler = BatchSampler(tokens, batch_size=options.batch, cost=cost, seed=1, window=1)
        results[way] = run_steps(model, optimizer, sampler, clips, way)
    if rank == 0:
        Path(folder, "results.json").write_text(json.dumps(results))
    dist.destroy_process_group()


def run_steps(model, optimizer, sampler: BatchSampler, clips, way: str) -> dict:
    """By step: the loss, and every rank's own seconds."""
    losses, cpu, wall = [], [], []
    for plan in sampler.plans():
        own = plan.micro_batches[0].samples if plan.micro_batches else ()
        own = naive_split(plan.samples, sampler.rank, sampler.ranks) if way == "naive" else list(own)
        optimizer.zero_grad()
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        total = torch.zeros(())
        dist.barrier()
        start_cpu, start_wall = time.process_time(), time.perf_counter()
        for index in own:
            # The mean over the clips of the step: each counts 1 / clips, whichever rank it is on.
            loss = clip_loss(model, index, clips[index]) / len(plan.samples)
            loss.backward()
            total += loss.detach()
        spent = torch.tensor([time.process_time() - start_cpu, time.perf_counter() - start_wall])
        everyone = [torch.zeros(2) for _ in range(sampler.ranks)]
        dist.all_gather(everyone, spent)
        flat = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        dist.all_reduce(flat)
        dist.all_reduce(total)
        pieces = flat.split([parameter.numel() for parameter in model.parameters()])
        for parameter, piece in zip(model.parameters(), pieces, strict=True):
            parameter.grad = piece.view_as(parameter)
        optimizer.step()
        losses.append(float(total))
        cpu.append([float(pair[0]) for pair in everyone])
        wall.append([float(pair[1]) for pair in everyone])
    return {"losses": losses, "cpu": cpu, "wall": wall}


def idle_shares(seconds: list[list[float]]) -> list[float]:
    """By rank: of all steps together, the share in which it waits for the slowest."""
    times_SR = np.asarray(seconds)
    total = times_SR.max(axis=1).sum()
    return [float(1 - times_SR[:, rank].sum() / total) for rank in range(times_SR.shape[1])]


def page(results: dict, ranks: int) -> str:
    """Both timelines on one scale, as a page without scripts."""
    longest = max(np.asarray(run["cpu"]).max(axis=1).sum() for run in results.values())
    width, height, gap = 1100, 22, 6
    parts, y = [], 10
    for way, run in results.items():
        times_SR = np.asarray(run["cpu"])
        idle = float(np.mean(idle_shares(run["cpu"])))
        total = times_SR.max(axis=1).sum()
        parts.append(f'<text x="0" y="{y + 14}" class="h">{way}: {total:.2f} s, ranks idle {idle:.1%} of it</text>')
        y += 24
        for rank in range(ranks):
            parts.append(f'<text x="0" y="{y + 15}">rank {rank}</text>')
            at = 0.0
            for step, own in enumerate(times_SR[:, rank]):
                slowest = times_SR[step].max()
                left, busy, whole = (60 + (width - 60) * x / longest for x in (at, at + own, at + slowest))
                title = f"<title>step {step}: busy {own:.3f} s of {slowest:.3f} s</title>"
                shade = "a" if step % 2 else "b"
                for start, end, kind in ((left, busy, shade), (busy, whole, "i")):
                    box = f'x="{start:.1f}" y="{y}" width="{end - start:.1f}" height="{height}"'
                    parts.append(f'<rect {box} class="{kind}">{title}</rect>')
                at += slowest
            y += height + gap
        y += 18
    style = (
        "body{font:14px system-ui;margin:24px;max-width:1120px}text{font:13px system-ui;fill:#222}.h{font-weight:600}"
        ".a{fill:#2b7a78}.b{fill:#3fa796}.i{fill:#f2c6b6}"
    )
    drift = max_drift(results)
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Variable-length video</title><style>{style}</style>"
        "<h1>Variable-length video: the same steps, split naively and balanced</h1>"
        "<p>Green: a rank's own forward and backward passes, shaded by step. Pink: waiting for the slowest rank. "
        f"The loss curves differ by at most {drift:.1e} (relative).</p>"
        f'<svg width="{width}" height="{y}" viewBox="0 0 {width} {y}" role="img">{"".join(parts)}</svg></html>\n'
    )


def max_drift(results: dict) -> float:
    """The largest relative difference of the two loss curves."""
    naive, balanced = (np.asarray(results[way]["losses"]) for way in ("naive", "balanced"))
    return float(np.abs(balanced / naive - 1).max())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--batch", type=int, help="clips per step, over all ranks; 8 per rank if not given")
    parser.add_argument("--out", type=Path, help="write the two timelines as a page")
    options = parser.parse_args()
    options.batch = options.batch or 8 * options.ranks
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    cost = measure_cost()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(train, args=(options, cost, folder), nprocs=options.ranks)
        results = json.loads(Path(folder, "results.json").read_text())
    for way, run in results.items():
        shares = {clock: idle_shares(run[clock]) for clock in ("cpu", "wall")}
        seconds = np.asarray(run["cpu"]).max(axis=1).sum()
        ranks = " ".join(f"{share:.1%}" for share in shares["cpu"])
        print(
            f"{way:<9} {seconds:6.2f} s  idle {np.mean(shares['cpu']):6.1%} (by rank {ranks}; "
            f"by the wall clock {np.mean(shares['wall']):.1%})  last loss {run['losses'][-1]:.6f}"
        )
    print(f"loss curves differ by at most {max_drift(results):.1e}")
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(page(results, options.ranks))
        print(f"wrote {options.out}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
