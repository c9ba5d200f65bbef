"""Notifications of a run's events: a shell command gets JSON on its stdin, a web server gets it by POST.

Promises: the run waits for neither. A command is killed with its process group after a stated time, a request is given
up. At most ten are sent at once, and six a minute after that. What the command prints goes to `logs/notify.log`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from tolariad import run_files
from tolariad.core.calc.text.plain import escaped_json_bytes, rfc3339, safe_lines
from tolariad.core.messages.sentences.text import sentence
from tolariad.loop_files import in_thread
from tolariad.telemetry.collector import Unreachable
from tolariad.telemetry.messages import RunEvent, TelemetryMessage
from tolariad.telemetry.token_bucket import TokenBucket

LIMIT_S: Final = 30.0
_BURST: Final = 10
_PER_S: Final = 0.1
_LOG_NAME: Final = "logs/notify.log"
_LOG_BYTES_MAX: Final = 1 << 20
_ANSWER_BYTES_MAX: Final = 1 << 16
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
        """Run it with `body` on its stdin, in a thread. Raises CommandFailed."""
        await in_thread(self._run, body)

    def _run(self, body: bytes) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
        log = run_files.open_file(self._run_dir, _LOG_NAME, flags)
        try:
            if os.fstat(log).st_size > _LOG_BYTES_MAX:
                os.ftruncate(log, 0)
            process = self._started(log)
        finally:
            os.close(log)
        self._running.add(process)
        try:
            process.communicate(body, timeout=self._limit_s)
        except subprocess.TimeoutExpired as error:
            kill_group(process)
            raise CommandFailed(f"`{self._command}` did not end in {self._limit_s:g} s and was killed") from error
        finally:
            self._running.discard(process)
        if process.returncode:
            raise CommandFailed(f"`{self._command}` ended with code {process.returncode}; {_LOG_NAME} has its output")

    def _started(self, log: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            ("/bin/sh", "-c", self._command),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=self._environ,
            start_new_session=True,
        )

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

    async def post(self, body: bytes) -> None:
        """Post `body` in a thread. Raises WebhookRefused, Unreachable."""
        await in_thread(partial(_posted, self._address, body, self._limit_s))

    def end(self) -> None:
        """The thread ends by its limit, and does not keep the process."""


def _posted(address: Callable[[], str], body: bytes, limit_s: float) -> None:
    # Loaded here: most runs have no webhook.
    from http.client import HTTPException, InvalidURL
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    url = address()
    if not url.lower().startswith(("http://", "https://")):
        raise WebhookRefused("its address must begin with http:// or https://")
    try:
        # The scheme was checked.
        request = Request(url, body, _HEADERS)  # noqa: S310
        with urlopen(request, timeout=limit_s) as answer:  # noqa: S310
            answer.read(_ANSWER_BYTES_MAX)
    except HTTPError as error:
        what = f"the server answered {error.code}"
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
