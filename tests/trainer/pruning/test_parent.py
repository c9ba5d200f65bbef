"""A run that begins with the weights of a run that was pruned (`--from`)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.trainer.pruning.in_a_run import LIFE, TASK, scripted
from tolariad.core import messages as m
from tolariad.storage import CheckpointUnfit
from tolariad.trainer.build import build
from tolariad.trainer.checkpoints.start import begin_from

pytest.importorskip("torch_pruning", reason="torch-pruning (extra `pruning`) is not installed")


@pytest.fixture
def parent(daemon_in, configured):
    """Train with these orders. Return the last checkpoint as a parent, and the trained model."""

    def train(life):
        daemon = daemon_in("parent", 3, script_orders=scripted(life))
        setup = daemon.train_here(configured(TASK + ":Pruned", batch_size=5))
        end = daemon.committed[-1]
        ref = m.Parent(run_id="feed", checkpoint=end.id, manifest=end.manifest, folder=str(daemon.run_dir))
        return ref, setup.model

    return train


def test_masked_weights_come_along_and_their_masks_do_not(parent, configured):
    """The new run has its own history: it may train the units again, and nothing holds them."""
    ref, trained = parent(LIFE[:1])
    setup = build(configured(TASK + ":Pruned", batch_size=5))
    begin_from(setup, ref, lambda: None)

    assert not setup.model.first.weight[[2, 5, 11]].count_nonzero()
    assert all(
        bool((one == other).all()) for one, other in zip(setup.model.parameters(), trained.parameters(), strict=True)
    )
    assert (setup.pruner.masked, setup.pruner.active) == ((), False)


@pytest.mark.parametrize("with_optimizer", [False, True])
def test_weights_of_a_compacted_model_are_refused_with_the_way_out(parent, configured, with_optimizer):
    """Nothing is changed. A task whose model is as small is another one, and may take them."""
    ref, _ = parent(LIFE[:5])
    setup = build(configured(TASK + ":Pruned", batch_size=5))
    before = [one.clone() for one in setup.model.parameters()]
    with pytest.raises(CheckpointUnfit, match=r"channels were removed from its model.*shrink"):
        begin_from(setup, replace(ref, with_optimizer=with_optimizer), lambda: None)

    assert all(bool((one == other).all()) for one, other in zip(before, setup.model.parameters(), strict=True))
