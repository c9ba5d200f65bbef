"""The stopwatch, with a fake clock."""

from __future__ import annotations

import mmap
import os
import random

import pytest
import torch

from tolariad.core.calc.health.histogram import quantile
from tolariad.core.calc.settings.model import Performance, Settings
from tolariad.trainer.health.memory import memory_shares
from tolariad.trainer.health.stopwatch import FIRST_STEPS, Staged, Stopwatch, held_bytes
from tolariad.trainer.optim.owners import Owner

CPU = torch.device("cpu")


class Run:
    """A stopwatch, its clock, and a process of so many bytes."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.now = 100.0
        self.waited = 7.0
        self.bytes = 1000
        self.ours = Staged()
        self.stopwatch = Stopwatch(
            settings or Settings(),
            CPU,
            lambda: self.ours,
            clock=lambda: self.now,
            waited=lambda: self.waited,
            held=lambda _: self.bytes,
        )
        self.stopwatch.begin()

    def let(self, seconds: float) -> None:
        self.now += seconds

    def wait(self, seconds: float) -> None:
        """Wait for a processor."""
        self.let(seconds)
        self.waited += seconds

    def steps(self, count: int, task_s: float, other_s: float) -> None:
        """Make steps with the given times inside and outside the task."""
        for _ in range(count):
            self.stopwatch.of_task(self.let, task_s)
            self.let(other_s)
            self.stopwatch.stepped()

    def taken(self) -> dict[str, tuple[int, int, float]]:
        return {one.budget: (one.count, one.breaches, one.worst) for one in self.stopwatch.taken()}


def test_throughput_lost_is_what_the_steps_take_beside_the_tasks_own_work():
    """10 of 12.5 ms are the task's: a loss of 20 %, over the limit. 5 % are not."""
    for other_s, breaches, percent in ((0.0025, 1, 20.0), (0.0005, 0, 100 / 21)):
        run = Run()
        run.steps(200, 0.010, other_s)
        run.stopwatch.trained()
        assert run.taken()["training_degradation"] == (1, breaches, pytest.approx(percent))


def test_a_machine_that_grows_slow_is_no_loss(seed):
    """Load that slows the task and tolariad alike changes no share, whenever it comes and goes."""
    run, draw = Run(), random.Random(seed)
    for _ in range(400):
        slower = draw.choice((1.0, 1.0, 3.0, 20.0))
        run.steps(1, slower * 0.019, slower * 0.001)
    run.stopwatch.trained()
    assert run.taken()["training_degradation"] == (1, 0, pytest.approx(5.0))


@pytest.mark.parametrize("period", [2, 3, 7, 10, 23, 24, 64, 100])
def test_the_timed_steps_are_like_the_others(period):
    """Work that comes once in so many steps has its share of the timed ones. 1 ms of 10.1 comes each period."""
    run = Run()
    run.steps(60, 0.010, 0.0)
    run.stopwatch.trained()
    run.taken()
    for step in range(20_000):
        run.steps(1, 0.010, 0.010 if step % period == 0 else 0.0)
    run.stopwatch.trained()
    percent = 100.0 / (period + 1)
    assert run.taken()["training_degradation"][2] == pytest.approx(percent, rel=0.1)


def test_epochs_that_are_short_are_measured_together():
    """One measurement needs fifty timed ones: the first fifty, then more, of which one in eight is timed."""
    run = Run()
    found = []
    for _ in range(24):
        run.stopwatch.begin()
        run.steps(20, 0.010, 0.0025)
        run.stopwatch.trained()
        found.append(run.taken().get("training_degradation"))

    assert [number for number, one in enumerate(found, 1) if one == (1, 1, pytest.approx(20.0))] == [3, 23]
    assert set(found) - {None} == {found[2], found[22]}


def test_whole_steps_beside_a_checkpoint_are_noted_exactly_and_once():
    """Not the one with the copy, nor what lies between epochs or in a pause. None is kept outside a checkpoint."""
    run = Run()
    run.steps(60, 0.010, 0.002)
    usual = run.stopwatch.usual_step_s
    run.stopwatch.checkpoint_begun()
    run.let(0.5)
    run.steps(3, 0.010, 0.006)
    with run.stopwatch.standing():
        run.let(9.0)
    run.steps(1, 0.010, 0.008)
    run.stopwatch.checkpoint_begun()
    run.let(0.25)
    run.stopwatch.begin()
    run.steps(1, 0.010, 0.007)
    noted = run.stopwatch.taken_beside()
    run.stopwatch.checkpoint_done()
    run.stopwatch.begin()
    run.steps(5, 0.010, 0.0)

    assert usual == pytest.approx(0.012)
    assert noted == [pytest.approx(one) for one in (0.016, 0.016, 0.018, 0.017)]
    assert run.stopwatch.taken_beside() == []


def test_steps_beside_a_checkpoint_do_not_count():
    """They are slower while it is written, and one waits for the copy; a checkpoint has budgets of its own."""
    run = Run()
    for _ in range(16):
        run.stopwatch.begin()
        run.stopwatch.checkpoint_begun()
        run.let(0.5)
        run.steps(9, 0.010, 0.030)
        run.stopwatch.begin()
        run.steps(1, 0.010, 0.030)
        run.stopwatch.checkpoint_begun()
        run.stopwatch.checkpoint_done()
        run.steps(1, 0.010, 0.030)
        run.steps(13, 0.010, 0.0)
        run.stopwatch.trained()

    assert run.taken()["training_degradation"] == (1, 0, pytest.approx(0.0, abs=1e-6))


@pytest.mark.parametrize(
    ("before", "then", "now", "percent"),
    [
        # All of it is in the process, then part of it in the arena too; nothing else has grown.
        (Staged(100, 100), Staged(100, 100), 1000, 100 / 9),
        (Staged(), Staged(100, 100), 1100, 10.0),
        (Staged(100, 100), Staged(460, 100), 1000, 460 / 9),
        # The copy of a checkpoint is given back while memory is short, and taken again for each.
        (Staged(100, 100), Staged(100, 0), 900, 100 / 9),
        # The process has grown by 45 bytes, or has shrunk.
        (Staged(100, 100), Staged(100, 100), 1045, 145 / 9),
        (Staged(100, 100), Staged(100, 100), 900, 100 / 9),
        (Staged(), Staged(), 1000, 0.0),
    ],
)
def test_memory_overhead_is_the_staging_memory_and_what_the_process_has_grown_by(before, then, now, percent):
    """Compared with 1 000 bytes after the first steps, without staging memory."""
    run = Run()
    run.ours = before
    run.steps(FIRST_STEPS, 0.010, 0.5)
    run.ours, run.bytes = then, now
    run.stopwatch.trained()

    assert run.taken()["memory_overhead"] == (1, int(percent > 8.5), pytest.approx(percent))


def test_the_first_steps_are_no_measurement_yet():
    """Forty-nine are too few, and the process may still grow by what the task needs."""
    run = Run()
    run.steps(49, 0.010, 0.0)
    run.stopwatch.trained()
    assert run.taken() == {}

    run.steps(FIRST_STEPS - 49 - 1, 0.010, 0.0)
    run.stopwatch.trained()
    assert list(run.taken()) == ["training_degradation"]


def test_a_pause_is_no_part_of_training_and_a_checkpoint_is_none_of_a_boundary():
    """Pauses do not count; validation, hooks and copies have their own budgets."""
    run = Run()
    for _ in range(200):
        with run.stopwatch.standing():
            run.let(1000.0)
        run.steps(1, 0.010, 0.0)
    run.stopwatch.trained()
    with run.stopwatch.apart():
        run.let(7.0)
        with run.stopwatch.apart():
            run.let(3.0)
    run.let(0.004)
    run.stopwatch.went_on()
    taken = run.taken()

    assert taken["training_degradation"] == (1, 0, pytest.approx(0.0, abs=1e-6))
    assert taken["epoch_boundary"] == (1, 0, pytest.approx(4.0))


def test_a_slow_boundary_is_a_breach_of_the_configured_limit():
    """25 ms are over 18, and not over 50."""
    for limit, breaches in ((18.0, 1), (50.0, 0)):
        run = Run(Settings(performance=Performance(epoch_boundary_ms=limit)))
        run.stopwatch.trained()
        run.let(0.025)
        run.stopwatch.went_on()
        assert run.taken()["epoch_boundary"] == (1, breaches, pytest.approx(25.0))


def test_the_wait_for_a_processor_is_no_part_of_a_boundary_and_is_told_beside_it():
    """4 ms of work and 40 of waiting; what is waited during a validation is not even a wait of the boundary."""
    run = Run()
    run.stopwatch.trained()
    run.wait(0.030)
    with run.stopwatch.apart():
        run.wait(5.0)
    run.let(0.004)
    run.wait(0.010)
    run.stopwatch.adapted(0.5, 0.001)
    run.stopwatch.adapted(0.2, 0.0002)
    run.stopwatch.went_on()
    boundary, adaptation = run.stopwatch.taken()

    assert (boundary.budget, boundary.breaches, boundary.worst) == ("epoch_boundary", 0, pytest.approx(4.0))
    assert quantile(boundary.waits, 0.5) == pytest.approx(40.0, rel=0.07)
    assert quantile(boundary.clock, 0.5) == pytest.approx(44.0, rel=0.07)
    assert (adaptation.budget, adaptation.breaches, adaptation.worst) == ("adaptation", 0, pytest.approx(1.2))
    assert quantile(adaptation.clock, 0.5) == pytest.approx(700.0, rel=0.07)


def test_threads_that_wait_at_one_time_make_no_boundary_negative():
    """Three of them waited 10 ms each, within the same 20 ms."""
    run = Run()
    run.stopwatch.trained()
    run.let(0.020)
    run.waited += 0.030
    run.stopwatch.went_on()

    assert run.taken() == {"epoch_boundary": (1, 0, 0.0)}


def test_a_boundary_that_was_left_by_a_rollback_is_not_measured():
    """A new measurement begins after it."""
    run = Run()
    run.stopwatch.trained()
    run.let(5.0)
    run.stopwatch.begin()
    run.stopwatch.went_on()

    assert run.taken() == {}


def test_what_was_taken_is_not_told_again():
    """Each histogram covers the time since the last one."""
    run = Run()
    run.stopwatch.trained()
    run.stopwatch.went_on()

    assert list(run.taken()) == ["epoch_boundary"]
    assert run.taken() == {}


def test_batches_come_as_they_are():
    """Each batch once, in order; an exception of the data is raised."""

    def two_and_an_error():
        yield from (None, 7)
        raise LookupError("no more")

    stopwatch = Run().stopwatch
    assert list(stopwatch.fed(iter(range(5)))) == [0, 1, 2, 3, 4]
    feed = stopwatch.fed(two_and_an_error())
    assert [next(feed), next(feed)] == [None, 7]
    with pytest.raises(LookupError, match="no more"):
        next(feed)


@pytest.mark.parametrize("kind", ["private", "shared"])
def test_a_process_knows_what_it_holds(kind):
    """Resident memory grows with the touched pages. A memory file, as that of snapshots, counts as staging memory."""
    before = held_bytes(CPU)
    # Not a tensor: its allocator may give it memory that was touched before.
    flags = mmap.MAP_ANONYMOUS | (mmap.MAP_PRIVATE if kind == "private" else mmap.MAP_SHARED)
    with mmap.mmap(-1, 16 << 20, flags=flags) as touched:
        # In small pieces: the heap may keep the memory of a large one.
        for _ in range(len(touched) // 4096):
            touched.write(b"x" * 4096)
        grown = held_bytes(CPU) - before

        assert (grown >= len(touched) // 2) == (kind == "private")


def test_what_the_parts_of_a_run_hold_is_told_with_each_epoch_and_is_no_part_of_its_boundary():
    """Shares in percent, however long the measurement takes."""
    run = Run()

    def counted():
        run.let(5.0)
        return {"memory_model": 50.0, "memory_gradients": 3.0}

    run.stopwatch = Stopwatch(Settings(), CPU, shares=counted, clock=lambda: run.now, held=lambda _: 1000)
    run.stopwatch.trained()
    run.let(0.001)
    run.stopwatch.went_on()
    found = run.taken()

    assert found["memory_model"] == (1, 1, 50.0)
    assert found["memory_gradients"] == (1, 0, 3.0)
    assert found["epoch_boundary"] == (1, 0, pytest.approx(1.0))


def test_shares_of_memory_are_bytes_of_tensors_over_the_pool():
    """Adam has two moments and a step count for each parameter. Gradients count before they exist; frozen ones have
    none.
    """
    model = torch.nn.Sequential(torch.nn.Linear(100, 100), torch.nn.BatchNorm1d(100))
    model[0].bias.requires_grad_(False)
    optimizer = torch.optim.Adam(one for one in model.parameters() if one.requires_grad)
    model(torch.randn(8, 100)).sum().backward()
    optimizer.step()
    model.zero_grad(set_to_none=True)
    host = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    found = {
        name: round(percent * host / 100)
        for name, percent in memory_shares(model, [Owner("host", optimizer)], CPU, 777).items()
    }

    trained, buffers = 4 * (100 * 100 + 2 * 100), 4 * 2 * 100 + 8
    assert found == {
        "memory_model": trained + 4 * 100 + buffers,
        "memory_optimizer": 2 * trained + 3 * 4,
        "memory_gradients": trained,
        "memory_checkpoints": 777,
    }
