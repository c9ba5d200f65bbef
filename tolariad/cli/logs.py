"""`tolaria logs`: show the trainer's output."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Final

import click

from tolariad import run_files
from tolariad.cli import naming, output, runs
from tolariad.cli.errors import CommandError, Exit
from tolariad.forensics.words import safe_lines
from tolariad.telemetry.writer import previous

_BLOCK_BYTES: Final = 1 << 16
_POLL_S: Final = 0.2


def last_lines(file: BinaryIO, count: int) -> bytes:
    """Return the last `count` lines and leave the file at its end. Reads backwards, so a long log costs nothing."""
    start = end = file.seek(0, 2)
    blocks: list[bytes] = []
    missing = count + 1
    while start > 0 and missing > 0:
        before = start
        start = max(0, start - _BLOCK_BYTES)
        file.seek(start)
        blocks.append(file.read(before - start))
        missing -= blocks[-1].count(b"\n")
    file.seek(end)
    data = b"".join(reversed(blocks))
    return b"".join(data.splitlines(keepends=True)[-count:]) if count else b""


def _opened(path: Path) -> BinaryIO:
    """Open a log of a run. Raises OSError, also for a link or a FIFO."""
    folder = path.parent
    return os.fdopen(run_files.open_file(folder.parent, f"{folder.name}/{path.name}", os.O_RDONLY), "rb")


def followed(path: Path, file: BinaryIO, sleep: Callable[[float], None] = time.sleep) -> Iterator[bytes]:
    """Yield what is written from now on. If the file is replaced, read its rest, then the new file from its start."""
    while True:
        # Look for a new file before reading: nothing is appended to the old file after it was replaced.
        fresh = _replacement(path, file)
        while chunk := file.read(_BLOCK_BYTES):
            yield chunk
        if fresh is None:
            sleep(_POLL_S)
        else:
            file.close()
            file = fresh


def _replacement(path: Path, file: BinaryIO) -> BinaryIO | None:
    """Return the file that has the name now if it is another file or was truncated, else None."""
    try:
        fresh = _opened(path)
    except FileNotFoundError:
        return None  # a rotation is under way: the old file is renamed, the new one not there yet
    now, before = os.fstat(fresh.fileno()), os.fstat(file.fileno())
    if (now.st_dev, now.st_ino) != (before.st_dev, before.st_ino) or now.st_size < file.tell():
        return fresh
    fresh.close()
    return None


def last_printed(path: Path, file: BinaryIO, count: int) -> bytes:
    """Return the last `count` lines of the log. If it holds fewer, take the rest from the log before it."""
    lines = last_lines(file, count)
    missing = count - lines.count(b"\n")
    if missing > 0:
        with contextlib.suppress(OSError), _opened(previous(path)) as earlier:
            return last_lines(earlier, missing) + lines
    return lines


@click.command()
@naming.argument
@click.option("-f", "--follow", is_flag=True, help="Show new lines as they come.")
@click.option(
    "-n", "--lines", default=200, show_default=True, type=click.IntRange(min=0), metavar="N", help="Number of lines."
)
@click.option("--json", "as_json", is_flag=True, help="Print each line as a JSON object.")
@naming.takes_target
def logs(target: runs.Target, *, follow: bool, lines: int, as_json: bool) -> int:
    """Show the trainer's output."""
    path = runs.known_folder(target) / "logs" / "trainer.log"
    try:
        file = _opened(path)
    except OSError as error:
        hint = (
            "perhaps the trainer has printed nothing yet, or it is a run of the library, which keeps no log; "
            "`tolaria events RUN` shows what happened"
        )
        raise CommandError(Exit.NO, f"{path}: {error.strerror}", hint=hint, name="NoLog") from error
    with file:
        printed = last_printed(path, file, lines)
        if lines and not printed:
            output.note("the trainer has printed nothing yet; `tolaria events RUN` shows what happened")
        chunks = chain([printed], followed(path, file) if follow else ())
        if as_json:
            for one in _whole_lines(chunks):
                output.put_json({"line": one.decode("utf-8", "replace")})
        else:
            for chunk in chunks:
                _put(chunk)
    return Exit.DONE


def _put(data: bytes) -> None:
    if data:
        print(safe_lines(data.decode("utf-8", "replace")), end="", flush=True)


def _whole_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines without their ends, each when it is complete; then the rest."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from whole
    if rest:
        yield rest
