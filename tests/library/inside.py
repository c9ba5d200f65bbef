"""The state of a library run while it trains, and orders to it: they go the way of `Tolaria.rollback`."""

from __future__ import annotations

from tolariad.core.decision import Accepted
from tolariad.core.state import RunState
from tolariad.core.vocabulary import AnyCommand
from tolariad.library.tolaria import Tolaria


def state_of(tolaria: Tolaria) -> RunState:
    """Return the durable state of the run that trains."""
    assert tolaria._live is not None
    return tolaria._live.state


def ordered(tolaria: Tolaria, command: AnyCommand) -> bool:
    """Order something, as `Tolaria.rollback` does. Return whether it was accepted."""
    assert tolaria._live is not None
    return isinstance(tolaria._live._order(command), Accepted)
