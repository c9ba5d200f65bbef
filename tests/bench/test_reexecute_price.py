"""What a step costs that is made again and compared with the journal, beside the same step when the run made it.

From the recorder's clock: the time of a re-execution of many steps without that of a few, so that the start of the
trainer and the reading of the checkpoint, which come once, are in neither. Of the run, the times between two steps of
one epoch: its validations are not made again, so they do not count. Nothing is asserted but that the steps come out
the same. `TOLARIA_BENCH_STEPS` makes the run longer.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys

import pytest

from journal import Reader
from tests.bench.machine import machine
from tests.recorded import events_of
from tolariad.cli import again
from tolariad.cli.steps_named import NamedStep
from tolariad.core import messages as m
from tolariad.core.messages.vocabulary import decode_event

pytestmark = pytest.mark.bench

STEPS = int(os.environ.get("TOLARIA_BENCH_STEPS", "2300"))
ROUNDS = int(os.environ.get("TOLARIA_BENCH_ROUNDS", "3"))
_EPOCH = 23
_FEW = 10 * _EPOCH
_RUN = "from tolariad.cli.tolariad import main; main()"
_SETS = ("rng_seed=7", "checkpoint.min_gap_s=3600", "checkpoint.interval_s=1000000", "trainer.spare=off")


def trained(place, model):
    """Make the run, and return its journal and the seconds of one of its steps."""
    epochs = max(12, STEPS // _EPOCH)
    place.mkdir()
    sets = [part for one in (*_SETS, f"task_options.model={model}") for part in ("--set", one)]
    command = [sys.executable, "-c", _RUN, "run", "--task", "digits", "--epochs", str(epochs), *sets]
    subprocess.run([*command, "--dir", str(place / "run")], check=True, capture_output=True)
    steps = [one for one in events_of(place / "run") if isinstance(one, m.StepCompleted)]
    times = [b.mono - a.mono for a, b in itertools.pairwise(steps) if a.epoch == b.epoch]
    return place / "run" / "journal", len(steps), sum(times) / len(times) / 1e9


def seconds(journal, last):
    """Make the steps up to `last` again; return the recorder's seconds from the re-run's beginning to its end."""
    plan = again.planned(journal, NamedStep(last, None), begin_at_most=0)
    with again.copied(journal, plan) as folder:
        found = again.trained(folder, plan)
        assert (found.difference, found.compared) == (None, last)
        with Reader(folder / "journal") as reader:
            events = [decode_event(one.event) for one in reader.seek(seq=plan.seq)]
    began, ended = (
        next(one.mono for one in events if isinstance(one, kind)) for kind in (m.RerunBegun, m.RerunFinished)
    )
    return (ended - began) / 1e9


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_steps_are_made_again_in_the_time_of_the_run(tmp_path, monkeypatch, model):
    """In turns: the run, all its steps again, a few of them again."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    print(f"\n{machine()}")
    for number in range(ROUNDS):
        journal, steps, original = trained(tmp_path / str(number), model)
        many, few = seconds(journal, steps), seconds(journal, _FEW)
        each = (many - few) / (steps - _FEW)
        print(f"{model}: {steps} steps, {original * 1e3:.3f} ms each when the run made them")
        print(f"made again: {each * 1e3:.3f} ms each, {each / original:.3f} x; start and first steps {few:.2f} s")
