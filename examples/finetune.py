"""Fine-tunes a transformer of Hugging Face: accumulation, warm-up, clipping, dropout, evaluation, checkpoints.

python examples/finetune.py                                  # one process
torchrun --nproc-per-node 4 examples/finetune.py             # four
python examples/finetune.py --plain                          # PyTorch alone, the same numbers

The task is made up: of two words, which one does a sentence have more often?
"""

import argparse
import os
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup

import unisono

WORDS, LONGEST, PADDING = 64, 24, 0
BATCH, ACCUMULATED, EPOCHS = 8, 2, 2


class Sentences(Dataset):
    """Sentences of different length, as a tokenizer with ``padding="max_length"`` gives them."""

    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(1, WORDS, (count, LONGEST), generator=generator)
        favourites = torch.randint(1, 3, (count, LONGEST), generator=generator)
        self.ids = torch.where(torch.rand(count, LONGEST, generator=generator) < 0.6, favourites, self.ids)
        lengths = torch.randint(LONGEST // 2, LONGEST + 1, (count, 1), generator=generator)
        self.mask = (torch.arange(LONGEST) < lengths).long()
        self.ids = torch.where(self.mask == 1, self.ids, PADDING)
        self.labels = ((self.ids == 1).sum(1) > (self.ids == 2).sum(1)).long()

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "attention_mask": self.mask[index], "labels": self.labels[index]}


def make_model():
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    return BertForSequenceClassification(BertConfig(vocab_size=WORDS, max_position_embeddings=LONGEST, **sizes))


def make_optimizer(model, updates):
    """AdamW without weight decay for biases and norms, and a linear schedule with warm-up."""
    no_decay = ("bias", "LayerNorm.weight")
    decayed = [p for name, p in model.named_parameters() if not name.endswith(no_decay)]
    others = [p for name, p in model.named_parameters() if name.endswith(no_decay)]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=5e-3, eps=1e-4)
    return optimizer, get_linear_schedule_with_warmup(optimizer, updates // 5, updates)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plain", action="store_true", help="PyTorch alone")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="stop after so many")
    parser.add_argument("--checkpoint", type=Path, help="folder to go on from, and to write after each epoch")
    arguments = parser.parse_args()
    first_rank = os.environ.get("RANK", "0") == "0"

    torch.manual_seed(0)
    training, validation = Sentences(192, seed=1), Sentences(44, seed=2)
    shuffled = torch.Generator()
    loader = DataLoader(training, BATCH, shuffle=True, generator=shuffled)
    validation_loader = DataLoader(validation, BATCH)  # the last batch is smaller

    model = make_model()
    optimizer, scheduler = make_optimizer(model, updates=EPOCHS * len(loader) // ACCUMULATED)
    done = 0
    if arguments.checkpoint and arguments.checkpoint.exists():
        model = BertForSequenceClassification.from_pretrained(arguments.checkpoint)
        optimizer, scheduler = make_optimizer(model, updates=EPOCHS * len(loader) // ACCUMULATED)
        state = torch.load(arguments.checkpoint / "training.pt")
        optimizer.load_state_dict(state["optimizer"])
        scheduler.load_state_dict(state["scheduler"])
        done = state["epochs"]

    def train_step(micro_batches):
        total = 0.0
        for batch in micro_batches:
            loss = model(**batch).loss / len(micro_batches)
            loss.backward()
            total += loss.detach()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        return total, norm

    @torch.no_grad()
    def evaluate(batch):
        output = model(**batch)
        right = (output.logits.argmax(-1) == batch["labels"]).sum()
        return output.loss * len(batch["labels"]), right

    if not arguments.plain:
        batch = next(iter(loader))
        train_step = unisono.parallelize(train_step, model=model, optimizer=optimizer, example=([batch] * ACCUMULATED,))
        evaluate = train_step.share(evaluate, example=(batch,))

    for epoch in range(done, arguments.epochs):
        shuffled.manual_seed(epoch)
        torch.manual_seed(epoch)  # of dropout
        model.train()
        micro_batches = []
        for batch in loader:
            micro_batches.append(batch)
            if len(micro_batches) == ACCUMULATED:
                loss, norm = train_step(micro_batches)
                micro_batches = []
                if first_rank:
                    rate = scheduler.get_last_lr()[0]
                    print(f"epoch {epoch}  loss {loss.item():.5f}  norm {norm.item():.4f}  rate {rate:.6f}")
        model.eval()
        results = [evaluate(batch) for batch in validation_loader]
        loss, right = (sum(column).item() / len(validation) for column in zip(*results, strict=True))
        if first_rank:
            print(f"epoch {epoch}  validation loss {loss:.5f}  right {100 * right:.1f} %", flush=True)

        if not arguments.plain:
            train_step.sync()
        if first_rank and arguments.checkpoint:
            model.save_pretrained(arguments.checkpoint)
            state = {"optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict(), "epochs": epoch + 1}
            torch.save(state, arguments.checkpoint / "training.pt")

    if first_rank:
        print(f"sum of parameters {sum(p.double().abs().sum().item() for p in model.parameters()):.4f}")


if __name__ == "__main__":
    main()
