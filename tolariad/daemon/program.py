"""The host's policy beside a program that trains: it is told and asked over the link, and ends with the program.

Promises: the program gets every answer, and every end. It is never signalled, and never started again.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tolariad.attach import words
from tolariad.control.replies import Server
from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core import state as st
from tolariad.core.calc.run.exits import EXIT_IO
from tolariad.core.decision import Accepted, Answer
from tolariad.daemon.analysing import Analysing
from tolariad.daemon.opening import OpenRun
from tolariad.daemon.policy import Analyses, End
from tolariad.daemon.said import Saying
from tolariad.supervisor import FormerTrainer, Timeouts, TrainerSetup
from tolariad.supervisor.attached import AttachedIncarnation, Program
from tolariad.supervisor.cpu_affinity import Scheduling, cores_of_the_machine
from tolariad.supervisor.incarnation import Recorder, RunningTrainer
from tolariad.supervisor.output import Sink

if TYPE_CHECKING:
    from tolariad.kernel import Kernel, Published

_GONE: Final = "the program has ended"
_LEFT: Final = "the program's call has ended"


def _frozen(run: st.Run) -> str:
    return f"{run.why}; the run is frozen"


class ProgramPolicy:
    """The answers beside one program, for one run."""

    served_by: Server = "library"
    go_on = "Tolaria(..., run_dir='{}')"
    # A scheduler that ends a job signals both. Others are for the program alone, and this process ignores them.
    signals: tuple[signal.Signals, ...] = (signal.SIGTERM,)

    def __init__(
        self, run: OpenRun, program: Program, begin: words.Begin, call: Callable[[Callable[[], None]], None]
    ) -> None:
        """`call` calls a function on the event loop, from any thread."""
        self._run, self._program, self._begin, self._call = run, program, begin, call
        self.pid = program.pid
        self.sinks: tuple[Sink, ...] = (self._pass_on,)
        self._saying = Saying(self.say, str(run.run_dir))
        self._kernel: Kernel | None = None
        self._end: End = lambda _: None
        self._living: AttachedIncarnation | None = None
        self._analysing: Analysing | None = None
        # The program raises, or has left its loop: it trains no more.
        self._has_left = False

    def say(self, text: str) -> None:
        """Have the program log a sentence. Any thread may call this."""
        self._tell(words.Said(text=text))

    def _tell(self, word: words.Word) -> None:
        self._call(lambda: self._program.send(word))

    def _pass_on(self, lines: bytes) -> None:
        self.say(lines.decode("utf-8", "backslashreplace").rstrip("\n"))

    # -- the trainer ---------------------------------------------------------------------------------------------------

    def scheduling(self) -> Scheduling:
        """Leave cores alone that the program has chosen itself."""
        cores = self._begin.cores
        chosen = "" if set(cores) == cores_of_the_machine() else "the program"
        return Scheduling(self._run.journal.folder, self._begin.workers, cores, chosen)

    def setup(self, arena: int) -> TrainerSetup:
        """Return what an attached trainer needs: no command."""
        return TrainerSetup(run_dir=self._run.run_dir, command=(), environment={}, timeouts=Timeouts(), ring=arena)

    def begin(self, number: int, _: str, setup: TrainerSetup, recorder: Recorder) -> RunningTrainer:
        """Hand the program a channel and a page."""
        self._living = AttachedIncarnation(number, self._program, setup.ring, setup.timeouts, recorder)
        if self._program.is_gone:
            self._living.ended(None)
        return self._living

    def analyses(self, submit: Callable[[m.AnalysisReply], None], _: Scheduling) -> Analyses:
        """Have the program analyse: its model and data exist there only."""
        settings, run_dir = self._run.resolved.settings, self._run.run_dir
        self._analysing = Analysing(settings, run_dir, self.sinks, submit, ask=self._program.send)
        return self._analysing

    def former(self) -> FormerTrainer | None:
        """No trainer of an earlier host is ever killed: it may be this program."""
        return None

    # -- the run -------------------------------------------------------------------------------------------------------

    @property
    def wants_socket(self) -> bool:
        """As the configuration says."""
        return self._run.resolved.settings.control.socket

    def no_socket(self, error: Exception) -> None:
        """Say it once. The run goes on."""
        self.say(
            f"the run has no control socket ({error}), so `tolaria` cannot pause or stop it. The training is not "
            "affected. `control.socket: false` switches the socket off"
        )

    def opened(self, kernel: Kernel, end: End) -> None:
        """Take the program's messages. Resume a paused or frozen run: a call of `train` asks for training."""
        self._kernel, self._end = kernel, end
        for note in self._run.resolved.notes:
            self.say(note)
        run = self._run.state.run
        if self._begin.resumes and (run.phase in (st.Phase.PAUSED, st.Phase.FROZEN) or run.pause is not None):
            self._order(m.Resume(reason="train was called"), self._resumed)
        elif run.phase is st.Phase.FROZEN:
            end(m.ExitDaemon(code=EXIT_IO, why=_frozen(run)))
        self._program.listen(self._take, self._lost)

    def _resumed(self, answer: Answer) -> None:
        if not isinstance(answer, Accepted):
            why = answer.why
            self._call(lambda: self._end(m.ExitDaemon(code=EXIT_IO, why=why)))

    @property
    def spare_bytes(self) -> int | None:
        """A program trains in its own process."""
        return None

    async def end_helpers(self) -> None:
        """There are none."""

    def hear_reloads(self, read_again: Callable[[], None]) -> None:
        """A library run does not reload its configuration."""

    def published(self, turn: Published) -> None:
        """Say what is to be said, how checkpoints end, and what `get_metrics` shows."""
        self._saying.tell(turn.events)
        for _, event in turn.events:
            match event:
                case m.EpochFinished() | m.ValidationFinished() | m.MetricsNamed() | m.RolledBack():
                    progress, back = turn.state.progress, isinstance(event, m.RolledBack)
                    word: words.Word = words.Figures(
                        values=q.figures_of(progress), names=progress.metric_names, went_back=back
                    )
                case m.CheckpointCommitted():
                    word = words.CheckpointEnd(root=event.root, id=event.id, manifest=event.manifest)
                case m.CheckpointAborted():
                    word = words.CheckpointEnd(root=event.root, id=event.id)
                case _:
                    continue
            self._tell(word)

    def end_after(self, turn: Published) -> m.ExitDaemon | None:
        """End with the program's call. Do not wait for an operator: the program is to learn at once what happened."""
        if turn.failure:
            if self._living is not None:
                self._living.kill("nothing can be recorded")
            return m.ExitDaemon(code=EXIT_IO, why=turn.failure)
        if not any(isinstance(event, m.TrainerEnded | m.TrainerDied) for _, event in turn.events):
            return None
        self._living, run = None, turn.state.run
        if self._program.is_gone:
            return m.ExitDaemon(code=0, why=_GONE)
        if self._has_left:
            return m.ExitDaemon(code=0, why=_LEFT)
        if run.phase is st.Phase.FROZEN:
            return m.ExitDaemon(code=EXIT_IO, why=_frozen(run))
        return None

    async def close(self) -> None:
        """Let the program read what was sent to it."""
        self._saying.end()
        await asyncio.sleep(0)  # what the kernel's thread has said last
        await self._program.leave()

    # -- the program's messages ----------------------------------------------------------------------------------------

    def _take(self, word: words.Word) -> None:
        match word:
            case words.Order():
                self._order(word.command, lambda answer: self._answer(word.number, answer))
            case words.Signal():
                self._take_signal(word.name)
            case words.Analysed() if self._analysing is not None:
                self._analysing.take(word)
            case words.Ended() if self._living is not None and self._living.number == word.incarnation:
                self._has_left = not word.was_told
                self._living.ended(word)

    def _lost(self) -> None:
        if self._living is not None:
            self._living.ended(None)
        else:
            self._end(m.ExitDaemon(code=0, why=_GONE))

    def _submit(self, given: m.Input, answer: Callable[[Answer], None] | None = None) -> None:
        if self._kernel is not None:
            self._kernel.submit(given, answer)

    def _order(self, command: words.Command, answer: Callable[[Answer], None]) -> None:
        actor = m.Actor(uid=os.getuid(), pid=self.pid, program=self._begin.program)
        self._submit(m.CommandReceived(command=command, actor=actor), answer)

    def _answer(self, number: int, answer: Answer) -> None:
        """Tell the program. The kernel's thread calls this."""
        if isinstance(answer, Accepted):
            word = words.Answered(number=number, seq=answer.seq)
        else:
            word = words.Answered(number=number, refusal=answer)
        self._tell(word)

    def _take_signal(self, name: str) -> None:
        does = getattr(self._run.resolved.settings.signals, name.removeprefix("SIG"), "stop")
        if does != "checkpoint":
            self._submit(m.SignalReceived(count=1, name=name))
            return

        def answered(answer: Answer) -> None:
            if not isinstance(answer, Accepted):
                self.say(f"{name}: no checkpoint is taken: {answer.why}")

        order = m.CommandReceived(command=m.Checkpoint(reason=name), actor=m.Actor(program="signal"))
        self._submit(order, answered)
