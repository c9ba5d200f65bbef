"""Build the event that describes the events lost by a repair (GapRecorded).

Promises: it records what was lost, where and why. It also records the highest checkpoint number on disk, so that the
ids of checkpoints that the lost events ordered are not given out again.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

from journal import Loss, Problem
from tolariad.core import messages as m
from tolariad.core.messages.vocabulary import encode_event

_WHY_CHARACTERS_MAX = 1024


def gap_event(journal: Path, problem: Problem | None) -> Callable[[Loss], bytes]:
    """Return a function that builds the encoded GapRecorded event from the loss. `journal` is the journal folder."""

    def event(loss: Loss) -> bytes:
        gap = m.GapRecorded(
            first_seq=loss.first_seq,
            last_seq=loss.last_seq,
            file=loss.file.name,
            offset=loss.offset,
            segments=loss.segments,
            damage=problem.damage if problem is not None else "",
            why=problem.sentence[:_WHY_CHARACTERS_MAX] if problem is not None else "",
            checkpoints_seen=_checkpoints_seen(journal.parent / "checkpoints"),
            wall=time.time_ns(),
            mono=time.monotonic_ns(),
            root=loss.first_seq,
            actor=m.Actor(uid=os.getuid(), pid=os.getpid(), program="tolaria journal repair"),
        )
        return encode_event(gap)

    return event


def _checkpoints_seen(folder: Path) -> int:
    """Return the highest number of a checkpoint on disk, complete or not; 0 if there is none."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return max((int(found[0]) for name in names if (found := re.findall(r"c(\d{6,})", name))), default=0)
