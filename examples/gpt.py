"""A byte-level GPT that learns to write Python from the standard library's source files.

python examples/gpt.py                                  # one process
torchrun --nproc-per-node 4 examples/gpt.py             # four; nothing below changes

Tensor names carry their shape: B batch, T position, C channel, H head, V byte value.
"""

import argparse
import sysconfig
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import unisono

BATCH, CONTEXT, CHANNELS, HEADS, LAYERS, BYTES = 64, 64, 64, 4, 2, 256


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(CHANNELS, 3 * CHANNELS)
        self.out = nn.Linear(CHANNELS, CHANNELS)

    def forward(self, x_BTC):
        b, t, c = x_BTC.shape
        q, k, v = self.qkv(x_BTC).chunk(3, dim=-1)
        q_BHTC, k_BHTC, v_BHTC = (y.view(b, t, HEADS, c // HEADS).transpose(1, 2) for y in (q, k, v))
        y_BHTC = F.scaled_dot_product_attention(q_BHTC, k_BHTC, v_BHTC, is_causal=True)
        return self.out(y_BHTC.transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(CHANNELS), nn.LayerNorm(CHANNELS)
        self.attention = Attention()
        self.mlp = nn.Sequential(nn.Linear(CHANNELS, 4 * CHANNELS), nn.GELU(), nn.Linear(4 * CHANNELS, CHANNELS))

    def forward(self, x_BTC):
        x_BTC = x_BTC + self.attention(self.norm1(x_BTC))
        return x_BTC + self.mlp(self.norm2(x_BTC))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(BYTES, CHANNELS), nn.Embedding(CONTEXT, CHANNELS)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(CHANNELS), nn.Linear(CHANNELS, BYTES, bias=False)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, bytes_BT):
        x_BTC = self.tokens(bytes_BT) + self.positions.weight[: bytes_BT.shape[1]]
        return self.head(self.norm(self.blocks(x_BTC)))


def read_text(limit=2_000_000):
    """The source files of the standard library, in the order of their names, as one tensor of bytes."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    text = b"\n".join(file.read_bytes() for file in files)[:limit]
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def batches(text, seed=0):
    """Endless batches: some bytes, and the bytes that follow each of them."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        starts_B = torch.randint(len(text) - CONTEXT, (BATCH, 1), generator=generator)
        bytes_BT = text[starts_B + torch.arange(CONTEXT + 1)].long()
        yield bytes_BT[:, :-1].contiguous(), bytes_BT[:, 1:].contiguous()


@torch.no_grad()
def write(model, prompt="def ", length=240, seed=0):
    """Lets the model go on writing after ``prompt``."""
    generator = torch.Generator().manual_seed(seed)
    written = list(prompt.encode())
    for _ in range(length):
        logits_V = model(torch.tensor([written[-CONTEXT:]]))[0, -1]
        written.append(int(torch.multinomial(F.softmax(logits_V / 0.8, dim=0), 1, generator=generator)))
    return bytes(written).decode(errors="replace")


def make():
    """A new model and the function that trains it for one step."""
    torch.manual_seed(0)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def train_step(bytes_BT, next_BT):
        optimizer.zero_grad()
        logits_BTV = model(bytes_BT)
        loss = F.cross_entropy(logits_BTV.flatten(0, 1), next_BT.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    return model, optimizer, train_step


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps

    model, optimizer, train_step = make()
    data = batches(read_text())
    train_step = unisono.parallelize(train_step, model=model, optimizer=optimizer, example=next(data))
    for number in range(1, steps + 1):
        loss = train_step(*next(data))
        if train_step.ranks.rank == 0 and (number == 1 or number % 20 == 0):
            print(f"step {number:4d}  loss {loss.item():.4f}", flush=True)
    train_step.sync()
    if train_step.ranks.rank == 0:
        print(write(model))


if __name__ == "__main__":
    main()
