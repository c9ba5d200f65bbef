"""The life of one trainer: build, train, and report the end before the process or the caller sees it.

Promises: an exception of the task, a refusal and an order to exit are three different ends. The first two are reported
to the daemon. No exception of a task leaves this module. The same code serves a process, a thread of the daemon and a
user's program.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Generator
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from tolariad.channel import Activity
from tolariad.core import messages as m
from tolariad.core.calc.settings.reading import ConfigError
from tolariad.failpoints import reached
from tolariad.trainer.errors import SetupRefused, TaskRaised, ToldToExit
from tolariad.trainer.process.own_frames import is_own, shown
from tolariad.trainer.torch_private import light_start

if TYPE_CHECKING:
    from pathlib import Path

    from tolariad.channel import TrainerEnd
    from tolariad.trainer.loop import Trainer
    from tolariad.trainer.setup import Setup

# What a trainer does, as a generator: it yields when something else has to make a step.
Steps: TypeAlias = Generator[Any, None, None]

_LEFT: Final = "The program left its loop before the end of the run: by break, return or an exception."
_TEXT_CHARS: Final = 16_000
_SHORT_CHARS: Final = 1_000
_FLUSH_S: Final = 5.0
# Errors in the task's code: if they are raised while the task is built, a restart would raise them again. Errors of
# memory, disk and device are not among them.
_MISTAKES: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    FileNotFoundError,
    ImportError,
    LookupError,
    NameError,
    NotImplementedError,
    SyntaxError,
    TypeError,
    ValueError,
)


class End(Enum):
    """How a trainer ended."""

    TOLD = "told"
    REFUSED = "refused"
    RAISED = "raised"


class Ending(NamedTuple):
    """The end of a trainer; after an exception, also the exception and its traceback as text."""

    end: End
    error: Exception | None = None
    traceback: str = ""


def built(
    channel: TrainerEnd,
    run_dir: Path,
    run_id: str,
    *,
    config: bytes,
    threads: int | None,
    ring: int | None,
    setup: Setup | None = None,
) -> Trainer:
    """Import torch and build the run. Report the activity before each, because both take seconds.

    `setup`: what a spare has built of the same configuration, or None.
    """
    reached("build")
    light_start.install()
    from tolariad.trainer.build import build
    from tolariad.trainer.loop import Trainer

    channel.page.beat(0, time.monotonic_ns(), Activity.BUILD)
    return Trainer(setup or build(config, threads), channel, run_dir, run_id, ring=ring)


def see_through(make: Callable[[], Trainer], channel: TrainerEnd) -> Ending:
    """Create the trainer and train until it is told to exit, refuses, or raises. Report the end."""
    steps = steps_through(make, channel, train_task)
    try:
        while True:
            next(steps)
    except StopIteration as ended:
        ending: Ending = ended.value
        return ending


def train_task(trainer: Trainer) -> Steps:
    """Train the task. There is no step for anybody else."""
    trainer.run()
    yield from ()


def steps_through(
    make: Callable[[], Trainer], channel: TrainerEnd, drive: Callable[[Trainer], Steps]
) -> Generator[Any, None, Ending]:
    """Create the trainer and yield what `drive` yields, until it is told to exit, refuses, or raises. Report the end.

    If this generator is closed before, the user's program has left its loop: that is reported as an exception is.
    """
    trainer: Trainer | None = None
    report: m.ExceptionReport | m.SetupRefusedReport
    try:
        trainer = make()
        yield from drive(trainer)
        raise RuntimeError("the trainer ended without an order; this is a defect, please report it")
    except ToldToExit:
        flush(channel)
        return Ending(End.TOLD)
    except GeneratorExit:
        channel.report(m.ExceptionReport(step=trainer.step if trainer else 0, traceback=_LEFT))
        flush(channel)
        raise
    except TaskRaised as refused:
        text = told(shown(refused.__cause__ or refused)[-_TEXT_CHARS:])
        report = m.SetupRefusedReport(why=told(str(refused)), traceback=text)
        ending = Ending(End.REFUSED, refused, text)
    except (SetupRefused, ConfigError) as refused:
        report, ending = m.SetupRefusedReport(why=told(str(refused))), Ending(End.REFUSED, refused)
    except Exception as error:  # noqa: BLE001 - any exception of a task is reported and ends this trainer
        text = told(shown(error)[-_TEXT_CHARS:])
        if trainer is None and isinstance(error, _MISTAKES):
            why = told(f"the task raises {type(error).__name__}: {error}")
            report, ending = m.SetupRefusedReport(why=why, traceback=text), Ending(End.REFUSED, error, text)
        else:
            step = trainer.step if trainer else 0
            report, ending = _raised(error, step, text), Ending(End.RAISED, error, text)
    channel.report(report)
    flush(channel)
    return ending


def _raised(error: Exception, step: int, text: str) -> m.ExceptionReport:
    """Return the report of an exception after `step`, with what makes it recognisable."""
    frames = traceback.extract_tb(error.__traceback__)
    # The task's own line says more than one of torch or of this package, which many mistakes share.
    own = [frame for frame in frames if is_own(frame)]
    place = next(iter(reversed(own or frames)), None)
    return m.ExceptionReport(
        step=step,
        traceback=text,
        kind=told(f"{type(error).__module__}.{type(error).__qualname__}"[:_SHORT_CHARS]),
        place=told(f"{place.filename}:{place.lineno}") if place is not None else "",
        text=told("".join(traceback.format_exception_only(error)).strip()[-_SHORT_CHARS:]),
    )


def told(text: str) -> str:
    """Return a task's text in a form that can be recorded: valid Unicode of bounded length."""
    return text[:_TEXT_CHARS].encode("utf-8", "backslashreplace").decode()


def flush(channel: TrainerEnd) -> None:
    """Give the daemon a moment to receive the last reports."""
    give_up = time.monotonic() + _FLUSH_S
    while channel.unsent_count and not channel.closed and time.monotonic() < give_up:
        time.sleep(0.01)
        channel.flush()
