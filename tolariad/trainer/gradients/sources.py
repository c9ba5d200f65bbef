"""The auxiliary losses of seeds, and how much each of them counts.

Promises: the order in which seeds are given has no influence. The values of all losses come from the device in one
transfer. A stage that is unknown has weight 0, and a seed whose loss is not finite is dropped; both are counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

import torch

from tolariad.core.calc.seeds.blending import alpha as blending_alpha
from tolariad.core.calc.seeds.stages import WEIGHTS, Stage

HOST_WEIGHT: Final = 1.0


@dataclass(frozen=True)
class SeedGradientInfo:
    """The auxiliary loss of one seed, a mean over `batch_size` samples, and what decides its weight.

    `seed_id`: the name of the seed's slot. `loss`: a tensor with one element and a graph. `stage`: its `Stage`.
    `alpha`: its share in the slot's output, used in BLENDING. `importance`: a factor of the caller, at least 0. The
    other fields are the caller's notes; no weight depends on them.
    """

    seed_id: str
    loss: torch.Tensor
    batch_size: int
    stage: int
    alpha: float | None = None
    importance: float = 1.0
    gradient_norm: float = 0.0
    learning_rate: float = 0.0
    layer_depth: int = 0
    metrics: dict[str, float] = field(default_factory=dict)


class Source(NamedTuple):
    """A loss that takes part. `weight` is its stage's; its gradient is multiplied by `factor`."""

    name: str
    loss: torch.Tensor
    weight: float
    factor: float
    importance: float
    value: float


class Weighed(NamedTuple):
    """The sources of one backward pass, sorted by name, and the names of the seeds that do not take part.

    `unknown`: seeds in a stage that does not exist. `dropped`: seeds whose loss is not finite. `host_loss`: its value,
    read together with those of the seeds; None if there are no seeds.
    """

    seeds: tuple[Source, ...] = ()
    unknown: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    host_loss: float | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the seeds that take part."""
        return tuple(seed.name for seed in self.seeds)


def weigh(
    host_loss: torch.Tensor,
    infos: Sequence[SeedGradientInfo],
    host_batch_size: int,
    progress: tuple[int, int],
    weights: Mapping[int, float],
) -> Weighed:
    """Return the seeds with a weight above 0 and a finite loss.

    `progress` holds the epoch and the number of epochs. `weights` holds the weights of the stages that differ from
    `tolariad.core.calc.seeds.stages.WEIGHTS`.

    Raises ValueError, which names the seed, for a second entry of a seed, a size below 1, a loss without a graph, and
    an importance or alpha out of range.
    """
    if not infos:
        return Weighed()
    if host_batch_size < 1:
        raise ValueError(f"host_batch_size, the size of the host's batch, must be at least 1, not {host_batch_size}")
    named = sorted(infos, key=lambda info: info.seed_id)
    for one, following in pairwise(named):
        if one.seed_id == following.seed_id:
            raise ValueError(f"seed {one.seed_id!r} has two losses in one step; add them up, and give one")
    unknown = tuple(info.seed_id for info in named if info.stage not in WEIGHTS)
    weighted = [(info, weight) for info in named if (weight := weight_of(info, progress, weights)) > 0.0]
    values = _values([host_loss, *(_checked(info) for info, _ in weighted)])
    sources = [
        Source(info.seed_id, info.loss, weight, weight * info.batch_size / host_batch_size, info.importance, value)
        for (info, weight), value in zip(weighted, values[1:], strict=True)
    ]
    return Weighed(
        seeds=tuple(source for source in sources if math.isfinite(source.value)),
        unknown=unknown,
        dropped=tuple(source.name for source in sources if not math.isfinite(source.value)),
        host_loss=values[0],
    )


def weight_of(info: SeedGradientInfo, progress: tuple[int, int], weights: Mapping[int, float]) -> float:
    """Return stage weight times importance, in BLENDING times alpha too. Raises ValueError for a value out of range.

    A seed in BLENDING without an alpha gets that of the whole run's progress, as in the source. That is rarely meant:
    a seed that begins to blend late in the run starts with a high alpha.
    """
    if info.batch_size < 1:
        raise ValueError(f"seed {info.seed_id!r}: batch_size must be at least 1, not {info.batch_size}")
    if not (math.isfinite(info.importance) and info.importance >= 0.0):
        raise ValueError(f"seed {info.seed_id!r}: importance must be a finite number from 0, not {info.importance}")
    weight = weights.get(info.stage, _WEIGHTS.get(info.stage, 0.0)) * info.importance
    if info.stage != Stage.BLENDING:
        return weight
    if info.alpha is None:
        epoch, total = progress
        return weight * (blending_alpha(epoch, total) if total > 0 else 0.5)
    if not 0.0 <= info.alpha <= 1.0:
        raise ValueError(f"seed {info.seed_id!r}: alpha must be from 0 to 1, not {info.alpha}")
    return weight * info.alpha


_WEIGHTS: Final[Mapping[int, float]] = {int(stage): weight for stage, weight in WEIGHTS.items()}


def _checked(info: SeedGradientInfo) -> torch.Tensor:
    if info.loss.numel() != 1 or not info.loss.requires_grad:
        what = "has no graph" if info.loss.numel() == 1 else f"has the shape {tuple(info.loss.shape)}"
        raise ValueError(
            f"seed {info.seed_id!r}: its loss {what}; give a tensor with one element, as it was computed, not detached"
        )
    return info.loss


def _values(losses: list[torch.Tensor]) -> list[float]:
    """Return the values of losses, in one transfer."""
    if all(loss.is_cpu for loss in losses):
        return [loss.item() for loss in losses]
    first = losses[0]
    alike = all(loss.dim() == 0 and loss.dtype == first.dtype and loss.device == first.device for loss in losses)
    flat = [loss.detach() if alike else loss.detach().reshape(()).to(first.device, torch.float64) for loss in losses]
    values: list[float] = torch.stack(flat).tolist()
    return values
