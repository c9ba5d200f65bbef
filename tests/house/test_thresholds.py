"""The page of pruning names every threshold of the source documents, with the value that is the default."""

from __future__ import annotations

import functools
import re

import msgspec

from tests.house.tree import ROOT
from tolariad.core.calc.settings.model import Settings
from tolariad.core.calc.settings.pruning import Prune, PruneSafety, PruneValidation

PAGE = (ROOT / "docs" / "pruning.md").read_text(encoding="utf-8")
ROWS = dict(reversed(row) for row in re.findall(r"^\| [^|]+ \| ([\d., ]+) \| `([\w.]+)` \|$", PAGE, re.MULTILINE))
# Keys that are no thresholds of the sources: choices, sections, and the window that the sources leave open.
OTHERS = {
    *("prune.enabled", "prune.estimator", "prune.analysis_priority", "prune.compact_every"),
    *("prune.safety", "prune.validation", "prune.safety.memory_action", "prune.safety.speed_action"),
    *("prune.safety.grace_steps", "prune.safety.window_steps", "prune.safety.spread_factor"),
}


def shown(value):
    """Return a default as the page writes it."""
    return ", ".join(repr(one.share) for one in value) if isinstance(value, tuple) else repr(value)


def test_the_page_has_the_defaults():
    """Each row names a key, and the value that it has without a configuration."""
    defaults = {key: shown(functools.reduce(getattr, key.split("."), Settings())) for key in ROWS}

    assert defaults == ROWS
    assert len(ROWS) >= 25


def test_every_key_of_pruning_is_on_the_page():
    """A new threshold gets its row, or a reason to be none."""
    kinds = {"prune": Prune, "prune.safety": PruneSafety, "prune.validation": PruneValidation}
    keys = {f"{name}.{field.encode_name}" for name, kind in kinds.items() for field in msgspec.structs.fields(kind)}

    assert keys - OTHERS == {key for key in ROWS if key.startswith("prune.")}
