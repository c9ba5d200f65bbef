"""Classify images: a convolutional network, random flips, SGD with one-cycle rates."""

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from tests.everyday.datasets import Images

EPOCHS = 4

torch.manual_seed(0)
train_loader = DataLoader(Images(256, seed=1, flip=True), batch_size=32, shuffle=True)
val_data = Images(128, seed=2)
val_loader = DataLoader(val_data, batch_size=64)

model = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1),
    nn.BatchNorm2d(8),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Dropout(0.1),
    nn.Linear(128, 4),
)


class ImageModule(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = model

    def training_step(self, batch, _):
        images, labels = batch
        return cross_entropy(model(images), labels, label_smoothing=0.1)

    def validation_step(self, batch, _):
        images, labels = batch
        self.log("accuracy", (model(images).argmax(1) == labels).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=0.05, total_steps=EPOCHS * len(train_loader), cycle_momentum=False
        )
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


checkpoints = ModelCheckpoint("checkpoints", save_last=True)
trainer = lightning.Trainer(max_epochs=EPOCHS, callbacks=[checkpoints])
trainer.fit(ImageModule(), train_loader, val_loader, ckpt_path="last")

torch.save(model.state_dict(), "model.pt")
