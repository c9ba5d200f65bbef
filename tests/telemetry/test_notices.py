"""Notifications: what a command and a web server get, how often, and what becomes of one that hangs or fails."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

import pytest

from tests.waiting import wait_for
from tests.web_server import Answer, web_server
from tolariad.core import messages as m
from tolariad.telemetry.collector import Unreachable
from tolariad.telemetry.messages import message_of
from tolariad.telemetry.notices import Command, CommandFailed, Notices, RunNames, Webhook, WebhookRefused, notice_of

NAMES = RunNames("blue\x1b[2J", "ab" * 16, "/data/blue", "node7")
BODY = b'{"a": 1}'


def frozen(seq: int = 7, why: str = "the loss is NaN"):
    event = m.RunFrozen(why=why, wall=1_700_000_000_000_000_000)
    return message_of(seq, event, epoch=2, step=40, phase="frozen")


@pytest.fixture
def run_dir(tmp_path) -> Path:
    folder = tmp_path / "run"
    (folder / "logs").mkdir(parents=True)
    return folder


def test_a_notice_says_what_and_where():
    """All fields, and nothing that a terminal would obey."""
    found = json.loads(notice_of(NAMES, frozen(why="bad\x1b[31m\u202e")))

    assert "NaN" not in found["text"]
    assert "\x1b" not in found["run"] + found["text"]
    assert (found["event"], found["seq"], found["priority"]) == ("RunFrozen", 7, "critical")
    assert (found["epoch"], found["step"], found["phase"]) == (2, 40, "frozen")
    assert (found["dir"], found["host"], found["run_id"]) == ("/data/blue", "node7", "ab" * 16)
    assert found["time"].startswith("2023-11-14T22:13:20")


async def test_a_command_gets_the_object_on_its_stdin(run_dir):
    """A shell command with a pipe; what it prints goes to the log."""
    command = Command(f"cat | tee {run_dir}/got; echo said", run_dir, os.environ)
    await command.post(BODY)

    assert (run_dir / "got").read_bytes() == BODY
    assert (run_dir / "logs/notify.log").read_text() == BODY.decode() + "said\n"


@pytest.mark.parametrize("text", ["exit 3", "exec <&-; exit 3", "kill -9 $$"])
async def test_a_command_that_fails_is_named(run_dir, text):
    """Also one that does not read its stdin."""
    with pytest.raises(CommandFailed, match="ended with code"):
        await Command(text, run_dir, os.environ).post(BODY * 100_000)


async def test_a_command_that_hangs_is_killed_with_what_it_started(run_dir):
    """It ignores SIGTERM, and its child would hang on. Both are gone after the limit."""
    text = f"trap '' TERM; sleep 1000 & echo $! > {run_dir}/child; wait"
    with pytest.raises(CommandFailed, match=r"did not end in 0[.]5 s and was killed"):
        await Command(text, run_dir, os.environ, limit_s=0.5).post(BODY)

    if (written := run_dir / "child").exists():  # on a very slow machine it was killed before
        wait_for(lambda: not _lives(int(written.read_text() or 0)), "the child's end")


@pytest.mark.parametrize("text", ["yes", "yes & exit 0", "(yes &) & exec >&-; wait"])
async def test_a_flood_of_output_fills_no_disk(run_dir, text):
    """Its beginning is logged, also of what the command leaves behind; it is killed after the limit, and named."""
    with pytest.raises(CommandFailed, match="was killed"):
        await Command(text, run_dir, os.environ, limit_s=0.5).post(BODY)

    assert (run_dir / "logs/notify.log").stat().st_size <= 1 << 16


async def test_what_a_command_leaves_behind_is_waited_for(run_dir):
    """A shell that sends in the background has ended when that has; what has given up its output goes on alone."""
    text = f"(sleep 0.05; echo said) & (exec >&- 2>&-; read line < {run_dir}/fifo) &"
    os.mkfifo(run_dir / "fifo")
    await Command(text, run_dir, os.environ).post(BODY)
    (run_dir / "fifo").write_text("end\n")

    assert (run_dir / "logs/notify.log").read_text() == "said\n"


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


async def test_notices_are_not_too_many_at_once(monkeypatch):
    """A burst of ten, then one in ten seconds; an emergency does not wait."""
    posted, slept, now = [], [], [100.0]

    async def post(body: bytes) -> None:
        posted.append(json.loads(body)["seq"])

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds + 1e-6

    monkeypatch.setattr("tolariad.telemetry.notices.asyncio.sleep", sleep)
    monkeypatch.setattr("tolariad.telemetry.notices.time.monotonic", lambda: now[0])
    notices = Notices(NAMES, post, lambda: None)
    await notices.publish([frozen(seq) for seq in range(1, 13)])
    await notices.send_immediate(frozen(99))

    assert posted == [*range(1, 13), 99]
    assert [round(one) for one in slept] == [10, 10]


@contextmanager
def answering(code: int, headers: Mapping[str, str] = {}) -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """Run a web server that answers each request with this code, and keeps method and body of each."""
    got: list[tuple[str, bytes]] = []

    def answer(method: str, _: str, body: bytes) -> Answer:
        got.append((method, body))
        return Answer(code, headers=headers)

    with web_server(answer) as url:
        yield f"{url}/hook?key=secret", got


@pytest.mark.parametrize(
    ("code", "error"), [(204, None), (404, WebhookRefused), (503, Unreachable), (429, Unreachable)]
)
async def test_a_webhook_gets_the_object(code, error):
    """A server that is busy gets it again later, one that refuses does not. No message has the address."""
    with answering(code) as (url, got):
        webhook = Webhook(lambda: url)
        if error is None:
            await webhook.post(BODY)
        else:
            with pytest.raises(error) as raised:
                await webhook.post(BODY)
            assert "secret" not in str(raised.value)
            assert str(code) in str(raised.value)
    assert got == [("POST", BODY)]


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
async def test_a_webhook_does_not_follow_a_redirection(code):
    """urllib would ask the new address by GET, without the object, and take its answer for success."""
    elsewhere = {"Location": "/elsewhere?key=secret"}
    said = pytest.raises(WebhookRefused, match=f"answered {code}: it has moved")
    with answering(code, elsewhere) as (url, got), said as raised:
        await Webhook(lambda: url).post(BODY)
    assert "secret" not in str(raised.value)
    assert got == [("POST", BODY)]


async def test_an_answer_of_any_length_is_not_read():
    """The server says 200 and would go on for ever: the code is all that counts."""
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n" + b"x" * 10_000
    with silent_after(head) as (url, connected):
        await Webhook(lambda: url).post(BODY)
        assert len(connected) == 1


async def test_a_server_that_never_ends_its_answer_is_given_up():
    """Also one that sends a byte now and then. So many threads wait for it, and no more are begun."""
    with silent_after(b"HTTP/1.1 200 O") as (url, connected):
        webhook = Webhook(lambda: url, limit_s=0.05)
        for _ in range(4):
            with pytest.raises(Unreachable, match=r"no answer after|earlier requests"):
                await webhook.post(BODY)
        assert len(connected) <= 2


@contextmanager
def silent_after(head: bytes) -> Iterator[tuple[str, list[socket.socket]]]:
    """Run a server that answers this, and then a byte every 10 ms until the end of the test."""
    connected: list[socket.socket] = []
    over = Event()

    def serve() -> None:
        while not over.is_set():
            with suppress(OSError):  # nobody comes, or has gone
                connected.append(listener.accept()[0])
                connected[-1].sendall(head)
            for one in connected:
                with suppress(OSError):
                    one.send(b"K")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.01)
        thread = Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/", connected
        finally:
            over.set()
            thread.join()
            for one in connected:
                one.close()


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("file:///etc/passwd", WebhookRefused),
        ("ftp://127.0.0.1/secret", WebhookRefused),
        ("http://", WebhookRefused),
        ("http://[::1/secret", WebhookRefused),
        ("http://127.0.0.1:1/secret", Unreachable),
        ("http://127.0.0.1:port/secret", WebhookRefused),
    ],
)
async def test_an_address_that_cannot_be_is_refused_without_it(url, error):
    """Nothing but http and https is opened, and the address is in no message: it may hold a key."""
    with pytest.raises(error) as raised:
        await Webhook(lambda: url).post(BODY)

    assert "secret" not in str(raised.value)


async def test_what_runs_at_the_end_is_killed(run_dir):
    """The daemon does not wait for a command at its end."""
    import asyncio

    command = Command(f"touch {run_dir}/runs; exec sleep 1000", run_dir, os.environ)
    posting = asyncio.create_task(command.post(BODY))
    await asyncio.to_thread(wait_for, lambda: (run_dir / "runs").exists() and command._running)
    command.end()

    with pytest.raises(CommandFailed, match=f"code -{signal.SIGKILL.value}"):
        await posting
