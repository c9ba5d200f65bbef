"""Repair, explicit and planned first: it cuts the remains of an unacknowledged write and refuses everything else.

What is cut is copied to the quarantine folder before. Damage to what was acknowledged is never repaired away: cutting
there would lose events that somebody relied on, so the plan names the damage and what remains possible.
"""

from __future__ import annotations

import enum
from pathlib import Path

import msgspec

from journal.errors import JournalLocked
from journal.files import OS_FILES, Files
from journal.opening import LOCK_NAME
from journal.quarantine import set_aside
from journal.segment import names_in
from journal.verification import Problem, Verdict, Verifier


class RepairAction(enum.StrEnum):
    """What a repair would do, or did."""

    NOTHING = "nothing"
    CUT_TAIL = "cut_tail"
    REFUSED = "refused"


class RepairPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong and what is to be done. `quarantine` is set once it was done."""

    action: RepairAction
    sentence: str
    file: Path | None = None
    offset: int = 0
    bytes_cut: int = 0
    seq: int = 0  # the first sequence number that the cut bytes would have had
    problem: Problem | None = None
    quarantine: Path | None = None


def plan_repair(folder: Path, *, files: Files = OS_FILES) -> RepairPlan:
    """What `repair` would do; changes nothing, needs no lock. Raises JournalMissing, OSError."""
    return _plan(Verifier(folder, files))


def repair(folder: Path, *, files: Files = OS_FILES) -> RepairPlan:
    """Do what `plan_repair` says. Raises JournalLocked while a writer has the journal, JournalMissing, OSError."""
    names_in(files, folder)  # raises where there is no folder; the lock would make one otherwise
    try:
        lock = files.lock(folder / LOCK_NAME)
    except BlockingIOError as error:
        hint = "Stop the other process first; `verify` works without."
        raise JournalLocked("another process writes this journal", path=folder, hint=hint) from error
    try:
        # Planned again under the lock: what a plan without it found may have been a write in flight.
        verifier = Verifier(folder, files)
        plan = _plan(verifier)
        if plan.action is not RepairAction.CUT_TAIL or verifier.view is None:
            return plan
        copy = set_aside(files, verifier.view.name, plan.offset, plan.offset + plan.bytes_cut)
        return msgspec.structs.replace(plan, quarantine=copy)
    finally:
        files.close(lock)


def _plan(verifier: Verifier) -> RepairPlan:
    report = verifier.run()
    if report.problem is None:
        return RepairPlan(action=RepairAction.NOTHING, sentence="The journal is clean; there is nothing to repair.")
    if report.verdict is not Verdict.TORN_TAIL or verifier.stop is None or verifier.view is None:
        sentence = (
            f"Repair is refused: {report.problem.sentence} Reading, searching and exporting work up to there; "
            "writing needs the damaged file restored from a copy."
        )
        return RepairPlan(action=RepairAction.REFUSED, sentence=sentence, problem=report.problem)
    start, end = verifier.stop.tail.offset, verifier.stop.nonzero_end
    sentence = f"The last {end - start} bytes are the remains of one write that was never acknowledged; they are cut."
    return RepairPlan(
        action=RepairAction.CUT_TAIL,
        sentence=sentence,
        file=verifier.view.path,
        offset=start,
        bytes_cut=end - start,
        seq=verifier.stop.tail.next_seq,
        problem=report.problem,
    )
