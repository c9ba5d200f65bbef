"""Distil a network: a frozen teacher, a small student, soft and hard targets."""

from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy, kl_div
from torch.utils.data import default_collate
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from tests.everyday.datasets import Images, saved_weights

EPOCHS, TEMPERATURE = 4, 2.0

torch.manual_seed(0)
train_data = Images(256, seed=1, flip=True)
val_data = Images(128, seed=2)
teacher = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))
teacher.load_state_dict(saved_weights(teacher))
teacher.eval().requires_grad_(False)
student = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4))
optimizer = torch.optim.AdamW(student.parameters(), lr=5e-3)


def collate(items):
    images, labels = default_collate(items)
    return {"images": images, "labels": labels}


class DistillationTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **_):
        with torch.no_grad():
            soft = (teacher(inputs["images"]) / TEMPERATURE).log_softmax(1)
        logits = model(inputs["images"])
        imitated = kl_div((logits / TEMPERATURE).log_softmax(1), soft, reduction="batchmean", log_target=True)
        loss = 0.5 * cross_entropy(logits, inputs["labels"]) + 0.5 * TEMPERATURE**2 * imitated
        return (loss, {"outputs": logits}) if return_outputs else loss


def measured(evaluated):
    return {"agreed": (evaluated.predictions.argmax(1) == teacher(val_data.images).argmax(1).numpy()).mean().item()}


arguments = TrainingArguments(
    "checkpoints",
    num_train_epochs=EPOCHS,
    per_device_train_batch_size=32,
    per_device_eval_batch_size=128,
    max_grad_norm=0,
    label_names=["labels"],
    eval_strategy="epoch",
    save_strategy="epoch",
    remove_unused_columns=False,
)
trainer = DistillationTrainer(
    student,
    arguments,
    collate,
    train_data,
    val_data,
    compute_metrics=measured,
    optimizers=(optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)),
)
trainer.train(resume_from_checkpoint=get_last_checkpoint("checkpoints") if Path("checkpoints").exists() else None)

torch.save(student.state_dict(), "model.pt")
