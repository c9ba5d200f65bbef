"""Whether a run has a spare: a process that waits to become the next trainer. It has imported torch; if that is
wanted, it has also built the task.

Promises: with `auto` a spare is started only if memory stays for the trainer, and is given up before that gets short.
The limit at which it is given up lies under the one at which it is started by more than the spare itself holds.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

# torch and this package hold 160 MB of their own on a CPU; a build with CUDA holds more.
SPARE_BYTES: Final = 512 << 20
_KEPT_FREE_BYTES: Final = 256 << 20
# A trainer's memory rises with its checkpoints, snapshots and workers.
_TRAINER_SHARE: Final = 8
Wanted: TypeAlias = Literal["auto", "on", "off", "built"] | bool


class Memory(msgspec.Struct, frozen=True):
    """Memory in bytes: what is available to the run's processes (None: unknown), and what the trainer holds.

    `ranks`: the number of processes of the trainer, and of a spare.
    """

    available: int | None
    trainer: int
    ranks: int = 1


def why_not(wanted: Wanted, memory: Memory, *, exists: bool) -> str:
    """Return why there can be no spare, as a clause; "" if there can be one. `exists`: there is one now."""
    if wanted in ("on", True):
        return ""
    if wanted in ("off", False):
        return "trainer.spare is off"
    if memory.available is None:
        return "the system does not tell how much memory is available"
    kept = _KEPT_FREE_BYTES + memory.trainer // _TRAINER_SHARE
    # Model and data of one that is built take no more than the trainer has.
    holds = SPARE_BYTES * memory.ranks + (memory.trainer if wanted == "built" else 0)
    needed = kept if exists else 2 * kept + holds
    if memory.available >= needed:
        return ""
    return f"{memory.available >> 20} MiB of memory are available, and {needed >> 20} MiB are needed"
