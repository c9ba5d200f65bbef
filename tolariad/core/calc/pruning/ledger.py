"""The entry of a compaction in the architecture ledger.

Promise: its arguments are what the trainer recorded of the removal, byte for byte.
"""

from __future__ import annotations

from typing import Final

PREFIX: Final = "prune."
COMPACT: Final = f"{PREFIX}compact"


def is_of_pruning(name: str) -> bool:
    """Return whether an entry of the ledger is a compaction. Orders of a script repeat it, not hooks of the task."""
    return name.startswith(PREFIX)
