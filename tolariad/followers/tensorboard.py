"""TensorBoard: a folder for each branch of the run, with one event file. It needs no package of TensorBoard's.

The first branch lies in `URI/NAME`, a later one in `URI/NAME/branch-1-after-step-230`. TensorBoard's readers disagree
about steps that come again in one folder: one drops them, one draws a zigzag, one purges. In a folder of its own each
branch is drawn by all of them as it was.

Promises: the bytes are a function of the journal. A follower that was killed cuts each file at the position and writes
the same bytes again, so a TensorBoard that reads meanwhile sees nothing of it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from tolariad.core.calc.text.plain import safe
from tolariad.followers import tfevents
from tolariad.followers.place import Position, place_for
from tolariad.followers.records import (
    BRANCH,
    CONFIGURATION,
    SUMMARY,
    About,
    Begun,
    Branch,
    BranchOf,
    Ended,
    Numbers,
    Record,
    Words,
    as_config,
    flattened,
)

# Bytes that are held back until the next flush.
_HELD_BYTES_MAX: Final = 1 << 20


class TensorBoardOutput:
    """Writes records to event files. `position`: the last event that they hold."""

    def __init__(self, root: Path, about: About, branch_of: BranchOf) -> None:
        """Take the place of the run in `root` and cut off what was written after its position.

        Raises PlaceTaken, OSError.
        """
        self._about, self._branch_of = about, branch_of
        self._place, position = place_for(root / folder_name(about.name), about.run_id)
        try:
            self._lengths = dict(position.files)
            self.position = position.seq
            if not self._are_whole():
                # Bytes that the position names are gone. All of them can be written again.
                self._lengths, self.position = {}, 0
            self._cut()
        except BaseException:
            self._place.close()
            raise
        self._held: dict[int, bytearray] = {}
        self._held_bytes = 0
        self._unsynced: set[str] = set()

    @property
    def words(self) -> str:
        """Return where the output lies, and how it is shown."""
        return f"{self._place.folder}; `tensorboard --logdir {self._place.folder.parent}` shows it"

    def put(self, record: Record) -> None:
        """Take the next record. Raises OSError."""
        match record:
            case Numbers():
                self._add(record.branch, tfevents.scalars(record.wall, record.step, record.values))
            case Words():
                self._add(record.branch, tfevents.text(record.wall, record.step, record.tag, record.text))
            case Begun():
                self._begin(record)
            case Ended():
                table = _table(record.summary)
                self._add(record.branch, tfevents.text(record.wall, record.step, SUMMARY, table))
        if self._held_bytes > _HELD_BYTES_MAX:
            self._write()

    def flush(self, seq: int) -> None:
        """Sync everything up to event `seq`, then note it as the position. Raises OSError."""
        if seq == self.position:
            return
        self._write()
        for name in self._unsynced:
            descriptor = os.open(self._place.folder / name, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)
        self._unsynced.clear()
        self._place.write(Position(run_id=self._about.run_id, seq=seq, files=self._lengths))
        self.position = seq

    def close(self) -> None:
        """Release the place. What was not flushed is written again by the next follower."""
        self._place.close()

    def _begin(self, begun: Begun) -> None:
        self._add(begun.branch, tfevents.first(begun.wall))
        if begun.branch:
            words = f"Branch {begun.branch} begins after step {begun.step} of branch {begun.parent}."
            self._add(begun.branch, tfevents.text(begun.wall, begun.step, BRANCH, words))
        else:
            config = _table(flattened(as_config(self._about.config)))
            self._add(begun.branch, tfevents.text(begun.wall, begun.step, CONFIGURATION, config))

    def _add(self, branch: int, record: bytes) -> None:
        self._held.setdefault(branch, bytearray()).extend(record)
        self._held_bytes += len(record)

    def _write(self) -> None:
        """Append what is held back to its files."""
        for number, content in self._held.items():
            name = self._file_of(self._branch_of(number))
            path = self._place.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab", buffering=0) as file:
                _write_all(file.fileno(), content)
            self._lengths[name] = self._lengths.get(name, 0) + len(content)
            self._unsynced.add(name)
        self._held.clear()
        self._held_bytes = 0

    def _file_of(self, branch: Branch) -> str:
        # The readers take every file whose name contains `tfevents`, and sort them by name.
        name = f"events.out.tfevents.0000000000.{self._about.run_id[:8]}.tolaria"
        return name if branch.number == 0 else f"{branch.title}/{name}"

    def _are_whole(self) -> bool:
        for name, length in self._lengths.items():
            try:
                if (self._place.folder / name).stat().st_size < length:
                    return False
            except FileNotFoundError:
                return False
        return True

    def _cut(self) -> None:
        """Cut every event file of the run at its length. A file that the position does not name is emptied."""
        for path in self._place.folder.rglob(self._file_of(Branch(0, -1, 0))):
            name = str(path.relative_to(self._place.folder))
            os.truncate(path, self._lengths.get(name, 0))


def folder_name(name: str) -> str:
    """Return the run's name as that of a folder."""
    return safe(name).replace("/", "_").strip(". ") or "run"


def _table(figures: dict[str, float | str] | dict[str, str]) -> str:
    """Return the figures as a table in Markdown."""
    cells = (f"| {name} | {_cell(value)} |" for name, value in figures.items())
    return "\n".join(["| name | value |", "|---|---|", *cells])


def _cell(value: float | str) -> str:
    return f"{value:.6g}" if isinstance(value, float) else safe(value).replace("|", "\\|")


def _write_all(descriptor: int, content: bytearray) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
    view.release()
