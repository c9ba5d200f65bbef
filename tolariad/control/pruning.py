"""The status of pruning for clients: phase, the newest cycle, masks in force, the safety window.

A pure function of the folded state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tolariad.control.replies import PruneSummary, PruneWindow
from tolariad.control.reply_tables import PruneFound, PruneMasks, PruneTable
from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core.calc.pruning.schedule import budget_at, cap_at
from tolariad.core.calc.pruning.units import count_of
from tolariad.core.calc.text.plain import finite

if TYPE_CHECKING:
    from tolariad.core import state as st
    from tolariad.core.state.run_state import RunState


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
        phase=q.phase_of(state).name,
        why=q.why_disabled(state) or None,
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


def _found(state: RunState, found: st.Found) -> PruneFound:
    ordered = q.masks_to_order(state)
    refused = ordered.why if isinstance(ordered, m.Refusal) else None
    return PruneFound.of(
        found,
        phase=found.phase.name,
        decision=found.decision.name,
        parameters=found.pruned_parameters,
        correlation=finite(found.correlation),
        stability=finite(found.stability),
        accuracy=finite(found.accuracy),
        loss=finite(found.loss),
        spread=finite(found.spread),
        applicable=refused is None,
        why=refused,
    )


def _masks(one: st.MaskedSet) -> PruneMasks:
    return PruneMasks.of(
        one,
        step=one.applied_before_step,
        units=count_of(one.units),
        layers=len(one.units),
        parameters=one.pruned_parameters,
    )


def _window(pruning: st.Pruning) -> PruneWindow | None:
    window = pruning.window
    if window is None:
        return None
    loss = window.loss_before
    accuracy = None if loss is not None else finite(window.accuracy_before)
    return PruneWindow.of(window, checkpoint=window.pinned, accuracy_before=accuracy, loss_before=finite(loss))
