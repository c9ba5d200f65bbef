"""A run's journal as what the page shows of it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from pathlib import Path

from journal.reader import Reader
from journal.records import JournalEntry
from tolariad.core import queries as q
from tolariad.core.calc.health.spending import TRAINING
from tolariad.core.calc.text.plain import rfc3339
from tolariad.core.state.run_state import RunState
from tolariad.forensics import numbers
from tolariad.forensics.differences.contexts import host_at, recorded_at
from tolariad.forensics.moment import state_at
from tolariad.forensics.report.happenings import Happenings, happenings
from tolariad.forensics.report.page import RunPage
from tolariad.forensics.report.pyramid import Curve, curve


def gathered(journal: Path, name: str) -> RunPage:
    """Return what the page shows of a run. Raises JournalError, ReplayError, OSError."""
    every = numbers.executed_of(journal)
    told: list[numbers.Told] = []

    def hear(entry: JournalEntry) -> None:
        if (one := numbers.told_by(entry)) is not None:
            told.append(one)

    found = happenings(journal, every.steps, hear)
    line = numbers.steps_of_line(every)
    curves = {"line": _curves(line.step, line.by_name, [float(one.step) for one in found.marks])}
    if len(every.line) < len(every.steps):
        order = array("q", range(1, len(every.steps) + 1))
        curves["executed"] = _curves(order, every.steps.by_name, [float(one.row) for one in found.marks])
    curves["line"] |= _validations(numbers.validations_among(told))
    with Reader(journal) as reader:
        facts = _facts(reader, state_at(reader).state, found)
    return RunPage(name=name, facts=facts, curves=curves, happenings=found)


def _curves(x: Sequence[float], by_name: dict[str, array[float]], around: Sequence[float]) -> dict[str, Curve]:
    return {name: curve(x, values, around) for name, values in by_name.items()}


def _validations(rows: Sequence[numbers.Row]) -> dict[str, Curve]:
    found = {}
    for name in numbers.names_of(rows):
        own = [one for one in rows if name in one.by_name]
        found[name] = curve([one.step for one in own], array("d", [one.by_name[name] for one in own]))
    return found


def _facts(reader: Reader, state: RunState, found: Happenings) -> list[tuple[str, str]]:
    progress, run = state.progress, state.run
    recorded = recorded_at(reader, state)
    steps = q.steps_in_all(state)
    done = f"step {progress.step}{f' of {steps}' if steps else ''}, epoch {progress.epoch}"
    facts = [
        ("task", run.task),
        ("phase", f"{run.phase.value}{f': {run.why}' if run.why else ''}"),
        ("progress", done),
        ("began", rfc3339(run.started_wall)[:19].replace("T", " ") + " UTC"),
        ("run id", run.run_id),
        ("seed", str(run.rng_seed)),
        ("host", host_at(reader, state.seq)),
    ]
    if recorded is not None:
        environment = recorded.environment
        of = f"Python {environment.python}, torch {environment.torch}, {environment.device}, {environment.cpu}"
        facts.append(("made by", of))
    if trained := found.spent.get(TRAINING):
        facts.append(("share of the time that trained", f"{trained / sum(found.spent.values()):.1%}"))
    return facts
