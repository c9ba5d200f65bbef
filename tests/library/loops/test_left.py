"""A loop that is left by `break` ends its run with a checkpoint; a complete run says so; a batch knows its place."""

from __future__ import annotations

import logging

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, IterableDataset

from tests import waiting
from tests.library.loops.programs import Loop, configured, die, killed, loader
from tests.library.small import EPOCHS, STEPS_PER_EPOCH, data, network
from tests.recorded import events_of, of, sound
from tolariad import Tolaria
from tolariad.core import messages as m
from tolariad.core.messages.sentences.text import sentence
from tolariad.library import RunFailed
from tolariad.library.leaving import was_broken_off


def wrapped(iterable):
    """What tqdm does."""
    yield from iterable


def after_step(loop, batches, at):
    for inputs, targets in batches(loop.run.batches()):
        loop.run.step(cross_entropy(loop.model(inputs), targets))
        loop.counter.look(loop.model)
        loop.step += 1
        if loop.step == at:
            return True
    return False


def before_step(loop, batches, at):
    for inputs, targets in batches(loop.run.batches()):
        loss = cross_entropy(loop.model(inputs), targets)
        if loop.step == at:
            return True
        loop.run.step(loss)
        loop.counter.look(loop.model)
        loop.step += 1
    return False


def breaking(loop, body, around, at):
    for _ in around(loop.run.epochs(EPOCHS)):
        if body(loop, around, at):
            break
        torch.rand(3)
        loop.counter.count += 1
        loop.run.validated(accuracy=0.5)
        if loop.step == at:
            break


def returning(loop, body, around, at):
    for _ in around(loop.run.epochs(EPOCHS)):
        if body(loop, around, at):
            return
        torch.rand(3)
        loop.counter.count += 1
        loop.run.validated(accuracy=0.5)


def within(loop, body, around, at):
    with loop.run:
        breaking(loop, body, around, at)


@pytest.mark.sample(4)
@pytest.mark.parametrize("around", [iter, wrapped], ids=["bare", "wrapped"])
@pytest.mark.parametrize("at", [1, 11])
@pytest.mark.parametrize("body", [after_step, before_step])
@pytest.mark.parametrize("leaves", [breaking, returning, within])
def test_a_loop_that_is_left_stops_where_it_is_with_a_checkpoint(tmp_path, calm, leaves, body, at, around):
    """No step is made again, nothing is called an error, and a batch that was half done leaves no trace."""
    loop = Loop(tmp_path / "run")
    leaves(loop, body, around, at)
    events = sound(tmp_path / "run")
    (stopped,), (ordered,) = of(events, m.RunStopped), of(events, m.StopRequested)
    assert loop.run.result.phase == "stopped"
    assert "left its loop" in sentence(ordered)
    assert of(events, m.CheckpointCommitted)[-1].step == at == loop.run.result.steps
    assert stopped.checkpoint == loop.run.result.last_checkpoint
    assert not of(events, m.ExceptionRaised)
    again = Loop(tmp_path / "run").go()
    assert len(again.applied) == EPOCHS * STEPS_PER_EPOCH - at
    assert again.bits == calm.bits


def test_a_loop_that_is_left_after_its_validation_has_the_whole_epoch(tmp_path, calm):
    """As an early stopping does it."""
    loop = Loop(tmp_path / "run")
    breaking(loop, after_step, iter, STEPS_PER_EPOCH + 10_000_000)
    assert loop.run.result.phase == "completed"
    loop = Loop(tmp_path / "early")
    for epoch in loop.run.epochs(EPOCHS):
        after_step(loop, iter, 0)
        torch.rand(3)
        loop.counter.count += 1
        loop.run.validated(accuracy=0.5)
        if epoch == 2:
            break
    finished = of(events_of(tmp_path / "early"), m.EpochFinished)
    assert [one.epoch for one in finished] == [1, 2]
    assert loop.run.result.metrics == {"accuracy": 0.5}
    assert Loop(tmp_path / "early").go().bits == calm.bits


def test_an_exception_is_no_break(tmp_path):
    """Whatever instruction it is raised by, also a wrapped one."""
    for number, wrong in enumerate((lambda: 1 / 0, lambda: {}["a"], lambda: int("x"), lambda: torch.zeros(2).item())):
        loop = Loop(tmp_path / f"{number}")

        def left(loop=loop, wrong=wrong):
            for _ in wrapped(loop.run.epochs(EPOCHS)):
                wrong()

        with pytest.raises((ArithmeticError, LookupError, ValueError, RuntimeError)):
            left()
        assert len(of(events_of(tmp_path / f"{number}"), m.ExceptionRaised)) == 1
        assert not of(events_of(tmp_path / f"{number}"), m.RunStopped)
    assert not was_broken_off(None)


def test_a_complete_run_says_that_there_is_nothing_to_train(tmp_path, caplog):
    """And with which optimizer it was trained, if the program has another one now."""
    said = []
    for kind in (torch.optim.Adam, torch.optim.Adam, torch.optim.SGD):
        model = network()
        run = Tolaria(configured(learning_rate={}), run_dir=tmp_path / "run").run(
            model, kind(model.parameters(), lr=0.01), loader()
        )
        with caplog.at_level(logging.WARNING):
            for _ in run.epochs(1):
                for inputs, targets in run.batches():
                    run.step(cross_entropy(model(inputs), targets))
        said.append([one.getMessage() for one in caplog.records])
        caplog.clear()
        assert run.result.phase == "completed"
    assert said[0] == []
    (again,) = said[1]
    assert "is complete (epoch 1, step 8): nothing to train" in again
    assert again in said[2]
    assert any("Adam" in one and "SGD" in one for one in said[2])


class Endless(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(36.0).reshape(12, 3))


def test_a_batch_knows_its_place_in_the_epoch_over_a_resume(tmp_path):
    """`run.batches()` has a length where the data has one; `enumerate` begins anew, `run.batch` does not."""

    def go(after=lambda step: None):
        loop, seen = Loop(tmp_path / "run"), []
        for _ in loop.run.epochs(EPOCHS):
            batches = loop.run.batches()
            left = len(batches)
            for inputs, targets in batches:
                seen.append((loop.run.batch, left))
                loop.run.step(cross_entropy(loop.model(inputs), targets))
                after(loop, len(seen))
        return seen

    first = go(lambda loop, step: loop.run.stop() if step == 11 else None)
    second = go(lambda loop, step: None)
    whole = [(batch, STEPS_PER_EPOCH) for _ in range(EPOCHS) for batch in range(STEPS_PER_EPOCH)]
    assert first == whole[:11]
    assert [batch for batch, _ in second] == [batch for batch, _ in whole[11:]]
    assert [left for _, left in second] == [5] * 5 + [8] * 8
    run = Tolaria(configured(stop={"steps": 2}), run_dir=tmp_path / "endless").run(
        network(), None, DataLoader(Endless(), 4)
    )
    for _ in run.epochs(1):
        batches = run.batches()
        with pytest.raises(TypeError, match="no length"):
            len(batches)
        break


def test_a_run_that_differs_because_its_loop_counts_anew_says_what_to_look_at(tmp_path):
    """The trial of a first start cannot see it. A long epoch: a checkpoint is recorded some steps after its order."""

    def go(after=lambda tolaria, step: None):
        model, tolaria = network(), Tolaria(configured(), run_dir=tmp_path / "run")
        run = tolaria.run(model, None, loader(of=data(200 * 12)))
        for _ in run.epochs(1):
            for number, (inputs, targets) in enumerate(run.batches()):
                if number == 0:
                    torch.rand(3)
                run.step(cross_entropy(model(inputs), targets))
                after(tolaria, run.batch)

    copy, ordered = tmp_path / "copy", []

    def after(tolaria, step):
        if not ordered and step >= 3:
            # It is refused while the first checkpoint is being written, and the end of that is told between two steps.
            ordered.extend([step] * tolaria.checkpoint(copy))
        elif ordered and step >= ordered[0] + 4 and waiting.within(0.3, copy.exists):
            die()  # it is copied when it is committed

    killed(lambda: go(after))
    says = r"came out differently.*`enumerate\(run\.batches\(\)\)` begins at 0.*run\.batch"
    with pytest.raises(RunFailed, match=says):
        go()
