"""One call of `train`: a recorder beside the program records it, and the trainer runs in the caller's thread.

Promises: nothing is recorded before the configuration is accepted and everything is built. The end of the trainer is
recorded before the caller gets its exception. An ordered checkpoint is complete when its own event is durable. If the
recorder dies, another one goes on from what is recorded, to the same bits.
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
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias

from msgspec.structs import replace

from tolariad.attach import words
from tolariad.attach.cores import pin
from tolariad.channel import Activity, Page, TrainerEnd
from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core import state as st
from tolariad.core.calc.run.exits import EXIT_CONFIG, ORDERLY
from tolariad.core.calc.settings.rules import read_resolved
from tolariad.core.calc.text.phrases import with_run
from tolariad.core.decision import Accepted
from tolariad.core.state.run_state import RunState, read_capture
from tolariad.daemon.children import kept_from_children
from tolariad.library.analyses import Analyses
from tolariad.library.failed import RunFailed
from tolariad.library.notices import Saying
from tolariad.library.recorder import Recorder
from tolariad.refusal import StartRefused
from tolariad.storage import CheckpointUnusable, copy_checkpoint
from tolariad.trainer.build import build
from tolariad.trainer.checkpoints.restore import load, restore
from tolariad.trainer.loop import Trainer
from tolariad.trainer.process.lifecycle import End, Steps, steps_through
from tolariad.trainer.process.lifelines import lock_run
from tolariad.trainer.setup import ALONE, Place, Setup
from tolariad.trainer.step.stepper import Stepper
from tolariad.trainer.tasks.task import FoundTask

if TYPE_CHECKING:
    from tolariad.library.joined import Joined

_TERMINATED: Final = "the run stops at the next boundary with a checkpoint. Start the program again to go on."
_LOST: Final = "The recorder ended without a word. Another one goes on from what is recorded."
_LOSSES_MAX: Final = 3
_BEFORE_TRAINING: Final = (Activity.IMPORT, Activity.BUILD, Activity.RESTORE)
_Ends: TypeAlias = "queue.SimpleQueue[words.CheckpointEnd]"


class _RecorderLost(Exception):
    """The recorder has ended without a word."""


class Attached:
    """One call of `train`, with its recorder."""

    # The rank of this process.
    _place: Place = ALONE
    # Of exact sums: the memory file of all ranks, and what is called while this one waits.
    group: tuple[int | None, Callable[[], None]] = None, lambda: None

    def __init__(self, hello: words.Hello, workers: int, stepper: type[Stepper] | None) -> None:
        """Have the run opened. `workers`: processes that load its data. Raises StartRefused."""
        self._hello, self._stepper = hello, stepper
        self._thread = threading.get_ident()
        # One queue for each call of `checkpoint` in progress; the reading thread puts the end of every checkpoint into
        # all.
        self._ends: tuple[_Ends, ...] = ()
        self._copying: list[threading.Thread] = []
        self._signals: list[str] = []
        self._cores = tuple(sorted(os.sched_getaffinity(0)))
        self._begin = words.Begin(program=Path(sys.argv[0] or "python").name, workers=workers, cores=self._cores)
        self._channel: TrainerEnd | None = None
        # Steps up to this report are on a branch that was left.
        self._floor = 0
        # A trainer has ended unasked, so the recorder ends the run; or the recorder has ended it.
        self._has_left = False
        # A trainer may have changed the model.
        self._has_trained = False
        self._saying = Saying()
        self._recorder: Recorder | Joined = self._met(hello)
        self._state = _state_of(self._recorder.opened.state)
        progress = self._state.progress
        self._figures = words.Figures(values=q.figures_of(progress), names=progress.metric_names)
        self._run_dir, self._run_id = Path(hello.run_dir), self._recorder.opened.run_id
        self._analyses: Analyses | None = None

    @classmethod
    def open(cls, hello: words.Hello, task: Any, workers: int, stepper: type[Stepper] | None = None) -> Attached:
        """Open the run, check the configuration, build the training. Call it in the training thread.

        `stepper`: None for the one that the task needs. Raises StartRefused, SetupRefused. Nothing is recorded then.
        """
        live = cls(hello, workers, stepper)
        try:
            live._build(task, accept_data=hello.accept_data)
        except BaseException:
            live._recorder.leave()
            live._close()
            raise
        return live

    def _met(self, hello: words.Hello) -> Recorder | Joined:
        """Return the recorder of this program, which has opened the run. Raises StartRefused."""
        return Recorder(hello, self._hear)

    def _build(self, task: Any, *, accept_data: bool) -> None:
        opened = self._recorder.opened
        with kept_from_children(self._run_dir, self._recorder.descriptor):  # fingerprints may be taken in a worker
            if read_resolved(opened.config.encode()).prune.enabled:
                # Before the build: an analysis begins with the model that the program has passed.
                self._analyses = Analyses(task, opened.config.encode(), self._run_dir, self._tell_analysed)
            self._setup: Setup = build(opened.config.encode(), opened.threads, FoundTask(task, ""), self._place)
        other = q.other_data(self._state.progress, self._setup.environment)
        if other and not accept_data:
            why = f"{q.data_refusal(other)}; {q.way_on(m.FailureKind.DATA, in_program=True)}"
            raise StartRefused(EXIT_CONFIG, why)

    @property
    def state(self) -> RunState:
        """The state when the run was opened; after its end, that after its last durable event."""
        return self._state

    def figures(self) -> dict[str, float]:
        """Return the figures of the last durable step, and of the last validation. Any thread may ask."""
        told, channel = self._figures, self._channel
        newest = None
        with suppress(ValueError):  # the trainer has ended, and its page is closed
            newest = channel.last_durable_step if channel is not None else None
        if newest is None or newest[0] <= self._floor:
            return told.values
        _, step = newest
        found = dict(zip(told.names, step.metrics, strict=False))
        found |= told.values | {"step": float(step.step), "epoch": float(step.epoch), "loss": step.loss, "lr": step.lr}
        if step.grad_norm != m.NOT_MEASURED:
            found["grad_norm"] = step.grad_norm
        return found

    # -- life cycle ----------------------------------------------------------------------------------------------------

    def run(self, hear: Callable[[Callable[[str], None]], None], drive: Callable[[Trainer], Steps]) -> Steps:
        """Run until the run ends, and yield what `drive` yields of each trainer. `hear` gets what a signal calls."""
        try:
            self._recorder.begin(self._begin)
            # Only now: no stop may be recorded before the start of the run.
            hear(self._take_signal)
            yield from self._through_losses(drive)
        finally:
            self._end()

    def _through_losses(self, drive: Callable[[Trainer], Steps]) -> Steps:
        losses, step = 0, self._state.progress.step
        while True:
            try:
                yield from self._serve(drive)
                return
            except _RecorderLost:
                durable = self._replace_recorder()
                losses, step = losses + 1 if durable <= step else 1, durable
                if losses >= _LOSSES_MAX:
                    why = f"the recorder ended without a word {losses} times, and no step was recorded between"
                    raise RunFailed(f"{why}; what is recorded stays. See {self._run_dir}/logs/recorder.log") from None
                self._recorder.begin(replace(self._begin, resumes=False))
                for name in self._signals:
                    self._recorder.tell(words.Signal(name=name))

    def _replace_recorder(self) -> int:
        """Have another recorder open the run. Return the last durable step. Raises RunFailed."""
        self._saying.note(_LOST)
        self._recorder.end()
        self._give_cores_back()
        try:
            self._recorder = Recorder(self._hello, self._hear)
        except StartRefused as refused:
            raise RunFailed(f"the recorder ended without a word, and another one is refused: {refused}") from refused
        self._state = _state_of(self._recorder.opened.state)
        if self._has_trained and self._state.checkpoints.newest is None:
            # Only the program can make its model anew.
            raise RunFailed("the recorder ended before there was a checkpoint. Start the program again to go on")
        return self._state.progress.step

    def _serve(self, drive: Callable[[Trainer], Steps]) -> Steps:
        """Carry out the recorder's orders until the run is over."""
        trained = False
        while True:
            order = self._recorder.orders.get()
            if order is None:
                self._lost()
            if isinstance(order, words.Over):
                self._hear_over(order)
                self._has_left = True
                self._state = _state_of(order.state)
                if order.code not in ORDERLY:
                    raise RunFailed(self._failure(order.why))
                if kept := q.kept_in_words(self._state):
                    self._saying.note(f"The run is over. {with_run(kept, str(self._run_dir))}.")
                if not trained and (newest := self.state.checkpoints.newest) is not None:
                    self._take_over_weights(newest)
                return
            trained = True
            yield from self._train(*order, drive)

    def _lost(self) -> NoReturn:
        """Raise: the recorder has ended without a word."""
        raise _RecorderLost

    def _hear_over(self, over: words.Over) -> None:
        """Take it that the run is over."""

    def _failure(self, why: str) -> str:
        """Return why the run has ended, with what to do about it."""
        run = self._state.run
        if run.phase is st.Phase.FROZEN:
            return f"{why}. {self._setup.task.AGAIN} to resume it nevertheless{self._healthy_again()}"
        return f"{why}; {q.way_on(run.failure, in_program=True)}" if run.phase is st.Phase.FAILED else why

    def _train(self, order: words.Train, descriptors: list[int], drive: Callable[[Trainer], Steps]) -> Steps:
        """Run one trainer in this thread until it ends. Raises its exception, after that is told."""
        theirs, page_file, *arena = descriptors
        page = Page.attach(page_file)
        self._floor = 0
        channel = self._channel = self._end_over(socket.socket(fileno=theirs), page)
        lock, was_told = -1, False
        try:
            lock = lock_run(self._run_dir, _nothing)
            with kept_from_children(self._run_dir, lock, self._recorder.descriptor, *descriptors):
                ring = arena[0] if arena else None
                ending = yield from steps_through(lambda: self._trainer(channel, ring), channel, drive)
                was_told = ending.end is End.TOLD
        finally:
            self._figures = replace(self._figures, values=self.figures())
            self._channel = None
            self._has_left = not was_told
            self._has_trained |= page.heartbeat.activity not in _BEFORE_TRAINING
            self._recorder.tell(words.Ended(incarnation=order.incarnation, was_told=was_told))
            channel.close()
            page.close()
            for one in (lock, *arena):
                if one >= 0:
                    os.close(one)
        if ending.error is not None:
            raise ending.error

    def _end_over(self, sock: socket.socket, page: Page) -> TrainerEnd:
        """Return this side's end of a trainer's channel."""
        return TrainerEnd(sock, page)

    def _trainer(self, channel: TrainerEnd, ring: int | None) -> Trainer:
        return Trainer(self._setup, channel, self._run_dir, self._run_id, ring=ring, stepper=self._stepper)

    def _healthy_again(self) -> str:
        """Give the program's model the state from before what halted the run. Return a clause that says so, or ""."""
        id_ = q.last_healthy(self.state)
        entry = next((one for one in self.state.checkpoints.catalogue if one.id == id_), None)
        if entry is None:
            return ""
        try:
            self._take_over_weights(entry)
        except CheckpointUnusable as unusable:
            return f". The model is that of the halt: {id_} cannot be read ({unusable.why})"
        return f". The model is the last healthy one, {id_} of step {entry.step}"

    def _take_over_weights(self, entry: st.CatalogueEntry) -> None:
        """Copy the parameters of this checkpoint into the program's model."""
        folder = self._run_dir / "checkpoints" / entry.id
        restore(self._setup, load(folder, entry.manifest, rank=self._setup.state_rank))

    def _end(self) -> None:
        if not self._has_left:
            self._recorder.let_go()
        try:
            self._recorder.end()
        finally:
            if self._recorder.over is None:
                self._give_cores_back()
            else:
                self._state = _state_of(self._recorder.over.state)
            self._close()
        for thread in self._copying:
            thread.join()

    def _close(self) -> None:
        if self._analyses is not None:
            self._analyses.close()
        self._saying.close()

    def _tell_analysed(self, answer: words.Analysed) -> None:
        """Pass an answer on. The recorder that asked may have been replaced."""
        self._recorder.tell(answer)

    def _give_cores_back(self) -> None:
        """Give the threads of this program their cores back, if a recorder that is gone has taken one."""
        if os.sched_getaffinity(0) != set(self._cores):
            with suppress(OSError):
                pin(os.getpid(), self._cores)

    # -- to and from the recorder --------------------------------------------------------------------------------------

    def _hear(self, word: words.Word) -> None:
        """Take a message. The reading thread calls this."""
        match word:
            case words.Said(text=text):
                self._saying.note(text)
            case words.Analyse() | words.EndAnalysis() if self._analyses is not None:
                self._analyses.ask(word)
            case words.CheckpointEnd():
                for ends in self._ends:
                    ends.put(word)
            case words.Figures():
                channel = self._channel
                if word.went_back and channel is not None:
                    with suppress(ValueError):
                        self._floor = channel.page.durable
                self._figures = word

    def _take_signal(self, name: str) -> None:
        does = getattr(self._setup.settings.signals, name.removeprefix("SIG"), "stop")
        if does != "checkpoint":
            self._signals.append(name)
            if name != "SIGINT":
                self._saying.note(f"{name}: {_TERMINATED}")
        self._recorder.tell(words.Signal(name=name))

    def _is_accepted(self, command: words.Command) -> bool:
        return isinstance(self._recorder.order(command), Accepted)

    def stop(self, reason: str) -> bool:
        """Order a stop with a checkpoint. Return whether it was accepted."""
        return self._is_accepted(m.Stop(reason=reason))

    def rollback(self, epoch: int) -> str:
        """Order a rollback. Return why it was refused; "" if it was accepted."""
        answer = self._recorder.order(m.Rollback(epoch=epoch, reason="Tolaria.rollback"))
        return "" if isinstance(answer, Accepted) else answer.why

    def extend(self, epochs: int | None, steps: int | None) -> bool:
        """Order another end. Return whether it was accepted."""
        return self._is_accepted(m.Extend(epochs=epochs, steps=steps, reason="Tolaria.extend"))

    # -- checkpoints on demand -----------------------------------------------------------------------------------------

    def checkpoint(self, target: Path) -> bool:
        """Order a checkpoint, and copy it to `target` when it is committed."""
        # Listen before ordering: the end must not be missed, however soon it comes.
        ends: _Ends = queue.SimpleQueue()
        self._ends = (*self._ends, ends)
        answer = self._recorder.order(m.Checkpoint(reason=f"for {target}"))
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
        end: words.CheckpointEnd | None = None
        while end is None or end.root != order:
            # Read this before the queue: no end follows.
            is_over = self._recorder.over is not None
            try:
                end = ends.get(timeout=0.2)
            except queue.Empty:
                if is_over:
                    break
        self._forget(ends)
        if end is None or end.root != order or not end.manifest:
            return False
        copy_checkpoint(self._run_dir / "checkpoints" / end.id, end.manifest, target)
        return True


def _state_of(body: bytes) -> RunState:
    """Return the state in a capture of this version's."""
    state = read_capture(body)
    if state is None:
        raise RunFailed("the recorder is of another version of tolariad; start the program again")
    return state


def _nothing() -> None:
    """Do nothing."""
