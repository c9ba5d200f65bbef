"""Masks and compactions in a run: they act at their steps, and a run that was cut short ends as one that was not."""

from __future__ import annotations

import pytest
import torch

from tests.trainer.pruning.in_a_run import (
    AFTER,
    EPOCHS,
    FIRST,
    GRACE,
    LIFE,
    SECOND,
    TASK,
    WINDOW,
    compaction,
    masks,
    release,
    scripted,
)
from tests.trainer.pruning.training import masked_values
from tests.trainer.tasks import pruned
from tolariad.core.checkpoints.words import RerunReport
from tolariad.core.pruning.mask_words import (
    MasksAppliedReport,
    MasksReleasedReport,
    ModelCompactedReport,
    PruneWatchReport,
)
from tolariad.core.rates.words import AuditReport, RateViolationReport

pytest.importorskip("torch_pruning", reason="torch-pruning (extra `pruning`) is not installed")

MASKS = "masks-00000.safetensors"


@pytest.fixture
def configure(configured):
    return lambda name="Pruned", **more: configured(
        f"{TASK}:{name}",
        epochs=EPOCHS,
        batch_size=5,
        **{"ema": {"decay": 0.9}, "audit": {"every_steps": 1}, **more},
    )


@pytest.fixture
def trained(daemon_in, configure):
    """Train with the orders of a script; each cut ends a trainer after that step. Return daemon and last setup."""

    def train(name, *cuts, task="Pruned", life=LIFE, **more):
        kind = getattr(pruned, task).kind
        daemon = daemon_in(name, EPOCHS, script_orders=scripted(life, kind))
        for cut in cuts:
            daemon.exit_after_step = cut
            daemon.train_here(configure(task, **more))
            assert daemon.last_step >= cut
        setup = daemon.train_here(configure(task, **more))
        assert daemon.ended
        assert all(one.first_difference is None for one in daemon.reports if isinstance(one, RerunReport))
        assert [one for one in daemon.reports if isinstance(one, AuditReport | RateViolationReport)] == []
        return daemon, setup

    return train


def test_masked_weights_are_zero_until_they_are_removed(trained):
    """In the model, the average and every moment, to the bit; the compacted model trains on, and is masked again."""
    _, setup = trained("run")
    held = setup.pruner.masked[-1].plan.masks

    assert [one.cycle for one in setup.pruner.masked] == [4]
    assert (setup.model.first.out_features, setup.model.last.out_features, setup.model.head.in_features) == (11, 9, 9)
    names = {id(one): name for name, one in setup.model.named_parameters()}
    state = setup.optimizer.state
    for tensors in (
        dict(setup.model.named_parameters()),
        setup.average.tensors,
        {names[id(one)]: entries["exp_avg"] for one, entries in state.items()},
        {names[id(one)]: entries["exp_avg_sq"] for one, entries in state.items()},
    ):
        found = masked_values(tensors, held)
        assert found
        assert all(not one.count_nonzero() for one in found)
    assert setup.model.last.weight.count_nonzero() > 20


@pytest.mark.parametrize("cuts", [(2,), (5,), (9, 12), (13,), (15, 21), (10, 19, 25), (22,), (27,)])
def test_a_run_that_was_cut_short_ends_as_one_that_was_not(trained, cuts):
    """Its checkpoints lie before and after masks, a release and a compaction; each trainer goes on from one."""
    assert trained("cut", *cuts)[0].files("end") == trained("calm")[0].files("end")


@pytest.mark.parametrize(
    ("task", "options"),
    [
        ("Clips", {}),
        ("Parts", {}),
        ("Updates", {}),
        ("Cautious", {}),
        ("Seeded", {}),
        ("Pruned", {"accumulate": 2, "epochs": 6}),
        ("Pruned", {"precision": "bf16"}),
        ("Pruned", {"precision": "fp16"}),
        ("Pruned", {"ema": {}}),
        ("Pruned", {"optimizer": {"name": "sgd", "momentum": 0.9, "weight_decay": 0.01}}),
    ],
)
def test_other_ways_to_train_resume_with_masks_too(trained, task, options):
    """A task that clips, several optimizers, several updates in a step, accumulation, half precision, no average."""
    calm = trained("calm", task=task, **options)[0]
    assert trained("cut", 9, 15, 21, task=task, **options)[0].files("end") == calm.files("end")
