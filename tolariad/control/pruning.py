"""The status of pruning for clients: phase, the newest cycle, masks in force, the safety window.

A pure function of the folded state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tolariad.core.base import Copying, Refusal
from tolariad.core.pruning import ask
from tolariad.core.pruning.schedule import budget_at, cap_at
from tolariad.core.pruning.units import count_of
from tolariad.core.text.plain import finite

if TYPE_CHECKING:
    from tolariad.core.pruning.parts_slice import Found, MaskedSet
    from tolariad.core.pruning.slice import Pruning
    from tolariad.core.state import RunState


class PruneFound(Copying, frozen=True, kw_only=True):
    """The newest analysis. `applicable`: `PruneApply` would be accepted; if not, `why` says what stands in the way.

    `channels`, `parameters`: how many its units are. `correlation`: rank correlation of the importance with the
    measured change of the loss. `stability`: with the last ranking. `spread`: of the accuracy in repeated validations.
    """

    cycle: int
    checkpoint: str
    epoch: int
    phase: str
    decision: str
    reasons: tuple[str, ...]
    channels: int
    parameters: int
    estimator: str
    correlation: float | None
    stability: float | None
    accuracy: float | None
    spread: float | None
    seconds: float
    applicable: bool
    why: str | None


class PruneMasks(Copying, frozen=True, kw_only=True):
    """The masks of one cycle that are in force, from update `step` on. No parameter counts for two cycles."""

    cycle: int
    step: int
    channels: int
    units: int
    layers: int
    parameters: int


class PruneWindow(Copying, frozen=True, kw_only=True):
    """The safety window: the trainer judges updates up to `until_step`. `checkpoint`: the one before the masks.

    `accuracy_before`: of the last validation before them, or `loss_before`, if the task measures no accuracy.
    """

    cycle: int
    since_step: int
    until_step: int
    checkpoint: str
    accuracy_before: float | None
    loss_before: float | None


class PruneSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Pruning in the status of a run; fields as in PruneTable.

    `failures`: failed cycles in a row, `why_failed`: why the last one failed.
    """

    phase: str
    why: str | None
    cycles: int
    analyzing: int | None
    total: int | None
    masked: int
    removed: int
    share: float
    total_parameters: int | None
    masked_parameters: int
    removed_parameters: int
    failures: int
    why_failed: str | None
    window: PruneWindow | None


class PruneTable(Copying, frozen=True, kw_only=True):
    """Pruning as of the last event. `why`: the reason of DISABLED. `active_after`: the last epoch of VALIDATION_ONLY.

    `masked` and `removed`: channels, of `total` before any pruning. `masked_parameters` and `removed_parameters`: the
    parameters that went with them, of `total_parameters` before any pruning; `share`: both of all. Totals are absent
    until an analysis counted them. `budget`, `cap`: share of the parameters that one cycle, and all together, may prune
    in this epoch. `analyzing`: the cycle that is open. `failures`: in a row. `rejected`: masks that proved harmful.
    """

    phase: str
    why: str | None
    epoch: int
    total: int | None
    masked: int
    removed: int
    share: float
    total_parameters: int | None
    masked_parameters: int
    removed_parameters: int
    budget: float
    cap: float
    cycles: int
    analyzing: int | None
    failures: int
    failures_max: int | None
    rejected: int
    importance_bytes: int
    found: PruneFound | None
    masks: tuple[PruneMasks, ...]
    window: PruneWindow | None
    active_after: int | None = None


def prune_table(state: RunState) -> PruneTable:
    """Return what is known of pruning in this state."""
    pruning, plan, epoch = state.pruning, state.run.policy.prune, state.progress.epoch_finished
    return PruneTable.of(
        _summary(state),
        epoch=epoch,
        budget=budget_at(plan, epoch) if plan is not None else 0.0,
        cap=cap_at(plan, epoch) if plan is not None else 0.0,
        failures_max=plan.failures if plan is not None else None,
        rejected=len(pruning.rejected),
        importance_bytes=sum(one.size for one in pruning.files),
        found=_found(state, pruning.found) if pruning.found is not None else None,
        masks=tuple(map(_masks, pruning.sets)),
        active_after=plan.transition_epoch if plan is not None else None,
    )


def prune_summary(state: RunState) -> PruneSummary | None:
    """Return pruning for the run's status; None if the run does not prune and no channel is masked or removed."""
    if state.run.policy.prune is None and not state.pruning.pruned:
        return None
    return _summary(state)


def _summary(state: RunState) -> PruneSummary:
    pruning = state.pruning
    return PruneSummary(
        phase=ask.phase_of(state).name,
        why=ask.why_disabled(state) or None,
        cycles=pruning.cycles,
        analyzing=pruning.open.cycle if pruning.open is not None else None,
        total=pruning.total or None,
        masked=sum(one.channels for one in pruning.sets),
        removed=pruning.removed_channels,
        share=pruning.share,
        total_parameters=pruning.total_parameters or None,
        masked_parameters=pruning.masked_parameters,
        removed_parameters=pruning.removed_parameters,
        failures=pruning.failures,
        why_failed=pruning.why_failed or None,
        window=_window(pruning),
    )


def _found(state: RunState, found: Found) -> PruneFound:
    ordered = ask.masks(state)
    refused = ordered.why if isinstance(ordered, Refusal) else None
    return PruneFound.of(
        found,
        phase=found.phase.name,
        decision=found.decision.name,
        parameters=found.pruned_parameters,
        correlation=finite(found.correlation),
        stability=finite(found.stability),
        accuracy=finite(found.accuracy),
        spread=finite(found.spread),
        applicable=refused is None,
        why=refused,
    )


def _masks(one: MaskedSet) -> PruneMasks:
    return PruneMasks.of(
        one,
        step=one.applied_before_step,
        units=count_of(one.units),
        layers=len(one.units),
        parameters=one.pruned_parameters,
    )


def _window(pruning: Pruning) -> PruneWindow | None:
    window = pruning.window
    if window is None:
        return None
    loss = window.loss_before
    accuracy = None if loss is not None else finite(window.accuracy_before)
    return PruneWindow.of(window, checkpoint=window.pinned, accuracy_before=accuracy, loss_before=finite(loss))
