"""Trains a diffusion model of diffusers: noise and time steps drawn in the step, warm-up, clipping, an average of the weights, sampling.

python examples/diffusion.py                                  # one process
torchrun --nproc-per-node 4 examples/diffusion.py             # four
python examples/diffusion.py --plain                          # PyTorch alone, the same numbers

The images are made up: a bright square on a dark ground.  Names carry shapes: B batch, C channel, H height, W width.
"""

import argparse
import copy
import os

import torch
import torch.nn.functional as F
from diffusers import DDIMScheduler, DDPMScheduler, UNet2DModel
from diffusers.optimization import get_cosine_schedule_with_warmup
from torch.utils.data import DataLoader, TensorDataset

import unisono

SIZE, BATCH, EPOCHS, TIMES, AVERAGED = 8, 16, 2, 100, 0.9


def make_images(count, seed):
    """Squares at random places, with values from -1 to 1."""
    generator = torch.Generator().manual_seed(seed)
    images_BCHW = torch.full((count, 3, SIZE, SIZE), -1.0)
    places = torch.randint(SIZE - 4, (count, 2), generator=generator).tolist()
    for image_CHW, (row, column) in zip(images_BCHW, places, strict=True):
        image_CHW[:, row : row + 4, column : column + 4] = torch.rand(3, 1, 1, generator=generator)
    return images_BCHW


def make_model():
    return UNet2DModel(
        sample_size=SIZE,
        block_out_channels=(16, 32),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=8,
        norm_num_groups=8,
    )


@torch.no_grad()
def sample(model, count, seed=0):
    """Images that a model makes of noise in a few steps."""
    scheduler = DDIMScheduler(TIMES)
    scheduler.set_timesteps(5)
    images_BCHW = torch.randn(count, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(seed))
    for time in scheduler.timesteps:
        images_BCHW = scheduler.step(model(images_BCHW, time).sample, time, images_BCHW).prev_sample
    return images_BCHW


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plain", action="store_true", help="PyTorch alone")
    arguments = parser.parse_args()
    first_rank = os.environ.get("RANK", "0") == "0"

    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(make_images(6 * BATCH, seed=1)), BATCH, shuffle=True)
    model = make_model()
    average = copy.deepcopy(model).requires_grad_(False)
    noising = DDPMScheduler(TIMES)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, eps=1e-3)
    warming = get_cosine_schedule_with_warmup(optimizer, 2, EPOCHS * len(loader))

    def train_step(clean_BCHW):
        noise_BCHW = torch.randn_like(clean_BCHW)
        times_B = torch.randint(0, noising.config.num_train_timesteps, (clean_BCHW.shape[0],))
        noisy_BCHW = noising.add_noise(clean_BCHW, noise_BCHW, times_B)
        loss = F.mse_loss(model(noisy_BCHW, times_B).sample, noise_BCHW)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        warming.step()
        with torch.no_grad():
            for averaged, parameter in zip(average.parameters(), model.parameters(), strict=True):
                averaged.lerp_(parameter, 1 - AVERAGED)
        return loss.detach()

    if not arguments.plain:
        batch = tuple(next(iter(loader)))
        train_step = unisono.parallelize(train_step, model=model, optimizer=optimizer, example=batch)

    torch.manual_seed(1)
    for epoch in range(EPOCHS):
        for (images_BCHW,) in loader:
            loss = train_step(images_BCHW)
            if first_rank:
                print(f"epoch {epoch}  loss {loss.item():.4f}  rate {warming.get_last_lr()[0]:.6f}", flush=True)

    if not arguments.plain:
        train_step.sync()
    if first_rank:
        images_BCHW = sample(average.eval(), 4)
        print(f"samples from {images_BCHW.min().item():.3f} to {images_BCHW.max().item():.3f}")
        for name, network in (("parameters", model), ("averages", average)):
            print(f"sum of {name} {sum(p.double().abs().sum().item() for p in network.parameters()):.3f}")


if __name__ == "__main__":
    main()
