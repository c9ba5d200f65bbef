"""Which entries of the ledger boundary orders make: moves of seeds, and compactions.

Promise: the orders of a script repeat these, and the hooks of the task all others.
"""

from __future__ import annotations

from tolariad.core.calc.pruning.ledger import is_of_pruning
from tolariad.core.calc.seeds.ledger import is_of_seed


def is_by_order(name: str) -> bool:
    """Return whether a boundary order makes an entry of this name."""
    return is_of_seed(name) or is_of_pruning(name)
