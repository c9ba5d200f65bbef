"""A real daemon whose run the default policy grows; trainers die around its seeds' moves, alone or with the daemon."""

from __future__ import annotations

import random
import signal
from collections import Counter
from pathlib import Path

import pytest
import yaml

from tests import order_events
from tests.campaign import grown
from tests.recorded import events_of, of, pieces, sound
from tolariad.core import messages as m

TASK = Path(__file__).with_name("grown.py")
MEMORY = {"snapshots": {"every": 1, "watch_steps": 1}}
DISK = {"rollback": {"fast_path_enabled": False}}
# Passed at least so often by each process whose death leaves others to come.
POINTS = {
    "seed_move": 5,
    "seed_planted": 1,
    "seed_moved": 5,
    "boundary": 60,
    "gate": 60,
    "step": 60,
    "capture": 9,
    "checkpoint_file": 40,
    "manifest": 9,
    "publish": 9,
    "validation": 20,
    # The daemon's.
    "commit": 150,
}
OF_MEMORY = {"snapshot": 20, "snapshot_taken": 20}


def carried_out(folder, template, deaths=(), **more):
    """Carry out a run in which somebody dies at each of these points; return its folder and events.

    A daemon that dies is started again. Its trainer dies with it.
    """
    folder.mkdir()
    settings = {**grown.CONFIG, "task": f"{TASK}:Grown", "epochs": grown.EPOCHS, "batch_size": grown.BATCH, **more}
    settings["journal"] = {"segment_bytes": 1_000_000}
    (folder / "config.yaml").write_text(yaml.safe_dump({"tolaria": settings}))
    rules = []
    for number, (point, times) in enumerate(deaths):
        token = folder / f"token{number}"
        token.touch()
        rules.append(f"{point}:{times}@{token}")
    run_dir = folder / "run"
    arguments = ["run", folder / "config.yaml", "--dir", run_dir]
    for _ in range(1 + len(deaths)):
        ended = template.run(arguments, folder=folder, failpoint=",".join(rules))
        if ended.returncode != -signal.SIGKILL:
            break
    assert ended.returncode == 0, ended.stderr
    assert not list(folder.glob("token*")), "each death happened"
    return run_dir, events_of(run_dir)


def moves(events):
    """Return the moves of seeds, each with its first update."""
    return [
        (one.order.slot, one.order.stage, one.applied_before_step, one.order.number)
        for one in of(events, order_events.acted(m.MoveSeed))
    ]


def decided(events):
    """Return what was answered after which epoch."""
    found = of(events, m.StrategyAnswered)
    return [(one.epoch, [(each.kind, each.order) for each in one.commands]) for one in found]


@pytest.fixture(scope="module")
def calm(tmp_path_factory, template):
    """The run that nothing disturbed."""
    return carried_out(tmp_path_factory.mktemp("calm") / "run", template, **DISK)


def compare(found, calm, deaths):
    """Moves, decisions and bits are those of the undisturbed run."""
    run_dir, events = found
    assert len(of(events, m.TrainerDied)) == deaths
    assert moves(events) == moves(calm[1])
    assert decided(events) == decided(calm[1])
    assert pieces(run_dir) == pieces(calm[0])
    sound(run_dir)


@pytest.mark.torture
def test_trainers_that_die_around_moves_change_nothing_of_them(tmp_path, template, calm):
    """The daemon lives on: its next trainer goes on from memory, where the seeds are, or from disk."""
    deaths = [("seed_planted", 1), ("seed_moved", 2), ("snapshot_taken", 20)]
    compare(carried_out(tmp_path / "run", template, deaths, **MEMORY), calm, len(deaths))


@pytest.mark.torture
@pytest.mark.parametrize("part", range(10))
def test_trainers_that_die_anywhere_change_nothing(tmp_path, template, calm, seed, part):
    """One to three deaths in a run, at drawn points, with and without snapshots."""
    fired = Counter()
    for number in range(8):
        draw = random.Random(f"{seed} {part} {number}")
        kind = (DISK, MEMORY)[number % 2]
        points = POINTS | (OF_MEMORY if kind is MEMORY else {})
        deaths = [(point, draw.randint(1, points[point])) for point in draw.sample(list(points), draw.randint(1, 3))]
        print(f"seed {seed}, part {part}, run {number}: {deaths}")
        compare(carried_out(tmp_path / f"{number}", template, deaths, **kind), calm, len(deaths))
        fired.update(point for point, _ in deaths)
    print(f"part {part}: {fired.total()} deaths: {dict(fired)}")
