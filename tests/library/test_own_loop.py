"""A loop of one's own: it ends with the bits of a plain loop and of `train`, whatever interrupts it."""

from __future__ import annotations

import copy
import os
import signal
import threading
import time

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, softplus
from torch.utils.data import DataLoader

from tests.library.test_detection import events_of, of
from tests.library.test_library import CONFIG, EPOCHS, STEPS_PER_EPOCH, bits, data, network, train
from tests.trainer.tasks.updating import NOISE, WIDTH, networks
from tolariad import Tolaria
from tolariad.core.checkpoints.words import CheckpointCommitted, RerunFinished
from tolariad.core.health.budget_words import BudgetsMeasured
from tolariad.core.rates.words import LrViolationDetected
from tolariad.core.rollback.words import RolledBack
from tolariad.core.run.words import RunStopped
from tolariad.core.steps.words import EpochFinished, SkipReason, StepCompleted, StepSkipped, ValidationFinished
from tolariad.core.trainer.words import ExceptionRaised
from tolariad.library import LoopMisused
from tolariad.trainer.errors import SetupRefused

STEPS = EPOCHS * STEPS_PER_EPOCH


@pytest.fixture(autouse=True)
def one_thread():
    """A plain loop computes with as many threads as the run."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Counter:
    """Something of the user's that changes: a count of batches, and an average of the weights."""

    def __init__(self, model):
        self.count, self.average = 0, {name: p.detach().clone() for name, p in model.named_parameters()}

    def look(self, model):
        self.count += 1
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                self.average[name].lerp_(parameter, 0.1)

    def state_dict(self):
        return {"count": self.count, "average": self.average}

    def load_state_dict(self, state):
        self.count = state["count"]
        for name, value in state["average"].items():
            self.average[name].copy_(value)

    def bits(self):
        return self.count, {name: value.numpy().tobytes() for name, value in self.average.items()}


def configured(**options):
    return {"tolaria": {**CONFIG["tolaria"], **options}}


def loader(**options):
    return DataLoader(options.pop("of", data()), batch_size=12, shuffle=True, **options)


class Loop:
    """One start of a program with a loop of its own. `after` is called after each step. `draws`: validations draw."""

    def __init__(self, run_dir, after=lambda loop: None, *, counted=True, draws=True, **options):
        self.model, self.after, self.draws = network(), after, draws
        self.tolaria = Tolaria(configured(**options), run_dir=run_dir)
        self.run = self.tolaria.run(self.model, None, loader())
        self.counter = Counter(self.model)
        if counted:
            self.run.keep("counter", self.counter)
        self.step, self.seen, self.counted, self.applied = 0, [], [], []

    def go(self):
        for epoch in self.run.epochs(EPOCHS):
            self.seen.append(epoch)
            for inputs, targets in self.run.batches():
                self.applied.append(self.run.step(cross_entropy(self.model(inputs), targets)))
                self.counter.look(self.model)
                self.step += 1
                self.after(self)
            self.model.eval()
            with torch.no_grad():
                accuracy = (self.model(data().tensors[0]).argmax(1) == data().tensors[1]).float().mean()
            self.model.train()
            if self.draws:
                torch.rand(3)
                self.counter.count += 1
            self.counted.append(self.run.validated(accuracy=accuracy))
        return self

    @property
    def bits(self):
        return bits(self.model), self.counter.bits()


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """The undisturbed loop."""
    loop = Loop(tmp_path_factory.mktemp("calm") / "run").go()
    assert (loop.run.result.phase, loop.seen, loop.counted) == ("completed", [1, 2, 3], [True] * EPOCHS)
    return loop


def test_a_loop_ends_with_the_bits_of_train_and_its_journal_is_as_whole(tmp_path):
    """The same steps in the journal; the metrics are those that the loop gave."""
    model, loop = network(), Loop(tmp_path / "loop", draws=False).go()
    train(tmp_path / "run", model=model)
    ours, theirs = (events_of(folder) for folder in (tmp_path / "loop", tmp_path / "run"))

    assert bits(model) == bits(loop.model)
    assert [(e.step, e.loss, e.grad_norm) for e in of(ours, StepCompleted)] == [
        (e.step, e.loss, e.grad_norm) for e in of(theirs, StepCompleted)
    ]
    assert [(e.epoch, e.step) for e in of(ours, EpochFinished)] == [(1, 8), (2, 16), (3, 24)]
    assert [set(e.metrics) for e in of(ours, ValidationFinished)] == [{"accuracy"}] * EPOCHS
    assert loop.run.result.metrics == of(ours, ValidationFinished)[-1].metrics
    assert loop.counter.count == STEPS


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
    events = events_of(tmp_path / "run")
    (left,) = of(events, ExceptionRaised)

    assert "The program left its loop" in left.traceback
    assert again.run.result.phase == "completed"
    assert again.bits == calm.bits
    assert all(rerun.first_difference is None for rerun in of(events, RerunFinished))


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
    (back,) = of(events_of(tmp_path / "run"), RolledBack)

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
    assert [e.epoch for e in of(events_of(tmp_path / "run"), ValidationFinished)][-2:] == [2, 3]
    assert loop.bits == calm.bits


@pytest.mark.parametrize("how", ["signal", "stop"])
def test_a_stop_ends_both_iterators_with_a_checkpoint_and_the_next_start_goes_on(tmp_path, calm, how):
    """^C, or `run.stop()`: the loop ends as if it were over, and the program goes on after it."""

    def after(loop):
        if loop.step == 10:
            os.kill(os.getpid(), signal.SIGINT) if how == "signal" else loop.run.stop()

    first = Loop(tmp_path / "run", after).go()
    events = events_of(tmp_path / "run")

    assert (first.run.result.phase, first.counted) == ("stopped", [True, False])
    # The kernel hears of a signal while the loop goes on.
    assert first.step == 10 or (how == "signal" and 10 < first.step < 16)
    assert of(events, RunStopped)
    assert of(events, CheckpointCommitted)[-1].step == first.step
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
    assert of(events_of(tmp_path / "run"), LrViolationDetected) == []


def adversaries(run_dir, after=lambda step: None):
    """Two networks against each other, with two updates in each step. Return the model and the losses."""
    torch.manual_seed(2)
    model = networks()
    parts = {
        "judge": torch.optim.Adam(model["judge"].parameters(), lr=4e-3),
        "maker": torch.optim.Adam(model["maker"].parameters(), lr=1e-3),
    }
    real = torch.randn(48, WIDTH)
    tolaria = Tolaria(configured(learning_rate={}), run_dir=run_dir)
    run = tolaria.run(model, parts, DataLoader(torch.utils.data.TensorDataset(real), 12, shuffle=True))
    step = 0
    for _ in run.epochs(EPOCHS):
        for (batch,) in run.batches():
            made = model["maker"](torch.randn(len(batch), NOISE))
            told_apart = softplus(-model["judge"](batch)).mean() + softplus(model["judge"](made.detach())).mean()
            run.update("judge", told_apart)
            after((step := step + 1) - 0.5)
            run.update("maker", softplus(-model["judge"](made)).mean())
            run.stepped(loss=told_apart)
            after(step)
    return model, tolaria


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
    assert tolaria.get_metrics()["step"] == len({e.step for e in of(events_of(tmp_path / "run"), StepCompleted)}) == 12


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
    skips = of(events_of(tmp_path / "run"), StepSkipped)
    assert [(skip.epoch, skip.reason) for skip in skips] == [(1, SkipReason.NON_FINITE), (2, SkipReason.NON_FINITE)]
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
    first, second = (event.metrics for event in of(events_of(tmp_path / "run"), ValidationFinished))
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


# -- misuse ------------------------------------------------------------------------------------------------------------


def forgets(loop, run, batch, number):
    pass


def steps_twice(loop, run, batch, number):
    run.step(cross_entropy(loop.model(batch[0]), batch[1]))
    run.step(loop.model(batch[0]).mean())


def never_steps(loop, run, batch, number):
    run.update("host", loop.model(batch[0]).mean())


def mixes(loop, run, batch, number):
    run.update("host", loop.model(batch[0]).mean())
    run.step(loop.model(batch[0]).mean())


def validates_early(loop, run, batch, number):
    run.step(cross_entropy(loop.model(batch[0]), batch[1]))
    run.validated(loss=1.0)


def keeps_late(loop, run, batch, number):
    run.keep("late", loop.counter)


def begins_again(loop, run, batch, number):
    next(iter(run.epochs(3)))


def gives_text(loop, run, batch, number):
    run.step(loop.model(batch[0]).mean(), name="text")


def gives_vector(loop, run, batch, number):
    run.step(loop.model(batch[0]))


def misnames(loop, run, batch, number):
    run.update("hots", loop.model(batch[0]).mean())


@pytest.mark.parametrize(
    ("body", "error", "says"),
    [
        (forgets, LoopMisused, r"run.step\(loss\) was not called for the batch before"),
        (never_steps, LoopMisused, r"run.stepped\(\) was not called for the batch before"),
        (steps_twice, LoopMisused, r"run.step\(\) was called when it is done"),
        (mixes, LoopMisused, r"run.step\(\) was called when update\(\) was called for it"),
        (validates_early, LoopMisused, "before all batches of the epoch were taken"),
        (keeps_late, LoopMisused, r"call it before run.epochs\(\)"),
        (begins_again, LoopMisused, "a run has one loop"),
        (gives_text, SetupRefused, "'name' is a str"),
        (gives_vector, SetupRefused, r"step\(loss\): the loss must be a tensor with one element"),
        (misnames, SetupRefused, "the optimizers are host; did you mean 'host'"),
    ],
    ids=lambda one: getattr(one, "__name__", None),
)
def test_a_call_that_is_missing_or_misplaced_is_an_error_that_says_which(tmp_path, calm, body, error, says):
    """And the run goes on at the next start."""
    loop = Loop(tmp_path / "run", counted=False)

    def misused():
        for _ in loop.run.epochs(EPOCHS):
            for number, batch in enumerate(loop.run.batches()):
                body(loop, loop.run, batch, number)

    with pytest.raises(error, match=says):
        misused()
    assert bits(Loop(tmp_path / "run", counted=False).go().model) == bits(calm.model)


def test_an_epoch_that_is_cut_short_is_refused(tmp_path):
    """Only its batches make an epoch; a break out of the inner loop alone is a mistake."""
    loop = Loop(tmp_path / "run")

    def cut():
        for _ in loop.run.epochs(EPOCHS):
            inputs, targets = next(iter(loop.run.batches()))
            loop.run.step(cross_entropy(loop.model(inputs), targets))

    with pytest.raises(LoopMisused, match=r"left run.batches\(\) within epoch 1"):
        cut()


def test_calls_outside_of_the_loop_are_refused(tmp_path):
    """With what to do."""
    run = Tolaria(CONFIG, run_dir=tmp_path / "run").run(network(), None, loader())
    with pytest.raises(LoopMisused, match=r"outside of `for epoch in run\.epochs"):
        next(iter(run.batches()))
    with pytest.raises(LoopMisused, match=r"outside of `for epoch in run\.epochs"):
        run.validated(loss=1.0)
    with pytest.raises(LoopMisused, match=r"outside of `for epoch in run\.epochs"):
        run.step(torch.ones(()))
    for name, kept, says in [("a", object(), "has no state_dict"), ("a b", Counter(network()), "a name has letters")]:
        with pytest.raises(LoopMisused, match=says):
            run.keep(name, kept)
    run.keep("a", Counter(network()))
    with pytest.raises(LoopMisused, match="kept already"):
        run.keep("a", Counter(network()))
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_with_a_kept_object_that_is_not_kept_any_more_is_refused(tmp_path):
    """By its name, before training."""

    def leave(loop):
        if loop.step == 12:
            loop.run.stop()

    Loop(tmp_path / "run", leave).go()
    with pytest.raises(SetupRefused, match=r"the checkpoint holds counter: call run.keep\('counter', ...\)"):
        Loop(tmp_path / "run", counted=False).go()


def test_what_a_loop_cannot_do_is_refused_by_name(tmp_path):
    """Before anything is recorded: the forward pass is the loop's, and so is its precision."""
    with pytest.raises(SetupRefused, match=r"put the forward pass into `with torch\.autocast"):
        Loop(tmp_path / "run", precision="bf16").go()
    assert not (tmp_path / "run").exists()


def test_the_time_of_the_loop_is_the_tasks(tmp_path):
    """The user's forward pass is not counted as recording: its share stays far below that of a loop that sleeps."""
    loop = Loop(tmp_path / "run", lambda loop: time.sleep(0.02))
    loop.run = loop.tolaria.run(loop.model, None, DataLoader(data(), batch_size=2))
    loop.go()
    tallies = [tally for event in of(events_of(tmp_path / "run"), BudgetsMeasured) for tally in event.tallies]
    shares = [tally.worst for tally in tallies if tally.budget == "training_degradation"]
    assert shares
    assert max(shares) < 50.0
