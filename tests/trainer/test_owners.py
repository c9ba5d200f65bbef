"""Several owners: each part of the model has an optimizer of its own, and a run treats all of them as it treats one."""

from __future__ import annotations

import copy
from pathlib import Path

import msgspec
import pytest
import torch

from tolariad.core import messages as m
from tolariad.storage import CheckpointUnfit
from tolariad.trainer.build import build
from tolariad.trainer.checkpoints.capture import capture
from tolariad.trainer.checkpoints.files import OPTIMIZER_FILE
from tolariad.trainer.checkpoints.restore import restore, taken_apart
from tolariad.trainer.checkpoints.snapshot import Position
from tolariad.trainer.checkpoints.start import begin_from
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.step.gradients import drop_gradients, forward_backward, update

FILE = Path(__file__).with_name("tasks") / "owned.py"
CONSTANT = {"base_lr": 0.01, "warmup_epochs": 0, "policy": "constant"}


def task(name: str = "Owned") -> str:
    return f"{FILE}:{name}"


def test_a_step_is_the_one_that_the_optimizers_make_by_themselves(configured):
    """Parameters, states and the norm over all gradients, bit for bit."""
    setup = build(configured(task(), epochs=1, batch_size=8, learning_rate=CONSTANT))
    theirs = copy.deepcopy(setup.model)
    optimizers = setup.task.optimizers(theirs)
    batches = list(setup.train.epoch(1, 0))
    for batch in batches:
        drawn = torch.get_rng_state()
        found = forward_backward(setup, (batch,)).read()
        update(setup, skip=False)
        setup.rates.advance(1)
        grads = [parameter.grad for parameter in setup.model.parameters()]
        torch.set_rng_state(drawn)
        setup.task.loss(theirs, batch).backward()
        norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), float("inf"))
        for one in optimizers.values():
            one.step()
            one.zero_grad()
        assert found.grad_norm == pytest.approx(float(norm), rel=1e-6)
        assert all(grad is not None for grad in grads)
        drop_gradients(setup.owners)
        assert all(parameter.grad is None for parameter in setup.model.parameters())
    ours = setup.model.state_dict()
    assert len(batches) == 5
    assert all(torch.equal(tensor, ours[name]) for name, tensor in theirs.state_dict().items())


def test_groups_are_named_by_their_owner_and_keep_the_ratio_of_their_rates(configured):
    """`base_lr` is the first owner's; the second had twice that in the task."""
    rates = build(configured(task(), epochs=1, batch_size=8, learning_rate={**CONSTANT, "base_lr": 0.5})).rates
    assert rates.rates() == {"body": 0.5, "head": 1.0}


@pytest.mark.parametrize(
    "options",
    [{}, {"precision": "fp16"}, {"accumulate": 2}, {"ema": {"decay": 0.9}}, {"audit": {"every_steps": 1}}],
    ids=lambda options: next(iter(options), "plain"),
)
def test_a_run_that_was_cut_short_ends_as_one_that_was_not(resumes, configured, options):
    """The steps after the checkpoint come out the same, and so do all files of the last checkpoint."""
    configuration = configured(task(), epochs=3, batch_size=8, **options)
    _, calm = resumes(configuration, 3)

    assert calm.of(m.AuditDiffered) == []


def test_a_rate_or_weight_of_a_later_owner_is_watched_too(daemon_in, configured):
    """A written rate is corrected before the step; a weight that was written unseen is found by the audit."""
    daemon = daemon_in("run", 1)
    trained = daemon.train_here(configured(task("Writes"), epochs=1, batch_size=8, audit={"every_steps": 1}))
    (violation,) = daemon.of(m.LrViolationDetected)

    assert (violation.group, violation.found) == ("head", 7.0)
    assert {report.parameter for report in daemon.of(m.AuditDiffered)} == {"head.weight"}
    assert trained.rates.rates()["head"] < 1.0


def test_one_owner_is_captured_under_the_names_that_it_always_had(configured):
    """A checkpoint of one optimizer holds nothing of owners; the names of its tensors have no prefix."""
    setup = build(configured("digits", epochs=1))
    forward_backward(setup, (next(setup.train.epoch(1, 0)),))
    update(setup, skip=False)
    taken = capture(setup, Position(step=1, epoch=1, batch=1))
    state = taken_apart(taken).state

    assert not {"owners", "first_owner"} & set(state)
    assert all(name.startswith("optimizer.state.") for name in taken.tensors[OPTIMIZER_FILE])


def test_owners_of_other_names_are_refused_before_anything_changes(configured):
    """Which owner a state belongs to is its name; one optimizer is no part either."""
    trained = build(configured(task(), epochs=1, batch_size=8))
    taken = taken_apart(capture(trained, Position(step=0, epoch=1, batch=0)))
    other = build(configured(task("Renamed"), epochs=1, batch_size=8))
    before = copy.deepcopy(other.model.state_dict())
    with pytest.raises(CheckpointUnfit, match="it holds body, head, here is trunk, head"):
        restore(other, taken)
    assert all(torch.equal(tensor, before[name]) for name, tensor in other.model.state_dict().items())


def test_a_run_that_begins_from_another_takes_over_the_state_of_every_owner(daemon_in, configured):
    """The moments of both, under the new run's settings."""
    daemon = daemon_in("parent", 1)
    trained = daemon.train_here(configured(task(), epochs=1, batch_size=8))
    end = daemon.committed[-1]
    ref = m.Parent(run_id="feed", checkpoint=end.id, manifest=end.manifest, folder=str(daemon.run_dir))
    setup = build(configured(task(), epochs=1, batch_size=8, rng_seed=9))
    begin_from(setup, msgspec.structs.replace(ref, with_optimizer=True), lambda: None)
    for ours, theirs in zip(setup.owners, trained.owners, strict=True):
        held = ours.optimizer.state_dict()["state"]
        for index, state in theirs.optimizer.state_dict()["state"].items():
            assert all(torch.equal(value, held[index][key]) for key, value in state.items())
            assert state


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Shared", "head.weight is in two optimizers, all and head"),
        ("Forgets", "no group of the optimizer holds head.weight, head.bias"),
        ("Both", "both optimizers.model. and optimizer.model, cfg."),
        ("Listed", "not a dict of optimizers by name"),
        ("Spaced", "'the body' is not a name"),
    ],
)
def test_what_leaves_open_who_owns_a_parameter_is_refused(configured, name, says):
    """By name, before training."""
    with pytest.raises(SetupRefused, match=says):
        build(configured(task(name), epochs=1, batch_size=8))
