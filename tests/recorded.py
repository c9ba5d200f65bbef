"""The record of a run: its events, the files of its checkpoints, and the rules that hold for each run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from journal import JournalEntry, Reader
from tolariad.core import messages as m
from tolariad.core.calc.detection.rules import Finding
from tolariad.core.messages.vocabulary import decode_event


def events_in(journal: Path) -> list[m.Event]:
    """Return the events in a journal's folder."""
    with Reader(journal) as reader:
        return [decode_event(entry.event) for entry in reader if isinstance(entry, JournalEntry)]


def events_of(run_dir: Path) -> list[m.Event]:
    """Return the events of a run."""
    return events_in(run_dir / "journal")


def of(events: Iterable[object], *kinds: type) -> list:
    """Return those of these types."""
    return [event for event in events if isinstance(event, kinds)]


def findings(events: Iterable[object]) -> list[m.InstabilityDetected]:
    """Return what was found in the numbers of training. On a busy machine a step may stall besides."""
    return [one for one in of(events, m.InstabilityDetected) if one.finding is not Finding.STALL]


def files_of(checkpoint: Path) -> dict[str, bytes]:
    """Return the files of a checkpoint that are equal for equal states."""
    return {path.name: path.read_bytes() for path in sorted(checkpoint.iterdir()) if path.name != "manifest.json"}


def pieces(run_dir: Path) -> dict[str, bytes]:
    """Return these files of the run's last checkpoint."""
    return files_of(max((run_dir / "checkpoints").iterdir(), key=lambda folder: folder.name))


def standing(events: Iterable[m.Event], *kinds: type) -> list:
    """Return the boundary orders of these types that acted on the line that went on."""
    found: list = []
    for one in of(events, m.RolledBack, *kinds):
        if isinstance(one, m.RolledBack):
            found = [each for each in found if each.number <= one.orders]
        else:
            found.append(one)
    return found


class Stop(Exception):
    """The exception that ends a trainer."""


def dies_at(at: int):
    """Return a hook that ends the trainer after step `at`, once."""
    left = [at]

    def die(step):
        if step in left:
            left.clear()
            raise Stop

    return die


def sound(run_dir: Path) -> list[m.Event]:
    """Return the run's events.

    Fails if a checkpoint did not fit, a rollback was given up, or a rate differed from the ordered one. It also fails
    if steps that ran again came out otherwise.
    """
    events = events_of(run_dir)
    assert of(events, m.CheckpointUnfit, m.CheckpointRejected, m.RollbackAborted, m.LrViolationDetected) == []
    assert [one for one in of(events, m.RerunFinished) if one.first_difference is not None] == []
    return events
