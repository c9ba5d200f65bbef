"""When the state is digested: every N steps, at the last step of an epoch, at every checkpoint.

If N is not given, it is the power of two with which the digests cost at most 0.5 % of the time of the steps. A digest
is of the state immediately after an update, so a re-run can compare it at the same place. A checkpoint has its own,
since orders may have acted between.

Promises: a step without a digest costs two comparisons of integers. A digest changes nothing, draws nothing, and on a
device waits for nothing. In a re-run only steps are digested of which the journal has the digests.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Final

from tolariad.core import messages as m
from tolariad.trainer.step.parameter_digest import Digesting, Digests, digesting, tensors_of

if TYPE_CHECKING:
    from tolariad.trainer.orders import Link
    from tolariad.trainer.setup import Setup
    from tolariad.trainer.step.rerun import Rerun

# The share of the steps' time that digests may take if the user has not said how often they are made.
SHARE: Final = 0.005
# Without an order of the user the first one comes after so many steps: by then their time is known.
_FIRST: Final = 256
# Bytes that a device digests in a second, if it is a slow one. The host does not see how long it takes.
_DEVICE_BYTES_S: Final = 2e11
_NEVER: Final = 1 << 62


class ParameterDigests:
    """The digests of one trainer. `due`: the step after whose update the next one is made."""

    def __init__(self, setup: Setup, link: Link) -> None:
        self._setup = setup
        self._reporter = link.reporter
        self._every = setup.settings.digest.every_steps
        # Another rank has the same parameters.
        self._is_off = setup.place.rank != 0
        self.due = _NEVER
        self.last_batch = _NEVER if self._is_off else setup.train.batches or _NEVER
        # One that was computed and is told after its step's report.
        self.pending: tuple[int, Digesting] | None = None
        self._names: tuple[str, ...] = ()
        self._last_step, self._last_s = 0, 0.0
        self._step_s = self._owed_s = self._told_s = 0.0

    def begin(self, step: int) -> None:
        """Begin to make new steps after `step`."""
        self.pending = None
        if not self._is_off:
            self._last_step, self._last_s = step, time.perf_counter()
            every = self._every or _FIRST
            self.due = (step // every + 1) * every

    def begin_rerun(self) -> None:
        """Make no digests by themselves: the journal says of which steps there are any."""
        self.due, self.pending = _NEVER, None

    def take(self, step: int) -> None:
        """Digest the state after update `step`. It is told with the step's report."""
        began = time.perf_counter()
        tensors = tensors_of(self._setup)
        self.pending = step, (found := digesting(tensors))
        if self._every is not None:
            self.due = (step // self._every + 1) * self._every
            return
        ended = time.perf_counter()
        size = sum(tensor.nbytes for tensor in tensors.values() if not tensor.is_cpu) if found.on_device else 0
        cost_s = ended - began + self._told_s + size / _DEVICE_BYTES_S
        if (steps := step - self._last_step) > 0:
            took_s = (began - self._last_s) / steps
            # Pauses and validations are between steps too: one long interval alone does not count.
            self._step_s = min(took_s, 2 * self._step_s) if self._step_s else took_s
            # What the digests at the ends of epochs cost too much, the others save.
            self._owed_s = max(0.0, self._owed_s + cost_s - SHARE * self._step_s * steps)
        self._last_step, self._last_s = step, ended
        if step >= _FIRST:
            every = every_steps(max(cost_s, self._owed_s), self._step_s)
            self.due = (step // every + 1) * every

    def drop(self) -> None:
        """Drop the digest of a step that is not reported, because a rollback commits."""
        self.pending = None

    def tell(self) -> None:
        """Report the pending digest, after the report of its step."""
        if self.pending is not None:
            began = time.perf_counter()
            (step, found), self.pending = self.pending, None
            self._report(step, found.read(), "")
            self._told_s = time.perf_counter() - began

    def of_checkpoint(self, step: int, checkpoint: str) -> None:
        """Digest the state of which a checkpoint was just copied, and report it."""
        if not self._is_off:
            self._report(step, digesting(tensors_of(self._setup)).read(), checkpoint)

    def _report(self, step: int, found: Digests, checkpoint: str) -> None:
        # A checkpoint comes rarely, and whoever reads a later part of the journal finds the names there.
        names = () if found.names == self._names and not checkpoint else found.names
        self._names = found.names
        self._reporter.report(
            m.ParametersDigestedReport(
                step=step,
                digest=found.whole,
                tensors=found.tensors,
                method=found.method,
                names=names,
                checkpoint=checkpoint,
            )
        )

    def compared(self, rerun: Rerun, step: int) -> m.Difference | None:
        """Compare the state after update `step` with the journal; None if it is the same, or the journal has none."""
        expected = None if self._is_off else rerun.digests.get(step)
        if expected is None:
            return None
        return differing(expected, digesting(tensors_of(self._setup)).read())


def every_steps(cost_s: float, step_s: float) -> int:
    """Return the least power of two of steps in which a digest that costs `cost_s` takes at most its share."""
    wanted = cost_s / (SHARE * step_s) if step_s > 0 else _FIRST
    # A power of two: runs on machines of other speeds have steps in common.
    return 1 << math.ceil(math.log2(min(max(wanted, 1.0), 1 << 30)))


def differing(expected: m.ScriptDigest, found: Digests) -> m.Difference | None:
    """Return the difference of the digests of one step, with the first tensor that differs; None if there is none.

    Digests of two methods say nothing about each other.
    """
    if expected.method is not found.method or expected.tensors == found.tensors:
        return None
    if len(expected.tensors) != len(found.tensors):
        counts = str(len(expected.tensors)), str(len(found.tensors))
        return m.Difference(step=expected.step, field="the number of tensors", expected=counts[0], found=counts[1])
    pairs = zip(found.names, expected.tensors, found.tensors, strict=True)
    name, was, is_now = next(one for one in pairs if one[1] != one[2])
    field, digests = f"digest of {name}", (f"{was:016x}", f"{is_now:016x}")
    return m.Difference(step=expected.step, field=field, expected=digests[0], found=digests[1])
