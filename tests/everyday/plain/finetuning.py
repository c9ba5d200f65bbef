"""Fine-tune a trained network: its first layers stay frozen, the last ones get two rates, lowered on a plateau."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from tests.everyday.datasets import Images, saved_weights

EPOCHS = 4

torch.manual_seed(0)
train_loader = DataLoader(Images(256, seed=1), batch_size=32, shuffle=True)
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

for epoch in range(EPOCHS):
    model.train()
    backbone.eval()
    for images, labels in train_loader:
        loss = cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        val_loss = cross_entropy(model(val_data.images), val_data.labels).item()
    scheduler.step(val_loss)
    print(f"epoch {epoch + 1}: loss {val_loss:.4f}")

torch.save(model.state_dict(), "model.pt")
