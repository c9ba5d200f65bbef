"""Notifications of a run's events: a shell command gets JSON on its stdin, a web server gets it by POST.

Promises: the run waits for neither. A command is killed with its process group after a stated time, a request is given
up. At most ten are sent at once, and six a minute after that. The beginning of what a command prints goes to
`logs/notify.log`: a flood of output fills no disk. A redirection is refused, because the object would be lost on it.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Final, cast

import msgspec

from tolariad import run_files
from tolariad.core.calc.text.plain import escaped_json_bytes, rfc3339, safe_lines
from tolariad.core.calc.token_bucket import TokenBucket
from tolariad.core.messages.sentences.text import sentence
from tolariad.loop_files import in_thread
from tolariad.telemetry.collector import Unreachable
from tolariad.telemetry.messages import RunEvent, TelemetryMessage

LIMIT_S: Final = 30.0
_BURST: Final = 10
_PER_S: Final = 0.1
_LOG_NAME: Final = "logs/notify.log"
_LOG_BYTES_MAX: Final = 1 << 20
# Of the output of one command, and how fast the rest of it is read and dropped: 64 KiB in 10 ms.
_OUTPUT_BYTES_MAX: Final = 1 << 16
_READ_BYTES: Final = 1 << 16
_FLOOD_PAUSE_S: Final = 0.01
# Threads that wait for a server that never ends its answer; more are not begun.
_GIVEN_UP_MAX: Final = 2
_HEADERS: Final = {"Content-Type": "application/json", "User-Agent": "tolariad"}


class RunNames(msgspec.Struct, frozen=True):
    """The names of a run in its messages."""

    name: str
    run_id: str
    folder: str
    host: str


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON object of a notification. `text` is one sentence, which chat servers show."""

    run: str
    run_id: str
    dir: str
    host: str
    event: str
    seq: int
    priority: str
    time: str
    epoch: int
    step: int
    phase: str
    text: str


def notice_of(names: RunNames, message: TelemetryMessage) -> bytes:
    """Return the JSON of a run's event."""
    payload = message.payload
    if not isinstance(payload, RunEvent):
        raise TypeError(f"a notification is of a run's event, not of {type(payload).__name__}")
    notice = Notice(
        run=safe_lines(names.name),
        run_id=names.run_id,
        dir=safe_lines(names.folder),
        host=names.host,
        event=message.event_type,
        seq=payload.seq,
        priority=message.priority.name.lower(),
        time=rfc3339(message.timestamp_ns),
        epoch=payload.epoch,
        step=payload.step,
        phase=payload.phase,
        text=safe_lines(sentence(payload.event)),
    )
    return escaped_json_bytes(msgspec.json.encode(notice))


class Notices:
    """A receiver that passes each message to `post`, in the order in which they come, and not too often."""

    def __init__(self, names: RunNames, post: Callable[[bytes], Awaitable[None]], end: Callable[[], None]) -> None:
        """`post` raises Unreachable to be called again with the same. `end` gives up what it does at the moment."""
        self._names = names
        self._post = post
        self._end = end
        self._bucket = TokenBucket(_PER_S, _BURST)

    async def publish(self, messages: Sequence[TelemetryMessage]) -> None:
        """Post each of them."""
        for message in messages:
            while wait_s := self._bucket.take(time.monotonic()):  # noqa: ASYNC110 - a clock, no event
                await asyncio.sleep(wait_s)
            await self.send_immediate(message)

    async def send_immediate(self, message: TelemetryMessage) -> None:
        """Post it, however many there were."""
        await self._post(notice_of(self._names, message))

    async def close(self) -> None:
        """Give up a notification in progress."""
        self._end()


# -- a command ---------------------------------------------------------------------------------------------------------


class CommandFailed(Exception):
    """The command ended with an error, or was killed."""


class Command:
    """A shell command for notifications, in the folder in which the daemon was started."""

    def __init__(self, command: str, run_dir: Path, environ: Mapping[str, str], *, limit_s: float = LIMIT_S) -> None:
        """`limit_s`: it is killed after that."""
        self._command = command
        self._run_dir = run_dir
        self._environ = dict(environ)
        self._limit_s = limit_s
        self._running: set[subprocess.Popen[bytes]] = set()

    async def post(self, body: bytes) -> None:
        """Run it with `body` on its stdin, in a thread. Raises CommandFailed.

        It has ended when it, and everything that it started and that has its output, has ended.
        """
        await in_thread(self._run, body)

    def _run(self, body: bytes) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
        log = run_files.open_file(self._run_dir, _LOG_NAME, flags)
        try:
            if os.fstat(log).st_size > _LOG_BYTES_MAX:
                os.ftruncate(log, 0)
            self._run_logged(body, log)
        finally:
            os.close(log)

    def _run_logged(self, body: bytes, log: int) -> None:
        until = time.monotonic() + self._limit_s
        process = self._started(body)
        self._running.add(process)
        try:
            with cast("IO[bytes]", process.stdout) as pipe:
                self._copy_output(pipe.fileno(), log, until)
            process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired as error:
            kill_group(process)
            raise CommandFailed(f"`{self._command}` did not end in {self._limit_s:g} s and was killed") from error
        finally:
            self._running.discard(process)
        if process.returncode:
            raise CommandFailed(f"`{self._command}` ended with code {process.returncode}; {_LOG_NAME} has its output")

    def _started(self, body: bytes) -> subprocess.Popen[bytes]:
        # A file in memory: a pipe would have to be written while the output is read.
        with os.fdopen(os.memfd_create("notice", os.MFD_CLOEXEC), "wb") as stdin:
            stdin.write(body)
            stdin.seek(0)
            return subprocess.Popen(
                ("/bin/sh", "-c", self._command),
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=self._environ,
                start_new_session=True,
            )

    def _copy_output(self, pipe: int, log: int, until: float) -> None:
        """Read the output to its end, and log its beginning. Raises TimeoutExpired if it has no end."""
        ready, room = select.poll(), _OUTPUT_BYTES_MAX
        ready.register(pipe, select.POLLIN)
        while (left_s := until - time.monotonic()) > 0 and ready.poll(left_s * 1000):
            piece = os.read(pipe, _READ_BYTES)
            if not piece:
                return
            if room > 0:
                with suppress(OSError):  # the disk is full
                    os.write(log, piece[:room])
                room -= len(piece)
            else:
                time.sleep(_FLOOD_PAUSE_S)
        raise subprocess.TimeoutExpired(self._command, self._limit_s)

    def end(self) -> None:
        """Kill those that run."""
        for process in tuple(self._running):
            kill_group(process)


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that leads a group, and the group, and wait for the process."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


# -- a web server ------------------------------------------------------------------------------------------------------


class WebhookRefused(Exception):
    """The server does not take the notification."""


class Webhook:
    """A web server for notifications. Its address is a secret, so no message has it."""

    def __init__(self, address: Callable[[], str], *, limit_s: float = LIMIT_S) -> None:
        """`address` reads the URL, in a thread."""
        self._address = address
        self._limit_s = limit_s
        # Requests that were given up, whose threads still wait for a server that sends a byte now and then.
        self._given_up: set[asyncio.Future[None]] = set()

    async def post(self, body: bytes) -> None:
        """Post `body` in a thread. Raises WebhookRefused, Unreachable."""
        if len(self._given_up) >= _GIVEN_UP_MAX:
            raise Unreachable("the server has not ended its answers to earlier requests")
        posting = asyncio.ensure_future(in_thread(partial(_posted, self._address, body, self._limit_s)))
        posting.add_done_callback(self._over)
        done, _ = await asyncio.wait({posting}, timeout=self._limit_s)
        if not done:
            self._given_up.add(posting)
            raise Unreachable(f"there is no answer after {self._limit_s:g} s")
        await posting

    def _over(self, posting: asyncio.Future[None]) -> None:
        self._given_up.discard(posting)
        if not posting.cancelled():
            posting.exception()  # so that nobody reports that it was never looked at

    def end(self) -> None:
        """The thread ends by its limit, and does not keep the process."""


def _posted(address: Callable[[], str], body: bytes, limit_s: float) -> None:
    # Loaded here: most runs have no webhook.
    from http.client import HTTPException, InvalidURL
    from urllib.error import HTTPError
    from urllib.request import HTTPRedirectHandler, Request, build_opener

    class Straight(HTTPRedirectHandler):
        def redirect_request(self, *_: object) -> None:
            """Follow none: urllib would ask the new address by GET, and the object would be lost."""

    url = address()
    if not url.lower().startswith(("http://", "https://")):
        raise WebhookRefused("its address must begin with http:// or https://")
    try:
        # The scheme was checked.
        request = Request(url, body, _HEADERS)  # noqa: S310
        # The answer says nothing more than its code, and may be of any length.
        post = build_opener(Straight).open
        with post(request, timeout=limit_s):
            return
    except HTTPError as error:
        what = f"the server answered {error.code}"
        error.close()
        if 300 <= error.code < 400:
            raise WebhookRefused(f"{what}: it has moved to another address. Give that one") from None
        is_for_later = error.code >= 500 or error.code == 429
        raise (Unreachable(what) if is_for_later else WebhookRefused(what)) from None
    except (ValueError, InvalidURL):
        raise WebhookRefused("its address is no URL") from None
    except (OSError, HTTPException) as error:
        # A text: urllib itself refuses the address. Else the kind of the fault; its words may hold the address.
        reason = getattr(error, "reason", error)
        if isinstance(reason, str):
            raise WebhookRefused("its address is no URL") from None
        raise Unreachable(f"there is no answer ({type(reason).__name__})") from None
