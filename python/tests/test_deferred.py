"""Models that are built without memory have the values that they have on one device, wherever they are made."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Callable

import launch
import pytest
import torch
import transformers
from deferred_ranks import REPLICATED, SHARDED, Model
from diffusers import UNet2DModel
from machines import DEAR_COMPUTING
from torch import nn
from torch.nn.utils import parametrizations

import unisono
from unisono import _measure
from unisono._deferred.making import record_of
from unisono._deferred.replay import replay


def orthogonal() -> nn.Module:
    layer = nn.Linear(6, 8)
    nn.init.orthogonal_(layer.weight)
    nn.init.dirac_(nn.Conv1d(4, 4, 3).weight)
    nn.init.sparse_(layer.weight, 0.3)
    return layer


class Odd(nn.Module):
    """Looks at values while it is built, writes parts of tensors, copies, draws out of order."""

    def __init__(self) -> None:
        super().__init__()
        self.rates = [rate.item() for rate in torch.linspace(0, 0.3, 4)]
        self.sum = float(torch.zeros(3).sum() + torch.ones(2)[1])
        self.token = nn.Parameter(torch.randn(3, 4) * 0.02)
        self.register_buffer("mask", torch.tril(torch.ones(4, 4)))
        self.table = nn.Embedding(7, 4, padding_idx=2)
        self.table.weight.data[0] = 5.0
        with torch.no_grad():
            self.table.weight[3:5].mul_(2).add_(torch.arange(4.0))
        self.copied = copy.deepcopy(self.table)
        nn.init.normal_(self.token)
        self.drawn = nn.Parameter(torch.zeros(1, 1, 8))
        nn.init.trunc_normal_(self.drawn, std=0.02)
        nn.init.trunc_normal_(self.drawn, mean=4.0, a=3.0, b=3.5)
        self.given = nn.Parameter(torch.tensor([1.0, 2.0]))
        self.wide = nn.Parameter(torch.rand(5, dtype=torch.float64))
        self.short = nn.Parameter(torch.empty(4, 4).normal_().to(torch.bfloat16))
        self.register_buffer("order", torch.randperm(10))
        self.complex = nn.Parameter(torch.randn(3, dtype=torch.complex64))
        self.transposed = nn.Parameter(torch.empty(5, 3).t().uniform_())
        self.scale = torch.full((3,), 0.25)
        if self.token.sum() > 0:
            nn.init.ones_(self.short)


def config(kind: type, **sizes: int) -> transformers.PretrainedConfig:
    return kind(num_hidden_layers=2, num_attention_heads=4, hidden_size=32, intermediate_size=48, **sizes)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(5, 3),
    "convolutions": lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.GroupNorm(2, 4)),
    "attention": lambda: nn.MultiheadAttention(8, 2),
    "recurrent": lambda: nn.LSTM(4, 5, 2),
    "transformer": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2),
    "weight norm": lambda: parametrizations.weight_norm(nn.Linear(4, 3)),
    "spectral norm": lambda: parametrizations.spectral_norm(nn.Linear(4, 3)),
    "orthogonal": orthogonal,
    "kept orthogonal": lambda: parametrizations.orthogonal(nn.Linear(4, 4)),
    "bfloat16": lambda: nn.Linear(4, 4).to(torch.bfloat16),
    "odd": Odd,
    "tied": Model,
    "LLaMA": lambda: transformers.LlamaForCausalLM(config(transformers.LlamaConfig, vocab_size=64)),
    "ViT": lambda: transformers.ViTForImageClassification(
        config(transformers.ViTConfig, image_size=32, patch_size=8)  # rejects samples until all are within bounds
    ),
    "Mixtral": lambda: transformers.MixtralForCausalLM(
        config(transformers.MixtralConfig, vocab_size=64, num_local_experts=4, num_key_value_heads=2)
    ),
    "U-Net": lambda: UNet2DModel(
        sample_size=16,
        block_out_channels=(32, 64),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        layers_per_block=1,
    ),
}


def state(model: nn.Module) -> dict[str, torch.Tensor]:
    return dict(model.named_parameters()) | dict(model.named_buffers())


@pytest.mark.parametrize("name", MODELS)
def test_a_model_has_the_values_that_it_has_on_one_device(name):
    torch.manual_seed(1)
    expected = MODELS[name]()
    behind = torch.get_rng_state()
    torch.manual_seed(1)
    with unisono.deferred_init():
        model = MODELS[name]()
    assert any(one.is_meta for one in state(model).values())
    assert unisono.materialize(model) is model
    assert torch.equal(torch.get_rng_state(), behind)
    found = state(model)
    assert found.keys() == state(expected).keys()
    for key, tensor in state(expected).items():
        assert torch.equal(found[key], tensor), key
        assert (found[key].stride(), found[key].requires_grad) == (tensor.stride(), tensor.requires_grad), key
        assert type(found[key]) is type(tensor), key
    plain = [one for module in model.modules() for one in vars(module).values() if isinstance(one, torch.Tensor)]
    assert not any(one.is_meta for one in plain)


def test_two_models_that_are_built_behind_each_other_are_not_the_same():
    models = []
    for _ in range(2):
        with unisono.deferred_init():
            models.append(nn.Linear(3, 2))
    first, second = map(unisono.materialize, models)
    assert not torch.equal(first.weight, second.weight)


@pytest.mark.parametrize("between", [lambda: torch.manual_seed(1), lambda: torch.rand(2)])
def test_what_is_drawn_or_seeded_before_a_model_is_made_stands(between):
    torch.manual_seed(1)
    with unisono.deferred_init():
        model = nn.Linear(3, 2)
    between()
    before = torch.get_rng_state()
    unisono.materialize(model)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_model_that_fits_nowhere_is_built_and_captured():
    with unisono.deferred_init():
        model = nn.Sequential(nn.Linear(1 << 18, 1 << 18), nn.Linear(1 << 18, 1))
        optimizer = torch.optim.AdamW(model.parameters())

    def step(x):
        loss = model(x).mean()
        loss.backward()
        optimizer.step()
        return loss

    graph = unisono.capture(step, model=model, optimizer=optimizer, example=(torch.empty(4, 1 << 18, device="meta"),))
    assert "aten::addmm" in graph.text()


def test_no_more_than_one_tensor_is_there_at_a_time():
    with unisono.deferred_init():
        model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(16)))
        for layer in model:
            nn.init.normal_(layer.weight)
    record = record_of(model[0].weight)
    wanted = [record.number(one) for one in model.parameters()]
    growth = _measure.peak_growth(lambda: replay(record, wanted, lambda memory, storage: None))
    assert 256 * 256 * 4 <= growth < 2 * 256 * 256 * 4


def test_a_hook_stays_where_it_was():
    with unisono.deferred_init():
        model = nn.Linear(3, 2)
    met = []
    model.weight.register_hook(lambda gradient: met.append("gradient"))
    model.weight.register_post_accumulate_grad_hook(lambda parameter: met.append("accumulated"))
    unisono.materialize(model)(torch.ones(1, 3)).sum().backward()
    assert met == ["gradient", "accumulated"]


def written_outside(model: nn.Module) -> None:
    nn.init.zeros_(model.weight)


def made_on_meta(model: nn.Module) -> None:
    model.weight = nn.Parameter(torch.empty(3, 3, device="meta"))


def cast_outside(model: nn.Module) -> None:
    model.double()


@pytest.mark.parametrize("change", [written_outside, made_on_meta, cast_outside])
def test_what_is_done_to_a_model_outside_is_refused(change):
    with unisono.deferred_init():
        model = nn.Linear(3, 3)
    change(model)
    with pytest.raises(unisono.errors.StepError, match="weight") as caught:
        unisono.materialize(model)
    assert caught.value.code == "U0130"


def own_generator() -> None:
    nn.init.normal_(torch.empty(3), generator=torch.Generator())


def into_data() -> None:
    torch.tensor([1.0, 2.0]).normal_()


def without_a_kernel_for_meta() -> None:
    torch.binomial(torch.ones(3), torch.full((3,), 0.5))


NOWHERE = torch.empty(3, device="meta")


def from_nowhere() -> None:
    torch.ones(3) + NOWHERE


def into_nowhere() -> None:
    NOWHERE.normal_()


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (own_generator, "only PyTorch's own generator"),
        (into_data, "it writes into a tensor that has values already"),
        (without_a_kernel_for_meta, "PyTorch has no kernel of it"),
        (from_nowhere, "neither its values nor what initialises it"),
        (into_nowhere, "neither its values nor what initialises it"),
    ],
)
def test_what_cannot_be_done_later_is_refused_by_its_line(code, cause):
    with pytest.raises(unisono.errors.UnsupportedError) as caught, unisono.deferred_init():
        code()
    assert caught.value.code == "U0130" and "test_deferred.py" in caught.value.place
    assert cause in caught.value.cause


def test_what_is_done_outside_is_refused_too_where_building_ended_with_an_error():
    with contextlib.suppress(ZeroDivisionError), unisono.deferred_init():
        model = nn.Linear(3, 3)
        raise ZeroDivisionError
    nn.init.zeros_(model.weight)
    with pytest.raises(unisono.errors.StepError, match="`weight` was written outside"):
        unisono.materialize(model)


def test_data_that_is_changed_before_it_is_used_is_refused():
    data = torch.ones(3)
    with unisono.deferred_init():
        model = nn.Linear(3, 3)
        with torch.no_grad():
            model.bias.copy_(data)
    data.zero_()
    with pytest.raises(unisono.errors.StepError, match="has been written") as caught:
        unisono.materialize(model)
    assert "test_deferred.py" in caught.value.place


def printed(function: str, ranks: int, folder, **arguments) -> list[str]:
    ended = launch.run(f"deferred_ranks:{function}", ranks, folder, 280, **arguments)
    for rank, one in enumerate(ended):
        assert one.status == 0, f"rank {rank}: {one.err[-3000:]}"
    return [one.out.strip() for one in ended]


@pytest.mark.parametrize(("ranks", "pins"), [(1, {}), (2, SHARDED), (3, SHARDED), (2, REPLICATED)])
def test_each_rank_makes_its_shards_and_training_is_as_of_a_model_that_was_whole(ranks, pins, tmp_path):
    for text in printed("train", ranks, tmp_path, pins=pins if ranks > 1 else {}):
        found = json.loads(text)
        assert found["losses"] == found["others"]


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_average_of_the_weights_is_made_too(ranks, tmp_path):
    assert set(printed("train_with_average", ranks, tmp_path)) == {"True"}


def test_an_optimizer_without_state_trains_a_model_that_has_no_memory_yet():
    """Looking for the state that it lacks changes no parameter, and is no change of one."""
    batch = torch.randn(4, 6)
    losses = []
    for deferred in (True, False):
        torch.manual_seed(0)
        with unisono.deferred_init() if deferred else contextlib.nullcontext():
            model = nn.Linear(6, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x, model=model, optimizer=optimizer):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        if deferred:
            step = unisono.parallelize(step, model=model, optimizer=optimizer, example=(batch,), cluster=DEAR_COMPUTING)
        losses.append([float(step(batch)) for _ in range(3)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_a_tensor_that_a_step_keeps_elsewhere_is_refused_where_nobody_knows_its_values():
    with unisono.deferred_init():
        model = nn.Linear(3, 1)
    average = torch.optim.swa_utils.AveragedModel(model)  # copied outside

    def step(x):
        average.update_parameters(model)
        return model(x).sum()

    with pytest.raises(unisono.errors.StepError, match=r"average.* is on `meta`") as caught:
        unisono.parallelize(step, model=model, example=(torch.ones(2, 3),), cluster=DEAR_COMPUTING)
    assert caught.value.code == "U0130"


@pytest.mark.parametrize("what", ["code", "number", "data"])
def test_ranks_that_build_another_model_are_told(what, tmp_path):
    assert set(printed("differ", 2, tmp_path, what=what)) == {"U0123 the model is not built as on rank 0"}


def test_ranks_that_build_the_same_model_on_devices_of_their_own_agree():
    def built_on(device: str) -> str:
        with unisono.deferred_init():
            made = torch.ops.aten.empty.memory_format([3], device=torch.device(device))
        return record_of(made).fingerprint()

    assert built_on("cuda:0") == built_on("cuda:1") != built_on("cpu")


def test_the_random_numbers_are_those_of_rank_0(tmp_path):
    first, second = printed("differ", 2, tmp_path, what="seed")
    assert first == second
