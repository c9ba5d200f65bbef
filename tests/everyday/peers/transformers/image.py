"""Classify images: a convolutional network, random flips, SGD with one-cycle rates."""

from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import default_collate
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from tests.everyday.datasets import Images

EPOCHS = 4

torch.manual_seed(0)
train_data = Images(256, seed=1, flip=True)
val_data = Images(128, seed=2)

model = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1),
    nn.BatchNorm2d(8),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Dropout(0.1),
    nn.Linear(128, 4),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
scheduler = torch.optim.lr_scheduler.OneCycleLR(
    optimizer, max_lr=0.05, total_steps=EPOCHS * len(train_data) // 32, cycle_momentum=False
)


def collate(items):
    images, labels = default_collate(items)
    return {"images": images, "labels": labels}


class ImageTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **_):
        logits = model(inputs["images"])
        loss = cross_entropy(logits, inputs["labels"], label_smoothing=0.1)
        return (loss, {"outputs": logits}) if return_outputs else loss


def measured(evaluated):
    return {"accuracy": (evaluated.predictions.argmax(1) == evaluated.label_ids).mean().item()}


arguments = TrainingArguments(
    "checkpoints",
    num_train_epochs=EPOCHS,
    per_device_train_batch_size=32,
    per_device_eval_batch_size=64,
    max_grad_norm=0,
    label_names=["labels"],
    eval_strategy="epoch",
    save_strategy="epoch",
    remove_unused_columns=False,
)
trainer = ImageTrainer(
    model,
    arguments,
    collate,
    train_data,
    val_data,
    compute_metrics=measured,
    optimizers=(optimizer, scheduler),
)
trainer.train(resume_from_checkpoint=get_last_checkpoint("checkpoints") if Path("checkpoints").exists() else None)

torch.save(model.state_dict(), "model.pt")
