"""The numbers of a run by name: of each step of the run as it stands, and of each epoch.

Promises: a step appears once, however often it was made again, and a step that a rollback gave up does not appear. The
names are `loss`, `grad_norm` and `lr`, those of the task's metrics, and `val_NAME` for what `evaluate` returned.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from journal.columns import Tabulation, read_columns
from journal.reader import Reader
from journal.records import JournalEntry
from journal.rows import others
from tolariad.core import messages as m
from tolariad.core.calc.steps.table import METRIC, PLOTTED, STEP_NAMES, is_step, plotted_row
from tolariad.core.state.replay import ReplayError
from tolariad.core.state.run_state import RunState
from tolariad.forensics.moment import state_at
from tolariad.forensics.timeline import UNREADABLE, brief

OF_EVERY_STEP: Final = ("loss", "grad_norm", "lr")
OF_A_VALIDATION: Final = "val_"
_PLACES: Final = ("step", "branch", "wall", "time", "epoch")
_OF_THE_TASK: Final = "metric/"
_TYPES: Final = ("EpochFinished", "ValidationFinished", "RolledBack")


class Steps(NamedTuple):
    """The steps of a run as columns of equal length; `wall` in ns. NaN: the step does not have the number."""

    step: array[float]
    epoch: array[float]
    wall: array[float]
    by_name: dict[str, array[float]]

    def __len__(self) -> int:
        return len(self.step)


class Row(NamedTuple):
    """The numbers of a finished epoch, or of a validation. `step`: the last step before its end."""

    epoch: int
    step: int
    by_name: dict[str, float]


class Told(msgspec.Struct, frozen=True):
    """The fields of the three types of events that tell of epochs. `batch`: 0 at an epoch's end."""

    type: str
    epoch: int
    step: int
    batch: int = 0
    train_loss: float = math.nan
    metrics: dict[str, float] = {}


_decode: Final = msgspec.msgpack.Decoder(Told).decode


def shown_name(metric: str) -> str:
    """Return the name of a task's metric here: `metric/lr` if `lr` is another number."""
    taken = metric in (*OF_EVERY_STEP, *_PLACES) or metric.startswith((OF_A_VALIDATION, _OF_THE_TASK))
    return f"{_OF_THE_TASK}{metric}" if taken else metric


class Executed(NamedTuple):
    """Every step in the order in which it was made, those that a rollback gave up included.

    `line`: the indexes of the steps of the run as it stands. `branch`: the branch of each step.
    """

    steps: Steps
    branch: array[float]
    line: Sequence[int]


def steps_of(journal: Path) -> Steps:
    """Return the steps of the run as it stands. Raises JournalError, ReplayError, OSError."""
    return steps_of_line(executed_of(journal))


def steps_of_line(every: Executed) -> Steps:
    """Return the steps of the run as it stands."""
    steps, line = every.steps, every.line
    by_name = {name: _at(values, line) for name, values in steps.by_name.items()}
    return Steps(_at(steps.step, line), _at(steps.epoch, line), _at(steps.wall, line), by_name)


def executed_of(journal: Path) -> Executed:
    """Return all steps that were made. Raises JournalError, ReplayError, OSError."""
    columns = read_columns(journal, Tabulation(PLOTTED, plotted_row, METRIC)).by_name
    # The state after the columns: so it has every name that one of these steps was recorded with.
    with Reader(journal) as reader:
        state = state_at(reader).state
    rows = _rows_of_the_line(columns["branch"], columns["step"], state)
    by_name = {name: columns[name] for name in OF_EVERY_STEP}
    norms = by_name["grad_norm"]
    # Of a million steps the question takes a hundredth of a second, and the answer half a second.
    if m.NOT_MEASURED in norms:
        by_name["grad_norm"] = array("d", [math.nan if norm == m.NOT_MEASURED else norm for norm in norms])
    for number, name in enumerate(state.progress.metric_names, 1):
        column = columns.get(f"{METRIC}{number}")
        by_name[shown_name(name)] = array("d", [math.nan]) * len(norms) if column is None else column
    return Executed(Steps(columns["step"], columns["epoch"], columns["wall"], by_name), columns["branch"], rows)


def _rows_of_the_line(branches: array[float], steps: array[float], state: RunState) -> Sequence[int]:
    """Return the indexes of the steps that no rollback gave up."""
    known = state.rollbacks.branches
    if not known.forks:
        return range(len(steps))
    last = {branch: step for branch, (step, _) in known.reach().items()}
    return [row for row, step in enumerate(steps) if step <= last.get(int(branches[row]), -1)]


def _at(column: array[float], rows: Sequence[int]) -> array[float]:
    if len(rows) == len(column):
        return column
    return array(column.typecode, [column[row] for row in rows])


def epochs_of(journal: Path) -> list[Row]:
    """Return the finished epochs of the run as it stands: means over their steps as `loss` and by metric.

    A mean is over the steps that have a number. Raises JournalError, OSError.
    """
    ended: dict[int, Row] = {}
    validated: dict[int, dict[str, float]] = {}
    for told in _told(journal):
        if told.type == "EpochFinished":
            means = {shown_name(name): value for name, value in told.metrics.items()}
            ended[told.epoch] = Row(told.epoch, told.step, {"loss": told.train_loss, **means})
        elif told.type == "RolledBack":
            # The run goes on within this epoch, or at its beginning.
            ended = {epoch: one for epoch, one in ended.items() if epoch < told.epoch}
            validated = {epoch: one for epoch, one in validated.items() if epoch < told.epoch}
        elif not told.batch:
            validated[told.epoch] = _results(told)
    return [one._replace(by_name=one.by_name | validated.get(epoch, {})) for epoch, one in sorted(ended.items())]


def validations_of(journal: Path) -> list[Row]:
    """Return the validations of the run as it stands, within epochs and after them. Raises JournalError, OSError."""
    return validations_among(_told(journal))


def validations_among(events: Iterable[Told]) -> list[Row]:
    """Return the validations that stand at the end of these events."""
    # By the place after which the run went on.
    found: dict[tuple[int, int], Row] = {}
    for told in events:
        if told.type == "RolledBack":
            found = {place: one for place, one in found.items() if place <= (told.epoch, told.batch)}
        elif told.type == "ValidationFinished" and told.metrics:
            place = (told.epoch, told.batch) if told.batch else (told.epoch + 1, 0)
            found[place] = Row(told.epoch, told.step, _results(told))
    return list(found.values())


def _told(journal: Path) -> Iterator[Told]:
    with Reader(journal) as reader:
        for _, entry in others(reader, STEP_NAMES, is_step):
            if (told := told_by(entry)) is not None:
                yield told


def told_by(entry: JournalEntry) -> Told | None:
    """Return what an event tells of an epoch, if it does. Raises ReplayError."""
    if brief(entry.event).type not in _TYPES:
        return None
    try:
        return _decode(entry.event)
    except UNREADABLE as error:
        raise ReplayError(f"event {entry.seq} does not have the numbers of its type: {error}") from error


def _results(told: Told) -> dict[str, float]:
    return {f"{OF_A_VALIDATION}{name}": value for name, value in told.metrics.items()}


def names_of(rows: Sequence[Row]) -> list[str]:
    """Return every name that one of the epochs or validations has, in the order in which they appear."""
    return list(dict.fromkeys(name for one in rows for name in one.by_name))
