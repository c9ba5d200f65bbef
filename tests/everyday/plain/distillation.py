"""Distil a network: a frozen teacher, a small student, soft and hard targets."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy, kl_div
from torch.utils.data import DataLoader

from tests.everyday.datasets import Images, saved_weights

EPOCHS, TEMPERATURE = 4, 2.0

torch.manual_seed(0)
train_loader = DataLoader(Images(256, seed=1, flip=True), batch_size=32, shuffle=True)
val_data = Images(128, seed=2)
teacher = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))
teacher.load_state_dict(saved_weights(teacher))
teacher.eval().requires_grad_(False)
student = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4))
optimizer = torch.optim.AdamW(student.parameters(), lr=5e-3)

for epoch in range(EPOCHS):
    for images, labels in train_loader:
        with torch.no_grad():
            soft = (teacher(images) / TEMPERATURE).log_softmax(1)
        logits = student(images)
        imitated = kl_div((logits / TEMPERATURE).log_softmax(1), soft, reduction="batchmean", log_target=True)
        loss = 0.5 * cross_entropy(logits, labels) + 0.5 * TEMPERATURE**2 * imitated
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    student.eval()
    with torch.no_grad():
        agreed = (student(val_data.images).argmax(1) == teacher(val_data.images).argmax(1)).float().mean().item()
    student.train()
    print(f"epoch {epoch + 1}: agrees with the teacher on {agreed:.3f}")

torch.save(student.state_dict(), "model.pt")
