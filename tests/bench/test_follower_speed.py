"""The time for a long run's numbers to TensorBoard: our follower, and tensorboardX with the same scalars.

FOLLOWED_STEPS (100000) is the number of steps. Nothing is judged here but that both wrote as many numbers.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from journal import Journal
from tests.bench.machine import machine
from tests.core.simulate import World, find, until
from tests.followers.recording import values
from tolariad.core import messages as m
from tolariad.core.messages.vocabulary import encode_event
from tolariad.core.state.run_state import RunState, apply, capture
from tolariad.followers.following import follow
from tolariad.followers.tensorboard import TensorBoardOutput

STEPS = int(os.environ.get("FOLLOWED_STEPS", "100000"))
_A_FRAME = 100


def long_journal(folder: Path) -> Path:
    """Write a run that is in its first epoch, after so many steps."""
    world = until(World(0), 1)
    (first,) = find(world, m.StepCompleted)
    events = list(world.events)
    steps = range(2, STEPS + 1)
    events += [replace(first, step=step, batch=step, loss=1.0 / step, wall=first.wall + step) for step in steps]
    state = RunState()
    with Journal.open(folder) as journal:
        journal.begin(
            run_id=bytes(16), context_hash=bytes(32), capture=lambda: capture(state), wall_ns=1, boot_id=bytes(16)
        )
        for at in range(0, len(events), _A_FRAME):
            frame = events[at : at + _A_FRAME]
            for event in frame:
                state = apply(state, event)
            newest, place = frame[-1], state.progress
            journal.commit(
                [encode_event(event) for event in frame],
                epoch=place.epoch,
                step=place.step,
                wall_ns=newest.wall,
                mono_ns=newest.mono,
            )
    return folder


def numbers_in(folder: Path) -> list[tuple[int, str, object]]:
    """Return step, tag and value of everything in the event files of a folder."""
    return [one for path in sorted(folder.rglob("*tfevents*")) for one in values(path.read_bytes())]


@pytest.mark.bench
def test_the_time_of_a_follower_is_printed(tmp_path):
    """Wall and processor time, one after the other in this process; reading the journal is in the follower's."""
    tensorboardx = pytest.importorskip("tensorboardX", reason="tensorboardX (extra `bench`) is not installed")
    journal = long_journal(tmp_path / "run" / "journal")
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    wall, cpu = time.perf_counter(), time.process_time()
    follow(journal, lambda about, branch_of: TensorBoardOutput(ours, about, branch_of), over=lambda: True)
    mine = time.perf_counter() - wall, time.process_time() - cpu
    scalars = [(step, tag, value) for step, tag, value in numbers_in(ours) if isinstance(value, float)]
    wall, cpu = time.perf_counter(), time.process_time()
    with tensorboardx.SummaryWriter(str(theirs)) as writer:
        for step, tag, value in scalars:
            writer.add_scalar(tag, value, step)
    others = time.perf_counter() - wall, time.process_time() - cpu
    print(f"\n== {STEPS} steps, {len(scalars)} numbers to TensorBoard; {machine()}")
    print(f"{'':28}{'wall s':>8}{'CPU s':>8}")
    for name, (took_s, used_s) in (("tolaria follow", mine), ("tensorboardX", others)):
        print(f"{name:28}{took_s:>8.2f}{used_s:>8.2f}")
    print(f"{'ratio':28}{mine[0] / others[0]:>8.2f}{mine[1] / others[1]:>8.2f}")

    assert sum(tag == "train/loss" for _, tag, _ in scalars) == STEPS
    assert len(numbers_in(theirs)) == len(scalars)
