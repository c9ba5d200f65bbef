"""The place of a fault: how often the run went back from it, when it has passed it, and how wide its quarantine is.

A place is left when the run has come past the step of its finding with a usual level. So loud batches that are cured
one after the other are places of their own. A finding before that is the same place, wherever it is: a fault that
rollbacks do not cure only shifts a little with each one.

Promises: pure functions of values. A run goes back from one place at most `RETURNS_MAX` times. Each place that it
leaves is further on than the last, so a run goes back a finite number of times.
"""

from typing import Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

# After this many returns without help the run goes on.
RETURNS_MAX: Final = 2
# How many batches are put into quarantine: at the first return, at the second, and at most.
WIDTHS: Final = (8, 64, 500)
# Of the batches of an epoch, at most this share is put into quarantine for one place; the first width, if that is more.
EPOCH_SHARE: Final = 0.25


# An epoch, and a batch of it, both from 1.
Batch: TypeAlias = tuple[int, int]


class Place(Struct, frozen=True):
    """A place that the run went back from. `at`: the batch of its newest finding. `ceiling`: a level above is unusual.

    `returns`: how often the run went back from here. `tried`: both futures were tried here once.
    """

    at: Batch
    ceiling: float
    returns: int = 0
    tried: bool = False


def found_again(place: Place | None, at: Batch, ceiling: float) -> Place:
    """Return the place of a finding at batch `at`: the known one, or a new one. `ceiling`: the greatest usual level."""
    return Place(at, ceiling) if place is None else replace(place, at=max(place.at, at))


def is_passed(place: Place, at: Batch, level: float) -> bool:
    """Return whether the run has come past the place: `level` is the median of the last 32 losses at batch `at`."""
    return at > place.at and level <= place.ceiling


def widened(returns: int, rise: int, epoch_batches: int, step_batches: int = 1) -> int:
    """Return how many batches to put into quarantine at the next return.

    `returns`: how often the run went back from here before. `rise`: batches since the rise began, if they may be to
    blame; else 0. `epoch_batches`: those of a whole epoch; 0 if that is not known. `step_batches`: those of one update.
    """
    least, most = WIDTHS[0] * step_batches, WIDTHS[-1] * step_batches
    wanted = min(max(WIDTHS[min(returns, len(WIDTHS) - 1)] * step_batches, rise), most)
    bound = max(min(least, epoch_batches), int(EPOCH_SHARE * epoch_batches)) if epoch_batches else most
    return min(wanted, bound)


def later(at: Batch, batches: int, epoch_batches: int) -> Batch:
    """Return the batch that comes so many batches after `at`; in an epoch of unknown length, of the same epoch."""
    epoch, batch = at[0], at[1] + batches
    while epoch_batches and batch > epoch_batches:
        epoch, batch = epoch + 1, batch - epoch_batches
    return epoch, batch


def earlier(at: Batch, batches: int, epoch_batches: int) -> Batch:
    """Return the batch that comes so many before `at`; if the epoch's length is not known, one of the same epoch."""
    epoch, batch = at[0], at[1] - batches
    while epoch_batches and batch < 1 and epoch > 1:
        epoch, batch = epoch - 1, batch + epoch_batches
    return epoch, max(1, batch)


def ranges(first: Batch, batches: int, epoch_batches: int) -> tuple[tuple[int, int, int], ...]:
    """Return epoch, first and last batch of each epoch's share of these `batches` batches.

    Of an epoch of unknown length all are its own.
    """
    (epoch, batch), found = first, []
    while batches > 0:
        here = min(batches, max(1, epoch_batches - batch + 1)) if epoch_batches else batches
        found.append((epoch, batch, batch + here - 1))
        epoch, batch, batches = epoch + 1, 1, batches - here
    return tuple(found)
