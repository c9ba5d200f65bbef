"""The interface of a strategy: one method, and three optional ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol, runtime_checkable

from tolariad.leyline import AdaptationCommand, SystemStatePacket

REQUIRED: Final = ("step",)
OPTIONAL: Final = ("state_dict", "load_state_dict", "prepare_rollback")


@runtime_checkable
class Strategy(Protocol):
    """Decides after an epoch what to change.

    Optional: `state_dict()` returns what the strategy remembers, as JSON can hold it, at most 32 KiB as msgpack.
    `load_state_dict(state)` goes back to such a state, after a restart or a rollback. A strategy has both or neither.
    `prepare_rollback(state)` raises if the strategy cannot go back to that state, and changes nothing.
    """

    def step(self, packet: SystemStatePacket) -> AdaptationCommand | Sequence[AdaptationCommand]:
        """Return a command, or a sequence of at most 16. An empty command or sequence changes nothing."""
        ...


def call_optional(strategy: object, name: str, *arguments: Any) -> Any:
    """Call an optional method. Return None if the strategy does not have it."""
    method = getattr(strategy, name, None)
    return None if method is None else method(*arguments)
