"""The control socket as clients see it, most of them not ours."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time

import pytest
import varlink

from tests.control.fakes import Recorder, Served
from tolariad.control.client import Client, ControlError
from tolariad.control.limits import Limits
from tolariad.control.methods import description
from tolariad.control.peer import Operators
from tolariad.control.wire import INTERFACE, SERVICE


@contextlib.contextmanager
def foreign(served):
    """The client of PyPI's varlink package, bound to our interface by introspection."""
    with varlink.Client.new_with_address(f"unix:{served.path}") as client, client.open(INTERFACE) as connection:
        yield connection


def raw(served, timeout_s=5.0):
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(timeout_s)
    sock.connect(str(served.path))
    return sock


def messages(sock, count=None):
    """Replies until `count` are there or the end of the connection."""
    data = b""
    while count is None or data.count(b"\0") < count:
        try:
            chunk = sock.recv(65536)
        except ConnectionResetError:
            break
        if not chunk:
            break
        data += chunk
    return [json.loads(part) for part in data.split(b"\0") if part]


def call(method, more=False, **parameters):
    return json.dumps({"method": f"{INTERFACE}.{method}", "parameters": parameters, "more": more}).encode() + b"\0"


def test_a_foreign_client_introspects_the_service(served):
    """GetInfo and GetInterfaceDescription answer, and what they say parses."""
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
    """What is sent and what the description promises are the same fields, nested ones too."""
    with Client(served.path) as client:
        status = client.call(f"{INTERFACE}.Status")["status"]
    text = description(INTERFACE)

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
    """The number is that of the event in the journal, which names who gave the order and why."""
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
    from tolariad.core.vocabulary import checkpoints as ck

    with foreign(served) as run:
        replies = iter(run.Checkpoint(_more=True))
        next(replies)
        served.do(
            lambda: served.recorder.report(
                ck.CheckpointFailedReport(id=served.recorder.state.checkpoints.open[-1].id, why="disk full")
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
    """The error's name is for programs, `why` for people."""
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


@pytest.mark.parametrize(
    ("message", "error", "parameter"),
    [
        (b"{not json\0", "InvalidParameter", "message"),
        (b"\xff\xfe\0", "InvalidParameter", "message"),
        (b"[]\0", "InvalidParameter", "message"),
        (b'{"parameters":{}}\0', "InvalidParameter", "method"),
        (b"[" * 200_000 + b"\0", "InvalidParameter", "message"),
        (call("Note"), "InvalidParameter", "text"),
        (call("Note", text=3), "InvalidParameter", "text"),
        (call("Pause", idd="x"), "InvalidParameter", "idd"),
        (call("Stop", mode="soon"), "InvalidParameter", "mode"),
        (call("Events", more=True, from_seq=0), "InvalidParameter", "from_seq"),
        (call("Fly"), "MethodNotFound", f"{INTERFACE}.Fly"),
        (b'{"method":"a.b.C"}\0', "InterfaceNotFound", "a.b"),
        (call("Watch"), "ExpectedMore", None),
        (b'{"method":"io.esper.tolaria.Status","upgrade":true}\0', "MethodNotImplemented", f"{INTERFACE}.Status"),
    ],
)
def test_a_bad_call_gets_one_clear_error(served, message, error, parameter):
    """Each names what is wrong with it, and the server goes on."""
    with raw(served) as sock:
        sock.sendall(message)
        (reply,) = messages(sock, 1)
    with Client(served.path) as client:
        alive = client.call(f"{INTERFACE}.Status")

    assert reply["error"] == f"{SERVICE}.{error}"
    assert parameter is None or parameter in reply["parameters"].values()
    assert alive["status"]["live"] is True


@pytest.mark.parametrize("parameters", [b"", b',"parameters":null', b',"parameters":{}'])
def test_absent_null_and_empty_parameters_mean_the_same(served, parameters):
    """The C reference client sends null."""
    with raw(served) as sock:
        sock.sendall(b'{"method":"io.esper.tolaria.Status"' + parameters + b"}\0")
        (reply,) = messages(sock, 1)

    assert reply["parameters"]["status"]["step"] == 1


def test_a_message_over_the_limit_ends_the_connection(served):
    """One error, then the end; the megabytes are never kept."""
    with raw(served) as sock:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            sock.sendall(b'{"method":"' + b"x" * (3 << 20))
        replies = messages(sock)

    assert [reply["error"] for reply in replies] in ([f"{SERVICE}.InvalidParameter"], [])


def test_a_half_closed_client_still_gets_its_answers(served):
    """`printf … | nc -U` closes its side at once; then we close ours."""
    with raw(served) as sock:
        sock.sendall(call("Status") * 3)
        sock.shutdown(socket.SHUT_WR)
        replies = messages(sock)

    assert [reply["parameters"]["status"]["step"] for reply in replies] == [1, 1, 1]


def test_a_message_cut_short_by_half_closing_is_named(served):
    """Half a message is no call, and is said to be none."""
    with raw(served) as sock:
        sock.sendall(call("Status")[:-5])
        sock.shutdown(socket.SHUT_WR)
        replies = messages(sock)

    assert [reply["error"] for reply in replies] == [f"{SERVICE}.InvalidParameter"]


def test_calls_without_number_are_answered_in_order_without_a_pile(served):
    """Two thousand pipelined calls: reading stops while 64 wait, every call is answered, in order."""
    calls = [call("Status") if n % 2 else call("Fly") for n in range(2000)]
    with raw(served) as sock:
        sender = threading.Thread(target=sock.sendall, args=(b"".join(calls),))
        sender.start()
        replies = messages(sock, len(calls))
        sender.join()

    assert ["error" in reply for reply in replies] == [n % 2 == 0 for n in range(2000)]


def test_a_oneway_call_gets_no_answer_but_is_obeyed(served):
    """Not even an error is sent back."""
    note = json.dumps({"method": f"{INTERFACE}.Note", "parameters": {"text": "quiet"}, "oneway": True}).encode() + b"\0"
    bad = b'{"method":"io.esper.tolaria.Fly","oneway":true}\0'
    with raw(served) as sock:
        sock.sendall(note + bad + call("Status"))
        (reply,) = messages(sock, 1)

    assert reply["parameters"]["status"]["journal"]["seq"] == served.recorder.state.seq
    assert served.recorder.state.control.accepted == 1


def test_a_flood_of_orders_is_refused_beyond_its_rate(recorder, run_dir):
    """The journal is not a client's to fill."""
    with Served(recorder, run_dir, limits=Limits(changes_per_s=0.001, changes_burst=5)) as served, raw(served) as sock:
        sock.sendall(call("Note", text="x") * 20)
        replies = messages(sock, 20)

    assert ["error" in reply for reply in replies] == [False] * 5 + [True] * 15
    assert replies[-1]["error"] == f"{INTERFACE}.Refused"


def test_a_client_too_many_is_told_so_and_takes_nobodys_place(recorder, run_dir):
    """The connected ones go on; a place that becomes free is free."""
    with Served(recorder, run_dir, limits=Limits(connections=2)) as served:
        first, second = raw(served), raw(served)
        for sock in (first, second):
            sock.sendall(call("Status"))
            assert "parameters" in messages(sock, 1)[0]
        with raw(served) as third:
            refused = messages(third)
        first.close()
        deadline = time.monotonic() + 5
        while served.server.connections > 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        with raw(served) as fourth:
            fourth.sendall(call("Status"))
            answered = messages(fourth, 1)
        second.close()

    assert refused[0]["error"] == f"{INTERFACE}.Refused"
    assert "status" in answered[0]["parameters"]


def test_an_idle_client_is_disconnected(recorder, run_dir):
    """A connection that asks nothing is not kept for ever."""
    with Served(recorder, run_dir, limits=Limits(idle_s=0.05)) as served, raw(served) as sock:
        assert sock.recv(1) == b""


def test_a_watcher_sees_the_present_state_then_each_newer_one(served):
    """The first reply is the state now, the next comes with a change."""
    with foreign(served) as run:
        states = iter(run.Watch(_more=True, interval_s=0.1))
        first = next(states)["status"]
        served.do(served.recorder.step)
        second = next(states)["status"]

    assert (first["step"], second["step"]) == (1, 2)


def test_a_watcher_that_does_not_read_is_coalesced_to_the_newest_state(recorder, run_dir, monkeypatch):
    """It costs one buffer, however long it sleeps, and then it sees the newest state, not all of them."""
    monkeypatch.setattr("tolariad.control.methods._WATCH_ALIVE_S", 0.0)
    limits = Limits(write_bytes=4096)
    with Served(recorder, run_dir, limits=limits) as served, raw(served) as sock:
        # A receive buffer of the least size, and no wait between states: the buffers are full at once.
        monkeypatch.setattr("tolariad.control.methods.min", lambda *_: 0.0, raising=False)
        sock.sendall(call("Watch", more=True, interval_s=0.1))
        deadline = time.monotonic() + 10
        connection = None
        while time.monotonic() < deadline:
            connection = next(iter(served.server._connections), None)
            if connection is not None and not connection._writable.is_set():
                break
            time.sleep(0.01)
        waiting = connection._transport.get_write_buffer_size()
        served.do(lambda: [served.recorder.step() for _ in range(9)])
        time.sleep(0.05)
        grown = connection._transport.get_write_buffer_size()
        seen = 0
        data = b""
        while seen < 10 and time.monotonic() < deadline:
            data += sock.recv(1 << 20)
            *whole, data = data.split(b"\0")
            seen = json.loads(whole[-1])["parameters"]["status"]["step"] if whole else seen

    assert not connection._writable.is_set() or seen == 10
    assert grown == waiting < 16 * 4096
    assert seen == 10


def test_a_client_that_reads_nothing_for_too_long_is_dropped(recorder, run_dir):
    """Its calls are not answered into memory."""
    with Served(recorder, run_dir, limits=Limits(write_bytes=1024, stall_s=0.1)) as served, raw(served) as sock:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError, TimeoutError):
            for _ in range(200):
                sock.sendall(call("Status") * 60)
        deadline = time.monotonic() + 5
        while served.server.connections and time.monotonic() < deadline:
            time.sleep(0.01)

        assert served.server.connections == 0


def test_events_come_in_slices_and_then_as_they_happen(served):
    """With `follow` the stream goes on with what is recorded from now on, and shows nothing twice."""
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
    with Served(recorder, run_dir, limits=Limits(answer_s=0.05)) as served, Client(served.path) as client:
        with pytest.raises(ControlError) as late:
            client.call(f"{INTERFACE}.Pause", {"id": "p"})
        status = client.call(f"{INTERFACE}.Status")["status"]

    assert late.value.name == f"{INTERFACE}.NotDurable"
    assert "same id" in late.value.parameters["why"]
    assert status["ordered"] == "pause"


def test_when_the_server_ends_streams_and_waits_get_a_last_reply(recorder, run_dir):
    """Nobody is left with half an answer; the socket's file is gone."""
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


def test_a_nul_in_a_text_never_reaches_a_client(served):
    """Some JSON readers end a string, or the connection, there."""
    with raw(served) as sock:
        sock.sendall(call("Note", text="a\0b") + call("Events", more=True, from_seq=served.recorder.state.seq + 1))
        replies = messages(sock, 2)

    assert replies[1]["parameters"]["events"][0]["text"] == "ab"
