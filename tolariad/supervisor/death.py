"""Classify what ended a trainer, from its exit, its output and the count of out-of-memory kills.

Promises: pure functions of their arguments.
"""

from __future__ import annotations

import re
import signal
from typing import Final

import msgspec

from tolariad.core.trainer.words import DeathReason

_MEMORY_ERROR: Final = re.compile(r"^(?:\w+\.)*(?:MemoryError|OutOfMemoryError)\b", re.MULTILINE)
_TRACEBACK: Final = "Traceback (most recent call last):"


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """How a process ended: with an exit code, or by a signal (with or without a core dump)."""

    code: int | None = None
    signal_number: int | None = None
    dumped: bool = False

    @property
    def signal_name(self) -> str:
        """The signal's name, such as `SIGSEGV`; empty if no signal ended the process."""
        if self.signal_number is None:
            return ""
        try:
            return signal.Signals(self.signal_number).name
        except ValueError:
            return f"signal {self.signal_number}"


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """Evidence beside the exit. `oom_kills`: out-of-memory kills while the trainer lived; None if unknown."""

    hung: bool = False
    killed_by_us: bool = False
    oom_kills: int | None = None
    output: str = ""


def death_reason(exit_: Exit, evidence: Evidence) -> DeathReason:
    """Return the class of this death."""
    if evidence.hung:
        return DeathReason.HANG
    if evidence.killed_by_us and exit_.signal_number == signal.SIGKILL:
        return DeathReason.KILLED
    if exit_.signal_number is not None:
        by_memory = exit_.signal_number == signal.SIGKILL and bool(evidence.oom_kills)
        return DeathReason.MEMORY if by_memory else DeathReason.SIGNAL
    last_traceback = evidence.output.rpartition(_TRACEBACK)[2] if _TRACEBACK in evidence.output else ""
    if exit_.code == 0 or not last_traceback:
        return DeathReason.EXIT
    return DeathReason.MEMORY if _MEMORY_ERROR.search(last_traceback) else DeathReason.EXCEPTION
