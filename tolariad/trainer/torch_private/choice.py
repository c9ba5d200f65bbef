"""Private name or public way: the choice, made once for a process."""

from __future__ import annotations

import os
from typing import Any, Final

VARIABLE: Final = "TOLARIAD_TORCH"
# Read at import: a change in the middle of a run would mix the two ways.
ONLY_PUBLIC: Final = os.environ.get(VARIABLE) == "public"


def private(owner: Any, name: str) -> Any:
    """Return the attribute `name` of `owner`; None if torch does not have it, or only public ways are wanted."""
    return None if ONLY_PUBLIC else getattr(owner, name, None)
