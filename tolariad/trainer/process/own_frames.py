"""Show an exception from the task's first frame on: how this package called the task helps nobody.

Promises: no frame of the task, and none below it, is left out. An exception that no frame of a task leads to is a
defect of ours, and is shown whole.
"""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_PACKAGE: Final = f"{Path(__file__).parents[2]}/"
# Where the code of others lies, as beginnings of file names.
_FOREIGN: Final = (*(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "purelib", "platlib")), _PACKAGE)


def is_own(frame: traceback.FrameSummary) -> bool:
    """Return whether the frame is of the task: of no library, and not of this package."""
    return is_own_file(frame.filename)


def is_own_file(name: str) -> bool:
    """Return whether a source file is the user's: of no library, and not of this package."""
    return not name.startswith(("<", *_FOREIGN))


def shown(error: BaseException) -> str:
    """Return the traceback as Python prints it, from the task's first frame on; the same of each of its causes."""
    found = traceback.TracebackException.from_exception(error)
    pending, seen = [found], set()
    while pending:
        one = pending.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        del one.stack[: _first_of_task(one.stack)]
        pending += [other for other in (one.__cause__, one.__context__, *(one.exceptions or ())) if other is not None]
    return "".join(found.format())


def _first_of_task(frames: Sequence[traceback.FrameSummary]) -> int:
    """Return the place of the task's first frame."""
    own = (at for at, frame in enumerate(frames) if is_own(frame))
    # A task of an installed package, or a file that cannot be compiled: only our own frames before it go.
    of_others = (at for at, frame in enumerate(frames) if not _is_ours(frame))
    return next(own, next(of_others, 0))


def _is_ours(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith((_PACKAGE, "<frozen"))
