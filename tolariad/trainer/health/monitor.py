"""The detector in the training loop: judge each step before its update.

Promises: every step is judged once, in order, both at first and in a re-run. So a re-run leaves the detector in the
same state. The state is plain data and part of every checkpoint.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from tolariad.core import messages as m
from tolariad.core.calc.detection.announced import announced
from tolariad.core.calc.detection.carried import loud, with_loud
from tolariad.core.calc.detection.course import CourseState
from tolariad.core.calc.detection.detector import Detector, DetectorState
from tolariad.core.calc.detection.envelope import Scale, exp
from tolariad.core.calc.detection.loud import Loud
from tolariad.core.calc.detection.rules import Action, Finding, Verdict
from tolariad.trainer.health.forward_state import ForwardStateBackup
from tolariad.trainer.step.measured import Measured

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import nn

    from tolariad.core.calc.settings.model import Detect
    from tolariad.trainer.checkpoints.snapshot import Position
    from tolariad.trainer.step.rerun import Rerun

# A step that is skipped for one of these reasons leaves no trace of its forward pass.
OF_THE_DETECTOR: Final = frozenset({m.SkipReason.SPIKE, m.SkipReason.NON_FINITE})
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(DetectorState)
# Reported for a batch in quarantine, for which nothing is computed.
NOT_COMPUTED: Final = Measured(math.nan, m.NOT_MEASURED)
_log = logging.getLogger(__name__)


def suspects(verdict: Verdict) -> int:
    """Return how many updates, up to and including the judged one, may be the reason for the finding.

    For a series of unhealthy steps, the reason may be the last healthy one: its update was made, theirs were not. For a
    lasting rise, it may be the update before the first high loss.
    """
    return verdict.run_of + 1 if verdict.action is not Action.SKIP else 1


def instability(verdict: Verdict, at: Position, batches: int, watch: Monitor) -> m.InstabilityReport:
    """Return the report of a verdict on the step of `batches` batches that ends `at` this position."""
    first = max(1, at.batch - suspects(verdict) * batches + 1)
    return m.InstabilityReport(
        verdict=verdict,
        step=at.step,
        epoch=at.epoch,
        batch=at.batch,
        first_batch=first,
        began=watch.began,
        unit=watch.unit,
        loud=watch.loud,
    )


def overlaps(quarantined: Sequence[m.Batches], at: Position, batches: int) -> bool:
    """Return whether one of the next `batches` batches after position `at` is in quarantine."""
    return any(one.epoch == at.epoch and one.first <= at.batch + batches and at.batch < one.last for one in quarantined)


class CheckResult(NamedTuple):
    """The result of a check. `reason` is the reason to make no update, or None.

    `found` is the reason by the numbers of this computation. It differs only if a re-run diverges from the journal.
    """

    reason: m.SkipReason | None
    found: m.SkipReason | None
    verdict: Verdict | None = None


# Made once: nearly every step returns the first.
_HEALTHY: Final = CheckResult(None, None)
_OVERFLOWN: Final = CheckResult(m.SkipReason.OVERFLOW, m.SkipReason.OVERFLOW)


class Monitor:
    """One run's detector.

    `skips`: an unhealthy step is skipped at once, because its numbers are known before the update. `loss_unit`: the
    rise of a loss that may be negative that justifies a rollback; None if the task gives none.
    """

    def __init__(
        self,
        model: nn.Module,
        device: torch.device,
        detect: Detect,
        *,
        reads_late: bool,
        loss_unit: float | None = None,
    ) -> None:
        # Kept beside the detector: its state holds measurements only, and each new detector needs the unit again.
        self._loss_unit = loss_unit
        self._detector = Detector(unit=loss_unit)
        self.backup = ForwardStateBackup(model, device)
        self.skips = detect.act and detect.skip and not reads_late
        # Up to this update no step is skipped for being high: masks may be the reason, and the batches are not.
        self._tolerated = 0

    def check(self, measured: Measured, rerun: Rerun | None, step: int, rate: float = 0.0) -> CheckResult:
        """Judge the batches of update `step`, at learning rate `rate`. `rerun`: the journal's record of them, if any.

        In a re-run a batch that was skipped is skipped again, even if its numbers differ now: the steps must be those
        of the journal. The detector gets the journal's numbers, so that its state becomes the same as at first.
        """
        if rerun is None:
            # Only the loss scale was too large; the forward pass is sound, unless the loss is not finite. The detector
            # does not see such a step: overflows are part of every healthy run with fp16.
            if measured.overflow and (not self.skips or math.isfinite(measured.loss)):
                return _OVERFLOWN
            verdict = self._detector.judge(measured.loss, measured.grad_norm, rate)
            if verdict is None:
                return _HEALTHY
            found = self._reason_to_skip(verdict, step)
            return CheckResult(found, found, verdict)
        reason = rerun.skip_before(step)
        # As at first, the detector does not see an overflow: its state must become that of the journal's steps.
        if reason is m.SkipReason.OVERFLOW or (measured.overflow and reason is None):
            return CheckResult(reason, m.SkipReason.OVERFLOW if measured.overflow else None)
        verdict = self.judge(*rerun.told(step), rate)
        return CheckResult(reason, self._reason_to_skip(verdict, step), verdict)

    def judge(self, loss: float, grad_norm: float, rate: float) -> Verdict | None:
        """Return the verdict on the next step, None if it is healthy. A gradient norm of -1 was not measured."""
        return self._detector.judge(loss, grad_norm, rate)

    def _reason_to_skip(self, verdict: Verdict | None, step: int) -> m.SkipReason | None:
        """Return why update `step` is skipped, or None. The kernel decides about anything more serious."""
        if verdict is None or not self.skips:
            return None
        if verdict.finding is Finding.EXPLOSION and math.isfinite(verdict.value):
            # As high as a spike. The kernel watches what follows.
            return None if step <= self._tolerated else m.SkipReason.SPIKE
        if verdict.action is not Action.SKIP:
            return None
        # A loss that is not finite is skipped even while high values are tolerated: no mask explains it.
        reason = m.SkipReason(verdict.finding.value)
        return None if reason is m.SkipReason.SPIKE and step <= self._tolerated else reason

    @property
    def began(self) -> int:
        """How many updates before the newest finding its rise began."""
        return self._detector.began

    @property
    def unit(self) -> float:
        """The unit of a loss that may have either sign; 0 if the task gives none."""
        return self._loss_unit or 0.0

    @property
    def loud(self) -> Loud:
        """What the detector knows of loud batches."""
        return loud(self._detector.state())

    def remember(self, known: Loud) -> None:
        """Know such loud batches as well: they led to a rollback, and are no news when they come again."""
        self._detector = Detector(state=with_loud(self._detector.state(), known), unit=self._loss_unit)

    def levels_of(self, state: bytes | None) -> tuple[float, float]:
        """Return the loss of the untrained network, and the usual loss, of a saved detector; 0: not known."""
        known = _decoded(state) or self._detector.state()
        losses = known.course.losses
        if losses.scale is not Scale.LOG:
            return known.course.begin, 0.0
        return (exp(known.course.begin), exp(losses.level)) if losses.count else (0.0, 0.0)

    @property
    def typical_norm(self) -> float | None:
        """The median of the last gradient norms; None if none is known yet."""
        return self._detector.typical_norm

    def learn_norms_anew(self) -> None:
        """Forget the gradient norms: the model was masked, or is not any more, and its norms are others from now on."""
        # The course of the loss stays: a rise after the masks must be seen against what the run has done before them.
        known = self._detector.state()
        fresh = DetectorState(course=known.course)
        self._detector = Detector(state=fresh, unit=self._loss_unit)

    def begin_anew(self) -> None:
        """Learn the level anew: a change was announced, after which losses and norms may be others."""
        self._detector = Detector(announced(self._detector.state()), unit=self._loss_unit)

    def tolerate_until(self, step: int) -> None:
        """Skip no update for a high loss or gradient norm up to update `step`; 0: skip as ever."""
        # Not part of the saved state: the pruner asks again when it is restored, because it knows its window.
        self._tolerated = step

    def state(self) -> bytes:
        """Return the detector's state, for a checkpoint."""
        return _encoder.encode(self._detector.state())

    def inherit(self, state: bytes | None) -> None:
        """Start again with weights that were trained under another detector, whose state is `state`.

        Only one of its values is still valid: the loss of the untrained network.
        """
        known = _decoded(state)
        # Level, spread and rates describe the other run's losses. Compared with them, a healthy start may look sick.
        if known is not None:
            self._detector = Detector(
                state=DetectorState(course=CourseState(floor=known.course.floor)), unit=self._loss_unit
            )

    def load_state(self, state: bytes | None) -> None:
        """Continue as the detector that returned `state`. Without a state of this version, start again."""
        self._detector = Detector(state=_decoded(state), unit=self._loss_unit)


def _decoded(state: bytes | None) -> DetectorState | None:
    """Return a detector's state; None if there is none, or if an older version wrote it."""
    if not state:
        return None
    try:
        return _decoder.decode(state)
    # Not DecodeError: bytes that are no msgpack are damage, which the checkpoint's digests have excluded.
    except msgspec.ValidationError:
        _log.warning(
            "the checkpoint contains the detector of an older version, which cannot be used. The detector starts "
            "again, and judges single losses from the 64th step on"
        )
        return None
