"""A loop of one's own notices the same as `train`: other data, exceptions that repeat, a folder that is gone."""

from __future__ import annotations

import logging
import shutil
import time

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from tests.library.loops.programs import Loop, adversaries, configured, loader
from tests.library.small import EPOCHS, STEPS_PER_EPOCH, bits, data, network
from tests.recorded import events_of, of
from tolariad import Tolaria
from tolariad.core import messages as m
from tolariad.daemon.request import StartRefused
from tolariad.library import LoopMisused
from tolariad.library.failed import RunFailed

STEPS = EPOCHS * STEPS_PER_EPOCH


class Bad(Exception):
    """The error of a user's loop."""


def leave(at):
    """Raise in the loop, after this step."""

    def after(loop):
        if loop.step == at:
            raise Bad("a bad sample")

    return after


def allergic(run_dir, *, within=True, **options):
    """A program whose own code raises on a certain sample. Return the epochs that it saw."""
    bad, model, seen = data().tensors[0][40], network(), []
    run = Tolaria(configured(**options), run_dir=run_dir).run(model, None, loader())

    def loop():
        for epoch in run.epochs(2):
            seen.append(epoch)
            for inputs, targets in run.batches():
                if (inputs == bad).all(1).any():
                    raise Bad("a bad sample")
                run.step(cross_entropy(model(inputs), targets))

    if within:
        with run:
            loop()
    else:
        loop()
    return seen


@pytest.mark.parametrize("on_death", ["fail", "skip_batch"])
def test_an_exception_of_the_loop_that_repeats_fails_the_run_or_its_batch_is_skipped(tmp_path, on_death):
    """In `with run`. The caller gets it each time, with the frames of the loop alone."""
    run_dir = tmp_path / "run"
    for _ in range(2):
        with pytest.raises(Bad) as raised:
            allergic(run_dir, on_death=on_death)
        assert {entry.path.name for entry in raised.traceback} == {"test_troubles.py"}
    events = events_of(run_dir)
    failed = [one.why for one in of(events, m.RunFailed)]

    assert [one.kind.rpartition(".")[2] for one in of(events, m.ExceptionRaised)] == ["Bad", "Bad"]
    assert len({(one.place, one.step) for one in of(events, m.ExceptionRaised)}) == 1
    if on_death == "skip_batch":
        # Each epoch has the sample once, in another batch.
        for _ in range(2):
            with pytest.raises(Bad):
                allergic(run_dir, on_death=on_death)
        assert failed == []
        assert allergic(run_dir, on_death=on_death)[-1] == 2
        assert of(events_of(run_dir), m.StepCompleted)[-1].step == 2 * STEPS_PER_EPOCH - 2
        assert [one.epoch for one in of(events_of(run_dir), m.StepSkipped)] == [1, 2]
    else:
        assert len(failed) == 1
        assert "Bad: a bad sample" in failed[0]
        assert f"({__file__}:" in failed[0]


def test_without_a_block_the_end_of_the_loop_is_recorded_and_said_once(tmp_path, caplog):
    """A `for` statement does not tell its iterator why it is left."""
    with caplog.at_level(logging.WARNING), pytest.raises(Bad):
        allergic(tmp_path / "run", within=False)
    (raised,) = of(events_of(tmp_path / "run"), m.ExceptionRaised)

    assert "The program left its loop" in raised.traceback
    assert raised.kind == ""
    (said,) = [one.getMessage() for one in caplog.records]
    assert said.startswith(f"The program left its loop after step {raised.step}, before the end of the run.")
    assert said.endswith("put the loop into `with run:`.")


def test_an_exception_in_a_block_is_recorded_and_the_next_start_goes_on_to_the_same_bits(tmp_path, calm):
    """A loop in a block that is left by `break` is closed with the block."""
    for at in (11, 5):
        first = Loop(tmp_path / "run", leave(at))
        with pytest.raises(Bad), first.run:
            first.go()
    third = Loop(tmp_path / "run")
    with third.run as run:
        for _ in run.epochs(EPOCHS):
            break
    again = Loop(tmp_path / "run")
    with again.run:
        again.go()

    assert [bool(one.kind) for one in of(events_of(tmp_path / "run"), m.ExceptionRaised)] == [True, True]
    assert of(events_of(tmp_path / "run"), m.RunStopped)
    assert (again.run.result.phase, again.bits) == ("completed", calm.bits)


def test_other_data_are_refused_before_the_first_epoch(tmp_path):
    """With what to do; nothing is recorded. `accept_data` goes on."""
    with pytest.raises(Bad):
        Loop(tmp_path / "run", leave(10), counted=False).go()
    before = events_of(tmp_path / "run")
    inputs, targets = data().tensors
    other = TensorDataset(inputs + 1.0, targets)

    def again(**more):
        tolaria = Tolaria(configured(), run_dir=tmp_path / "run", **more)
        model = network()
        run = tolaria.run(model, None, loader(of=other))
        for _ in run.epochs(EPOCHS):
            for x, y in run.batches():
                run.step(cross_entropy(model(x), y))
        return run.result

    with pytest.raises(StartRefused, match=r"differ in 8 of 8 .*accept_data=True"):
        again()
    assert events_of(tmp_path / "run") == before
    assert again(accept_data=True).phase == "completed"


@pytest.mark.parametrize("how", ["deleted", "moved"])
def test_a_folder_that_is_gone_ends_the_loop_with_one_sentence(tmp_path, calm, caplog, how):
    """No further update is made. A moved run goes on at its new place, to the same bits."""
    run_dir, elsewhere, applied = tmp_path / "run", tmp_path / "elsewhere", []

    def after(loop):
        if loop.step == 10 and how == "moved":
            run_dir.rename(elsewhere)
        while loop.step == 10 and run_dir.exists():
            shutil.rmtree(run_dir, ignore_errors=True)
        if loop.step >= 10:
            applied.append(loop.applied[-1])
            # Much longer than a second in all, if nobody stops it.
            time.sleep(1.0)

    loop = Loop(run_dir, after)
    with (
        caplog.at_level(logging.WARNING, logger="tolariad.library"),
        # What it notices first, if it looks while the folder is being emptied.
        pytest.raises(RunFailed, match=rf"(folder|file of) {run_dir}\S* was {how}.* training was stopped"),
    ):
        loop.go()
    assert loop.step < 10 + 5 * STEPS_PER_EPOCH // 4
    assert applied[0]
    assert [one for one in caplog.records if one.name.startswith("tolariad.library")] == []
    assert not run_dir.exists()
    if how == "moved":
        assert Loop(elsewhere).go().bits == calm.bits


def test_a_rollback_sends_a_loop_of_two_optimizers_back_to_the_same_bits(tmp_path):
    """Between the two updates of a step: the second one then has no effect."""
    calm, _ = adversaries(tmp_path / "calm")
    running, answers = [], []

    def after(step):
        if step == 6.5 and not answers:
            answers.append(running[0].rollback(1))

    again, _ = adversaries(tmp_path / "run", after, running=running)
    (back,) = of(events_of(tmp_path / "run"), m.RolledBack)

    assert answers == [True]
    # The checkpoint after epoch 1 may still be in progress when the rollback is ordered.
    assert back.step in (0, 4)
    assert bits(again) == bits(calm)


def by_scheduler(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 1)


class ByHand:
    """What a loop does without a scheduler."""

    def __init__(self, optimizer):
        self._optimizer, self.rate = optimizer, 0.05

    def step(self):
        for group in self._optimizer.param_groups:
            group["lr"] = self.rate


class Same(ByHand):
    def __init__(self, optimizer):
        super().__init__(optimizer)
        self.rate = 0.1


@pytest.mark.parametrize("guarded", [True, False])
@pytest.mark.parametrize(("kind", "says"), [(by_scheduler, "StepLR"), (ByHand, "the rate was changed"), (Same, "")])
def test_a_rate_that_the_loop_sets_is_refused_at_its_first_use(tmp_path, kind, says, guarded):
    """Never does the run train at another rate than the script prints. The same rate again is none."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = kind(optimizer)
    unguarded = {"enable_runtime_guards": False, "base_lr": 0.1, "policy": "constant", "warmup_epochs": 0}
    rates = {} if guarded else unguarded
    run = Tolaria(configured(learning_rate=rates), run_dir=tmp_path / "run").run(model, optimizer, loader())

    def loop():
        for _ in run.epochs(2):
            for x, y in run.batches():
                run.step(cross_entropy(model(x), y))
            scheduler.step()

    if says:
        with pytest.raises(LoopMisused, match=says) as raised:
            loop()
        for word in ("group default", "0.1", "learning_rate.policy", __file__, "remove this line"):
            assert word in str(raised.value)
    else:
        loop()
    assert {event.lr for event in of(events_of(tmp_path / "run"), m.StepCompleted)} == {0.1}


def test_a_skipped_batch_is_said_in_a_line(tmp_path, caplog):
    """As by `train`."""
    inputs, targets = (tensor.clone() for tensor in data().tensors)
    inputs[30] = float("nan")
    model = network()
    run = Tolaria(configured(), run_dir=tmp_path / "run").run(
        model, torch.optim.SGD(model.parameters(), lr=0.1), loader(of=TensorDataset(inputs, targets))
    )
    with caplog.at_level(logging.WARNING, logger="tolariad.run"):
        for _ in run.epochs(1):
            said = [run.step(cross_entropy(model(x), y)) for x, y in run.batches()]
    (skip,) = of(events_of(tmp_path / "run"), m.StepSkipped)

    assert said.index(False) == skip.batch - 1
    assert [one.getMessage() for one in caplog.records if one.getMessage().startswith("Skipped")] == [
        f"Skipped batch {skip.batch} of epoch 1: its loss is nan, its gradient norm nan."
    ]
