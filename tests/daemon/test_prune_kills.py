"""A real daemon, trainer and analysis, killed at every stage of a cycle, of a compaction and of a rollback from masks.

Each run is compared with an unkilled trainer whose masks and compactions act at the same steps. Weights, moments,
averages and random states are the same, bit for bit.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import order_events
from tests.daemon.harness import of_type
from tests.daemon.test_bad_masks import RUINOUS
from tests.daemon.test_pruning import CONFIG, until
from tests.recorded import of, sound, standing
from tests.trainer.conftest import FakeDaemon
from tests.waiting import wait_for
from tolariad.core import messages as m
from tolariad.core import queries as q

# Masks of two of five channels, and no rise of the gradient norm is allowed.
TOUCHY = RUINOUS.replace("gradient_norm: 5,", "gradient_norm: 1,")
# With seeds that the default policy grows: a germination takes a few epochs, each of six steps.
GROWN = (
    CONFIG.replace("task: digits", f"task: {Path(__file__).parent / 'grown_task.py'}:Grown")
    .replace("  task_options: {model: cnn}\n", "")
    .replace("  prune:\n", "  seeds: {blend_steps: 10, embargo_epochs: 1, gates: {min_steps: 5}}\n  prune:\n")
    .replace("caps: [{epoch: 0, share: 0.2}]", "caps: [{epoch: 0, share: 0.5}]")
    .replace("budgets: [{epoch: 0, share: 0.1}]", "budgets: [{epoch: 0, share: 0.05}]")
)


class Stage(NamedTuple):
    """After the next event of this type and at most `delay_s`, a process is killed.

    `victim`: the daemon, its trainer, or the process that passes a failpoint so many times.
    """

    event: type
    victim: str
    delay_s: float = 0.0


# An analysis takes seconds; masks act within a step of their order. The trial of a compaction follows prune_order.
CYCLE = {
    "cycle begun, daemon": Stage(m.PruneCycleBegun, "daemon"),
    "cycle begun, trainer": Stage(m.PruneCycleBegun, "trainer"),
    "analysis runs, daemon": Stage(m.PruneCycleBegun, "daemon", 3.0),
    "analysis runs, trainer": Stage(m.PruneCycleBegun, "trainer", 3.0),
    **{f"analysis at {n}": Stage(m.PruneCycleBegun, f"analysis:{n}", 0.001) for n in (1, 2, 3, 4)},
    "ordered": Stage(m.PruneCycleBegun, "prune_order:1", 0.001),
    "masked, not reported": Stage(m.PruneCycleBegun, "prune_acted:1", 0.001),
    "masked, daemon": Stage(order_events.acted(m.MaskUnits), "daemon", 0.02),
    "in the window, daemon": Stage(order_events.acted(m.MaskUnits), "daemon", 0.3),
    "in the window, trainer": Stage(order_events.acted(m.MaskUnits), "trainer", 0.3),
    "checkpoint with masks": Stage(order_events.acted(m.MaskUnits), "publish:1", 0.001),
    "compaction ordered": Stage(order_events.given(m.CompactModel), "daemon"),
    "compaction tried": Stage(order_events.acted(m.MaskUnits), "prune_order:1", 0.02),
    "compaction, optimizer wide": Stage(order_events.acted(m.MaskUnits), "prune_cut:1", 0.001),
    "compacted, not reported": Stage(order_events.acted(m.MaskUnits), "prune_acted:1", 0.001),
    "compacted, daemon": Stage(order_events.acted(m.CompactModel), "daemon", 0.3),
    "compacted, trainer": Stage(order_events.acted(m.CompactModel), "trainer", 0.3),
    "checkpoint of the small model": Stage(order_events.acted(m.CompactModel), "checkpoint_file:2", 0.001),
    "restore of the small model": Stage(order_events.acted(m.CompactModel), "restore:1", 0.001),
}
WITH_SEEDS = {
    "seed planted": Stage(m.PruneCycleBegun, "seed_planted:1", 0.001),
    "seed moved, not reported": Stage(m.PruneCycleBegun, "seed_moved:1", 0.001),
    "seed moved, daemon": Stage(order_events.acted(m.MoveSeed), "daemon", 0.02),
    **{name: CYCLE[name] for name in ("analysis runs, trainer", "masked, not reported", "checkpoint with masks")},
}
ROLLBACK = {
    "window tripped, daemon": Stage(m.MaskSetRejected, "daemon", 0.02),
    "window tripped, trainer": Stage(m.MaskSetRejected, "trainer", 0.02),
    **{
        point: Stage(order_events.acted(m.MaskUnits), f"{point}:1", 0.001)
        for point in ("rollback_prepare", "rollback_commit")
    },
    "rollback_confirm": Stage(order_events.acted(m.MaskUnits), "rollback_confirm:1", 0.001),
    "rolled back, daemon": Stage(m.RolledBack, "daemon", 0.1),
}


class Killed:
    """A run that is killed at stages, each at its next event."""

    def __init__(self, start, folder: Path, config: str) -> None:
        self.folder, self.run_dir, self._start = folder, folder / "run", start
        self._config = folder / "config.yaml"
        self._config.write_text(config)
        self.kills = 0
        self.daemon = None

    def begin(self, point: str = "") -> None:
        """Start a daemon. `point`: the failpoint that kills, as soon as the token exists."""
        armed = f"{point}@{self.folder / 'token'}" if point else ""
        environ = {"TOLARIA_FAILPOINT": armed}
        asked = {"config": str(self._config), "trainer_command": None, "sets": None, "environ": environ}
        self.daemon = self._start(as_user=True, run_dir=self.run_dir, **asked)
        self.daemon.until(lambda status: status["step"] > 0, "a step")

    def kill_at(self, stage: Stage, draw: random.Random) -> None:
        """Start a daemon, wait for the event, and kill."""
        is_point = ":" in stage.victim
        delay_s = draw.random() * stage.delay_s
        self.begin(f"{stage.victim}:{int(delay_s * 1e6)}" if is_point else "")
        token = self.folder / "token"
        if is_point and stage.victim.startswith("restore"):
            # A restore needs a trainer that begins again.
            until(self.run_dir, self.daemon, stage.event, "the stage", len(of_type(self.run_dir, stage.event)) + 1)
            token.touch()
            self._kill("trainer")
        else:
            before = len(of_type(self.run_dir, stage.event))
            until(self.run_dir, self.daemon, stage.event, "the stage", before + 1)
            if is_point:
                token.touch()
        if is_point:
            wait_for(lambda: not token.exists(), stage, 120.0)
        else:
            time.sleep(delay_s)
            self._kill(stage.victim)
        self.kills += 1
        if self.daemon.process.poll() is None and draw.random() < 0.5:
            time.sleep(draw.random())
            self._kill("daemon")
        if self.daemon.process.poll() is None:
            # The daemon starts a new trainer by itself, or goes on without the analysis.
            step = self.daemon.status()["step"]
            self.daemon.until(lambda status: status["step"] > step, "a step after the kill")
            self._kill("daemon")

    def _kill(self, victim: str) -> None:
        if victim == "daemon":
            self.daemon.kill()
            return
        pid = of_type(self.run_dir, m.TrainerStarted)[-1].pid
        os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        """Stop the run with a checkpoint, after a step of its trainer."""
        step = self.daemon.status()["step"]
        self.daemon.until(lambda status: status["step"] > step, "another step")
        self.daemon.call("Stop")
        assert self.daemon.wait() == 0, self.daemon.stderr


def assert_as_one_that_was_not(run: Killed) -> list:
    """Compare the last checkpoint with that of an undisturbed trainer. Return the orders that acted."""
    found = sound(run.run_dir)
    *_, stopped = of(found, m.RunStopped)
    assert stopped.why == ""
    orders = standing(
        found, order_events.acted(m.MaskUnits), order_events.acted(m.ReleaseMasks), order_events.acted(m.CompactModel)
    )
    if of(found, order_events.acted(m.MoveSeed)):
        script = q.script_from_journal(found, None).orders
    else:
        script = tuple(m.ScriptOrder(one.applied_before_step, 0, at, one.to_repeat) for at, one in enumerate(orders, 1))
    calm = FakeDaemon(run.folder / "calm", 100_000, checkpoint_every_epoch=False, script_orders=script)
    calm.run_dir.mkdir()
    calm.last_step_of_all = stopped.step
    calm.train_here((run.run_dir / "config.resolved.json").read_bytes())

    folder = run.run_dir / "checkpoints" / stopped.checkpoint
    ours = {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix == ".safetensors"}
    theirs = {name: content for name, content in calm.files("end").items() if name.endswith(".safetensors")}
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if ours[name] != theirs[name]] == []
    return orders


@pytest.mark.torture
@pytest.mark.parametrize("name", CYCLE)
def test_a_cycle_and_a_compaction_may_be_killed_anywhere(start, tmp_path, name, seed):
    """At this stage, and once more at a drawn one. Then masks and a compaction act, and the run stops."""
    draw = random.Random(f"{seed} {name}")
    second = draw.choice(list(CYCLE))
    print(f"seed {seed}: {name}, {second}")
    run = Killed(start, tmp_path, CONFIG)
    run.kill_at(CYCLE[name], draw)
    run.kill_at(CYCLE[second], draw)
    run.begin()
    until(run.run_dir, run.daemon, order_events.acted(m.CompactModel), "a compaction")
    run.stop()
    orders = assert_as_one_that_was_not(run)
    assert of(orders, order_events.acted(m.CompactModel))


@pytest.mark.torture
@pytest.mark.parametrize("name", WITH_SEEDS)
def test_seeds_and_masks_in_one_run_may_be_killed_anywhere(start, tmp_path, name, seed):
    """Seeds grow by the default policy, also while a checkpoint is analysed. The victim may be the analysis."""
    print(f"seed {seed}: {name}")
    run = Killed(start, tmp_path, GROWN)
    run.kill_at(WITH_SEEDS[name], random.Random(f"{seed} {name}"))
    run.begin()
    until(run.run_dir, run.daemon, order_events.acted(m.MaskUnits), "masks")
    until(run.run_dir, run.daemon, order_events.acted(m.MoveSeed), "a grown seed", 4)
    run.stop()
    assert assert_as_one_that_was_not(run)


@pytest.mark.torture
@pytest.mark.parametrize("name", ROLLBACK)
def test_a_rollback_from_bad_masks_may_be_killed_anywhere(start, tmp_path, name, seed):
    """The run goes back nevertheless, and ends without the masks."""
    draw = random.Random(f"{seed} {name}")
    print(f"seed {seed}: {name}")
    run = Killed(start, tmp_path, TOUCHY)
    run.kill_at(ROLLBACK[name], draw)
    run.begin()
    (back, *_) = until(run.run_dir, run.daemon, m.RolledBack, "the rollback")
    run.daemon.call("PruneDisable")
    run.daemon.until(lambda status: status["step"] > back.step, "a step after it")
    run.stop()
    orders = assert_as_one_that_was_not(run)
    rejected = {one.cycle for one in of_type(run.run_dir, m.MaskSetRejected)}
    assert rejected.isdisjoint(one.order.cycle for one in of(orders, order_events.acted(m.MaskUnits)))
