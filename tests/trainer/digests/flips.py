"""A trainer in one process, without a daemon, in whose memory a bit is flipped; then its steps are made again.

Everything that computes, digests and compares is the trainer's own: the stepper, the restore, the comparison of a
re-run. The journal is a list of reports.
"""

from __future__ import annotations

import enum
import random
from itertools import islice
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import torch

from tests.trainer.conftest import config
from tolariad.core import messages as m
from tolariad.trainer import build
from tolariad.trainer.checkpoints.buffers import HostBuffer
from tolariad.trainer.checkpoints.capture import capture
from tolariad.trainer.checkpoints.restore import restore, taken_apart
from tolariad.trainer.checkpoints.snapshot import Position
from tolariad.trainer.orders.reporter import Progress
from tolariad.trainer.step import stepper as stepping
from tolariad.trainer.step.stepper import Stepper

STEPS = 8
# Steps before the first one, so that the optimizer has moments.
_BEFORE = 2


class Where(enum.Enum):
    """What of the memory a bit is flipped in."""

    PARAMETER = "parameter"
    MOMENT = "moment"
    GRADIENT = "gradient"


class Flip(NamedTuple):
    """One bit of the tensor of a parameter, before update `step`. `late`: between backward pass and update."""

    where: Where
    name: str
    step: int
    place: int
    bit: int
    late: bool


class Found(enum.Enum):
    """What the re-run says of a run with a flipped bit.

    `step and tensor`: a tensor of the parameter in which the bit is. `step, by an effect`: the loss or the norm of that
    step differs, or a tensor that comes before the flipped one and was changed by it. `wrong`: another step.
    """

    STEP_AND_TENSOR = "step and tensor"
    STEP = "step, by an effect"
    NOTHING_LEFT = "healed or masked"
    MISSED = "missed"
    WRONG = "wrong"


class Memory:
    """A run of the task `digits`, at the same state before each of its runs."""

    def __init__(self, every_steps: int = 1) -> None:
        options = {"epochs": 2, "batch_size": 64, "digest": {"every_steps": every_steps}}
        self.setup = build.build(config("digits", **options))
        self.batches = list(islice(self.setup.train.epoch(1, 0), _BEFORE + STEPS))
        self._start = taken_apart(capture(self.setup, Position(step=0, epoch=1, batch=0)).copied_into(HostBuffer()))
        self.reports: list[Any] = []
        self._make(self.batches[:_BEFORE])
        at = Position(step=_BEFORE, epoch=1, batch=_BEFORE)
        self._start = taken_apart(capture(self.setup, at).copied_into(HostBuffer()))
        self.names = [name for name, _ in self.setup.model.named_parameters()]

    def drawn(self, rng: random.Random) -> Flip:
        """Return any bit of any value of any tensor."""
        where, name = rng.choice(list(Where)), rng.choice(self.names)
        size = dict(self.setup.model.named_parameters())[name].numel()
        step, late = _BEFORE + rng.randint(1, STEPS), where is Where.GRADIENT or rng.random() < 0.5
        return Flip(where, name, step, rng.randrange(size), rng.randrange(32), late)

    def run(self, flip: Flip | None = None) -> list[Any]:
        """Make the steps from the start, with this bit flipped at its place. Return the reports."""
        self._make(self.batches[_BEFORE:], flip)
        return self.reports

    def again(self, recorded: list[Any]) -> m.RerunReport:
        """Make the steps again without a flip, compared with what was recorded. Return the result."""
        script = m.Script(
            steps=tuple(
                m.ScriptStep(one.step, one.loss, one.grad_norm, one.lr, one.rates, one.data)
                for one in recorded
                if isinstance(one, m.StepReport)
            ),
            skips=tuple(m.StepSkipped.of(one) for one in recorded if isinstance(one, m.StepSkippedReport)),
            digests=tuple(
                m.ScriptDigest(one.step, one.method, one.tensors)
                for one in recorded
                if isinstance(one, m.ParametersDigestedReport)
            ),
        )
        self._make(self.batches[_BEFORE:], script=msgspec.msgpack.encode(script))
        (result,) = [one for one in self.reports if isinstance(one, m.RerunReport)]
        return result

    def _make(self, batches: list[Any], flip: Flip | None = None, script: bytes | None = None) -> None:
        self.reports = []
        made = self._stepper()
        made.stand_at(restore(self.setup, self._start))
        made.follow(script)
        real = stepping.update

        def update(setup: Any, *, skip: bool) -> None:
            if flip is not None and flip.late and made.position.step + 1 == flip.step:
                self._flip(flip)
            real(setup, skip=skip)

        stepping.update = update  # type: ignore[assignment]
        try:
            for batch in batches:
                if flip is not None and not flip.late and made.position.step + 1 == flip.step:
                    self._flip(flip)
                    flip = None  # a step that is skipped has no number of its own
                made.make((batch,))
                if flip is not None and made.position.step >= flip.step:
                    flip = None
        finally:
            stepping.update = real

    def _stepper(self) -> Stepper:
        ignore = lambda *_, **__: None  # noqa: E731
        gate = SimpleNamespace(
            report_step=lambda *values: self.reports.append(m.report_of(*values)),
            report=self.reports.append,
            **dict.fromkeys(("wait", "fence", "ask"), ignore),
        )
        link = SimpleNamespace(
            page=None,
            progress=Progress(),
            reporter=SimpleNamespace(report=self.reports.append, beat=ignore),
            inbox=SimpleNamespace(register=ignore),
            gate=gate,
        )
        watch = SimpleNamespace(
            times_task=False,
            of_task=lambda call, *given, **more: call(*given, **more),
            advance=lambda rates, epoch: rates.advance(epoch),
            **dict.fromkeys(("stepped", "begin"), ignore),
        )
        audit = SimpleNamespace(sampled=None, every=1 << 40, begin_anew=ignore)
        made = Stepper(self.setup, link, watch, audit, hook=ignore)  # type: ignore[arg-type]
        made.begin_hooks(any_=False)
        return made

    def _flip(self, flip: Flip) -> None:
        parameter = dict(self.setup.model.named_parameters())[flip.name]
        match flip.where:
            case Where.PARAMETER:
                held = parameter.detach()
            case Where.GRADIENT:
                held = parameter.grad
            case Where.MOMENT:
                moment = ("exp_avg", "exp_avg_sq")[flip.place % 2]
                held = self.setup.optimizer.state[parameter][moment]
        words = held.view(-1).view(torch.int32)
        words[flip.place] ^= torch.tensor(1 << flip.bit, dtype=torch.int64).to(torch.int32)


def judged(memory: Memory, clean: list[Any], flip: Flip) -> Found:
    """Flip one bit in a run, make its steps again, and return what was found.

    `clean`: the reports of the run without a flip, which tell whether the bit had an effect that lasted.
    """
    recorded = memory.run(flip)
    difference = memory.again(recorded).first_difference
    if difference is None:
        return Found.NOTHING_LEFT if recorded == clean else Found.MISSED
    if difference.step != flip.step:
        return Found.WRONG
    is_named = difference.field.startswith("digest of ") and difference.field.endswith(flip.name)
    return Found.STEP_AND_TENSOR if is_named else Found.STEP


__all__ = ["Found", "Memory", "Where", "judged"]
