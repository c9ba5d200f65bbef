"""Exit codes of `tolariad run`, `tolariad check` and the trainer's process: those of sysexits.h, and 2 for usage.

A run that a signal ended before its end has the code that a shell gives to a process killed by that signal. So a job
scheduler sees that the run is not done, although its stop was orderly.
"""

from __future__ import annotations

from typing import Final

EXIT_USAGE: Final = 2
EXIT_DAMAGED: Final = 65
EXIT_FAILED: Final = 70
EXIT_IO: Final = 74
EXIT_TRY_AGAIN: Final = 75
EXIT_CONFIG: Final = 78
EXIT_INTERRUPTED: Final = 130
EXIT_TERMINATED: Final = 143
# Nothing went wrong: the run is complete, or was stopped by an order or a signal.
ORDERLY: Final = (0, EXIT_INTERRUPTED, EXIT_TERMINATED)


def of_signal(name: str) -> int:
    """Return the exit code of a run that this signal ended: 130 for `SIGINT`, 143 for any other.

    SIGUSR1 and SIGUSR2 end a run only if `signals` says so. They then mean the same as SIGTERM.
    """
    return EXIT_INTERRUPTED if name == "SIGINT" else EXIT_TERMINATED
