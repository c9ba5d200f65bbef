"""After a repair that lost events the run waits for an operator, shows the missing events, and then ends normally."""

from __future__ import annotations

import pytest

from journal import RepairAction, Verdict, plan_repair, repair, verify
from tests.daemon.harness import CallFailed, of_type
from tolariad.core import messages as m
from tolariad.forensics.gap import gap_event

STEP = b"\xa4type\xadStepCompleted"


def spoil_a_step(journal) -> None:
    """One bit of the fourth step's frame."""
    (path,) = journal.glob("*.wal")
    image = bytearray(path.read_bytes())
    at = -1
    for _ in range(4):
        at = image.index(STEP, at + 1)
    image[at + 40] ^= 1
    path.write_bytes(image)


def test_a_run_that_lost_events_goes_on_only_when_it_is_told_to(start, run_dir):
    """The start is refused as damaged; after the repair the run is frozen.

    `Resume` needs its flag; then the run completes.
    """
    first = start(environ={"FAKE_TRAINER": "crawl@8"}, task="digits", epochs=2)
    first.until(lambda status: status["step"] >= 8)
    first.kill()
    journal = run_dir / "journal"
    spoil_a_step(journal)
    damaged = start()
    assert damaged.wait() == 65

    plan = repair(journal, accept_loss=gap_event(journal, plan_repair(journal).problem))
    assert plan.action is RepairAction.LOSE_EVENTS
    (gap,) = of_type(run_dir, m.GapRecorded)
    assert (gap.first_seq, gap.last_seq) == (plan.loss.first_seq, plan.loss.last_seq)
    lost = gap.last_seq

    daemon = start()
    # The lost events may have said that the former trainer is gone: it is looked for, and its end is recorded.
    daemon.until(lambda status: status["phase"] == "frozen" and not status["trainer"]["alive"])
    with pytest.raises(CallFailed, match="--after-gap"):
        daemon.call("Resume")
    daemon.call("Resume", after_gap=True)
    assert daemon.wait() == 0, daemon.stderr

    steps = [one.step for one in of_type(run_dir, m.StepCompleted)]
    assert steps == list(range(1, len(steps) + 1))
    assert of_type(run_dir, m.RunCompleted)
    assert [one.after_gap for one in of_type(run_dir, m.ResumeRequested)] == [True]
    assert len({one.id for one in of_type(run_dir, m.CheckpointBegun)}) == len(of_type(run_dir, m.CheckpointBegun))
    assert verify(journal).verdict is Verdict.CLEAN
    assert lost > gap.first_seq
