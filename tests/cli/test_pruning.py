"""`tolaria prune status` of a run without a daemon."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests import order_events
from tests.control.fakes import Recorder
from tests.core.pruning.pruned import PLAN, PrunedWorld
from tests.core.simulate import find, tick_until
from tolariad.core import messages as m


@pytest.fixture
def pruned(run_dir):
    """Make the folder of a run whose model was compacted."""

    def make(plan=PLAN):
        world = PrunedWorld(1, epochs=9, prune=replace(plan, compact_every=1))
        tick_until(world, lambda: find(world, order_events.acted(m.CompactModel)), "a compaction")
        recorder = Recorder(run_dir / "journal")
        for event in world.events:
            recorder.record(event)
        recorder.journal.close()
        return run_dir

    return make


@pytest.mark.parametrize(("last_epoch", "phase", "is_shown"), [(120, "ACTIVE_PRUNING", True), (1, "DISABLED", False)])
def test_a_budget_is_shown_if_something_may_be_masked(tolaria, pruned, last_epoch, phase, is_shown):
    """After the last epoch that prunes it says nothing. The share that is pruned stays."""
    shown = tolaria("prune", "status", pruned(replace(PLAN, last_epoch=last_epoch))).out
    (share,) = (line for line in shown.splitlines() if line.startswith("share"))

    assert f"phase    {phase}" in shown
    assert "% pruned" in share
    assert ("; a cycle may prune 10%, all of them " in share) is is_shown
