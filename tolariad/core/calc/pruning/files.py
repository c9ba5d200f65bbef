"""Names of the files with the importance of all units, one for each cycle, relative to the run's folder."""

from __future__ import annotations

import re
from typing import Final

FOLDER: Final = "importance"
_NAME: Final = re.compile(r"p(\d{6,})\.safetensors")


def importance_file(cycle: int) -> str:
    """Return the name of a cycle's file."""
    return f"{FOLDER}/p{cycle:06d}.safetensors"


def cycle_of(file: str) -> int | None:
    """Return the cycle of a file in the folder, by its name alone; None if it is not one of these files."""
    found = _NAME.fullmatch(file)
    return int(found[1]) if found else None
