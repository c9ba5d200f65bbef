"""A small language model: a causal transformer, AdamW, warm-up and cosine, gradients clipped."""

import math
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import default_collate
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from tests.everyday.datasets import SYMBOLS, Text

EPOCHS, LENGTH, WIDTH = 4, 16, 32


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.symbols = nn.Embedding(SYMBOLS, WIDTH)
        self.places = nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        self.block = nn.TransformerEncoderLayer(WIDTH, 4, 64, dropout=0.1, batch_first=True)
        self.head = nn.Linear(WIDTH, SYMBOLS)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH))

    def forward(self, symbols):
        return self.head(self.block(self.symbols(symbols) + self.places, self.mask))


def warm_cosine(step, steps=32, warm=4):
    if step < warm:
        return (step + 1) / warm
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / (steps - warm)))


torch.manual_seed(0)
train_data = Text(128, seed=1)
val_data = Text(32, seed=2)
model = LanguageModel()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, warm_cosine)


def collate(items):
    symbols, following = default_collate(items)
    return {"symbols": symbols, "following": following}


class TextTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **_):
        logits = model(inputs["symbols"])
        loss = cross_entropy(logits.flatten(0, 1), inputs["following"].flatten())
        return (loss, {"outputs": logits}) if return_outputs else loss


arguments = TrainingArguments(
    "checkpoints",
    num_train_epochs=EPOCHS,
    per_device_train_batch_size=16,
    per_device_eval_batch_size=16,
    label_names=["following"],
    eval_strategy="epoch",
    save_strategy="epoch",
    remove_unused_columns=False,
)
trainer = TextTrainer(
    model,
    arguments,
    collate,
    train_data,
    val_data,
    optimizers=(optimizer, scheduler),
)
trainer.train(resume_from_checkpoint=get_last_checkpoint("checkpoints") if Path("checkpoints").exists() else None)

torch.save(model.state_dict(), "model.pt")
