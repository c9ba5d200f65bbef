"""Following the script of steps that the journal already holds, and comparing them bit for bit.

Promises: NaN equals NaN, +0 differs from -0; the first difference is kept with both values, all are counted.
It must not know: how a step is made.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING

import msgspec

from tolariad.core.vocabulary.checkpoints import Difference, RerunReport, Script, ScriptStep

if TYPE_CHECKING:
    from tolariad.core.vocabulary.steps import StepReport

_decoder = msgspec.msgpack.Decoder(Script)
_FIELDS = ("loss", "grad_norm", "lr", "rates")


class ScriptError(Exception):
    """The script does not fit the steps it is to be compared with."""


class Rerun:
    """The script's steps not yet compared, and what came of the others."""

    def __init__(self, attachment: bytes | None) -> None:
        """`attachment` is the script as msgpack; None or empty means that there is none."""
        script = _decoder.decode(attachment) if attachment else Script()
        self._steps = script.steps
        self._validations = {validation.epoch: validation.metrics for validation in script.validations}
        self._compared = 0
        self._differing = 0
        self._first: Difference | None = None

    @property
    def active(self) -> bool:
        """A step of the script is still to come."""
        return self._compared < len(self._steps)

    def metrics(self, epoch: int) -> dict[str, float]:
        """What the journal says of the validation after `epoch`; empty where it says nothing."""
        return self._validations.get(epoch, {})

    def compare(self, report: StepReport) -> RerunReport | None:
        """Compare a step that was run again; the report when it was the script's last."""
        expected = self._steps[self._compared]
        if expected.step != report.step:
            raise ScriptError(f"the script goes on at step {expected.step}, the trainer at step {report.step}")
        self._compared += 1
        difference = first_difference(expected, report)
        if difference is not None:
            self._differing += 1
            self._first = self._first or difference
        return None if self.active else self._finished()

    def _finished(self) -> RerunReport:
        first = self._first
        return RerunReport(
            first=self._steps[0].step,
            last=self._steps[-1].step,
            compared=self._compared,
            first_difference=msgspec.structs.replace(first, count=self._differing) if first else None,
        )


def first_difference(expected: ScriptStep, found: StepReport) -> Difference | None:
    """The first field whose bits differ, in the order loss, norm, first rate, digest of the rates."""
    for field in _FIELDS:
        was, now = getattr(expected, field), getattr(found, field)
        if not _same_bits(was, now):
            return Difference(step=found.step, field=field, expected=_shown(was), found=_shown(now))
    return None


def _same_bits(a: float, b: float) -> bool:
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    if math.isnan(a) and math.isnan(b):
        return True
    return struct.pack("<d", a) == struct.pack("<d", b)


def _shown(value: float) -> str:
    return str(value) if isinstance(value, int) else value.hex()
