"""The gradients of one step from several losses: the host's, and auxiliary losses of seeds.

The loss of the step is `host + sum of factor * seed`; a factor is stage weight * importance * batch size / host's batch
size, in BLENDING times alpha. One backward pass computes its gradients if no parameter has two losses. At a check, the
gradients of parameters that several losses share are computed apart, compared, and combined by a method.

Promises: a seed that shares nothing with the host changes no bit of the host's gradients. Neither the order in which
seeds are given, nor an earlier step, nor a global random generator has any influence. A seed whose loss, or whose share
of a shared gradient at a check, is not finite takes no part. A host that is not finite passes through: the detector
must see it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from torch import nn

from tolariad.trainer.data.randomness import derived_seed
from tolariad.trainer.gradients import clipping, conflicts
from tolariad.trainer.gradients.conflicts import RULES, Compared, ConflictLimits
from tolariad.trainer.gradients.graph import leaves_of
from tolariad.trainer.gradients.others import PREFIX, Aggregate, torchjd_aggregator
from tolariad.trainer.gradients.shared import Block, Blocks, Sharing, grams_on_host, non_finite, sharing_of
from tolariad.trainer.gradients.sources import HOST_WEIGHT, SeedGradientInfo, Source, Weighed, weigh

# The number of the host's loss; those of seeds follow.
HOST: Final = 0
# Multiplies the first gradient of every backward pass: the loss scale of an fp16 run.
Scale: TypeAlias = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Aggregation:
    """The outcome of one backward pass for each loss.

    * `dropped`: the seeds that took no part because their loss or gradient was not finite.
    * `conflicts`: the number of pairs of gradients in conflict, None if this pass did not check.
    * `shared`: the number of parameters that were compared.
    """

    host_loss: torch.Tensor
    weighed: Weighed
    dropped: tuple[str, ...]
    conflicts: int | None = None
    shared: int = 0

    @property
    def active(self) -> tuple[Source, ...]:
        """The seeds that took part."""
        return tuple(seed for seed in self.weighed.seeds if seed.name not in self.dropped)

    def telemetry(self) -> dict[str, float]:
        """Return the numbers under the source's names, and those of seeds that took no part.

        Without seeds this waits for the host's loss.
        """
        known = self.weighed.host_loss
        return {
            "host_loss": self.host_loss.item() if known is None else known,
            "num_active_seeds": float(len(self.active)),
            "total_weight": HOST_WEIGHT + sum(seed.weight for seed in self.active),
            "conflicts_detected": float(self.conflicts or 0),
            "max_seed_contribution": max([0.0, *(seed.factor * seed.value for seed in self.active)]),
            "seeds_dropped": float(len(self.dropped)),
            "seeds_of_unknown_stage": float(len(self.weighed.unknown)),
            "shared_parameters": float(self.shared),
        }


class MultiSeedGradientAggregator:
    """Adds the gradients of a host's loss and of seeds' auxiliary losses to the parameters.

    * `conflict_threshold`, from -1 to 0: two gradients are in conflict if their cosine is below this. The source's -0.5
      almost never happens; `conflicts.ANY_CONFLICT`, 0, is what the PCGrad paper does.
    * `max_gradient_norm`: the host and each seed are clipped to it on their own; 0: off. A host without seeds is never
      clipped.
    * `stability_epsilon`: a cosine must be below the threshold by more than this, so that rounding makes no conflict.
    * `conflict_resolution_method`: `pcgrad`, `average`, `priority`, or `torchjd:NAME`.
    * `every`: compare shared gradients in one step of `every`. A comparison costs a backward pass for each loss; the
      steps between add the gradients up.
    * `rng_seed`: decides the order of projections, together with the step.
    * `stage_weights`: the weights of stages that differ from `WEIGHTS`, such as PROBATIONARY: 1.0 for fine-tuning.

    Source: 001, multi-seed aggregation.
    """

    def __init__(
        self,
        conflict_threshold: float = -0.5,
        max_gradient_norm: float = 10.0,
        stability_epsilon: float = 1e-8,
        conflict_resolution_method: str = "pcgrad",
        *,
        every: int = 1,
        rng_seed: int = 0,
        stage_weights: Mapping[int, float] | None = None,
    ) -> None:
        """Raises ValueError for a value out of range, and for a method that does not exist or cannot be made here."""
        if not -1.0 <= conflict_threshold <= 0.0:
            raise ValueError(f"conflict_threshold is a cosine from -1 to 0, not {conflict_threshold}")
        if not (math.isfinite(max_gradient_norm) and max_gradient_norm >= 0.0):
            raise ValueError(f"max_gradient_norm must be a finite number from 0 (off), not {max_gradient_norm}")
        if not 0.0 <= stability_epsilon < 1.0:
            raise ValueError(f"stability_epsilon is relative: from 0 to below 1, not {stability_epsilon}")
        if every < 1:
            raise ValueError(f"every must be at least 1, not {every}")
        self.max_gradient_norm = max_gradient_norm
        self._limits = ConflictLimits(conflict_threshold, stability_epsilon)
        self._method = conflict_resolution_method
        self._aggregate = _aggregator_of(conflict_resolution_method)
        self._every = every
        self._rng_seed = rng_seed
        self._weights = dict(stage_weights or {})
        self._blocks = Blocks()
        self._calls = 0

    def aggregate_losses(
        self,
        host_loss: torch.Tensor,
        seed_infos: Sequence[SeedGradientInfo],
        host_batch_size: int,
        epoch: int = 0,
        total_epochs: int = 100,
    ) -> tuple[torch.Tensor, dict[str, float]]:
        """Return the loss of the step, 0-dim, and the telemetry. Losses are means over their batch.

        Its backward pass gives the sum of the gradients: no conflict is resolved. One transfer from the device.
        Raises ValueError as `backward_with_aggregation`.
        """
        weighed = weigh(host_loss, seed_infos, host_batch_size, (epoch, total_epochs), self._weights)
        loss = host_loss.reshape(())
        for seed in weighed.seeds:
            loss = loss + seed.factor * seed.loss.reshape(()).to(loss.device)
        return loss, Aggregation(host_loss, weighed, weighed.dropped).telemetry()

    def backward_with_aggregation(  # noqa: PLR0917 - the source's signature
        self,
        host_model: nn.Module,
        host_loss: torch.Tensor,
        seed_losses: Sequence[SeedGradientInfo],
        host_batch_size: int,
        epoch: int,
        total_epochs: int,
        *,
        step: int | None = None,
        owners: Mapping[str, Iterable[torch.Tensor]] | None = None,
    ) -> Aggregation:
        """Add the gradients of all losses to the parameters, then clip the host and each seed.

        * `step`: the run's step, from 1; without it the calls are counted.
        * `owners`: the parameters of each seed, by seed_id. Without them, a seed owns the parameters that only its loss
          reaches. All other parameters of `host_model` are the host's.

        Raises ValueError, which names the seed, for a loss or number that cannot be used.
        """
        if not seed_losses:
            host_loss.backward()
            return Aggregation(host_loss.detach(), Weighed(), ())
        self._calls += 1
        weighed = weigh(host_loss, seed_losses, host_batch_size, (epoch, total_epochs), self._weights)
        sharing = None
        if self.max_gradient_norm and owners is None and weighed.seeds:
            sharing = _sharing(host_loss, weighed.seeds)
        found = self.add_gradients(host_loss, weighed, self._calls if step is None else step, sharing=sharing)
        if self.max_gradient_norm and found.active:
            if sharing is not None:
                owners = {name: sharing.others.get((n,), ()) for n, name in enumerate(weighed.names, HOST + 1)}
            self._clip(host_model, owners or {})
        return found

    def add_gradients(
        self,
        host_loss: torch.Tensor,
        weighed: Weighed,
        step: int,
        *,
        scale: Scale | None = None,
        sharing: Sharing | None = None,
        retain_graph: bool = False,
    ) -> Aggregation:
        """Add the gradients of losses whose weights are known, without clipping.

        `scale` scales a loss in an fp16 run; the gradients are then scaled. `sharing` says which losses reach which
        leaves, if that is known already.
        """
        losses = [host_loss, *(seed.loss for seed in weighed.seeds)]
        firsts = [_first(loss, factor, scale) for loss, factor in zip(losses, _factors(weighed.seeds), strict=True)]
        detached = host_loss.detach()
        if not weighed.seeds or (step - 1) % self._every:
            torch.autograd.backward(losses, firsts, retain_graph=retain_graph)
            return Aggregation(detached, weighed, weighed.dropped)
        sharing = sharing or _sharing(host_loss, weighed.seeds)
        if not sharing.shared:
            torch.autograd.backward(losses, firsts, retain_graph=retain_graph)
            return Aggregation(detached, weighed, weighed.dropped, conflicts=0)
        blocks = self._blocks.of(sharing)
        _fill(blocks, losses, firsts)
        grams = grams_on_host(blocks)
        bad = non_finite(blocks, grams)
        conflicting, combined = self._resolved(blocks, grams, bad, weighed, step)
        kept = [number for number in range(len(losses)) if number not in bad or number == HOST]
        # One pass for everything that has one loss. Its leaves are named: the others have their gradients already.
        if leaves := [leaf for by, found in sharing.others.items() if set(by) & set(kept) for leaf in found]:
            torch.autograd.backward(
                [losses[number] for number in kept],
                [firsts[number] for number in kept],
                inputs=leaves,
                retain_graph=retain_graph,
            )
        for block, gradient in zip(blocks, combined, strict=True):
            block.add_to_gradients(gradient)
        names = tuple(name for number, name in enumerate(weighed.names, HOST + 1) if number in bad)
        return Aggregation(detached, weighed, tuple(sorted(weighed.dropped + names)), conflicting, sharing.parameters)

    def _resolved(
        self,
        blocks: Sequence[Block],
        grams: Sequence[Sequence[Sequence[float]]],
        bad: set[int],
        weighed: Weighed,
        step: int,
    ) -> tuple[int, list[torch.Tensor]]:
        """Return the number of conflicts, and each block's combined gradient. `bad`: the losses that are not finite."""
        generator = torch.Generator().manual_seed(derived_seed(self._rng_seed, "gradients", step))
        factors = _factors(weighed.seeds)
        total, combined = 0, []
        for block, gram in zip(blocks, grams, strict=True):
            block.drop(bad - {HOST})
            good = [row for row, loss in enumerate(block.losses) if loss not in bad]
            coefficients = np.ones(len(block.losses))
            if HOST not in bad and len(good) > 1:
                numbers = [block.losses[row] for row in good]
                matrix = np.array(gram)[np.ix_(good, good)]
                total += conflicts.count(matrix, self._limits)
                if self._aggregate is not None:
                    combined.append(self._aggregate(block.rows[good], self._rng_seed, step))
                    continue
                coefficients[good] = RULES[self._method](
                    Compared(
                        gram=matrix,
                        has_host=numbers[0] == HOST,
                        factors=[factors[number] for number in numbers],
                        ranks=_ranks(numbers, weighed.seeds),
                        draw=lambda size: torch.randperm(size, generator=generator).tolist(),
                    ),
                    self._limits,
                )
            combined.append(torch.from_numpy(coefficients).to(block.rows) @ block.rows)
        return total, combined

    def _clip(self, host_model: nn.Module, owners: Mapping[str, Iterable[torch.Tensor]]) -> None:
        of_seeds: list[list[torch.Tensor]] = [list(parameters) for parameters in owners.values()]
        theirs = {id(parameter) for parameters in of_seeds for parameter in parameters}
        of_host: list[torch.Tensor] = [one for one in host_model.parameters() if id(one) not in theirs]
        gradients = [clipping.gradients_of(parameters) for parameters in [of_host, *of_seeds]]
        clipping.clip(gradients, clipping.norms_of(gradients), self.max_gradient_norm)


def _aggregator_of(method: str) -> Aggregate | None:
    """Return TorchJD's aggregator, or None for a method of our own."""
    if method.startswith(PREFIX):
        return torchjd_aggregator(method.removeprefix(PREFIX))
    if method not in RULES:
        raise ValueError(f"conflict_resolution_method is one of {', '.join(RULES)}, {PREFIX}NAME, not {method!r}")
    return None


def _sharing(host_loss: torch.Tensor, seeds: Sequence[Source]) -> Sharing:
    return sharing_of([leaves_of(host_loss), *(leaves_of(seed.loss) for seed in seeds)])


def _factors(seeds: Sequence[Source]) -> list[float]:
    return [HOST_WEIGHT, *(seed.factor for seed in seeds)]


def _first(loss: torch.Tensor, factor: float, scale: Scale | None) -> torch.Tensor:
    """Return what a backward pass begins with: the factor of its loss, in an fp16 run times the loss scale."""
    first = torch.full_like(loss, factor, requires_grad=False)
    return first if scale is None else scale(first)


def _fill(blocks: Sequence[Block], losses: Sequence[torch.Tensor], firsts: Sequence[torch.Tensor]) -> None:
    """Compute the gradients of every loss for the parameters that it shares, and put them into the blocks."""
    for number, (loss, first) in enumerate(zip(losses, firsts, strict=True)):
        mine = [block for block in blocks if number in block.losses]
        if not mine:
            continue
        leaves: list[Any] = [leaf for block in mine for leaf in block.leaves]
        gradients = torch.autograd.grad([loss], leaves, [first], retain_graph=True, allow_unused=True)
        start = 0
        for block in mine:
            block.put(number, gradients[start : start + len(block.leaves)])
            start += len(block.leaves)


def _ranks(numbers: Sequence[int], seeds: Sequence[Source]) -> list[int]:
    """Return the rows of seeds by falling importance, then by name. `numbers`: the losses of the rows."""
    rows = [row for row, number in enumerate(numbers) if number != HOST]
    return sorted(rows, key=lambda row: (-seeds[numbers[row] - 1].importance, numbers[row]))
