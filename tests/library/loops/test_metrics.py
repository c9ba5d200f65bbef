"""Values that a loop of one's own gives to `step`, `stepped` and `log` are recorded with the step, once."""

from __future__ import annotations

import math

import torch
from torch.nn.functional import cross_entropy

from tests.library.loops.programs import Loop, configured, loader
from tests.library.small import EPOCHS, STEPS_PER_EPOCH, network
from tests.recorded import events_of, of
from tolariad import Tolaria
from tolariad.core import messages as m
from tolariad.forensics.numbers import steps_of

STEPS = EPOCHS * STEPS_PER_EPOCH


class Measuring(Loop):
    """The first number of `step` counts its calls; `odd` is logged before every other step."""

    def go(self, leave_at=None):
        for _ in self.run.epochs(EPOCHS):
            for inputs, targets in self.run.batches():
                out = self.model(inputs)
                if self.counter.count % 2:
                    self.run.log("odd", out.max())
                self.run.step(cross_entropy(out, targets), count=self.counter.count, half=0.5)
                self.counter.look(self.model)
                self.step += 1
                if self.step == leave_at:
                    return self
        return self


def test_numbers_of_a_loop_are_recorded_with_their_step_however_often_it_is_left(tmp_path):
    """Left within an epoch, twice, the table equals that of a loop that was not."""
    for leave_at in (11, 6, None):
        Measuring(tmp_path / "run", draws=False).go(leave_at)
    Measuring(tmp_path / "calm", draws=False).go()
    found, calm = (steps_of(tmp_path / name / "journal").by_name for name in ("run", "calm"))

    assert list(found["count"]) == [float(step) for step in range(STEPS)]
    assert [step for step, value in enumerate(found["odd"]) if not math.isnan(value)] == list(range(1, STEPS, 2))
    assert {name: values.tobytes() for name, values in found.items()} == {
        name: values.tobytes() for name, values in calm.items()
    }
    assert [one.metrics["half"] for one in of(events_of(tmp_path / "run"), m.EpochFinished)] == [0.5] * EPOCHS


def test_several_updates_and_micro_batches_have_their_numbers_too(tmp_path):
    """`stepped` gives those of the step; with `accumulate` they are means; `log` after a step counts for the next."""
    model = network()
    optimizers = {"all": torch.optim.SGD(model.parameters(), lr=0.01)}
    run = Tolaria(configured(learning_rate={}), run_dir=tmp_path / "updates").run(model, optimizers, loader())
    for _ in run.epochs(1):
        for step, (inputs, targets) in enumerate(run.batches(), 1):
            run.update("all", cross_entropy(model(inputs), targets))
            run.stepped(loss=torch.tensor(7.0), number=step)
            run.log("after", step)
    found = steps_of(tmp_path / "updates" / "journal").by_name
    assert set(found["loss"]) == {7.0}
    assert list(found["number"]) == [float(step) for step in range(1, 9)]
    assert list(found["after"])[1:] == [float(step) for step in range(1, 8)]

    parts = Measuring(tmp_path / "parts", draws=False, accumulate=2)
    parts.go()
    found = steps_of(tmp_path / "parts" / "journal").by_name
    assert list(found["count"]) == [2 * step + 0.5 for step in range(STEPS // 2)]
