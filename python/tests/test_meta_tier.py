"""Steps of several families of models for CUDA, without any: captured from parameters on ``meta``, planned on 8 ranks, partitioned,
lowered for a device, and run on tensors without data. So every route, schema and return type of operations that only CUDA has is met."""

from __future__ import annotations

import functools
from collections import Counter

import machines
import msgpack
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import unisono
from unisono._executor import Executor, lower_graph
from unisono._interpret import arguments, bind
from unisono._reference import call, operation

RANKS = 8
META = torch.device("meta")
H100 = machines.machine(memory_bandwidth=3.3e12, flops=4e14, latency_ns=1e4, bandwidth=4e11, operation_ns=4e3)


def tokens(*shape):
    return torch.zeros(shape, dtype=torch.int64, device=META)


class Block(nn.Module):
    """A layer of a transformer as the GPT example has it, with dropout."""

    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm, self.attention = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.out, self.mlp = nn.Linear(width, width), nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width))
        self.down = nn.Linear(4 * width, width)

    def forward(self, x_BTD):
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.attention(self.norm(x_BTD)).chunk(3, -1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x_BTD = x_BTD + F.dropout(self.out(mixed), self.dropout, self.training)
        return x_BTD + F.dropout(self.down(F.gelu(self.mlp(x_BTD))), self.dropout, self.training)


def gpt():
    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(256, 64)
            self.blocks = nn.Sequential(*(Block(64, 8, 0.1) for _ in range(2)))
            self.head = nn.Linear(64, 256)

        def forward(self, x, y):
            return F.cross_entropy(self.head(self.blocks(self.embedding(x))).flatten(0, 1).float(), y.flatten())

    return GPT().bfloat16(), (tokens(16, 32), tokens(16, 32))


def _language(name, **config):
    import transformers

    kind = getattr(transformers, name)
    model = kind(kind.config_class(vocab_size=256, **config)).train()
    return model, (tokens(16, 32), tokens(16, 32))


SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 8}


def llama():
    model, batch = _language("LlamaForCausalLM", num_key_value_heads=8, **SMALL)
    return model.bfloat16(), batch


def bert():
    return _language("BertForMaskedLM", max_position_embeddings=32, **SMALL)


def mixtral():
    model, batch = _language("MixtralForCausalLM", num_key_value_heads=8, num_local_experts=8, **SMALL)
    return model.bfloat16(), batch


def convolutions():
    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            parts = [nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout2d(0.1)]
            self.parts = nn.Sequential(*parts, nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU())
            self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.5), nn.Linear(32, 8))

        def forward(self, x, y):
            return F.cross_entropy(self.head(self.parts(x)), y)

    return Network(), (torch.zeros(16, 3, 16, 16, device=META), tokens(16))


def normed():
    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.up, self.down = nn.RMSNorm(64, eps=1e-5), nn.Linear(64, 128), nn.Linear(128, 8)

        def forward(self, x, y):
            return F.cross_entropy(self.down(F.silu(self.up(self.norm(x)))).float(), y)

    return Network().bfloat16(), (torch.zeros(16, 64, dtype=torch.bfloat16, device=META), tokens(16))


MODELS = {make.__name__: make for make in (gpt, llama, bert, mixtral, convolutions, normed)}
#: What each must meet that only CUDA has.
OWN = {
    "gpt": {"_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_backward", "native_dropout"},
    "llama": {"_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_backward"},
    "bert": {
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_efficient_attention_backward",
        "native_dropout",
    },
    "mixtral": {"_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_backward"},
    "convolutions": {"native_dropout"},
    "normed": {"_fused_rms_norm", "_fused_rms_norm_backward"},
}


@functools.cache
def planned(name):
    """A model's step with clipping and AdamW for CUDA, its plan on 8 ranks, and the program of one rank."""
    with torch.device(META):
        model, batch = MODELS[name]()
    optimizer = torch.optim.AdamW(model.parameters())
    loss_of = (
        (lambda x, y: model(x, y))
        if name in ("gpt", "convolutions", "normed")
        else lambda x, y: model(input_ids=x, labels=y).loss
    )

    def step(x, y):
        optimizer.zero_grad()
        loss = loss_of(x, y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    graph = unisono.capture(step, model=model, optimizer=optimizer, example=batch, device="cuda")
    plan = graph.native.plan(H100, msgpack.packb({"mesh": {"a": RANKS}, "pins": {"batch.*": {"a": "shard(0)"}}}))
    program, _ = graph.native.program(plan, 3)
    return graph, plan, program


def operators(program):
    return Counter(name.removeprefix("aten::") for name in program.operators())


def made(known):
    """A tensor without data of the type that a graph has for a value; numbers of the step are on the host, as they are in a step."""
    dtype = getattr(torch, functional_types()[known["dtype"]])
    return torch.empty_strided(known["shape"], known["strides"], dtype=dtype, device=META)


@functools.cache
def functional_types():
    from unisono._capture.wire import TORCH_DTYPES

    return {name: str(dtype).removeprefix("torch.") for name, dtype in TORCH_DTYPES.items()}


@pytest.mark.parametrize("name", MODELS)
def test_what_only_cuda_has_is_in_the_program_of_a_rank(name):
    _, _, program = planned(name)
    assert OWN[name] <= set(operators(program))


@pytest.mark.parametrize("name", MODELS)
def test_every_instruction_runs_on_tensors_without_data(name):
    _, _, program = planned(name)
    graph = msgpack.unpackb(program.message())["graph"]
    lowered = lower_graph(program, {"axis:a": "0"}, META)
    run = Executor(lowered)
    tensors = {item["name"]: made(graph["values"][item["value"]]["type"]) for item in graph["inputs"]}
    lives = ("parameter", "buffer", "optimizer", "constant")
    run.bind([tensors[item["name"]] for item in graph["inputs"] if item["class"] in lives])
    returned = run([tensors[item["name"]] for item in graph["inputs"] if item["class"] not in lives])
    assert [(one.shape, one.device.type) for one in returned] == [(torch.Size([]), "meta")]


@pytest.mark.parametrize("name", MODELS)
def test_every_result_is_of_the_type_that_the_graph_has_for_it(name):
    _, _, program = planned(name)
    graph = msgpack.unpackb(program.message())["graph"]
    values = {item["value"]: made(graph["values"][item["value"]]["type"]) for item in graph["inputs"]}
    for number in graph["order"]:
        node = graph["nodes"][number]
        op = operation(graph["ops"][node["op"]]["name"])
        bind(node["returns"], call(op, [on_meta(one) for one in arguments(op, node, values, {"axis:a": "0"})]), values)
    for number, value in values.items():
        expected = made(graph["values"][number]["type"])
        assert (value.shape, value.dtype) == (expected.shape, expected.dtype), graph["values"][number]


def on_meta(argument):
    return META if isinstance(argument, torch.device) and argument.type == "cuda" else argument
