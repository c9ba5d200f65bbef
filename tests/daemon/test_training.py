"""The training task: four coroutines that answer from durable events, and end when the run does."""

from __future__ import annotations

import asyncio

import pytest

from tests.core.simulate import World, until
from tolariad.control.port import Change
from tolariad.core.inputs import CommandReceived
from tolariad.core.interfaces import EpochResult, ITrainingOrchestrator, ValidationResult
from tolariad.core.vocabulary import control as cv
from tolariad.daemon.training import RunOver, TrainingTask


class SimulatedPort:
    """A run without processes behind the port: `play` lets it go on, a tick at a time."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.listeners = []
        self._told = len(world.events)

    def subscribe(self, listener):
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    def submit(self, command, actor, answer):
        answer(self.world.give(CommandReceived(command=command, actor=actor)))

    async def play(self) -> None:
        while self.world.exit is None:
            self.world.tick()
            new = [(seq, event) for seq, event in enumerate(self.world.events, 1) if seq > self._told]
            self._told = len(self.world.events)
            for listener in tuple(self.listeners):
                listener(Change(tuple(new)))
            await asyncio.sleep(0)


@pytest.fixture
async def played(tmp_path):
    """The task over a run at step 5 that goes on; what it copied."""
    copied = []
    port = SimulatedPort(until(World(0), 5))
    task = TrainingTask(port, tmp_path, lambda *what: copied.append(what))
    playing = asyncio.ensure_future(port.play())
    yield task, copied, port
    playing.cancel()


async def test_an_epoch_and_a_validation_are_waited_for(played):
    """Numbers and metrics of the very epoch; a Protocol that a class satisfies by having its methods."""
    task, _, _ = played
    epoch, validation = await asyncio.gather(task.train_epoch(), task.validate())

    assert isinstance(task, ITrainingOrchestrator)
    assert isinstance(epoch, EpochResult)
    assert (epoch.epoch, epoch.steps, epoch.metrics) == (2, 4, {"accuracy": 0.3})
    assert validation == ValidationResult(loss=None, accuracy=0.3, metrics={"accuracy": 0.3})


async def test_a_checkpoint_is_copied_once_it_is_committed(played, tmp_path):
    """Not before its event is there; the folder is the committed one's."""
    task, copied, port = played

    assert await task.checkpoint(tmp_path / "out")
    newest = port.world.state.checkpoints.newest
    assert copied == [(tmp_path / "checkpoints" / newest.id, newest.manifest, tmp_path / "out")]


async def test_a_rollback_is_done_or_refused(played):
    """Done when the branch is opened; one that cannot be is False and changes nothing."""
    task, _, port = played

    assert await task.rollback(1)
    assert port.world.state.progress.branch == 1
    port.world.command(cv.Stop())
    assert not await task.rollback(1)


async def test_a_run_that_ends_ends_every_wait(played):
    """RunOver says how."""
    task, _, port = played
    await asyncio.gather(task.train_epoch(), asyncio.sleep(0))
    waiting = asyncio.ensure_future(task.train_epoch())
    await asyncio.sleep(0)
    port.world.command(cv.Stop())

    with pytest.raises(RunOver, match="RunStopped"):
        await waiting
