"""Weights & Biases: a run for each branch, in one group. It needs the package wandb (extra `wandb`).

W&B drops a row whose step is not above the last one, and cannot go back in a run that lives. So a rollback begins a run
of its own, and the step of a row is the number of its event, which only rises; `trainer/global_step` is the axis of all
charts.

Promises: each step is one row. What was written is read from W&B itself: from the file of an offline run, or from the
step that the server gives a resumed one. A follower that was killed goes on after that.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tolariad import run_files
from tolariad.followers.place import Position, place_for
from tolariad.followers.records import (
    GLOBAL_STEP,
    About,
    Begun,
    BranchOf,
    Ended,
    Numbers,
    Record,
    Words,
    as_config,
)
from tolariad.followers.refused import FollowRefused

if TYPE_CHECKING:
    from wandb import Run

OFFLINE: Final = "offline"
# A position of a run on a server is noted when it is so many flushes old: W&B does not say what has arrived.
_FLUSHES_BEHIND: Final = 5
# The file of an offline run: LevelDB's log behind seven bytes of W&B's own. It is blocks of 32 KiB with pieces of
# records, each after sum, length and kind (1 whole, 2 first, 3 middle, 4 last).
_MAGIC: Final = b":W&B"
_MAGIC_BYTES: Final = 7
_BLOCK: Final = 32_768
_PIECE: Final = struct.Struct("<IHB")
_ENDS: Final = (1, 4)


class WandbOutput:
    """Writes records through wandb. `position`: the last event that W&B is known to hold."""

    def __init__(self, uri: str, project: str, run_dir: Path, about: About, branch_of: BranchOf) -> None:
        """Find how far an earlier follower came. Raises FollowRefused, PlaceTaken, OSError.

        `uri`: `offline`, the address of a server, or "": what the environment of wandb says.
        """
        self._wandb = _package()
        self._about, self._branch_of = about, branch_of
        self._project = project or "tolariad"
        self._folder = run_dir / "exports"
        run_files.make_folder(run_dir, "exports")
        self._is_offline = uri == OFFLINE or (not uri and os.environ.get("WANDB_MODE") == OFFLINE)
        self._base_url = "" if uri in ("", OFFLINE) else uri
        self._place, position = place_for(self._folder / "wandb", about.run_id)
        self.position = self._last_offline() if self._is_offline else position.seq
        self._behind = [self.position] * _FLUSHES_BEHIND
        self._live: Run | None = None
        self._branch = -1
        # Events up to this one are there already.
        self._there = self.position

    @property
    def words(self) -> str:
        """Return where the output is."""
        if self._is_offline:
            return f"{self._place.folder}; `wandb sync {self._place.folder}/offline-run-*` uploads it"
        return f"project {self._project} at {self._base_url or 'the server that wandb is logged in to'}"

    def put(self, record: Record) -> None:
        """Take the next record. Raises what wandb raises."""
        match record:
            case Numbers():
                self._log(record, dict(record.values))
            case Words():
                self._log(record, {GLOBAL_STEP: float(record.step), record.tag: record.text})
            case Begun():
                self._run(record.branch)
            case Ended():
                run = self._run(record.branch)
                run.summary.update(record.summary)

    def flush(self, seq: int) -> None:
        """Note how far the output goes."""
        if self._is_offline or seq == self.position:
            return
        self._behind = [*self._behind[1:], seq]
        self._place.write(Position(run_id=self._about.run_id, seq=self._behind[0]))
        self.position = seq

    def close(self) -> None:
        """End the W&B run of this process; its file, or the server, has everything then."""
        if self._live is not None:
            self._live.finish()
            if not self._is_offline:
                self._place.write(Position(run_id=self._about.run_id, seq=self.position))
        self._place.close()

    def _log(self, record: Numbers | Words, row: dict[str, Any]) -> None:
        run = self._run(record.branch)
        if record.seq > self._there:
            # When it came about, not when it is copied.
            run.log({**row, "_timestamp": record.wall / 1e9}, step=record.seq)

    def _run(self, number: int) -> Run:
        """Return the W&B run of a branch. That of the branch before it ends: it gets no more rows."""
        if self._live is not None and number == self._branch:
            return self._live
        if self._live is not None:
            self._live.finish()
        branch = self._branch_of(number)
        name = self._about.name if number == 0 else f"{self._about.name} {branch.title}"
        settings = self._wandb.Settings(
            console="off", silent=True, disable_git=True, disable_code=True, x_disable_stats=True, quiet=True
        )
        if self._base_url:
            settings.base_url = self._base_url
        run: Run = self._wandb.init(
            project=self._project,
            name=name,
            id=f"{self._about.run_id[:16]}-{number}",
            group=self._about.name,
            dir=str(self._folder),
            config={**as_config(self._about.config), "tolaria_branch": number, "tolaria_after_step": branch.step},
            mode="offline" if self._is_offline else None,
            resume=None if self._is_offline else "allow",
            settings=settings,
        )
        run.define_metric(GLOBAL_STEP)
        run.define_metric("*", step_metric=GLOBAL_STEP)
        if not self._is_offline:
            self._there = max(self._there, run.step - 1)
        self._live, self._branch = run, number
        return run

    def _last_offline(self) -> int:
        """Return the last event in the files of earlier offline runs; 0 if there is none."""
        names = f"offline-run-*/run-{self._about.run_id[:16]}-*.wandb"
        return max((_last_step(path) for path in self._place.folder.glob(names)), default=0)


def _package() -> Any:
    try:
        import wandb
    except ImportError as error:
        what = f"the package wandb is not installed ({error}): pip install 'tolariad[wandb]'"
        raise FollowRefused(what) from error
    return wandb


def _last_step(path: Path) -> int:
    """Return the step of the last whole row in the file of an offline run."""
    from wandb.proto import wandb_internal_pb2 as pb

    last = 0
    for content in _records(path.read_bytes()):
        for item in pb.Record.FromString(content).history.item:
            if "_step" in (item.key, *item.nested_key):
                last = max(last, int(json.loads(item.value_json)))
    return last


def _records(data: bytes) -> Iterator[bytes]:
    """Yield the whole records of the file, up to a torn end."""
    at, whole = _MAGIC_BYTES if data.startswith(_MAGIC) else len(data), b""
    while at + _PIECE.size <= len(data):
        if _BLOCK - at % _BLOCK < _PIECE.size:
            at += _BLOCK - at % _BLOCK
            continue
        _, length, kind = _PIECE.unpack_from(data, at)
        at += _PIECE.size + length
        if at > len(data) or kind == 0:
            return
        whole += data[at - length : at]
        if kind in _ENDS:
            yield whole
            whole = b""
