"""Large batches on a small machine: four batches accumulated for each update, bf16, an average of the weights."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader

from tests.everyday.datasets import Images

EPOCHS, ACCUMULATED = 4, 4

torch.manual_seed(0)
train_loader = DataLoader(Images(256, seed=1, flip=True), batch_size=8, shuffle=True)
val_data = Images(128, seed=2)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 4))
averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

for epoch in range(EPOCHS):
    for number, (images, labels) in enumerate(train_loader, 1):
        with torch.autocast("cpu", torch.bfloat16):
            loss = cross_entropy(model(images), labels)
        (loss / ACCUMULATED).backward()
        if number % ACCUMULATED == 0:
            optimizer.step()
            optimizer.zero_grad()
            averaged.update_parameters(model)
    averaged.eval()
    with torch.no_grad():
        accuracy = (averaged(val_data.images).argmax(1) == val_data.labels).float().mean().item()
    print(f"epoch {epoch + 1}: accuracy {accuracy:.3f}")

torch.save(model.state_dict(), "model.pt")
torch.save(averaged.state_dict(), "averaged.pt")
