"""The default policy as a strategy: it holds the state between two packets, and does nothing else."""

from __future__ import annotations

from typing import Any

import msgspec

from tolariad.leyline import AdaptationCommand, SystemStatePacket
from tolariad.strategy.memory import PolicyLimits, PolicyState
from tolariad.strategy.policy import decide
from tolariad.strategy.reading import read_packet
from tolariad.strategy.wishes import command_of


class DefaultStrategy:
    """Transparent rules: grow on a plateau, advance what is healthy, remove what harms, calm what is unstable.

    It is a strategy of a user's file too, with other limits: `strategy: ./mine.py:make` and `def make(): return
    DefaultStrategy(PolicyLimits(patience=5))`.
    """

    def __init__(self, limits: PolicyLimits | None = None) -> None:
        self._limits = limits or PolicyLimits()
        self._state = PolicyState()

    def step(self, packet: SystemStatePacket) -> list[AdaptationCommand]:
        """Return at most `commands_max` commands."""
        seen = read_packet(packet)
        self._state, wishes = decide(self._state, seen, self._limits)
        return [command_of(wish, seen) for wish in wishes]

    def state_dict(self) -> Any:
        """Return what it remembers, as JSON can hold it."""
        return msgspec.to_builtins(self._state)

    def load_state_dict(self, state: Any) -> None:
        """Go back to such a state. Raises ValueError, and changes nothing, if it is none."""
        self._state = msgspec.convert(state, PolicyState)

    def prepare_rollback(self, state: Any) -> None:
        """Raise ValueError if the state cannot be loaded."""
        msgspec.convert(state, PolicyState)
