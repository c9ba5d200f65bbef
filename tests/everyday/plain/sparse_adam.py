"""Vectors of words from their neighbours: two sparse embeddings, negatives drawn in each step, SparseAdam."""

import torch
from torch import nn
from torch.nn.functional import logsigmoid
from torch.utils.data import DataLoader

from tests.everyday.datasets import neighbours

EPOCHS, NEGATIVES = 2, 5


class SkipGram(nn.Module):
    def __init__(self):
        super().__init__()
        self.centre, self.context = nn.Embedding(200, 16, sparse=True), nn.Embedding(200, 16, sparse=True)

    def forward(self, words, near, far):
        centre = self.centre(words)[:, None]
        alike = (centre * self.context(near)[:, None]).sum(-1)
        unlike = (centre * self.context(far)).sum(-1)
        return -(logsigmoid(alike).sum(1) + logsigmoid(-unlike).sum(1)).mean()


torch.manual_seed(0)
train_loader = DataLoader(neighbours(512, seed=1), batch_size=32, shuffle=True)
model = SkipGram()
optimizer = torch.optim.SparseAdam(model.parameters(), lr=1e-2)

for epoch in range(1, EPOCHS + 1):
    total = 0.0
    for words, near in train_loader:
        loss = model(words, near, torch.randint(200, (len(words), NEGATIVES)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(f"epoch {epoch}: loss {total / len(train_loader):.3f}")

torch.save(model.state_dict(), "model.pt")
