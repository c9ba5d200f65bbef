"""The parts that both ways of computing cautious AdamW share: options, members, bias corrections, mask and scale.

A sharded parameter (DTensor, FSDP) is updated by its local part, with sums over all parts. Promises: equal inputs give
equal bits in both ways. torch.distributed is not imported unless the process has imported it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

# m * g underflows to 0 long before m and g do, and would mask a coordinate that agrees. Scaled by one of these, the
# product keeps its sign down to the smallest normal numbers. If it overflows, infinity has the right sign too.
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
    """A parameter and the tensors of its update. `whole` is the parameter itself; the others are its local parts."""

    whole: torch.Tensor
    parameter: torch.Tensor
    gradient: torch.Tensor
    exp_avg: torch.Tensor
    exp_avg_sq: torch.Tensor
    step: torch.Tensor


class Corrections(NamedTuple):
    """Adam's bias corrections at one step: eta / (1 - beta1^t) and sqrt(1 - beta2^t)."""

    step_size: float
    root: float


class AgreementCount:
    """Counts of the coordinates that moved and of all. They stay on the device until they are read."""

    def __init__(self) -> None:
        self._host = [0.0, 0.0]
        self._device: list[torch.Tensor] = []

    def put(self, counts: Counts) -> None:
        """Add the counts of one tensor."""
        if isinstance(counts.kept, torch.Tensor):
            self._device.append(torch.stack([torch.as_tensor(count).to(counts.kept) for count in counts]))
        else:
            self._host[0] += counts.kept
            self._host[1] += float(counts.considered)

    def fraction(self) -> float | None:
        """Return the share of coordinates that moved; None if there were none."""
        kept, considered = self._host
        for counts in self._device:
            kept += float(counts[0])
            considered += float(counts[1])
        return kept / considered if considered else None


class Counts(NamedTuple):
    """The coordinates of one tensor that agree, and those that the mean covers.

    Tensors, if the host should not wait.
    """

    kept: float | torch.Tensor
    considered: float | torch.Tensor


def corrections(member: Member, options: Options) -> Corrections:
    """Return the bias corrections of the next update, as Python floats like torch's."""
    t = float(member.step) + 1.0
    return Corrections(options.lr / (1 - options.beta1**t), (1 - options.beta2**t) ** 0.5)


def scale_of(counts: Counts, options: Options) -> float:
    """Return the factor that makes the mean of the mask 1, bounded by `mask_eps` and `max_scale`."""
    mean = counts.kept / counts.considered if counts.considered else 0.0
    scale = 1.0 / max(float(mean), options.mask_eps)
    return scale if options.max_scale is None else min(scale, options.max_scale)


def agreement(gradient: torch.Tensor, exp_avg: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Write to `out` 1 if momentum and gradient have the same sign, else 0 (also if one of them is 0 or NaN)."""
    lift = LIFT.get(out.dtype, LIFT_OTHERS)
    return torch.addcmul(out.new_zeros(()), gradient, exp_avg, value=lift, out=out).gt_(0)


def count_dtype(tensor: torch.Tensor) -> torch.dtype:
    """Return a dtype in which the sum of so many ones is exact."""
    exact = tensor.dtype is torch.float32 and tensor.numel() <= 2**24
    return torch.float32 if exact else torch.float64


def local(tensor: torch.Tensor, *, like: torch.Tensor | None = None) -> torch.Tensor:
    """Return the local part of a tensor, with the same storage; the tensor itself if it is not sharded.

    `like`: a parameter. A gradient with another placement is first redistributed to this parameter's.
    """
    sharded = _dtensor(tensor)
    if sharded is None:
        return tensor
    model = _dtensor(like) if like is not None else None
    if model is not None and sharded.placements != model.placements:
        sharded = sharded.redistribute(model.device_mesh, model.placements)
    part = sharded.to_local()
    wait = getattr(part, "wait", None)  # an all-gather may be in flight
    return wait() if callable(wait) else part


def summed(counts: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Return the sum of `counts` over all parts of `parameter`. Replicas count once."""
    sharded = _dtensor(parameter)
    if sharded is None:
        return counts
    tensor = sys.modules["torch.distributed.tensor"]
    spread = [
        tensor.Replicate() if placement.is_replicate() else tensor.Partial("sum") for placement in sharded.placements
    ]
    whole: torch.Tensor = tensor.DTensor.from_local(counts, sharded.device_mesh, spread, run_check=False).full_tensor()
    return whole


def _dtensor(tensor: Any) -> DTensor | None:
    module = sys.modules.get("torch.distributed.tensor")
    return tensor if module is not None and isinstance(tensor, module.DTensor) else None
