"""Learn pictures and captions together: two encoders, one contrastive loss, one optimizer."""

import itertools

import torch
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


for epoch in range(EPOCHS):
    for batch_pictures, batch_words in train_loader:
        logits = similarity(batch_pictures, batch_words)
        labels = torch.arange(len(logits))
        loss = (cross_entropy(logits, labels) + cross_entropy(logits.T, labels)) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    picture_encoder.eval()
    with torch.no_grad():
        found = (similarity(pictures, words).argmax(1) == torch.arange(len(pictures))).float().mean().item()
    picture_encoder.train()
    print(f"epoch {epoch + 1}: found {found:.3f}")

torch.save(picture_encoder.state_dict(), "picture_encoder.pt")
torch.save(text_encoder.state_dict(), "text_encoder.pt")
