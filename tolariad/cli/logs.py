"""`tolaria logs`: what the trainer printed."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

import click

from tolariad import run_files
from tolariad.cli import runs
from tolariad.cli.errors import CommandError, Exit
from tolariad.forensics.words import safe_lines

_BLOCK_BYTES: Final = 1 << 16
_POLL_S: Final = 0.2
_PREVIOUS: Final = ".1"  # as `telemetry.log_file` names it; a command that only reads does not load that one


def last_lines(file: BinaryIO, count: int) -> bytes:
    """The last `count` lines; the file is left at its end. Reads backwards, so a long log costs nothing."""
    end = file.seek(0, 2)
    start, data = end, b""
    while start > 0 and data.count(b"\n") <= count:
        start = max(0, start - _BLOCK_BYTES)
        file.seek(start)
        data = file.read(end - start)
    file.seek(end)
    return b"".join(data.splitlines(keepends=True)[-count:]) if count else b""


def _opened(path: Path) -> BinaryIO:
    """A log of a run. Raises OSError for a link or a FIFO in its place, too."""
    folder = path.parent
    return os.fdopen(run_files.open_file(folder.parent, f"{folder.name}/{path.name}", os.O_RDONLY), "rb")


def followed(path: Path, file: BinaryIO, sleep: Callable[[float], None] = time.sleep) -> Iterator[bytes]:
    """What is written from now on; of a file that was replaced the rest is read, then the new one from its start."""
    while True:
        fresh = _replacement(path, file)  # asked before the last look at the old one: nothing comes to it behind that
        while chunk := file.read(_BLOCK_BYTES):
            yield chunk
        if fresh is None:
            sleep(_POLL_S)
        else:
            file.close()
            file = fresh


def _replacement(path: Path, file: BinaryIO) -> BinaryIO | None:
    """The file that has the name now, if it is another one, or was cut."""
    try:
        fresh = _opened(path)
    except FileNotFoundError:
        return None  # between the two names of a rotation
    now, before = os.fstat(fresh.fileno()), os.fstat(file.fileno())
    if (now.st_dev, now.st_ino) != (before.st_dev, before.st_ino) or now.st_size < file.tell():
        return fresh
    fresh.close()
    return None


def last_printed(path: Path, file: BinaryIO, count: int) -> bytes:
    """The last `count` lines of the log, from the one before it too where the newest holds fewer."""
    lines = last_lines(file, count)
    missing = count - lines.count(b"\n")
    if missing > 0:
        with contextlib.suppress(OSError), _opened(path.with_name(path.name + _PREVIOUS)) as earlier:
            return last_lines(earlier, missing) + lines
    return lines


@click.command()
@click.argument("run", required=False)
@click.option("-f", "--follow", is_flag=True, help="Go on with what is printed from now on.")
@click.option("-n", "--lines", default=200, show_default=True, type=click.IntRange(min=0), help="How many lines.")
@runs.options
@click.pass_context
def logs(
    context: click.Context,
    /,
    *,
    run: str | None,
    follow: bool,
    lines: int,
    name: str | None,
    folder: Path | None,
    socket: Path | None,
) -> int:
    """Show what the trainer printed."""
    path = _folder(runs.find(context, name or run, folder, socket)) / "logs" / "trainer.log"
    try:
        file = _opened(path)
    except OSError as error:
        hint = "the trainer has printed nothing yet; `tolaria events RUN` shows what happened"
        raise CommandError(Exit.NO, f"{path}: {error.strerror}", hint=hint, name="NoLog") from error
    with file:
        _put(last_printed(path, file, lines))
        if follow:
            for chunk in followed(path, file):
                _put(chunk)
    return Exit.DONE


def _folder(target: runs.Target) -> Path:
    """The run's folder; a daemon known by its socket only is asked for it."""
    if target.folder is not None:
        return target.folder
    with target.connect() as client:
        return Path(client.call("io.esper.tolaria.Status")["status"]["dir"])


def _put(data: bytes) -> None:
    if data:
        print(safe_lines(data.decode("utf-8", "replace")), end="", flush=True)
