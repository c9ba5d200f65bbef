"""Exit codes of `tolariad run`, `tolariad check` and the trainer's process: those of sysexits.h, and 2 for usage."""

from __future__ import annotations

from typing import Final

EXIT_USAGE: Final = 2
EXIT_DAMAGED: Final = 65
EXIT_FAILED: Final = 70
EXIT_IO: Final = 74
EXIT_TRY_AGAIN: Final = 75
EXIT_CONFIG: Final = 78
