"""`stop.tokens` ends a run after the step with the last token: never a step later, and the same through kills."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

from tests.library.loops.programs import killed, loader
from tests.library.small import bits, loaders, made, network
from tests.recorded import Stop, dies_at, events_of, of, sound
from tolariad.core import messages as m

EPOCHS = 3
# A step has 96 to 108 tokens. The thirteenth has the 1300th.
TOKENS, LAST = 1300, 13
STOP = {"stop": {"tokens": TOKENS}, "journal": {"segment_bytes": 1_000_000, "sync": "batch"}}


def count(step):
    return 96 + step % 13


class Counts:
    """A task that counts its tokens: a number, a tensor, or one of each micro-batch."""

    def __init__(self, kind, hook):
        self.kind, self.hook, self.calls, self.step = kind, hook, 0, 0

    def loss(self, model, batch):
        inputs, targets = batch
        self.calls += 1
        tokens = count(self.step + 1)
        parts = {"number": tokens, "tensor": torch.tensor(float(tokens)), "halves": tokens / 2}
        return {"loss": cross_entropy(model(inputs), targets), "tokens": parts[self.kind]}

    def on_step_end(self, model, step):
        self.step = step
        self.hook(step)

    def state_dict(self):
        return {"step": self.step}

    def load_state_dict(self, state):
        self.step = state["step"]


def last_of(run_dir):
    """The steps, and the step of the limit."""
    events = sound(run_dir)
    (reached,) = of(events, m.LimitReached)
    assert reached.limit is m.Limit.TOKENS
    return [one.step for one in of(events, m.StepCompleted)], reached.step


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", ["number", "tensor", "halves"])
def test_the_step_with_the_last_token_is_the_last_one(run_dir, kind):
    """However the task counts, if many steps are in flight, and if the trainer dies before the last one."""
    accumulate = 2 if kind == "halves" else 1
    model = network()
    for at in (6, 0):
        tolaria, task = made(run_dir, accumulate=accumulate, **STOP), Counts(kind, dies_at(at))
        train = lambda tolaria=tolaria, task=task: tolaria.train(model, *loaders(), 9, task=task)  # noqa: E731
        if at:
            with pytest.raises(Stop):
                train()
        else:
            assert train().phase == "completed"
    assert last_of(run_dir) == ([*range(1, LAST + 1)], LAST)


def loop(run_dir, after=lambda tolaria, step: None):
    """A loop of its own, of which the steps count; return the weights."""
    model, tolaria = network(), made(run_dir, **STOP)
    run = tolaria.run(model, None, loader())
    counted = {"step": 0}
    run.keep("counted", counted)
    for _ in run.epochs(9):
        for inputs, targets in run.batches():
            counted["step"] += 1
            run.step(cross_entropy(model(inputs), targets), tokens=count(counted["step"]))
            after(tolaria, counted["step"])
    return bits(model)


@pytest.mark.sample(2)
@pytest.mark.parametrize("point", [f"step:{LAST}", f"gate:{LAST}", f"boundary:{LAST + 1}", "gate:12", "manifest:2"])
def test_a_kill_in_the_last_moments_changes_nothing(tmp_path, point):
    """The end is that of the undisturbed loop: its last step, and every bit of the weights."""
    calm = loop(tmp_path / "calm")
    killed(lambda: loop(tmp_path / "run"), point)

    assert loop(tmp_path / "run") == calm
    assert last_of(tmp_path / "run") == ([*range(1, LAST + 1)], LAST)


def test_after_a_rollback_those_of_the_steps_that_stand_count(tmp_path):
    """The steps that were given up are not missing at the end."""
    gone = []

    def back(tolaria, step):
        if step == 11 and not gone:
            gone.append(step)
            tolaria.rollback(1)

    loop(tmp_path / "run", back)
    events = events_of(tmp_path / "run")
    (back_to,) = [one.step for one in of(events, m.RolledBack)]
    steps, last = last_of(tmp_path / "run")

    assert back_to < 11
    assert (last, steps[-(LAST - back_to) :]) == (LAST, [*range(back_to + 1, LAST + 1)])
