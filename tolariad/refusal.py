"""The error that refuses the start of a run: the daemon's, and in a program that of its recorder."""

from __future__ import annotations

import os
import sys

from tolariad.core.calc.run.exits import EXIT_IO


class StartRefused(Exception):
    """The start was refused; nothing was started or changed. `code` is the exit code, `hint` the command to try."""

    def __init__(self, code: int, why: str, hint: str = "") -> None:
        super().__init__(f"{why}\n  {hint}" if hint else why)
        self.code = code
        self.why = why
        self.hint = hint


def require_linux() -> None:
    """Raise StartRefused, naming what is missing, if this machine cannot record a run."""
    missing = [name for name in ("memfd_create", "eventfd", "pidfd_open") if not hasattr(os, name)]
    if sys.platform != "linux" or missing:
        lacking = ", ".join(missing) or "Linux"
        why = f"`tolariad run` needs Linux 5.4 or newer: {lacking} is missing here ({sys.platform})"
        raise StartRefused(EXIT_IO, f"{why}; `tolaria` reads journals on any machine")
