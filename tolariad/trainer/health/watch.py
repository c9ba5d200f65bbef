"""The detector in the training loop: what it says of a step before its update, and what a skipped one puts back.

Promises: every step is judged once, in order, whether it is made or run again, so a re-run leaves the detector as the first
run did; its state is a value, part of every checkpoint. It must not know: reports, orders, or what the kernel decides.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from tolariad.core.detection import Action, CourseState, Detector, DetectorState, Verdict
from tolariad.core.health.detection_words import InstabilityReport
from tolariad.core.steps.words import NOT_MEASURED, SkipReason
from tolariad.trainer.health.forward_state import Aside
from tolariad.trainer.step.measured import Measured

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import nn

    from tolariad.core.health.quarantine_words import Batches
    from tolariad.core.settings.model import Detect
    from tolariad.trainer.checkpoints.snapshot import Position
    from tolariad.trainer.step.rerun import Rerun

# Steps that were skipped for these leave nothing of their forward pass.
OF_THE_DETECTOR: Final = frozenset({SkipReason.SPIKE, SkipReason.NON_FINITE})
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(DetectorState)


# What is reported of a batch that is passed over.
NOT_LOOKED_AT: Final = Measured(math.nan, NOT_MEASURED)
_log = logging.getLogger(__name__)


def suspects(verdict: Verdict) -> int:
    """How many updates, the judged one last, what was found may come from.

    A row of unhealthy ones may come from the last healthy one: it was made, and they were not. A lasting rise may come from
    the update before the first that already lay high.
    """
    return verdict.run_of + 1 if verdict.action is not Action.SKIP else 1


def instability(verdict: Verdict, at: Position, batches: int) -> InstabilityReport:
    """A verdict on the step that ends `at`, of so many batches, as it is reported."""
    first = max(1, at.batch - suspects(verdict) * batches + 1)
    return InstabilityReport(verdict=verdict, step=at.step, epoch=at.epoch, batch=at.batch, first_batch=first)


def overlaps(quarantined: Sequence[Batches], at: Position, batches: int) -> bool:
    """Is one of the `batches` behind position `at` among the quarantined?"""
    return any(one.epoch == at.epoch and one.first <= at.batch + batches and at.batch < one.last for one in quarantined)


class Judged(NamedTuple):
    """`reason`: why no update is made; `found`: the same as it shows here and now, which differs only where a re-run does."""

    reason: SkipReason | None
    found: SkipReason | None
    verdict: Verdict | None = None


_HEALTHY: Final = Judged(None, None)
_OVERFLOWN: Final = Judged(SkipReason.OVERFLOW, SkipReason.OVERFLOW)


class Watch:
    """One run's detector. `skips`: unhealthy steps are skipped here and now, if their numbers are known in time.

    `loss_unit`: of a loss that may be negative, a rise that is worth going back for; None if the task names none.
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
        self._loss_unit = loss_unit
        self._detector = Detector(unit=loss_unit)
        self.aside = Aside(model, device)
        self.skips = detect.act and detect.skip and not reads_late

    def look(self, measured: Measured, rerun: Rerun | None, step: int, rate: float = 0.0) -> Judged:
        """Judge the batches that were taken for update `step`, at learning rate `rate`; `rerun`: what the journal has of them.

        What was skipped once is skipped again, whatever shows here: else steps would not be those of the journal. And the
        detector is told what it was told then, so that it knows afterwards what it knew then.
        """
        if rerun is None:
            # The scale was too large, and what the forward pass left is sound. With a loss that is not finite it is not.
            if measured.overflow and (not self.skips or math.isfinite(measured.loss)):
                return _OVERFLOWN
            verdict = self._detector.judge(measured.loss, measured.grad_norm, rate)
            if verdict is None:
                return _HEALTHY
            found = self._reason_to_skip(verdict)
            return Judged(found, found, verdict)
        reason = rerun.skip_before(step)
        if reason is SkipReason.OVERFLOW or (measured.overflow and reason is None):
            return Judged(reason, SkipReason.OVERFLOW if measured.overflow else None)
        verdict = self.judge(*rerun.told(step), rate)
        return Judged(reason, self._reason_to_skip(verdict), verdict)

    def judge(self, loss: float, grad_norm: float, rate: float) -> Verdict | None:
        """Return the verdict on the next step, None if it is healthy. A gradient norm of -1 was not measured."""
        return self._detector.judge(loss, grad_norm, rate)

    def _reason_to_skip(self, verdict: Verdict | None) -> SkipReason | None:
        """Why no update is made, as far as that is decided here; the kernel decides on everything graver."""
        if verdict is None or verdict.action is not Action.SKIP or not self.skips:
            return None
        return SkipReason(verdict.finding.value)

    def state(self) -> bytes:
        """The detector, for a checkpoint."""
        return _encoder.encode(self._detector.state())

    def inherit(self, state: bytes | None) -> None:
        """Begin anew, at the weights that the detector of `state` had seen trained.

        Only one thing it knew still holds: the loss of an untrained network.
        """
        known = _decoded(state)
        if known is not None:
            self._detector = Detector(
                state=DetectorState(course=CourseState(floor=known.course.floor)), unit=self._loss_unit
            )

    def load_state(self, state: bytes | None) -> None:
        """Judge as the detector that gave `state` would; without a state of this version, begin anew."""
        self._detector = Detector(state=_decoded(state), unit=self._loss_unit)


def _decoded(state: bytes | None) -> DetectorState | None:
    """A detector's state; None if there is none, or if an older version wrote it."""
    if not state:
        return None
    try:
        return _decoder.decode(state)
    except msgspec.ValidationError:
        _log.warning(
            "the checkpoint holds the detector of an older version, which cannot be taken over: the detector begins anew, "
            "and judges single losses from the 64th step on"
        )
        return None
