"""The kinds of runs with seeds that are killed: from disk only, with snapshots, and with a rollback in either tier."""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.library.seeds import IN_STEP, PLAN
from tolariad.core import messages as m

_DISK: dict[str, Any] = {"rollback": {"fast_path_enabled": False}, "ema": {"decay": 0.9}}
_MEMORY: dict[str, Any] = {"ema": {"decay": 0.9}, **IN_STEP}
# As PLAN, with a step between two orders for one slot. A death may lose the record of the last step, but not the order
# that was given after it. That order then acts a step earlier, and two moves of one slot at one boundary cannot be
# ordered.
SPACED = dict(zip((2, 4, 5, 7, 8, 11, 14, 16, 18), (PLAN[step] for step in sorted(PLAN)), strict=True))


class Kind(NamedTuple):
    """`back`: after which step which rollback is ordered."""

    options: dict[str, Any]
    back: tuple[int, m.Rollback] | None = None


# The first goes back over a cull, the second over a cull and a fossilisation or less.
KINDS = {
    "disk": Kind(_DISK),
    "memory": Kind(_MEMORY),
    "back": Kind(_DISK, (17, m.Rollback(epoch=1))),
    "back in memory": Kind(_MEMORY, (20, m.Rollback(tier=m.Tier.FAST, step=17))),
}
