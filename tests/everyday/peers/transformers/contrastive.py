"""Learn pictures and captions together: two encoders, one contrastive loss, one optimizer."""

import itertools
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy, normalize
from torch.utils.data import default_collate
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from tests.everyday.datasets import SYMBOLS, captioned

EPOCHS = 4

torch.manual_seed(0)
train_data = captioned(256, seed=1)
val_data = captioned(64, seed=2)
picture_encoder = nn.Sequential(nn.Linear(64, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 16))
text_encoder = nn.Sequential(nn.EmbeddingBag(SYMBOLS, 32), nn.GELU(), nn.Linear(32, 16))
optimizer = torch.optim.AdamW(
    itertools.chain(picture_encoder.parameters(), text_encoder.parameters()), lr=5e-3, weight_decay=0.05
)


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.picture_encoder, self.text_encoder = picture_encoder, text_encoder

    def forward(self, pictures, words):
        return normalize(picture_encoder(pictures)) @ normalize(text_encoder(words)).T / 0.1


def collate(items):
    pictures, words = default_collate(items)
    return {"pictures": pictures, "words": words}


class ContrastiveTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **_):
        logits = model(inputs["pictures"], inputs["words"])
        labels = torch.arange(len(logits))
        loss = (cross_entropy(logits, labels) + cross_entropy(logits.T, labels)) / 2
        return (loss, {"outputs": logits}) if return_outputs else loss


def measured(evaluated):
    return {"found": (evaluated.predictions.argmax(1) == np.arange(len(evaluated.predictions))).mean().item()}


arguments = TrainingArguments(
    "checkpoints",
    num_train_epochs=EPOCHS,
    per_device_train_batch_size=32,
    per_device_eval_batch_size=64,
    max_grad_norm=0,
    label_names=["words"],
    eval_strategy="epoch",
    save_strategy="epoch",
    remove_unused_columns=False,
)
trainer = ContrastiveTrainer(
    Both(),
    arguments,
    collate,
    train_data,
    val_data,
    compute_metrics=measured,
    optimizers=(optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)),
)
trainer.train(resume_from_checkpoint=get_last_checkpoint("checkpoints") if Path("checkpoints").exists() else None)

torch.save(picture_encoder.state_dict(), "picture_encoder.pt")
torch.save(text_encoder.state_dict(), "text_encoder.pt")
