"""A loop of one's own: it ends with the bits of a plain loop and of `train`, whatever interrupts it."""

from __future__ import annotations

import copy
import gc
import os
import signal
import threading
import time

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from tests.library.inside import ordered, state_of
from tests.library.loops.programs import Loop, adversaries, configured, loader
from tests.library.small import CONFIG, EPOCHS, STEPS_PER_EPOCH, bits, data, network, train
from tests.recorded import events_of, of, sound
from tests.waiting import wait_for
from tolariad import Tolaria
from tolariad.core import messages as m

STEPS = EPOCHS * STEPS_PER_EPOCH


def test_a_loop_ends_with_the_bits_of_train_and_its_journal_is_as_whole(tmp_path):
    """The same steps in the journal; the metrics are those that the loop gave."""
    model, loop = network(), Loop(tmp_path / "loop", draws=False).go()
    train(tmp_path / "run", model=model)
    ours, theirs = (events_of(folder) for folder in (tmp_path / "loop", tmp_path / "run"))

    assert bits(model) == bits(loop.model)
    assert [(e.step, e.loss, e.grad_norm) for e in of(ours, m.StepCompleted)] == [
        (e.step, e.loss, e.grad_norm) for e in of(theirs, m.StepCompleted)
    ]
    assert [(e.epoch, e.step) for e in of(ours, m.EpochFinished)] == [(1, 8), (2, 16), (3, 24)]
    assert [set(e.metrics) for e in of(ours, m.ValidationFinished)] == [{"accuracy"}] * EPOCHS
    assert loop.run.result.metrics == of(ours, m.ValidationFinished)[-1].metrics
    assert loop.counter.count == STEPS


@pytest.mark.sample(2)
@pytest.mark.parametrize("at", [1, 8, 11, 23])
@pytest.mark.parametrize("how", ["raise", "break"])
def test_a_loop_that_is_left_goes_on_at_the_next_start_to_the_same_bits(tmp_path, calm, at, how):
    """By an exception or by breaks: nothing is lost but steps that are made again, and they are the same."""
    handler = signal.getsignal(signal.SIGINT)

    class Boom(Exception):
        pass

    def leave(loop):
        if loop.step == at:
            raise Boom

    first = Loop(tmp_path / "run", leave)
    if how == "raise":
        with pytest.raises(Boom):
            first.go()
    else:
        first.after = lambda loop: None
        for _ in first.run.epochs(EPOCHS):
            for inputs, targets in first.run.batches():
                first.run.step(cross_entropy(first.model(inputs), targets))
                first.counter.look(first.model)
                first.step += 1
                if first.step == at:
                    break
            if first.step == at:
                break
            torch.rand(3)
            first.counter.count += 1
            first.run.validated(accuracy=0.5)
    assert signal.getsignal(signal.SIGINT) is handler
    again = Loop(tmp_path / "run").go()
    events = sound(tmp_path / "run")
    if how == "raise" or at % STEPS_PER_EPOCH == 0:  # after the last batch the epoch's code has still to run
        (left,) = of(events, m.ExceptionRaised)
        assert "The program left its loop" in left.traceback
    else:
        assert [one.step for one in of(events, m.RunStopped)] == [at]
    assert again.run.result.phase == "completed"
    assert again.bits == calm.bits


def test_a_batch_that_was_half_done_leaves_no_trace(tmp_path, calm):
    """The exception comes after a forward pass, which changed running statistics and drew."""
    first, forwards = Loop(tmp_path / "run"), []

    def raising(module, given, output):
        forwards.append(1)
        if len(forwards) == 21:
            raise InterruptedError

    handle = first.model.register_forward_hook(raising)
    with pytest.raises(InterruptedError):
        first.go()
    handle.remove()
    assert Loop(tmp_path / "run").go().bits == calm.bits


@pytest.mark.sample(2)
@pytest.mark.parametrize("at", [9, 16, 20])
@pytest.mark.parametrize("tier", ["full", "fast"])
def test_a_rollback_by_another_thread_sends_the_loop_back_to_the_same_bits(tmp_path, calm, at, tier):
    """An epoch comes again; what is kept goes back too; the validation of the unfinished epoch is void."""
    options = {"snapshots": {"every": 4, "watch_steps": 2}} if tier == "fast" else {}
    answers, sent = [], []

    def after(loop):
        if loop.step == at:
            thread = threading.Thread(target=lambda: answers.append(loop.tolaria.rollback(1)))
            thread.start()
            thread.join()
        if answers and not sent and loop.run.interrupted:
            sent.append(loop.step)

    loop = Loop(tmp_path / "run", after, **options).go()
    (back,) = of(events_of(tmp_path / "run"), m.RolledBack)

    assert answers == [True]
    assert back.step in (0, STEPS_PER_EPOCH)
    assert loop.seen[-1] == EPOCHS
    assert len(loop.seen) > EPOCHS
    assert loop.counted.count(True) >= EPOCHS
    assert loop.counted[-1]
    assert loop.bits == calm.bits


def test_a_validation_of_an_epoch_that_was_not_finished_is_void(tmp_path, calm):
    """It is neither recorded nor refused, and the loop is told so."""
    told = []

    def after(loop):
        if loop.step == 12 and not told:
            told.append(loop.tolaria.rollback(1))

    loop = Loop(tmp_path / "run", after).go()
    assert loop.counted[loop.seen.index(2)] is False
    assert [e.epoch for e in of(events_of(tmp_path / "run"), m.ValidationFinished)][-2:] == [2, 3]
    assert loop.bits == calm.bits


@pytest.mark.parametrize("how", ["signal", "stop"])
def test_a_stop_ends_both_iterators_with_a_checkpoint_and_the_next_start_goes_on(tmp_path, calm, how):
    """^C, or `run.stop()`: the loop ends as if it were over, and the program goes on after it."""

    def after(loop):
        if loop.step == 10:
            os.kill(os.getpid(), signal.SIGINT) if how == "signal" else loop.run.stop()
            # The kernel hears of a signal while the loop goes on. What is answered after it was decided after it.
            wait_for(lambda: state_of(loop.tolaria).run.stop)
            assert ordered(loop.tolaria, m.Note(text="heard"))

    first = Loop(tmp_path / "run", after).go()
    events = events_of(tmp_path / "run")

    assert (first.run.result.phase, first.counted) == ("stopped", [True, False])
    assert first.step == 10
    assert of(events, m.RunStopped)
    assert of(events, m.CheckpointCommitted)[-1].step == first.step
    again = Loop(tmp_path / "run").go()
    assert (again.run.result.phase, again.seen) == ("completed", [2, 3])
    assert again.bits == calm.bits


def test_a_run_that_is_complete_yields_no_epoch_and_gives_its_parameters(tmp_path, calm):
    """With more epochs it goes on."""
    Loop(tmp_path / "run").go()
    again = Loop(tmp_path / "run").go()
    assert (again.seen, again.run.result.steps, bits(again.model)) == ([], STEPS, bits(calm.model))


@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize("several", [False, True])
def test_the_numbers_are_those_of_the_plain_loop(tmp_path, accumulate, several):
    """Without rates in the configuration the optimizers keep theirs, to the last bit. Accumulated, too."""
    model, targets = nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 4)), data().tensors[1]
    theirs = copy.deepcopy(model)

    def optimizers(of):
        if not several:
            return torch.optim.AdamW(of.parameters(), lr=3e-3)
        return {"in": torch.optim.Adam(of[0].parameters(), 7e-3), "out": torch.optim.SGD(of[2].parameters(), 3e-2)}

    batches = DataLoader(data(), batch_size=12)
    made = optimizers(theirs)
    for _ in range(EPOCHS):
        for number, (inputs, targets) in enumerate(batches, 1):
            (cross_entropy(theirs(inputs), targets) / accumulate).backward()
            if number % accumulate == 0:
                for one in made.values() if several else (made,):
                    one.step()
                    one.zero_grad()
    options = {"torch_threads": 1, "rng_seed": 5, "accumulate": accumulate}
    run = Tolaria({"tolaria": options}, run_dir=tmp_path / "run").run(model, optimizers(model), batches)
    for _ in run.epochs(EPOCHS):
        for inputs, targets in run.batches():
            run.step(cross_entropy(model(inputs), targets))
    assert bits(model) == bits(theirs)
    assert run.result.steps == STEPS // accumulate
    assert of(events_of(tmp_path / "run"), m.LrViolationDetected) == []


@pytest.mark.parametrize("at", [6, 6.5, 7])
def test_several_updates_are_one_step_in_a_loop_too(tmp_path, at):
    """Interrupted between two updates, or after both: the same bits, and one report a step."""
    calm, _ = adversaries(tmp_path / "calm")

    def after(step):
        if step == at:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        adversaries(tmp_path / "run", after)
    again, tolaria = adversaries(tmp_path / "run")
    assert bits(again) == bits(calm)
    assert (
        tolaria.get_metrics()["step"] == len({e.step for e in of(events_of(tmp_path / "run"), m.StepCompleted)}) == 12
    )


def test_a_batch_that_is_not_finite_is_skipped_and_step_says_so(tmp_path):
    """The run ends with the bits of a loop that never had the batch."""
    ends = []
    for is_sick in (True, False):
        torch.manual_seed(4)
        model = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        inputs, targets = (tensor.clone() for tensor in data().tensors)
        inputs[30] = float("nan")
        if is_sick:
            run = Tolaria(configured(learning_rate={}), run_dir=tmp_path / "run").run(
                model, optimizer, DataLoader(torch.utils.data.TensorDataset(inputs, targets), 12)
            )
            for _ in run.epochs(2):
                said = [run.step(cross_entropy(model(x), y)) for x, y in run.batches()]
                assert said == [number != 2 for number in range(STEPS_PER_EPOCH)]
        else:
            batches = list(DataLoader(torch.utils.data.TensorDataset(inputs, targets), 12))
            for x, y in (batches[:2] + batches[3:]) * 2:
                cross_entropy(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
        ends.append(bits(model))
    skips = of(events_of(tmp_path / "run"), m.StepSkipped)
    assert [(skip.epoch, skip.reason) for skip in skips] == [(1, m.SkipReason.NON_FINITE), (2, m.SkipReason.NON_FINITE)]
    assert ends[0] == ends[1]


def test_a_validation_loader_is_evaluated_if_the_loop_gives_no_metrics(tmp_path):
    """As `train` does it."""
    model = network()
    run = Tolaria(CONFIG, run_dir=tmp_path / "run").run(model, None, loader(), DataLoader(data(48), batch_size=24))
    for epoch in run.epochs(2):
        for inputs, targets in run.batches():
            run.step(cross_entropy(model(inputs), targets))
        if epoch == 2:
            run.validated({"loss": 0.25}, accuracy=torch.tensor(1.0))
    first, second = (event.metrics for event in of(events_of(tmp_path / "run"), m.ValidationFinished))
    assert set(first) == {"loss", "accuracy"}
    assert second == {"loss": 0.25, "accuracy": 1.0}


def test_the_last_metrics_are_there_to_ask_for(tmp_path):
    """Numbers and tensors by name, from `step` and `log`."""
    tolaria = Tolaria(CONFIG, run_dir=tmp_path / "run")
    run, model = tolaria.run(network(), None, loader()), network()
    run = tolaria.run(model, None, loader())
    for epoch in run.epochs(1):
        for number, (inputs, targets) in enumerate(run.batches()):
            run.step(cross_entropy(model(inputs), targets), number=number, half=torch.tensor([0.5]))
            run.log("epoch_seen", epoch)
    assert run.metrics == {"number": STEPS_PER_EPOCH - 1, "half": 0.5, "epoch_seen": 1}
    assert tolaria.get_metrics()["half"] == 0.5


def test_the_time_of_the_loop_is_the_tasks(tmp_path):
    """The user's forward pass is not counted as recording: its share stays far below that of a loop that sleeps."""
    loop = Loop(tmp_path / "run", lambda loop: time.sleep(0.02))
    loop.run = loop.tolaria.run(loop.model, None, DataLoader(data(), batch_size=2))
    loop.go()
    tallies = [tally for event in of(events_of(tmp_path / "run"), m.BudgetsMeasured) for tally in event.tallies]
    shares = [tally.worst for tally in tallies if tally.budget == "training_degradation"]
    assert shares
    assert max(shares) < 50.0


def test_data_without_a_length_need_no_number_of_steps_at_constant_rates(tmp_path):
    """An epoch ends where the data ends. Stopped within one and started again, the loop ends with the same bits."""

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(data())

    def start(run_dir, stop_at=None):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        run = Tolaria({"tolaria": {"rng_seed": 1, "torch_threads": 1}}, run_dir=run_dir).run(
            model, optimizer, DataLoader(Stream(), 12)
        )
        made = 0
        for _ in run.epochs(2):
            for inputs, targets in run.batches():
                run.step(cross_entropy(model(inputs), targets))
                made += 1
                if made == stop_at:
                    run.stop()
        return bits(model), run.result

    calm, result = start(tmp_path / "calm")
    assert (result.phase, result.epochs, result.steps) == ("completed", 2, 2 * STEPS_PER_EPOCH)
    assert start(tmp_path / "run", STEPS_PER_EPOCH + 3)[1].phase == "stopped"
    assert start(tmp_path / "run")[0] == calm


def test_a_loop_that_is_left_ends_at_once_without_a_collection(tmp_path):
    """Nothing holds its iterator in a circle: another run can begin in the next line."""
    gc.disable()
    try:
        for _ in range(2):
            for _ in Loop(tmp_path / "run").run.epochs(EPOCHS):
                break
    finally:
        gc.enable()
    assert len(of(events_of(tmp_path / "run"), m.RunStopped)) == 2
