"""Follow the script of a re-run: the steps that the journal already holds. Compare each step with it, bit for bit.

Promises: NaN equals NaN, and +0 differs from -0. The first difference is kept with both values; all are counted.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from tolariad.core import messages as m

if TYPE_CHECKING:
    from collections.abc import Sequence


_decoder = msgspec.msgpack.Decoder(m.Script)
# The name of a difference in the batches of a step, which were read before its loss was computed.
DATA: Final = "data"
# The numbers of a step: its loss, gradient norm, first rate and digest of the rates. A skipped step has the first two.
STEP_FIELDS: Final = ("loss", "grad_norm", "lr", "rates")


class ScriptError(Exception):
    """The script does not match the steps that the trainer makes."""


class Rerun:
    """The script's steps that are not compared yet, and the result of the others."""

    def __init__(self, attachment: bytes | None) -> None:
        """`attachment` is the script as msgpack; None or empty if there is none."""
        script = _decoder.decode(attachment) if attachment else m.Script()
        self._steps = script.steps
        self._skips = script.skips
        # Boundary orders that are not applied yet.
        self.orders = list(script.orders)
        # Changes of the model's shape, whether they were made again or not.
        self.changes = script.changes
        # The digests of the state after a step, by step.
        self.digests = {one.step: one for one in script.digests}
        self._validations, self._within = script.validations, script.within
        # Whether the journal has a validation within an epoch.
        self.validates = bool(script.within)
        self._compared = 0
        self._skipped = 0
        self._differing = 0
        self._first: m.Difference | None = None

    @property
    def active(self) -> bool:
        """Whether the script has further steps, applied or skipped."""
        return self._compared < len(self._steps) or self._skipped < len(self._skips)

    def skip_before(self, step: int) -> m.SkipReason | None:
        """Return why the current batches were not applied as update `step` but skipped; None if they were applied."""
        if self._skipped < len(self._skips) and self._skips[self._skipped].step == step:
            return self._skips[self._skipped].reason
        return None

    def told(self, step: int) -> tuple[float, float]:
        """Return the journal's loss and gradient norm of the current batches, applied as update `step` or skipped."""
        one = self._skips[self._skipped] if self.skip_before(step) is not None else self._steps[self._compared]
        return one.loss, one.grad_norm

    def orders_before(self, step: int, epoch: int) -> list[m.ScriptOrder]:
        """Return the boundary orders that act before update `step` in `epoch`. Each is returned once."""
        due = [one for one in self.orders if one.before_step <= step and one.after_epoch < epoch]
        self.orders = [one for one in self.orders if one not in due]
        return due

    @property
    def loss(self) -> float:
        """The journal's loss of the step that is compared next."""
        return self._steps[self._compared].loss

    def metrics(self, epoch: int) -> dict[str, float]:
        """Return the journal's metrics of the validation after `epoch`; empty if it has none."""
        return self._validations.get(epoch, {})

    def within(self, step: int) -> dict[str, float] | None:
        """Return the journal's metrics of the validation within an epoch after `step`; None if it has none there."""
        return self._within.get(step)

    def acts_at(self, step: int) -> bool:
        """Return whether a boundary order of the journal acts before update `step` and is not repeated yet."""
        return any(one.before_step == step for one in self.orders)

    def compare(self, report: m.StepReport, after: m.Difference | None = None) -> m.RerunReport | None:
        """Compare a step that was re-run. Return the report if it was the script's last step.

        `after`: how the state after the step differs. It follows from the step's numbers if these differ too.
        """
        expected = self._steps[self._compared]
        if expected.step != report.step:
            raise ScriptError(f"the script continues at step {expected.step}, the trainer at step {report.step}")
        self._compared += 1
        found = _of_other_data(first_difference(expected, report, STEP_FIELDS), expected.data, report.data)
        return self._taken(found or after)

    def compare_skip(self, report: m.StepSkippedReport, found: m.SkipReason | None) -> m.RerunReport | None:
        """Compare a step that was skipped again.

        `found` is the reason for which it would have been skipped without the script; None if it would have been
        applied.
        """
        expected = self._skips[self._skipped]
        if (expected.epoch, expected.batch) != (report.epoch, report.batch):
            raise ScriptError(f"the script skips batch {expected.batch}, the trainer batch {report.batch}")
        self._skipped += 1
        difference = first_difference(expected, report, STEP_FIELDS[:2])
        if difference is None and found is not expected.reason:
            now = found.value if found else "applied"
            difference = m.Difference(step=report.step, field="skipped", expected=expected.reason.value, found=now)
        return self._taken(difference)

    def goes_beyond(self, step: int) -> bool:
        """Return whether the script has steps after `step`, which is the next one to be compared."""
        return bool(self._steps) and self._steps[-1].step > step

    def differs(self, difference: m.Difference) -> None:
        """Count a difference that is not one of a step's numbers."""
        self._differing += 1
        self._first = self._first or difference

    def _taken(self, difference: m.Difference | None) -> m.RerunReport | None:
        """Count a comparison. Return the report if it was the script's last."""
        if difference is not None:
            self.differs(difference)
        return None if self.active else self._finished()

    def _finished(self) -> m.RerunReport:
        found = self._first
        first = self._steps[0].step if self._steps else self._skips[0].step
        return m.RerunReport(
            first=first,
            last=self._steps[-1].step if self._steps else first - 1,
            compared=self._compared,
            skipped=self._skipped,
            first_difference=replace(found, count=self._differing) if found else None,
        )


def first_difference(
    expected: m.ScriptStep | m.StepSkipped, found: m.StepReport | m.StepSkippedReport, fields: Sequence[str]
) -> m.Difference | None:
    """Return the first of `fields` whose bits differ, or None."""
    for field in fields:
        was, now = getattr(expected, field), getattr(found, field)
        if not _same_bits(was, now):
            return m.Difference(step=found.step, field=field, expected=_shown(was), found=_shown(now))
    return None


def _of_other_data(difference: m.Difference | None, was: int, now: int) -> m.Difference | None:
    """Return a difference that other batches explain as one of the data: that is the cause of the others.

    Without a difference in the numbers, a batch that differs does so in a field that nobody trains on.
    """
    if difference is None or was == now or not was or not now:
        return difference
    return replace(difference, field=DATA, expected=f"{was:08x}", found=f"{now:08x}")


def _same_bits(a: float, b: float) -> bool:
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    if math.isnan(a) and math.isnan(b):
        return True
    return struct.pack("<d", a) == struct.pack("<d", b)


def _shown(value: float) -> str:
    """Return a number of which every bit can be read back."""
    return repr(value)
