"""While memory is short a trainer keeps none for later; collections run at their interval."""

from __future__ import annotations

import gc
from dataclasses import replace
from types import SimpleNamespace

import pytest
from torch.utils.data import DataLoader

from tests.trainer.checkpoints.own import step
from tolariad.core import messages as m
from tolariad.storage.verify import verify
from tolariad.trainer.checkpoints.save import Saver
from tolariad.trainer.checkpoints.snapshot import Position
from tolariad.trainer.data.loaders import LoaderFeed
from tolariad.trainer.health import memory
from tolariad.trainer.health.memory import COLLECTION_S, MemoryBudgetManager


@pytest.fixture
def run(made, tmp_path):
    """A manager with its saver, its clock, and what is told to it."""
    setup, told, clock = made(), {}, SimpleNamespace(now=0.0)
    saver = Saver(setup, tmp_path, "ff")
    inbox = SimpleNamespace(register=told.__setitem__)
    slots = SimpleNamespace(narrow=lambda given: told.update(narrow=given), widen=lambda: told.update(narrow=None))

    def manage(setup):
        return MemoryBudgetManager(setup, saver, slots, inbox, clock=lambda: clock.now)

    return SimpleNamespace(
        setup=setup,
        saver=saver,
        manager=manage(setup),
        manage=manage,
        clock=clock,
        root=tmp_path,
        told=told,
        press=lambda pressed: told[m.SetMemoryPressure](m.SetMemoryPressure(pressed=pressed, slots=(1, 3))),
    )


def saved(run, id_: str):
    """One checkpoint, written to its end."""
    run.saver.order(m.TakeCheckpoint(id=id_, reason=m.CheckpointReason.ORDERED))
    run.saver.capture(Position(1, 1, 1))
    while (report := run.saver.finished()) is None:
        pass
    return report


def test_the_copy_of_a_checkpoint_is_given_back_while_memory_is_short(run):
    """The copy is released at once, and after each further checkpoint, until there is memory again.

    Its share stays the size of a copy, so that the state does not flap.
    """
    step(run.setup, 1)
    saved(run, "a")
    kept = run.saver.held_bytes
    share = run.manager.shares()["memory_checkpoints"]
    run.press(pressed=True)
    released = run.saver.held_bytes
    report = saved(run, "b")

    assert kept > 0
    assert (released, run.saver.held_bytes) == (0, 0)
    assert run.manager.shares()["memory_checkpoints"] == share > 0
    assert verify(run.root / "b", report.manifest).checkpoint_id == "b"

    run.press(pressed=False)
    saved(run, "c")
    assert run.saver.held_bytes == kept


def test_collections_run_at_their_interval_and_when_memory_becomes_short(run, monkeypatch):
    """Asked at each epoch's end; free pages are returned to the system only while memory is short."""
    seen: list[str] = []
    monkeypatch.setattr(gc, "collect", lambda: seen.append("collected"))
    monkeypatch.setattr(memory, "_trim", lambda: seen.append("trimmed"))
    for run.clock.now in (1.0, COLLECTION_S - 1, COLLECTION_S, COLLECTION_S + 1, 2 * COLLECTION_S):
        run.manager.shares()
    assert seen == ["collected"] * 2

    run.press(pressed=True)
    run.press(pressed=False)
    assert seen == ["collected"] * 2 + ["collected", "trimmed"]


def test_slots_and_batches_ahead_are_given_up_and_come_back(run, monkeypatch):
    """The slots that the order names stay; each worker of a loader loads one batch ahead."""
    feed = LoaderFeed(DataLoader(range(8), num_workers=2, prefetch_factor=3), 1)
    ahead = []
    monkeypatch.setattr(feed, "load_ahead", ahead.append)
    run.manage(replace(run.setup, train=feed))
    run.press(pressed=True)
    assert (run.told["narrow"], ahead) == ((1, 3), [1])
    run.press(pressed=False)
    assert (run.told["narrow"], ahead) == (None, [1, None])
