"""A loop of Hugging Face's accelerate: its loader, its accumulation, its printing; the step is Unisono's.

python examples/accelerated.py                                  # one process
torchrun --nproc-per-node 4 examples/accelerated.py             # four: each loads its shard of every batch
python examples/accelerated.py --plain                          # accelerate alone, the same numbers

Of `accelerator.prepare(model, optimizer, loader, scheduler)` the loader is left: model and optimizer stay those of one device.
"""

import argparse

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import unisono

FEATURES, CLASSES, BATCH, ACCUMULATED, EPOCHS = 16, 4, 16, 2, 2


def make_data(count, seed):
    """Points, each with the class of the corner that is nearest."""
    generator = torch.Generator().manual_seed(seed)
    corners = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(0))
    points = torch.randn(count, FEATURES, generator=generator)
    return TensorDataset(points, torch.cdist(points, corners).argmin(1))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plain", action="store_true", help="accelerate alone")
    arguments = parser.parse_args()

    data = DataLoaderConfiguration(split_batches=True, use_seedable_sampler=True)  # batches of all processes together
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATED, dataloader_config=data)
    set_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4)
    loader = DataLoader(make_data(128, seed=1), BATCH, shuffle=True)
    validation_loader = DataLoader(make_data(64, seed=2), BATCH)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * len(loader) // ACCUMULATED)

    if arguments.plain:
        model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    loader, validation_loader = accelerator.prepare(loader, validation_loader)

    def train_step(points, classes):
        loss = F.cross_entropy(model(points), classes)
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        return loss.detach()

    if not arguments.plain:
        batch = loader.dataset[: BATCH // accelerator.num_processes]
        train_step = unisono.parallelize(train_step, model=model, optimizer=optimizer, example=batch, batch="local")

    for epoch in range(EPOCHS):
        set_seed(epoch)
        model.train()
        for points, classes in loader:
            with accelerator.accumulate(model):
                loss = train_step(points, classes)
            accelerator.print(f"epoch {epoch}  loss {loss.item():.5f}")

        if not arguments.plain:
            train_step.sync()
        model.eval()
        right = 0
        for points, classes in validation_loader:
            with torch.no_grad():
                found = model(points).argmax(1)
            found, wanted = accelerator.gather_for_metrics((found, classes))
            right += (found == wanted).sum().item()
        accelerator.print(f"epoch {epoch}  right {100 * right / 64:.1f} %")

    accelerator.print(f"sum of parameters {sum(p.double().abs().sum().item() for p in model.parameters()):.4f}")
    if arguments.plain:  # PyTorch's DDP must not outlive the process group: it may then wait for gloo's thread for good
        [model] = accelerator.free_memory(model)
    accelerator.end_training()


if __name__ == "__main__":
    main()
