"""The detector in the training loop: what it says of a step before its update, and what a skipped one puts back.

Promises: every step is judged once, in order, whether it is made or run again, so a re-run leaves the detector as the first
run did; its state is a value, part of every checkpoint. It must not know: reports, orders, or what the kernel decides.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from tolariad.core.detection import Action, Detector, DetectorState, Finding, Verdict, WindowState
from tolariad.core.vocabulary.detection import InstabilityReport
from tolariad.core.vocabulary.steps import NOT_MEASURED, SkipReason
from tolariad.trainer.aside import Aside
from tolariad.trainer.step import Measured

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import nn

    from tolariad.core.settings import Detect
    from tolariad.core.vocabulary.quarantine import Batches
    from tolariad.trainer.checkpoints.snapshot import Position
    from tolariad.trainer.rerun import Rerun

# Steps that were skipped for these leave nothing of their forward pass.
OF_THE_DETECTOR: Final = frozenset({SkipReason.SPIKE, SkipReason.NON_FINITE})
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(DetectorState)


# What is reported of a batch that is passed over.
NOT_LOOKED_AT: Final = Measured(math.nan, NOT_MEASURED)
# A drift is in the last few steps, as far as the fast average looks back.
_DRIFT_STEPS: Final = 8


def suspects(verdict: Verdict) -> int:
    """How many updates, the judged one last, what was found may come from.

    A row of unhealthy ones may come from the last healthy one: it was made, and they were not.
    """
    if verdict.finding is Finding.DIVERGENCE:
        return _DRIFT_STEPS
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
    """One run's detector. `skips`: unhealthy steps are skipped here and now, where their numbers are known in time."""

    def __init__(self, model: nn.Module, device: torch.device, detect: Detect, *, reads_late: bool) -> None:
        self._detector = Detector()
        self.aside = Aside(model, device)
        self.skips = detect.act and detect.skip and not reads_late

    def look(self, measured: Measured, rerun: Rerun | None, step: int) -> Judged:
        """Judge the batches that were taken for update `step`; `rerun`: what the journal has of them, if it has them.

        What was skipped once is skipped again, whatever shows here: else steps would not be those of the journal. And the
        detector is told what it was told then, so that it knows afterwards what it knew then.
        """
        if rerun is None:
            # The scale was too large, and what the forward pass left is sound. With a loss that is not finite it is not.
            if measured.overflow and (not self.skips or math.isfinite(measured.loss)):
                return _OVERFLOWN
            verdict = self._detector.judge(measured.loss, measured.grad_norm)
            if verdict is None:
                return _HEALTHY
            found = self._reason_to_skip(verdict)
            return Judged(found, found, verdict)
        reason = rerun.skip_before(step)
        if reason is SkipReason.OVERFLOW or (measured.overflow and reason is None):
            return Judged(reason, SkipReason.OVERFLOW if measured.overflow else None)
        verdict = self.judge(*rerun.told(step))
        return Judged(reason, self._reason_to_skip(verdict), verdict)

    def judge(self, loss: float, grad_norm: float) -> Verdict | None:
        """The verdict on the next step; None where it is healthy. A gradient norm of -1 was not measured."""
        return self._detector.judge(loss, grad_norm)

    def _reason_to_skip(self, verdict: Verdict | None) -> SkipReason | None:
        """Why no update is made, as far as that is decided here; the kernel decides on everything graver."""
        if verdict is None or verdict.action is not Action.SKIP or not self.skips:
            return None
        return SkipReason(verdict.finding.value)

    def state(self) -> bytes:
        """The detector, for a checkpoint."""
        return _encoder.encode(self._detector.state())

    def inherit(self, state: bytes | None) -> None:
        """Begin anew, at the weights that the detector of `state` had seen trained: of what it knew, only at which loss an untrained
        network stands is still so.
        """
        if state:
            floor = _decoder.decode(state).loss.floor
            self._detector = Detector(state=DetectorState(loss=WindowState(floor=floor)))

    def load_state(self, state: bytes | None) -> None:
        """Judge as the detector that gave `state` would; a checkpoint of older versions has none, and it begins anew."""
        self._detector = Detector(state=_decoder.decode(state) if state else None)
