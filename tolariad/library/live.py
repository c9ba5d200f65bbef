"""One call of `train`: the kernel runs in its thread, the trainer in the caller's thread.

Promises: nothing is recorded before the configuration is accepted and everything is built. The end of the trainer is
recorded before the caller gets its exception. An ordered checkpoint is complete when its own event is durable.
"""

from __future__ import annotations

import os
import queue
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeAlias

from tolariad.boot import boot_id
from tolariad.channel import Page, TrainerEnd, channel_pair
from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core import state as st
from tolariad.core.calc.run.exits import EXIT_CONFIG, ORDERLY
from tolariad.core.calc.settings.model import Settings
from tolariad.core.decision import Accepted, Answer
from tolariad.core.messages.vocabulary import AnyCommand
from tolariad.core.state.run_state import RunState
from tolariad.daemon.children import kept_from_children
from tolariad.daemon.opening import OpenRun, begin, earlier_threads, open_run, require_linux
from tolariad.daemon.place import PlaceWatch, RunPlace
from tolariad.daemon.port import now
from tolariad.daemon.request import RunRequest, StartRefused
from tolariad.kernel import Kernel, Published
from tolariad.library.asking import AskingThread
from tolariad.library.control import ControlThread
from tolariad.library.saying import Saying
from tolariad.storage import copy_checkpoint
from tolariad.supervisor.notify import Notifier
from tolariad.supervisor.saved_states import SavedStates
from tolariad.trainer.build import build
from tolariad.trainer.checkpoints.restore import load, restore
from tolariad.trainer.loop import Trainer
from tolariad.trainer.process.lifecycle import End, Steps, steps_through
from tolariad.trainer.process.lifelines import lock_run
from tolariad.trainer.setup import Setup
from tolariad.trainer.step.stepper import Stepper
from tolariad.trainer.tasks.task import FoundTask

_TERMINATED: Final = "the run stops at the next boundary with a checkpoint. Start the program again to go on."
_Ends: TypeAlias = "queue.SimpleQueue[m.CheckpointCommitted | m.CheckpointAborted]"


class RunFailed(Exception):
    """The run failed, or is frozen until somebody acts. The text gives the reason."""


class Live:
    """One call of `train`, with its kernel."""

    def __init__(self, opened: OpenRun, setup: Setup, stepper: type[Stepper] | None) -> None:
        self._opened = opened
        self._setup = setup
        self._stepper = stepper
        self._place = RunPlace(opened.run_dir, opened.journal, "Tolaria(..., run_dir='{}')")
        self._kernel = Kernel(opened.journal, opened.state, clock=now, publish=self._publish, lost=self._place.lost)
        self._effects: queue.SimpleQueue[m.SpawnTrainer | m.ExitDaemon | RunFailed] = queue.SimpleQueue()
        self._saved = SavedStates(opened.run_dir / "checkpoints", self._kernel.submit)
        self._thread = threading.get_ident()
        self._channel: socket.socket | None = None
        self._page: Page | None = None
        # One queue for each call of `checkpoint` in progress. The kernel's thread puts the end of every checkpoint into
        # all.
        self._ends: tuple[_Ends, ...] = ()
        self._saying = Saying()
        self._asking = AskingThread(opened.resolved.settings, self._kernel.submit, self._saying.note)
        self._control = ControlThread(opened, self._kernel, lambda: self._page, self._saying.note)
        self._copying: list[threading.Thread] = []

    @classmethod
    def open(cls, request: RunRequest, task: Any, stepper: type[Stepper] | None = None) -> Live:
        """Lock and fold the journal, check the configuration, build the training. Call it in the training thread.

        `stepper`: None for the one that the task needs. Raises StartRefused, SetupRefused. Nothing is recorded then.
        """
        require_linux()
        _require_no_pruning(request.settings)
        # A call of `train` is the wish to go on: a failed run needs no other word.
        opened = open_run(request, m.StartMode.RETRY, Notifier({}))
        try:
            with kept_from_children(opened.run_dir):  # fingerprints of data may be taken in a worker
                setup = build(opened.resolved.text.encode(), earlier_threads(opened), FoundTask(task, ""))
            other = q.other_data(opened.state.progress, setup.environment)
            if other and not request.accept_data:
                why = f"{q.data_refusal(other)}; {q.way_on(m.FailureKind.DATA, in_program=True)}"
                raise StartRefused(EXIT_CONFIG, why)
            return cls(opened, setup, stepper)
        except BaseException:
            opened.journal.close()
            raise

    @property
    def state(self) -> RunState:
        """The state after the last durable event."""
        return self._kernel.durable

    # -- life cycle ----------------------------------------------------------------------------------------------------

    def run(self, hear: Callable[[Callable[[str], None]], None], drive: Callable[[Trainer], Steps]) -> Steps:
        """Run until the run ends, and yield what `drive` yields of each trainer. `hear` gets what a signal calls."""
        opened, kernel = self._opened, self._kernel
        watch = PlaceWatch(self._place, kernel.check_place)
        try:
            facts = begin(opened, kernel)
            for note in opened.resolved.notes:
                self._saying.note(note)
            opened.journal.start_preparing()
            kernel.submit(m.Opened(mode=opened.mode, facts=facts))
            # Only now: no stop may be recorded before the start of the run.
            hear(self._take_signal)
            self._control.start()
            self._asking.prepare(len(self._setup.garden.plots))
            if opened.state.run.phase in (st.Phase.PAUSED, st.Phase.FROZEN) or opened.state.run.pause is not None:
                self._resume()
            yield from self._serve(drive)
        finally:
            watch.close()
            self._control.close()
            self._asking.close()
            self._saved.close()
            kernel.stop()
            self._saying.close()
            opened.journal.close()
            self._place.close()
            for thread in self._copying:
                thread.join()

    def _resume(self) -> None:
        """Resume a paused or frozen run: a call of `train` asks for training. Raises RunFailed if that is refused."""
        answer = self._order(m.Resume(reason="train was called"))
        if not isinstance(answer, Accepted):
            raise RunFailed(answer.why)

    def _serve(self, drive: Callable[[Trainer], Steps]) -> Steps:
        """Carry out the kernel's effects until the run is over."""
        trained = False
        while True:
            effect = self._effects.get()
            if isinstance(effect, RunFailed):
                raise effect
            if isinstance(effect, m.SpawnTrainer):
                yield from self._train(effect.incarnation, drive)
                trained = True
                run = self.state.run
                if run.phase is st.Phase.FROZEN:
                    # Do not wait for an operator: the program is to learn at once what happened.
                    raise RunFailed(f"{run.why}; the run is frozen. {self._setup.task.AGAIN} to resume it nevertheless")
                continue
            if effect.code not in ORDERLY:
                raise RunFailed(f"{effect.why}; {q.way_on(self.state.run.failure, in_program=True)}")
            if not trained:
                self._take_over_weights()
            return

    def _train(self, incarnation: int, drive: Callable[[Trainer], Steps]) -> Steps:
        """Run one trainer in this thread until it ends. Raises its exception, after that is recorded."""
        opened, kernel = self._opened, self._kernel
        lock = lock_run(opened.run_dir, _nothing)
        ours, theirs = channel_pair(incarnation)
        page = self._page = Page.attach(os.dup(ours.page.descriptor))
        channel = TrainerEnd(theirs, page)
        self._channel = theirs
        reason, code = m.DeathReason.KILLED, 1
        descriptors = (lock, page.descriptor, ours.fileno(), theirs.fileno(), self._saved.arena)
        with kept_from_children(opened.run_dir, *descriptors):
            kernel.attach(
                ours, m.TrainerSpawned(incarnation=incarnation, pid=os.getpid(), start_ticks=0, boot_id=boot_id())
            )
            try:
                ending = yield from steps_through(lambda: self._trainer(channel), channel, drive)
                reason = m.DeathReason.EXIT if ending.end is End.TOLD else m.DeathReason.EXCEPTION
                code = 0 if ending.end is End.TOLD else 1
            except GeneratorExit:
                reason = m.DeathReason.EXCEPTION
                raise
            finally:
                self._channel = self._page = None
                gone = m.TrainerGone(
                    incarnation=incarnation, reason=reason, pid=os.getpid(), exit_code=code, in_program=True
                )
                self._tell(gone)
                channel.close()
                page.close()
                os.close(lock)
        if ending.error is not None:
            raise ending.error

    def _trainer(self, channel: TrainerEnd) -> Trainer:
        run = self._opened
        return Trainer(
            self._setup, channel, run.run_dir, run.run_id.hex(), ring=self._saved.arena, stepper=self._stepper
        )

    def _take_over_weights(self) -> None:
        """Copy the parameters of a run that is already complete into the program's model."""
        newest = self.state.checkpoints.newest
        if newest is not None:
            folder = self._opened.run_dir / "checkpoints" / newest.id
            restore(self._setup, load(folder, newest.manifest))

    # -- to and from the kernel ----------------------------------------------------------------------------------------

    def _publish(self, turn: Published) -> None:
        """Pass on the effects of a durable turn. Runs in the kernel's thread."""
        self._control.publish(turn)
        for effect in turn.effects:
            if isinstance(effect, m.KillTrainer):
                self._cut()
            elif isinstance(effect, m.AskStrategy | m.AskVote):
                self._asking.obey(effect, turn.state)
            elif isinstance(effect, m.SpawnTrainer | m.ExitDaemon):
                self._effects.put(effect)
            else:
                self._saved.obey(effect)
        if turn.failure:
            self._effects.put(RunFailed(turn.failure))
            self._cut()
        self._saying.queue(turn.events)
        for _, event in turn.events if self._ends else ():
            if isinstance(event, m.CheckpointCommitted | m.CheckpointAborted):
                for ends in self._ends:
                    ends.put(event)

    def _cut(self) -> None:
        """Close the trainer's channel. A thread cannot be killed; without a channel it starts no update and exits."""
        channel = self._channel
        if channel is not None:
            with suppress(OSError):
                channel.shutdown(socket.SHUT_RDWR)

    def _tell(self, given: m.Input) -> None:
        """Submit an input and wait until it is recorded."""
        done = threading.Event()
        self._kernel.submit(given)
        self._kernel.call(done.set)
        done.wait()

    def _order(self, command: AnyCommand) -> Answer:
        answered: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        actor = m.Actor(uid=os.getuid(), pid=os.getpid(), program=Path(sys.argv[0] or "python").name)
        self._kernel.submit(m.CommandReceived(command=command, actor=actor), answered.put)
        return answered.get()

    def _take_signal(self, name: str) -> None:
        words = self._opened.resolved.settings.signals
        if getattr(words, name.removeprefix("SIG"), "stop") == "checkpoint":
            order = m.CommandReceived(command=m.Checkpoint(reason=name), actor=m.Actor(program="signal"))
            self._kernel.submit(order, lambda answer: self._note_refusal(name, answer))
            return
        if name != "SIGINT":
            self._saying.note(f"{name}: {_TERMINATED}")
        self._kernel.submit(m.SignalReceived(count=1, name=name))

    def _note_refusal(self, name: str, answer: Answer) -> None:
        if not isinstance(answer, Accepted):
            self._saying.note(f"{name}: no checkpoint is taken: {answer.why}")

    def stop(self, reason: str = "Tolaria.stop") -> bool:
        """Order a stop with a checkpoint. Return whether it was accepted."""
        return isinstance(self._order(m.Stop(reason=reason)), Accepted)

    def rollback(self, epoch: int) -> str:
        """Order a rollback. Return why it was refused; "" if it was accepted."""
        answer = self._order(m.Rollback(epoch=epoch, reason="Tolaria.rollback"))
        return "" if isinstance(answer, Accepted) else answer.why

    def extend(self, epochs: int | None, steps: int | None) -> bool:
        """Order another end. Return whether it was accepted."""
        return isinstance(self._order(m.Extend(epochs=epochs, steps=steps, reason="Tolaria.extend")), Accepted)

    # -- checkpoints on demand -----------------------------------------------------------------------------------------

    def checkpoint(self, target: Path) -> bool:
        """Order a checkpoint, and copy it to `target` when it is committed."""
        # Listen before ordering: the end must not be missed, however soon it comes.
        ends: _Ends = queue.SimpleQueue()
        self._ends = (*self._ends, ends)
        answer = self._order(m.Checkpoint(reason=f"for {target}"))
        if not isinstance(answer, Accepted):
            self._forget(ends)
            return False
        if threading.get_ident() != self._thread:
            return self._copy(answer.seq, ends, target)
        thread = threading.Thread(target=self._copy, args=(answer.seq, ends, target), name="tolaria-copy")
        self._copying.append(thread)
        thread.start()
        return True

    def _forget(self, ends: _Ends) -> None:
        self._ends = tuple(one for one in self._ends if one is not ends)

    def _copy(self, order: int, ends: _Ends, target: Path) -> bool:
        """Wait for the end of the checkpoint that event `order` ordered, and copy it. False: it was aborted."""
        end: m.CheckpointCommitted | m.CheckpointAborted | None = None
        while end is None or end.root != order:
            # Read this before the queue: no end follows.
            is_over = self._kernel.failure is not None or self._kernel.is_over
            try:
                end = ends.get(timeout=0.2)
            except queue.Empty:
                if is_over:
                    break
        self._forget(ends)
        if not isinstance(end, m.CheckpointCommitted) or end.root != order:
            return False
        copy_checkpoint(self._opened.run_dir / "checkpoints" / end.id, end.manifest, target)
        return True


def _nothing() -> None:
    """Do nothing."""


def _require_no_pruning(settings: Settings | None) -> None:
    """Raise StartRefused if pruning is enabled: an analysis builds the task in a process of its own."""
    if settings is not None and settings.prune.enabled:
        why = (
            "prune.enabled: a program's run is not pruned. Checkpoints are analysed in a process of their own, and the "
            "model and the data of this run exist in this program only"
        )
        hint = (
            "set prune.enabled to false; or write a task (docs/task.md) and start it with `tolariad run`, which prunes"
        )
        raise StartRefused(EXIT_CONFIG, why, hint)
