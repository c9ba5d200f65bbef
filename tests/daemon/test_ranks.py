"""`tolariad run` with several ranks: the daemon starts them, names the one that fails, and starts all again."""

from __future__ import annotations

import pytest

from tests.daemon.harness import of_type
from tests.recorded import pieces
from tolariad.core import messages as m
from tolariad.core.calc.detection.comparison import Judgement

SETS = ("journal.segment_bytes=1000000", "rng_seed=4", "batch_size=4", "torch_threads=1", "trainer.spare=off")
STEPS = 2 * 7


@pytest.fixture
def train(start, tmp_path):
    """Trains a task to its end, and returns the run's folder."""

    def train_one(name, *sets, ranks=2, task="GroupTask", deeds=(), epochs=2, starts=0, **more):
        folder, once = tmp_path / name, tmp_path / f"{name} once"
        once.mkdir()
        daemon = start(
            run_dir=folder,
            task=task if ":" in task else f"tests.daemon.group_task:{task}",
            epochs=epochs,
            trainer_command=None,
            shells=ranks * (len(deeds) + 1 + starts),
            sets=[*SETS, f"parallel.ranks={ranks}", *sets],
            environ={"GROUP_DEEDS": ",".join(deeds), "GROUP_ONCE": str(once)},
            **more,
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


MODULE = "lightning:tests.daemon.group_module:"


def test_a_lightning_module_is_trained_by_ranks_as_by_one_process_that_accumulates(train):
    """Its losses, norms and rates; a schedule by step is one of updates."""
    one = of_type(train("one", "accumulate=2", ranks=1, task=f"{MODULE}Module"), m.StepCompleted)
    two = of_type(train("two", task=f"{MODULE}Module"), m.StepCompleted)

    assert len(one) == len(two) == STEPS
    assert [made.lr for made in two] == [made.lr for made in one]
    assert [made.loss for made in two] == pytest.approx([made.loss for made in one], rel=1e-5)


def test_a_lightning_module_on_ranks_comes_back_after_a_kill_with_the_same_bits(train):
    """What each rank's module keeps is restored on that rank."""
    plain = train("plain", task=f"{MODULE}Killed")
    hurt = train("hurt", task=f"{MODULE}Killed", deeds=("1 kill 3",))

    assert [one.rank for one in of_type(hurt, m.TrainerDied)] == [1]
    assert pieces(hurt) == pieces(plain)


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


OFTEN = [(2, 0, "sleep"), (2, 1, "sleep"), (2, 0, "hang"), (2, 1, "hang"), (3, 2, "sleep"), (3, 0, "hang")]


@pytest.mark.parametrize(
    ("ranks", "rank", "deed"), [*(pytest.param(*one, marks=pytest.mark.torture) for one in OFTEN), (3, 2, "hang")]
)
def test_a_rank_that_is_silent_is_named_with_its_stacks(train, ranks, rank, deed):
    """Rank 0 waits for it, and is silent too: also if it sleeps within its own backward pass, as all others wait there.

    The event, the death and the stacks are those of the one that sleeps.
    """
    # What the daemon has not seen before has the longer limit: that depends on when it looks.
    limits = {"hang_s": 3.0, "unknown_s": 40.0}
    plain = train("plain", epochs=1, ranks=ranks)
    hurt = train("hurt", epochs=1, ranks=ranks, deeds=(f"{rank} {deed} 2",), starts=1, **limits)
    hung, dead = of_type(hurt, m.TrainerHung), of_type(hurt, m.TrainerDied)

    assert rank in {one.rank for one in hung}
    assert any(one.reason is m.DeathReason.HANG and "in sleep_here" in one.stacks for one in dead if one.rank == rank)
    assert pieces(hurt) == pieces(plain)


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.torture)])
def test_values_that_are_not_finite_on_the_last_rank_lead_all_ranks_back(train, ranks):
    """Quarantine counts the batches of all ranks: it is as long as eight steps, or here as a whole epoch."""
    folder = train("run", task="SickTask", epochs=6, ranks=ranks)
    (back,) = of_type(folder, m.RolledBack)
    skips, put = of_type(folder, m.StepSkipped), [one.batches for one in of_type(folder, m.QuarantineAdded)]

    assert {one.reason for one in skips} == {m.SkipReason.NON_FINITE, m.SkipReason.QUARANTINED}
    assert sum(one.last - one.first + 1 for one in put) == -(-13 // ranks) * ranks
    assert back.step <= 20
    assert not of_type(folder, m.TrainerDied)
    assert len(of_type(folder, m.RunCompleted)) == 1


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.torture)])
def test_a_rise_that_stays_is_compared_and_gone_back_for(train, ranks):
    """All measure both states together, also where the validation waits for all ranks. All go back together."""
    rates = ("learning_rate.base_lr=0.002", "learning_rate.warmup_epochs=0")
    folder = train("run", *rates, task="StruckTask", epochs=12 * ranks, ranks=ranks)
    compared, backs = of_type(folder, m.StatesCompared)[0], of_type(folder, m.RolledBack)

    assert compared.newest is not None
    assert compared.held is not None
    assert compared.judgement in (Judgement.WEIGHTS, Judgement.UNCLEAR)
    assert backs[0].step < 400
    assert not of_type(folder, m.TrainerDied)
    assert len(of_type(folder, m.RunCompleted)) == 1


def test_another_number_of_ranks_is_refused_by_name(train, start, tmp_path):
    """Random numbers and places in the data are those of the ranks that the run began with."""
    folder = train("run", task="PlainTask")
    for ranks in (1, 3):
        daemon = start(run_dir=folder, epochs=4, trainer_command=None, shells=0, sets=[f"parallel.ranks={ranks}"])
        assert daemon.wait() == 78, daemon.stderr
        assert "parallel.ranks" in daemon.stderr
