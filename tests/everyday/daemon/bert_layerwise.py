"""Fine-tune an encoder on masked words: a rate for each layer, no decay for norms and biases, warm-up and a line."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from tests.everyday.datasets import SYMBOLS, Text, saved_weights

LENGTH, WIDTH, LAYERS, RATE = 16, 32, 3, 4e-3


class Masking:
    """Hides one word in seven, and says which: a collate function with a generator of its own."""

    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, items):
        words = torch.stack([words for words, _ in items])
        hidden = torch.rand(words.shape, generator=self.generator) < 0.15
        return words.masked_fill(hidden, SYMBOLS), words.masked_fill(~hidden, -100)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(SYMBOLS + 1, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(WIDTH, 2, 64, batch_first=True) for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, SYMBOLS)

    def forward(self, words):
        x = self.words(words) + self.places.weight
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def layerwise(model):
    """Half the rate for each layer that lies deeper."""
    depths = [(model.head, 0), *((model.layers[LAYERS - at], at) for at in range(1, LAYERS + 1))]
    groups = []
    for module, depth in [*depths, (model.words, LAYERS + 1), (model.places, LAYERS + 1)]:
        for decay, dims in ((0.01, (2,)), (0.0, (1,))):
            if parameters := [one for one in module.parameters() if one.dim() in dims]:
                groups.append({"params": parameters, "lr": RATE * 0.5**depth, "weight_decay": decay})
    return groups


class MaskedWordsTask:
    def train_data(self, cfg):
        return DataLoader(Text(256, seed=1), batch_size=16, shuffle=True, collate_fn=Masking(seed=5))

    def model(self, cfg):
        model = Encoder()
        model.load_state_dict(saved_weights(model))
        return model

    def optimizer(self, model, cfg):
        return torch.optim.AdamW(layerwise(model))

    def loss(self, model, batch):
        words, hidden = batch
        return cross_entropy(model(words).flatten(0, 1), hidden.flatten())

    def clip_gradients(self, model):
        return nn.utils.clip_grad_norm_(model.parameters(), 1.0)
