"""Masks in force: whatever an update does to what they cover, it is 0 after it; a checkpoint's masks must fit."""

from __future__ import annotations

import pytest
import torch

from tests.trainer.pruning.in_a_run import AFTER, FIRST, LIFE, masks, scripted
from tests.trainer.pruning.training import masked_values
from tests.trainer.tasks import pruned
from tolariad.storage import CheckpointUnfit
from tolariad.trainer.build import build
from tolariad.trainer.checkpoints.restore import load, restore

pytest.importorskip("torch_pruning", reason="torch-pruning (extra `pruning`) is not installed")


def test_a_masked_unit_that_others_read_gets_no_moment(daemon_in, configure):
    """The gradients of the weights that read it are taken out before the update."""
    daemon = daemon_in("run", 1, script_orders=scripted(LIFE[:1], pruned.Bright))
    setup = daemon.train_here(configure("Emitting"))
    names = {id(one): name for name, one in setup.model.named_parameters()}
    state, held = setup.optimizer.state, setup.pruner.masked[-1].plan.masks

    for entry in ("exp_avg", "exp_avg_sq"):
        found = masked_values({names[id(one)]: entries[entry] for one, entries in state.items()}, held)
        assert found
        assert all(not one.count_nonzero() for one in found)


@pytest.mark.parametrize("task", ["Shaken", "ShakenUpdates"])
def test_what_an_update_does_to_masked_weights_is_undone(daemon_in, configure, task):
    """By an optimizer that moves them whatever their gradients are; of one update in a step, and of the last of two."""
    daemon = daemon_in("run", 1, script_orders=scripted(LIFE[:1], pruned.Body))
    setup = daemon.train_here(configure(task, ema={}))
    found = masked_values(dict(setup.model.named_parameters()), setup.pruner.masked[-1].plan.masks)

    assert daemon.ended
    assert found
    assert all(not one.count_nonzero() for one in found)


def test_a_checkpoint_whose_masks_do_not_fit_its_model_is_refused_before_any_change(daemon_in, configure):
    """Nothing of it is restored: neither weights nor masks."""
    daemon = daemon_in("run", 1, script_orders=scripted(LIFE[:1], pruned.Body))
    daemon.train_here(configure())
    end = daemon.committed[-1]
    held = load(daemon.run_dir / "checkpoints" / end.id, end.manifest)
    other = masks(1, AFTER, gone=[[FIRST]])
    held.state["pruning"] = {"masked": [[1, other.plan]], "window": None}
    setup = build(configure())
    before = {name: tensor.clone() for name, tensor in setup.model.state_dict().items()}

    with pytest.raises(CheckpointUnfit, match=r"its masks do not fit the model: .* its mask is for"):
        restore(setup, held)
    assert all(torch.equal(tensor, before[name]) for name, tensor in setup.model.state_dict().items())
    assert not setup.pruner.active
