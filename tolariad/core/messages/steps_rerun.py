"""Messages of re-runs: steps after the newest checkpoint are made again and compared with the journal."""

import msgspec

from tolariad.core.calc.units import Step
from tolariad.core.messages.base import Event, Report
from tolariad.core.messages.trainer import CodeFile


class RerunBegun(Event, frozen=True, kw_only=True):
    """Steps `first` to `last`, durable already, are being run again from the checkpoint to restore their result."""

    first: Step
    last: Step
    checkpoint: str


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The first value that differed in a re-run, as a number. Older journals have hexadecimal floats.

    `field`: a field of the step, or `digest of NAME`: the digest of a tensor after the step, in hexadecimal digits.
    """

    step: Step
    field: str
    expected: str
    found: str
    count: int = 1


class RerunFinished(Event, frozen=True, kw_only=True):
    """The re-run reached the last durable step. `first_difference` is absent if every bit was the same.

    `last` is below `first` if only skipped steps, `skipped` of them, had to be repeated. `expected`: why steps may
    differ, as a clause; "" if they may not. `other_code`: the names of files that were loaded during the re-run, and
    differ from the ones before.
    """

    first: Step
    last: Step
    compared: int
    first_difference: Difference | None = None
    skipped: int = 0
    expected: str = ""
    other_code: tuple[str, ...] = ()


class RerunAborted(Event, frozen=True, kw_only=True):
    """The re-run did not reach its end. The next start begins it again."""

    why: str


class RerunDiverged(Event, frozen=True, kw_only=True):
    """A step came out differently under strict determinism and in the same environment. The run stops.

    `code`: the files of the user's program that have changed since the step was made.
    """

    difference: Difference
    code: tuple[str, ...] = ()


class RerunReport(Report, frozen=True, kw_only=True):
    """The script has been run to its end.

    `code`: what of the program's code was loaded after training had begun, if a step differs.
    """

    first: Step
    last: Step
    compared: int
    first_difference: Difference | None = None
    skipped: int = 0
    code: tuple[CodeFile, ...] = ()
