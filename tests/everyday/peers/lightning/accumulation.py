"""Large batches on a small machine: four batches accumulated for each update, bf16, an average of the weights."""

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader

from tests.everyday.datasets import Images

EPOCHS, ACCUMULATED = 4, 4

torch.manual_seed(0)
train_loader = DataLoader(Images(256, seed=1, flip=True), batch_size=8, shuffle=True)
val_loader = DataLoader(Images(128, seed=2), batch_size=128)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 4))
averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))


class AccumulationModule(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model, self.averaged = model, averaged

    def training_step(self, batch, _):
        images, labels = batch
        return cross_entropy(model(images), labels)

    def on_train_batch_end(self, outputs, batch, number):
        if (number + 1) % ACCUMULATED == 0:
            averaged.update_parameters(model)

    def validation_step(self, batch, _):
        images, labels = batch
        self.log("accuracy", (averaged(images).argmax(1) == labels).float().mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(model.parameters(), lr=3e-3)


checkpoints = ModelCheckpoint("checkpoints", save_last=True)
trainer = lightning.Trainer(
    max_epochs=EPOCHS, callbacks=[checkpoints], precision="bf16-mixed", accumulate_grad_batches=ACCUMULATED
)
trainer.fit(AccumulationModule(), train_loader, val_loader, ckpt_path="last")

torch.save(model.state_dict(), "model.pt")
torch.save(averaged.state_dict(), "averaged.pt")
