"""The trainer's process: it is started, reports its execution context, dies or ends, and is started again."""

import enum
from typing import TypeAlias

import msgspec

from tolariad.core.calc.learning_rate.group import Group
from tolariad.core.calc.units import Bytes, Hex, Seconds, Step
from tolariad.core.messages.base import DaemonEffect, Event, Report, TrainerEffect
from tolariad.core.messages.budget import BudgetsMeasured
from tolariad.core.messages.rates import AuditDiffered, LrGroupsChanged, LrViolationDetected
from tolariad.core.messages.run import ServiceLimits
from tolariad.core.messages.seeds import SlotFound
from tolariad.core.messages.steps import EpochStarted, ValidationBegun


class DeathReason(enum.Enum):
    """The reason for a trainer's end. `with_daemon` deaths do not count towards the limit."""

    SIGNAL = "signal"
    EXCEPTION = "exception"
    EXIT = "exit"
    HANG = "hang"
    MEMORY = "memory"
    KILLED = "killed"
    WITH_DAEMON = "with_daemon"


class DataPrint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The fingerprint of a data set: its number of items, and the hashes of a few that are spread over it.

    `items` is empty if items cannot be read by index, or differ whenever they are read. A single item that cannot be
    read has an empty hash.
    """

    length: int | None = None
    items: tuple[Hex, ...] = ()


class InexactDataFound(Event, frozen=True, kw_only=True):
    """Data that do not repeat themselves: a resumed run may see others. From then on a re-run that differs is expected.

    It was found by drawing them twice at the first start, or by a resume.
    """

    why: str


class DataNoted(Event, frozen=True, kw_only=True):
    """Something about the data that is not as the user may expect."""

    why: str


class BlueprintSource(msgspec.Struct, frozen=True, kw_only=True):
    """A blueprint that the configuration names, and the BLAKE3 of its file."""

    name: str
    hash: Hex


class Environment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The execution context: everything that may change a result. Equal environments must give equal bits.

    `data`: what describes the training data, then the validation data if there is any; empty in journals of older
    versions. `optimizers`: kind and implementation (fused, foreach, capturable) of those that the task or the program
    made; the configuration's are a part of `config_hash`.
    """

    python: str
    torch: str
    numpy: str
    tolariad: str
    cpu: str
    threads: int
    device: str
    determinism: str
    precision: str
    model_hash: Hex
    task_hash: Hex
    config_hash: Hex
    cuda: str = ""
    gpu: str = ""
    data: tuple[DataPrint, ...] = ()
    optimizers: str = ""


class CodeFile(msgspec.Struct, frozen=True):
    """A file of the user's program: its module's name as a path, and the beginning of its BLAKE3."""

    name: str
    hash: Hex


class Library(msgspec.Struct, frozen=True):
    """A library that the trainer had loaded, by the name under which it is imported."""

    name: str
    version: str


class TrainerStarted(Event, frozen=True, kw_only=True):
    """A trainer process was started.

    A later daemon that finds the lock held knows from this event which process to end.
    """

    incarnation: int
    pid: int
    start_ticks: int
    boot_id: Hex


class ExecutionContextRecorded(Event, frozen=True, kw_only=True):
    """A trainer was built, in this execution context. `hash` is compared before a differing re-run may stop the run.

    `steps_per_epoch`: 0 if only the data tells. `former_steps_per_epoch`: those before, if they were others: batches of
    another size, or another length. `other_data`: how the data differ from those before, if the start allowed that they
    do (DaemonStarted.accept_data). `other_blueprints`: whose files are others than when seeds germinated from them.
    `code`: the files of the user's program. `other_code`: those that differ from the ones before; `only_code`: nothing
    else of the context does. `accepts_code`: the start allowed it (DaemonStarted.accept_code). `libraries`: those that
    were loaded, sorted by name; empty in journals of older versions.
    """

    incarnation: int
    environment: Environment
    hash: Hex
    parameters: int
    steps_per_epoch: int
    notes: tuple[str, ...] = ()
    other_data: str = ""
    former_steps_per_epoch: int = 0
    other_blueprints: tuple[str, ...] = ()
    code: tuple[CodeFile, ...] = ()
    other_code: tuple[str, ...] = ()
    only_code: bool = False
    accepts_code: bool = False
    libraries: tuple[Library, ...] = ()


class SchedulingRecorded(Event, frozen=True, kw_only=True):
    """How the system scheduled recorder and trainer when the trainer was ready, as read back.

    It never changes the state. `cores`: those that the daemon may use. `disk_core`: the one that the journal's disk
    interrupts (-1: not known). Empty `daemon_cores`: no process is pinned. `polls`: the recorder polls for steps
    instead of being woken. `refused`: what the system denied; the run goes on without it.
    """

    skippable: bool = False  # type: ignore[misc]  # a field of this type alone
    incarnation: int
    threads: int
    cores: tuple[int, ...]
    disk_core: int = -1
    daemon_cores: tuple[int, ...] = ()
    trainer_cores: tuple[int, ...] = ()
    scheduler: str = ""
    priority: int = 0
    polls: bool = False
    why: str = ""
    refused: str = ""
    limits: ServiceLimits = ServiceLimits()


class Spare(enum.Enum):
    """What became of a spare: it waits, it took the place of a trainer, or it was given up."""

    READY = "ready"
    USED = "used"
    GIVEN_UP = "given_up"


class SpareChanged(Event, frozen=True, kw_only=True):
    """A spare, which has imported torch and waits to become trainer `incarnation`, is ready, was used or was given up.

    It never changes the state. `memory`: the memory that it holds.
    """

    skippable: bool = False  # type: ignore[misc]  # a field of this type alone
    incarnation: int
    pid: int
    spare: Spare
    memory: Bytes = 0
    why: str = ""


class TrainerHung(Event, frozen=True, kw_only=True):
    """The trainer sent no heartbeat for too long. Its process group is ended next.

    `rank`: the silent one of several that train together. Its activity is `stopped` if a signal has stopped it.
    """

    incarnation: int
    activity: str
    silent_s: Seconds
    limit_s: Seconds
    rank: int = 0


class ExceptionRaised(Event, frozen=True, kw_only=True):
    """An exception ended the training loop. TrainerDied follows.

    `kind`: its type. `place`: file and line, the innermost of the task's own code if there is one. `text`: its own last
    lines. If kind, place and step are those of the exception before it, a restart would raise it once more.
    """

    incarnation: int
    step: Step
    traceback: str
    kind: str = ""
    place: str = ""
    text: str = ""


class TrainerDied(Event, frozen=True, kw_only=True):
    """The trainer ended without an order, with everything known about the cause.

    `restart_s`: the next one starts after so many seconds; None: the run has ended. `in_program`: a program that calls
    the library trained, so its next start, or call of `train`, starts the next one. `rank`: the one that ended first,
    of several that train together.
    """

    incarnation: int
    reason: DeathReason
    step: Step
    pid: int = 0
    exit_code: int | None = None
    signal: str = ""
    output: str = ""
    stacks: str = ""
    restart_s: Seconds | None = None
    in_program: bool = False
    rank: int = 0


class TrainerEnded(Event, frozen=True, kw_only=True):
    """The trainer ended because it was ordered to."""

    incarnation: int
    step: Step


class TrainerUnkillable(Event, frozen=True, kw_only=True):
    """SIGKILL had no effect. No second trainer is started beside it, and the run is frozen."""

    incarnation: int
    pid: int
    state: str
    waited_s: Seconds


class SpawnTrainer(DaemonEffect, frozen=True, kw_only=True):
    """Start a trainer process with this incarnation number, after `delay_s`."""

    incarnation: int
    delay_s: Seconds = 0.0


class KillTrainer(DaemonEffect, frozen=True, kw_only=True):
    """End the trainer's process group with SIGKILL."""

    incarnation: int
    why: str


class ExitTrainer(TrainerEffect, frozen=True, kw_only=True):
    """To the trainer: end at the next boundary, without another update and without a checkpoint."""


class ReadyReport(Report, frozen=True, kw_only=True):
    """Model, optimizer and data are built. Nothing is restored or trained yet.

    `slots`: those for seeds, in the order of the model's modules. `blueprints`: the names of those that are built in,
    installed or configured. `sources`: the files of configured ones. `code`: the files of the user's program.
    `libraries`: those that are loaded, sorted by name.
    """

    environment: Environment
    parameters: int
    steps_per_epoch: int
    notes: tuple[str, ...] = ()
    groups: tuple[Group, ...] = ()
    slots: tuple[SlotFound, ...] = ()
    blueprints: tuple[str, ...] = ()
    sources: tuple[BlueprintSource, ...] = ()
    code: tuple[CodeFile, ...] = ()
    libraries: tuple[Library, ...] = ()


AnyTold: TypeAlias = (
    DataNoted | EpochStarted | ValidationBegun | LrGroupsChanged | LrViolationDetected | AuditDiffered | BudgetsMeasured
)


class Told(Report, frozen=True, kw_only=True):
    """An event of which the trainer alone knows. It is recorded as it was told, but for its stamp."""

    event: AnyTold


class InexactDataReport(Report, frozen=True, kw_only=True):
    """The data do not repeat themselves. The field is that of InexactDataFound."""

    why: str


class SetupRefusedReport(Report, frozen=True, kw_only=True):
    """The task or configuration cannot be trained, and a restart would not change that."""

    why: str
    traceback: str = ""


class ExceptionReport(Report, frozen=True, kw_only=True):
    """An exception ended the training loop. The process exits right after. The fields are those of ExceptionRaised."""

    step: Step
    traceback: str
    kind: str = ""
    place: str = ""
    text: str = ""
