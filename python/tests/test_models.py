"""Unmodified models of transformers and diffusers: captured whole, planned in every family, and on all ranks equal to one device."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
import stages
import torch
import torch.nn.functional as F
from machines import DEAR_COMPUTING
from ranks import train

import unisono
from unisono import _native
from unisono._capture.outside import Outside

FAMILIES = {
    "free": {},
    "batch cut": {"batch.*": "shard(0)"},
    "state cut": {"params.*": "shard(0)", "optimizer.*": "shard(0)"},
    "batch whole": {"batch.*": "replicate"},
}
STEPS = 2


def tokens(*shape: int) -> torch.Tensor:
    return torch.randint(0, 128, shape)


def language(name: str, **config: Any) -> tuple[torch.nn.Module, Callable[..., Any], tuple[torch.Tensor, ...]]:
    import transformers

    kind = getattr(transformers, name)
    model = kind(kind.config_class(vocab_size=128, **config)).train()
    return model, lambda model, ids, labels: model(input_ids=ids, labels=labels).loss, (tokens(2, 16), tokens(2, 16))


def gpt2():
    return language(
        "GPT2LMHeadModel",
        n_embd=64,
        n_layer=1,
        n_head=4,
        n_positions=16,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )


def mixtral():
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_local_experts": 4}
    return language("MixtralForCausalLM", num_attention_heads=4, num_key_value_heads=2, **sizes)


def bert():
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    without = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return language("BertForMaskedLM", max_position_embeddings=32, **sizes, **without)


def t5():
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4}
    return language("T5ForConditionalGeneration", decoder_start_token_id=0, dropout_rate=0.0, **sizes)


def wan():
    from diffusers import WanTransformer3DModel

    sizes = {"num_attention_heads": 4, "attention_head_dim": 24, "ffn_dim": 128, "num_layers": 1}
    channels = {"in_channels": 4, "out_channels": 4, "text_dim": 32, "freq_dim": 32, "rope_max_seq_len": 32}
    model = WanTransformer3DModel(patch_size=(1, 2, 2), cross_attn_norm=True, **sizes, **channels).train()
    video, text = torch.randn(2, 4, 2, 8, 8), torch.randn(2, 8, 32)

    def loss(model, noisy, time, text, clean):
        return F.mse_loss(model(hidden_states=noisy, timestep=time, encoder_hidden_states=text).sample, clean)

    return model, loss, (video, torch.tensor([3, 700]), text, torch.randn(2, 4, 2, 8, 8))


def make_step(model, loss_of):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def step(*batch):
        optimizer.zero_grad()
        loss = loss_of(model, *batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    return step, optimizer


def planned(graph: unisono.StepGraph, family: str, ranks: int) -> _native.Plan:
    pins = {pattern: {"a": placement} for pattern, placement in FAMILIES[family].items()}
    settings = {"mesh": {"a": ranks}, "pins": pins, "memory_limit": None}
    return graph.native.plan(DEAR_COMPUTING, msgpack.packb(settings))


MODELS = pytest.mark.parametrize("make", [gpt2, bert, mixtral, t5, wan], ids=lambda make: make.__name__)


def eager(model, loss_of, batch):
    """The losses of an ordinary training of a copy of a model, and the copy."""
    reference = copy.deepcopy(model)
    step, _ = make_step(reference, loss_of)
    return [step(*batch).item() for _ in range(STEPS)], reference


@pytest.mark.parametrize(
    "settings",
    [{"micro_batches": 2}, {"recompute": "full"}, {"offload": "full"}],
    ids=["sliced", "recomputed", "offloaded"],
)
@MODELS
def test_an_unmodified_model_gives_with_less_memory_what_it_gives_at_once(make, settings):
    torch.manual_seed(0)
    model, loss_of, batch = make()
    losses, reference = eager(model, loss_of, batch)
    step, optimizer = make_step(model, loss_of)
    smaller = unisono.parallelize(
        step, model=model, optimizer=optimizer, example=batch, cluster=DEAR_COMPUTING, **settings
    )
    assert ("recompute" in settings) == (smaller.plan.prediction["recomputed_ns"] > 0)
    assert ("offload" in settings) == (smaller.plan.prediction.get("offloaded_bytes", 0) > 0)
    assert [smaller(*batch).item() for _ in range(STEPS)] == pytest.approx(losses, rel=1e-5)
    smaller.sync()
    for (name, found), expected in zip(model.named_parameters(), reference.parameters(), strict=True):
        assert (found - expected).abs().max() <= 1e-5 * (expected.abs().max() + 1e-4), name


@MODELS
def test_an_unmodified_model_is_not_looked_through_again_before_each_step_nor_warns_in_each(make, monkeypatch, capsys):
    model, loss_of, batch = make()
    step, optimizer = make_step(model, loss_of)
    parallel = unisono.parallelize(step, model=model, optimizer=optimizer, example=batch, cluster=DEAR_COMPUTING)
    parallel(*batch)
    looked_through = []
    monkeypatch.setattr(Outside, "_read", lambda self: looked_through.append(self))
    capsys.readouterr()
    parallel(*batch)
    said = capsys.readouterr()
    assert (looked_through, said.out, said.err) == ([], "", "")


@MODELS
def test_an_unmodified_model_gives_on_two_ranks_what_it_gives_on_one(make):
    torch.manual_seed(0)
    model, loss_of, batch = make()
    losses, reference = eager(model, loss_of, batch)
    step, optimizer = make_step(model, loss_of)
    graph = unisono.capture(step, model=model, optimizer=optimizer, example=batch)
    for family in FAMILIES:
        found, after = train(graph, planned(graph, family, 2), {"a": 2}, [batch] * STEPS, passes=True)
        assert [loss.item() for loss in found] == pytest.approx(losses, rel=1e-5), family
        for name, tensor in reference.named_parameters():
            if name in after:
                # What has no gradient but noise (the bias of keys) stays near zero.
                scale = tensor.detach().abs().max() + 1e-4
                assert (after[name] - tensor.detach()).abs().max() <= 1e-5 * scale, f"{family}: {name}"


@MODELS
def test_an_unmodified_model_gives_in_stages_what_it_gives_on_one_device(make):
    torch.manual_seed(0)
    model, loss_of, batch = make()
    losses, reference = eager(model, loss_of, batch)
    step, optimizer = make_step(model, loss_of)
    graph = unisono.capture(step, model=model, optimizer=optimizer, example=batch)
    returned, parameters = stages.train(graph, stages.plan(graph, 2, 2), [batch] * STEPS)
    assert [one.item() for one in returned] == pytest.approx(losses, rel=1e-5)
    for name, expected in reference.named_parameters():
        assert (parameters[name] - expected).abs().max() <= 1e-5 * (expected.abs().max() + 1e-4), name
