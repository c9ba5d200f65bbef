"""Runs over data of the kinds that people have: the plain loop's bits, exact resumes, and a word if that cannot be."""

from __future__ import annotations

import copy
import logging
import os
import signal

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, Sampler, WeightedRandomSampler

from tests.library.inside import written_at_once
from tests.library.small import bits, data, made, network
from tests.recorded import events_of, of
from tolariad import Tolaria
from tolariad.core import messages as m
from tolariad.library import RunFailed
from tolariad.trainer.errors import SetupRefused

SAMPLES, STEPS = 48, 12


class Crash(Exception):
    """Raised by a hook, as a crash would be."""


class Rows(Dataset):
    """Rows of `data()`, each times a number."""

    def __init__(self, factor=lambda index: 1.0):
        self.factor, self.scale, self.tensors = factor, 1.0, data(SAMPLES).tensors

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return self.tensors[0][index] * self.scale * self.factor(index), self.tensors[1][index]


class Crashing:
    """A task that crashes after a step, and calls `hook(step)` before."""

    def __init__(self, at=None, hook=lambda step: None):
        self.at, self.hook = at, hook

    def on_step_end(self, model, step):
        self.hook(step)
        if step == self.at:
            raise Crash


def trained(run_dir, loader, *, at=None, epochs=3, hook=lambda step: None, **options):
    """Train, crash after step `at`, or come to the end."""
    model = network()
    train = made(run_dir, checkpoint_interval_epochs=100, **options).train
    if at is None:
        return bits(model), train(model, loader, None, epochs, task=Crashing(None, hook))
    with pytest.raises(Crash):
        train(model, loader, None, epochs, task=Crashing(at, hook))
    return None


def test_a_run_whose_data_do_not_repeat_themselves_says_so_and_never_fails(tmp_path, caplog):
    """At its first start, by name. After each crash it goes on, with the sentence beside the steps that differ."""

    def loader():
        anew = torch.Generator()
        return DataLoader(Rows(lambda _: torch.rand((), generator=anew.manual_seed(anew.seed()))), 4, shuffle=True)

    with caplog.at_level(logging.WARNING, logger="tolariad.run"):
        trained(tmp_path / "run", loader(), at=5)
    assert any("element 0 differs when it is read again" in one.getMessage() for one in caplog.records)
    trained(tmp_path / "run", loader(), at=9)
    assert trained(tmp_path / "run", loader())[1].phase == "completed"
    events = events_of(tmp_path / "run")
    assert len(of(events, m.InexactDataFound)) == 1
    reruns = of(events, m.RerunFinished)
    assert [(one.first_difference.field, one.expected.split(",")[0].split(" ")[0]) for one in reruns] == [
        ("data", "item")
    ] * 2
    assert not of(events, m.RerunDiverged)
    assert not of(events, m.RunFailed)


def test_data_that_changed_unnoticed_are_named_as_such_and_the_next_start_goes_on(tmp_path):
    """One of 48 items is another one: none that the fingerprint reads. The step is named that was trained on it."""
    factor = {"of 4": 1.0}

    def loader():
        return DataLoader(Rows(lambda index: factor["of 4"] if index == 4 else 1.0), 4)

    trained(tmp_path / "run", loader(), at=5)
    factor["of 4"] = 3.0
    with pytest.raises(RunFailed, match=r"step 2: other data.*start the program again to go on") as failed:
        trained(tmp_path / "run", loader())
    assert "other data" in str(failed.value)
    assert trained(tmp_path / "run", loader())[1].phase == "completed"
    first, second = of(events_of(tmp_path / "run"), m.RerunFinished)
    assert (first.first_difference.step, first.first_difference.field, first.expected) == (2, "data", "")
    assert "step 2 came out differently before" in second.expected


def test_a_field_that_nobody_trains_on_may_differ_in_a_rerun(tmp_path):
    """The digest of the batch covers it, but the numbers of the step are the same."""
    number = iter(range(1000))

    class Timed(Rows):
        def __getitem__(self, index):
            return *super().__getitem__(index), torch.tensor(next(number))

    class Task(Crashing):
        def loss(self, model, batch):
            return cross_entropy(model(batch[0]), batch[1])

    loader, model = DataLoader(Timed(), 4, shuffle=True), network()
    with pytest.raises(Crash):
        made(tmp_path / "run", data={"ignore": ["2"]}).train(model, loader, None, 2, task=Task(5))
    assert made(tmp_path / "run", data={"ignore": ["2"]}).train(network(), loader, None, 2, task=Task()).steps == 24
    (rerun,) = of(events_of(tmp_path / "run"), m.RerunFinished)
    assert rerun.first_difference is None


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loop_sees_what_it_changes_before_its_batches_as_a_plain_loop_does(tmp_path, workers):
    """The first batch of an epoch is read after the code that the epoch begins with."""

    def weights(run):
        model, rows = network(), Rows()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        loader = DataLoader(rows, 4, num_workers=workers)
        config = {"tolaria": {"rng_seed": 5, "torch_threads": 1}}
        loop = Tolaria(config, run_dir=tmp_path / "run").run(model, optimizer, loader) if run else None
        torch.manual_seed(0)
        for epoch in loop.epochs(3) if loop else (1, 2, 3):
            rows.scale = float(epoch)
            model.eval()  # dropout would draw: a run seeds for it
            for inputs, targets in loop.batches() if loop else loader:
                loss = cross_entropy(model(inputs), targets)
                if loop:
                    loop.step(loss)
                else:
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
        return bits(model)

    assert weights(run=True) == weights(run=False)


class Endless(Sampler):
    def __iter__(self):
        while True:
            yield from torch.randperm(SAMPLES).tolist()


def test_an_endless_sampler_trains_for_its_steps(tmp_path):
    """And is refused if nothing says where it ends."""
    loader = DataLoader(Rows(), 4, sampler=Endless())
    options = {"stop": {"steps": 20}, "learning_rate": {"base_lr": 0.01, "policy": "constant", "warmup_epochs": 0}}
    assert trained(tmp_path / "run", loader, **options)[1].steps == 20
    with pytest.raises(SetupRefused, match=r"sampler .* has no length.*stop\.steps"):
        trained(tmp_path / "endless", loader, learning_rate=options["learning_rate"])


def test_weights_that_training_moves_give_the_same_run_after_a_crash(tmp_path, monkeypatch):
    """The order of the epoch stays as it was drawn; the next ones are drawn from the moved weights."""
    written_at_once(monkeypatch.setattr)

    def pair():
        sampler = WeightedRandomSampler([1.0] * SAMPLES, SAMPLES, generator=torch.Generator().manual_seed(4))
        return DataLoader(Rows(), 4, sampler=sampler), lambda step: sampler.weights.__setitem__(step % 7, float(step))

    loader, hook = pair()
    calm = trained(tmp_path / "calm", loader, hook=hook)[0]
    loader, hook = pair()

    def checkpoint_first(step):
        hook(step)
        if step == 15:
            assert running[-1].checkpoint(tmp_path / "copy")

    running = [made(tmp_path / "run")]
    model = network()
    with pytest.raises(Crash):
        running[0].train(model, loader, None, 3, task=Crashing(20, checkpoint_first))
    loader, hook = pair()
    assert trained(tmp_path / "run", loader, hook=hook)[0] == calm
    rerun = of(events_of(tmp_path / "run"), m.RerunFinished)[-1]
    assert rerun.first_difference is None
    assert 12 <= rerun.first - 1 <= 16, "the checkpoint lies within an epoch, or at its end"


def in_child(program):
    """Run a program in a child that leads a process group. Return how it ended."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        code = 1
        try:
            program()
            code = 0
        except SystemExit as end:
            code = end.code
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def saved_by_a_stop(run_dir):
    """Return the step of the newest checkpoint, which a stop took."""
    events = events_of(run_dir)
    newest = of(events, m.CheckpointCommitted)[-1]
    assert next(one.reason for one in of(events, m.CheckpointBegun) if one.id == newest.id) is m.CheckpointReason.STOP
    return newest.step


def looped(run_dir, loader, hook, epochs):
    """Train in a loop of one's own."""
    model = network()
    run = made(run_dir, checkpoint_interval_epochs=100).run(model, None, loader)
    step = 0
    for _ in run.epochs(epochs):
        for inputs, targets in run.batches():
            run.step(cross_entropy(model(inputs), targets))
            hook(step := step + 1)


@pytest.mark.parametrize("form", [trained, looped])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_a_signal_to_the_process_group_reaches_the_boundary_and_its_checkpoint(tmp_path, form, number, code):
    """Workers have a group of their own: ^C and SIGTERM mean the run, in a loop of one's own too."""
    signals = []

    def hook(step):
        if step == 5 and not signals:
            signals.append(step)
            os.killpg(0, number)

    loader = DataLoader(Rows(), 4, shuffle=True, num_workers=2)
    assert in_child(lambda: form(tmp_path / "run", loader, hook=hook, epochs=100)) == code
    assert saved_by_a_stop(tmp_path / "run") >= 5


def test_a_worker_that_a_stopping_signal_ended_leads_to_the_boundary_too(tmp_path):
    """A service manager sends it to every process of the control group."""
    parent = os.getpid()

    def factor(index):
        if os.getpid() != parent and index == 41 and os.getppid() in begun:
            os.kill(os.getppid(), signal.SIGTERM)
            os._exit(1)
        return 1.0

    begun = set()

    def program():
        begun.add(os.getpid())
        trained(tmp_path / "run", DataLoader(Rows(factor), 4, num_workers=1, prefetch_factor=1), epochs=100)

    assert in_child(program) == 143
    assert saved_by_a_stop(tmp_path / "run") == 10


def test_the_users_objects_are_as_free_after_a_run_as_before(tmp_path):
    """No attribute is left in the loader, no class is another one."""
    loader = DataLoader(Rows(), 4, shuffle=True, generator=torch.Generator().manual_seed(1))
    before = copy.copy(vars(loader))
    trained(tmp_path / "run", loader, epochs=1)
    assert vars(loader) == before
    assert type(loader.sampler).__module__.startswith("torch.")
    assert isinstance(loader.dataset, Rows)
