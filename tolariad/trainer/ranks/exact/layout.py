"""Where tensors lie in one flat copy of them: every rank computes the same places from the same model."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import groupby
from typing import Final, NamedTuple

import torch

from tolariad.trainer.ranks.exact.order import share

# Tensors begin at lines of the cache. A rank's share begins at one too, so no two ranks write to one line.
LINE: Final = 64
# So many bytes of the sum stay in the processor's cache while one leaf after the other is added to them.
_PIECE: Final = 1 << 20


class Place(NamedTuple):
    """The place of one tensor. `begin`: its first byte in the copy; `strides`: those that its gradient gets."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    begin: int


class Piece(NamedTuple):
    """Bytes of the copy that hold elements of one dtype. `first`, `end`: the tensors of which it has a part."""

    dtype: torch.dtype
    begin: int
    stop: int
    first: int
    end: int


class Layout:
    """The places of tensors, in their order. `size`: bytes of one copy."""

    def __init__(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """`tensors`: names and tensors, of which dtype, shape and strides count."""
        self.places: list[Place] = []
        self.size = 0
        for name, tensor in tensors:
            # The strides of a gradient: the parameter's, if its elements lie close together. Else row by row.
            like = torch.empty_like(tensor, device="meta").stride()
            strides = like if like == tensor.stride() else torch.empty(tensor.shape, device="meta").stride()
            self.places.append(Place(name, tensor.dtype, tuple(tensor.shape), tuple(strides), self.size))
            self.size += -(-tensor.numel() * tensor.dtype.itemsize // LINE) * LINE

    def views(self, copy: torch.Tensor) -> list[torch.Tensor]:
        """Return the tensors of one copy, given as bytes [size]. Padding between them belongs to none."""
        return [
            copy[one.begin :].view(one.dtype).as_strided(one.shape, one.strides)
            if math.prod(one.shape)
            else torch.empty(one.shape, dtype=one.dtype)
            for one in self.places
        ]

    def pieces(self, ranks: int, rank: int) -> list[Piece]:
        """Return what a rank adds up: its share of all neighbours of one dtype."""
        found = []
        for dtype, group in groupby(range(len(self.places)), key=lambda number: self.places[number].dtype):
            numbers = list(group)
            begin, stop = self._begin(numbers[0]), self._begin(numbers[-1] + 1)
            low, high = share(stop - begin, ranks, rank, LINE)
            for at in range(begin + low, begin + high, _PIECE):
                end = min(at + _PIECE, begin + high)
                touched = [one for one in numbers if self._begin(one) < end and self._begin(one + 1) > at]
                found.append(Piece(dtype, at, end, touched[0], touched[-1] + 1))
        return found

    def narrowed(self, piece: Piece, number: int, end: int) -> Piece:
        """Return the part of a piece that belongs to the tensors `number` to `end`, which it touches."""
        begin, stop = max(piece.begin, self._begin(number)), min(piece.stop, self._begin(end))
        return Piece(piece.dtype, begin, stop, number, end)

    def _begin(self, number: int) -> int:
        return self.places[number].begin if number < len(self.places) else self.size
