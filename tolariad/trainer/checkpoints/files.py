"""The groups of files of a checkpoint, the entries of its state, and the order in which both are written.

Promises: equal states give equal bytes, whatever the order of the parts is. What is not listed here comes last.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, TypeVar

from tolariad.storage.manifest import AVERAGE_PIECE, MASKS_PIECE, MODEL_PIECE, SEEDS_PIECE, STATE_PIECE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_Value = TypeVar("_Value")

RANK: Final = 0
_RANKED: Final = re.compile(r"-(\d{5})\.")
MODEL_FILE: Final = MODEL_PIECE
AVERAGE_FILE: Final = AVERAGE_PIECE
SEEDS_FILE: Final = SEEDS_PIECE
MASKS_FILE: Final = MASKS_PIECE
OPTIMIZER_FILE: Final = f"optimizer-{RANK:05d}.safetensors"
STATE_TENSORS_FILE: Final = f"state-{RANK:05d}.safetensors"
STATE_FILE: Final = STATE_PIECE
# Before the names of the tensors of the second owner and of those after it; the first one's have none.
OF_OWNER: Final = "owner."

FILES: Final = (MODEL_FILE, OPTIMIZER_FILE, STATE_TENSORS_FILE, AVERAGE_FILE, SEEDS_FILE, MASKS_FILE)
ENTRIES: Final = (
    *("position", "model", "optimizer", "first_owner", "owners", "rng", "data", "task", "orders", "rates", "detector"),
    *("scaling", "architecture", "seeds", "pruning", "strategy", "participants"),
)


def of_another_rank(group: str) -> bool:
    """Return whether a group of files is that of a rank other than 0: `state-00001.msgpack` is."""
    found = _RANKED.search(group)
    return found is not None and int(found[1]) != RANK


def in_order(held: Mapping[str, _Value], order: Sequence[str]) -> dict[str, _Value]:
    """Return what is held, in this order, then what the order does not name."""
    return {key: held[key] for key in (*order, *held) if key in held}
