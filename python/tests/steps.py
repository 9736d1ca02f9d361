"""Training steps for tests of the session: ordinary models, optimizers and batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from machines import machine
from torch import nn

import unisono

#: A machine on which every collective is worth its while: slow arithmetic, quick links.
EAGER_TO_CUT = machine(memory_bandwidth=1e8, flops=1e8, latency_ns=100.0, bandwidth=1e11, operation_ns=10.0)

#: A machine that computes quickly and talks slowly, so that state is cut only where memory asks for it.
SLOW_LINKS = machine(memory_bandwidth=1e11, flops=1e11, latency_ns=20000.0, bandwidth=1e9, operation_ns=100.0)

#: A machine that sends as slowly as it computes.
SCARCE_LINKS = machine(memory_bandwidth=1e12, flops=1e8, latency_ns=1.0, bandwidth=1e8)


@dataclass
class Training:
    """What a user has: a model, an optimizer or a list of several, a step, and batches."""

    model: nn.Module
    optimizer: Any
    step: Callable[..., Any]
    batches: list[tuple[Any, ...]]


def parallelize(
    training: Training,
    mesh: dict[str, int] | None = None,
    pins: dict[str, dict[str, str]] | None = None,
    example: Any = None,
    **settings: Any,
) -> Any:
    """The step of a training on ranks that are eager to cut; the example is its first batch where none is given."""
    return unisono.parallelize(
        training.step,
        model=training.model,
        optimizer=training.optimizer,
        example=training.batches[0] if example is None else example,
        mesh=mesh,
        pins=pins,
        cluster=EAGER_TO_CUT,
        **settings,
    )


def squares(model: nn.Module, optimizer: torch.optim.Optimizer, set_to_none: bool = True) -> Training:
    """A training that brings what a model of four features makes of ones towards zero."""

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Training(model, optimizer, step, [(torch.ones(2, 4),)])


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        B, T, D = x_BTD.shape
        q, k, v = (
            part.view(B, T, self.heads, D // self.heads).transpose(1, 2)
            for part in self.qkv(self.norm1(x_BTD)).split(D, 2)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_BTD = x_BTD + self.out(mixed.transpose(1, 2).reshape(B, T, D))
        return x_BTD + self.down(F.gelu(self.up(self.norm2(x_BTD))))


class GPT(nn.Module):
    def __init__(self, vocabulary: int = 128, width: int = 32, heads: int = 4, layers: int = 2, length: int = 16):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        x_BTD = self.tokens(tokens_BT) + self.positions(torch.arange(tokens_BT.shape[1], device=tokens_BT.device))
        for block in self.blocks:
            x_BTD = block(x_BTD)
        return self.head(self.norm(x_BTD))


def _sgd(model: nn.Module, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)


#: An epsilon for optimizers that divide a gradient by its own size: far above the noise of a sum in another order, which would otherwise
#: decide the sign of updates where a gradient is nothing but noise.
EPSILON = 1e-4


def _adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3, eps=EPSILON)


def _tokens(count: int, batch: int, length: int = 16) -> list[tuple[torch.Tensor, ...]]:
    return [tuple(torch.randint(0, 128, (batch, length)) for _ in range(2)) for _ in range(count)]


def gpt(count: int = 5, batch: int = 4, adamw: bool = False) -> Training:
    """A small GPT with a step that clips gradients."""
    torch.manual_seed(1)
    model = GPT()
    optimizer = _adamw(model) if adamw else _sgd(model, 0.05)

    def step(tokens_BT: torch.Tensor, targets_BT: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens_BT).flatten(0, 1), targets_BT.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return Training(model, optimizer, step, _tokens(count, batch))


def gpt_adamw() -> Training:
    """The small GPT with AdamW."""
    return gpt(adamw=True)


def _with_experts(name: str, **sizes: int) -> Training:
    """An unmodified language model of transformers with eight experts, of which each token takes two."""
    import transformers

    torch.manual_seed(7)
    kind = getattr(transformers, name)
    sizes |= {"vocab_size": 128, "hidden_size": 32, "num_attention_heads": 4, "num_experts_per_tok": 2}
    model = kind(kind.config_class(**sizes)).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-4)

    def step(tokens: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Training(model, optimizer, step, [(torch.randint(0, 128, (12, 8)),) for _ in range(5)])


def routed(x_TD: torch.Tensor, scores_TE: torch.Tensor, up_EHD: torch.Tensor, down_EDH: torch.Tensor) -> torch.Tensor:
    """A layer of experts as transformers writes it: rows sorted by expert, two products of groups, rows back in their places."""
    weights_TK, experts_TK = torch.topk(scores_TE.softmax(-1), 2, dim=-1)
    experts_S, order_S = torch.sort(experts_TK.reshape(-1))
    offsets_E = torch.histc(experts_S.float(), scores_TE.shape[-1], 0, scores_TE.shape[-1] - 1).cumsum(
        0, dtype=torch.int32
    )
    gate, wide = torch._grouped_mm(x_TD[order_S // 2], up_EHD.transpose(1, 2), offsets_E).chunk(2, -1)
    made_SD = torch._grouped_mm(F.silu(gate) * wide, down_EDH.transpose(1, 2), offsets_E)
    made_SD = made_SD * weights_TK.reshape(-1)[order_S].unsqueeze(-1)
    back_S = torch.empty_like(order_S)
    back_S[order_S] = torch.arange(len(order_S))
    return made_SD[back_S].view(*experts_TK.shape, -1).sum(1)


class Experts(nn.Module):
    """Experts whose products have a width that kernels want left whole."""

    def __init__(self, width: int = 16, inner: int = 24, experts: int = 8, bias: bool = False) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts, bias=bias)
        self.up = nn.Parameter(torch.randn(experts, 2 * inner, width) * 0.1)
        self.down = nn.Parameter(torch.randn(experts, width, inner) * 0.1)

    def forward(self, x_TD: torch.Tensor) -> torch.Tensor:
        return x_TD + routed(x_TD, self.router(x_TD), self.up, self.down)


def few_experts() -> Training:
    """Experts of which two get nearly all tokens, so that ranks have nothing to compute; with clipping."""
    torch.manual_seed(3)
    model = Experts(bias=True)
    with torch.no_grad():
        model.router.bias.copy_(torch.tensor([0.0, 0, 0, 31, 0, 0, 30, 0]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-4)

    def step(x_TD: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x_TD).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        return loss.detach()

    return Training(model, optimizer, step, [(torch.randn(30, 16),) for _ in range(5)])


def mixtral() -> Training:
    """A Mixtral of one layer, whose experts have a width that kernels want left whole."""
    return _with_experts(
        "MixtralForCausalLM",
        intermediate_size=24,
        num_hidden_layers=1,
        num_key_value_heads=2,
        num_local_experts=8,
    )


def qwen3_moe() -> Training:
    """A Qwen3-MoE of one layer."""
    return _with_experts(
        "Qwen3MoeForCausalLM",
        intermediate_size=64,
        num_hidden_layers=1,
        num_key_value_heads=2,
        head_dim=8,
        num_experts=8,
        moe_intermediate_size=32,
    )


def deepseek_v3() -> Training:
    """A DeepSeek-V3 of a dense layer and one of experts, one of them for all tokens."""
    return _with_experts(
        "DeepseekV3ForCausalLM",
        intermediate_size=64,
        num_hidden_layers=2,
        num_key_value_heads=4,
        first_k_dense_replace=1,
        n_routed_experts=8,
        n_group=2,
        topk_group=1,
        n_shared_experts=1,
        moe_intermediate_size=32,
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=8,
    )


def mlp(count: int = 5) -> Training:
    """An MLP with batch norm."""
    torch.manual_seed(2)
    model = nn.Sequential(
        # no biases before the norm: their gradients are zero but for rounding
        nn.Linear(32, 64, bias=False),
        nn.BatchNorm1d(64),
        nn.ReLU(),
        nn.Linear(64, 64, bias=False),
        nn.BatchNorm1d(64),
        nn.ReLU(),
        nn.Linear(64, 8),
    )
    optimizer = _sgd(model, 0.05)

    def step(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        optimizer.zero_grad()
        scores = model(batch["x"])
        loss = F.cross_entropy(scores, batch["y"])
        loss.backward()
        optimizer.step()
        return {"loss": loss.detach(), "right": (scores.argmax(1) == batch["y"]).sum()}

    batches = [({"x": torch.randn(16, 32), "y": torch.randint(0, 8, (16,))},) for _ in range(count)]
    return Training(model, optimizer, step, batches)


def llama(
    count: int = 5,
    batch: int = 4,
    adamw: bool = True,
    heads: tuple[int, int] = (4, 2),
    length: int = 16,
    layers: int = 2,
) -> Training:
    """transformers' LlamaForCausalLM as it comes, with random weights; heads of queries, and of keys and values."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=16 * heads[0],
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=heads[0],
        num_key_value_heads=heads[1],
    )
    model = LlamaForCausalLM(config).train()
    optimizer = _adamw(model) if adamw else _sgd(model, 0.05)

    def step(input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(input_ids=input_ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Training(model, optimizer, step, _tokens(count, batch, length))


def long_llama(heads: tuple[int, int] = (4, 2), length: int = 48, count: int = 5) -> Training:
    """A Llama of one sample, of which ranks can share the sequence."""
    return llama(count, 1, heads=heads, length=length)


def long_llama_of_three_heads() -> Training:
    """The same with heads that two or four ranks do not divide."""
    return long_llama((3, 3))


def long_llama_of_five_heads() -> Training:
    """The same with heads that no number of ranks divides, and one of keys and values."""
    return long_llama((5, 1))


def video(heads: int = 3) -> Training:
    """diffusers' WanTransformer3DModel as it comes on one video of 12 frames."""
    from diffusers import WanTransformer3DModel

    torch.manual_seed(4)
    sizes = {"num_attention_heads": heads, "attention_head_dim": 24, "ffn_dim": 64, "num_layers": 2}
    channels = {"in_channels": 4, "out_channels": 4, "text_dim": 32, "freq_dim": 32, "rope_max_seq_len": 32}
    model = WanTransformer3DModel(patch_size=(1, 2, 2), cross_attn_norm=True, **sizes, **channels).train()
    optimizer = _adamw(model)

    def step(noisy: torch.Tensor, time: torch.Tensor, text: torch.Tensor, clean: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        found = model(hidden_states=noisy, timestep=time, encoder_hidden_states=text).sample
        loss = F.mse_loss(found, clean)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def batch() -> tuple[torch.Tensor, ...]:
        noisy, clean = torch.randn(2, 1, 4, 12, 4, 4)
        return noisy, torch.tensor([300]), torch.randn(1, 8, 32), clean

    return Training(model, optimizer, step, [batch() for _ in range(5)])


def odd_gpt(count: int = 5) -> Training:
    """A small GPT with AdamW in which no number of ranks divides the batch, the vocabulary or the heads; some targets do not count."""
    torch.manual_seed(5)
    model = GPT(vocabulary=101, width=35, heads=5, layers=2, length=11)
    optimizer = _adamw(model)

    def step(tokens_BT: torch.Tensor, targets_BT: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens_BT).flatten(0, 1), targets_BT.flatten(), ignore_index=-1)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    batches = []
    for _ in range(count):
        tokens, targets = (torch.randint(0, 101, (7, 11)) for _ in range(2))
        # All of the last sample, which is what the last of three ranks has.
        targets[-1], targets[:, :2] = -1, -1
        batches.append((tokens, targets))
    return Training(model, optimizer, step, batches)


def odd_means(count: int = 5) -> Training:
    """Losses that are means over seven samples, of a model with a bias of five elements and norms of the batch."""
    torch.manual_seed(6)
    model = nn.Sequential(
        nn.Linear(9, 13, bias=False), nn.BatchNorm1d(13), nn.GELU(), nn.Linear(13, 7), nn.LayerNorm(7), nn.Linear(7, 5)
    )
    optimizer = _adamw(model)

    def step(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        made = model(x)
        loss = F.mse_loss(made, y) + F.smooth_l1_loss(made, y) + F.l1_loss(made, y) + F.huber_loss(made, y)
        loss = loss + F.binary_cross_entropy_with_logits(made, y.sigmoid()) + (weight * made).mean()
        loss = loss + F.nll_loss(F.log_softmax(made, 1), weight.argmax(1)) + made.var() + made.norm()
        loss.backward()
        optimizer.step()
        return loss.detach()

    batches = [(torch.randn(7, 9), torch.randn(7, 5), torch.randn(7, 5)) for _ in range(count)]
    return Training(model, optimizer, step, batches)


def adversaries(count: int = 3) -> Training:
    """A generator and its critic, each with an optimizer of its own."""
    torch.manual_seed(4)
    generator, critic = nn.Linear(6, 48), nn.Sequential(nn.Linear(48, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
    of_critic = torch.optim.Adam(critic.parameters(), lr=1e-2, eps=EPSILON)
    of_generator = torch.optim.RMSprop(generator.parameters(), lr=1e-2, eps=EPSILON)

    def step(real: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        noise = torch.sin(numbers[:, None] * torch.arange(1, 7))
        of_critic.zero_grad()
        told = F.softplus(-critic(real.flatten(1))).mean() + F.softplus(critic(generator(noise).detach())).mean()
        told.backward()
        of_critic.step()
        of_generator.zero_grad()
        fooled = F.softplus(-critic(generator(noise))).mean()
        fooled.backward()
        of_generator.step()
        return (told + fooled).detach()

    model = nn.ModuleDict({"generator": generator, "critic": critic})
    batches = [(torch.randn(8, 3, 4, 4), torch.randint(0, 8, (8,))) for _ in range(count)]
    return Training(model, [of_critic, of_generator], step, batches)
