"""Steps of models of many families for CUDA, without any: captured from parameters on ``meta``, planned, partitioned, lowered for a
device, and run on tensors without data. So every route, schema and return type of operations that only CUDA has is met."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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

sys.path.append(str(Path(__file__).parents[2] / "benches"))
import small_models

META = torch.device("meta")
RANKS = 8
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
            self.blocks = nn.Sequential(Block(64, 8, 0.1))
            self.head = nn.Linear(64, 256)

        def forward(self, x, y):
            return F.cross_entropy(self.head(self.blocks(self.embedding(x))).flatten(0, 1).float(), y.flatten())

    return GPT().bfloat16(), (tokens(16, 32), tokens(16, 32))


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


def recurrent():
    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.LSTM(16, 32, 2, batch_first=True, dropout=0.1)
            self.second, self.head = nn.GRU(32, 32, bias=False, batch_first=True), nn.Linear(32, 8)

        def forward(self, x, y):
            return F.cross_entropy(self.head(self.second(self.first(x)[0])[0][:, -1]), y)

    return Network(), (torch.zeros(16, 2, 16, device=META), tokens(16))


@dataclass(frozen=True)
class Training:
    """A step of a model, and how it is planned.

    Attributes:
        make: makes the model and its batch.
        loss: the loss of a model and its batch.
        casts: whether it is in f32 and computed in bf16 by automatic casts; otherwise it is what ``make`` gives.
        pins: placements that are given.
        cluster: the machine.
        device: what the step is captured for.
    """

    make: Callable[[], tuple[nn.Module, Any]]
    loss: Callable[[nn.Module, Any], torch.Tensor]
    casts: bool
    pins: dict[str, dict[str, str]]
    cluster: str
    device: str = "cuda"


def sliced(make, device="cuda"):
    """A model of this file, each rank with a slice of the batch."""
    return Training(make, lambda model, batch: model(*batch), False, {"batch.*": {"a": "shard(0)"}}, H100, device)


#: The settings that say how many layers a model has, and the models that have one of each kind with no fewer than two.
LAYERS = {"num_hidden_layers", "n_layer", "num_layers", "encoder_layers", "decoder_layers"}
OF_TWO_LAYERS = {"GPTNeoForCausalLM", "DeepseekV3ForCausalLM"}


def enlarged(batch):
    """A batch with a row for each rank, made of the rows that all its tensors have."""
    rows = min(one.shape[0] for one in batch.values() if isinstance(one, torch.Tensor))

    def of(one):
        has_rows = isinstance(one, torch.Tensor) and one.shape[0] == rows
        return one.repeat(RANKS // rows, *[1] * (one.dim() - 1)) if has_rows else one

    return {name: of(one) for name, one in batch.items()}


def unmodified(name):
    """A model of transformers or diffusers on a machine where all is worth sharding."""
    settings = small_models.settings(name)
    layers = {} if name in OF_TWO_LAYERS else dict.fromkeys(LAYERS & settings.keys(), 1)
    # Without automatic casts, so that experts are multiplied by the kernels that only bf16 has.
    has_experts = any("experts" in key for key in settings)

    def make():
        model, batch = small_models.build(name, **layers)
        return (model.bfloat16() if has_experts else model), enlarged(batch)

    return Training(make, small_models.loss, not has_experts, {}, machines.DEAR_COMPUTING)


MODELS = {make.__name__: sliced(make) for make in (gpt, convolutions, normed, recurrent)}
MODELS |= {"gpt on an H100": sliced(gpt, "h100")}
MODELS |= {name: unmodified(name) for name in small_models.names()}

FLASH, EFFICIENT = "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention"
CUDNN = "_scaled_dot_product_cudnn_attention"
NORM, DROPOUT, EXPERTS = "_fused_rms_norm", "native_dropout", "_grouped_mm"
LSTM, GRU = "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell"
#: What models have that only CUDA has; others of transformers and diffusers have flash attention and no more.
OWN = {
    "gpt": {FLASH, DROPOUT},
    "gpt on an H100": {CUDNN, DROPOUT},
    "convolutions": {DROPOUT},
    "normed": {NORM},
    "recurrent": {LSTM, GRU, DROPOUT},
    "BertForMaskedLM": {FLASH, DROPOUT},
    "GPT2LMHeadModel": {FLASH, DROPOUT},
    "OPTForCausalLM": {FLASH, DROPOUT},
    "T5ForConditionalGeneration": {EFFICIENT, FLASH, DROPOUT},
    "WhisperForConditionalGeneration": {FLASH},
    "HunyuanVideoTransformer3DModel": {EFFICIENT},
    "LTXVideoTransformer3DModel": {EFFICIENT, FLASH, NORM},
    "FluxTransformer2DModel": {FLASH, NORM},
    "WanTransformer3DModel": {FLASH, NORM},
    **{f"{name}ForCausalLM": {FLASH, EXPERTS} for name in ("Mixtral", "Qwen3Moe", "DeepseekV3")},
    # Attention that is written out, or of which the mask is a product of the step.
    **{f"{name}ForCausalLM": set() for name in ("Bloom", "Falcon", "GPTJ", "GPTNeo", "Gemma2")},
}


@functools.cache
def planned(name):
    """A model's step with clipping and AdamW for CUDA, its plan, and the program of one rank."""
    training = MODELS[name]
    with torch.device(META):
        model, batch = training.make()
    optimizer = torch.optim.AdamW(model.parameters())

    def step(batch):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=training.casts):
            loss = training.loss(model, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    graph = unisono.capture(step, model=model, optimizer=optimizer, example=(batch,), device=training.device)
    settings = {"mesh": {"a": RANKS}, "pins": training.pins}
    plan = graph.native.plan(training.cluster, msgpack.packb(settings))
    program, _ = graph.native.program(plan, RANKS - 1)
    return graph, plan, program


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
    found = {operator.removeprefix("aten::") for operator in program.operators()}
    wanted = OWN.get(name, {FLASH})
    assert {own for own in (FLASH, EFFICIENT, CUDNN, NORM, DROPOUT, EXPERTS, LSTM, GRU) if own in found} == wanted
    backwards = {EXPERTS: EXPERTS, LSTM: f"{LSTM}_backward_impl"}
    assert {backwards.get(own, f"{own}_backward") for own in wanted} <= found


@pytest.mark.parametrize("name", MODELS)
def test_what_only_cuda_has_is_not_whole_on_every_rank_for_lack_of_a_row(name):
    _, plan, _ = planned(name)
    # Dropout draws random numbers, as all ranks do.
    own = (FLASH, EFFICIENT, CUDNN, NORM, EXPERTS, LSTM, GRU)
    assert not [one for one in msgpack.unpackb(plan.content())["without_row"] if any(name in one for name in own)]


@pytest.mark.skipif(not torch.backends.cuda.is_built(), reason="this PyTorch is built without CUDA")
@pytest.mark.parametrize("name", MODELS)
def test_no_attention_goes_by_python(name):
    _, _, program = planned(name)
    lowered = lower_graph(program, {"axis:a": "0"}, torch.device("cuda", 0))
    by_python = {one["op"] for one in msgpack.unpackb(lowered.python_calls("-"))}
    assert not {operator for operator in by_python if "attention" in operator}
    # Those that return numbers beside tensors.
    functions = lowered.counts()[3]
    assert (functions > 0) == bool({FLASH, CUDNN} & OWN.get(name, {FLASH}))


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
        bind(node["returns"], call(op, [on_meta(one) for one in arguments(node, values, {"axis:a": "0"})]), values)
    for number, value in values.items():
        expected = made(graph["values"][number]["type"])
        assert (value.shape, value.dtype) == (expected.shape, expected.dtype), graph["values"][number]


def on_meta(argument):
    return META if isinstance(argument, torch.device) and argument.type == "cuda" else argument
