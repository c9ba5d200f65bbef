"""Find out which items of the data a batch of the past was made of, from the run's seed and its order.

Promises: nothing is recorded for it while a run trains. The batches are loaded again and compared with the recorded
digest, so that an answer for data that have changed says so.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from tolariad.trainer.data.digest import digest_of
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.probes.copying import built_copy
from tolariad.trainer.probes.messages import FoundRows

if TYPE_CHECKING:
    from tolariad.trainer.probes.messages import FindRows
    from tolariad.trainer.setup import Setup

_CHARACTERS_MAX: Final = 500


def find_rows(trial: FindRows) -> FoundRows:
    """Return the items. Raises what `built_copy` raises, SetupRefused if the data are not read by index."""
    # A build for each: loading batches moves what a sampler of the user's own draws from.
    is_verified = _is_verified(built_copy(trial).setup, trial) if trial.digest else None
    setup, rows = built_copy(trial).setup, []
    for batch in range(trial.first, trial.last + 1):
        found = setup.train.rows(trial.epoch, batch)
        if found is None:
            raise SetupRefused("the training data are not read by index, so its batches have no rows to name")
        rows += found
    described = tuple(_described(setup, row) for row in rows) if trial.describes else ()
    shown = tuple(row if type(row) is int else str(row) for row in rows)
    return FoundRows(rows=shown, described=described, is_verified=is_verified)


def _is_verified(setup: Setup, trial: FindRows) -> bool:
    batches = islice(setup.train.epoch(trial.epoch, trial.first - 1), trial.last - trial.first + 1)
    return digest_of(list(batches)) == trial.digest


def _described(setup: Setup, row: Any) -> str:
    """Return the task's words for an item. Raises SetupRefused if it has none."""
    describe = getattr(setup.task, "describe", None)
    if not callable(describe):
        raise SetupRefused("the task has no method describe(item), which returns a text for one item of its data")
    return str(describe(setup.train.item(row)))[:_CHARACTERS_MAX]
