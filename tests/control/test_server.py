"""The methods of the control socket, called by clients that are mostly not ours."""

from __future__ import annotations

import asyncio

import pytest
import varlink

from tests.control.clients import call, foreign, messages, raw
from tests.control.fakes import Served
from tolariad.control.client import Client, ControlError
from tolariad.control.connection import ServerLimits
from tolariad.control.methods import description
from tolariad.control.peer import Operators
from tolariad.control.wire import INTERFACE, SERVICE
from tolariad.core import messages as m


def test_a_foreign_client_introspects_the_service(served):
    """GetInfo and GetInterfaceDescription answer, and the description parses."""
    with varlink.Client.new_with_address(f"unix:{served.path}") as client:
        interfaces = client.get_interfaces()
        methods = client.get_interface(INTERFACE).members

    assert {INTERFACE, SERVICE} <= set(interfaces)
    assert {"Status", "Watch", "Pause", "Resume", "Stop", "Checkpoint", "Note", "Events"} <= set(methods)


def test_a_foreign_client_reads_the_status(served):
    """Status answers with the run as of the last durable event."""
    with foreign(served) as run:
        status = run.Status()["status"]

    assert (status["phase"], status["step"], status["name"]) == ("running", 1, "digits")
    assert status["loss"] == 0.5
    assert status["loss_state"] == "finite"


def test_every_field_of_the_status_is_in_the_description(served):
    """Replies have exactly the fields of the description, nested ones too."""
    with Client(served.path) as client:
        status = client.call(f"{INTERFACE}.Status")["status"]
    text = asyncio.run(description(INTERFACE))

    def promised(name):
        body = text.split(f"type {name} (", 1)[1].split("\n)", 1)[0]
        return [line.split(":")[0].strip() for line in body.splitlines() if ":" in line]

    assert list(status) == promised("RunStatus")
    for field, kind in (("checkpoint", "CheckpointStatus"), ("journal", "JournalStatus"), ("trainer", "TrainerStatus")):
        assert list(status[field]) == promised(kind)


def test_a_number_that_is_not_finite_is_null_with_a_word_beside_it(served):
    """JSON has no NaN, and varlinkctl drops a connection that sends one."""
    served.do(lambda: served.recorder.step(loss=float("nan")))

    with Client(served.path) as client:
        status = client.call(f"{INTERFACE}.Status")["status"]

    assert status["loss"] is None
    assert status["loss_state"] == "nan"


def test_an_order_is_answered_with_the_number_of_its_durable_event(served):
    """The number is that of the event in the journal, which has actor and reason."""
    with foreign(served) as run:
        seq = run.Note(text="hello", reason="to see")["seq"]
        event = next(e for reply in run.Events(_more=True, from_seq=seq) for e in reply["events"])

    assert event["type"] == "NoteAdded"
    assert event["seq"] == seq
    assert event["actor"]["uid"] == served.path.stat().st_uid
    assert event["actor"]["reason"] == "to see"
    assert event["actor"]["program"]


def test_a_pause_answers_a_second_time_when_the_boundary_is_reached(served):
    """Called with `more`: first the number, then the outcome."""
    with foreign(served) as run:
        replies = iter(run.Pause(_more=True))
        first = next(replies)
        served.do(served.recorder.hold)
        second = next(replies)

    assert first.get("outcome") is None
    assert second["seq"] == first["seq"]
    assert (second["outcome"]["state"], second["outcome"]["event"]) == ("done", "RunPaused")


def test_a_pause_that_is_withdrawn_says_by_what(served):
    """A resume before the boundary is reached overtakes the pause."""
    with foreign(served) as run, foreign(served) as other:
        replies = iter(run.Pause(_more=True))
        next(replies)
        other.Resume()
        outcome = next(replies)["outcome"]

    assert (outcome["state"], outcome["event"]) == ("overtaken", "ResumeRequested")


def test_a_checkpoint_that_fails_says_why(served):
    """Its second answer carries the reason from the event."""
    with foreign(served) as run:
        replies = iter(run.Checkpoint(_more=True))
        next(replies)
        served.do(
            lambda: served.recorder.report(
                m.CheckpointFailedReport(id=served.recorder.state.checkpoints.open[-1].id, why="disk full")
            )
        )
        outcome = next(replies)["outcome"]

    assert (outcome["state"], outcome["why"]) == ("failed", "disk full")


def test_a_repeated_id_gets_the_first_answer_and_its_outcome(served):
    """A client that lost the answer repeats the call: same number, nothing new in the journal, the outcome from it."""
    with foreign(served) as run:
        first = run.Note(text="once", id="n1")["seq"]
        before = served.recorder.state.seq
        again = list(run.Note(text="once", id="n1", _more=True))

    assert [reply["seq"] for reply in again] == [first, first]
    assert again[-1]["outcome"]["state"] == "done"
    assert served.recorder.state.seq == before


def test_a_refusal_is_an_error_of_the_interface_with_the_phase(served):
    """The error's name is for programs, its `why` for people."""
    with foreign(served) as run, pytest.raises(varlink.VarlinkError) as refused:
        run.Resume()

    assert refused.value.error() == f"{INTERFACE}.WrongPhase"
    assert refused.value.parameters()["phase"] == "running"


def test_who_may_only_read_is_told_so_and_changes_nothing(recorder, run_dir):
    """PermissionDenied before anything reaches the kernel; reading goes on."""
    before = recorder.state.seq
    with Served(recorder, run_dir, allow=Operators(frozenset({12345}))) as served, foreign(served) as run:
        with pytest.raises(varlink.VarlinkError) as refused:
            run.Pause()
        assert run.Status()["status"]["phase"] == "running"

    assert refused.value.error() == f"{SERVICE}.PermissionDenied"
    assert recorder.state.seq == before


def test_a_watcher_sees_the_present_state_then_each_newer_one(served):
    """The first reply is the state now, the next comes with a change."""
    with foreign(served) as run:
        states = iter(run.Watch(_more=True, interval_s=0.1))
        first = next(states)["status"]
        served.do(served.recorder.step)
        second = next(states)["status"]

    assert (first["step"], second["step"]) == (1, 2)


def test_events_come_in_slices_and_then_as_they_happen(served):
    """With `follow` the stream continues with new events, and shows none twice."""
    with foreign(served) as run:
        replies = iter(run.Events(_more=True, from_seq=2, follow=True))
        seen = [event["seq"] for event in next(replies)["events"]]
        last = served.recorder.state.seq
        served.do(served.recorder.step)
        while seen[-1] < served.recorder.state.seq:
            seen += [event["seq"] for event in next(replies)["events"]]

    assert seen == list(range(2, served.recorder.state.seq + 1))
    assert last < seen[-1]


def test_an_answer_that_is_not_durable_in_time_says_so(recorder, run_dir):
    """The order may still take effect: the error says how to find out."""
    recorder.hold_answers = True
    with Served(recorder, run_dir, limits=ServerLimits(answer_s=0.05)) as served, Client(served.path) as client:
        with pytest.raises(ControlError) as late:
            client.call(f"{INTERFACE}.Pause", {"id": "p"})
        status = client.call(f"{INTERFACE}.Status")["status"]

    assert late.value.name == f"{INTERFACE}.NotDurable"
    assert "same id" in late.value.parameters["why"]
    assert status["ordered"] == "pause"


def test_when_the_server_ends_streams_and_waits_get_a_last_reply(recorder, run_dir):
    """No client gets half an answer; the socket's file is removed."""
    with Served(recorder, run_dir) as served:
        watcher, waiter = raw(served), raw(served)
        watcher.sendall(call("Watch", more=True))
        waiter.sendall(call("Stop", more=True))
        assert messages(watcher, 1)[0]["continues"] is True
        assert messages(waiter, 1)[0]["continues"] is True
        served.close()
        last_state, last_answer = messages(watcher)[-1], messages(waiter)[-1]
        watcher.close()
        waiter.close()

        assert "continues" not in last_state
        assert last_answer["parameters"]["outcome"]["state"] == "done"
        assert not served.path.exists()
