"""A loop of one's own that is killed at any point, again and again, ends with the bits of one that was not."""

from __future__ import annotations

import pytest

from tests.library.loops.programs import Loop, adversaries, die, killed
from tests.library.small import EPOCHS, STEPS_PER_EPOCH, bits
from tests.recorded import events_of, of, sound
from tolariad.core import messages as m

STEPS = EPOCHS * STEPS_PER_EPOCH


def at(step):
    """Die in the loop's own code, after this step of the program."""

    def after(loop):
        if loop.step == step:
            die()

    return after


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "deaths",
    [(1, 9), (8, 3), (23, 1), ("gate:5", "boundary:14"), ("step:16", 8), ("manifest:1",), ("rerun:3",)],
    ids=str,
)
def test_a_loop_that_is_killed_ends_with_the_same_bits(tmp_path, calm, deaths):
    """After a step, in the user's code; at the gate, at a boundary, while a checkpoint is written."""
    if deaths == ("rerun:3",):
        deaths = (13, *deaths)
    for death in deaths:
        if isinstance(death, int):
            killed(lambda death=death: Loop(tmp_path / "run", at(death)).go())
        else:
            killed(lambda: Loop(tmp_path / "run").go(), death)
    again = Loop(tmp_path / "run").go()
    events = sound(tmp_path / "run")

    assert again.run.result.phase == "completed"
    assert again.bits == calm.bits
    assert [e.step for e in of(events, m.StepCompleted)] == list(range(1, STEPS + 1))
    assert [e.epoch for e in of(events, m.ValidationFinished)] == [1, 2, 3]


@pytest.mark.sample(2)
@pytest.mark.parametrize("deaths", [(6.5, 3), (7, 2.5), ("step:13", "step:4"), ("gate:9", "boundary:3")], ids=str)
def test_a_loop_of_two_optimizers_that_is_killed_ends_with_the_same_bits(tmp_path, deaths):
    """Between the two updates of a step too: the first of them is then made again."""

    def after(death):
        return lambda step: die() if step == death else None

    calm, _ = adversaries(tmp_path / "calm")
    for death in deaths:
        if isinstance(death, str):
            killed(lambda: adversaries(tmp_path / "run"), death)
        else:
            killed(lambda death=death: adversaries(tmp_path / "run", after(death)))
    again, _ = adversaries(tmp_path / "run")
    steps, expected = (of(events_of(tmp_path / folder), m.StepCompleted) for folder in ("run", "calm"))

    assert bits(again) == bits(calm)
    assert [(e.step, e.loss, e.grad_norm) for e in steps] == [(e.step, e.loss, e.grad_norm) for e in expected]
