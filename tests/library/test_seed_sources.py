"""The file of a blueprint of one's own: its hash is recorded with the germination, and a start with another is said."""

from __future__ import annotations

import logging

import pytest
from blake3 import blake3

from tests import order_events
from tests.library.seeds import PLAN, QUICK, Gardener, given_in, train
from tests.recorded import Stop, dies_at, events_of, of
from tolariad.core import messages as m
from tolariad.core.calc.seeds.stages import Stage

OWN = """
from tolariad.trainer.seeds.blueprints import LowRank


class Mine(LowRank):
    pass
"""


@pytest.mark.parametrize("changes", [True, pytest.param(False, marks=pytest.mark.torture)])
def test_a_start_with_another_file_of_a_blueprint_is_said(tmp_path, caplog, changes):
    """The run goes on, and the seed is what it was: the new file means the same. Without a change nothing is said."""
    file = tmp_path / "own.py"
    file.write_text(OWN)
    hashed = blake3(file.read_bytes()).hexdigest()
    options = {
        "rollback": {"fast_path_enabled": False},
        "seeds": {**QUICK, "blueprints": [f"{file}:Mine"]},
    }
    plan = {2: m.SeedGerminate(slot="a", blueprint="Mine"), 3: PLAN[3]}

    with pytest.raises(Stop):
        train(tmp_path / "run", Gardener(plan, dies_at(5)), **options)
    if changes:
        file.write_text(f"{OWN}\n# The same with a remark.\n")
    caplog.clear()
    with caplog.at_level(logging.INFO):
        train(tmp_path / "run", Gardener(plan, given=given_in(tmp_path / "run")), **options)
    events = events_of(tmp_path / "run")

    (germinated,) = [one for one in of(events, order_events.acted(m.MoveSeed)) if one.order.stage is Stage.GERMINATED]
    assert germinated.outcome.source == hashed
    built = of(events, m.ExecutionContextRecorded)
    assert [one.other_blueprints for one in built] == [(), (f"{file}:Mine",) if changes else ()]
    assert ("Blueprint Mine changed." in caplog.text) == changes
    assert (built[0].hash == built[1].hash) == (not changes)
    assert [one.first_difference for one in of(events, m.RerunFinished)] == [None]
