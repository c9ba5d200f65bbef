"""The largest rise from which the loss has come down by itself. A smaller rise later is no reason for a rollback.

A rise is complete when the level has fallen from its peak by `turn`. A rise in progress does not count, so a fault
cannot excuse itself.

Promises: a pure fold over levels; its state is a value.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

# A rise is forgotten slowly: 0.05 % per block of 32 values.
_KEPT: Final = 0.9995


class SwingState(Struct, frozen=True):
    """`size`: the largest completed rise. `trough`, `top`: the limits of the rise or fall in progress."""

    size: float = 0.0
    trough: float = 0.0
    top: float = 0.0
    rises: bool = False
    begun: bool = False


class Swing:
    """Follows the level from trough to peak and back."""

    __slots__ = ("_begun", "_rises", "_top", "_trough", "size")

    def __init__(self, state: SwingState) -> None:
        self.size = state.size
        self._trough, self._top, self._rises, self._begun = state.trough, state.top, state.rises, state.begun

    def state(self) -> SwingState:
        """Return the state as a value."""
        return SwingState(self.size, self._trough, self._top, self._rises, self._begun)

    def follow(self, level: float, turn: float) -> None:
        """Take the next level. `turn`: how far it must move the other way before the direction counts as turned."""
        if self._rises:
            if level > self._top:
                self._top = level
            elif level < self._top - turn:
                self.size = max(self.size, self._top - self._trough)
                self._rises, self._trough = False, level
        elif level < self._trough or not self._begun:
            self._trough, self._begun = level, True
        elif level > self._trough + turn:
            self._rises, self._top = True, level

    def block_ended(self) -> None:
        """Reduce the remembered size a little at the end of a block."""
        self.size *= _KEPT

    def begin_again(self, level: float, rise: float) -> None:
        """Count a rise that led to no rollback as completed, and begin again at `level`."""
        self.size = max(self.size, rise)
        self._rises, self._trough, self._top = False, level, level

    def go_linear(self, level: float, size: float) -> None:
        """Take the size on the linear scale, and begin the rise in progress again at `level`."""
        self.size = size
        self._rises, self._trough, self._top, self._begun = False, level, level, level != 0.0
