"""Classify images: a convolutional network, random flips, SGD with one-cycle rates."""

from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from tests.everyday.datasets import Images


class ImageTask:
    def train_data(self, cfg):
        return DataLoader(Images(256, seed=1, flip=True), batch_size=32, shuffle=True)

    def val_data(self, cfg):
        return DataLoader(Images(128, seed=2), batch_size=64)

    def model(self, cfg):
        return nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(0.1),
            nn.Linear(128, 4),
        )

    def loss(self, model, batch):
        images, labels = batch
        return cross_entropy(model(images), labels, label_smoothing=0.1)

    def evaluate(self, model, batch):
        images, labels = batch
        return {"accuracy": ((model(images).argmax(1) == labels).sum(), len(labels))}
