"""The names in `strategy`, and who decides after an epoch.

Promises: `who_decides` is a pure function, and the only place that knows it. A run without slots that names no strategy
asks nobody: it records nothing, and costs nothing.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tolariad.core.calc.bounds import shown
from tolariad.core.calc.settings.reading import Problem
from tolariad.core.calc.text.nearest import nearest

if TYPE_CHECKING:
    from tolariad.core.calc.settings.model import Settings

NONE: Final = "none"
DEFAULT: Final = "default"
_OWN: Final = re.compile(r"^([A-Za-z_][\w.]*|[^:]+\.py):[A-Za-z_][\w.]*$")


def who_decides(settings: Settings, slots: int) -> str:
    """Return the strategy of a run whose model has this many slots: `default`, the user's, or "" for nobody.

    Without a name in the settings the default policy decides if seeds may grow: there is a slot, and
    `enable_morphogenetic` is true.
    """
    if settings.strategy is None:
        return DEFAULT if slots > 0 and settings.enable_morphogenetic else ""
    return "" if settings.strategy == NONE else settings.strategy


def strategy_problems(strategy: str | None) -> list[Problem]:
    """Return the problem of a name that no strategy can have, with the nearest one."""
    if strategy is None or strategy in (NONE, DEFAULT) or _OWN.match(strategy):
        return []
    what = f"must be {NONE}, {DEFAULT}, package.module:Name or ./file.py:Name, got {shown(strategy)}"
    return [Problem(path="strategy", what=what, nearest=nearest(strategy, (NONE, DEFAULT)))]
