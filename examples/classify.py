"""Classifies images as torchvision's reference scripts do: `DistributedSampler`, augmentation, label smoothing, step decay.

python examples/classify.py                                  # one process
torchrun --nproc-per-node 4 examples/classify.py             # four: each loads its shard of every batch
python examples/classify.py --plain                          # PyTorch alone, the same numbers

The network is a small ResNet, the images are made up: a bright square, on one of four patterns.
"""

import argparse
import os

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

import unisono

CLASSES, SIZE, BATCH, EPOCHS = 4, 16, 32, 3


class Images(Dataset):
    """Images with a class each; training images are augmented, by numbers that depend on epoch and image alone."""

    def __init__(self, count, seed, augmented):
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(CLASSES, (count,), generator=generator)
        self.images = 0.5 * torch.randn(count, 3, SIZE, SIZE, generator=generator)
        places = torch.randint(SIZE - 6, (count, 2), generator=generator).tolist()
        for image, label, (row, column) in zip(self.images, self.labels.tolist(), places, strict=True):
            image[:, :: label // 2 + 1, :: label % 2 + 1] += 1.0
            image[:, row : row + 6, column : column + 6] += 1.0
        self.augmented, self.epoch = augmented, 0

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = self.images[index]
        if self.augmented:
            image = augment(image, torch.Generator().manual_seed(self.epoch * len(self) + index))
        return image, self.labels[index]


def augment(image, generator):
    """Crops what was padded by two pixels, and flips every other image."""
    padded = F.pad(image, (2, 2, 2, 2))
    row, column = torch.randint(5, (2,), generator=generator).tolist()
    image = padded[:, row : row + SIZE, column : column + SIZE]
    return image.flip(-1) if torch.rand((), generator=generator) < 0.5 else image


class Block(nn.Module):
    """Two convolutions with batch norm, and a way around them."""

    def __init__(self, channels, out, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.downsample = nn.Identity()
        if stride != 1 or channels != out:
            self.downsample = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)), inplace=True)))
        y += self.downsample(x)
        return F.relu(y, inplace=True)


def make_model():
    stem = (nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
    blocks = (Block(8, 8, 1), Block(8, 16, 2))
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, CLASSES))


def accuracy(logits, labels):
    return 100 * (logits.argmax(1) == labels).float().mean()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plain", action="store_true", help="PyTorch alone")
    arguments = parser.parse_args()
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))

    torch.manual_seed(0)
    training, validation = Images(144, seed=1, augmented=True), Images(64, seed=2, augmented=False)
    sampler = DistributedSampler(training, ranks, rank, shuffle=True)
    loader = DataLoader(training, BATCH // ranks, sampler=sampler)  # the last batch is half as large
    validation_loader = DataLoader(validation, BATCH // ranks, sampler=DistributedSampler(validation, ranks, rank))

    model = make_model()
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4, nesterov=True)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.1)

    def train_step(images, labels):
        logits = model(images)
        loss = criterion(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item(), accuracy(logits, labels).item()

    @torch.inference_mode()
    def evaluate(images, labels):
        logits = model(images)
        return criterion(logits, labels).item(), accuracy(logits, labels).item()

    if not arguments.plain:
        batch = next(iter(loader))
        train_step = unisono.parallelize(train_step, model=model, optimizer=optimizer, example=batch, batch="local")
        model.eval()
        evaluate = train_step.share(evaluate, example=batch)

    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        training.epoch = epoch
        model.train()
        for number, (images, labels) in enumerate(loader):
            loss, right = train_step(images, labels)
            if rank == 0:
                print(f"epoch {epoch}  batch {number}  loss {loss:.4f}  right {right:.1f} %", flush=True)
        scheduler.step()
        model.eval()
        results = torch.tensor([evaluate(*batch) for batch in validation_loader])
        if rank == 0:
            print(f"epoch {epoch}  validation loss {results[:, 0].mean():.4f}  right {results[:, 1].mean():.1f} %")

    if not arguments.plain:
        train_step.sync()
    if rank == 0:
        print(f"sum of parameters {sum(t.double().abs().sum().item() for t in model.state_dict().values()):.3f}")


if __name__ == "__main__":
    main()
