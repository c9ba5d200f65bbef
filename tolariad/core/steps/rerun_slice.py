"""Re-running steps after a restart: slice, apply table.

Invariants: a re-run ends exactly once.
"""

from __future__ import annotations

from typing import Final, Protocol

import msgspec
from msgspec.structs import replace

from tolariad.core.base import ApplyTable, Cause, storable
from tolariad.core.checkpoints import words as ck


class OpenRerun(msgspec.Struct, frozen=True):
    """A re-run that has not ended."""

    first: int
    last: int
    cause: Cause


class Rerun(msgspec.Struct, frozen=True):
    """Slice of RunState: re-runs."""

    open: OpenRerun | None = None
    finished: int = 0
    compared: int = 0
    differed: int = 0


class HasRerun(Protocol):
    """A state with this slice."""

    @property
    def rerun(self) -> Rerun:
        """Return the re-runs."""


def _begun(s: Rerun, e: ck.RerunBegun, at: Cause) -> Rerun:
    return replace(s, open=OpenRerun(e.first, e.last, at))


def _finished(s: Rerun, e: ck.RerunFinished, _: Cause) -> Rerun:
    differed = s.differed + (e.first_difference is not None)
    compared = storable(s.compared + e.compared)
    return replace(s, open=None, finished=s.finished + 1, compared=compared, differed=differed)


def _aborted(s: Rerun, _: ck.RerunAborted, __: Cause) -> Rerun:
    return replace(s, open=None)


APPLY: Final[ApplyTable] = {ck.RerunBegun: _begun, ck.RerunFinished: _finished, ck.RerunAborted: _aborted}
