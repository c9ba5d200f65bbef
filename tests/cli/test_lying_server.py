"""Whatever a server sends, every command ends with a sentence, without a traceback and without control characters."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import threading

import msgspec
import pytest

from tests.cli.lying import LyingServer, replies
from tests.cli.test_hostile_journals import wrong_with
from tolariad.control import client as clients
from tolariad.control.client import BadReply, Client, NotReachable

COMMANDS = [
    ["status", "--dir", "RUN"],
    ["status", "--dir", "RUN", "--json"],
    ["status", "--socket", "SOCKET", "--budgets"],
    ["list", "PARENT"],
    ["list", "PARENT", "--json"],
    ["watch", "--dir", "RUN", "--plain"],
    ["watch", "--dir", "RUN", "--json"],
    ["lr", "show", "--dir", "RUN"],
    ["seeds", "list", "--dir", "RUN"],
    ["prune", "status", "--dir", "RUN"],
    ["pause", "--dir", "RUN"],
    ["checkpoint", "--dir", "RUN", "--json"],
    ["note", "text", "--dir", "RUN", "--no-wait"],
    ["stop", "--now", "--yes", "--dir", "RUN"],
    ["rollback", "--yes", "--step", "1", "--dir", "RUN"],
    ["call", "Status", "--dir", "RUN"],
    ["call", "Events", "--socket", "SOCKET"],
    ["logs", "--socket", "SOCKET"],
    ["--socket", "SOCKET", "events", "-n", "1"],
]


@pytest.fixture
def lying(recorder, run_dir):
    """A server that lies, and what an honest one would send."""
    recorder.journal.close()
    server = LyingServer(run_dir / "control.sock", lambda: msgspec.to_builtins(recorder.status()))
    truth = [
        {"status": recorder.status()},
        {"table": recorder.budgets()},
        {"rates": recorder.rates()},
        {"seeds": recorder.seeds()},
        {"pruning": recorder.pruning()},
        {"seq": 7, "outcome": {"state": "done", "seq": 9, "event": "RunPaused", "step": 3, "why": None}},
        {"seq": 7},
        {"events": [{"seq": 1, "type": "Note"}]},
    ]
    server.ours = json.loads(msgspec.json.encode(truth))
    yield server
    server.close()


@pytest.mark.parametrize("count", [150, pytest.param(4500, marks=pytest.mark.torture)])
def test_lies_of_every_shape_end_with_a_sentence(lying, run_dir, seed, count):
    """Half of the time the first answer is true, so that the lie is believed as far as possible."""
    draw = random.Random(seed)
    places = {"RUN": str(run_dir), "PARENT": str(run_dir.parent), "SOCKET": str(run_dir / "control.sock")}
    wrong = []
    for number in range(count):
        lying.replies = replies(lying.ours, draw)
        lying.tells_status = draw.random() < 0.6
        command = COMMANDS[number % len(COMMANDS)]
        what = wrong_with([places.get(word, word) for word in command])
        if what:
            wrong.append((number, " ".join(command), what, lying.replies[0][:80]))
    assert wrong == []


def test_an_order_ends_with_its_outcome_however_much_follows(lying, run_dir, tolaria):
    """A server that never ends its answer does not keep the command."""
    lying.tells_status = True
    done = json.dumps({"parameters": {"seq": 7, "outcome": {"state": "done"}}, "continues": True}).encode()
    lying.replies = [done] * 100_000
    assert tolaria("pause", "--dir", run_dir).code == 0
    lying.replies = [json.dumps({"parameters": {"seq": 7}, "continues": True}).encode()] * 100_000
    said = tolaria("pause", "--dir", run_dir)
    assert (said.code, said.out.count("\n")) == (1, 8)
    assert "was not carried out (no outcome)" in said.err


def test_control_characters_of_a_reply_are_escaped(lying, run_dir, tolaria):
    """In an order's outcome, which is text: `seq` and `step` must be numbers, `event` and `why` are shown."""
    lying.tells_status = True
    outcome = {"state": "done", "event": "\x1b[2JRunPaused\x07", "why": "\x9b31mred", "seq": 3, "step": 2}
    lying.replies = [json.dumps({"parameters": {"seq": 7, "outcome": outcome}}).encode()]
    said = tolaria("pause", "--dir", run_dir)
    assert said.out == "pause: done by \\x1b[2JRunPaused\\x07, event 3, from step 2 on: \\x9b31mred\n"
    for name in ("seq", "step"):
        lying.replies = [json.dumps({"parameters": {"seq": 7, "outcome": {**outcome, name: "\x1b[2J"}}}).encode()]
        said = tolaria("pause", "--dir", run_dir)
        assert said.code == 3
        assert said.err.startswith("tolaria: what answers is no run of this version: Expected `int | null`")


@contextlib.contextmanager
def sending(path, send):
    """Accept one client, and call `send` with its socket in a thread."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def serve() -> None:
        client, _ = listener.accept()
        with client, contextlib.suppress(OSError):
            client.recv(65_536)
            send(client)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield
    thread.join(30)
    listener.close()


def test_a_reply_that_does_not_end_is_given_up(run_dir, monkeypatch):
    """After so many bytes."""
    monkeypatch.setattr(clients, "_REPLY_BYTES_MAX", 1 << 20)

    def endless(client: socket.socket) -> None:
        while True:
            client.sendall(b"x" * 65_536)

    with (
        sending(run_dir / "control.sock", endless),
        Client(run_dir / "control.sock") as client,
        pytest.raises(BadReply, match="does not end"),
    ):
        client.call("Status")


@pytest.mark.parametrize("more", [False, True])
def test_a_reply_that_drips_is_given_up(run_dir, more):
    """Each byte would come in time. Of a stream the first byte may be late, the rest of a reply may not."""
    over = threading.Event()

    def drip(client: socket.socket) -> None:
        if more:
            client.sendall(b'{"continues": true}\0')
        while not over.wait(0.05):
            client.sendall(b"x")

    with sending(run_dir / "control.sock", drip), Client(run_dir / "control.sock", timeout_s=0.3) as client:
        with pytest.raises(NotReachable, match="no answer within"):
            list(client.stream("Watch")) if more else client.call("Status")
        over.set()
