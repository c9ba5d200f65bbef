"""A skipped step leaves no trace: buffers, generators and detector are as they were before it."""

from __future__ import annotations

import gc
import math
import random

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

from tolariad.core import messages as m
from tolariad.core.calc.detection.rules import Action, Finding
from tolariad.core.calc.settings.model import Detect
from tolariad.trainer.data.randomness import preserved_host_rng, seed_everything
from tolariad.trainer.health.forward_state import ForwardStateBackup
from tolariad.trainer.health.monitor import Monitor
from tolariad.trainer.step.gradients import Measured
from tolariad.trainer.step.rerun import Rerun

CPU = torch.device("cpu")


class Counting(nn.Module):
    """Buffers of every kind: written in place, replaced by another tensor, never written, not there yet."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.still = nn.BatchNorm1d(4, track_running_stats=False)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("last", torch.zeros(4))
        self.register_buffer("table", torch.arange(6.0), persistent=False)
        self.register_buffer("late", None)

    def forward(self, inputs):
        self.calls += 1
        self.last = inputs.mean(0)
        self.late = inputs.max()
        return self.drop(self.still(self.norm(inputs)))


def seen(model: nn.Module) -> dict[str, object]:
    """Every buffer's bits, and the generator's."""
    found: dict[str, object] = {name: buffer.clone().tolist() for name, buffer in model.named_buffers()}
    return {**found, "draws": torch.get_rng_state().tolist()}


def test_after_a_skip_buffers_and_draws_are_those_of_before():
    """Three passes with backup and restore; then one that stays, and another one that is restored."""
    model = Counting()
    aside = ForwardStateBackup(model, CPU)
    before = seen(model)
    for _ in range(3):
        aside.keep()
        model(torch.randn(5, 4))
        assert seen(model) != before
        aside.put_back()
        assert seen(model) == before
    aside.keep()
    model(torch.randn(5, 4))
    stays = seen(model)
    aside.keep()
    model(torch.randn(5, 4) * 100)
    aside.put_back()

    assert seen(model) == stays
    assert stays["calls"] == 1


def test_what_a_pass_draws_from_python_and_numpy_stays_drawn():
    """Torch's generators are restored, Python's and NumPy's are not (decision 0013), the same in every process."""

    def draw():
        return random.random(), random.gauss(0.0, 1.0), np.random.standard_normal(), float(torch.rand(()))

    with preserved_host_rng():
        seed_everything(3)
        expected = [draw() for _ in range(3)]
        seed_everything(3)
        aside, again = ForwardStateBackup(Counting(), CPU), []
        for _ in range(3):
            aside.keep()
            again.append(draw())
            aside.put_back()

    assert [one[:3] for one in again] == [one[:3] for one in expected]
    assert [one[3] for one in again] == [expected[0][3]] * 3


class Coming(nn.Module):
    """Registers a buffer in its first pass, counts in it, and removes another one on request."""

    def __init__(self):
        super().__init__()
        self.register_buffer("first", torch.ones(3))

    def forward(self, goes):
        if "count" not in self._buffers:
            self.register_buffer("count", torch.zeros(1), persistent=False)
        self.count += 1
        if goes:
            del self.first


def test_buffers_that_come_and_go_in_a_pass_have_neither_come_nor_gone_after_a_skip():
    """Buffers of a pass that was not skipped stay, and are restored like all others from then on."""
    module = Coming()
    aside = ForwardStateBackup(nn.Sequential(nn.Linear(2, 2), module), torch.device("cpu"))
    aside.keep()
    module(True)
    aside.put_back()
    assert [name for name, _ in module.named_buffers()] == ["first"]
    assert module._non_persistent_buffers_set == set()  # torch's: a later buffer of that name would not be saved
    assert torch.equal(module.first, torch.ones(3))

    aside.keep()
    module(True)
    aside.keep()
    module(False)
    aside.put_back()
    assert {name: value.item() for name, value in module.named_buffers()} == {"count": 1.0}


def test_nobody_is_told_of_buffers_once_it_is_gone():
    """The hook is global in the process: it must not outlive its run."""
    hooks = torch.nn.modules.module._global_buffer_registration_hooks
    gc.collect()
    before = len(hooks)
    aside = ForwardStateBackup(nn.Linear(2, 2), torch.device("cpu"))
    assert len(hooks) == before + 1
    del aside
    gc.collect()
    assert len(hooks) == before


def test_a_large_buffer_that_nobody_writes_is_copied_once():
    """A large table must not be copied at every step; its version is verified a few times."""
    model = nn.Identity()
    model.register_buffer("table", torch.arange(20_000.0))
    aside = ForwardStateBackup(model, CPU)
    for _ in range(20):
        aside.keep()
    # That no copy was made shows only in the copy itself.
    (slot,) = aside._slots.values()
    slot._copy[0] += 1
    for _ in range(11):
        aside.keep()

    assert slot._copy[0] == 1, "it was copied again"
    model.table[0] = 7.0
    aside.keep()
    assert slot._copy[0] == 7.0


@pytest.mark.parametrize(
    "table",
    [
        torch.eye(300).to_sparse(),
        torch.full((100_000,), float("nan")),
        torch.arange(40_000.0).reshape(200, 200).t(),
        torch.zeros(100_000, dtype=torch.bool),
        torch.zeros(100_000).to(torch.float8_e4m3fn),
        torch.zeros(20_000, dtype=torch.complex64),
    ],
    ids=["sparse", "NaN", "transposed", "bool", "float8", "complex"],
)
def test_a_large_buffer_of_any_kind_is_kept_and_put_back(table):
    """Return what can be compared."""
    model = nn.Identity()
    model.register_buffer("table", table.clone())
    aside = ForwardStateBackup(model, CPU)
    for _ in range(20):
        aside.keep()
        aside.put_back()
    found, expected = (one.to_dense() if one.is_sparse else one for one in (model.table, table))

    assert found.contiguous().view(torch.uint8).equal(expected.contiguous().view(torch.uint8))


class Codebook(nn.Module):
    """A codebook of `size` with a moving average, written through `.data` from pass `first` on."""

    def __init__(self, size: int, first: int = 0) -> None:
        super().__init__()
        self.register_buffer("book", torch.zeros(size))
        self.passes, self.first = 0, first

    def forward(self, inputs):
        self.passes += 1
        if self.passes > self.first:
            self.book.data.mul_(0.9).add_(inputs)
        return inputs


@pytest.mark.parametrize("size", [4, 100_000])
@pytest.mark.parametrize("at", [1, 2, 9, 40])
def test_a_buffer_that_is_written_behind_its_version_is_put_back_to_what_it_was(size, at):
    """It is not restored to its value at the run's start."""
    model, other = Codebook(size), Codebook(size)
    aside = ForwardStateBackup(model, CPU)
    for step in range(1, 50):
        aside.keep()
        model(torch.full((size,), float(step)))
        if step == at:
            aside.put_back()
        else:
            other(torch.full((size,), float(step)))

    assert torch.equal(model.book, other.book)


def test_one_that_begins_to_be_written_unseen_never_falls_back_to_its_beginning():
    """The first such pass may stay; from then on the restore is exact."""
    model = Codebook(100_000, first=40)
    aside = ForwardStateBackup(model, CPU)
    for step in range(1, 50):
        aside.keep()
        model(torch.full((100_000,), float(step)))
    aside.put_back()
    seen = model.book.clone()
    assert seen[0] > 0.0
    aside.keep()
    model(torch.ones(100_000))
    aside.put_back()

    assert torch.equal(model.book, seen)


def judged(watch: Monitor, values: list[float]) -> list[m.SkipReason | None]:
    return [watch.check(Measured(value, 1.0), None, step).reason for step, value in enumerate(values, 1)]


def test_a_spike_and_a_loss_that_is_not_finite_are_skipped_and_the_next_step_is_healthy():
    """A value that is not finite does not enter the detector; a spike does, so that its kind is not always skipped."""
    calm = [2.0 + 0.01 * (step % 7) for step in range(80)]
    watch, other = (Monitor(nn.Linear(1, 1), CPU, Detect(), reads_late=False) for _ in range(2))
    reasons = judged(watch, [*calm[:70], 900.0, float("nan"), float("inf"), *calm[70:]])
    judged(other, [*calm[:70], 900.0, *calm[70:]])

    assert [reason for reason in reasons if reason] == [
        m.SkipReason.SPIKE,
        m.SkipReason.NON_FINITE,
        m.SkipReason.NON_FINITE,
    ]
    assert watch.state() == other.state()


def test_within_a_window_no_step_is_skipped_for_being_high():
    """Masks may be the reason, and no batch is blamed. A loss that is not finite is skipped as ever."""
    calm = [2.0 + 0.01 * (step % 7) for step in range(80)]
    watch = Monitor(nn.Linear(1, 1), CPU, Detect(), reads_late=False)
    watch.tolerate_until(72)
    reasons = judged(watch, [*calm[:70], 900.0, float("nan"), 900.0, *calm[70:]])

    assert reasons[70:73] == [None, m.SkipReason.NON_FINITE, m.SkipReason.SPIKE]
    assert reasons.count(None) == len(reasons) - 2


def test_norms_that_are_learnt_anew_are_not_those_of_before():
    """A hundred times the norm is a spike, and after masks nobody knows yet what is one. The loss stays known."""
    known, anew = (Monitor(nn.Linear(1, 1), CPU, Detect(), reads_late=False) for _ in range(2))
    for watch in (known, anew):
        judged(watch, [2.0] * 100)
    assert known.typical_norm == pytest.approx(1.0)
    anew.learn_norms_anew()
    assert anew.typical_norm is None

    reasons = [watch.check(Measured(2.0, 100.0), None, 101).reason for watch in (known, anew)]
    assert reasons == [m.SkipReason.SPIKE, None]
    assert anew.check(Measured(900.0, 1.0), None, 102).reason is m.SkipReason.SPIKE


def test_the_state_of_an_older_detector_is_not_taken_over_and_that_is_said(caplog):
    """The state has another format: the detector starts again, with a sentence."""
    older = {"loss": {"scale": "log", "values": [0.1] * 64, "fresh": [], "floor": 0.2}, "grad_norm": {}, "fast": 0.1}
    watch, fresh = (Monitor(nn.Linear(1, 1), CPU, Detect(), reads_late=False) for _ in range(2))
    judged(watch, [2.0] * 20)
    watch.load_state(msgspec.msgpack.encode(older))
    assert watch.state() == fresh.state()
    assert "older version" in caplog.text

    watch.inherit(msgspec.msgpack.encode(older))
    assert watch.state() == fresh.state()


def test_the_learning_rate_reaches_the_detector():
    """A restart of the rate explains a rise, which is only recorded; otherwise it causes a rollback."""
    for rates in ((0.1, 0.01, 0.1), (0.1, 0.1, 0.1)):
        watch = Monitor(nn.Linear(1, 1), CPU, Detect(), reads_late=False)
        falling = [0.1 + 2.2 * math.exp(-step / 100.0) for step in range(1500)]
        losses = [*((loss, rates[step >= 1000]) for step, loss in enumerate(falling)), *[(0.7, rates[2])] * 60]
        looks = [watch.check(Measured(loss, 1.0), None, step, rate) for step, (loss, rate) in enumerate(losses, 1)]
        found = {one.verdict.finding for one in looks if one.verdict is not None}

        assert (Finding.SUSTAINED in found) == (rates[1] == rates[2])
        assert Finding.RISE in found or rates[1] == rates[2]


@pytest.mark.parametrize("detect", [Detect(act=False), Detect(skip=False)])
def test_where_skipping_is_off_the_verdict_is_given_and_nothing_is_skipped(detect):
    """The kernel decides what follows."""
    watch = Monitor(nn.Linear(1, 1), CPU, detect, reads_late=False)
    found = watch.check(Measured(float("nan"), 1.0), None, 1)

    assert found.reason is None
    assert found.verdict.finding is Finding.NON_FINITE
    assert found.verdict.action is Action.SKIP


def skip_report(one: m.StepSkipped) -> m.StepSkippedReport:
    return m.StepSkippedReport(
        step=one.step, epoch=one.epoch, batch=one.batch, loss=one.loss, grad_norm=one.grad_norm, reason=one.reason
    )


def step_report(one: m.ScriptStep) -> m.StepReport:
    return m.StepReport(
        step=one.step, epoch=1, batch=1, loss=one.loss, grad_norm=one.grad_norm, lr=one.lr, rates=one.rates
    )


def test_a_rerun_skips_what_was_skipped_and_leaves_the_detector_as_it_was():
    """With a state in between and other numbers now, the detector gets the journal's numbers."""
    calm = [2.0 + 0.01 * (step % 7) for step in range(100)]
    watch = Monitor(nn.Linear(1, 1), CPU, Detect(), reads_late=False)
    judged(watch, calm)
    middle = watch.state()
    skips = (
        m.StepSkipped(step=101, epoch=1, batch=101, loss=700.0, grad_norm=1.0, reason=m.SkipReason.SPIKE),
        m.StepSkipped(step=102, epoch=1, batch=103, loss=9.0, grad_norm=1.0, reason=m.SkipReason.OVERFLOW),
    )
    assert judged(watch, [700.0]) == [m.SkipReason.SPIKE]
    judged(watch, calm[:2])
    script = m.Script(skips=skips, steps=tuple(m.ScriptStep(101 + n, calm[n], 1.0, 0.1, 5) for n in range(2)))
    again = Monitor(nn.Linear(1, 1), CPU, Detect(), reads_late=False)
    again.load_state(middle)
    rerun = Rerun(msgspec.msgpack.encode(script))

    skipped = again.check(Measured(2.0, 1.0), rerun, 101)
    rerun.compare_skip(skip_report(skips[0]), skipped.found)
    applied = again.check(Measured(float("nan"), 1.0), rerun, 101)
    rerun.compare(step_report(script.steps[0]))
    overflow = again.check(Measured(2.0, 1.0), rerun, 102)
    rerun.compare_skip(skip_report(skips[1]), overflow.found)
    again.check(Measured(2.0, 1.0), rerun, 102)

    assert (skipped.reason, skipped.found) == (m.SkipReason.SPIKE, m.SkipReason.SPIKE)
    assert applied.reason is None
    assert (overflow.reason, overflow.found) == (m.SkipReason.OVERFLOW, None)
    assert again.state() == watch.state()
