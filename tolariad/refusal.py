"""The error that refuses the start of a run: the daemon's, and in a program that of its recorder."""

from __future__ import annotations


class StartRefused(Exception):
    """The start was refused; nothing was started or changed. `code` is the exit code, `hint` the command to try."""

    def __init__(self, code: int, why: str, hint: str = "") -> None:
        super().__init__(f"{why}\n  {hint}" if hint else why)
        self.code = code
        self.why = why
        self.hint = hint
