"""The handler alone: a restore from disk is compared before it is reported, and the half-made step is dropped."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tests.trainer.checkpoints.own import save
from tolariad.core import messages as m
from tolariad.trainer.build import build
from tolariad.trainer.checkpoints.snapshot import Position
from tolariad.trainer.errors import ToldToExit
from tolariad.trainer.rollback import RollbackCommitted, RollbackHandler, RollbackUnconfirmed, handler


@pytest.fixture
def prepared(tmp_path, configured):
    """Return a run two steps after a checkpoint, within a third, with the rollback prepared; and the reports."""
    setup = build(configured("digits", epochs=1))
    batches, reports = setup.train.epoch(1, 0), []

    def backward():
        setup.optimizer.zero_grad()
        setup.task.loss(setup.model, next(batches)).backward()

    backward()
    setup.optimizer.step()
    written = save(setup, tmp_path, "c000001", Position(1, 1, 1))
    expected = {name: tensor.clone() for name, tensor in setup.model.state_dict().items()}
    backward()
    setup.optimizer.step()
    backward()
    reporter = SimpleNamespace(report=reports.append, beat=lambda activity: None)
    inbox = SimpleNamespace(register=lambda kind, handler: None, wait=None)
    made = RollbackHandler(setup, SimpleNamespace(reporter=reporter, inbox=inbox), tmp_path, lambda: None)
    ref = m.CheckpointRef(id=written.id, step=1, epoch=1, batch=1, manifest=written.manifest)
    made.obey(m.PrepareRollback(rollback="r0001", checkpoint=ref, tier=m.Tier.FULL))
    return made, setup, expected, reports


def test_a_rollback_restores_the_bits_and_drops_the_gradients_of_the_step_that_was_going_on(prepared):
    """Old gradients would be added to the next step's.

    Neither PREPARE nor the commit of another rollback changes them.
    """
    made, setup, expected, reports = prepared
    assert all(parameter.grad is not None for parameter in setup.model.parameters())
    made.obey(m.CommitRollback(rollback="r0002"))
    assert not all(torch.equal(tensor, expected[name]) for name, tensor in setup.model.state_dict().items())
    with pytest.raises(RollbackCommitted):
        made.obey(m.CommitRollback(rollback="r0001"))
    committed = made.commit()

    assert (committed.position, committed.parent) == (Position(1, 1, 1), "c000001")
    assert all(torch.equal(tensor, expected[name]) for name, tensor in setup.model.state_dict().items())
    assert [parameter.grad for parameter in setup.model.parameters() if parameter.grad is not None] == []
    assert [type(one) for one in reports] == [m.RollbackHeardReport, m.RollbackPreparedReport]


def test_what_is_not_what_was_read_is_never_said_to_be_restored(prepared, monkeypatch):
    """One wrong bit of a parameter: the rollback fails, with the parameter's name."""
    made, setup, _, reports = prepared
    plain, (name, parameter) = handler.restore, next(iter(setup.model.named_parameters()))

    def restore(*arguments, **named):
        position = plain(*arguments, **named)
        parameter.data.view(torch.int32).view(-1)[-1:].bitwise_xor_(1)
        return position

    monkeypatch.setattr(handler, "restore", restore)
    with pytest.raises(RollbackUnconfirmed, match=f"{name} is not what checkpoint c000001 holds"):
        made.commit()
    assert [type(one) for one in reports] == [m.RollbackHeardReport, m.RollbackPreparedReport]


def _of_the_optimizer(setup):
    moment = next(iter(setup.optimizer.state.values()))["exp_avg"]
    moment.view(torch.int32).view(-1)[:1].bitwise_xor_(1)


def _of_the_random_state(setup):
    torch.rand(1)


def _of_the_rates(setup):
    setup.rates.saw_loss(1.5)


def _of_the_detector(setup):
    setup.watch.judge(1.0, 1.0, 0.1)


@pytest.mark.parametrize(
    ("disturb", "named"),
    [
        (_of_the_optimizer, "optimizer.state"),
        (_of_the_random_state, "rng"),
        (_of_the_rates, "rates"),
        (_of_the_detector, "detector"),
    ],
    ids=["optimizer", "random", "rates", "detector"],
)
def test_all_that_a_step_depends_on_is_compared_after_a_restore_from_disk(prepared, monkeypatch, disturb, named):
    """One bit of a moment, one draw, one loss, one judged step: each difference is found and named."""
    made, setup, _, reports = prepared
    plain = handler.restore

    def restore(*arguments, **named):
        position = plain(*arguments, **named)
        disturb(setup)
        return position

    monkeypatch.setattr(handler, "restore", restore)
    with pytest.raises(RollbackUnconfirmed, match=f"{named}.* is not what checkpoint c000001 holds"):
        made.commit()
    assert [type(one) for one in reports] == [m.RollbackHeardReport, m.RollbackPreparedReport]


def test_a_commit_after_an_abort_changes_nothing(prepared):
    """A prepared target is dropped, also after its own commit."""
    made, setup, expected, _ = prepared
    made.obey(m.AbortRollback(rollback="r0001"))
    made.obey(m.CommitRollback(rollback="r0001"))
    assert not all(torch.equal(tensor, expected[name]) for name, tensor in setup.model.state_dict().items())
    with pytest.raises(RollbackUnconfirmed, match="not prepared"):
        made.commit()


def test_once_a_target_was_copied_that_is_another_each_further_refusal_says_that_nothing_stands(prepared, monkeypatch):
    """After an overwrite, "refused" must say so: the trainer has no valid state to continue with."""
    made, _, _, reports = prepared
    gone = m.CheckpointRef(id="c000000", step=0, epoch=1, batch=0, manifest="00")
    differs = m.RollbackRefusedReport(rollback="r0001", file="model: 0.weight", why="differs", restored=True)
    monkeypatch.setattr(made, "_carry_out", lambda _: differs)

    def wait(_activity, _timeout_s):
        made.obey(m.PrepareRollback(rollback="r0001", checkpoint=gone, tier=m.Tier.FULL))
        raise ToldToExit("the daemon said so")

    monkeypatch.setattr(made._inbox, "wait", wait)
    with pytest.raises(ToldToExit):
        made.commit()
    refused = [one for one in reports if isinstance(one, m.RollbackRefusedReport)]

    assert [(one.file, one.restored) for one in refused] == [("model: 0.weight", True), ("manifest.json", True)]
