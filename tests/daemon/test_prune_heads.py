"""Attention heads of transformers' models, masked and removed while daemons and trainers die and the run goes back.

A walk draws what happens: a kill at once or at a named point, another end, a checkpoint, a stop and a start. It also
goes back by either tier, to either side of masks and compactions. The comparison is that of `test_prune_kills`.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests import order_events
from tests.daemon.harness import CallFailed, of_type
from tests.daemon.test_prune_kills import CYCLE, Killed, assert_as_one_that_was_not
from tests.daemon.test_pruning import CONFIG, until
from tests.recorded import of
from tests.waiting import wait_for, within
from tolariad.core import messages as m

pytest.importorskip("torch_pruning", reason="torch-pruning (extra `pruning`) is not installed")
pytest.importorskip("transformers", reason="transformers (extra `transformers`) is not installed")

# Only heads can be masked, two of eight in a cycle. Enough checkpoints stay to go back to.
HEADED = (
    CONFIG.replace("task: digits", f"task: {Path(__file__).parent / 'headed_task.py'}:Repeats")
    .replace("batch_size: 256", "batch_size: 16\n  ema: {decay: 0.9}\n  snapshots: {every: 7, watch_steps: 3}")
    .replace("keep_last: 3", "keep_last: 12")
    .replace("min_channels: 4", "min_channels: 1000\n    min_heads: 1\n    min_layer_share: 0.1")
    .replace("caps: [{epoch: 0, share: 0.2}]", "caps: [{epoch: 0, share: 0.4}]")
    .replace("min_samples: 100", "min_samples: 48")
)
KINDS = ("gpt2", "bert", "llama")
POINTS = (
    "gate",
    "step",
    "capture",
    "checkpoint_file",
    "publish",
    "analysis",
    "prune_order",
    "prune_cut",
    "prune_acted",
)
BACK = ("rollback_prepare", "rollback_commit", "rollback_confirm")
ACTS = ("daemon", "trainer", "point", "point_of_rollback", "full", "fast", "checkpoint", "extend", "stop")


class Walk(Killed):
    """A run to which something is done. `done`: what it was. `sets`: so many sets of masks are removed together."""

    def __init__(self, start, folder, draw, *, kind, sets=2):
        config = HEADED.replace("{model: cnn}", f"{{model: {kind}}}")
        super().__init__(start, folder, config.replace("compact_every: 1", f"compact_every: {sets}"))
        self._draw, self.done = draw, []

    def begin(self, point=""):
        # Slow steps: thousands of them would have to be repeated otherwise.
        armed = f"{point}@{self.folder / 'token'}" if point else ""
        environ = {"TOLARIA_FAILPOINT": armed, "HEADED_PAUSE_S": "0.05"}
        asked = {"config": str(self._config), "trainer_command": None, "sets": None, "environ": environ}
        self.daemon = self._start(run_dir=self.run_dir, shells=12, **asked)
        self.daemon.until(lambda status: status["step"] > 0, "a step")

    def go(self):
        """Do one thing, and let a step be made after it, by a daemon that may have to be started."""
        self.done.append(self._draw.choice(ACTS))
        try:
            getattr(self, f"_{self.done[-1]}")()
        except CallFailed:
            self.done[-1] += " (refused)"
        time.sleep(self._draw.random())
        self.on()

    def on(self):
        if self.daemon.process.poll() is not None:
            self.begin()
        step = self.daemon.status()["step"]
        self.daemon.until(lambda status: status["step"] != step, "a step")

    def until_pruned(self, what):
        """Wait until units are masked, or removed, in the run as it stands."""
        wait_for(lambda: self.daemon.call("PruneStatus")["pruning"][what] > 0, what, 120.0)

    def _daemon(self):
        self._kill("daemon")
        self.kills += 1

    def _trainer(self):
        self._kill("trainer")
        self.kills += 1

    def _point(self, points=POINTS):
        point = self._draw.choice(points)
        self.done[-1] += f" {point}"
        self.daemon.kill()
        self.begin(f"{point}:1:{self._draw.randrange(1000)}")
        token = self.folder / "token"
        token.touch()
        if points is BACK:
            self._full()
        if within(20.0, lambda: not token.exists()):
            self.kills += 1
        else:
            # The run may have nothing more to mask or to remove.
            token.unlink(missing_ok=True)
            self.done[-1] += " (not reached)"

    def _point_of_rollback(self):
        self._point(BACK)

    def _full(self):
        there = {path.name for path in (self.run_dir / "checkpoints").iterdir()}
        known = [one.id for one in of_type(self.run_dir, m.CheckpointCommitted) if one.id in there][-6:]
        for one in self._draw.sample(known, len(known)):
            try:
                self.daemon.call("Rollback", to=one, tier="full", reason="a walk")
            except CallFailed:
                # Of a branch that was left.
                continue
            break

    def _fast(self):
        promoted = {one.id for one in of_type(self.run_dir, m.SnapshotPromoted)}
        steps = [one.step for one in of_type(self.run_dir, m.SnapshotTaken) if one.id in promoted][-5:]
        if steps:
            self.daemon.call("Rollback", step=self._draw.choice(steps), tier="fast", reason="a walk")

    def _checkpoint(self):
        self.daemon.call("Checkpoint")

    def _extend(self):
        self.daemon.call("Extend", epochs=100_000 + len(self.done))

    def _stop(self):
        self.daemon.call("Stop", mode=self._draw.choice(["graceful", "now"]))
        assert self.daemon.wait() == 0, self.daemon.stderr


@pytest.mark.torture
@pytest.mark.parametrize("number", range(9))
def test_a_walk_of_kills_and_rollbacks_ends_as_a_run_that_nothing_disturbed(start, tmp_path, number, seed):
    """It ends after a compaction, after the way back over it to masks, or after another compaction."""
    kind, draw = KINDS[number % len(KINDS)], random.Random(f"{seed} {number}")
    run = Walk(start, tmp_path, draw, kind=kind)
    run.begin()
    until(run.run_dir, run.daemon, order_events.acted(m.MaskUnits), "masks")
    for _ in range(8):
        run.go()
    run.until_pruned("removed")
    if draw.random() < 0.7:
        *_, compacted = of_type(run.run_dir, order_events.acted(m.CompactModel))
        run.daemon.call("Rollback", step=compacted.applied_before_step - 1, reason="to the other side")
        run.on()
        run.until_pruned(draw.choice(["masked", "removed"]))
    run.stop()
    found = assert_as_one_that_was_not(run)
    acted, back = (len(of_type(run.run_dir, one)) for one in (order_events.acted(m.CompactModel), m.RolledBack))
    print(f"seed {seed}, run {number}, {kind}: {run.kills} kills, {back} rollbacks, {acted} compactions; {run.done}")

    assert of(found, order_events.acted(m.MaskUnits))


STAGES = (
    *("analysis at 1", "analysis at 4", "ordered", "masked, not reported", "in the window, trainer"),
    *("checkpoint with masks", "compaction, optimizer wide", "compacted, not reported"),
    *("checkpoint of the small model", "restore of the small model"),
)


@pytest.mark.torture
@pytest.mark.parametrize("name", STAGES)
def test_a_cycle_of_heads_may_be_killed_anywhere(start, tmp_path, name, seed):
    """At the stages of a cycle that are different for heads; then they are removed, and the run stops."""
    draw = random.Random(f"{seed} {name}")
    run = Walk(start, tmp_path, draw, kind=draw.choice(KINDS), sets=1)
    run.kill_at(CYCLE[name], draw)
    run.begin()
    run.until_pruned("removed")
    run.stop()
    found = assert_as_one_that_was_not(run)

    assert run.kills == 1
    assert of(found, order_events.acted(m.CompactModel))
