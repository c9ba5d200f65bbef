"""Where a follower keeps its output, and how far it has come. Only one follower writes to a place.

Promises: the position is replaced as a whole, after the output up to it is on disk. So after a kill or a power cut the
output holds at least what the position names; the rest is cut off and written again, byte for byte.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

import msgspec

POSITION_NAME: Final = "tolaria-position.json"
_LOCK_NAME: Final = ".tolaria-lock"
_BYTES_MAX: Final = 16 * 1024 * 1024


class PlaceTaken(Exception):
    """Another follower writes to the place, or it holds something else. The text says which, and what to do."""


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """How far the output of a run goes: event `seq` is its last. `files`: bytes of each file, by its path there."""

    run_id: str = ""
    seq: int = 0
    files: dict[str, int] = {}


class Place:
    """A folder with the output of one run, locked. Close it."""

    def __init__(self, folder: Path) -> None:
        """Make the folder if there is none, and lock it. Raises PlaceTaken, OSError."""
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(folder / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._lock)
            raise PlaceTaken(f"another follower writes to {folder}: end it, or give another --uri") from error

    def read(self) -> Position:
        """Return the position; that of an empty place if there is none. Raises PlaceTaken if it cannot be read."""
        try:
            with (self.folder / POSITION_NAME).open("rb") as file:
                content = file.read(_BYTES_MAX)
        except FileNotFoundError:
            return Position()
        try:
            return msgspec.json.decode(content, type=Position)
        except ValueError as error:
            what = f"{self.folder / POSITION_NAME} cannot be read ({error}): remove {self.folder}, and start again"
            raise PlaceTaken(what) from error

    def write(self, position: Position) -> None:
        """Replace the position. The caller has synced the output. Raises OSError."""
        aside = self.folder / f".{POSITION_NAME}"
        with aside.open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(position)) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        aside.replace(self.folder / POSITION_NAME)

    def close(self) -> None:
        """Unlock the place."""
        os.close(self._lock)


def place_for(folder: Path, run_id: str) -> tuple[Place, Position]:
    """Return the place of a run in `folder`, and its position. Raises PlaceTaken, OSError.

    If the folder holds another run of the same name, such as one whose folder was deleted, the place lies beside it.
    """
    for one in (folder, folder.with_name(f"{folder.name}-{run_id[:8]}")):
        place = Place(one)
        try:
            position = place.read()
        except BaseException:
            place.close()
            raise
        if position.run_id in ("", run_id):
            return place, position
        place.close()
    raise PlaceTaken(f"{folder} holds the output of other runs: give another --uri")
