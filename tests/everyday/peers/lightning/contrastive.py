"""Learn pictures and captions together: two encoders, one contrastive loss, one optimizer."""

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.nn.functional import cross_entropy, normalize
from torch.utils.data import DataLoader

from tests.everyday.datasets import SYMBOLS, captioned

EPOCHS = 4

torch.manual_seed(0)
train_loader = DataLoader(captioned(256, seed=1), batch_size=32, shuffle=True)
val_loader = DataLoader(captioned(64, seed=2), batch_size=64)
picture_encoder = nn.Sequential(nn.Linear(64, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 16))
text_encoder = nn.Sequential(nn.EmbeddingBag(SYMBOLS, 32), nn.GELU(), nn.Linear(32, 16))


def similarity(pictures, words):
    return normalize(picture_encoder(pictures)) @ normalize(text_encoder(words)).T / 0.1


class ContrastiveModule(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.picture_encoder, self.text_encoder = picture_encoder, text_encoder

    def training_step(self, batch, _):
        batch_pictures, batch_words = batch
        logits = similarity(batch_pictures, batch_words)
        labels = torch.arange(len(logits))
        return (cross_entropy(logits, labels) + cross_entropy(logits.T, labels)) / 2

    def validation_step(self, batch, _):
        pictures, words = batch
        found = (similarity(pictures, words).argmax(1) == torch.arange(len(pictures))).float().mean()
        self.log("found", found)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=5e-3, weight_decay=0.05)


checkpoints = ModelCheckpoint("checkpoints", save_last=True)
trainer = lightning.Trainer(max_epochs=EPOCHS, callbacks=[checkpoints])
trainer.fit(ContrastiveModule(), train_loader, val_loader, ckpt_path="last")

torch.save(picture_encoder.state_dict(), "picture_encoder.pt")
torch.save(text_encoder.state_dict(), "text_encoder.pt")
