"""Distil a network: a frozen teacher, a small student, soft and hard targets."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy, kl_div
from torch.utils.data import DataLoader

from tests.everyday.datasets import Images, saved_weights

TEMPERATURE = 2.0

teacher = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))
teacher.load_state_dict(saved_weights(teacher))
teacher.eval().requires_grad_(False)


class DistillationTask:
    def train_data(self, cfg):
        return DataLoader(Images(256, seed=1, flip=True), batch_size=32, shuffle=True)

    def val_data(self, cfg):
        return Images(128, seed=2)

    def model(self, cfg):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4))

    def loss(self, student, batch):
        images, labels = batch
        with torch.no_grad():
            soft = (teacher(images) / TEMPERATURE).log_softmax(1)
        logits = student(images)
        imitated = kl_div((logits / TEMPERATURE).log_softmax(1), soft, reduction="batchmean", log_target=True)
        return 0.5 * cross_entropy(logits, labels) + 0.5 * TEMPERATURE**2 * imitated

    def evaluate(self, student, batch):
        images, _ = batch
        agreed = (student(images).argmax(1) == teacher(images).argmax(1)).float().mean()
        return {"agreed": agreed}
