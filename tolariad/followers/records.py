"""What a follower writes: events of a journal as numbers, words and branches. Pure.

Promises: the records are a function of the journal: the same events give the same records, wherever a follower begins.
The names are `train/loss`, `train/grad_norm`, `lr/GROUP`, `trainer/global_step`, `epoch`, `val/NAME`, and those of the
task's metrics as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

import msgspec

from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.calc.learning_rate.curve import rates_digest
from tolariad.core.calc.learning_rate.group import Group, coming
from tolariad.core.calc.text.plain import safe_lines
from tolariad.core.messages.sentences.text import sentence
from tolariad.core.messages.vocabulary import Unknown
from tolariad.core.state.run_state import RunState, apply

LOSS: Final = "train/loss"
NORM: Final = "train/grad_norm"
RATE: Final = "lr/"
GLOBAL_STEP: Final = "trainer/global_step"
EPOCH: Final = "epoch"
VALIDATION: Final = "val/"
MEAN_LOSS: Final = "train/loss_epoch"
# The tags of words.
NOTES: Final = "notes"
ORDERS: Final = "orders"
ROLLBACKS: Final = "rollbacks"
STAGES: Final = "stages"
HAPPENED: Final = "events"
BRANCH: Final = "branch"
CONFIGURATION: Final = "configuration"
SUMMARY: Final = "summary"
# A task's metric that has one of these names, or begins so, gets `metric/` in front of it. A backend shows a name as
# numbers or as words, not as both. Names that begin with `_` are W&B's own.
_TAKEN: Final = frozenset(
    (
        *(LOSS, NORM, GLOBAL_STEP, EPOCH, MEAN_LOSS),
        *(NOTES, ORDERS, ROLLBACKS, STAGES, HAPPENED, BRANCH, CONFIGURATION, SUMMARY),
    )
)
_OF_THE_TASK: Final = "metric/"
# How many steps' rates are computed together.
_RATES_AHEAD: Final = 256
_ROLLBACKS: Final = (m.RollbackRequested, m.RollbackBegun, m.RollbackEscalated, m.RolledBack, m.RollbackAborted)
_ENDS: Final = (m.RunCompleted, m.RunStopped, m.RunFailed)

Values: TypeAlias = tuple[tuple[str, float], ...]


class Numbers(msgspec.Struct, frozen=True, gc=False):
    """Numbers at a step of a branch. `seq`: the event's number. `wall`: ns since 1970."""

    branch: int
    step: int
    seq: int
    wall: int
    values: Values


class Words(msgspec.Struct, frozen=True):
    """A sentence at a step of a branch, under a tag."""

    branch: int
    step: int
    seq: int
    wall: int
    tag: str
    text: str


class Begun(msgspec.Struct, frozen=True):
    """A branch began after `step` of `parent`. The first branch, 0, begins with the run: its parent is -1.

    `left`: the branch on which the run was before. It is another one than `parent` if the target lies before the fork.
    """

    branch: int
    parent: int
    left: int
    step: int
    seq: int
    wall: int


class Ended(msgspec.Struct, frozen=True):
    """The run came to an end, from which it may go on later. `summary`: its closing figures by name."""

    branch: int
    step: int
    seq: int
    wall: int
    phase: str
    summary: dict[str, float | str]


Record: TypeAlias = Numbers | Words | Begun | Ended


class About(msgspec.Struct, frozen=True):
    """Which run it is. `run_id` in hexadecimal; `config`: the resolved configuration as JSON."""

    run_id: str
    name: str
    config: str


class Branch(msgspec.Struct, frozen=True):
    """A branch as a backend names it: it began after `step` of `parent`."""

    number: int
    parent: int
    step: int

    @property
    def title(self) -> str:
        """Return the name of its folder or run."""
        return f"branch-{self.number}-after-step-{self.step}"


def branch_of(state: RunState, number: int) -> Branch:
    """Return a branch of the run."""
    fork = next((one for one in state.rollbacks.branches.forks if one.branch == number), None)
    return Branch(0, -1, 0) if fork is None else Branch(number, fork.parent, fork.step)


def about(state: RunState) -> About:
    """Return which run it is."""
    return About(state.run.run_id, state.run.name, state.run.config)


def metric_name(metric: str) -> str:
    """Return the name of a task's metric here: `metric/epoch` if `epoch` is another number."""
    is_taken = metric in _TAKEN or metric.startswith((RATE, VALIDATION, _OF_THE_TASK, "_"))
    return f"{_OF_THE_TASK}{metric}" if is_taken else metric


class Translator:
    """Turns the events after a state into records, in the order of the journal."""

    def __init__(self, state: RunState) -> None:
        self.state = state
        self._groups: tuple[Group, ...] = ()
        self._next_step = 0
        self._ahead: Iterator[tuple[float, ...]] = iter(())
        self._metrics: tuple[str, ...] = ()
        self._shown: tuple[str, ...] = ()

    def take(self, event: m.Event | Unknown) -> list[Record]:
        """Fold the next event, and return its records."""
        before, self.state = self.state, apply(self.state, event)
        if isinstance(event, m.StepCompleted):
            return [self._of_step(before, event)]
        if isinstance(event, Unknown):
            return []
        return [*self._numbers(event), *self._words(before, event)]

    # -- numbers -------------------------------------------------------------------------------------------------------

    def _of_step(self, before: RunState, e: m.StepCompleted) -> Numbers:
        values: list[tuple[str, float]] = [(GLOBAL_STEP, float(e.step)), (LOSS, e.loss)]
        if e.grad_norm != m.NOT_MEASURED:
            values.append((NORM, e.grad_norm))
        values += self._rates(before.rates.groups, e)
        if e.metrics:
            values += self._of_the_task(e.metrics)
        return Numbers(e.branch, e.step, self.state.seq, e.wall, tuple(values))

    def _rates(self, groups: tuple[Group, ...], e: m.StepCompleted) -> Iterator[tuple[str, float]]:
        """Yield the rates of the update. An event holds that of the first group, and a digest of all."""
        if len(groups) < 2:
            yield f"{RATE}{groups[0].name if groups else 'default'}", e.lr
            return
        rates = self._computed(groups, e.step)
        if rates_digest(rates) != e.rates:
            # The rates are not those of the recorded schedules, so only the recorded one is known.
            yield f"{RATE}{groups[0].name}", e.lr
            return
        for group, rate in zip(groups, rates, strict=True):
            yield f"{RATE}{group.name}", rate

    def _computed(self, groups: tuple[Group, ...], step: int) -> tuple[float, ...]:
        known = groups is self._groups and step == self._next_step
        rates = next(self._ahead, None) if known else None
        if rates is None:
            self._groups, self._ahead = groups, coming(groups, step, _RATES_AHEAD)
            rates = next(self._ahead)
        self._next_step = step + 1
        return rates

    def _of_the_task(self, metrics: tuple[float, ...]) -> Iterator[tuple[str, float]]:
        names = self.state.progress.metric_names
        if names is not self._metrics:
            self._metrics, self._shown = names, tuple(map(metric_name, names))
        for name, value in zip(self._shown, metrics, strict=False):
            # NaN is the only value that differs from itself: the step does not have this metric.
            if value == value:  # noqa: PLR0124
                yield name, value

    def _numbers(self, event: m.Event) -> Iterator[Record]:
        values: dict[str, float] = {}
        if isinstance(event, m.EpochFinished):
            values = {MEAN_LOSS: event.train_loss}
        elif isinstance(event, m.ValidationFinished):
            values = {f"{VALIDATION}{name}": value for name, value in event.metrics.items()}
        else:
            return
        where = {EPOCH: float(event.epoch), GLOBAL_STEP: float(event.step)}
        yield Numbers(self._branch, event.step, self.state.seq, event.wall, tuple((where | values).items()))

    # -- words ---------------------------------------------------------------------------------------------------------

    @property
    def _branch(self) -> int:
        return self.state.progress.branch

    def _words(self, before: RunState, event: m.Event) -> Iterator[Record]:
        seq = self.state.seq
        if isinstance(event, m.RunStarted):
            yield Begun(0, -1, -1, 0, seq, event.wall)
        tag = tag_of(event)
        if tag:
            # A rollback is told where it happened; the new branch begins after it.
            text = safe_lines(sentence(event))
            yield Words(before.progress.branch, before.progress.step, seq, event.wall, tag, text)
        if isinstance(event, m.RolledBack):
            yield Begun(event.branch, event.parent, before.progress.branch, event.step, seq, event.wall)
        if isinstance(event, _ENDS):
            phase, summary = self.state.run.phase.value, summary_of(self.state)
            yield Ended(self._branch, self.state.progress.step, seq, event.wall, phase, summary)


def tag_of(event: m.Event) -> str:
    """Return the tag under which an event is told in words; "" if it is not."""
    match event:
        case m.NoteAdded():
            return NOTES
        case m.OrderGiven(order=m.BeginStage()) | m.OrderActed(order=m.BeginStage()):
            return STAGES if isinstance(event, m.OrderActed) else ""
        case m.RollbackRequested() if event.actor is None:
            return ""
    if isinstance(event, _ROLLBACKS):
        return ROLLBACKS
    if event.accepted and event.actor is not None:
        return ORDERS
    is_told = isinstance(event, _ENDS) or st.is_said(event)
    return HAPPENED if is_told else ""


def summary_of(state: RunState) -> dict[str, float | str]:
    """Return the closing figures of a run: phase, step, epoch, the last loss and validation, the best accuracy."""
    progress = state.progress
    figures: dict[str, float | str | None] = {
        "phase": state.run.phase.value,
        GLOBAL_STEP: float(progress.step),
        EPOCH: float(progress.epoch_finished),
        LOSS: progress.loss,
        MEAN_LOSS: progress.train_loss,
        **{f"{VALIDATION}{name}": value for name, value in progress.metrics.items()},
        f"{VALIDATION}accuracy_best": progress.best_accuracy,
        "branches": float(len(state.rollbacks.branches.forks) + 1),
    }
    return {name: value for name, value in figures.items() if value is not None}


# What a backend is asked for a branch that it has not seen: of a run that went back before the follower began.
BranchOf: TypeAlias = Callable[[int], Branch]


def as_config(text: str) -> dict[str, Any]:
    """Return the configuration as a mapping; empty if it cannot be read."""
    try:
        found = msgspec.json.decode(text)
    except ValueError:
        return {}
    inner = found.get("tolaria", found) if isinstance(found, dict) else {}
    return inner if isinstance(inner, dict) else {}


def flattened(config: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Return the configuration by dotted keys, as text."""
    flat: dict[str, str] = {}
    for name, value in config.items():
        if isinstance(value, dict) and value:
            flat |= flattened(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = str(value)
    return flat
