"""`tolaria logs`: what the trainer printed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

import click

from tolariad.cli import runs
from tolariad.cli.errors import CommandError, Exit
from tolariad.forensics.words import safe_lines

_BLOCK_BYTES: Final = 1 << 16
_POLL_S: Final = 0.2


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


def followed(path: Path, file: BinaryIO) -> Iterator[bytes]:
    """What is written from now on; a file that was replaced or cut is read from its start."""
    while True:
        chunk = file.read(_BLOCK_BYTES)
        if chunk:
            yield chunk
            continue
        time.sleep(_POLL_S)
        seen = path.stat() if path.exists() else None
        if seen is not None and (seen.st_size < file.tell() or seen.st_ino != _inode(file)):
            with path.open("rb") as again:
                yield from followed(path, again)


def _inode(file: BinaryIO) -> int:
    import os

    return os.fstat(file.fileno()).st_ino


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
        file = path.open("rb")
    except OSError as error:
        hint = "the trainer has printed nothing yet; `tolaria events RUN` shows what happened"
        raise CommandError(Exit.NO, f"{path}: {error.strerror}", hint=hint, name="NoLog") from error
    with file:
        _put(last_lines(file, lines))
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
