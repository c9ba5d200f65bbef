"""Ranks, recorder and launcher of a group are killed at drawn moments, each kill counted and printed by its kind.

`pytest -m torture -s tests/torture/test_ranks_are_killed.py` prints a line for each kill, and at its end how many there
were of each kind. TOLARIA_SEED draws others.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.daemon.conftest import start
from tests.daemon.harness import is_gone
from tests.recorded import events_of, of, pieces
from tests.torture import shown_ranks
from tests.torture.shown_ranks import BATCH, ROWS, shown
from tests.waiting import PATIENCE_S, wait_for
from tolariad.core import messages as m

__all__ = ["start"]

ROOT = Path(__file__).resolve().parents[2]
# Of each of the eight forms.
KILLS = 13
LEAVES = 6
# The run is longer than the steps after which it is killed, all together.
STEPS = KILLS * 16
SETTINGS = {
    "rng_seed": 4,
    "torch_threads": 1,
    "journal": {"segment_bytes": 1_000_000},
    "checkpoint": {"interval_steps": 5, "min_gap_s": 0},
    "learning_rate": {"base_lr": 0.01, "warmup_epochs": 0},
    "budgets": {"act": False},
}


@pytest.fixture(scope="module")
def counted() -> Iterator[Counter[str]]:
    """How many kills there were, by kind; printed at the end."""
    kinds: Counter[str] = Counter()
    yield kinds
    print("\nkills by kind:")
    for kind, number in sorted(kinds.items()):
        print(f"{number:6}  {kind}")
    print(f"{kinds.total():6}  in all, seed {os.environ['TOLARIA_SEED']}")


class Daemons:
    """`tolariad run`, started again when its daemon was killed."""

    launcher = "recorder"

    def __init__(self, start, folder, ranks, exact):
        self.folder, self.shown = folder / "run", folder / "shown"
        self.shown.mkdir()
        sums = ["parallel.exact=true", f"parallel.leaves={LEAVES}"] if exact else []
        self._start, self._ranks, self._epochs = start, ranks, epochs(ranks, exact)
        self._sets = [
            *flat(SETTINGS),
            *("trainer.spare=off", f"batch_size={BATCH}", f"parallel.ranks={ranks}", *sums),
        ]
        self.begin()

    def begin(self):
        """Start a daemon."""
        is_new = not (self.folder / "config.resolved.json").exists()
        asked = {"task": "tests.torture.shown_ranks:Task", "epochs": self._epochs} if is_new else {}
        self.process = self._start(
            run_dir=self.folder,
            trainer_command=None,
            shells=2 * self._ranks,
            sets=self._sets if is_new else [f"parallel.ranks={self._ranks}"],
            environ={"RANKS_SHOWN": str(self.shown)},
            **asked,
        ).process

    def processes(self):
        """Return what runs, by name."""
        return shown(self.shown) | {"recorder": shown_ranks.Shown(self.process.pid, 0)}

    def wait(self):
        """Return how it has ended, and what it wrote."""
        _, errors = self.process.communicate(PATIENCE_S)
        return self.process.returncode, errors


class Torchruns:
    """`torchrun --max-restarts`, started again when it was killed itself."""

    launcher = "torchrun"

    def __init__(self, start, folder, ranks, exact):
        self.folder, self.shown = folder / "run", folder / "shown"
        self.shown.mkdir()
        self._ranks, self._epochs, self._output = ranks, epochs(ranks, exact), folder / "output"
        self._environ = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "RANKS_SHOWN": str(self.shown),
            "RANKS_EXACT": str(LEAVES if exact else 0),
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            "XDG_RUNTIME_DIR": str(folder),
        }
        self.begin()

    def begin(self):
        """Start torchrun."""
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(self._ranks)),
            *("--max-restarts", str(KILLS), "--monitor-interval", "0.1", shown_ranks.__file__),
            *(str(self.folder), str(self._epochs), json.dumps(SETTINGS)),
        ]
        with self._output.open("ab") as output:
            self.process = subprocess.Popen(command, env=self._environ, stdout=output, stderr=output)

    def processes(self):
        """Return what runs, by name."""
        return shown(self.shown) | {"torchrun": shown_ranks.Shown(self.process.pid, 0)}

    def wait(self):
        """Return how it has ended, and what it wrote."""
        return self.process.wait(PATIENCE_S), self._output.read_text(errors="replace")[-4000:]


def flat(settings, before=""):
    """Return settings as `key=value`."""
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}={json.dumps(value)}"


def epochs(ranks, exact):
    """Return how many epochs have the steps."""
    return -(-STEPS // -(-ROWS // (BATCH * (LEAVES if exact else ranks))))


def kinds_of(host, ranks, rng):
    """Yield kinds of kills in a drawn order, each as often as the others, with the names of the victims."""
    names = [f"rank {rank}" for rank in range(ranks)]
    while True:
        kinds = {
            "rank 0": names[:1],
            "another rank": [rng.choice(names[1:])],
            "the last rank": names[-1:],
            "several ranks": rng.sample(names, ranks - 1 if ranks > 2 else ranks),
            "all ranks": names,
            "the recorder": ["recorder"],
            f"the recorder and {'a rank' if host.launcher == 'recorder' else 'rank 0'}": [
                "recorder",
                rng.choice(names) if host.launcher == "recorder" else names[0],
            ],
            f"all ranks and {host.launcher}": [*names, host.launcher],
        }
        drawn = list(kinds.items())
        rng.shuffle(drawn)
        yield from drawn


class Killer:
    """Kills processes of a group KILLS times. It comes back by itself, or is started again if its launcher was killed.

    `killed`: how often, by kind.
    """

    def __init__(self, host, ranks, rng, what):
        self.host, self.rng, self.what = host, rng, what
        self.names = [f"rank {rank}" for rank in range(ranks)]
        self.kinds = kinds_of(host, ranks, rng)
        self.killed: Counter[str] = Counter()
        # The processes of the group that was killed last, and the newest step of any.
        self.before, self.farthest = {}, 0

    def strike(self):
        """Kill once, at a drawn moment."""
        kind, victims = next(self.kinds)
        number = self.killed.total()
        # In a third of the cases while steps are made again, or before the first one.
        due = 0 if self.rng.random() < 1 / 3 and number else self.farthest + self.rng.randrange(1, 12)
        self.wait_until(lambda: self.is_there(victims), f"all processes after kill {number}")
        self.wait_until(lambda: self.step() >= due, f"step {due} after kill {number}")
        time.sleep(self.rng.random() * 0.03)
        now, gone = self.host.processes(), []
        for name in victims:
            with suppress(ProcessLookupError):
                os.kill(now[name].pid, signal.SIGKILL)
                gone.append(f"{name} ({now[name].pid}) at step {now[name].step}")
        assert gone, f"{self.what}: none of {victims} was there to be killed"
        print(f"killed: {kind}; {self.what}; {', '.join(gone)}", flush=True)
        self.killed[f"{kind}, {self.what}"] += 1
        self.before = {name: one.pid for name, one in now.items()}
        self.farthest = max(self.farthest, *(now[name].step for name in self.names))
        if self.host.launcher in victims:
            self.host.wait()
            self.host.begin()

    def is_there(self, victims):
        """Return whether all ranks and the victims are processes that run, and were not among those killed last."""
        now = self.host.processes()
        return all(
            name in now and now[name].pid != self.before.get(name) and not is_gone(now[name].pid)
            for name in {*self.names, *(one for one in victims if one != self.host.launcher)}
        )

    def step(self):
        """Return the step that all ranks have made."""
        now = self.host.processes()
        return min(now[name].step for name in self.names)

    def wait_until(self, holds, what):
        """Wait, and fail if the group ends meanwhile."""
        wait_for(lambda: self.host.process.poll() is not None or holds(), f"{self.what}: {what}")
        assert self.host.process.poll() is None, f"{self.what} has ended before {what}: {self.host.wait()}"


@pytest.fixture
def as_forms(start, tmp_path):
    """Makes a host: `tolariad run` or torchrun."""
    made = []

    def make(kind, name, ranks, exact):
        folder = tmp_path / name
        folder.mkdir()
        made.append(kind(start, folder, ranks, exact))
        return made[-1]

    yield make
    for one in made:
        if one.process.poll() is None:
            # torchrun's ranks do not end with it.
            for each in one.processes().values():
                with suppress(ProcessLookupError):
                    os.kill(each.pid, signal.SIGKILL)
            one.process.kill()


@pytest.mark.torture
@pytest.mark.parametrize("exact", [False, True], ids=["ddp", "exact"])
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("kind", [Daemons, Torchruns], ids=["tolariad", "torchrun"])
def test_a_group_that_is_killed_at_random_ends_with_the_bits_of_the_undisturbed_run(
    as_forms, counted, kind, ranks, exact
):
    """Any rank, several, the recorder, all: in training, while steps are made again, and before the first step."""
    what = f"{ranks} ranks, {'exact sums' if exact else 'DDP'}, {'torchrun' if kind is Torchruns else 'tolariad run'}"
    calm = as_forms(kind, "calm", ranks, exact)
    assert (ended := calm.wait())[0] == 0, ended
    rng = random.Random(f"{os.environ['TOLARIA_SEED']} {what}")
    hurt = as_forms(kind, "hurt", ranks, exact)
    killer = Killer(hurt, ranks, rng, what)
    for _ in range(KILLS):
        killer.strike()
    counted += killer.killed
    assert (ended := hurt.wait())[0] == 0, ended
    events = events_of(hurt.folder)

    assert pieces(hurt.folder) == pieces(calm.folder)
    assert not of(events, m.RerunDiverged, m.CheckpointRejected, m.CheckpointUnfit)
    assert steps_of(events) == steps_of(events_of(calm.folder))


def steps_of(events):
    """Return the number, place and numbers of each step."""
    return [(one.step, one.epoch, one.batch, one.loss, one.grad_norm) for one in of(events, m.StepCompleted)]
