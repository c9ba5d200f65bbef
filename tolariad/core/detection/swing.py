"""The largest rise that the run itself has completed: what has come and gone before is no reason to go back.

A rise is completed when the level has come down from its peak by the turn again. A rise that still goes on is not counted, so
a fault cannot excuse itself.

Promises: a pure fold over levels; its state is a value. It must not know: scales, steps.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

# A rise that was seen once is forgotten slowly: 0.05 % a block of 32 values.
_KEPT: Final = 0.9995


class SwingState(Struct, frozen=True):
    """`size`: the largest completed rise; `trough` and `top`: of the rise, or the fall, in progress."""

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
        """Everything as a value."""
        return SwingState(self.size, self._trough, self._top, self._rises, self._begun)

    def follow(self, level: float, turn: float) -> None:
        """Take the next level; `turn`: how far it must move the other way to have turned."""
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
        """Forget a little."""
        self.size *= _KEPT

    def begin_again(self, level: float, rise: float) -> None:
        """A rise that nobody went back for has become part of the run."""
        self.size = max(self.size, rise)
        self._rises, self._trough, self._top = False, level, level

    def go_linear(self, level: float, size: float) -> None:
        """Take the size on the linear scale; the rise in progress begins again at `level`."""
        self.size = size
        self._rises, self._trough, self._top, self._begun = False, level, level, level != 0.0
