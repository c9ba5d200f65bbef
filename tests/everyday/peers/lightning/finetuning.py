"""Fine-tune a trained network: its first layers stay frozen, the last ones get two rates, lowered on a plateau."""

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from tests.everyday.datasets import Images, saved_weights

EPOCHS = 4

torch.manual_seed(0)
train_loader = DataLoader(Images(256, seed=1), batch_size=32, shuffle=True)
val_loader = DataLoader(Images(128, seed=2), batch_size=128)
backbone = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
neck = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Flatten())
backbone.load_state_dict(saved_weights(backbone))
neck.load_state_dict(saved_weights(neck))
backbone.requires_grad_(False)
head = nn.Sequential(nn.Dropout(0.2), nn.Linear(128, 4))
model = nn.Sequential(backbone, neck, head)


class FinetuningModule(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = model

    def on_train_epoch_start(self):
        backbone.eval()

    def training_step(self, batch, _):
        images, labels = batch
        return cross_entropy(model(images), labels)

    def validation_step(self, batch, _):
        images, labels = batch
        self.log("loss", cross_entropy(model(images), labels))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(
            [{"params": neck.parameters(), "lr": 1e-3}, {"params": head.parameters(), "lr": 1e-2}]
        )
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.05)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "loss"}}


checkpoints = ModelCheckpoint("checkpoints", save_last=True)
trainer = lightning.Trainer(max_epochs=EPOCHS, callbacks=[checkpoints])
trainer.fit(FinetuningModule(), train_loader, val_loader, ckpt_path="last")

torch.save(model.state_dict(), "model.pt")
