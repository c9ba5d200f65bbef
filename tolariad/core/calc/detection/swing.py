"""The largest rise from which the loss has come down by itself. A smaller rise later is no reason for a rollback.

A rise is complete when the level has fallen from its peak by `turn`. A rise in progress does not count, so a fault
cannot excuse itself.

Promises: a pure fold over levels; its state is a value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# A rise is forgotten slowly: 0.05 % per block of 32 values.
_KEPT: Final = 0.9995


@dataclass(slots=True)
class SwingState:
    """`size`: the largest completed rise. `trough`, `top`: the limits of the rise or fall in progress."""

    size: float = 0.0
    trough: float = 0.0
    top: float = 0.0
    rises: bool = False
    begun: bool = False


@dataclass(slots=True)
class Swing(SwingState):
    """Follows the level from trough to peak and back."""

    def follow(self, level: float, turn: float) -> None:
        """Take the next level.

        The direction counts as turned if the level has moved by more than `turn` the other way.
        """
        if self.rises:
            if level > self.top:
                self.top = level
            elif level < self.top - turn:
                self.size = max(self.size, self.top - self.trough)
                self.rises, self.trough = False, level
        elif level < self.trough or not self.begun:
            self.trough, self.begun = level, True
        elif level > self.trough + turn:
            self.rises, self.top = True, level

    def block_ended(self) -> None:
        """Reduce the remembered size a little at the end of a block."""
        self.size *= _KEPT

    def begin_again(self, level: float, rise: float) -> None:
        """Count a rise that led to no rollback as completed, and begin again at `level`."""
        self.size = max(self.size, rise)
        self.rises, self.trough, self.top = False, level, level

    def go_linear(self, level: float, size: float) -> None:
        """Take the size on the linear scale, and begin the rise in progress again at `level`."""
        self.size = size
        self.rises, self.trough, self.top, self.begun = False, level, level, level != 0.0
