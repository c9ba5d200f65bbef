"""Train on a stream: an iterable dataset without a length, mixed by a shuffle buffer, a fixed number of updates."""

from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import default_collate
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from tests.everyday.datasets import SYMBOLS, Stream, Text

torch.manual_seed(0)
train_data = Stream(128, seed=1)
val_data = Text(1, seed=2, length=512)
model = nn.Sequential(nn.Embedding(SYMBOLS, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, SYMBOLS))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)


def collate(items):
    symbols, following = default_collate(items)
    return {"symbols": symbols, "following": following}


class StreamingTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **_):
        logits = model(inputs["symbols"])
        loss = cross_entropy(logits.flatten(0, 1), inputs["following"].flatten())
        return (loss, {"outputs": logits}) if return_outputs else loss


arguments = TrainingArguments(
    "checkpoints",
    max_steps=32,
    per_device_train_batch_size=16,
    max_grad_norm=0,
    label_names=["following"],
    eval_strategy="steps",
    eval_steps=8,
    save_strategy="steps",
    save_steps=8,
    remove_unused_columns=False,
)
trainer = StreamingTrainer(
    model,
    arguments,
    collate,
    train_data,
    val_data,
    optimizers=(optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)),
)
trainer.train(resume_from_checkpoint=get_last_checkpoint("checkpoints") if Path("checkpoints").exists() else None)

torch.save(model.state_dict(), "model.pt")
