"""Large batches on a small machine: four batches accumulated for each update, bf16, an average of the weights."""

from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from tests.everyday.datasets import Images


class AccumulationTask:
    def train_data(self, cfg):
        return DataLoader(Images(256, seed=1, flip=True), batch_size=8, shuffle=True)

    def val_data(self, cfg):
        return Images(128, seed=2)

    def model(self, cfg):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 4))

    def loss(self, model, batch):
        images, labels = batch
        return cross_entropy(model(images), labels)

    def evaluate(self, model, batch):
        images, labels = batch
        return {"accuracy": (model(images).argmax(1) == labels).float().mean()}
