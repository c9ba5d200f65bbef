"""The sentences of what a run does about rates, its model's shape, seeds, budgets, rollbacks, snapshots and its health.

Promises: as `core.sentences`, whose table includes this one.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any, Final

from tolariad.core.architecture import words as arch
from tolariad.core.base import Event
from tolariad.core.detection.rules import CALLS_FOR, NO_LIMIT, Action, Signal
from tolariad.core.health import budget_words as bv
from tolariad.core.health import quarantine_words as qn
from tolariad.core.health import words as hv
from tolariad.core.learning_rate.group import Group
from tolariad.core.phrases import because, by, counted, last_name, listed, size
from tolariad.core.rates import words as lr
from tolariad.core.rollback import words as rb
from tolariad.core.seeds import words as sd
from tolariad.core.seeds.stages import Stage
from tolariad.core.snapshots import words as sn

_SIGNALS: Final = {
    Signal.LOSS: "The loss",
    Signal.GRAD_NORM: "The gradient norm",
    Signal.STEP_TIME: "The time of a step",
}


def _violated(e: lr.LrViolationDetected) -> str:
    group = f" of {e.group}" if e.group else ""
    if e.what == lr.DIGEST_DIFFERS:
        return f"Update {e.step} used other learning rates than those in the journal."
    if e.what.startswith(lr.SCHEDULER_STEPPED):
        stepped, place = f"A{e.what[1:]}", f", in {e.where}" if e.where else ""
        do = "Remove it and set `learning_rate.policy` (docs/learning-rate.md)"
        return f"{stepped}{place}. It has no effect: tolariad sets the learning rates. {do}."
    values = "" if e.expected is None or e.found is None else f" (found {e.found:.6g}, reset to {e.expected:.6g})"
    where = f", in {e.where}" if e.where else ""
    return f"Corrected the learning rate{group} before update {e.step}{values}: {e.what}{where}."


def _groups(e: lr.LrGroupsRegistered) -> str:
    return f"The learning rates of {counted(len(e.groups), 'group')} are controlled: {listed(map(_group, e.groups))}."


def _regrouped(e: lr.LrGroupsChanged) -> str:
    return f"From step {e.applied_before_step} on the groups are {listed(map(_group, e.groups))}."


def _group(group: Group) -> str:
    return f"{group.name} ({group.policy.value}, {group.schedule.base_lr:.6g})"


def _rate_ordered(e: lr.RateOrdered) -> str:
    curve = "" if e.policy is None else f", with policy {e.policy.value},"
    return f"The learning rate of {e.group} becomes {e.value:.6g}{curve} at the next step, ordered{by(e)}"


def _rate_changed(e: lr.RateChanged) -> str:
    return (
        f"The learning rate of {e.group} is {e.rate:.6g} from step {e.applied_before_step} on (before: {e.before:.6g})."
    )


def _plateau(e: lr.PlateauReached) -> str:
    rates = f"from {e.before:.6g} to {e.rate:.6g} from step {e.applied_before_step} on"
    return f"The learning rate of {e.group} falls {rates}: {e.metric} stopped improving in epoch {e.epoch}."


def _changed(e: arch.ArchitectureChanged) -> str:
    called = f"{e.name} {e.arguments}" if len(e.arguments) <= 60 else e.name
    return f"The model has another shape from step {e.applied_before_step} on: {called}; {e.parameters} parameters."


def _slots(e: sd.SeedSlotsRegistered) -> str:
    if not e.slots:
        return "The model has no slots for seeds any more."
    return f"The model has {counted(len(e.slots), 'slot')} for seeds: {listed(one.name for one in e.slots)}."


def _move_ordered(e: sd.SeedMoveOrdered) -> str:
    grown = f" from blueprint {last_name(e.blueprint)}" if e.blueprint else ""
    return f"The seed in slot {e.slot} is to move to {e.stage.name}{grown}, ordered{by(e)}"


def _moved(e: sd.SeedMoved) -> str:
    at = f"from step {e.applied_before_step} on"
    match e.stage:
        case Stage.GERMINATED:
            added = counted(e.parameters_added, "parameter")
            return f"A seed germinated in slot {e.slot} {at}: {last_name(e.blueprint)}, {added}."
        case Stage.BLENDING:
            return f"The seed in slot {e.slot} is blended in over {counted(e.blend_steps, 'step')}, {at}."
        case Stage.FOSSILIZED:
            return f"The seed in slot {e.slot} is a permanent part of the model {at}."
        case Stage.CULLED:
            return f"The seed in slot {e.slot} was culled; its module is removed {at}{because(e.reason)}"
        case Stage.DORMANT:
            return f"Slot {e.slot} is free again {at}."
        case _:
            return f"The seed in slot {e.slot} is in {e.stage.name} {at}."


def _measured(e: sd.SeedsMeasured) -> str:
    each = (f"{one.slot} {one.stage.name}, alpha {one.alpha:.4g}" for one in e.seeds)
    return f"Measured {counted(len(e.seeds), 'seed')} at the end of epoch {e.epoch}: {listed(each) or 'none'}."


def _exceeded(e: bv.BudgetExceeded) -> str:
    times = "" if e.times == 1 else f", {e.times} times"
    return f"Budget {e.budget} was exceeded{times}: {e.value:.3g} {e.unit}, its limit is {e.limit:.6g}."


def _prepared(e: rb.RollbackPrepared) -> str:
    silent = f" No answer from {listed(e.abstained)}." if e.abstained else ""
    return f"Rollback {e.rollback} is prepared: ready are {listed(e.participants)}.{silent}"


_FOLLOWS: Final = {
    hv.Follows.RECORD: " It is only recorded.",
    hv.Follows.ROLLBACK: " The run goes back.",
    hv.Follows.HALT: " The run halts.",
}


def _emergency(e: hv.EmergencyRaised) -> str:
    follows = _FOLLOWS[e.follows] if e.follows is not None else ""
    return f"Emergency of level {e.level.value}{because(e.why) if e.actor is None else by(e)}{follows}"


def _rolled_back(e: rb.RolledBack) -> str:
    to = f"step {e.step} ({e.checkpoint})"
    late = f" These participants had not gone back in time: {listed(e.late)}." if e.late else ""
    if not e.from_step:
        # An older version did not record it, or the run was at its beginning.
        return f"Rolled back to {to}{because(e.why)}{late}"
    abandoned = counted(max(0, e.from_step - e.step), "step")
    return f"Rolled back from step {e.from_step} to {to} and abandoned {abandoned}{because(e.why)}{late}"


def _rollback_ordered(e: rb.RollbackRequested) -> str:
    # An older version did not record the place.
    where = f", {_place(e.epoch, e.batch)}" if e.epoch else ""
    given_up = f", and gives up {counted(e.given_up, 'step')}" if e.given_up is not None else ""
    ordered = "." if e.actor is None else f", ordered{by(e)}"
    return f"The run is to go back to {e.checkpoint}: step {e.step}{where}{given_up}{ordered}"


def rollback_answer(e: rb.RolledBack) -> str:
    """Return the answer to an order to roll back: what was done, and where the run is now."""
    return f"{_rolled_back(e)} The run is {_place(e.epoch, e.batch)}."


def _place(epoch: int, batch: int) -> str:
    """Return an epoch in words. Before its first batch, training is at the end of the epoch before."""
    if batch:
        return f"in epoch {epoch}"
    return f"at the end of epoch {epoch - 1}" if epoch > 1 else "before the first epoch"


def _backed_off(e: rb.RatesBackedOff) -> str:
    return f"The learning rates of {counted(e.groups, 'group')} were multiplied by {e.factor:.6g} after the rollback."


def _careful_no_more(e: hv.ConservativeModeLeft) -> str:
    return f"Conservative mode is off after {counted(e.healthy_epochs, 'healthy epoch')} and {e.seconds:.0f} s."


def _unstable(e: hv.InstabilityDetected) -> str:
    action = _action(e)
    if e.signal is Signal.ACCURACY:
        average = f"an average of {100 * e.baseline:.4g} %"
        return f"The accuracy fell from {average} to {100 * e.value:.4g} % after epoch {e.epoch}.{action}"
    what = _SIGNALS.get(e.signal, e.signal.value)
    if not isfinite(e.value):
        return f"{what} is {e.value:.6g} at step {e.step}.{action}"
    usual = "" if e.limit >= NO_LIMIT else f" (usual: {e.baseline:.6g})"
    return f"{what} rose to {e.value:.6g} at step {e.step}{usual}.{action}"


def _action(e: hv.InstabilityDetected) -> str:
    """Return what follows, as far as this event tells it: another one tells that a batch is skipped."""
    if e.level is not None:
        return f" This is an emergency of level {e.level.value}."
    return "" if CALLS_FOR[e.finding] is Action.SKIP and not e.goes_on else " No action was taken."


def _quarantined(e: qn.QuarantineAdded) -> str:
    held = e.batches
    if held is None:
        what = f"checkpoint {e.checkpoint}" if e.checkpoint else f"seed {e.seed}"
    elif held.first == held.last:
        what = f"batch {held.first} of epoch {held.epoch}"
    else:
        what = f"batches {held.first} to {held.last} of epoch {held.epoch}"
    return f"Put {what} into quarantine{because(e.why) if e.actor is None else by(e)}"


REACTIONS: Final[dict[type[Event], str | Callable[[Any], str]]] = {
    lr.LrGroupsRegistered: _groups,
    lr.LrGroupsChanged: _regrouped,
    lr.RateOrdered: _rate_ordered,
    lr.RateChanged: _rate_changed,
    lr.RateOrderAborted: "The learning rate that was ordered for {e.group} never acted{why}",
    lr.PlateauReached: _plateau,
    lr.PlateauUnjudged: lambda e: f"Epoch {e.epoch} had no loss to judge the rates of {listed(e.groups)} by.",
    lr.RatesRestored: "The learning rates are those of the rollback's target again.",
    lr.LrViolationDetected: _violated,
    lr.AuditDiffered: "The update of {e.parameter} at step {e.step} does not follow from its learning rate: {e.what}.",
    lr.OptimizerRebuildPrepared: "A rebuild of the optimizer {e.optimizer} is prepared.",
    lr.OptimizerRebuildCommitted: "The optimizer {e.optimizer} was rebuilt in {e.elapsed_ms:.3g} ms.",
    lr.OptimizerRebuildAborted: "The rebuild of the optimizer {e.optimizer} was given up{why}",
    arch.ArchitectureChanged: _changed,
    sd.SeedSlotsRegistered: _slots,
    sd.SeedMoveOrdered: _move_ordered,
    sd.SeedMoved: _moved,
    sd.SeedMoveAborted: lambda e: f"The seed in slot {e.slot} did not move to {e.stage.name}{because(e.why)}",
    sd.SeedsMeasured: _measured,
    bv.BudgetsMeasured: lambda e: f"Measured {counted(len(e.tallies), 'budget')} in epoch {e.epoch}.",
    bv.BudgetExceeded: _exceeded,
    bv.MemoryPressed: "Memory is short: {e.budget} holds {e.percent:.3g} %, over its share of {e.limit:.3g} %.",
    bv.MemoryRelieved: "Every part of the run is within its share of memory again.",
    rb.StateCopied: "The state after step {e.step} was copied for {e.id}.",
    rb.RollbackRequested: _rollback_ordered,
    rb.RollbackBegun: "Rollback {e.rollback} began, from step {e.from_step} to step {e.to_step} ({e.checkpoint}){why}",
    rb.RollbackHeard: "Training stopped for rollback {e.rollback}.",
    rb.RollbackPrepared: _prepared,
    rb.RollbackEscalated: "The rollback goes to an older checkpoint, step {e.to_step} ({e.checkpoint}){why}",
    rb.RolledBack: _rolled_back,
    rb.RollbackAborted: "Rollback {e.rollback} was given up{why}",
    rb.RatesBackedOff: _backed_off,
    sn.SnapshotRingOpened: "There is memory for {e.slots} snapshots.",
    sn.FastTierDisabled: "No snapshots are taken{why}",
    sn.SnapshotBegun: "Snapshot {e.id} was begun.",
    sn.SnapshotTaken: lambda e: f"Snapshot {e.id} of step {e.step} is in memory: {size(e.size)}.",
    sn.SnapshotAborted: "Snapshot {e.id} was not taken{why}",
    sn.SnapshotPromoted: "Enough healthy steps followed snapshot {e.id}: a rollback may use it.",
    sn.SnapshotRejected: "Snapshot {e.id} is damaged and gone{why}",
    hv.EmergencyRaised: _emergency,
    hv.EmergencyCleared: "The emergency is over{why}",
    hv.ConservativeModeEntered: "Conservative mode is on{why}",
    hv.ConservativeModeLeft: _careful_no_more,
    hv.InstabilityDetected: _unstable,
    qn.QuarantineAdded: _quarantined,
    qn.QuarantineRemoved: "Entry {e.name} left quarantine{by}",
}
