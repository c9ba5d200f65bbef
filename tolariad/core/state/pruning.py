"""Pruning as recorded in the journal: slice, apply table.

Invariants: at most one cycle is open, and at most one safety window. No number of a cycle is used twice, even after a
rollback. `sets`, `removed` and `pruned` are those that the training of the current branch contains. A rollback takes
back the others: the number of boundary orders tells which its target contains. Rejected sets, failures and an
operator's order stay.
"""

from math import isfinite
from typing import Annotated, Any, Final, Protocol

from msgspec.structs import replace

from tolariad.core import messages as m
from tolariad.core.calc.bounds import storable
from tolariad.core.calc.pruning.phase import PruningPhase
from tolariad.core.calc.pruning.units import Units, joined, renumbered, without
from tolariad.core.calc.pruning.verdict import PruningDecision, accuracy_of
from tolariad.core.calc.seeds.ledger import changes_shape
from tolariad.core.state.fates import CONFIGURATION, COUNTER, set_back, survives
from tolariad.core.state.fold import ApplyTable, by_order
from tolariad.core.state.pruning_parts import (
    Found,
    ImportanceFile,
    InForce,
    MaskedSet,
    OpenCycle,
    Past,
    Rejected,
    Window,
)

REJECTED_MAX: Final = 64
FILES_MAX: Final = 1000


_TAKEN_BACK: Final = set_back("masks and compactions that the target does not contain are taken back")
_REJECTED: Final = set_back("units of a model that was compacted have other numbers again")
_FAILURES: Final = survives("rollbacks of masks must not hide that they fail; an operator's order stands")


class Pruning(InForce, frozen=True):
    """Slice of RunState.

    `cycles`: how many were begun. `last_epoch`: the epoch of the last one that the schedule began. `found`: the newest
    analysis. `past`: what was in force after each order of this line. `total`, `total_parameters`: channels and
    parameters before any pruning, as last found; 0: not known. `override`: an operator's order. `failures`: failed
    cycles in a row.
    """

    cycles: Annotated[int, COUNTER] = 0
    last_epoch: Annotated[int, set_back("cycles are due by the epoch of the target")] = 0
    open: Annotated[OpenCycle | None, survives("a cycle is given up when the rollback begins, before this")] = None
    found: Annotated[Found | None, set_back("the newest analysis is void")] = None
    past: Annotated[tuple[Past, ...], _TAKEN_BACK] = ()
    window: Annotated[Window | None, _TAKEN_BACK] = None
    rejected: Annotated[tuple[Rejected, ...], _REJECTED] = ()
    failures: Annotated[int, _FAILURES] = 0
    why_failed: Annotated[str, _FAILURES] = ""
    override: Annotated[PruningPhase | None, _FAILURES] = None
    total: Annotated[int, CONFIGURATION] = 0
    total_parameters: Annotated[int, CONFIGURATION] = 0
    files: Annotated[tuple[ImportanceFile, ...], survives("they describe files on disk")] = ()

    @property
    def pruned(self) -> int:
        """Return how many channels are masked or removed."""
        return self.removed_channels + sum(one.channels for one in self.sets)

    @property
    def masked_parameters(self) -> int:
        """Return how many parameters are masked, each counted once."""
        return sum(one.pruned_parameters for one in self.sets)

    @property
    def pruned_parameters(self) -> int:
        """Return how many parameters are masked or removed."""
        return self.removed_parameters + self.masked_parameters

    @property
    def masked(self) -> Units:
        """Return all units that are masked, by group."""
        return joined(one.units for one in self.sets)

    @property
    def share(self) -> float:
        """Return the share of the parameters that is masked or removed; 0.0 until an analysis has counted them."""
        return self.pruned_parameters / self.total_parameters if self.total_parameters > 0 else 0.0

    @property
    def needed(self) -> frozenset[str]:
        """Return the checkpoints that must stay: the one being analysed, and the one before masks being watched."""
        names = {self.open.checkpoint} if self.open is not None else set()
        return frozenset(names | ({self.window.pinned} if self.window is not None else set())) - {""}

    def set_of(self, cycle: int) -> MaskedSet | None:
        """Return the masks of this cycle, if they are in force."""
        return next((one for one in self.sets if one.cycle == cycle), None)

    def rejection_of(self, sha256: str) -> Rejected | None:
        """Return why these masks proved harmful before; None if they did not."""
        return next((one for one in self.rejected if one.sha256 == sha256), None)


class HasPruning(Protocol):
    """A state with this slice."""

    @property
    def pruning(self) -> Pruning:
        """Return cycles, masks and the safety window."""


# -- cycles ------------------------------------------------------------------------------------------------------------


def _begun(s: Pruning, e: m.PruneCycleBegun, at: m.Cause) -> Pruning:
    opened = OpenCycle.of(e, cause=at, former_epoch=s.last_epoch)
    last = storable(e.epoch) if e.reason is m.CycleReason.SCHEDULE else s.last_epoch
    return replace(s, cycles=max(s.cycles, storable(e.cycle)), open=opened, last_epoch=last)


def _analyzed(s: Pruning, e: m.PruneAnalyzed, at: m.Cause) -> Pruning:
    opened = s.open
    if opened is None:
        return s
    found = Found.of(opened, e, cause=at)
    found = _emptied(found, opened.void) if opened.void else found
    files = s.files
    if e.importance:
        files = (*files, ImportanceFile(e.cycle, e.importance, e.importance_size, e.wall))[-FILES_MAX:]
    is_active = opened.phase is PruningPhase.ACTIVE_PRUNING
    if e.decision is PruningDecision.NO_GO and is_active:
        s = _failed(s, e.reasons[0] if e.reasons else "the masks were refused")
    elif not is_active:
        s = replace(s, failures=0, why_failed="")
    totals = {"total": e.total or s.total, "total_parameters": e.total_parameters or s.total_parameters}
    return replace(s, open=None, found=found, files=files, **totals)


def _failed(s: Pruning, why: str) -> Pruning:
    return replace(s, failures=s.failures + 1, why_failed=why)


def _cycle_failed(s: Pruning, e: m.PruneCycleFailed, _: m.Cause) -> Pruning:
    return _failed(replace(s, open=None), e.why)


def _cancelled(s: Pruning, _: m.PruneCycleCancelled, __: m.Cause) -> Pruning:
    return s if s.open is None else replace(s, open=None, last_epoch=s.open.former_epoch)


def _importance_removed(s: Pruning, e: m.ImportanceRemoved, _: m.Cause) -> Pruning:
    return replace(s, files=tuple(one for one in s.files if one.file != e.file))


def _disabled(s: Pruning, _: m.PruneDisabled, __: m.Cause) -> Pruning:
    return replace(s, override=PruningPhase.DISABLED)


def _enabled(s: Pruning, _: m.PruneEnabled, __: m.Cause) -> Pruning:
    return replace(s, override=None, failures=0, why_failed="")


# -- masks -------------------------------------------------------------------------------------------------------------


def _void(s: Pruning, why: str) -> Pruning:
    return s if s.found is None or s.found.void else replace(s, found=_emptied(s.found, why))


def _emptied(found: Found, why: str) -> Found:
    return replace(found, units={}, plan="", void=why)


def _reshaped(s: Pruning, _: m.ArchitectureChanged, __: m.Cause) -> Pruning:
    return _of_another_model(s)


def _of_another_model(s: Pruning) -> Pruning:
    """Void the findings and the open analysis: they are of a model that has another shape now."""
    why = "the model has changed its shape since"
    s = _void(s, why)
    return s if s.open is None else replace(s, open=replace(s.open, void=why))


def _moved(s: Pruning, order: m.MoveSeed, _: m.OrderActed) -> Pruning:
    return _of_another_model(s) if changes_shape(order.stage) else s


def _changed(s: Pruning, number: int) -> Pruning:
    """Remember what is in force after this order."""
    return replace(s, past=(*s.past, Past(number=storable(number), **_in_force(s))))


def _in_force(s: InForce) -> dict[str, Any]:
    return {field: getattr(s, field) for field in InForce.__struct_fields__}


def _applied(s: Pruning, order: m.MaskUnits, e: m.OrderActed) -> Pruning:
    number, step, masking = storable(e.number), storable(e.applied_before_step), e.outcome_as(m.Masking)
    # What a trainer did not count is at most what the masks cover, of which some may be masked before.
    pruned = masking.pruned_parameters or masking.parameters
    applied = MaskedSet.of(order, masking, number=number, applied_before_step=step, pruned_parameters=pruned)
    until = storable(step + order.grace_steps + order.window_steps - 1)
    window = Window.of(order, masking, number=number, since_step=step, until_step=until)
    totals = {"total": order.total or s.total, "total_parameters": order.total_parameters or s.total_parameters}
    s = replace(s, sets=(*s.sets, applied), window=window, **totals)
    return _void(_changed(s, e.number), "its masks were applied")


def _not_applied(s: Pruning, order: m.MaskUnits, e: m.OrderAborted) -> Pruning:
    if s.found is not None and s.found.cycle == order.cycle and s.found.void:
        # The run left the analysed branch, or the model has another shape: the masks have not failed.
        return s
    return _failed(_void(s, e.why), e.why)


def _watched(s: Pruning, e: m.PruneWatched, _: m.Cause) -> Pruning:
    if s.window is None or s.window.cycle != e.cycle:
        return s
    return replace(s, window=replace(s.window, is_watched=True))


def _validated(s: Pruning, e: m.ValidationFinished, _: m.Cause) -> Pruning:
    window = s.window
    if window is None or e.step < window.since_step + window.grace_steps:
        return s
    accuracy = accuracy_of(e.metrics, window.loss_before)
    if accuracy is None or not isfinite(accuracy):
        return s
    return replace(s, window=replace(window, accuracy=accuracy))


def _passed(s: Pruning, _: m.MaskSetPassed, __: m.Cause) -> Pruning:
    return replace(s, window=None, failures=0, why_failed="")


def _rejected(s: Pruning, e: m.MaskSetRejected, _: m.Cause) -> Pruning:
    held = s.set_of(e.cycle)
    one = Rejected(e.cycle, e.sha256, held.units if held else {}, e.why)
    return _failed(replace(s, window=None, rejected=(*s.rejected, one)[-REJECTED_MAX:]), e.why)


def _released(s: Pruning, order: m.ReleaseMasks, e: m.OrderActed) -> Pruning:
    window = None if s.window is not None and s.window.cycle == order.cycle else s.window
    s = replace(s, sets=tuple(one for one in s.sets if one.cycle != order.cycle), window=window)
    return _void(_changed(s, e.number), "masks were lifted since")


def _compacted(s: Pruning, order: m.CompactModel, e: m.OrderActed) -> Pruning:
    compaction = e.outcome_as(m.Compaction)
    gone = {name: s.removed.get(name, 0) + len(units) for name, units in order.units.items()}
    channels = sum(one.channels for one in s.sets)
    parameters = max(0, compaction.parameters_before - compaction.parameters) or s.masked_parameters
    s = replace(
        s,
        sets=(),
        removed={**s.removed, **gone},
        removed_channels=s.removed_channels + channels,
        removed_parameters=s.removed_parameters + parameters,
        total_parameters=s.total_parameters or s.removed_parameters + compaction.parameters_before,
        rejected=tuple(replace(one, units=renumbered(one.units, order.units)) for one in s.rejected),
        window=None,
    )
    return _void(_changed(s, e.number), "the model was compacted since")


def pruning_at(s: Pruning, e: m.RolledBack) -> Pruning:
    """Return the slice without the masks and compactions that the target of a rollback does not contain."""
    ended = max(0, storable(e.epoch) - 1)
    s = _void(replace(s, last_epoch=min(s.last_epoch, ended)), "the run went back since")
    held = tuple(one for one in s.past if one.number <= (e.orders or 0))
    if len(held) == len(s.past):
        return s if s.window is None else replace(s, window=_again(s.window, e.step))
    was = held[-1] if held else InForce()
    is_left = s.window is not None and all(one.number < s.window.number for one in held)
    rejected = s.rejected
    if was.removed != s.removed:
        # The indices of rejected units are of the smaller model.
        rejected = tuple(replace(one, units={}) for one in rejected)
    return replace(
        s,
        past=held,
        **_in_force(was),
        window=None if is_left or s.window is None else _again(s.window, e.step),
        rejected=rejected,
    )


def _again(window: Window, step: int) -> Window:
    """Return the window after a rollback to a place within it: it is judged once more.

    At its last update the trainer has reported it, and does not do so again.
    """
    return window if step >= window.until_step else replace(window, is_watched=False, accuracy=None)


def avoided(s: Pruning) -> Units:
    """Return the live units of rejected sets."""
    return without(joined(one.units for one in s.rejected), s.masked)


APPLY: Final[ApplyTable] = {
    m.PruneCycleBegun: _begun,
    m.PruneAnalyzed: _analyzed,
    m.PruneCycleFailed: _cycle_failed,
    m.PruneCycleCancelled: _cancelled,
    m.ImportanceRemoved: _importance_removed,
    m.PruneDisabled: _disabled,
    m.PruneEnabled: _enabled,
    m.OrderActed: by_order(
        {m.MaskUnits: _applied, m.ReleaseMasks: _released, m.CompactModel: _compacted, m.MoveSeed: _moved}
    ),
    m.OrderAborted: by_order({m.MaskUnits: _not_applied}),
    m.PruneWatched: _watched,
    m.ValidationFinished: _validated,
    m.MaskSetPassed: _passed,
    m.MaskSetRejected: _rejected,
    m.ArchitectureChanged: _reshaped,
}
