"""Learn pictures and captions together: two encoders, one contrastive loss, one optimizer."""

import itertools
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration
from torch import nn
from torch.nn.functional import cross_entropy, normalize
from torch.utils.data import DataLoader

from tests.everyday.datasets import SYMBOLS, captioned

EPOCHS = 4

torch.manual_seed(0)
train_loader = DataLoader(captioned(256, seed=1), batch_size=32, shuffle=True)
pictures, words = captioned(64, seed=2).tensors
picture_encoder = nn.Sequential(nn.Linear(64, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 16))
text_encoder = nn.Sequential(nn.EmbeddingBag(SYMBOLS, 32), nn.GELU(), nn.Linear(32, 16))
optimizer = torch.optim.AdamW(
    itertools.chain(picture_encoder.parameters(), text_encoder.parameters()), lr=5e-3, weight_decay=0.05
)


def similarity(pictures, words):
    return normalize(picture_encoder(pictures)) @ normalize(text_encoder(words)).T / 0.1


saved = len(list(Path("checkpoints").glob("*")))
config = ProjectConfiguration(".", automatic_checkpoint_naming=True, iteration=saved)
accelerator = Accelerator(project_config=config)
picture_encoder, text_encoder, optimizer, train_loader = accelerator.prepare(
    picture_encoder, text_encoder, optimizer, train_loader
)
if saved:
    accelerator.load_state()

for epoch in range(saved, EPOCHS):
    for batch_pictures, batch_words in train_loader:
        logits = similarity(batch_pictures, batch_words)
        labels = torch.arange(len(logits))
        loss = (cross_entropy(logits, labels) + cross_entropy(logits.T, labels)) / 2
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
    picture_encoder.eval()
    with torch.no_grad():
        found = (similarity(pictures, words).argmax(1) == torch.arange(len(pictures))).float().mean().item()
    picture_encoder.train()
    print(f"epoch {epoch + 1}: found {found:.3f}")
    accelerator.save_state()

torch.save(accelerator.unwrap_model(picture_encoder).state_dict(), "picture_encoder.pt")
torch.save(accelerator.unwrap_model(text_encoder).state_dict(), "text_encoder.pt")
