"""Classify images: a convolutional network, random flips, SGD with one-cycle rates."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from tests.everyday.datasets import Images
from tolariad import Tolaria

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
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
config = {"rng_seed": 0, "checkpoint_interval_epochs": 1, "learning_rate": {"policy": "onecycle", "base_lr": 0.05}}
run = Tolaria({"tolaria": config}, run_dir="runs/image").run(model, optimizer, train_loader)

for epoch in run.epochs(EPOCHS):
    for images, labels in run.batches():
        loss = cross_entropy(model(images), labels, label_smoothing=0.1)
        run.step(loss)
    model.eval()
    with torch.no_grad():
        correct = sum((model(images).argmax(1) == labels).sum().item() for images, labels in val_loader)
    model.train()
    run.validated(accuracy=correct / len(val_data))
    print(f"epoch {epoch}: accuracy {correct / len(val_data):.3f}")

torch.save(model.state_dict(), "model.pt")
