"""Records along a run's own line: each epoch that was better than all before it, so that a rollback finds what was the best
before the place it went to.

Promises: what is left behind a fork is what a run that never went further would have; a fold from anywhere comes to the same.
It must not know: which way is better, checkpoints.
"""

from __future__ import annotations

from typing import Final

import msgspec

# Of a metric that improved more often, the first are forgotten: a run that goes back behind all of these has no bar.
RECORDS_MAX: Final = 1000


class Record(msgspec.Struct, frozen=True):
    """`epoch` was better than all before it."""

    epoch: int
    value: float


Records = tuple[Record, ...]


def beaten(records: Records, epoch: int, value: float) -> Records:
    """With one that is better than all of them."""
    return (*records, Record(epoch, value))[-RECORDS_MAX:]


def before(records: Records, epoch: int) -> Records:
    """What is left of them where `epoch` begins anew."""
    return tuple(one for one in records if one.epoch < epoch)
