"""Why: causes up to the root, and consequences."""

from __future__ import annotations

import re

import pytest

from journal.reader import Reader
from tests.control.fakes import Recorder
from tests.core.pruning.pruned import SPEED
from tests.core.pruning.test_window import masked, reports
from tolariad.core import messages as m
from tolariad.forensics.positions import JournalPosition, PositionKind
from tolariad.forensics.timeline import up_to
from tolariad.forensics.topics import TOPICS
from tolariad.forensics.why import NoAnswer, why


def types(links):
    return [link.fields["type"] for link in links]


def test_a_pause_leads_back_to_who_ordered_it(reader):
    """The chain ends at the order, with the actor and the reason."""
    answer = why(reader, "pause")

    assert answer.event.fields["type"] == "RunPaused"
    assert types(answer.causes) == ["PauseRequested"]
    assert answer.causes[0].fields["actor"] == {"uid": 1000, "pid": 7, "program": "tolaria", "reason": "lunch"}


def test_an_order_tells_what_came_of_it(reader):
    """From the other end: the same chain downwards."""
    order = why(reader, "PauseRequested")

    assert "RunPaused" in types(order.consequences)
    assert order.causes == ()
    assert order.searched_all


def test_a_death_has_its_signal_and_output(reader):
    """The event itself has all that is known about the death."""
    death = why(reader, "death").event.fields

    assert (death["signal"], death["output"], death["step"]) == ("SIGSEGV", "boom\n", 18)


def test_a_checkpoint_is_found_by_its_id(reader):
    """The commit, caused by the begin, caused by the epoch's end."""
    answer = why(reader, "c000002")

    assert answer.event.fields["type"] == "CheckpointCommitted"
    assert types(answer.causes)[-1] == "CheckpointBegun"


def test_the_phase_is_explained_by_what_led_to_it(reader):
    """The run is running because a re-run has finished."""
    assert why(reader, "phase").event.fields["type"] == "RerunFinished"


def test_a_step_and_an_event_are_found_by_number(reader):
    """`step:N` is the event of that step, `seq:N` the event itself."""
    step = why(reader, "step:12", position=JournalPosition(PositionKind.STEP, 12)).event

    assert (step.fields["type"], step.fields["step"]) == ("StepCompleted", 12)
    assert why(reader, "seq", position=JournalPosition(PositionKind.SEQ, step.seq)).event == step


def test_an_answer_as_of_then_knows_nothing_later(reader):
    """With `until`, the newest checkpoint is the one of that moment."""
    then = why(reader, "c000002").event.seq
    answer = why(reader, "checkpoint", until_seq=then - 1)

    assert answer.event.fields["id"] == "c000001"
    assert all(link.seq < then for link in answer.consequences)


def test_the_rollback_that_is_asked_about_is_the_last_one_done_or_given_up(recorder, reader):
    """A refused order after a completed one is the newest."""
    recorder.take(m.CommandReceived(command=m.Rollback(to="c000001"), actor=m.Actor()))
    opened = recorder.state.rollbacks.open.id
    recorder.report(m.RollbackPreparedReport(rollback=opened, participants=("training",), seconds=0.1))
    recorder.report(m.RolledBackReport(rollback=opened, step=0, commit_s=0.1, confirm_s=0.1))
    done = why(reader, "rollback")
    recorder.take(m.CommandReceived(command=m.Rollback(to="c000001"), actor=m.Actor()))
    opened = recorder.state.rollbacks.open.id
    recorder.report(m.RollbackRefusedReport(rollback=opened, file="manifest.json", why="cannot be read"))
    given_up = why(reader, "rollback")

    assert done.event.fields["type"] == "RolledBack"
    assert (given_up.event.fields["type"], given_up.event.fields["rollback"]) == ("RollbackAborted", opened)
    assert types(given_up.causes)[0] == "RollbackRequested"


def test_a_pause_reaches_the_resume_and_who_ordered_it(recorder, reader):
    """The order and its event; nothing as long as the pause lasts."""
    answer = why(reader, "pause")
    until = answer.ended[0].seq - 1

    assert types(answer.ended) == ["ResumeRequested", "RunResumed"]
    assert answer.ended[0].fields["actor"]["pid"] == 8
    assert why(reader, "pause", until_seq=until).ended == ()


def test_a_run_that_was_killed_was_resumed_by_its_next_trainer(recorder, reader):
    """It went on from a checkpoint, and the steps after that were run again; a first start is no resume."""
    answer = why(reader, "resume")
    first = why(reader, "TrainingStarted", until_seq=answer.event.seq - 1).event
    with pytest.raises(NoAnswer, match="was never resumed"):
        why(reader, "resume", until_seq=first.seq)

    assert (answer.event.fields["type"], answer.event.fields["checkpoint"]) == ("TrainingStarted", "c000002")
    assert types(answer.consequences)[:2] == ["RerunBegun", "RerunFinished"]


def test_a_step_says_which_batches_were_skipped_before_it(recorder, reader):
    """Those of this step only; a step that was not made yet is answered by its last skip."""
    at = {"epoch": 3, "loss": float("nan"), "grad_norm": -1.0}
    step = recorder.state.progress.step
    for batch, reason in ((6, m.SkipReason.NON_FINITE), (7, m.SkipReason.SPIKE)):
        recorder.report(m.StepSkippedReport(step=step + 1, batch=batch, reason=reason, **at))
    tried = why(reader, "step", position=JournalPosition(PositionKind.STEP, step + 1))
    recorder.step()
    made = why(reader, "step", position=JournalPosition(PositionKind.STEP, step + 1))
    before = why(reader, "step", position=JournalPosition(PositionKind.STEP, step))
    nan = why(reader, "nan")

    assert (tried.event.fields["type"], tried.event.fields["batch"]) == ("StepSkipped", 7)
    assert made.event.fields["type"] == "StepCompleted"
    assert [one.fields["batch"] for one in made.skipped] == [6, 7]
    assert before.skipped == ()
    assert (nan.event.fields["batch"], nan.event.fields["reason"]) == (6, "non_finite")


@pytest.mark.parametrize("topic", sorted({*TOPICS} - {"lr"}))
def test_each_topic_has_words_for_a_run_without_it(topic, tmp_path):
    """No event type is in them; `stop` says that the run was never stopped."""
    empty = Recorder(tmp_path / "journal", segment_bytes=1 << 20)
    empty.journal.close()
    with Reader(tmp_path / "journal") as opened, pytest.raises(NoAnswer) as said:
        why(opened, topic)

    assert re.fullmatch(r"this run [a-z ,]+; `tolaria why RUN phase` explains its phase", str(said.value))
    assert topic != "stop" or "never stopped" in str(said.value)


@pytest.mark.parametrize("topic", ["hang", "RunFailed", "c009999", "love"])
def test_what_never_happened_is_said_so(reader, topic):
    """An unknown topic gets the list of known ones, a known one the list of those that have an answer."""
    with pytest.raises(NoAnswer) as said:
        why(reader, topic)

    assert ("hyperparameters" in str(said.value)) is (topic != "hang")
    assert ("It has an answer for: " in str(said.value)) is (topic == "hang")
    assert "pause" in str(said.value)


def test_masks_that_were_judged_lead_back_to_the_cycle_that_found_them(run_dir):
    """The judgement follows from a report of the trainer, which no event caused."""
    world = masked()
    reports(world, trips=(SPEED,))
    recorder = Recorder(run_dir / "journal")
    for event in world.events:
        recorder.record(event)
    with Reader(recorder.journal.folder) as opened:
        answer = why(opened, "prune")
    recorder.journal.close()

    assert answer.event.fields["type"] == "MaskSetRejected"
    assert types(answer.causes)[-5:] == [
        *("PruneCycleBegun", "PruneAnalyzed", "OrderGiven", "OrderActed", "PruneWatched")
    ]
    assert [link.seq for link in answer.causes] == sorted({link.seq for link in answer.causes})


def test_what_lies_after_the_wanted_place_is_not_read(reader):
    """It may be damaged, and what comes before it can still be asked. Nothing before it is left out."""
    entries = iter(reader.seek(seq=1))

    assert [one.seq for one in up_to(entries, 30)] == list(range(1, 31))
    assert next(entries).seq == 31
    assert len(list(up_to(reader.seek(seq=1), None))) == reader.last_seq


def test_a_number_after_the_end_has_no_answer(reader):
    """Neither an event nor a step."""
    for position in (JournalPosition(PositionKind.SEQ, 99_999), JournalPosition(PositionKind.STEP, 99_999)):
        with pytest.raises(NoAnswer):
            why(reader, "x", position=position)
