"""Predict a value from a table: embedded categories, a multilayer perceptron, Adam, rates by steps, the best kept."""

from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import default_collate
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from tests.everyday.datasets import table

EPOCHS = 4


class TableNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Embedding(10, 4), nn.Embedding(10, 4)
        self.body = nn.Sequential(
            nn.Linear(14, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1), nn.Flatten(0)
        )

    def forward(self, categories, numbers):
        embedded = [self.first(categories[:, 0]), self.second(categories[:, 1])]
        return self.body(torch.cat([*embedded, numbers], 1))


torch.manual_seed(0)
train_data = table(512, seed=1)
val_data = table(128, seed=2)
model = TableNet()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=16, gamma=0.5)


def collate(items):
    categories, numbers, labels = default_collate(items)
    return {"categories": categories, "numbers": numbers, "labels": labels}


class TabularTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **_):
        predicted = model(inputs["categories"], inputs["numbers"])
        loss = mse_loss(predicted, inputs["labels"])
        return (loss, {"outputs": predicted}) if return_outputs else loss


arguments = TrainingArguments(
    "checkpoints",
    num_train_epochs=EPOCHS,
    per_device_train_batch_size=64,
    per_device_eval_batch_size=128,
    max_grad_norm=0,
    label_names=["labels"],
    metric_for_best_model="loss",
    save_total_limit=2,
    eval_strategy="epoch",
    save_strategy="epoch",
    remove_unused_columns=False,
)
trainer = TabularTrainer(
    model,
    arguments,
    collate,
    train_data,
    val_data,
    optimizers=(optimizer, scheduler),
)
trainer.train(resume_from_checkpoint=get_last_checkpoint("checkpoints") if Path("checkpoints").exists() else None)

torch.save(model.state_dict(), "model.pt")
