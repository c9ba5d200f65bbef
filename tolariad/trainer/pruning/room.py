"""The room that masks may take in a snapshot, so that one still fits into its slot of the arena after a cycle.

A snapshot holds the numbers that the newest masks set to 0, and the plans of all masks.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from tolariad.core.calc.pruning.analysis import UNITS_BYTES_MAX

if TYPE_CHECKING:
    from tolariad.core.calc.settings.pruning import Prune
    from tolariad.trainer.checkpoints.snapshot import Snapshot

# For a tensor: its row in the table, its entry in the state, and its alignment. For a number of the model: of a plan.
_TENSOR_BYTES: Final = 1024


def room_for_masks(live: Snapshot, prune: Prune) -> int:
    """Return the bytes that masks may add to this state; 0 if the run does not prune by itself."""
    if not prune.enabled:
        return 0
    # Rows of a layer, and columns of the layers that read them.
    share = min(1.0, 2.0 * prune.max_layer_share_per_cycle)
    rows = sum(len(held) for held in live.tensors.values())
    return math.ceil(share * live.room) + 2 * _TENSOR_BYTES * rows + UNITS_BYTES_MAX
