"""Repair a journal, explicitly and after a plan. Without permission it only cuts the rest of an unacknowledged write.

Bytes are copied to the quarantine folder before they are cut. Damaged acknowledged events are cut only if the caller
passes a function that makes the event which records the loss (see `journal.losing`). The plan says what would be lost.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from journal.files import OS_FILES, Files, release_locks, take_locks
from journal.losing import Loss, find_cut, lose, loss_of
from journal.quarantine import set_aside
from journal.segment import names_in
from journal.verification import Problem, Verdict, Verifier

# Events of a newer version are not lost. This program just cannot read them, so it never gives them up.
_LOSABLE: Final = frozenset({Verdict.DAMAGED, Verdict.TAMPERED})


class RepairAction(enum.StrEnum):
    """The action that a repair would take, or took."""

    NOTHING = "nothing"
    CUT_TAIL = "cut_tail"
    REFUSED = "refused"
    LOSE_EVENTS = "lose_events"  # only if the caller accepts the loss


class RepairPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The problem, and what a repair does about it. `quarantine` is set after the repair."""

    action: RepairAction
    sentence: str
    file: Path | None = None
    offset: int = 0
    bytes_cut: int = 0
    seq: int = 0  # the first sequence number that the cut bytes would have had
    problem: Problem | None = None
    loss: Loss | None = None  # of a refused repair: the events that would be lost if the caller accepted it
    quarantine: Path | None = None


def plan_repair(folder: Path, *, files: Files = OS_FILES) -> RepairPlan:
    """Return what `repair` would do. Changes nothing and needs no lock. Raises JournalMissing, OSError."""
    # Without the lock, the plan may be outdated when it is read. `repair` makes it again, under the lock.
    return _plan(Verifier(folder, files), files)


def repair(folder: Path, *, files: Files = OS_FILES, accept_loss: Callable[[Loss], bytes] | None = None) -> RepairPlan:
    """Repair the journal as `plan_repair` says. Raises JournalMissing, OSError, and JournalLocked if it has a writer.

    With `accept_loss`, acknowledged events are given up if nothing else helps. The function returns the event, one
    msgpack value, that takes their place in the journal.
    """
    names_in(files, folder)  # raises if there is no folder: taking the lock would create it
    # The same locks as a writer: a repair beside a live writer would cut off its write in flight.
    # safety: repair-takes-lock
    locks = take_locks(files, folder, "Stop the other process first; `verify` works without.")
    try:
        # Plan again under the lock: without it, a torn end may have been a write in flight.
        verifier = Verifier(folder, files)
        plan = _plan(verifier, files)
        # safety: loss-needs-consent
        if plan.action is RepairAction.REFUSED and plan.loss is not None and accept_loss is not None:
            return _lose(folder, files, plan, accept_loss)
        # Nothing to do, or refused: the plan says so, and no byte was changed.
        if plan.action is not RepairAction.CUT_TAIL or verifier.view is None:
            return plan
        copy = set_aside(files, verifier.view.name, plan.offset, plan.offset + plan.bytes_cut)
        return msgspec.structs.replace(plan, quarantine=copy)
    finally:
        release_locks(files, locks)


def _lose(folder: Path, files: Files, plan: RepairPlan, event: Callable[[Loss], bytes]) -> RepairPlan:
    # Found again under the lock, from the first segment on. The plan's figures are only for the reader.
    cut = find_cut(folder, files)
    if cut is None or plan.loss is None:
        return plan
    aside = lose(folder, files, cut, plan.loss, event)
    sentence = (
        f"The journal now ends before {lost_words(plan.loss)}, which were given up. The originals are in {aside}."
    )
    return msgspec.structs.replace(plan, action=RepairAction.LOSE_EVENTS, sentence=sentence, quarantine=aside)


def lost_words(loss: Loss) -> str:
    """Return the events that a repair gives up, as words for the middle of a sentence."""
    if not loss.last_seq:
        return f"the events from {loss.first_seq} on"
    return (
        f"event {loss.first_seq}" if loss.last_seq == loss.first_seq else f"events {loss.first_seq} to {loss.last_seq}"
    )


def _plan(verifier: Verifier, files: Files) -> RepairPlan:
    report = verifier.run()
    if report.problem is None:
        return RepairPlan(action=RepairAction.NOTHING, sentence="The journal is clean; there is nothing to repair.")
    # Only the remains of one unacknowledged write are cut without a question. Everything else needs a copy or
    # consent.
    # safety: repair-cuts-torn-tail-only
    if report.verdict is not Verdict.TORN_TAIL or verifier.stop is None or verifier.view is None:
        cut = find_cut(verifier.folder, files) if report.verdict in _LOSABLE else None
        loss = loss_of(cut, files) if cut is not None else None
        sentence = (
            f"Repair is refused: {report.problem.sentence} Reading, searching and exporting work up to that place. "
            "To write to the journal, restore the damaged file from a copy."
        )
        if loss is not None:
            sentence += (
                f" If there is no copy, {lost_words(loss)} can be given up; the journal can then be written again."
            )
        return RepairPlan(action=RepairAction.REFUSED, sentence=sentence, problem=report.problem, loss=loss)
    start, end = verifier.stop.tail.offset, verifier.stop.nonzero_end
    sentence = (
        f"The last {end - start} bytes are the remains of one write that was never acknowledged. Repair cuts them."
    )
    return RepairPlan(
        action=RepairAction.CUT_TAIL,
        sentence=sentence,
        file=verifier.view.path,
        offset=start,
        bytes_cut=end - start,
        seq=verifier.stop.tail.next_seq,
        problem=report.problem,
    )
