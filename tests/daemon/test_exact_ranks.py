"""`tolariad run` with exact sums: one hash of parameters, optimizer and losses, whatever the number of ranks."""

from __future__ import annotations

import hashlib

import pytest

from tests.daemon.harness import of_type
from tests.recorded import pieces
from tolariad.core import messages as m

LEAVES = 6
EXACT = ("parallel.exact=true", f"parallel.leaves={LEAVES}")
SETS = (
    *("journal.segment_bytes=1000000", "rng_seed=4", "batch_size=4", "torch_threads=1", "trainer.spare=off"),
    "learning_rate.base_lr=0.01",
)


@pytest.fixture
def train(start, tmp_path):
    """Trains a task, and returns the run's folder. A daemon that is killed has the code -9."""

    def train_one(name, *sets, ranks=1, task="Perceptron", deeds=(), ends=0, begins=True):
        folder, once = tmp_path / name, tmp_path / f"{name} once"
        once.mkdir(exist_ok=True)
        new = {"task": f"tests.daemon.exact_task:{task}", "epochs": 2} if begins else {}
        daemon = start(
            **{"run_dir": folder, "trainer_command": None, "shells": ranks * (len(deeds) + 1), **new},
            sets=[*(SETS if begins else ()), f"parallel.ranks={ranks}", *sets],
            environ={"GROUP_DEEDS": ",".join(deeds), "GROUP_ONCE": str(once)},
        )
        assert daemon.wait() == ends, daemon.stderr
        return folder

    return train_one


def outcome(run_dir):
    """Return a hash of parameters, buffers and optimizer, and of each step's place and numbers."""
    steps = [
        (one.step, one.epoch, one.batch, one.loss, one.grad_norm, one.lr, one.data)
        for one in of_type(run_dir, m.StepCompleted)
    ]
    tensors = {name: one for name, one in pieces(run_dir).items() if name.startswith(("model", "optim"))}
    assert len(tensors) > 1, pieces(run_dir).keys()
    return hashlib.sha256(repr((sorted(tensors.items()), steps)).encode()).hexdigest()


@pytest.mark.parametrize(
    ("task", "sets", "several"),
    [
        ("Perceptron", (), (2, 3)),
        ("Convolutions", (), (3,)),
        ("Perceptron", ("precision=bf16",), (2,)),
        ("Perceptron", ("workers=0", "parallel.leaves=2"), (2,)),
        ("Streamed", (), (3,)),
    ],
    ids=["mlp", "cnn", "bf16", "two leaves", "stream"],
)
def test_any_number_of_ranks_has_one_hash(train, task, sets, several):
    """With dropout, items that draw, clipping, BatchNorm. 13 batches: an epoch's last step has one leaf."""
    one = outcome(train("one", *EXACT, *sets, task=task))

    assert {outcome(train(f"of {ranks}", *EXACT, *sets, task=task, ranks=ranks)) for ranks in several} == {one}


def test_a_run_that_is_killed_goes_on_with_another_number_of_ranks(train):
    """Two ranks, killed with their daemon; three, of which one is killed; then one. Each rank says nothing of others.

    No step is made in another way: a re-run compares the loss, the norm and the data of each.
    """
    one = outcome(train("one", *EXACT))
    often = ("checkpoint.interval_steps=1", "checkpoint.min_gap_s=0")
    train("run", *EXACT, *often, ranks=2, deeds=("0 daemon 2",), ends=-9)
    train("run", ranks=3, deeds=("0 no 0", "1 kill 3", "0 daemon 4"), ends=-9, begins=False)
    run = train("run", begins=False)

    assert outcome(run) == one
    assert [(died.rank, died.signal) for died in of_type(run, m.TrainerDied) if died.rank] == [(1, "SIGKILL")]
    assert not of_type(run, m.ExceptionRaised)
    assert [change.keys for change in of_type(run, m.ConfigChanged)] == [("parallel.ranks",)] * 2
    assert all(rerun.first_difference is None for rerun in of_type(run, m.RerunFinished))


def test_an_exception_of_one_rank_is_recorded_with_its_rank(train):
    """The others wait for its leaves: that is no error of the task's."""
    run = train("run", *EXACT, ranks=3, deeds=("2 raise 2",))

    (raised,) = of_type(run, m.ExceptionRaised)
    assert "of rank 2" in raised.text
    assert outcome(run) == outcome(train("one", *EXACT))


def metrics_of(run_dir):
    """Return the metrics of each step by name."""
    names = [name for one in of_type(run_dir, m.MetricsNamed) for name in one.names]
    found = [dict(zip(names, one.metrics, strict=False)) for one in of_type(run_dir, m.StepCompleted)]
    return [{name: value for name, value in one.items() if value == value} for one in found]


def test_the_metrics_of_a_step_are_those_of_all_leaves(train):
    """As one process has them that accumulates: means, sums of tokens, and one that only some leaves give.

    Each name has its place in the order of the leaves, not of the ranks that came first.
    """
    plain = train("plain", f"accumulate={LEAVES}", "learning_rate.warmup_epochs=0", task="Measured")
    expected = metrics_of(plain)

    assert {"accuracy", "tokens"} <= expected[0].keys()
    assert 0 < sum("late" in one for one in expected) < len(expected)
    for ranks in (1, 3):
        run = train(f"of {ranks}", *EXACT, "learning_rate.warmup_epochs=0", task="Measured", ranks=ranks)
        assert metrics_of(run) == expected
        assert [one.names for one in of_type(run, m.MetricsNamed)] == [
            one.names for one in of_type(plain, m.MetricsNamed)
        ]


def test_the_sums_are_those_of_one_process_that_accumulates(train):
    """Where nothing is drawn in a step: the same parameters as plain `accumulate`, to the last bit."""
    exact = pieces(train("exact", *EXACT, task="Plain", ranks=2))
    plain = pieces(train("plain", f"accumulate={LEAVES}", task="Plain"))

    assert {name: exact[name] for name in exact if name.startswith("model")} == {
        name: plain[name] for name in plain if name.startswith("model")
    }
    assert [name for name in plain if name.startswith("model")]
