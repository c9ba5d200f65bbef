"""A loop of one's own whose calls are missing or misplaced, or that cannot be recorded: an error that says which."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

from tests.library.loops.programs import Counter, Loop, loader
from tests.library.small import CONFIG, EPOCHS, bits, network
from tolariad import Tolaria
from tolariad.library import LoopMisused
from tolariad.trainer.errors import SetupRefused


def forgets(loop, run, batch, number):
    pass


def steps_twice(loop, run, batch, number):
    run.step(cross_entropy(loop.model(batch[0]), batch[1]))
    run.step(loop.model(batch[0]).mean())


def never_steps(loop, run, batch, number):
    run.update("host", loop.model(batch[0]).mean())


def mixes(loop, run, batch, number):
    run.update("host", loop.model(batch[0]).mean())
    run.step(loop.model(batch[0]).mean())


def validates_early(loop, run, batch, number):
    run.validated(loss=1.0)
    run.step(cross_entropy(loop.model(batch[0]), batch[1]))


def keeps_late(loop, run, batch, number):
    run.keep("late", loop.counter)


def begins_again(loop, run, batch, number):
    next(iter(run.epochs(3)))


def gives_text(loop, run, batch, number):
    run.step(loop.model(batch[0]).mean(), name="text")


def gives_vector(loop, run, batch, number):
    run.step(loop.model(batch[0]))


def detaches(loop, run, batch, number):
    run.step(loop.model(batch[0]).mean().detach())


def misnames(loop, run, batch, number):
    run.update("hots", loop.model(batch[0]).mean())


@pytest.mark.parametrize(
    ("body", "error", "says"),
    [
        (forgets, LoopMisused, r"run.step\(loss\) was not called for the batch before"),
        (never_steps, LoopMisused, r"run.stepped\(\) was not called for the batch before"),
        (steps_twice, LoopMisused, r"run.step\(\) was called when it is done"),
        (mixes, LoopMisused, r"run.step\(\) was called when update\(\) was called for it"),
        (validates_early, LoopMisused, r"amid a step: call it after the run\.step\(\)"),
        (keeps_late, LoopMisused, r"call it before run.epochs\(\)"),
        (begins_again, LoopMisused, "a run has one loop"),
        (gives_text, SetupRefused, "'name' is a str"),
        (gives_vector, SetupRefused, r"step\(loss\): the loss must be a tensor with one element"),
        (detaches, SetupRefused, r"step\(loss\): the loss has no gradient. Give it as it was computed"),
        (misnames, SetupRefused, "the optimizers are host; did you mean host"),
    ],
    ids=lambda one: getattr(one, "__name__", None),
)
def test_a_call_that_is_missing_or_misplaced_is_an_error_that_says_which(tmp_path, calm, body, error, says):
    """And the run goes on at the next start."""
    loop = Loop(tmp_path / "run", counted=False)

    def misused():
        for _ in loop.run.epochs(EPOCHS):
            for number, batch in enumerate(loop.run.batches()):
                body(loop, loop.run, batch, number)

    with pytest.raises(error, match=says):
        misused()
    assert bits(Loop(tmp_path / "run", counted=False).go().model) == bits(calm.model)


def test_an_epoch_that_is_cut_short_is_refused(tmp_path):
    """Only its batches make an epoch; a break out of the inner loop alone is a mistake."""
    loop = Loop(tmp_path / "run")

    def cut():
        for _ in loop.run.epochs(EPOCHS):
            inputs, targets = next(iter(loop.run.batches()))
            loop.run.step(cross_entropy(loop.model(inputs), targets))

    with pytest.raises(LoopMisused, match=r"left run.batches\(\) within epoch 1"):
        cut()


def test_calls_outside_of_the_loop_are_refused(tmp_path):
    """With what to do."""
    run = Tolaria(CONFIG, run_dir=tmp_path / "run").run(network(), None, loader())
    with pytest.raises(LoopMisused, match=r"outside of `for epoch in run\.epochs"):
        next(iter(run.batches()))
    with pytest.raises(LoopMisused, match=r"outside of `for epoch in run\.epochs"):
        run.validated(loss=1.0)
    with pytest.raises(LoopMisused, match=r"outside of `for epoch in run\.epochs"):
        run.step(torch.ones(()))
    for name, kept, says in [("a", object(), "has no state_dict"), ("a b", Counter(network()), "a name has letters")]:
        with pytest.raises(LoopMisused, match=says):
            run.keep(name, kept)
    run.keep("a", Counter(network()))
    with pytest.raises(LoopMisused, match="kept already"):
        run.keep("a", Counter(network()))
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_with_a_kept_object_that_is_not_kept_any_more_is_refused(tmp_path):
    """By its name, before training."""

    def leave(loop):
        if loop.step == 12:
            loop.run.stop()

    Loop(tmp_path / "run", leave).go()
    with pytest.raises(SetupRefused, match=r"the checkpoint holds counter: call run.keep\('counter', ...\)"):
        Loop(tmp_path / "run", counted=False).go()


def test_what_a_loop_cannot_do_is_refused_by_name(tmp_path):
    """Before anything is recorded: the forward pass is the loop's, and so is its precision."""
    with pytest.raises(SetupRefused, match=r"put the forward pass into `with torch\.autocast"):
        Loop(tmp_path / "run", precision="bf16").go()
    assert not (tmp_path / "run").exists()
