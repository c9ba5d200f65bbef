"""What the ways of computing cautious AdamW share: options, members, bias corrections, the mask and its scale.

Promises: equal inputs give equal bits, whoever computes. It must not know: chunks, foreach, parameter groups.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch

# m * g underflows to 0 long before m and g do, and a coordinate would be masked that agrees. Scaled by one of these the
# product keeps its sign down to the smallest normal numbers; where it overflows, infinity has the right sign as well.
LIFT: Final = {torch.float64: 2.0**500}
LIFT_OTHERS: Final = 2.0**100


class Options(NamedTuple):
    """A group's options, as `CautiousAdamW` documents them."""

    lr: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    mask_eps: float
    caution: bool
    cautious_weight_decay: bool
    live_mean: bool
    max_scale: float | None


class Member(NamedTuple):
    """A parameter with what its update needs; `whole` is the parameter itself, the others its local parts."""

    whole: torch.Tensor
    parameter: torch.Tensor
    gradient: torch.Tensor
    exp_avg: torch.Tensor
    exp_avg_sq: torch.Tensor
    step: torch.Tensor


class Corrections(NamedTuple):
    """What Adam's bias corrections come to at one step: eta / (1 - beta1^t) and sqrt(1 - beta2^t)."""

    step_size: float
    root: float


class Tally:
    """How many coordinates moved, of how many; kept on the device until somebody asks."""

    def __init__(self) -> None:
        self._host = [0.0, 0.0]
        self._device: list[torch.Tensor] = []

    def put(self, counts: Counts) -> None:
        """Take in one tensor's counts."""
        if isinstance(counts.kept, torch.Tensor):
            self._device.append(torch.stack([torch.as_tensor(count).to(counts.kept) for count in counts]))
        else:
            self._host[0] += counts.kept
            self._host[1] += float(counts.considered)

    def fraction(self) -> float | None:
        """The kept share of what was considered, None where nothing was."""
        kept, considered = self._host
        for counts in self._device:
            kept += float(counts[0])
            considered += float(counts[1])
        return kept / considered if considered else None


class Counts(NamedTuple):
    """Coordinates of one tensor that agree, and those the mean is over; tensors where the host should not wait."""

    kept: float | torch.Tensor
    considered: float | torch.Tensor


def corrections(member: Member, options: Options) -> Corrections:
    """The bias corrections of the update that is about to be made, in Python floats as torch takes them."""
    t = float(member.step) + 1.0
    return Corrections(options.lr / (1 - options.beta1**t), (1 - options.beta2**t) ** 0.5)


def scale_of(counts: Counts, options: Options) -> float:
    """What the mask is multiplied by, so that its mean becomes 1; bounded by `mask_eps` and `max_scale`."""
    mean = counts.kept / counts.considered if counts.considered else 0.0
    scale = 1.0 / max(float(mean), options.mask_eps)
    return scale if options.max_scale is None else min(scale, options.max_scale)


def agreement(gradient: torch.Tensor, exp_avg: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """1 where momentum and gradient have the same sign, 0 elsewhere and where either is 0 or NaN; written to `out`."""
    lift = LIFT.get(out.dtype, LIFT_OTHERS)
    return torch.addcmul(out.new_zeros(()), gradient, exp_avg, value=lift, out=out).gt_(0)


def count_dtype(tensor: torch.Tensor) -> torch.dtype:
    """A dtype in which the sum of as many ones is exact."""
    exact = tensor.dtype is torch.float32 and tensor.numel() <= 2**24
    return torch.float32 if exact else torch.float64
