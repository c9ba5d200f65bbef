"""Say which parameters the program has unfrozen during training, and whether an optimizer trains them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from tolariad.trainer.optim.owners import parameters_of

if TYPE_CHECKING:
    from tolariad.trainer.setup import Setup

_log: Final = logging.getLogger(__name__)
_SHOWN: Final = 3
_HELD: Final = "%s: unfrozen. From here on the optimizer trains them, at the rates of their groups."
_LEFT: Final = (
    "%s: unfrozen, but no optimizer of the run has them, so they stay as they are. Give the optimizer all parameters "
    "when you make it: frozen ones do not move."
)


class Unfrozen:
    """Compares the model with what it was at the last look."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._trained: frozenset[str] | None = None

    def look(self) -> None:
        """Say in the log what was unfrozen since the last look. The first one says nothing."""
        now = {name: one for name, one in self._setup.model.named_parameters() if one.requires_grad}
        before, self._trained = self._trained, frozenset(now)
        if before is None or not (new := [name for name in now if name not in before]):
            return
        held = set(map(id, parameters_of(self._setup.owners)))
        for words, names in (
            (_HELD, [name for name in new if id(now[name]) in held]),
            (_LEFT, [name for name in new if id(now[name]) not in held]),
        ):
            if names:
                _log.warning(words, ", ".join(names[:_SHOWN]) + (", ..." if names[_SHOWN:] else ""))
