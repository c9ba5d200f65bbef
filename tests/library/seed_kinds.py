"""The kinds of runs with seeds that are killed: from disk only, with snapshots, and with a rollback in either tier."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from tolariad.core.rollback.words import Rollback, Tier

_DISK: dict[str, Any] = {"rollback": {"fast_path_enabled": False}, "ema": {"decay": 0.9}}
_MEMORY: dict[str, Any] = {"ema": {"decay": 0.9}, "snapshots": {"every": 1, "watch_steps": 1}}


def _unhurried(_: int) -> None:
    """A snapshot is hashed meanwhile, so that one of a step soon before is promoted."""
    time.sleep(0.02)


class Kind(NamedTuple):
    """`back`: after which step which rollback is ordered. `passes`: how often a start passes a point at most."""

    options: dict[str, Any]
    back: tuple[int, Rollback] | None = None
    also: Callable[[int], None] = lambda _: None


# The first goes back over a cull, the second over a cull and a fossilisation or less.
KINDS = {
    "disk": Kind(_DISK),
    "memory": Kind(_MEMORY, also=_unhurried),
    "back": Kind(_DISK, (17, Rollback(epoch=1))),
    "back in memory": Kind(_MEMORY, (20, Rollback(tier=Tier.FAST, step=17)), _unhurried),
}
