"""`tolaria prune status` and `why RUN prune` on a run without a daemon."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.control.fakes import Recorder
from tests.core.pruning.pruned import PLAN, PrunedWorld
from tests.core.simulate import find, tick_until
from tolariad.core.pruning import mask_words as mk

REMOVAL = '{"sets":[' + 20 * "[1,1],[2,1]," + "[9,1]]}"


@pytest.fixture
def pruned(run_dir):
    """Make the folder of a run whose model was compacted."""

    def make(plan=PLAN):
        world = PrunedWorld(1, epochs=9, prune=replace(plan, compact_every=1))
        tick_until(world, lambda: find(world, mk.ModelCompacted), "a compaction")
        recorder = Recorder(run_dir / "journal")
        for event in world.events:
            is_long = isinstance(event, mk.ModelCompacted)
            recorder.record(replace(event, removal=REMOVAL) if is_long else event)
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


def test_why_leaves_out_what_only_the_trainer_reads(tolaria, pruned):
    """The plan of a large model would fill the terminal; `-o verbose` shows it."""
    run = pruned()
    words = tolaria("why", run, "ModelCompacted").out
    verbose = tolaria("why", run, "ModelCompacted", "-o", "verbose").out

    assert "The model is compacted from step" in words
    assert "[2,1]" not in words
    assert "[2,1]" in verbose
