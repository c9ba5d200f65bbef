"""Small models, one for each way in which channels depend on each other."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

IMAGES, ROWS, WORDS = "images", "rows", "words"


def example(kind, seed=0, count=2):
    """Return inputs of a kind: images (n, 3, 8, 8), rows (n, 5, 8), or words (n, 5) of 11."""
    generator = torch.Generator().manual_seed(seed)
    if kind == WORDS:
        return torch.randint(0, 11, (count, 5), generator=generator)
    shape = (count, 3, 8, 8) if kind == IMAGES else (count, 5, 8)
    return torch.randn(shape, generator=generator)


class Residual(nn.Module):
    """A residual sum after a BatchNorm, read by a linear layer through a flattening."""

    kind = IMAGES

    def __init__(self):
        super().__init__()
        self.a, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.b, self.out = nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8 * 4, 5)

    def forward(self, x):
        hidden = self.norm(self.a(x)).relu()
        hidden = hidden + self.b(hidden)
        return self.out(functional.adaptive_avg_pool2d(hidden, 2).flatten(1))


class Concatenated(nn.Module):
    """Two branches, concatenated before a BatchNorm."""

    kind = IMAGES

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 6, 1)
        self.norm, self.c = nn.BatchNorm2d(10), nn.Conv2d(10, 5, 1)

    def forward(self, x):
        return self.c(self.norm(torch.cat([self.a(x), self.b(x)], 1)).relu()).mean((2, 3))


class Grouped(nn.Module):
    """A GroupNorm of four groups of two channels."""

    kind = IMAGES

    def __init__(self):
        super().__init__()
        self.a, self.norm, self.c = nn.Conv2d(3, 8, 1), nn.GroupNorm(4, 8), nn.Conv2d(8, 5, 1)

    def forward(self, x):
        return self.c(self.norm(self.a(x)).relu()).mean((2, 3))


class Depthwise(nn.Module):
    """A depthwise convolution, a transposed one, an InstanceNorm without tensors, a PReLU."""

    kind = IMAGES

    def __init__(self):
        super().__init__()
        self.a, self.d = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, groups=8, padding=1)
        self.t, self.norm = nn.ConvTranspose2d(8, 6, 2, 2), nn.InstanceNorm2d(6)
        self.p, self.c = nn.PReLU(6), nn.Conv2d(6, 5, 1)

    def forward(self, x):
        return self.c(self.p(self.norm(self.t(self.d(self.a(x)).relu())))).mean((2, 3))


class InGroups(nn.Module):
    """A convolution in two groups."""

    kind = IMAGES

    def __init__(self):
        super().__init__()
        self.a, self.g = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 12, 3, groups=2, padding=1)
        self.c = nn.Conv2d(12, 5, 1)

    def forward(self, x):
        return self.c(self.g(self.a(x)).relu()).mean((2, 3))


class Gated(nn.Module):
    """Two halves of one layer are multiplied: channels i and i + 8 depend on each other."""

    kind = ROWS

    def __init__(self):
        super().__init__()
        self.a, self.c = nn.Linear(8, 16), nn.Linear(8, 5)

    def forward(self, x):
        left, right = self.a(x).chunk(2, -1)
        return self.c(left * functional.silu(right))


class Normalised(nn.Module):
    """A LayerNorm over the channels; a feed-forward layer without one."""

    kind = ROWS

    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b, self.c = nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 5)

    def forward(self, x):
        return self.c(functional.gelu(self.b(self.norm(self.a(x)))))


class Tied(nn.Module):
    """The output layer has the weight of the embedding. The sum lets both use the same channels."""

    kind = WORDS

    def __init__(self, *, residual=True):
        super().__init__()
        self.e, self.f, self.g = nn.Embedding(11, 8), nn.Linear(8, 16), nn.Linear(16, 8)
        self.h = nn.Linear(8, 11, bias=False)
        self.h.weight = self.e.weight
        self.residual = residual

    def forward(self, x):
        hidden = self.e(x)
        inner = self.g(self.f(hidden).relu())
        return self.h(hidden + inner if self.residual else inner)


class TiedElsewhere(Tied):
    """Without the sum the embedding's channels are not those of the output layer."""

    def __init__(self):
        super().__init__(residual=False)


class TiedLayers(nn.Module):
    """Two layers, one after the other, with one weight."""

    kind = ROWS

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.d = nn.Linear(8, 6), nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.c.weight = self.b.weight

    def forward(self, x):
        return self.d(self.c(self.b(self.a(x).relu()).relu()))


class Twice(nn.Module):
    """One layer that is used twice."""

    kind = ROWS

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(8, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.c(self.b(self.b(self.a(x).relu()).relu()))


class Positioned(nn.Module):
    """A parameter of the model itself, whose channels are those of its inputs."""

    kind = ROWS

    def __init__(self):
        super().__init__()
        self.position = nn.Parameter(torch.ones(5, 8))
        self.a, self.c = nn.Linear(8, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.c(self.a(x + self.position).relu())


class Flipped(nn.Module):
    """An operation that exchanges channels. To the graph it looks like one that does not."""

    kind = IMAGES

    def __init__(self):
        super().__init__()
        self.a, self.c = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 5, 1)

    def forward(self, x):
        return self.c(self.a(x).flip(1).relu()).mean((2, 3))


class Softened(nn.Module):
    """A softmax over the channels, by a function."""

    kind = ROWS

    def __init__(self):
        super().__init__()
        self.a, self.c = nn.Linear(8, 6), nn.Linear(6, 5)

    def forward(self, x):
        return self.c(self.a(x).softmax(-1))


class Parametrised(nn.Module):
    """A weight that is computed from others."""

    kind = ROWS

    def __init__(self):
        super().__init__()
        self.a, self.c = nn.utils.parametrizations.weight_norm(nn.Linear(8, 6)), nn.Linear(6, 5)

    def forward(self, x):
        return self.c(self.a(x).relu())


class Attention(nn.Module):
    """Four heads of two channels, by one layer for queries, keys and values."""

    kind = ROWS

    def __init__(self, *, interleaved=False):
        super().__init__()
        self.num_heads, self.head_dim, self.interleaved = 4, 2, interleaved
        self.qkv, self.proj = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x):
        n, t, _ = x.shape
        shape = (n, t, self.num_heads, 3, -1) if self.interleaved else (n, t, 3, self.num_heads, -1)
        order = (3, 0, 2, 1, 4) if self.interleaved else (2, 0, 3, 1, 4)
        query, key, value = self.qkv(x).reshape(shape).permute(order)
        mixed = functional.scaled_dot_product_attention(query, key, value)
        return self.proj(mixed.transpose(1, 2).reshape(n, t, -1))


class Interleaved(Attention):
    """Queries, keys and values head by head: the rows are not where their usual order has them."""

    def __init__(self):
        super().__init__(interleaved=True)


class SplitAttention(nn.Module):
    """Two heads of four channels, by a layer each for queries, keys and values."""

    kind = ROWS

    def __init__(self):
        super().__init__()
        self.num_heads = 2
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        n, t, _ = x.shape
        query, key, value = (
            layer(x).view(n, t, self.num_heads, -1).transpose(1, 2) for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out_proj(mixed.transpose(1, 2).reshape(n, t, -1))


class Miscounted(SplitAttention):
    """The attribute says four heads, and the code computes two."""

    def __init__(self):
        super().__init__()
        self.n_heads = self.num_heads
        self.num_heads = 4

    def forward(self, x):
        self.num_heads = self.n_heads
        try:
            return super().forward(x)
        finally:
            self.num_heads = 4


class Heads(nn.Module):
    """Queries, keys and values of four heads of two channels; the layer that reads them is in another module."""

    def __init__(self):
        super().__init__()
        self.num_attention_heads = 4
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        n, t, _ = x.shape
        query, key, value = (layer(x).view(n, t, -1, 2).transpose(1, 2) for layer in (self.query, self.key, self.value))
        return functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(n, t, -1)


class Beside(nn.Module):
    """Of two layers beside the attention the second one reads its heads. A second attention is not used."""

    kind = ROWS

    def __init__(self):
        super().__init__()
        self.attention, self.before, self.out = Heads(), nn.Linear(8, 8), nn.Linear(8, 3)
        self.norm, self.unused = nn.LayerNorm(8), SplitAttention()

    def forward(self, x):
        return self.out(self.attention(self.norm(self.before(x))))


class Unknown(nn.Module):
    """A layer with a weight of its own kind, and two layers whose channels are a single unit."""

    kind = ROWS

    def __init__(self):
        super().__init__()
        self.pair, self.a, self.b = nn.Bilinear(8, 8, 6), nn.Linear(6, 1), nn.Linear(1, 4)
        self.norm, self.c = nn.GroupNorm(1, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.c(self.norm(self.b(self.a(self.pair(x, x))).mean(1)))


class Encoder(nn.Module):
    """torch's own transformer layer."""

    kind = ROWS

    def __init__(self, *, bias=True):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0, bias=bias)
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        return self.out(self.layer(x).mean(1))


class Unbiased(Encoder):
    """The same without biases."""

    def __init__(self):
        super().__init__(bias=False)


class Saturating(nn.Module):
    """An activation that is not 0 at 0."""

    kind = ROWS

    def __init__(self):
        super().__init__()
        self.a, self.c = nn.Linear(8, 6), nn.Linear(6, 5)

    def forward(self, x):
        return self.c(self.a(x).sigmoid())


class Small(nn.Module):
    """A convolutional network as small as one can be, with batch normalisation.

    Convolutions before it have no bias: the normalisation takes it out again, so that its gradient is rounding alone.
    Adam makes steps of that, which differ between any two ways of computing.
    """

    kind = IMAGES

    def __init__(self):
        super().__init__()
        self.a, self.norm = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)
        self.b, self.other = nn.Conv2d(8, 8, 3, bias=False), nn.BatchNorm2d(8)
        self.out = nn.Linear(8, 5)

    def forward(self, x):
        hidden = self.norm(self.a(x)).relu()
        return self.out(self.other(self.b(hidden)).relu().mean((2, 3)))


class Rows(nn.Module):
    """The same with linear layers, for many steps. Its inputs are those of `Small`, of which it sees a pixel."""

    kind = IMAGES

    def __init__(self):
        super().__init__()
        self.a, self.norm = nn.Linear(3, 8, bias=False), nn.BatchNorm1d(8)
        self.b, self.other = nn.Linear(8, 8, bias=False), nn.BatchNorm1d(8)
        self.out = nn.Linear(8, 5)

    def forward(self, x):
        hidden = self.norm(self.a(x[:, :, 0, 0])).relu()
        return self.out(self.other(self.b(hidden)).relu())
