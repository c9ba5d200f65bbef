"""Find cells in pictures: a U-Net, two workers, a loader and a data set with generators of their own."""

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, interpolate
from torch.utils.data import DataLoader

from tests.everyday.datasets import Cells

EPOCHS = 2


def convolved(inputs, outputs):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU())


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.bottom, self.up = convolved(1, 4), convolved(4, 8), convolved(12, 4)
        self.pool, self.drop, self.head = nn.MaxPool2d(2), nn.Dropout2d(0.1), nn.Conv2d(4, 1, 1)

    def forward(self, x):
        fine = self.down(x)
        coarse = self.drop(self.bottom(self.pool(fine)))
        return self.head(self.up(torch.cat([fine, interpolate(coarse, scale_factor=2.0)], 1)))


torch.manual_seed(0)
generator = torch.Generator().manual_seed(3)
train_data, val_data = Cells(128, seed=1, augment=True), Cells(32, seed=2)
train_loader = DataLoader(train_data, batch_size=8, shuffle=True, num_workers=2, generator=generator)
model = UNet()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

for epoch in range(1, EPOCHS + 1):
    for images, masks in train_loader:
        loss = binary_cross_entropy_with_logits(model(images), masks)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        images, masks = torch.from_numpy(val_data.images), torch.from_numpy(val_data.masks)
        found = model(images) > 0
    model.train()
    overlap = ((found & (masks > 0)).sum() / (found | (masks > 0)).sum()).item()
    print(f"epoch {epoch}: overlap {overlap:.3f}")

torch.save(model.state_dict(), "model.pt")
