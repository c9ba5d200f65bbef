"""Cautious AdamW of one tensor, in chunks that stay in cache.

Promises: two chunks are the only extra memory. The bits do not depend on the chunks: every operation is elementwise,
counts are integers, scales are Python floats.

Why two passes: the mask's mean is needed before any coordinate moves. The first pass updates the first moment and
counts; the second does everything else. Together they move nine words per coordinate through memory; plain AdamW moves
seven.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import torch

from tolariad.trainer.optim.cautious_rule import (
    AgreementCount,
    Counts,
    agreement,
    corrections,
    count_dtype,
    scale_of,
    summed,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tolariad.trainer.optim.cautious_rule import Corrections, Member, Options

CHUNK: Final = 2**18


class _Piece(NamedTuple):
    parameter: torch.Tensor
    gradient: torch.Tensor
    exp_avg: torch.Tensor
    exp_avg_sq: torch.Tensor
    a: torch.Tensor
    b: torch.Tensor


def update(member: Member, options: Options, moved: AgreementCount) -> None:
    """Update one tensor."""
    pieces = list(_pieces(member))
    bias = corrections(member, options)
    if options.caution:
        counts = _count(member, pieces, options)
        moved.put(counts)
        scale = scale_of(counts, options)
        for piece in pieces:
            _move_cautiously(piece, options, bias, scale, again=len(pieces) > 1)
    else:
        for piece in pieces:
            _move(piece, options, bias)
    member.step.add_(1.0)


def _pieces(member: Member) -> Iterator[_Piece]:
    """Yield flat chunks that share scratch memory. A tensor that is not contiguous is one piece, in its own shape."""
    parameter, exp_avg = member.parameter, member.exp_avg
    tensors = (parameter, member.gradient.to(exp_avg.dtype), exp_avg, member.exp_avg_sq)
    if not all(tensor.is_contiguous() for tensor in tensors):
        yield _Piece(*tensors, torch.empty_like(exp_avg), torch.empty_like(exp_avg))
        return
    size = min(CHUNK, parameter.numel())
    a, b = exp_avg.new_empty(size), exp_avg.new_empty(size)
    for p, g, m, v in zip(*(tensor.view(-1).split(CHUNK) for tensor in tensors), strict=True):
        yield _Piece(p, g, m, v, a[: p.numel()], b[: p.numel()])


def _count(member: Member, pieces: list[_Piece], options: Options) -> Counts:
    """Do the first pass: update first moments, and count agreement. The last piece's mask stays in its `b`."""
    kept = considered = 0.0
    for piece in pieces:
        piece.exp_avg.lerp_(piece.gradient, 1 - options.beta1)
        kept += agreement(piece.gradient, piece.exp_avg, piece.b).sum(dtype=count_dtype(piece.b)).item()
        if options.live_mean:
            considered += torch.count_nonzero(piece.gradient).item()
    if not options.live_mean:
        considered = float(member.whole.numel())
    if member.whole is member.parameter:
        return Counts(kept, considered)
    parts = torch.tensor([kept, considered], dtype=torch.float64, device=member.parameter.device)
    sums = summed(parts, member.whole).tolist()
    return Counts(sums[0], sums[1] if options.live_mean else considered)


def _move_cautiously(piece: _Piece, options: Options, bias: Corrections, scale: float, *, again: bool) -> None:
    """Do the second pass over one piece: second moments, decay, step. `again`: compute the mask again."""
    a, b = piece.a, piece.b
    if again:
        agreement(piece.gradient, piece.exp_avg, b)
    _decay(piece, options, a)
    b.mul_(piece.exp_avg)
    piece.exp_avg_sq.mul_(options.beta2).addcmul_(piece.gradient, piece.gradient, value=1 - options.beta2)
    # m / (sqrt(v) / root + eps), with numerator and denominator multiplied by root: this saves a pass over the chunk.
    torch.sqrt(piece.exp_avg_sq, out=a).add_(options.eps * bias.root)
    piece.parameter.addcdiv_(b, a, value=-bias.step_size * bias.root * scale)


def _move(piece: _Piece, options: Options, bias: Corrections) -> None:
    """Do plain AdamW with the same operations as torch, so that the bits are the same."""
    piece.exp_avg.lerp_(piece.gradient, 1 - options.beta1)
    _decay(piece, options, piece.a)
    piece.exp_avg_sq.mul_(options.beta2).addcmul_(piece.gradient, piece.gradient, value=1 - options.beta2)
    torch.sqrt(piece.exp_avg_sq, out=piece.a).div_(bias.root).add_(options.eps)
    piece.parameter.addcdiv_(piece.exp_avg, piece.a, value=-bias.step_size)


def _decay(piece: _Piece, options: Options, scratch: torch.Tensor) -> None:
    """Apply decoupled weight decay. Cautious decay affects only coordinates that have the sign of their momentum."""
    amount = options.lr * options.weight_decay
    if not amount:
        return
    if options.cautious_weight_decay:
        agreement(piece.parameter, piece.exp_avg, scratch)
        piece.parameter.addcmul_(piece.parameter, scratch, value=-amount)
    else:
        piece.parameter.mul_(1 - amount)
