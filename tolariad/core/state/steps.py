"""Steps, epochs, validations and re-runs: slice, apply table, queries.

Invariants: `step` only rises, by one, except in a rollback. A re-run ends exactly once. The digest covers what the
training did (`steps_digest.py`). So two runs are equal if and only if their digests are.
"""

import struct
from typing import Annotated, Final, Protocol

import msgspec
from msgspec.structs import replace

from tolariad.core import messages as m
from tolariad.core.calc.bounds import METRICS_MAX, TOKENS, storable, token_count
from tolariad.core.calc.steps.many import one_nan
from tolariad.core.state.fates import COUNTER, NEW_BRANCH, OF_THE_TRAINER, anew, set_back, survives
from tolariad.core.state.fold import ApplyTable, setting
from tolariad.core.state.steps_code import Code
from tolariad.core.state.steps_digest import RunningDigest

# The speed shown is measured over the last one to two windows of this many steps.
SPEED_WINDOW_STEPS: Final = 256
INEXACT_MAX: Final = 8
_DIGEST_STEP: Final = struct.Struct("<QQQQQQddd")
_DIGEST_SKIP: Final = struct.Struct("<QQQQdd")
_WORD: Final = 2**64 - 1


class Speed(msgspec.Struct, frozen=True):
    """Two earlier moments of this start: (step, monotonic ns). If they are equal, the speed is not known yet."""

    old_step: int = 0
    old_mono: int = 0
    mid_step: int = 0
    mid_mono: int = 0


class Measured(msgspec.Struct, frozen=True, omit_defaults=True):
    """The task's metrics, in the order of the run's names: the last step's, and the epoch's sums over `counts` steps.

    A NaN is in no sum.
    """

    last: tuple[float, ...] = ()
    sums: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()

    def with_step(self, metrics: tuple[float, ...]) -> "Measured":
        """Return them after one more step. Names that came later have longer tuples."""
        more = len(metrics) - len(self.sums)
        sums, counts = self.sums + (0.0,) * more, self.counts + (0,) * more
        # NaN is the only value that differs from itself.
        return Measured(
            metrics,
            tuple([one_nan(a + b) if b == b else a for a, b in zip(sums, metrics, strict=False)]),  # noqa: PLR0124
            tuple([a + (b == b) for a, b in zip(counts, metrics, strict=False)]),  # noqa: PLR0124
        )


class OpenRerun(msgspec.Struct, frozen=True):
    """A re-run that has not ended."""

    first: int
    last: int
    cause: m.Cause


class BranchProgress(msgspec.Struct, frozen=True):
    """What of the progress belongs to a branch: the figures of its last step, of its epoch, of its last validation."""

    loss: float | None = None
    grad_norm: float | None = None
    lr: float | None = None
    epoch_first_step: int = 1
    epoch_loss_sum: float = 0.0
    metrics: dict[str, float] = {}
    best_accuracy: float | None = None
    train_loss: float | None = None
    skip_epoch: int = 0
    skip_batch: int = 0
    measured: Measured | None = None
    # The sum of the metric `tokens` over all steps.
    tokens: int = 0


_PLACE: Final = set_back("RolledBack contains the place")
_TIME: Final = set_back("it measures time, which does not go back")


class Progress(BranchProgress, frozen=True):
    """Slice of RunState: the place of training. Each epoch field is the highest epoch with that event.

    `data`: fingerprints of the data that the run is trained on and validated with; empty if none was recorded yet.
    `metric_names`: the names of the steps' metrics, at most METRICS_MAX. `measured`: None before the first step with
    one. `inexact`: why steps that are made again may differ, as clauses; at most INEXACT_MAX.
    """

    step: Annotated[int, _PLACE] = 0
    epoch: Annotated[int, _PLACE] = 0
    batch: Annotated[int, _PLACE] = 0
    branch: Annotated[int, NEW_BRANCH] = 0
    last_mono: Annotated[int, survives("when the last step was recorded: time does not go back")] = 0
    last_wall: Annotated[int, survives("when the last step was recorded: time does not go back")] = 0
    steps_per_epoch: Annotated[int, OF_THE_TRAINER] = 0
    epoch_started: Annotated[int, _PLACE] = 0
    epoch_validated: Annotated[int, _PLACE] = 0
    epoch_finished: Annotated[int, _PLACE] = 0
    epoch_mono: Annotated[int, _TIME] = 0
    validating: Annotated[m.Cause | None, anew("a validation under way ends with the rollback")] = None
    validating_epoch: Annotated[int, anew("a validation under way ends with the rollback")] = 0
    environment: Annotated[str, OF_THE_TRAINER] = ""
    environment_since: Annotated[int, set_back("every step after the target is made in the present environment")] = 1
    determinism: Annotated[str, OF_THE_TRAINER] = ""
    data: Annotated[tuple[m.DataPrint, ...], OF_THE_TRAINER] = ()
    speed: Annotated[Speed, _TIME] = Speed()
    digest: Annotated[RunningDigest, set_back("it covers everything that training did, abandoned steps included")] = (
        RunningDigest()
    )
    skipped: Annotated[int, COUNTER] = 0
    rerun: Annotated[OpenRerun | None, OF_THE_TRAINER] = None
    metric_names: Annotated[tuple[str, ...], survives("the events of all steps refer to these names")] = ()
    inexact: Annotated[tuple[str, ...], survives("data that do not repeat themselves do not on any branch")] = ()
    code: Annotated[Code, set_back("every step after the target is made by the present program")] = Code()
    # The place of the metric `tokens` among the names; -1: no step has had it.
    tokens_at: Annotated[int, survives("the events of all steps refer to these names")] = -1

    @property
    def step_metrics(self) -> dict[str, float]:
        """Return the last step's metrics by name."""
        last = self.measured.last if self.measured is not None else ()
        return dict(zip(self.metric_names, last, strict=False))

    @property
    def epoch_metrics(self) -> dict[str, float]:
        """Return the means over the epoch's steps so far. A NaN counts in none."""
        if self.measured is None:
            return {}
        found = zip(self.metric_names, self.measured.sums, self.measured.counts, strict=False)
        return {name: total / count for name, total, count in found if count}

    @property
    def place(self) -> tuple[int, int]:
        """Return epoch and batch after which training goes on.

        After an epoch has ended, that is the next one's beginning.
        """
        if self.epoch_finished >= self.epoch:
            return storable(self.epoch_finished + 1), 0
        return self.epoch, self.batch

    @property
    def last_skip(self) -> tuple[int, int]:
        """Return epoch and batch after the last skipped step; (0, 0) if none was skipped."""
        return self.skip_epoch, self.skip_batch


class HasProgress(Protocol):
    """A state with this slice."""

    @property
    def progress(self) -> Progress:
        """Return where training stands."""


def _step_completed(s: Progress, e: m.StepCompleted, _: m.Cause) -> Progress:
    # Masked, since `apply` takes every event, even one with a negative number.
    packed = _DIGEST_STEP.pack(
        *(e.branch & _WORD, e.step & _WORD, e.epoch & _WORD, e.batch & _WORD, e.rates & _WORD, e.data & _WORD),
        *(one_nan(e.loss), one_nan(e.grad_norm), one_nan(e.lr)),
    )
    speed, metrics = s.speed, e.metrics
    if e.step - speed.mid_step >= SPEED_WINDOW_STEPS:
        speed = Speed(speed.mid_step, speed.mid_mono, e.step, e.mono)
    return replace(
        s,
        step=e.step,
        epoch=e.epoch,
        batch=e.batch,
        branch=e.branch,
        loss=e.loss,
        grad_norm=s.grad_norm if e.grad_norm == m.NOT_MEASURED else e.grad_norm,
        lr=e.lr,
        last_mono=e.mono,
        last_wall=e.wall,
        epoch_loss_sum=one_nan(s.epoch_loss_sum + e.loss),
        speed=speed,
        digest=s.digest.after(b"step", packed),
        measured=(s.measured or Measured()).with_step(metrics) if metrics else not_measured(s.measured),
        tokens=storable(s.tokens + token_count(metrics[at])) if 0 <= (at := s.tokens_at) < len(metrics) else s.tokens,
    )


def not_measured(measured: Measured | None) -> Measured | None:
    """Return the metrics after a step that has none."""
    return replace(measured, last=()) if measured is not None and measured.last else measured


def _epoch_over(measured: Measured | None) -> Measured | None:
    return measured and Measured(last=measured.last)


def _metrics_named(s: Progress, e: m.MetricsNamed, _: m.Cause) -> Progress:
    new = [name for name in dict.fromkeys(e.names) if name not in s.metric_names]
    names = (*s.metric_names, *new)[:METRICS_MAX]
    return replace(s, metric_names=names, tokens_at=names.index(TOKENS) if TOKENS in names else -1)


def _step_skipped(s: Progress, e: m.StepSkipped, _: m.Cause) -> Progress:
    whole = (number & _WORD for number in (e.branch, e.step, e.epoch, e.batch))
    packed = _DIGEST_SKIP.pack(*whole, one_nan(e.loss), one_nan(e.grad_norm))
    return replace(
        s,
        epoch=e.epoch,
        batch=e.batch,
        skipped=s.skipped + 1,
        skip_epoch=e.epoch,
        skip_batch=e.batch,
        digest=s.digest.after(b"skip", packed, e.reason.value.encode()),
    )


def _rerun_begun(s: Progress, e: m.RerunBegun, at: m.Cause) -> Progress:
    return replace(s, rerun=OpenRerun(e.first, e.last, at))


def _speed_anew(s: Progress, e: m.Event, _: m.Cause) -> Progress:
    # No step counted while the trainer started, ran steps again or was paused: that time says nothing of the speed.
    return replace(s, speed=Speed(s.step, e.mono, s.step, e.mono))


def _rerun_ended(s: Progress, e: m.Event, at: m.Cause) -> Progress:
    return _speed_anew(replace(s, rerun=None), e, at)


def _epoch_started(s: Progress, e: m.EpochStarted, _: m.Cause) -> Progress:
    return replace(
        s,
        epoch=e.epoch,
        batch=0,
        epoch_started=e.epoch,
        epoch_first_step=storable(s.step + 1),
        epoch_loss_sum=0.0,
        epoch_mono=e.mono,
        measured=_epoch_over(s.measured),
    )


def _epoch_finished(s: Progress, e: m.EpochFinished, _: m.Cause) -> Progress:
    digest = s.digest.after(b"epoch", struct.pack("<QQ", e.epoch & _WORD, e.step & _WORD))
    return replace(
        s,
        epoch_finished=e.epoch,
        batch=0,
        epoch_first_step=storable(s.step + 1),
        epoch_loss_sum=0.0,
        train_loss=e.train_loss,
        digest=digest,
        measured=_epoch_over(s.measured),
    )


def _validation_begun(s: Progress, e: m.ValidationBegun, at: m.Cause) -> Progress:
    return replace(s, validating=at, validating_epoch=e.epoch)


def _validation_finished(s: Progress, e: m.ValidationFinished, _: m.Cause) -> Progress:
    names = sorted(e.metrics)
    packed = b"".join(name.encode() + struct.pack("<d", one_nan(e.metrics[name])) for name in names)
    accuracy = e.metrics.get("accuracy")
    best = s.best_accuracy
    if accuracy is not None and (best is None or accuracy > best):
        best = accuracy
    return replace(
        s,
        validating=None,
        epoch_validated=s.epoch_validated if e.batch else max(s.epoch_validated, e.epoch),
        metrics=e.metrics,
        best_accuracy=best,
        digest=s.digest.after(b"validation", _place_of(e), packed),
    )


def _place_of(e: m.ValidationFinished) -> bytes:
    """Return the place of a validation, for the digest: the epoch, and the batch if it is within it."""
    places = (e.epoch, e.batch) if e.batch else (e.epoch,)
    return b"".join(struct.pack("<Q", number & _WORD) for number in places)


def _context(s: Progress, e: m.ExecutionContextRecorded, _: m.Cause) -> Progress:
    """Remember the step from which on the environment is the present one."""
    since = s.environment_since if e.hash == s.environment or e.only_code else s.step + 1
    return replace(
        s,
        environment=e.hash,
        environment_since=since,
        code=s.code.of_trainer(s.step, e),
        determinism=e.environment.determinism,
        data=e.environment.data or s.data,
        steps_per_epoch=e.steps_per_epoch,
    )


def _copied(s: Progress, e: m.StateCopied, _: m.Cause) -> Progress:
    return replace(s, code=s.code.with_files(e.code)) if e.code else s


def _compared(s: Progress, e: m.RerunFinished, at: m.Cause) -> Progress:
    return _rerun_ended(replace(s, code=s.code.compared(e)), e, at)


def _inexact(s: Progress, why: str) -> Progress:
    return s if why in s.inexact else replace(s, inexact=(*s.inexact, why)[:INEXACT_MAX])


def _inexact_data(s: Progress, e: m.InexactDataFound, _: m.Cause) -> Progress:
    return _inexact(s, e.why)


def _diverged(s: Progress, e: m.RerunDiverged, _: m.Cause) -> Progress:
    """Remember that the run does not repeat itself, unless changed code explains the difference."""
    if e.code:
        return s
    return _inexact(s, f"step {e.difference.step} came out differently before")


def progress_at(s: Progress, e: m.RolledBack) -> Progress:
    """Return the progress at the place of a rollback's target. The figures of its Branch are put there besides."""
    packed = struct.pack("<QQQQ", *(number & _WORD for number in (e.branch, e.step, e.epoch, e.batch)))
    last = storable(e.epoch - 1)
    return replace(
        s,
        step=e.step,
        epoch=e.epoch if e.batch else last,
        batch=e.batch,
        branch=e.branch,
        epoch_started=e.epoch if e.batch else last,
        epoch_validated=min(s.epoch_validated, last),
        epoch_finished=min(s.epoch_finished, last),
        epoch_mono=e.mono,
        environment_since=storable(e.step + 1),
        code=s.code.at_most_since(storable(e.step + 1)),
        speed=Speed(e.step, e.mono, e.step, e.mono),
        digest=s.digest.after(b"rollback", packed),
    )


def _architecture_changed(s: Progress, e: m.ArchitectureChanged, _: m.Cause) -> Progress:
    parts = struct.pack("<QQ", e.applied_before_step & _WORD, e.epoch_ended & _WORD), e.name, "\0", e.arguments
    return replace(s, digest=s.digest.after(b"architecture", *(_bytes(part) for part in parts)))


def _bytes(part: bytes | str) -> bytes:
    return part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")


def _rates_restored(s: Progress, e: m.RatesRestored, _: m.Cause) -> Progress:
    return replace(s, epoch_first_step=storable(s.step - e.losses + 1), epoch_loss_sum=one_nan(e.loss_sum))


APPLY: Final[ApplyTable] = {
    m.RatesRestored: _rates_restored,
    m.ArchitectureChanged: _architecture_changed,
    m.StepCompleted: _step_completed,
    m.MetricsNamed: _metrics_named,
    m.StepSkipped: _step_skipped,
    m.EpochStarted: _epoch_started,
    m.EpochFinished: _epoch_finished,
    m.ValidationBegun: _validation_begun,
    m.ValidationFinished: _validation_finished,
    m.ValidationAborted: setting(validating=None),
    m.TrainingStarted: _speed_anew,
    m.RerunBegun: _rerun_begun,
    m.RerunFinished: _compared,
    m.StateCopied: _copied,
    m.RerunAborted: _rerun_ended,
    m.RunResumed: _speed_anew,
    m.ExecutionContextRecorded: _context,
    m.InexactDataFound: _inexact_data,
    m.RerunDiverged: _diverged,
}


def speed_steps_s(progress: Progress, mono: int) -> float | None:
    """Return recent steps per second at monotonic time `mono` (ns of the same boot); None if that is not known yet."""
    elapsed = mono - progress.speed.old_mono
    done = progress.step - progress.speed.old_step
    return done * 1e9 / elapsed if elapsed > 0 and done > 0 else None
