"""Attention is captured without a mask that says nothing but "causal", or nothing at all, and with any other."""

from __future__ import annotations

import math
import re

import pytest
import torch
import torch.nn.functional as F

import unisono
from unisono._executor import Executor, lower_graph

T = 8


def seen() -> torch.Tensor:
    """What a causal mask lets each query see."""
    positions = torch.arange(T)
    return positions[:, None] >= positions[None, :]


#: Masks that the code writes down, each with whether attention is causal without it; none where the mask has to stay.
MASKS = {
    "a triangle": (lambda: torch.ones(T, T, dtype=torch.bool).tril(), True),
    "compared positions, for each sample and all heads": (lambda: seen()[None, None].expand(2, 1, T, T), True),
    "minus infinity above": (lambda: torch.full((T, T), -math.inf).triu(1), True),
    "the least number above": (lambda: torch.where(seen(), 0.0, torch.finfo(torch.float32).min), True),
    "all is seen": (lambda: torch.ones(2, 1, T, T, dtype=torch.bool), False),
    "nothing is added": (lambda: torch.zeros(T, T), False),
    "a window": (lambda: seen() & seen().T.roll(3, 0), None),
    "the other triangle": (lambda: torch.ones(T, T, dtype=torch.bool).triu(), None),
    "a large number above": (lambda: torch.full((T, T), -1e4).triu(1), None),
    "a slope": (lambda: -torch.arange(T)[:, None].sub(torch.arange(T)).abs().float(), None),
}


def inputs(queries: int = T) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(2, 2, size, 4, generator=generator) for size in (queries, T, T))


def captured(step, example):
    """The attention of a step, what it gives, and what eager PyTorch gives."""
    graph = unisono.capture(step, example=example)
    run = Executor(lower_graph(graph.native.run_passes()[0]))
    run.bind([])
    (call,) = re.findall(r"= aten::_scaled_dot_product\w*\((.*?)\)", graph.text())
    return call, run(list(example))[0], step(*example)


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_that_follows_from_the_code_is_left_out_where_the_kernel_knows_it(name):
    make, causal = MASKS[name]

    def step(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=make())

    call, found, expected = captured(step, inputs())
    assert ("true" in call) == bool(causal)
    assert len(re.findall(r"v\d+", call)) == (4 if causal is None else 3)
    torch.testing.assert_close(found, expected)


def test_other_arguments_stay():
    def step(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, seen(), 0.0, False, scale=0.3)

    call, found, expected = captured(step, inputs())
    assert "true" in call and "0.3" in call
    torch.testing.assert_close(found, expected)


def test_fewer_queries_than_keys_keep_their_mask():
    def step(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(4, T, dtype=torch.bool).tril())

    call, found, expected = captured(step, inputs(4))
    assert "true" not in call
    torch.testing.assert_close(found, expected)


def test_a_mask_that_is_given_stays():
    def step(q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    call, found, expected = captured(step, (*inputs(), seen()))
    assert "true" not in call
    torch.testing.assert_close(found, expected)


def test_a_mask_that_the_step_changes_stays_as_it_is_then():
    def step(q, k, v):
        mask = torch.zeros(T, T)
        mask[:, 0] += q[0, 0, 0, 0]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    call, found, expected = captured(step, inputs())
    assert "true" not in call
    torch.testing.assert_close(found, expected)


def test_a_language_model_of_transformers_has_no_mask():
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, use_cache=False
    )
    model = LlamaForCausalLM(config)

    def step(ids):
        return model(input_ids=ids).logits.sum()

    text = (
        unisono.capture(step, model=model, example=(torch.zeros(2, 16, dtype=torch.int64),))
        .native.run_passes()[0]
        .text()
    )
    calls = re.findall(r"= aten::_scaled_dot_product_flash_attention_for_cpu\((.*?)\)", text)
    assert len(calls) == 2
    assert all("true" in call and len(re.findall(r"v\d+", call)) == 3 for call in calls)
    assert "aten::le" not in text and "aten::where" not in text
