"""Tolaria: train under the recorder in your own program, without a daemon.

    from tolariad import Tolaria
    result = Tolaria({"tolaria": {"epochs": 3}}).train(model, train_loader, val_loader, epochs=3)

Training runs in the thread that calls `train`; a process beside the program records. A program that is killed and
started again continues where it was, bit for bit. ^C and a notebook's stop button end the training at the next step
boundary, with a checkpoint. SIGTERM does the same, and ends the program after that. SIGUSR1 and SIGUSR2 write a
checkpoint, or act as SIGTERM does: `signals` of the configuration says which.

Promises: P1 to P3, as for the daemon. Signal handlers, random state and torch's global switches are restored at the
end. Only one run at a time in a process, because random state and switches belong to the process.
"""

from __future__ import annotations

import copy
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import torch
from msgspec.structs import replace
from torch import nn

from tolariad import config as reading
from tolariad.attach import spawn
from tolariad.core import queries as q
from tolariad.core import state as st
from tolariad.core.calc.run.exits import EXIT_TERMINATED
from tolariad.core.calc.settings.model import Settings, SignalSettings
from tolariad.core.calc.settings.reading import ConfigError
from tolariad.core.calc.settings.task_defaults import GIVEN
from tolariad.core.state.run_state import RunState
from tolariad.library import ranks
from tolariad.library.analyses import require_prunable
from tolariad.library.attached import Attached
from tolariad.library.failed import RunFailed
from tolariad.library.folders import warn_of_another
from tolariad.library.live_line import ProgressWords, live_line
from tolariad.library.loop_task import LoopTask, for_own_loop
from tolariad.library.own_loop import OwnLoop
from tolariad.library.own_step import LoopStep
from tolariad.library.recorder import hello
from tolariad.library.result import TrainingResult
from tolariad.refusal import StartRefused
from tolariad.storage import copy_checkpoint
from tolariad.trainer.data.randomness import preserved_rng
from tolariad.trainer.errors import SetupRefused, TaskRaised
from tolariad.trainer.loop import Trainer
from tolariad.trainer.process.determinism import lent
from tolariad.trainer.process.lifecycle import Steps, train_task
from tolariad.trainer.process.released import released
from tolariad.trainer.setup import ALONE, Place
from tolariad.trainer.step.several import StepperOfUpdates
from tolariad.trainer.step.stepper import Stepper
from tolariad.trainer.tasks.given import GivenTask

if TYPE_CHECKING:
    from tolariad.trainer.ranks.exact import ExactSum

_log: Final = logging.getLogger(__name__)
_COMPLETE: Final = (
    "The run in %s is complete (epoch %d, step %d): nothing to train. The model has its parameters. To train on, give "
    "more epochs; to train anew, another run_dir."
)
_NO_RUN: Final = (
    "no run is active, and a rollback is for a run that trains: call it from a hook, the loop or another thread. "
    "`tolaria checkpoints {}` lists what this run has kept"
)
_busy: Final = threading.Lock()
# What a second signal does, as in any Python program.
_USUAL: Final[dict[int, Any]] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
# Warnings of job schedulers; the setting `signals` says what they do.
_WARNINGS: Final = (signal.SIGUSR1, signal.SIGUSR2)


class Tolaria:
    """Training under the recorder, synchronously. `train` may be called again: it continues a run that is not complete.

    `config`: a mapping or a YAML file with the key `tolaria`, or `Settings`. `run_dir`: the run's folder, by default
    `./runs/` and the file's name. `accept_config`: continue an existing run with a configuration that differs from its
    own. `accept_data`: continue it with other data than it was trained on. Raises ConfigError if the configuration is
    invalid.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | str | Path | Settings | None = None,
        *,
        run_dir: str | Path | None = None,
        accept_config: bool = False,
        accept_data: bool = False,
        accept_code: bool = False,
    ) -> None:
        self._source = Path(config) if isinstance(config, str | Path) else None
        # A copy: what the caller changes afterwards is not a part of this run.
        self._config = copy.deepcopy(config) or {"tolaria": {}}
        self._settings(epochs=None)
        name = self._source.stem if self._source else "library"
        self.run_dir = Path(run_dir) if run_dir is not None else Path("runs") / name
        self._accept_config, self._accept_data, self._accept_code = accept_config, accept_data, accept_code
        self._live: Attached | None = None
        self._loop: OwnLoop | None = None
        self._state = RunState()
        self._place = ALONE
        # Those of a run in progress that has exact sums.
        self._sums: ExactSum | None = None
        # Its imports take half a second: let it begin beside what the program does next.
        if ranks.may_have_recorder():
            spawn.prepare()

    def train(
        self,
        model: nn.Module,
        train_loader: Any,
        val_loader: Any,
        epochs: int,
        *,
        task: Any = None,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> TrainingResult:
        """Train to the end of `epochs`, or until stopped. After that `model` has the run's parameters.

        A loader is a DataLoader, a dataset, or a tuple of tensors; `val_loader` may be None. `task` may have any method
        of `tolariad.Task` except `model` and those for data: `loss`, `evaluate`, hooks. Without it a batch is a pair
        (inputs, targets). Without `optimizer` the configuration decides. The rate controller sets the learning rates.

        Raises SetupRefused or StartRefused if nothing was started, and RunFailed. An exception of a hook or the model
        is raised too; when `train` is called again, the run continues from its last durable step.
        """
        settings = self._settings(epochs)
        self._place = ranks.place_of_train(settings, model)
        if settings.parallel.exact:
            ranks.refuse_split(train_loader)
        given = GivenTask(model, train_loader, val_loader, task=task, optimizer=optimizer)
        for _ in self._steps(settings, given, train_task):
            pass
        return self._result()

    def run(
        self,
        model: nn.Module,
        optimizers: torch.optim.Optimizer | Mapping[str, torch.optim.Optimizer] | None,
        train_loader: Any,
        val_loader: Any = None,
        *,
        task: Any = None,
    ) -> OwnLoop:
        """Return the run for a loop of your own: `for epoch in run.epochs(10): for batch in run.batches(): ...`.

        `optimizers`: one, several by name, or None for those of the configuration. `val_loader`: evaluated as `train`
        does after an epoch for which the loop gives no metrics; None: not. `task` may have the optional methods of
        `tolariad.Task`. Nothing begins before `epochs` is iterated over (docs/library.md).
        """
        self._place = ranks.place_here()
        model = ranks.bare(model, self._place)
        given = LoopTask(model, train_loader, val_loader, task=task, optimizer=optimizers)

        def begin(epochs: int, drive: Callable[[Trainer], Steps]) -> Steps:
            settings = for_own_loop(self._settings(epochs), model, optimizers)
            if settings.parallel.exact:
                ranks.refuse_split(train_loader)
            return self._steps(settings, given, drive, StepperOfUpdates)

        self._loop = OwnLoop(begin, given, self._result, self._stop, self._step_maker)
        return self._loop

    def _step_maker(self, trainer: Trainer) -> LoopStep:
        """Return what makes the steps of a loop with this trainer."""
        if self._live is None or not trainer.setup.settings.parallel.exact:
            return LoopStep(trainer)
        from tolariad.library.leaf_step import LeafStep
        from tolariad.trainer.ranks.leaf_steps import sums_of

        if self._sums is None:
            self._sums = sums_of(trainer.setup, *self._live.group, ranks.wrapper_of(trainer.setup.model))
        return LeafStep(trainer, self._sums)

    def stop(self) -> bool:
        """End the run at the next boundary, with a checkpoint. Return False if it was refused or no run is active.

        From a hook, a loop of your own, or another thread.
        """
        return self._stop("Tolaria.stop")

    def _stop(self, reason: str) -> bool:
        live = self._live
        return live.stop(reason) if live is not None else False

    def _steps(
        self,
        settings: Settings,
        given: GivenTask,
        drive: Callable[[Trainer], Steps],
        stepper: type[Stepper] | None = None,
    ) -> Steps:
        """Open the run, and yield what `drive` yields until it ends. Raises SystemExit after SIGTERM."""
        driven = list[Trainer]()

        def driving(trainer: Trainer) -> Steps:
            driven.append(trainer)
            yield from drive(trainer)

        settings = replace(settings, task=settings.task or GIVEN)
        if self._place.ranks > 1 or settings.parallel.exact:
            settings = ranks.for_ranks(settings, self._place)
        require_prunable(settings, given)
        warn_of_another(self.run_dir)
        wanted = hello(
            run_dir=str(self.run_dir.absolute()),
            config=str(self._source.absolute()) if self._source is not None else None,
            settings=msgspec.json.encode(settings),
            accept_config=self._accept_config,
            accept_data=self._accept_data,
            accept_code=self._accept_code,
        )
        if not _busy.acquire(blocking=False):
            raise RuntimeError(
                "another Tolaria.train is running in this process; only one can use the process's random state"
            )
        try:
            with _signals_given_back(_ending(settings.signals)) as hear, preserved_rng(), lent(), released():
                workers = given.workers or settings.workers
                self._live = live = _opened(self._place, wanted, given, workers, stepper)
                line = live_line(ProgressWords(live.figures, settings.epochs), lambda: live.state.run.phase.value)
                try:
                    with line:
                        yield from live.run(hear, driving)
                finally:
                    self._state, self._live = live.state, None
                if not driven and self._state.run.phase is st.Phase.COMPLETED:
                    done = self._state.progress
                    _log.warning(_COMPLETE, self.run_dir, done.epoch_finished, done.step)
        except TaskRaised:
            raise  # its cause shows the line of the user's
        except (StartRefused, SetupRefused, RunFailed) as refusal:
            # The sentence says what to do. The frames and errors within the library that led to it would hide it.
            raise refusal.with_traceback(None) from None
        finally:
            sums, self._sums = self._sums, None
            if sums is not None:
                sums.close()
            _busy.release()

    def _settings(self, epochs: int | None) -> Settings:
        """Return the configuration for a run of `epochs` epochs. Raises ConfigError."""
        if not isinstance(self._config, Settings):
            try:
                return reading.load(self._config, () if epochs is None else (f"epochs={epochs}",))
            except ConfigError as refusal:
                raise refusal.with_traceback(None) from None
        return self._config if epochs is None else replace(self._config, epochs=epochs)

    def _result(self) -> TrainingResult:
        return TrainingResult.of(self._state, self.run_dir)

    def checkpoint(self, path: str | Path) -> bool:
        """Copy a committed checkpoint to the new folder `path`. Return False if there is none or it was refused.

        From another thread during `train`: take a checkpoint at the next boundary and wait for it. From a hook, in the
        training thread: return True when it is ordered. It is taken at the next boundary and copied when committed.
        """
        live, target = self._live, Path(path)
        if live is not None:
            return live.checkpoint(target)
        newest = self._state.checkpoints.newest
        if newest is None:
            return False
        copy_checkpoint(self.run_dir / "checkpoints" / newest.id, newest.manifest, target)
        return True

    def rollback(self, checkpoint_epoch: int) -> bool:
        """Go back to the newest checkpoint at or before the end of `checkpoint_epoch`. Return False if there is none.

        From a hook or another thread during `train`: return True when the order is durable. It takes effect at the next
        boundary. The steps after the checkpoint stay in the journal as an abandoned branch. If it is refused, or no run
        is active, the reason is in the log.
        """
        live = self._live
        why = live.rollback(checkpoint_epoch) if live is not None else _NO_RUN.format(self.run_dir)
        if why:
            _log.warning("No rollback to epoch %d: %s", checkpoint_epoch, why)
        return not why

    def extend(self, *, epochs: int | None = None, steps: int | None = None) -> bool:
        """End with epoch `epochs`, or with step `steps`, later or earlier than configured; False if it was refused.

        During `train`, from a hook or another thread: True when it is ordered, durably. Give one of the two; both count
        from the beginning of the run. A later call of `train` with the same number of epochs keeps this end.
        """
        live = self._live
        return live.extend(epochs, steps) if live is not None else False

    def get_metrics(self) -> dict[str, float]:
        """Return the figures of the last durable step, and those of the last validation with the prefix `val_`.

        The step's metrics are among them, unless they have the name of another figure. For a loop of your own, these
        are the last values that it gave to `step` and `log`.
        """
        live = self._live
        found = live.figures() if live is not None else q.figures_of(self._state.progress)
        return found | (self._loop.metrics if self._loop is not None else {})


def _opened(place: Place, *given: Any) -> Attached:
    """Open the run, as `Attached.open`: a program of one process has its recorder, and so has rank 0 of a group."""
    if place.ranks == 1:
        return Attached.open(*given)
    if place.rank == 0:
        from tolariad.library.leading import Leading

        return Leading.of(place).open(*given)
    from tolariad.library.following import Following

    return Following.of(place).open(*given)


def _ending(words: SignalSettings) -> frozenset[int]:
    """Return the signals that end the run and then the program."""
    stopping = {signal.SIGUSR1: words.USR1 == "stop", signal.SIGUSR2: words.USR2 == "stop", signal.SIGTERM: True}
    return frozenset(number for number, stops in stopping.items() if stops)


@contextmanager
def _signals_given_back(ending: frozenset[int]) -> Iterator[Callable[[Callable[[str], None]], None]]:
    """In the block, the first ^C or SIGTERM calls the given function with its name; a second one acts as usual.

    So does every SIGUSR1 and SIGUSR2, also one that comes before the function is given. Yield a function that takes
    the function to call. Only the main thread can handle signals. A program's own handler is left as it is, but for ^C.
    After one of the signals in `ending` the block ends with SystemExit: the program's exit handlers run.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda _: None
        return
    before = {number: signal.getsignal(number) for number in (*_USUAL, *_WARNINGS)}
    taken = [number for number in before if number == signal.SIGINT or before[number] is signal.SIG_DFL]
    owner, came, early = os.getpid(), list[int](), list[str]()
    told, of_children = [early.append], list[Any]()

    def first(number: int, _frame: Any) -> None:
        signal.signal(number, _USUAL[number])
        if os.getpid() != owner:
            signal.raise_signal(number)  # a forked child, such as a worker of a pool: nothing stops there
            return
        # The signal may end workers of a loader too. torch would raise that wherever this program is then, and not only
        # where it waits for them.
        of_children.append(signal.signal(signal.SIGCHLD, signal.SIG_DFL))
        take(number)

    def warned(number: int, _frame: Any) -> None:
        # A forked child, such as a worker of a loader, gets what is sent to the process group. It must not die of it.
        if os.getpid() == owner:
            take(number)

    def take(number: int) -> None:
        came.append(number)
        told[-1](signal.Signals(number).name)

    def hear(act: Callable[[str], None]) -> None:
        for number in set(taken) & _USUAL.keys():
            signal.signal(number, first)
        told.append(act)
        for name in early:
            act(name)

    for number in set(taken) & set(_WARNINGS):
        signal.signal(number, warned)
    try:
        yield hear
    finally:
        for number in taken:
            signal.signal(number, before[number])
        # The first is the program's, or torch's. It is None for a handler that is not Python's.
        if of_children and of_children[0] is not None:
            signal.signal(signal.SIGCHLD, of_children[0])
        if ending.intersection(came):
            raise SystemExit(EXIT_TERMINATED)
