"""Malformed, oversized, half-closed, slow and flooding clients get an error or are closed. The server continues."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time

import pytest

from tests.control.clients import call, messages, raw
from tests.control.fakes import Served
from tests.waiting import wait_for
from tolariad.control.client import Client
from tolariad.control.connection import ServerLimits
from tolariad.control.peer import Peer
from tolariad.control.wire import INTERFACE, SERVICE


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
    """Each error names the fault, and the server continues."""
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
    """One error, then the connection is closed; the megabytes are never held in memory."""
    with raw(served) as sock:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            sock.sendall(b'{"method":"' + b"x" * (3 << 20))
        replies = messages(sock)

    assert [reply["error"] for reply in replies] in ([f"{SERVICE}.InvalidParameter"], [])


def test_a_half_closed_client_still_gets_its_answers(served):
    """`printf … | nc -U` closes its side at once; the server answers, then closes too."""
    with raw(served) as sock:
        sock.sendall(call("Status") * 3)
        sock.shutdown(socket.SHUT_WR)
        replies = messages(sock)

    assert [reply["parameters"]["status"]["step"] for reply in replies] == [1, 1, 1]


def test_a_message_cut_short_by_half_closing_is_named(served):
    """Half a message gets an error."""
    with raw(served) as sock:
        sock.sendall(call("Status")[:-5])
        sock.shutdown(socket.SHUT_WR)
        replies = messages(sock)

    assert [reply["error"] for reply in replies] == [f"{SERVICE}.InvalidParameter"]


def test_calls_without_number_are_answered_in_order_without_a_pile(served):
    """Six hundred pipelined calls: every call is answered, in order."""
    calls = [call("Status") if n % 2 else call("Fly") for n in range(600)]
    with raw(served) as sock:
        sender = threading.Thread(target=sock.sendall, args=(b"".join(calls),))
        sender.start()
        replies = messages(sock, len(calls))
        sender.join()

    assert ["error" in reply for reply in replies] == [n % 2 == 0 for n in range(600)]


def test_a_oneway_call_gets_no_answer_but_is_obeyed(served):
    """A oneway call gets no reply, not even an error."""
    note = json.dumps({"method": f"{INTERFACE}.Note", "parameters": {"text": "quiet"}, "oneway": True}).encode() + b"\0"
    bad = b'{"method":"io.esper.tolaria.Fly","oneway":true}\0'
    with raw(served) as sock:
        sock.sendall(note + bad + call("Status"))
        (reply,) = messages(sock, 1)

    assert reply["parameters"]["status"]["journal"]["seq"] == served.recorder.state.seq
    assert served.recorder.state.control.accepted == 1


def test_a_flood_of_orders_is_refused_beyond_its_rate(recorder, run_dir):
    """A client cannot fill the journal: orders are limited in rate."""
    with (
        Served(recorder, run_dir, limits=ServerLimits(changes_per_s=0.001, changes_burst=5)) as served,
        raw(served) as sock,
    ):
        sock.sendall(call("Note", text="x") * 20)
        replies = messages(sock, 20)

    assert ["error" in reply for reply in replies] == [False] * 5 + [True] * 15
    assert replies[-1]["error"] == f"{INTERFACE}.Refused"


def test_a_client_too_many_is_told_so_and_takes_nobodys_place(recorder, run_dir):
    """Connected clients are not affected; a closed connection makes room for a new one."""
    with Served(recorder, run_dir, limits=ServerLimits(connections=2, connections_kept=0)) as served:
        first, second = raw(served), raw(served)
        for sock in (first, second):
            sock.sendall(call("Status"))
            assert "parameters" in messages(sock, 1)[0]
        with raw(served) as third:
            refused = messages(third)
        first.close()
        wait_for(lambda: len(served.server.connections) <= 1)
        with raw(served) as fourth:
            fourth.sendall(call("Status"))
            answered = messages(fourth, 1)
        second.close()

    assert refused[0]["error"] == f"{INTERFACE}.Refused"
    assert "status" in answered[0]["parameters"]


def test_connections_are_bounded_a_user_and_some_are_kept_for_operators(recorder, run_dir, monkeypatch):
    """Two of six for each user, the last two only for operators: no user can lock others out."""
    monkeypatch.setattr("tolariad.control.connection.peer_of", lambda _: Peer(next(uids), 1, frozenset()))
    uids = iter((1001, 1001, 1001, 1002, 1002, 1003, 0, 0, 0))
    limits = ServerLimits(connections=6, connections_a_user=2, connections_kept=2)
    with Served(recorder, run_dir, limits=limits) as served, contextlib.ExitStack() as stack:
        said = []
        for _ in range(9):
            sock = stack.enter_context(raw(served))
            # One that is refused may be closed before it asks; what it was told can still be read.
            with contextlib.suppress(BrokenPipeError):
                sock.sendall(call("Status"))
            (reply,) = messages(sock, 1)
            said.append(reply["parameters"]["why"] if "error" in reply else "answered")

    assert said == [
        *("answered", "answered", "user 1001 already has 2 connections; close one"),
        *("answered", "answered", "4 clients are connected, and the last 2 places are for operators"),
        *("answered", "answered", "6 clients are already connected; close one"),
    ]


def test_an_idle_client_is_disconnected(recorder, run_dir):
    """An idle connection is closed after a while."""
    with Served(recorder, run_dir, limits=ServerLimits(idle_s=0.05)) as served, raw(served) as sock:
        assert sock.recv(1) == b""


def test_a_watcher_that_does_not_read_is_coalesced_to_the_newest_state(recorder, run_dir, monkeypatch):
    """A client that sleeps costs one buffer; then it gets the newest state only."""
    monkeypatch.setattr("tolariad.control.methods._WATCH_ALIVE_S", 0.0)
    limits = ServerLimits(write_bytes=4096)
    with Served(recorder, run_dir, limits=limits) as served, raw(served) as sock:
        # A receive buffer of the least size, and no wait between states: the buffers are full at once.
        monkeypatch.setattr("tolariad.control.methods.min", lambda *_: 0.0, raising=False)
        sock.sendall(call("Watch", more=True, interval_s=0.1))
        (connection,) = wait_for(lambda: served.server.connections)
        buffered = connection._writer.transport.get_write_buffer_size
        wait_for(lambda: buffered() > limits.write_bytes)
        waiting = buffered()
        served.do(lambda: [served.recorder.step() for _ in range(9)])
        time.sleep(0.05)
        grown = buffered()
        seen, data, deadline = 0, b"", time.monotonic() + 60
        while seen < 10 and time.monotonic() < deadline:
            data += sock.recv(1 << 20)
            *whole, data = data.split(b"\0")
            seen = json.loads(whole[-1])["parameters"]["status"]["step"] if whole else seen

    assert grown == waiting < 16 * 4096
    assert waiting > limits.write_bytes
    assert seen == 10


def test_a_client_that_reads_nothing_for_too_long_is_dropped(recorder, run_dir):
    """Replies for a client that does not read are not buffered in memory."""
    with Served(recorder, run_dir, limits=ServerLimits(write_bytes=1024, stall_s=0.1)) as served, raw(served) as sock:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError, TimeoutError):
            for _ in range(200):
                sock.sendall(call("Status") * 60)
        wait_for(lambda: not served.server.connections)


def test_the_calls_of_a_client_that_was_dropped_are_not_carried_out(recorder, run_dir):
    """An order that waited after thousands of unread replies is dropped with its connection."""
    with Served(recorder, run_dir, limits=ServerLimits(write_bytes=1024, stall_s=0.1)) as served, raw(served) as sock:
        # It may be dropped while it still sends.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            sock.sendall(call("Status") * 3000 + call("Note", text="too late"))
        deadline = time.monotonic() + 20
        while not served.server.connections and time.monotonic() < deadline:
            time.sleep(0.01)
        while served.server.connections and time.monotonic() < deadline:
            time.sleep(0.01)

        assert not served.server.connections
        assert recorder.state.control.accepted == 0


def test_a_nul_in_a_text_never_reaches_a_client(served):
    """Some JSON readers end a string, or the connection, at a NUL."""
    with raw(served) as sock:
        sock.sendall(call("Note", text="a\0b") + call("Events", more=True, from_seq=served.recorder.state.seq + 1))
        replies = messages(sock, 2)

    assert replies[1]["parameters"]["events"][0]["text"] == "ab"


def test_what_came_before_a_bad_message_is_answered_first(served):
    """Answers keep their order, and a valid order is carried out."""
    with raw(served) as sock:
        sock.sendall(call("Note", text="kept") + call("Status") + b"{rubbish\0" + call("Note", text="not read"))
        replies = messages(sock)

    assert ["seq" in reply["parameters"] for reply in replies] == [True, False, False]
    assert replies[-1]["error"] == f"{SERVICE}.InvalidParameter"
    assert served.recorder.state.control.accepted == 1


def test_large_calls_that_wait_are_bounded_by_their_bytes(recorder, run_dir):
    """Sixty-four megabytes of calls are not held for a client that does not read."""
    with Served(recorder, run_dir) as served, raw(served) as sock:
        sock.sendall(call("Watch", more=True, interval_s=60.0))
        assert messages(sock, 1)
        sock.settimeout(0.2)
        big = b'{"method":"a.b","parameters":{"x":"' + b"x" * 900_000 + b'"}}\0'
        with pytest.raises(TimeoutError):
            sock.sendall(big * 20)
        (connection,) = served.server.connections

        # The bound is the promise, and asyncio shows it nowhere else.
        assert len(connection._reader._buffer) < 3 << 20


def test_a_stream_ends_when_its_client_is_gone(served):
    """A closed client is noticed even if there is nothing to send; a half-closed one still gets its stream."""
    gone, half = raw(served), raw(served)
    for sock in (gone, half):
        sock.sendall(call("Events", more=True, follow=True))
        assert messages(sock, 1)
    half.shutdown(socket.SHUT_WR)
    gone.close()
    wait_for(lambda: len(served.server.connections) <= 1)
    served.do(served.recorder.step)
    seen, left = messages(half, 1), len(served.server.connections)
    half.close()

    assert left == 1
    assert seen[0]["parameters"]["events"][0]["type"] == "StepCompleted"


def test_a_burst_of_clients_is_not_turned_away(recorder, run_dir):
    """Hundreds of clients that connect while the loop is busy are queued; with the loops' backlog of 100 they would get
    EAGAIN.
    """
    with Served(recorder, run_dir) as served, contextlib.ExitStack() as burst:

        def connect_all() -> list[int]:
            # On the server's loop, so that it cannot accept meanwhile.
            clients = [burst.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(300)]
            for one in clients:
                one.setblocking(False)
            return [one.connect_ex(str(served.path)) for one in clients]

        answers = served.do(connect_all)

    assert answers == [0] * 300
