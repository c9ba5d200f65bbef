"""Fine-tune a trained network: its first layers stay frozen, the last ones get two rates, lowered on a plateau."""

from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import default_collate
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from tests.everyday.datasets import Images, saved_weights

EPOCHS = 4

torch.manual_seed(0)
train_data = Images(256, seed=1)
val_data = Images(128, seed=2)
backbone = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
neck = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Flatten())
backbone.load_state_dict(saved_weights(backbone))
neck.load_state_dict(saved_weights(neck))
backbone.requires_grad_(False)
head = nn.Sequential(nn.Dropout(0.2), nn.Linear(128, 4))
model = nn.Sequential(backbone, neck, head)
optimizer = torch.optim.Adam([{"params": neck.parameters(), "lr": 1e-3}, {"params": head.parameters(), "lr": 1e-2}])
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.05)


def collate(items):
    images, labels = default_collate(items)
    return {"images": images, "labels": labels}


class FinetuningTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **_):
        backbone.eval()
        logits = model(inputs["images"])
        loss = cross_entropy(logits, inputs["labels"])
        return (loss, {"outputs": logits}) if return_outputs else loss


arguments = TrainingArguments(
    "checkpoints",
    num_train_epochs=EPOCHS,
    per_device_train_batch_size=32,
    per_device_eval_batch_size=128,
    max_grad_norm=0,
    label_names=["labels"],
    lr_scheduler_type="reduce_lr_on_plateau",
    metric_for_best_model="loss",
    eval_strategy="epoch",
    save_strategy="epoch",
    remove_unused_columns=False,
)
trainer = FinetuningTrainer(
    model,
    arguments,
    collate,
    train_data,
    val_data,
    optimizers=(optimizer, scheduler),
)
trainer.train(resume_from_checkpoint=get_last_checkpoint("checkpoints") if Path("checkpoints").exists() else None)

torch.save(model.state_dict(), "model.pt")
