"""Journals of library runs: their events, and what must hold of each, whatever disturbed the run."""

from __future__ import annotations

from pathlib import Path

from journal import Reader
from tolariad.core.base import Event
from tolariad.core.checkpoints.words import CheckpointRejected, CheckpointUnfit, RerunFinished
from tolariad.core.rates.words import LrViolationDetected
from tolariad.core.rollback.words import RollbackAborted
from tolariad.core.vocabulary import decode_event


def events_of(run_dir: Path) -> list[Event]:
    with Reader(run_dir / "journal") as reader:
        return [decode_event(entry.event) for entry in reader]


def of(events: list[Event], kind: type[Event]) -> list:
    return [event for event in events if isinstance(event, kind)]


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


def sound(run_dir: Path) -> list[Event]:
    """Return the run's events.

    Fails if a checkpoint did not fit, a rollback was given up, a rate differed from the ordered one, or steps that ran
    again came out otherwise.
    """
    events = events_of(run_dir)
    failures = (CheckpointUnfit, CheckpointRejected, RollbackAborted, LrViolationDetected)
    assert [one for one in events if isinstance(one, failures)] == []
    assert [one for one in events if isinstance(one, RerunFinished) and one.first_difference is not None] == []
    return events
