"""The trainer as recorded in the journal: slice, apply table, queries.

Invariants: at most one trainer lives. Deaths are counted in the journal. A new durable step sets the count to 0, and so
does a batch that enters quarantine for them. Without a new step only so many batches can do that. A trainer that ended
with its daemon does not count. The last exception is remembered as long as the deaths are: also by the next trainers.
"""

import hashlib
from typing import ClassVar, Final, Protocol

import msgspec
from msgspec.structs import replace

from tolariad.core import messages as m
from tolariad.core.calc.copying import Copying
from tolariad.core.state.fold import ApplyTable, setting

BACKOFF_S_MAX: Final = 60.0
# A death so soon after another one is no chance event, even if a step lies between them.
SOON_S: Final = 10.0


class KnownException(msgspec.Struct, frozen=True):
    """The last exception of a training loop: its type, its place in the code, the last step, its last lines."""

    kind: str
    place: str
    step: int
    text: str

    @property
    def words(self) -> str:
        """Return its last lines as one, with file and line."""
        text = " ".join(self.text.split())
        return f"{text} ({self.place})" if self.place else text


class Trainer(Copying, frozen=True):
    """Slice of RunState: the present trainer, or the last one. `began`: it has restored and trains.

    `cured`: how many batches entered quarantine for its deaths since the last new step. `repeats`: how often the last
    exception was raised again, by this trainer or by those before it. `accepts_data`: the next trainer may have other
    data than the run had, `accepts_code`: its code may give other bits. `died_mono`: when this daemon last recorded a
    death, in monotonic ns; 0: never. `ranks`: the newest times of each rank, if several train together.
    """

    SURVIVES: ClassVar[str] = "the trainer's process and its deaths: a rollback changes neither"

    incarnation: int = 0
    alive: bool = False
    pid: int = 0
    start_ticks: int = 0
    boot_id: str = ""
    ready: bool = False
    began: bool = False
    held: bool = False
    deaths: int = 0
    deaths_total: int = 0
    hung: bool = False
    raised: m.Cause | None = None
    last_death: str = ""
    died_mono: int = 0
    cured: int = 0
    exception: KnownException | None = None
    repeats: int = 0
    accepts_data: bool = False
    accepts_code: bool = False
    ranks: tuple[m.RankTimes, ...] = ()

    @property
    def repeated(self) -> KnownException | None:
        """Return the exception of this trainer if an earlier one raised the same at the same step, else None."""
        return self.exception if self.raised is not None and self.repeats else None

    @property
    def takes_orders(self) -> bool:
        """Return whether a trainer lives that gets orders as they come; any other gets them with its order to train."""
        return self.alive and self.ready

    def refused(self, why: str) -> m.ReportRefused:
        """Return the event for a report that contradicts the journal. The trainer that sent it is ended."""
        return m.ReportRefused(incarnation=self.incarnation, why=why)


class HasTrainer(Protocol):
    """A state with this slice."""

    @property
    def trainer(self) -> Trainer:
        """Return the present trainer, or the last one."""


def _started(s: Trainer, e: m.TrainerStarted, _: m.Cause) -> Trainer:
    return Trainer.of(
        e,
        alive=True,
        deaths=s.deaths,
        deaths_total=s.deaths_total,
        last_death=s.last_death,
        died_mono=s.died_mono,
        cured=s.cured,
        exception=s.exception,
        repeats=s.repeats,
        accepts_data=s.accepts_data,
        accepts_code=s.accepts_code,
    )


def _opened(s: Trainer, e: m.DaemonStarted, _: m.Cause) -> Trainer:
    return replace(s, accepts_data=e.accept_data, accepts_code=e.accept_code, died_mono=0)


def _raised(s: Trainer, e: m.ExceptionRaised, at: m.Cause) -> Trainer:
    if not e.kind:
        # Recorded by a version that did not record the type.
        return replace(s, raised=at, exception=None, repeats=0)
    now, known = KnownException(e.kind, e.place, e.step, e.text), s.exception
    is_same = known is not None and (known.kind, known.place, known.step) == (now.kind, now.place, now.step)
    return replace(s, raised=at, exception=now, repeats=s.repeats + 1 if is_same else 0)


def _died(s: Trainer, e: m.TrainerDied, _: m.Cause) -> Trainer:
    counts = e.reason is not m.DeathReason.WITH_DAEMON
    return replace(
        s,
        incarnation=max(s.incarnation, e.incarnation),
        alive=False,
        held=False,
        deaths=s.deaths + counts,
        deaths_total=s.deaths_total + counts,
        last_death=(e.signal or e.reason.value) if counts else s.last_death,
        died_mono=e.mono if counts else s.died_mono,
    )


def _paused(s: Trainer, _: m.RunPaused, __: m.Cause) -> Trainer:
    return replace(s, held=s.alive)


def _stepped(s: Trainer, _: m.StepCompleted, __: m.Cause) -> Trainer:
    return replace(s, deaths=0, cured=0, exception=None, repeats=0) if s.deaths or s.cured else s


def _cured(s: Trainer, e: m.QuarantineAdded, _: m.Cause) -> Trainer:
    """Reset the count of deaths: the batch that caused them is skipped from now on."""
    return replace(s, deaths=0, cured=s.cured + 1, exception=None, repeats=0) if e.deaths else s


def _measured(s: Trainer, e: m.BudgetsMeasured, _: m.Cause) -> Trainer:
    return replace(s, ranks=e.ranks) if e.ranks else s


APPLY: Final[ApplyTable] = {
    m.DaemonStarted: _opened,
    m.TrainerStarted: _started,
    m.ExecutionContextRecorded: setting(ready=True, accepts_data=False, accepts_code=False),
    m.ExceptionRaised: _raised,
    m.TrainerHung: setting(hung=True),
    m.TrainerDied: _died,
    m.TrainerEnded: setting(alive=False, held=False),
    m.TrainingStarted: setting(began=True),
    m.RunPaused: _paused,
    m.RunResumed: setting(held=False),
    m.RunRetried: setting(deaths=0, cured=0, exception=None, repeats=0),
    m.StepCompleted: _stepped,
    m.QuarantineAdded: _cured,
    m.BudgetsMeasured: _measured,
}


def backoff_s(s: Trainer, mono: int) -> float:
    """Return the delay before the next start if the trainer dies now, at monotonic time `mono`: seconds.

    The first death says nothing about the next trainer, unless there was another one a moment ago: 0, or 1 second. Each
    further death without a new step doubles it: 2, 4 … 60 seconds.
    """
    if s.deaths == 0 and not (s.died_mono and mono - s.died_mono < SOON_S * 1e9):
        return 0.0
    return min(BACKOFF_S_MAX, 2.0**s.deaths)


def environment_hash(environment: m.Environment) -> str:
    """Return the SHA-256 of the canonical encoding: equal environments have equal hashes in any process."""
    return hashlib.sha256(msgspec.msgpack.encode(environment, order="deterministic")).hexdigest()
