"""Cautious AdamW over a list of tensors of one device and dtype, by torch's foreach operations.

Promises: on the CPU the bits are those of the chunked way. On other devices the host never waits for the mask's mean.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
from tolariad.trainer.torch_private import lists

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tolariad.trainer.optim.cautious_rule import Member, Options


def update(members: Sequence[Member], options: Options, moved: AgreementCount) -> None:
    """Update tensors of one device and dtype."""
    parameters = [_with_dimension(member.parameter) for member in members]
    moments = [_with_dimension(member.exp_avg) for member in members]
    squares = [_with_dimension(member.exp_avg_sq) for member in members]
    gradients = [_with_dimension(member.gradient.to(member.exp_avg.dtype)) for member in members]
    bias = [corrections(member, options) for member in members]
    lists.lerp_(moments, gradients, 1 - options.beta1)
    _decay(parameters, moments, options)
    lists.mul_(squares, _factor(options.beta2, squares[0]))
    lists.addcmul_(squares, gradients, gradients, 1 - options.beta2)
    divisors = lists.sqrt(squares)
    if options.caution:
        lists.add_(divisors, [options.eps * one.root for one in bias])
        masks, scales = _masks(members, gradients, moments, options, moved)
        lists.mul_(masks, moments)
        if isinstance(scales[0], torch.Tensor):
            lists.mul_(masks, scales)
            amounts = [-one.step_size * one.root for one in bias]
        else:
            amounts = [-one.step_size * one.root * scale for one, scale in zip(bias, scales, strict=True)]
        lists.addcdiv_(parameters, masks, divisors, amounts)
    else:
        lists.div_(divisors, [one.root for one in bias])
        lists.add_(divisors, options.eps)
        lists.addcdiv_(parameters, moments, divisors, [-one.step_size for one in bias])
    lists.add_([member.step for member in members], 1.0)


def _masks(
    members: Sequence[Member],
    gradients: list[torch.Tensor],
    moments: list[torch.Tensor],
    options: Options,
    moved: AgreementCount,
) -> tuple[list[torch.Tensor], list[float] | list[torch.Tensor]]:
    """Return masks of 0 and 1, and the factor of each: a number on the CPU, a tensor on other devices."""
    masks = [
        agreement(gradient, moment, torch.empty_like(moment))
        for gradient, moment in zip(gradients, moments, strict=True)
    ]
    found = [
        _counts(mask, gradient, member.whole, options)
        for mask, gradient, member in zip(masks, gradients, members, strict=True)
    ]
    if masks[0].device.type == "cpu":
        counted = [Counts(kept, considered) for kept, considered in torch.stack(found).tolist()]
        for counts in counted:
            moved.put(counts)
        return masks, [scale_of(counts, options) for counts in counted]
    for sums in found:
        moved.put(Counts(sums[0], sums[1]))
    most = options.max_scale if options.max_scale is not None else 1.0 / options.mask_eps
    scales = [
        (sums[1] / sums[0].clamp(min=1.0)).clamp_(max=min(most, 1.0 / options.mask_eps)).to(masks[0].dtype)
        for sums in found
    ]
    return masks, scales


def _counts(mask: torch.Tensor, gradient: torch.Tensor, whole: torch.Tensor, options: Options) -> torch.Tensor:
    """Return two numbers in float64: the coordinates that agree, and those that the mean covers."""
    kept = mask.sum(dtype=count_dtype(mask)).double()
    if options.live_mean:
        return summed(torch.stack([kept, torch.count_nonzero(gradient).double()]), whole)
    sums = summed(kept, whole)
    return torch.stack([sums, sums.new_full((), float(whole.numel()))])


def _decay(parameters: list[torch.Tensor], moments: list[torch.Tensor], options: Options) -> None:
    amount = options.lr * options.weight_decay
    if not amount:
        return
    if options.cautious_weight_decay:
        signs = [
            agreement(parameter, moment, torch.empty_like(moment))
            for parameter, moment in zip(parameters, moments, strict=True)
        ]
        lists.addcmul_(parameters, parameters, signs, -amount)
    else:
        lists.mul_(parameters, _factor(1 - amount, parameters[0]))


def _with_dimension(tensor: torch.Tensor) -> torch.Tensor:
    """Return a 0-dim tensor as one of shape (1,) with the same memory.

    Two 0-dim tensors promote each other: a float32 one times `_factor` would be computed in float64.
    """
    return tensor.view(1) if tensor.dim() == 0 else tensor


def _factor(value: float, alike: torch.Tensor) -> float | torch.Tensor:
    """Return the factor in the form that gives mul_'s bits.

    In bfloat16 on the CPU, foreach rounds a Python number before it multiplies, but mul_ does not. With a 0-dim tensor
    both do the same.
    """
    return torch.tensor(value, dtype=torch.float64) if alike.device.type == "cpu" else value
