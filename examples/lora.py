"""Trains LoRA adapters of peft on a frozen language model: a cosine schedule, dropout in the adapters, evaluation, merging.

python examples/lora.py                                  # one process
torchrun --nproc-per-node 4 examples/lora.py             # four
python examples/lora.py --plain                          # PyTorch alone, the same numbers

The language is made up: most words are followed by the next one in the vocabulary.
"""

import argparse
import os

import torch
from peft import LoraConfig, TaskType, get_peft_model
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, TensorDataset
from transformers import LlamaConfig, LlamaForCausalLM

import unisono

WORDS, LENGTH, BATCH, STEPS = 64, 16, 16, 12


def sentences(count, step, seed):
    """Sentences in which a word is followed by the one `step` after it, but for one word in ten."""
    generator = torch.Generator().manual_seed(seed)
    firsts = torch.randint(WORDS, (count, 1), generator=generator)
    words = (firsts + step * torch.arange(LENGTH)) % WORDS
    others = torch.randint(WORDS, (count, LENGTH), generator=generator)
    return torch.where(torch.rand(count, LENGTH, generator=generator) < 0.1, others, words)


def make_model():
    """A small Llama whose projections get adapters; all else is frozen."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    base = LlamaForCausalLM(LlamaConfig(vocab_size=WORDS, num_key_value_heads=2, **sizes))
    adapters = LoraConfig(
        task_type=TaskType.CAUSAL_LM,
        r=8,
        lora_alpha=16,
        lora_dropout=0.1,
        target_modules=["q_proj", "v_proj", "up_proj", "down_proj"],
        modules_to_save=["lm_head"],
    )
    return get_peft_model(base, adapters)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plain", action="store_true", help="PyTorch alone")
    arguments = parser.parse_args()
    first_rank = os.environ.get("RANK", "0") == "0"

    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(sentences(STEPS * BATCH, 1, seed=1)), BATCH, shuffle=True)
    (validation,) = next(iter(DataLoader(TensorDataset(sentences(BATCH, 1, seed=2)), BATCH)))

    model = make_model()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-2, eps=1e-4)
    scheduler = CosineAnnealingLR(optimizer, STEPS)
    if first_rank:
        model.print_trainable_parameters()

    def train_step(ids):
        optimizer.zero_grad()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        return loss.item()

    if not arguments.plain:
        train_step = unisono.parallelize(train_step, model=model, optimizer=optimizer, example=(validation,))

    torch.manual_seed(1)  # of dropout and shuffling
    model.train()
    for number, (ids,) in enumerate(loader, start=1):
        loss = train_step(ids)
        if first_rank:
            print(f"step {number}  loss {loss:.4f}", flush=True)

    if not arguments.plain:
        train_step.sync()
    model.eval()
    with torch.no_grad():
        loss = model(input_ids=validation, labels=validation).loss
        with model.disable_adapter():
            before = model(input_ids=validation, labels=validation).loss
        merged = model.merge_and_unload()(input_ids=validation, labels=validation).loss
    if first_rank:
        print(f"validation loss {loss:.4f}  merged {merged:.4f}  without adapters {before:.4f}")
        trained = sum(p.double().abs().sum().item() for p in model.parameters())
        print(f"sum of parameters {trained:.3f}")


if __name__ == "__main__":
    main()
