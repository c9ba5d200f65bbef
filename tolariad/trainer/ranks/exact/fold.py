"""Add up one rank's share of the gradients, over all leaves in their order, in the first copy."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch

from tolariad.trainer.ranks.exact.layout import Layout, Piece


def add_up(layout: Layout, pieces: Sequence[Piece], present: torch.Tensor, gradients: torch.Tensor) -> None:
    """Put the sum over all copies into copy 0, for the bytes of `pieces`.

    `present`, bytes [copies, tensors]: whether a copy has a gradient of a tensor. If one has none, it is left out of
    the sum. `gradients`: bytes [copies, size of a copy]. If no copy has a tensor, its bytes in copy 0 are left as they
    are.
    """
    if bool(present.all()):
        every = range(len(gradients))
        for piece in pieces:
            _add(piece, gradients, every)
        return
    # Which copies have a tensor, by tensor.
    having = [tuple(copy for copy, has in enumerate(one) if has) for one in present.T.tolist()]
    for piece in pieces:
        for copies, group in groupby(range(piece.first, piece.end), key=having.__getitem__):
            numbers = list(group)
            if copies:
                _add(layout.narrowed(piece, numbers[0], numbers[-1] + 1), gradients, copies)


def _add(piece: Piece, gradients: torch.Tensor, copies: Sequence[int]) -> None:
    """Add the bytes of a piece of these copies. The order is that of the copies, which is that of the leaves."""
    parts = gradients[:, piece.begin : piece.stop].view(piece.dtype)
    total = parts[0]
    if copies[0] != 0:
        total.copy_(parts[copies[0]])
    for copy in copies[1:]:
        total.add_(parts[copy])
