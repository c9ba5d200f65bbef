"""`tolariad run` with several ranks: the daemon starts them, names the one that fails, and starts all again."""

from __future__ import annotations

import pytest

from tests.daemon.harness import of_type
from tests.recorded import pieces
from tolariad.core import messages as m

SETS = ("journal.segment_bytes=1000000", "rng_seed=4", "batch_size=4", "torch_threads=1", "trainer.spare=off")
STEPS = 2 * 7


@pytest.fixture
def train(start, tmp_path):
    """Trains a task to its end, and returns the run's folder."""

    def train_one(name, *sets, ranks=2, task="GroupTask", deeds=()):
        folder, once = tmp_path / name, tmp_path / f"{name} once"
        once.mkdir()
        daemon = start(
            run_dir=folder,
            task=f"tests.daemon.group_task:{task}",
            epochs=2,
            trainer_command=None,
            shells=ranks * (len(deeds) + 1),
            sets=[*SETS, f"parallel.ranks={ranks}", *sets],
            environ={"GROUP_DEEDS": ",".join(deeds), "GROUP_ONCE": str(once)},
        )
        assert daemon.wait() == 0, daemon.stderr
        return folder

    return train_one


def steps_of(run_dir):
    return [(one.step, one.epoch, one.batch) for one in of_type(run_dir, m.StepCompleted)]


def test_a_group_comes_back_with_the_same_bits_after_a_rank_was_killed_and_one_has_raised(train):
    """Each is named: the first that ended, and not the ranks whose network broke. BatchNorm, dropout, items draw."""
    plain = train("plain")
    hurt = train("hurt", deeds=("1 kill 4", "1 raise 9"))
    killed, died = of_type(hurt, m.TrainerDied)

    assert (killed.rank, killed.signal, killed.reason) == (1, "SIGKILL", m.DeathReason.SIGNAL)
    assert died.reason is m.DeathReason.EXCEPTION
    (raised,) = of_type(hurt, m.ExceptionRaised)
    assert raised.traceback.startswith("Rank 1: ")
    assert "of rank 1" in raised.text
    assert pieces(hurt) == pieces(plain)
    assert steps_of(hurt) == steps_of(plain)
    assert all(one.first_difference is None for one in of_type(hurt, m.RerunFinished))


def test_two_ranks_make_the_steps_of_one_process_that_accumulates_two_batches(train):
    """Positions, losses and norms: those of the smaller last step of an epoch too. In float64."""
    one = of_type(train("one", "accumulate=2", ranks=1, task="PlainTask"), m.StepCompleted)
    two = of_type(train("two", task="PlainTask"), m.StepCompleted)

    assert [(made.step, made.epoch, made.batch) for made in two] == [(o.step, o.epoch, o.batch) for o in one]
    assert len(one) == STEPS
    assert [made.loss for made in two] == pytest.approx([made.loss for made in one], rel=1e-12)
    assert [made.grad_norm for made in two] == pytest.approx([made.grad_norm for made in one], rel=1e-12)
    assert [made.lr for made in two] == [made.lr for made in one]


@pytest.mark.torture
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_group_that_is_killed_again_and_again_ends_with_the_same_bits(train, ranks):
    """Each rank in turn, and two at once. With three ranks a sum depends on its order."""
    last = ranks - 1
    deeds = ("0 kill 2", f"{last} kill 4", "1 kill 6", "0 kill 7", f"{last} kill 7", "0 kill 10")
    plain = train("plain", ranks=ranks)
    hurt = train("hurt", ranks=ranks, deeds=deeds)

    assert {one.reason for one in of_type(hurt, m.TrainerDied)} == {m.DeathReason.SIGNAL}
    assert not of_type(hurt, m.ExceptionRaised)
    assert pieces(hurt) == pieces(plain)
    assert steps_of(hurt) == steps_of(plain)


@pytest.mark.torture
def test_a_rank_that_is_stopped_is_named_and_the_group_comes_back(train):
    """The event has the rank and how long; three ranks, each in turn."""
    plain = train("plain", ranks=3)
    hurt = train("hurt", ranks=3, deeds=("0 stop 3", "1 stop 5", "2 stop 8"))
    hung = of_type(hurt, m.TrainerHung)

    assert [(one.rank, one.activity) for one in hung] == [(0, "stopped"), (1, "stopped"), (2, "stopped")]
    assert [one.rank for one in of_type(hurt, m.TrainerDied)] == [0, 1, 2]
    assert all(one.silent_s < 10.0 for one in hung)
    assert pieces(hurt) == pieces(plain)


def test_another_number_of_ranks_is_refused_by_name(train, start, tmp_path):
    """Random numbers and places in the data are those of the ranks that the run began with."""
    folder = train("run", task="PlainTask")
    for ranks in (1, 3):
        daemon = start(run_dir=folder, epochs=4, trainer_command=None, shells=0, sets=[f"parallel.ranks={ranks}"])
        assert daemon.wait() == 78, daemon.stderr
        assert "parallel.ranks" in daemon.stderr
