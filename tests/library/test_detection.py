"""Runs in trouble recover by themselves, and end with the bits of an undisturbed run."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from journal import Reader
from tests.library.inside import ordered, state_of
from tests.library.small import Hooks, bits, data, loaders, made, network
from tests.recorded import Stop, dies_at, events_of, findings, of, sound
from tolariad import TrainingResult
from tolariad.core import messages as m
from tolariad.core.calc.detection.comparison import Judgement
from tolariad.forensics.why import why
from tolariad.trainer import build
from tolariad.trainer.checkpoints.restore import load
from tolariad.trainer.rollback import handler

EPOCHS, STEPS_PER_EPOCH, SICK = 3, 8, 40


def poisoned(value: float) -> TensorDataset:
    """Return the data of a calm run with one invalid sample."""
    inputs, targets = data().tensors
    inputs = inputs.clone()
    inputs[SICK] = value
    return TensorDataset(inputs, targets)


def train(run_dir, dataset, hook=None, *, model=None, **config) -> TrainingResult:
    loader, _ = loaders(dataset)
    return made(run_dir, **config).train(model or network(), loader, None, EPOCHS, task=Hooks(hook))


@pytest.fixture(scope="module")
def skipped(tmp_path_factory):
    """Return bits and events of a run that skips the batches with a NaN sample."""
    model, run_dir = network(), tmp_path_factory.mktemp("nan") / "run"
    assert train(run_dir, poisoned(float("nan")), model=model).phase == "completed"
    return bits(model), events_of(run_dir)


def test_a_batch_that_is_not_a_number_is_skipped_and_nothing_of_it_stays(skipped):
    """It is skipped once in each epoch; otherwise running statistics and parameters would stay NaN."""
    parameters, events = skipped
    skips = of(events, m.StepSkipped)
    model = network()
    model.load_state_dict(
        {
            name: torch.frombuffer(bytearray(raw), dtype=model.state_dict()[name].dtype).view_as(
                model.state_dict()[name]
            )
            for name, raw in parameters.items()
        }
    )

    assert [(skip.epoch, skip.reason) for skip in skips] == [(n, m.SkipReason.NON_FINITE) for n in (1, 2, 3)]
    assert all(tensor.isfinite().all() for tensor in model.state_dict().values())
    assert [one.step for one in of(events, m.StepCompleted)] == list(range(1, EPOCHS * (STEPS_PER_EPOCH - 1) + 1))


def test_what_the_batch_held_does_not_matter(tmp_path, skipped):
    """With an infinite sample instead of NaN, every later draw of dropout and every statistic is the same."""
    model = network()
    train(tmp_path / "run", poisoned(float("inf")), model=model)

    assert bits(model) == skipped[0]


def test_the_journal_says_what_was_found_and_what_was_done(skipped):
    """Each skip has the finding as its cause, with value, baseline and limit."""
    events = skipped[1]
    numbered = dict(enumerate(events, 1))
    for skip in of(events, m.StepSkipped):
        found = numbered[skip.cause]
        assert isinstance(found, m.InstabilityDetected)
        assert (found.finding.value, found.step, found.epoch, found.batch) == (
            *("non_finite", skip.step, skip.epoch, skip.batch),
        )


@pytest.mark.parametrize("at", [5, 12, 17])
def test_a_run_that_dies_after_a_skip_resumes_to_the_bit(tmp_path, skipped, at):
    """After a death soon or long after the skip, the re-run skips the batch again."""
    with pytest.raises(Stop):
        train(tmp_path / "run", poisoned(float("nan")), dies_at(at))
    model = network()
    train(tmp_path / "run", poisoned(float("nan")), model=model)

    assert bits(model) == skipped[0]
    sound(tmp_path / "run")


def test_to_skip_a_batch_is_to_have_never_looked_at_it(tmp_path, skipped):
    """With the same batches in quarantine from the start there is no forward pass for them, and the same bits."""
    model = network()
    batches = [m.Batches(skip.epoch, skip.batch, skip.batch) for skip in of(skipped[1], m.StepSkipped)]
    events = train_long(tmp_path / "run", model=model, epochs=EPOCHS, quarantine=batches)
    skips = of(events, m.StepSkipped)

    assert [(one.epoch, one.batch, one.reason.value) for one in skips] == [
        (batch.epoch, batch.last, "quarantined") for batch in batches
    ]
    assert bits(model) == skipped[0]


LONG_EPOCHS, HOT_AT = 12, 83


class Glitching(TensorDataset):
    """The calm data, except that `count` samples from the `first` fetched on are multiplied by 1000 and mislabelled,
    once.
    """

    def __init__(self, first: int, count: int, times: float = 1000.0) -> None:
        super().__init__(*data().tensors)
        self.sick = range(first, first + count)
        self.fetched = 0
        self.times = times

    def __getitem__(self, index):
        self.fetched += 1
        inputs, target = super().__getitem__(index)
        return (inputs * self.times, (target + 1) % 4) if self.fetched in self.sick else (inputs, target)


def plain() -> nn.Module:
    """A model without normalisation, which would hide the size of the inputs."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Dropout(0.2), nn.Linear(24, 4))


def train_long(
    run_dir, *, model, epochs=LONG_EPOCHS, dataset=None, hot=None, die_at=None, quarantine=(), **config
) -> list[m.Event]:
    """Run with one order of rate `hot`, or one death at `die_at` after a rollback. Return its events.

    Findings of finite values are insured, unless `config` says otherwise.
    """
    acting = {"checkpoint": {"min_gap_s": 0, "throttle_mb_s": None}}
    tolaria = made(run_dir, **{**acting, **config})

    def once(name: str) -> bool:
        try:
            (run_dir.parent / name).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def hook(step):
        if step == 1 and quarantine and once("quarantined"):
            for batches in quarantine:
                assert ordered(tolaria, m.QuarantineAdd(batches=batches))
        if hot is not None and step == HOT_AT and once("ordered"):
            group = state_of(tolaria).rates.groups[0].name
            assert ordered(tolaria, m.LrSet(group=group, value=hot))
        if step == die_at and state_of(tolaria).rollbacks.done and once("died"):
            raise InterruptedError

    assert tolaria.train(model, *loaders(dataset, validated=False), epochs, task=Hooks(hook)).phase == "completed"
    return events_of(run_dir)


class Louder(nn.Module):
    """From its `first` training pass on, gradients are multiplied by 30; values are unchanged."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self.left = first

    def forward(self, inputs):
        self.left -= self.training
        return inputs if self.left > 0 else inputs * 30.0 - (inputs * 29.0).detach()


def test_a_run_whose_gradients_grow_while_its_loss_falls_goes_on(tmp_path):
    """A deep network that leaves its plateau must not be treated as diverged."""
    model = nn.Sequential(plain(), Louder(first=84))
    events = train_long(tmp_path / "run", model=model)
    skips, shifts = of(events, m.StepSkipped), [one for one in of(events, m.InstabilityDetected) if one.asks]

    assert [skip.reason for skip in skips] == [m.SkipReason.SPIKE] * 4
    assert [(one.finding.value, one.signal.value, one.level) for one in shifts] == [("shift", "grad_norm", None)]
    assert not of(events, m.RolledBack)
    assert len(of(events, m.StepCompleted)) == LONG_EPOCHS * STEPS_PER_EPOCH - 4


# A rate that is ordered announces itself, so the run has to see an explosion, and then the whole watch.
HOT = {"learning_rate": {"base_lr": 0.01, "warmup_epochs": 0, "max_order_factor": 0}, "epochs": 36}


@pytest.fixture(scope="module")
def hot(tmp_path_factory):
    """Return bits, events and journal of a run in which a rate of 1000 is ordered."""
    model, run_dir = network(), tmp_path_factory.mktemp("hot") / "run"
    events = train_long(run_dir, model=model, hot=1000.0, **HOT)
    return bits(model), events, run_dir / "journal"


def test_a_rate_ordered_far_too_high_is_gone_back_from(tmp_path, hot):
    """The loss explodes; a state from before is kept and compared. The run still learnt fast, so its usual loss tells
    little: both ways are tried. The run rolls back to before the order and skips the suspected batches, in one chain of
    causes. That is the better way, and the run ends with the bits of one that never met them.
    """
    parameters, events, journal = hot
    (pinned, other), (back,) = of(events, m.StatePinned), of(events, m.RolledBack)
    compared, again = of(events, m.StatesCompared)
    found = events[pinned.cause - 1]
    batches = [one.batches for one in of(events, m.QuarantineAdded)]

    assert found.finding.value == "explosion"
    assert (compared.judgement, again.went_on) == (Judgement.UNCLEAR, False)
    assert compared.newest.now > 1e6 > 1.0 > compared.newest.pinned
    assert back.checkpoint == pinned.checkpoint
    assert back.step < HOT_AT
    assert {one.root for one in (back, pinned, other, compared, again)} == {events.index(found) + 1}
    # Within the watch, the batches of the comparison, and those until it could begin.
    assert compared.step - found.step <= 128 + 40
    assert sum(one.last - one.first + 1 for one in batches) == 8
    told = why(Reader(journal), "rollback")
    types = [link.fields["type"] for link in (*told.causes, told.event)]
    assert types[:1] == ["InstabilityDetected"]
    assert types[-3:] == ["EmergencyRaised", "RollbackBegun", "RolledBack"]
    assert {one.checkpoint for one in of(events, m.PinReleased)} == {pinned.checkpoint, other.checkpoint}
    model = network()
    train_long(tmp_path / "run", model=model, quarantine=batches, epochs=HOT["epochs"])
    assert bits(model) == parameters


@pytest.mark.parametrize(
    ("damage", "why"), [(Path.unlink, "cannot be read"), (lambda path: os.truncate(path, 9), "9 bytes|BLAKE3")]
)
def test_a_damaged_checkpoint_is_refused_by_name_and_the_run_goes_back_to_another(
    tmp_path, hot, monkeypatch, damage, why
):
    """The live trainer verifies before it copies a byte; an older target gives the same bits."""
    struck: list[str] = []

    def load_damaged(folder, *given):
        if not struck:
            struck.append(folder.name)
            damage(folder / "model-00000.safetensors")
        return load(folder, *given)

    monkeypatch.setattr(handler, "load", load_damaged)
    model = network()
    events = train_long(tmp_path / "run", model=model, hot=1000.0, **HOT, rollback={"fast_path_enabled": False})
    (rejected,), (back,) = of(events, m.CheckpointRejected), of(events, m.RolledBack)

    assert (rejected.id, rejected.file) == (struck[0], "model-00000.safetensors")
    assert re.search(why, rejected.why)
    assert back.checkpoint != rejected.id
    assert back.step < HOT_AT
    assert bits(model) == hot[0]


def test_a_death_after_the_way_back_changes_nothing(tmp_path, hot):
    """The re-run is on the new branch and skips the same batches."""
    # The epoch's last step on that branch: after the batches passed over, and before the next checkpoint.
    with pytest.raises(InterruptedError):
        train_long(tmp_path / "run", model=network(), hot=1000.0, die_at=88, **HOT)
    died = events_of(tmp_path / "run")
    model = network()
    events = train_long(tmp_path / "run", model=model, hot=1000.0, **HOT)

    (back,) = of(events, m.RolledBack)
    (rerun,) = of(events, m.RerunFinished)
    assert rerun.first_difference is None
    assert {one.reason for one in of(died, m.StepSkipped) if one.branch == back.branch} == {m.SkipReason.QUARANTINED}
    assert bits(model) == hot[0]


@pytest.mark.parametrize("samples", [12, 36])
def test_poisoned_batches_are_skipped_and_what_was_kept_for_them_is_released(tmp_path, samples):
    """One bad batch in the eleventh epoch is a spike. The third of three in a row is an explosion: a state is kept, the
    loss comes down by itself, and the state is released. The run never goes back, and ends as one that never met them.
    """
    model, other = plain(), plain()
    events = train_long(tmp_path / "run", model=model, dataset=Glitching(10 * 96 + 25, samples), epochs=20)
    skips = of(events, m.StepSkipped)
    (tmp_path / "other").mkdir()
    batches = [m.Batches(one.epoch, one.batch, one.batch) for one in skips]
    train_long(tmp_path / "other" / "run", model=other, quarantine=batches, epochs=20)

    told = why(Reader(tmp_path / "run" / "journal"), "spike")
    types = [link.fields["type"] for link in (*told.causes, told.event, *told.consequences)]

    assert not of(events, m.RolledBack, m.QuarantineAdded)
    assert types[:2] == ["InstabilityDetected", "StepSkipped"]
    assert [one.reason for one in skips] == [m.SkipReason.SPIKE] * (samples // 12)
    assert [one.why for one in of(events, m.PinReleased)] == ["the loss came down by itself"] * (samples == 36)
    assert len(of(events, m.StatePinned)) == len(of(events, m.PinReleased))
    assert bits(model) == bits(other)


def test_where_batches_are_not_to_be_skipped_the_end_is_that_of_the_calm_run(tmp_path):
    """With `rollback.skip_batches: false` only the order is undone."""
    model, calm = network(), network()
    events = train_long(tmp_path / "run", model=model, hot=1000.0, rollback={"skip_batches": False}, **HOT)
    train_long(tmp_path / "calm", model=calm, epochs=HOT["epochs"])

    assert len(of(events, m.RolledBack)) == 1
    assert bits(model) == bits(calm)


def test_where_nothing_is_to_be_done_the_run_goes_on_and_the_journal_says_what_was_seen(tmp_path):
    """With `detect.act: false` no batch is skipped, nothing is kept or gone back for; each finding gets its answer."""
    hot = {**HOT, "epochs": LONG_EPOCHS}
    events = train_long(tmp_path / "run", model=network(), hot=1000.0, detect={"act": False}, **hot)

    assert of(events, m.StepCompleted)[-1].step == LONG_EPOCHS * STEPS_PER_EPOCH
    assert findings(events)
    assert not of(events, m.RolledBack, m.StatePinned, m.StepSkipped)


def test_where_numbers_arrive_a_step_late_nothing_is_skipped_and_what_is_not_finite_leads_back(tmp_path, monkeypatch):
    """As on a GPU without `detect.sync`: the bad update is made, then undone; the batch is skipped from then on."""
    monkeypatch.setattr(build, "reads_late", lambda settings, device: True)
    model = plain()
    events = train_long(tmp_path / "run", model=model, epochs=EPOCHS, dataset=Glitching(96 + 25, 12, float("nan")))
    # What the steps after show until the order is there is recorded, and no more.
    found, *behind = findings(events)
    assert all((one.finding, one.asks) == (found.finding, False) and one.step > found.step for one in behind), behind
    (back,) = of(events, m.RolledBack)
    put = {(one.batches.epoch, at) for one in of(events, m.QuarantineAdded) for at in span(one.batches)}

    assert (found.finding.value, found.asks) == ("non_finite", False)
    assert (found.epoch, found.batch) in put
    assert len(put) == 8
    assert back.step < found.step
    skips = of(events, m.StepSkipped)
    assert {one.reason for one in skips} == {m.SkipReason.QUARANTINED}
    assert {(one.epoch, one.batch) for one in skips} == put
    assert all(tensor.isfinite().all() for tensor in model.state_dict().values())


def span(batches: m.Batches) -> range:
    """The batches of its epoch that an entry names."""
    return range(batches.first, batches.last + 1)
