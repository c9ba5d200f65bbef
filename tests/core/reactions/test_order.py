"""The order of rules matters only for the pairs that are listed here with a reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache

import pytest
from msgspec.structs import replace

from tests.core.reactions.recording import KEPT, Record, records
from tolariad.core import messages as m
from tolariad.core.engine import Engine, Row
from tolariad.core.messages.vocabulary import encode_event
from tolariad.core.rules.table.decide import decide
from tolariad.core.rules.table.reactions import TABLE
from tolariad.core.state.run_state import apply

# (row, rule above, rule below): why they may not be exchanged.
ORDERED: dict[tuple[str, str, str], str] = {
    ("Opened", "rules.run.go_on", "rules.run.disk_measured_at_start"): "a run that goes on pauses if the disk is low",
    ("Opened", "rules.run.disk_measured_at_start", "rules.run.start_trainer"): "a paused run gets no trainer",
    ("Reconfigured", "rules.run.reconfigured", "rules.checkpoints.retain"): "the change says what is to stay",
    (
        "TrainingStartedReport",
        "rules.steps.training_started",
        "rules.rates.restored",
    ): "rates are told after the start or the re-run",
    ("RolledBackReport", "rules.rollback.finished", "rules.rates.restored"): "the trainer stands at the target first",
    (
        "CheckpointUnusableReport",
        "rules.checkpoints.unusable",
        "rules.trainer.train_from_another",
    ): "the next one is chosen among those that are left",
    (
        "CheckpointUnusableReport",
        "rules.trainer.train_from_another",
        "rules.checkpoints.instead_of_unusable",
    ): "a run that has failed takes no checkpoint",
    (
        "RollbackRefusedReport",
        "rules.rollback.refused",
        "rules.health_detection.after_refusal",
    ): "health decides only if the rollback is given up",
    (
        "RollbackRefusedReport",
        "rules.emergency.after_refusal",
        "rules.checkpoints.instead_of_refused",
    ): "a run that halts takes no checkpoint",
    (
        "Opened",
        "rules.trainer.abort_open",
        "rules.rollback.complete_open",
    ): "a rollback leaves nothing open that could be aborted by name",
    (
        "TrainerDied",
        "rules.trainer.abort_open",
        "rules.rollback.complete_open",
    ): "a rollback leaves nothing open that could be aborted by name",
    (
        "TrainerEnded",
        "rules.trainer.abort_open",
        "rules.rollback.complete_open",
    ): "a rollback leaves nothing open that could be aborted by name",
    (
        "ReadyReport",
        "rules.trainer.ready",
        "rules.rates.registered",
    ): "a rate function that gives other values fails the run, and none of its rates is registered",
    (
        "ValidationFinished",
        "rules.run_limit.after_validation_within",
        "rules.checkpoints.after_validation",
    ): "whether it is the best is known before its place is kept",
    ("EpochFinished", "rules.strategy.ask", "rules.boundary.go_on"): "a strategy that was asked is waited for",
    (
        "TrainerEnded",
        "rules.rollback.complete_open",
        "rules.run.trainer_is_gone",
    ): "RunStopped names the step at which a finished rollback leaves the run",
    (
        "InstabilityDetected",
        "rules.insurance.after_finding",
        "rules.health_detection.answer",
    ): "a trainer that asks goes on only if nothing else follows",
    (
        "StepCompleted",
        "rules.run_limit.after_step",
        "rules.checkpoints.after_interval",
    ): "training that ends takes its last checkpoint, not one of the interval",
}


def neighbours() -> Iterator[tuple[Row, int]]:
    """Every row, with the index of each rule that has one below it."""
    for row in TABLE:
        for index in range(len(row.rules) - 1):
            yield row, index


def name(rule) -> str:
    """As in the table: module and function."""
    return f"{rule.__module__.removeprefix('tolariad.core.')}.{rule.__name__}"


def exchanged(row: Row, index: int) -> Engine:
    """The table with two neighbours of one row exchanged."""
    rules = list(row.rules)
    rules[index], rules[index + 1] = rules[index + 1], rules[index]
    return Engine([replace(one, rules=tuple(rules)) if one is row else one for one in TABLE], apply)


@cache
def kept() -> dict[str, list[Record]]:
    """The recorded decisions by every type that a row of the table may react to in them."""
    found: dict[str, list[Record]] = {}
    for record in records(KEPT):
        given = record.given.report if isinstance(record.given, m.ReportReceived) else record.given
        kinds = {type(given).__name__, *(type(event).__name__ for event in record.outcome.events)}
        for kind in kinds:
            found.setdefault(kind, []).append(record)
    return found


def content(decided) -> tuple[Counter, Counter, object]:
    """Return the decision without order and without what depends on it: numbers, causes, roots."""
    events = Counter(encode_event(replace(event, cause=0, root=0)) for event in decided.events)
    effects = Counter(repr(replace(effect, cause=0)) for effect in decided.effects)
    return events, effects, decided.answer


@pytest.mark.sample(28)
@pytest.mark.parametrize(
    ("row", "index"),
    [pytest.param(row, at, id=f"{row.kind.__name__}-{name(row.rules[at])}") for row, at in neighbours()],
)
def test_exchanging_neighbours_changes_nothing_but_the_sequence(row, index):
    """Every recorded decision of this row has the same events, effects and answer, unless the pair is listed."""
    pair = (row.kind.__name__, name(row.rules[index]), name(row.rules[index + 1]))
    engine = exchanged(row, index)
    differ = 0
    for record in kept().get(row.kind.__name__, ()):
        given = record.given.report if isinstance(record.given, m.ReportReceived) else record.given
        found = engine.decide(record.state, given, record.now)
        differ += content(found) != content(decide(record.state, record.given, record.now))
    if pair not in ORDERED:
        assert not differ, (
            f"{pair}: {differ} decisions; list the pair with its reason, or let the rules not depend on it"
        )


def test_a_pair_that_is_listed_is_in_the_table():
    """No reason is given for what does not exist."""
    there = {(row.kind.__name__, name(row.rules[at]), name(row.rules[at + 1])) for row, at in neighbours()}
    assert set(ORDERED) <= there
