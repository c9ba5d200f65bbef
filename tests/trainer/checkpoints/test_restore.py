"""State is saved and restored bit for bit, for every optimizer, or refused before it reaches the model."""

from __future__ import annotations

import copy
import dataclasses
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from tests.trainer.checkpoints.own import OwnTask, bits, loaded, save, step
from tolariad.storage import CheckpointUnusable
from tolariad.storage.export import Weights, export_weights
from tolariad.trainer.checkpoints.capture import capture, check_capturable
from tolariad.trainer.checkpoints.files import MODEL_FILE, STATE_FILE
from tolariad.trainer.checkpoints.restore import restore, taken_apart
from tolariad.trainer.checkpoints.snapshot import Position
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.optim.average import Average
from tolariad.trainer.optim.configured import Groups
from tolariad.trainer.optim.owners import Owner
from tolariad.trainer.parts.owners import OwnersPart
from tolariad.trainer.parts.whole import parts_of
from tolariad.trainer.rollback.confirm import differing

OPTIMIZERS = {
    "Adadelta": {},
    "Adafactor": {},
    "Adagrad": {"lr": 0.01},
    "Adam": {"amsgrad": True},
    "AdamW": {},
    "Adamax": {},
    "ASGD": {},
    "LBFGS": {"max_iter": 3},
    "Muon": {},
    "NAdam": {},
    "RAdam": {},
    "RMSprop": {"momentum": 0.9, "centered": True},
    "Rprop": {},
    "SGD": {"momentum": 0.9, "nesterov": True},
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_torch_optimizer_goes_on_as_if_nothing_had_happened(tmp_path, made, monkeypatch, name):
    """Three steps, a checkpoint and two steps give the same bits in the same process and in a new build."""

    def optimizer(self, model, cfg):
        parameters = [p for p in model.parameters() if name != "Muon" or p.ndim == 2]
        if name == "Muon":
            for parameter in model.norm.parameters():
                parameter.requires_grad_(False)
        return getattr(torch.optim, name)(parameters, **OPTIMIZERS[name])

    monkeypatch.setattr(OwnTask, "optimizer", optimizer)
    # LBFGS is refused as a task's optimizer; its state is round-tripped all the same.
    monkeypatch.setattr(
        "tolariad.trainer.optim.configured._own", lambda made: Groups(made, (None,) * len(made.param_groups))
    )
    one = made()
    for seed in range(3):
        step(one, seed)
    report = save(one, tmp_path)
    for seed in (3, 4):
        step(one, seed)
    other = made()
    assert restore(other, loaded(tmp_path, report)) == Position(3, 1, 3)
    for seed in (3, 4):
        step(other, seed)
    assert bits(other, tmp_path, "other") == bits(one, tmp_path, "one")


def test_sparse_gradients_and_their_optimizer_round_trip(tmp_path, made, monkeypatch):
    """SparseAdam's moments are dense tensors; they are restored exactly."""
    monkeypatch.setattr(OwnTask, "model", lambda self, cfg: nn.Embedding(5, 2, sparse=True))
    monkeypatch.setattr(OwnTask, "optimizer", lambda self, model, cfg: torch.optim.SparseAdam(model.parameters()))
    one, other = made(), made()

    def sparse_step(setup):
        setup.optimizer.zero_grad()
        setup.model(torch.tensor([1, 3])).square().sum().backward()
        setup.optimizer.step()

    sparse_step(one)
    report = save(one, tmp_path)
    restore(other, loaded(tmp_path, report))
    sparse_step(one)
    sparse_step(other)
    assert bits(other, tmp_path, "other") == bits(one, tmp_path, "one")


def test_the_whole_state_comes_back(tmp_path, made):
    """Tied weights stay tied; transient buffers, the task's own state and all generators are restored."""
    one = made()
    step(one, 1)
    one.task.seen = (2, "three", np.float32(1.5))
    random.random(), np.random.rand(), torch.rand(3)
    report = save(one, tmp_path)
    drawn = (random.random(), np.random.rand(), torch.rand(()).item())

    other = made()
    restore(other, loaded(tmp_path, report))
    assert (random.random(), np.random.rand(), torch.rand(()).item()) == drawn
    assert other.model.tied.weight is other.model.first.weight
    assert other.model.count.item() == one.model.count.item() > 0
    assert other.task.seen == one.task.seen
    assert loaded(tmp_path, report).manifest.aliases == {"tied.weight": "first.weight"}


def test_capturing_draws_nothing(tmp_path, made):
    """No generator has advanced, and no parameter has changed."""
    one = made()
    step(one, 1)
    before = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
    weights = copy.deepcopy(one.model.state_dict())
    save(one, tmp_path)
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before
    assert all(torch.equal(value, weights[name]) for name, value in one.model.state_dict().items())


def test_what_was_read_is_not_changed_by_the_steps_after_it(tmp_path, made):
    """An optimizer adopts the tensors it is given; a snapshot in memory can still be restored again."""
    one = made()
    step(one, 1)
    report = save(one, tmp_path)
    stored = loaded(tmp_path, report)
    first = bits(one, tmp_path, "first")
    for _ in range(2):
        restore(one, stored)
        assert bits(one, tmp_path, "again") == first
        step(one, 2)


def test_no_byte_of_a_damaged_checkpoint_reaches_the_model(tmp_path, made):
    """Each piece is damaged in turn: the error names it, and the run's state is unchanged."""
    one = made()
    step(one, 1)
    report = save(one, tmp_path)
    other = made()
    before = bits(other, tmp_path, "before")
    for piece in report.pieces:
        path = tmp_path / "ck" / piece.name
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with pytest.raises(CheckpointUnusable, match="BLAKE3") as caught:
            restore(other, loaded(tmp_path, report))
        assert caught.value.file == piece.name
        path.write_bytes(whole)
        assert bits(other, tmp_path, "after") == before


def test_a_checkpoint_of_another_model_is_refused_with_the_name_that_differs(tmp_path, made, monkeypatch):
    """For a changed task the error names the tensor that does not fit, before anything is copied."""
    report = save(made(), tmp_path)
    monkeypatch.setattr(OwnTask, "model", lambda self, cfg: nn.Linear(4, 4))
    other = made()
    weight = other.model.weight.clone()
    with pytest.raises(CheckpointUnusable, match="bias: the checkpoint has no such tensor") as caught:
        restore(other, loaded(tmp_path, report))
    assert caught.value.file == MODEL_FILE
    assert "-t OptimizerRebuildCommitted" in caught.value.why
    assert torch.equal(other.model.weight, weight)


def test_equal_states_give_equal_files(tmp_path, made):
    """Ids, times and causes are only in the manifest."""
    one = made()
    step(one, 1)
    a, b = (save(one, tmp_path, id_) for id_ in ("a", "b"))
    assert a.pieces == b.pieces
    assert a.manifest != b.manifest
    assert [piece.name for piece in a.pieces][-1] == STATE_FILE


def test_a_state_that_cannot_be_written_is_refused_before_training(made, monkeypatch):
    """The message has the path of the value."""
    monkeypatch.setattr(OwnTask, "seen", {"cache": object()})
    with pytest.raises(SetupRefused, match=r"task\.seen\.cache: a builtins\.object cannot be written"):
        made()


def test_an_optimizer_of_someone_elses_is_tried_before_training():
    """Its state exists only after a step; one step with a one-element parameter shows it."""

    class Odd(torch.optim.SGD):
        __module__ = "elsewhere"

        def step(self, closure=None):
            for group in self.param_groups:
                for parameter in group["params"]:
                    self.state[parameter]["history"] = {1, 2}

    model = nn.Linear(1, 1)
    with pytest.raises(SetupRefused, match=r"optimizer\.0\.history: a builtins\.set"):
        check_capturable(
            [OwnersPart(SimpleNamespace(model=model, owners=[Owner("host", Odd(model.parameters(), lr=0.1))]))]
        )


def test_low_precision_parameters_keep_the_precision_of_their_optimizer_state(tmp_path, made, monkeypatch):
    """torch's load_state_dict casts moments to the parameter's dtype; here they keep theirs."""
    monkeypatch.setattr(OwnTask, "model", lambda self, cfg: nn.Linear(4, 4).bfloat16())
    one, other = made(), made()
    for parameter in one.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    one.optimizer.step()
    for parameter in one.model.parameters():
        one.optimizer.state[parameter]["exp_avg"] = torch.full_like(parameter, 0.1, dtype=torch.float32)
    report = save(one, tmp_path)
    restore(other, loaded(tmp_path, report))
    moments = [other.optimizer.state[parameter]["exp_avg"] for parameter in other.model.parameters()]
    assert {moment.dtype for moment in moments} == {torch.float32}
    assert capture(other, Position(3, 1, 3)).state == capture(one, Position(3, 1, 3)).state


def test_a_full_disk_leaves_nothing_and_is_reported(tmp_path, made, monkeypatch):
    """Training continues; the report names the path and the reason."""
    import os

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    report = save(made(), tmp_path)
    assert "No space left" in report.why
    assert list(tmp_path.iterdir()) == []


def test_moments_come_back_in_the_order_in_memory_that_they_had(tmp_path, made, monkeypatch):
    """A fused optimizer processes parameter and moments in memory order: they must have the same strides."""

    class Convolution(nn.Conv2d):
        def forward(self, x):
            return super().forward(x.reshape(2, 4, 2, 2).to(memory_format=torch.channels_last))

    monkeypatch.setattr(OwnTask, "model", lambda self, cfg: Convolution(4, 3, 2).to(memory_format=torch.channels_last))
    monkeypatch.setattr(
        OwnTask, "optimizer", lambda self, model, cfg: torch.optim.AdamW(model.parameters(), fused=True)
    )
    one, other = made(), made()
    step(one, 1)
    report = save(one, tmp_path)
    restore(other, loaded(tmp_path, report))
    for setup in (one, other):
        step(setup, 2)
    assert bits(other, tmp_path, "other") == bits(one, tmp_path, "one")


def test_a_buffer_that_repeats_one_value_in_memory_comes_back(tmp_path, made, monkeypatch):
    """An expanded buffer cannot be written as a whole."""

    class Expanded(nn.Linear):
        def __init__(self):
            super().__init__(4, 4)
            self.register_buffer("scale", torch.zeros(3, 1).expand(3, 4))

    monkeypatch.setattr(OwnTask, "model", lambda self, cfg: Expanded())
    one, other = made(), made()
    one.model.scale[:, :1] += torch.tensor([[1.0], [2.0], [3.0]])
    restore(other, loaded(tmp_path, save(one, tmp_path)))
    assert torch.equal(other.model.scale, one.model.scale)
    assert other.model.scale.stride() == (1, 0)


def test_a_parameter_that_no_checkpoint_would_hold_is_refused(made, monkeypatch):
    """An optimizer may hold parameters that are not in the model; they would not be restored."""
    extra = nn.Parameter(torch.ones(2, 2))
    monkeypatch.setattr(OwnTask, "optimizer", lambda self, model, cfg: torch.optim.AdamW([*model.parameters(), extra]))
    with pytest.raises(SetupRefused, match=r"group 0 .* shape \(2, 2\), which is not the model's"):
        made()


def with_average(setup):
    averaged = dataclasses.replace(setup, average=Average(setup.model, 0.5), parts=[])
    averaged.parts.extend(parts_of(averaged))
    return averaged


def test_a_checkpoint_from_before_there_was_an_average_is_where_it_begins(tmp_path, made):
    """The average starts at the restored weights; a run without one ignores a stored average."""
    setup = made()
    step(setup, 1)
    fresh = with_average(made())
    restore(fresh, loaded(tmp_path, save(setup, tmp_path)))
    weights = dict(setup.model.named_parameters())
    assert all(torch.equal(tensor, weights[name]) for name, tensor in fresh.average.tensors.items())
    step(fresh, 2)
    fresh.average.update()
    held = loaded(tmp_path, save(fresh, tmp_path, "with"))
    restore(made(), held)  # passes the average by
    again = with_average(made())
    restore(again, held)
    assert all(torch.equal(tensor, fresh.average.tensors[name]) for name, tensor in again.average.tensors.items())
    assert not torch.equal(again.average.tensors["first.weight"], again.model.first.weight)


def test_an_average_of_another_model_is_refused_before_any_change(tmp_path, made):
    """The error names the file and the tensor."""
    held = loaded(tmp_path, save(setup := with_average(made()), tmp_path))
    other = dataclasses.replace(held, average={**held.average, "first.weight": torch.zeros(2, 2)})
    step(setup, 1)
    now = setup.model.first.weight.clone()
    with pytest.raises(CheckpointUnusable, match=r"ema-00000.safetensors: first\.weight: it holds \(2, 2\)"):
        restore(setup, other)
    assert torch.equal(setup.model.first.weight, now)


def test_exported_weights_are_the_models_state_dict(tmp_path, made):
    """The export has a tied weight under both names and no transient buffer; the average replaces parameters."""
    setup = with_average(made())
    step(setup, 1)
    setup.average.update()
    report = save(setup, tmp_path)
    export_weights(tmp_path / report.id, report.manifest, Weights.TRAINED, tmp_path / "trained")
    made().model.load_state_dict(trained := load_file(tmp_path / "trained"), strict=True)
    expected = setup.model.state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in trained.items())
    export_weights(tmp_path / report.id, report.manifest, Weights.AVERAGED, tmp_path / "averaged")
    averaged = load_file(tmp_path / "averaged")
    assert averaged.keys() == expected.keys()
    with setup.average.applied():
        assert all(torch.equal(tensor, averaged[name]) for name, tensor in setup.model.state_dict().items())


def test_a_checkpoint_whose_rates_count_the_orders_is_restored_and_confirmed(made, monkeypatch):
    """As it was before the count had a part of its own: the count is taken over, and no key is known."""
    from tolariad.trainer.checkpoints import capture as module

    plain = module.encode_tree

    def as_before(tree, path):
        if path == "state":
            tree = {name: part for name, part in tree.items() if name != "orders"}
            tree["rates"] = {**tree["rates"], "orders": 2}
        return plain(tree, path)

    one, at = made(), Position(1, 1, 1)
    step(one, 0)
    with monkeypatch.context() as patched:
        patched.setattr(module, "encode_tree", as_before)
        older = capture(one, at)
    held, other = taken_apart(older), made()
    restore(other, held)

    assert (other.acted.count, other.standing.orders, 7 in other.acted) == (2, 2, False)
    assert list(differing(other, held, at)) == []
    other.acted.add(9)
    assert list(differing(other, held, at)) == [f"{STATE_FILE} orders"]


def test_equal_states_have_equal_bytes_whatever_their_orders_are_called(made):
    """The causes of orders are numbers of one journal: a run that was killed has others than one that was not."""
    one, other, at = made(), made(), Position(0, 1, 0)
    one.acted.add(17)
    other.acted.add(23)

    assert capture(one, at).state == capture(other, at).state
