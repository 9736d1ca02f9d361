"""What the passes make of a captured GPT: nodes by optimizer, collectives of a rank by plan family."""

import msgpack
import torch
import torch.nn.functional as F
from torch import nn

import unisono
from unisono import _native

LINK = "{latency_ns = 1.0, bandwidth = 1e12}"
# So slow a device that every split of work pays.
CLUSTER = f"""
version = 1
links = {{all_reduce = {LINK}, all_gather = {LINK}, reduce_scatter = {LINK}, all_to_all = {LINK}}}
[device]
name = "slow"
memory_bytes = 1000000000
memory_bandwidth = 1e8
operation_ns = 1.0
matmul_flops = {{f32 = 1e8}}
"""
FAMILIES = {
    "batch sharding": {"batch.*": "shard(0)", "params.*": "replicate"},
    "sharded state": {"batch.*": "shard(0)", "params.*": "shard(0)"},
}
OPTIMIZERS = ("AdamW", "SGD", "Adagrad", "RMSprop", "Adadelta", "NAdam", "RAdam")


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        b, t, d = x_BTD.shape
        q, k, v = self.qkv(self.norm(x_BTD)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        x_BTD = x_BTD + self.out(mixed)
        return x_BTD + self.down(F.gelu(self.up(self.norm_mlp(x_BTD))))


def capture(optimizer_name: str, layers: int = 8, width: int = 64, vocabulary: int = 128):
    torch.manual_seed(0)
    blocks = [Block(width, 4) for _ in range(layers)]
    model = nn.Sequential(nn.Embedding(vocabulary, width), *blocks, nn.LayerNorm(width), nn.Linear(width, vocabulary))
    optimizer = getattr(torch.optim, optimizer_name)(model.parameters(), lr=1e-3)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    tokens = torch.randint(0, vocabulary, (8, 32))
    return unisono.capture(step, model=model, optimizer=optimizer, example=(tokens, tokens))


def collectives(graph: _native.Graph) -> int:
    lines = graph.text().splitlines()
    return sum("= _c10d_functional::" in line and "wait_tensor" not in line for line in lines)


def main() -> None:
    print("| optimizer | nodes captured | after the passes |\n|---|---|---|")
    for name in OPTIMIZERS:
        _, done = capture(name).native.run_passes()
        print(f"| {name} | {done[0][1]} | {done[-1][2]} |")
    print("\n| AdamW on 2 ranks | collectives planned | after the passes |\n|---|---|---|")
    graph = capture("AdamW")
    for family, patterns in FAMILIES.items():
        pins = {pattern: {"a": placement} for pattern, placement in patterns.items()}
        plan = graph.native.plan(CLUSTER, msgpack.packb({"mesh": {"a": 2}, "pins": pins}))
        before = graph.native.rank_graph(plan, 0)
        after, _ = before.run_passes()
        print(f"| {family} | {collectives(before)} | {collectives(after)} |")


if __name__ == "__main__":
    main()
