"""What the screen knows from events: spikes stay, and what comes again replaces what came after."""

from __future__ import annotations

import math

import pytest

from journal.reader import Reader
from tests.control.fakes import Recorder
from tolariad.cli.watching.seen import Seen, Series
from tolariad.cli.watching.view import panels_of
from tolariad.core import messages as m


@pytest.mark.parametrize("at", [0, 1, 2, 3, 511, 513, 4094, 4095, 4999])
def test_a_spike_stays_however_many_steps_there_are(at):
    """A high and a low value among thousands, wherever they are in their buckets: both are drawn, of bounded points."""
    series = Series()
    for step in range(5000):
        series.add(step, 9.0 if step == at else 0.1 if step == at ^ 1 else 0.5)
    values = [value for _, value in series.points()]

    assert (min(values), max(values)) == (0.1, 9.0)
    assert len(values) <= 1024


def test_a_step_that_comes_again_replaces_those_after_it():
    """Of each step of the run as it stands the last value is drawn, exactly, as long as each has a point."""
    series = Series()
    for step, value in [(1, 1.0), (2, 2.0), (3, 3.0), (2, 5.0), (3, 6.0)]:
        series.add(step, value)
    series.forget(3)

    assert series.points() == [(1, 1.0), (2, 5.0)]


def test_values_that_are_not_finite_are_counted():
    """They leave the curve as it is."""
    series = Series()
    for step, value in enumerate((1.0, math.nan, math.inf, -math.inf, 1e305, 2.0)):
        series.add(step, value)

    assert series.points() == [(0, 1.0), (5, 2.0)]
    assert series.left_out == 4


def test_a_run_is_seen_with_its_validations_checkpoints_and_rollback(run_dir):
    """Twelve steps, a validation, two checkpoints; after the rollback the abandoned steps are no longer drawn."""
    made = Recorder(run_dir / "journal", segment_bytes=1 << 20)
    made.begin_run()
    for _ in range(12):
        made.step()
    seen, steps = Seen(), lambda: [step for step, _ in seen.loss.points()]
    with Reader(run_dir / "journal") as reader:
        seen.add(reader)
        assert steps() == list(range(1, 13))
        made.record(
            m.RolledBack(
                rollback="r1", checkpoint="c000002", branch=1, parent=0, step=10, epoch=1, batch=10, from_step=12
            ),
            m.CheckpointPromoted(id="c000002"),
        )
        seen.add(reader)
    made.journal.close()

    assert steps() == list(range(1, 11))
    assert seen.validations["accuracy"].points() == [(10, 0.91)]
    assert [(one.id, one.step, one.note) for one in seen.checkpoints] == [
        ("c000001", 0, ""), ("c000002", 10, "promoted"),
    ]  # fmt: skip
    assert [panel.title for panel in panels_of(seen)] == ["loss", "accuracy"]
