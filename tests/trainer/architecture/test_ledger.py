"""The ledger of a built run: changes are made with all that depends on them, undone exactly, and made again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tolariad.core import messages as m
from tolariad.storage import CheckpointUnfit
from tolariad.trainer.build import build
from tolariad.trainer.checkpoints.capture import capture
from tolariad.trainer.checkpoints.restore import check_target, restore, taken_apart
from tolariad.trainer.checkpoints.snapshot import Position
from tolariad.trainer.data.randomness import rng_states, set_rng_states
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.lr import controller_of
from tolariad.trainer.step.gradients import drop_gradients, forward_backward, update

TASK = f"{Path(__file__).parents[1] / 'tasks' / 'owned.py'}:GrowsParts"


@pytest.fixture
def made(configured):
    """Build the run; each call makes an equal one."""
    return lambda name="GrowsParts": build(
        configured(TASK.replace("GrowsParts", name), epochs=3, batch_size=8, ema={"decay": 0.9})
    )


def steps(setup, first, last):
    batches = list(setup.train.epoch(1, 0))
    for step in range(first, last + 1):
        forward_backward(setup, (batches[step % len(batches)],), step)
        update(setup, skip=False)
        setup.rates.advance(1)
        setup.average.update()
        drop_gradients(setup.owners)


def grow(setup, step, name, **arguments):
    setup.ledger.allow(step + 1, 0)
    controller_of(setup.model).grow(name, **arguments)
    setup.ledger.forbid()


def structure(model):
    """Every module with what it holds, by identity."""
    return [
        (name, id(module), {key: id(one) for key, one in module.__dict__.items()}, _held(module))
        for name, module in model.named_modules()
    ]


def _held(module):
    parts = (module._parameters, module._buffers, module._modules)
    return [[(name, id(one)) for name, one in part.items()] for part in parts]


def groups(setup):
    return [
        (owner.name, [[id(one) for one in group["params"]] for group in owner.optimizer.param_groups])
        for owner in setup.owners
    ]


def test_a_new_parameter_belongs_to_the_owner_of_its_module(made):
    """Else to the first owner; one that grew stays with its owner, in its group."""
    setup = made()
    steps(setup, 1, 2)
    grow(setup, 2, "deeper")
    grow(setup, 2, "wider", classes=5)
    grow(setup, 2, "free")
    names = {id(parameter): name for name, parameter in setup.model.named_parameters()}
    held = {name: [[names[one] for one in group] for group in each] for name, each in groups(setup)}

    assert held == {
        "body": [["body.0.weight", "body.0.bias"], ["body.3.weight", "body.3.bias"], ["free"]],
        "head": [["head.weight", "head.bias"]],
    }
    assert [group.name for group in setup.rates.groups] == ["body", "morpho_group_1", "morpho_group_2", "head"]
    moments = setup.owners[1].optimizer.state[setup.model["head"].weight]["momentum_buffer"]
    assert (tuple(moments.shape), bool(moments[:3].any()), bool(moments[3:].any())) == ((5, 8), True, False)
    steps(setup, 3, 4)
    assert all(torch.isfinite(parameter).all() for parameter in setup.model.parameters())


def test_an_optimizer_that_grow_rebuilt_itself_keeps_what_it_got(made):
    """By default the new parameter would belong to the first owner."""
    setup = made("PlacesItself")
    grow(setup, 2, "free")
    names = {id(parameter): name for name, parameter in setup.model.named_parameters()}
    held = {name: [[names[one] for one in group] for group in each] for name, each in groups(setup)}
    assert held == {"body": [["body.0.weight", "body.0.bias"]], "head": [["head.weight", "head.bias"], ["free"]]}


def test_a_rebuild_of_a_change_that_failed_is_reported_as_given_up(made):
    """The optimizer is what it was, and no event says otherwise."""
    setup, told = made("PlacesItself"), []
    before = groups(setup)
    setup.ledger.report_to(lambda change: None, told.append)
    with pytest.raises(ZeroDivisionError):
        grow(setup, 2, "free", fails=True)
    assert groups(setup) == before
    assert [type(one).__name__ for one in told] == ["OptimizerRebuildPrepared", "OptimizerRebuildAborted"]
    assert "the change of the model failed and was undone: ZeroDivisionError" in told[1].why


def test_going_back_puts_the_very_objects_back_and_growing_again_gives_the_same_names(made):
    """Modules, parameters, plain attributes, groups of optimizers and of rates; whatever was trained in between."""
    setup = made()
    before = (structure(setup.model), groups(setup), setup.rates.names)
    steps(setup, 1, 1)
    grow(setup, 1, "deeper")
    between = (structure(setup.model), groups(setup), setup.rates.names)
    steps(setup, 2, 2)
    grow(setup, 2, "wider", classes=5)
    grow(setup, 2, "free")
    steps(setup, 3, 3)
    changes, drawn = setup.ledger.changes, rng_states()["torch"].clone()

    setup.ledger.move_to(changes[:1])
    assert (structure(setup.model), groups(setup), setup.rates.names) == between
    setup.ledger.move_to(())
    assert (structure(setup.model), groups(setup), setup.rates.names) == before
    assert not hasattr(setup.model, "sizes")
    assert [tuple(one.shape) for one in setup.average.tensors.values()] == [(8, 6), (8,), (3, 8), (3,)]
    setup.ledger.move_to(changes)
    assert setup.rates.names == ("body", "morpho_group_1", "morpho_group_2", "head")
    assert setup.ledger.changes == changes
    assert setup.model.sizes == [5]
    assert torch.equal(torch.get_rng_state(), drawn)


def test_a_grown_state_is_restored_into_a_run_that_was_built_anew(made):
    """Every byte of it: also the schedules of added groups, which begin at the step of their change."""
    setup = made()
    steps(setup, 1, 2)
    grow(setup, 2, "deeper")
    grow(setup, 2, "wider", classes=5)
    steps(setup, 3, 5)
    taken = capture(setup, Position(step=5, epoch=1, batch=5))
    files = [(file.name, b"".join(bytes(chunk) for chunk in file.chunks)) for file in taken.files()]
    other = made()
    restore(other, taken_apart(taken))
    again = capture(other, Position(step=5, epoch=1, batch=5))

    assert [(file.name, b"".join(bytes(chunk) for chunk in file.chunks)) for file in again.files()] == files
    assert other.rates.groups == setup.rates.groups
    assert other.rates.groups[1].schedule.start == 2
    drawn = rng_states()
    steps(setup, 6, 8)
    set_rng_states(drawn)
    steps(other, 6, 8)
    assert all(torch.equal(one, other.model.state_dict()[name]) for name, one in setup.model.state_dict().items())
    assert all(torch.equal(one, other.average.tensors[name]) for name, one in setup.average.tensors.items())


def test_a_target_before_a_change_is_checked_without_touching_the_model(made):
    """PREPARE of a rollback: parameters as they were then, or a refusal by name."""
    setup = made()
    small = taken_apart(capture(setup, Position(step=0, epoch=1, batch=0)))
    steps(setup, 1, 1)
    grow(setup, 1, "wider", classes=5)
    held = structure(setup.model)
    check_target(setup, small)
    assert structure(setup.model) == held
    small.model["head.weight"] = torch.zeros(4, 8)
    with pytest.raises(CheckpointUnfit, match=r"head.weight: it holds \(4, 8\).*the model had \(3, 8\)"):
        check_target(setup, small)


def test_a_change_that_cannot_be_repeated_leaves_the_model_as_it_was_built(made):
    """The first of two was repeated by then; it is undone."""
    setup = made()
    held = structure(setup.model)
    changes = [m.ScriptChange(1, "deeper", "{}", 2, 0), m.ScriptChange(2, "wider", "{}", 2, 0)]
    with pytest.raises(SetupRefused, match=r"change 2 of the model, wider \{\}, .* grow raised KeyError: 'classes'"):
        setup.ledger.move_to(changes)
    assert structure(setup.model) == held
    assert setup.ledger.changes == ()
    without = made("Owned")
    with pytest.raises(SetupRefused, match="has no method grow"):
        without.ledger.move_to(changes)
