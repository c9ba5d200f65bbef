"""Distil a network: a frozen teacher, a small student, soft and hard targets."""

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.nn.functional import cross_entropy, kl_div
from torch.utils.data import DataLoader

from tests.everyday.datasets import Images, saved_weights

EPOCHS, TEMPERATURE = 4, 2.0

torch.manual_seed(0)
train_loader = DataLoader(Images(256, seed=1, flip=True), batch_size=32, shuffle=True)
val_loader = DataLoader(Images(128, seed=2), batch_size=128)
teacher = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))
teacher.load_state_dict(saved_weights(teacher))
teacher.eval().requires_grad_(False)
student = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4))


class DistillationModule(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.student = student

    def training_step(self, batch, _):
        images, labels = batch
        with torch.no_grad():
            soft = (teacher(images) / TEMPERATURE).log_softmax(1)
        logits = student(images)
        imitated = kl_div((logits / TEMPERATURE).log_softmax(1), soft, reduction="batchmean", log_target=True)
        return 0.5 * cross_entropy(logits, labels) + 0.5 * TEMPERATURE**2 * imitated

    def validation_step(self, batch, _):
        images, _ = batch
        self.log("agreed", (student(images).argmax(1) == teacher(images).argmax(1)).float().mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(student.parameters(), lr=5e-3)


checkpoints = ModelCheckpoint("checkpoints", save_last=True)
trainer = lightning.Trainer(max_epochs=EPOCHS, callbacks=[checkpoints])
trainer.fit(DistillationModule(), train_loader, val_loader, ckpt_path="last")

torch.save(student.state_dict(), "model.pt")
