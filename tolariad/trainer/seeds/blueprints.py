"""Blueprints: how a seed is built for the shape of its slot's input.

Promises: a built-in seed is the identity at birth, bit for bit, including -0.0, for every input for which its inner
values stay finite. It draws only while it is built. Its parameters have the dtype and the device of the example.

Of vectors, and of sequences as (batch, length, width), the last dimension has the channels. Of images, which are
(batch, channels, height, width), and of volumes, dimension 1 has them. `conv` also takes sequences as (batch, channels,
length).
"""

from __future__ import annotations

from typing import Any, Final, Protocol, runtime_checkable

from torch import Tensor, nn

from tolariad.trainer.errors import SetupRefused

_POINTWISE: Final = {3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}


@runtime_checkable
class Blueprint(Protocol):
    """Builds seeds. Its options are keyword arguments of the class, all floats."""

    def build(self, example: Tensor) -> nn.Module:
        """Return a new seed for inputs like `example`: a module that maps a tensor to one of equal shape and dtype.

        At birth it must return its input unchanged. `example` has zeros; its batch size may differ later. Before the
        call torch's generators are seeded, so that another process builds the same seed: draw from nothing else.
        """
        ...


class Grown(nn.Module):
    """h + branch(h). With a branch that returns zeros of any sign, exactly h."""

    draws_nothing = True  # itself; the slot also looks at the modules of the branch

    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch = branch

    def forward(self, h: Tensor) -> Tensor:
        """Return a tensor of the shape of `h`."""
        # `h + branch(h)` would make +0.0 of -0.0. 0.0 - x is +0.0 for x = 0.0 and for x = -0.0, and h - 0.0 is h.
        out: Tensor = h - (0.0 - self.branch(h))
        return out


class Bottleneck:
    """An adapter: channels to channels / `reduction`, GELU, and back (Houlsby et al. 2019, without its norm).

    `axis`: the dimension of the channels, 1 or -1. 0: by the number of dimensions, as the module says.
    """

    def __init__(self, reduction: float = 4.0, axis: float = 0.0) -> None:
        self._reduction = _at_least_one("bottleneck", "reduction", reduction)
        self._axis = axis

    def build(self, example: Tensor) -> nn.Module:
        """Return the seed. Raises SetupRefused."""
        axis = _axis("bottleneck", example, self._axis)
        width = example.shape[axis]
        hidden = max(1, int(width / self._reduction))
        down = _pointwise(example, axis, width, hidden, bias=True)
        up = _pointwise(example, axis, hidden, width, bias=True)
        return Grown(nn.Sequential(down, nn.GELU(), _zeroed(up)))


class Conv:
    """A depthwise convolution of `kernel` points each way, GELU, and a zero-initialised pointwise one."""

    def __init__(self, kernel: float = 3.0) -> None:
        if kernel < 1 or kernel % 2 != 1:
            raise SetupRefused(f"blueprint: kernel of conv must be 1, 3, 5 and so on, not {kernel:g}")
        self._kernel = int(kernel)

    def build(self, example: Tensor) -> nn.Module:
        """Return the seed. Raises SetupRefused."""
        kind = _POINTWISE.get(example.dim())
        if kind is None:
            raise SetupRefused(
                f"blueprint: conv needs an input (batch, channels, length), an image or a volume, not one of shape "
                f"{tuple(example.shape)}; use bottleneck or low_rank"
            )
        channels = example.shape[1]
        where: dict[str, Any] = {"dtype": example.dtype, "device": example.device}
        depthwise = kind(channels, channels, self._kernel, padding=self._kernel // 2, groups=channels, **where)
        return Grown(nn.Sequential(depthwise, nn.GELU(), _zeroed(kind(channels, channels, 1, **where))))


class LowRank:
    """h + B A h, with A random and B zero (LoRA, Hu et al. 2021). `axis` has the same meaning as in Bottleneck."""

    def __init__(self, rank: float = 8.0, axis: float = 0.0) -> None:
        self._rank = int(_at_least_one("low_rank", "rank", rank))
        self._axis = axis

    def build(self, example: Tensor) -> nn.Module:
        """Return the seed. A higher rank than channels is cut to their number. Raises SetupRefused."""
        axis = _axis("low_rank", example, self._axis)
        width = example.shape[axis]
        rank = min(self._rank, width)
        down = _pointwise(example, axis, width, rank, bias=False)
        return Grown(nn.Sequential(down, _zeroed(_pointwise(example, axis, rank, width, bias=False))))


def _pointwise(example: Tensor, axis: int, inputs: int, outputs: int, *, bias: bool) -> nn.Module:
    """Return a linear map of the channels, which is a convolution of one point if they are dimension 1."""
    where: dict[str, Any] = {"dtype": example.dtype, "device": example.device}
    if axis == -1:
        return nn.Linear(inputs, outputs, bias=bias, **where)
    return _POINTWISE[example.dim()](inputs, outputs, 1, bias=bias, **where)


def _zeroed(layer: nn.Module) -> nn.Module:
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer


def _axis(blueprint: str, example: Tensor, wanted: float) -> int:
    """Return the dimension of the channels, 1 or -1. Raises SetupRefused."""
    if wanted not in {-1.0, 0.0, 1.0}:
        raise SetupRefused(f"blueprint: axis of {blueprint} must be 1 or -1, or 0 to choose, not {wanted:g}")
    dimensions = example.dim()
    axis = int(wanted) or (1 if dimensions in {4, 5} else -1)
    if dimensions == 2 and axis == 1:
        axis = -1
    if dimensions < 1 or (axis == 1 and dimensions not in _POINTWISE):
        raise SetupRefused(f"blueprint: {blueprint} cannot find the channels of shape {tuple(example.shape)}; set axis")
    return axis


def _at_least_one(blueprint: str, option: str, value: float) -> float:
    if not 1.0 <= value < 1e6:
        raise SetupRefused(f"blueprint: {option} of {blueprint} must be at least 1, not {value:g}")
    return value
