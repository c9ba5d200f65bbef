"""Why: causes up to the root, and consequences."""

from __future__ import annotations

import pytest

from tolariad.core.base import Actor
from tolariad.core.inputs import CommandReceived
from tolariad.core.rollback import words as rb
from tolariad.forensics.positions import JournalPosition, PositionKind
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
    recorder.take(CommandReceived(command=rb.Rollback(to="c000001"), actor=Actor()))
    opened = recorder.state.rollbacks.open.id
    recorder.report(rb.RollbackPreparedReport(rollback=opened, participants=("training",), seconds=0.1))
    recorder.report(rb.RolledBackReport(rollback=opened, step=0, commit_s=0.1, confirm_s=0.1))
    done = why(reader, "rollback")
    recorder.take(CommandReceived(command=rb.Rollback(to="c000001"), actor=Actor()))
    opened = recorder.state.rollbacks.open.id
    recorder.report(rb.RollbackRefusedReport(rollback=opened, file="manifest.json", why="cannot be read"))
    given_up = why(reader, "rollback")

    assert done.event.fields["type"] == "RolledBack"
    assert (given_up.event.fields["type"], given_up.event.fields["rollback"]) == ("RollbackAborted", opened)
    assert types(given_up.causes)[0] == "RollbackRequested"


@pytest.mark.parametrize("topic", ["hang", "RunFailed", "c009999", "love"])
def test_what_never_happened_is_said_so(reader, topic):
    """An unknown topic gets the list of known ones."""
    with pytest.raises(NoAnswer) as said:
        why(reader, topic)

    assert ("pause" in str(said.value)) is (topic != "hang")


def test_a_number_after_the_end_has_no_answer(reader):
    """Neither an event nor a step."""
    for position in (JournalPosition(PositionKind.SEQ, 99_999), JournalPosition(PositionKind.STEP, 99_999)):
        with pytest.raises(NoAnswer):
            why(reader, "x", position=position)
