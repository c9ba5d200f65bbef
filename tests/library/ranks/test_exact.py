"""Exact sums in a user's loop: one hash of parameters, optimizer and losses, whatever the number of ranks."""

from __future__ import annotations

import hashlib
import os
import random
import signal
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from tests.library.ranks.groups import BATCH, Kills, Program, start
from tests.library.small import CONFIG, bits, data
from tests.recorded import events_of, of, sound
from tests.waiting import wait_for
from tolariad import Tolaria
from tolariad.core import messages as m
from tolariad.core.calc.settings.reading import read_settings
from tolariad.library.ranks import place_of_train
from tolariad.trainer.errors import SetupRefused

LEAVES = 6
EXACT = {"parallel": {"exact": True, "leaves": LEAVES}}


class Exact(Program):
    """A program with exact sums: the loader is that of one process."""

    def __init__(self, run_dir, *, samples=344, epochs=2, **options):
        super().__init__(run_dir, samples=samples, epochs=epochs, **{**EXACT, **options})

    def loader(self):
        """Return the whole data, which this process shuffles."""
        return DataLoader(data(self.samples), BATCH, shuffle=True), None

    def train(self, run, rank, model, sampler):
        """Be the loop, with draws of its own between the steps."""
        self.drawn = []
        for epoch in run.epochs(self.epochs):
            batches = run.batches()
            left = len(batches)
            for batch in batches:
                left -= 1
                self.step_of(run, batch, epoch, rank, model)
            assert left == 0, "the length of the batches is that of this rank's"
            self.drawn.append((random.random(), torch.rand(1).item()))
            run.validated(loss=self.drawn[-1][0])


def alone(program):
    """Run a program as the only rank, without a group."""
    return start(1, program, program.run_dir.parent)[0]


def outcome(found, run_dir):
    """Return a hash of all that a rank ended with, and of the recorded numbers of each step."""
    steps = [
        (one.step, one.epoch, one.batch, one.loss, one.grad_norm, one.lr, one.rates, one.data, one.metrics)
        for one in of(sound(run_dir), m.StepCompleted)
    ]
    return hashlib.sha256(repr((sorted(found["bits"].items()), found["steps"], steps)).encode()).hexdigest()


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """The hash of a run of one rank. An epoch has 43 batches: its last step has one leaf."""
    folder = tmp_path_factory.mktemp("one")
    return outcome(alone(Exact(folder / "run")), folder / "run")


@pytest.mark.parametrize("ranks", [2, 3])
def test_any_number_of_ranks_has_one_hash(one, tmp_path, ranks):
    """Parameters, BatchNorm's statistics, moments, and each step's loss, norm, rate and data; on every rank."""
    found = start(ranks, Exact(tmp_path / "run"), tmp_path)

    assert {outcome(each, tmp_path / "run") for each in found} == {one}


def dies(program, rank, step):
    """Rank 1 dies before step 5, when a checkpoint from within the epoch is there; the next start has rank 0 die."""
    recorded = partial(events_of, program.run_dir)
    starts = len(of(recorded(), m.TrainerStarted)) if (rank, step) in {(1, 2), (1, 5), (0, 7)} else 0
    if (rank, step, starts) == (1, 2, 1):
        # So it is taken after step 4 at the latest: rank 0 gets the order before a later step is durable.
        wait_for(lambda: of(recorded(), m.CheckpointBegun), "the first checkpoint's begin")
    elif (rank, step, starts) == (1, 5, 1):
        wait_for(lambda: of(recorded(), m.CheckpointCommitted), "the first checkpoint")
        os.kill(os.getpid(), signal.SIGKILL)
    elif (rank, step, starts) == (0, 7, 2):
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_run_goes_on_with_another_number_of_ranks(one, tmp_path):
    """Killed with two ranks and with three, it ends with one, which has no DDP, and with the same hash.

    Each start goes on from a checkpoint of the first one, within an epoch.
    """
    for ranks, lost in ((2, 1), (3, 0)):
        program = Exact(tmp_path / "run", checkpoint={"interval_steps": 1, "min_gap_s": 0})
        program.before = dies
        assert start(ranks, program, tmp_path)[lost] is None
    program = Exact(tmp_path / "run")
    program.wraps = nn.Module.train
    found = alone(program)
    events = sound(tmp_path / "run")

    assert outcome(found, tmp_path / "run") == one
    assert [bool(one.checkpoint) for one in of(events, m.TrainingStarted)] == [False, True, True]
    assert not of(events, m.RerunDiverged)
    (error,) = of(events, m.ExceptionRaised)
    assert "rank 1 (process" in error.traceback


def test_it_has_the_bits_of_one_process_that_accumulates(tmp_path):
    """Without draws and running statistics: the same parameters as plain `accumulate`, to the last bit."""

    def plain():
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 4))

    found = []
    for name, ranks, options in (("exact", 2, {}), ("plain", 1, {"parallel": {}, "accumulate": LEAVES})):
        (tmp_path / name).mkdir()
        program = Exact(tmp_path / name / "run", **options)
        program.model = plain
        found.append(start(ranks, program, tmp_path / name)[0]["bits"])
    assert found[0] == found[1]


class Split(Exact):
    """The loader is a rank's own."""

    def loader(self):
        """Return a rank's part of the data."""
        sampler = DistributedSampler(data(self.samples))
        return DataLoader(data(self.samples), BATCH, sampler=sampler), sampler


@pytest.mark.parametrize(
    ("program", "options", "says"),
    [
        (Split, {}, "DistributedSampler"),
        (Exact, {"parallel": {"exact": True, "leaves": 1}}, "start at most 1"),
        (Exact, {"accumulate": 2}, "with parallel.exact a step has parallel.leaves (6)"),
        (Exact, {"parallel": {"leaves": 6}}, "parallel.leaves: is of no use without parallel.exact"),
        (Exact, {"parallel": {"exact": True}}, "parallel.leaves: is required with parallel.exact"),
    ],
)
def test_what_exact_sums_cannot_be_had_for_is_refused_by_name(tmp_path, program, options, says):
    """On every rank, before anything is recorded."""
    found = start(2, program(tmp_path / "run", **options), tmp_path)
    assert all(says in one["error"] for one in found), found
    assert not (tmp_path / "run" / "journal").exists() or not of(sound(tmp_path / "run"), m.StepCompleted)


class Sick(Exact):
    """Something of the model cannot be summed exactly: `sick` makes it so."""

    sick: str

    def __init__(self, run_dir, sick, **options):
        super().__init__(run_dir, samples=96, epochs=1, **options)
        self.sick, self.holds = sick, True
        self.model = self.network

    def network(self):
        """Return the model."""
        torch.manual_seed(3)
        first = nn.Linear(16, 24)
        if self.sick == "buffer":
            first = nn.utils.parametrizations.spectral_norm(first)
        if self.sick == "hook":
            first.weight.register_post_accumulate_grad_hook(lambda _: None)
        return nn.Sequential(first, nn.ReLU(), nn.Linear(24, 4))

    def step_of(self, run, batch, epoch, rank, model, *more):
        """Make a step."""
        if self.sick == "update":
            run.update("model", nn.functional.cross_entropy(model(batch[0]), batch[1]))
        elif self.sick == "backward":
            loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
            loss.backward()
            run.step(loss.detach())
        else:
            super().step_of(run, batch, epoch, rank, model, *more)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("sick", "says"),
    [
        ("buffer", "the passes of a micro-batch change the buffer 0.parametrizations.weight.0._u"),
        ("hook", "0.weight has a hook after its accumulation"),
        ("update", "run.update() makes its update at once"),
        ("backward", "gradients were there before run.step(loss)"),
    ],
)
def test_what_a_model_or_a_loop_may_not_have_is_named(tmp_path, sick, says):
    """No update is made; one rank at least says it by name, and the others end with it."""
    found = start(2, Sick(tmp_path / "run", sick), tmp_path)

    assert all(one is None or "error" in one for one in found), found
    assert any(one is not None and says in one["error"] for one in found), found
    assert not of(events_of(tmp_path / "run"), m.StepCompleted)


class Reading(Exact):
    """Notes which rows this rank reads. Rank 1 draws them in another order if `differs`."""

    differs = False

    def __call__(self, rank):
        """Train, and return the rows too."""
        self.rank, self.rows = rank, []
        return {**super().__call__(rank), "rows": self.rows}

    def loader(self):
        """Return the data in an order of the loader's own."""
        rows, (inputs, targets) = self.rows, data(self.samples).tensors

        class Rows(torch.utils.data.Dataset):
            def __len__(self):
                return len(inputs)

            def __getitem__(self, row):
                rows.append(row)
                return inputs[row], targets[row]

        seed = self.rank if self.differs else 5
        return DataLoader(Rows(), BATCH, shuffle=True, generator=torch.Generator().manual_seed(seed)), None


def test_each_rank_of_a_program_reads_its_own_batches(tmp_path):
    """All rows of an epoch once, over both ranks; beside them the few that tell whether the data are others."""
    one, other = start(2, Reading(tmp_path / "run", samples=12 * BATCH, epochs=1), tmp_path)
    rows = [row for found in (one, other) for row in found["rows"][-6 * BATCH :]]

    assert sorted(rows) == list(range(12 * BATCH))


def test_ranks_whose_data_come_in_another_order_are_named(tmp_path):
    """Their gradients would be equal all the same. No update is made."""
    program = Reading(tmp_path / "run", samples=12 * BATCH, epochs=1)
    program.differs = program.holds = True
    found = start(2, program, tmp_path)

    assert any(one is not None and "step 1: the batches of rank 0" in one["error"] for one in found), found
    assert not of(events_of(tmp_path / "run"), m.StepCompleted)


class Measures:
    """A task that measures, and calls `after(step)`."""

    def __init__(self, after):
        self.after = after

    def loss(self, model, batch):
        """Return loss and metrics of a micro-batch."""
        found = model(batch[0])
        accuracy = (found.argmax(1) == batch[1]).float().mean()
        return {"loss": nn.functional.cross_entropy(found, batch[1]), "accuracy": accuracy}

    def evaluate(self, model, batch):
        """Return the metrics of a batch of the validation."""
        return {"loss": nn.functional.cross_entropy(model(batch[0]), batch[1])}

    def on_step_end(self, model, step):
        """Tell that a step was made."""
        self.after(step)


class Trained(Exact):
    """`Tolaria.train`, which makes the passes itself. The ranks need not have met, and the model is not wrapped."""

    def __call__(self, rank):
        """Train in this process."""
        model, config = self.model(), {**CONFIG["tolaria"], **self.options}
        self.tolaria = Tolaria({"tolaria": config}, run_dir=self.run_dir)
        train, validation = DataLoader(data(self.samples), BATCH, shuffle=True), DataLoader(data(24), 8)
        task = Measures(lambda step: self.after(self, rank, step))
        result = self.tolaria.train(self.wraps(model), train, validation, self.epochs, task=task)
        parts = {name: one.hex() for name, one in bits(model).items()}
        return {"phase": result.phase, "steps": result.steps, "bits": parts, "hooks": hooks_of(model)}


def hooks_of(model):
    """Return how many hooks the modules of a model have."""
    return sum(len(one._forward_hooks) + len(one._forward_pre_hooks) for one in model.modules())


def steps_of(run_dir):
    """Return the recorded numbers of each step, with its metrics."""
    return [
        (one.step, one.epoch, one.batch, one.loss, one.grad_norm, one.lr, one.data, one.metrics)
        for one in of(sound(run_dir), m.StepCompleted)
    ]


def test_train_ends_with_the_same_bits_for_any_number_of_ranks(tmp_path):
    """With metrics of all leaves, BatchNorm, dropout; and killed with two ranks, ended with three.

    The model has no hook of the sums any more.
    """
    calm, killed = Trained(tmp_path / "calm"), Trained(tmp_path / "killed")
    calm.wraps = killed.wraps = nn.Module.train
    one = alone(calm)
    killed.after = Kills(tmp_path, "1 after 5").of("after")
    killed.options = {**EXACT, "checkpoint": {"interval_steps": 1, "min_gap_s": 0}}
    lost = start(2, killed, tmp_path)
    found = start(3, killed, tmp_path)

    assert (one["phase"], one["hooks"]) == ("completed", 0)
    assert len(steps_of(calm.run_dir)[0][-1]) == 1
    assert lost[1] is None
    assert found == [one] * 3
    assert steps_of(killed.run_dir) == steps_of(calm.run_dir)


def test_train_needs_no_process_group(monkeypatch):
    """What torchrun has set is enough: nothing is sent."""
    for name, value in {"LOCAL_RANK": "1", "RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    settings = read_settings(EXACT)

    assert place_of_train(settings, nn.Linear(2, 2)) == (1, 2)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    with pytest.raises(SetupRefused, match="several machines"):
        place_of_train(settings, nn.Linear(2, 2))


def test_train_takes_the_model_without_its_wrapper(tmp_path):
    """It would make the passes beside the wrapper."""
    found = start(2, Trained(tmp_path / "run"), tmp_path)

    assert all("pass the model that it wraps" in one["error"] for one in found), found
