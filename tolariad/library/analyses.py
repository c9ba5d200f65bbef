"""Analyses of a program's checkpoints for pruning, in a process that is forked from it before its model is built.

The process holds model, loaders and task as the program has passed them. For each analysis it forks another one, which
builds the run from these and restores the checkpoint, as a daemon's analysis builds the task. So the masks are those
that a daemon finds.

Promises: nothing of an analysis reaches the training process: no draw, no thread, no memory. An analysis runs only if
nothing else wants its core. Both processes end with the program.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

import torch

from tolariad import lifelines
from tolariad.attach import words
from tolariad.attach.link import Link, LinkLost
from tolariad.core.calc.pruning.turns import LOOK_S, PAUSE_S, RUN_S, Turn, too_slow
from tolariad.core.calc.run.exits import EXIT_CONFIG
from tolariad.core.calc.settings.rules import read_resolved
from tolariad.processor_time import has_starved
from tolariad.refusal import StartRefused
from tolariad.trainer.pruning import worker
from tolariad.trainer.tasks.task import FoundTask

if TYPE_CHECKING:
    from tolariad.core.calc.settings.model import Settings

_READ_BYTES: Final = 1 << 20
_GONE: Final = "Its process has ended"


def require_prunable(settings: Settings, task: Any) -> None:
    """Raise StartRefused if the run shall be pruned, and no analysis can be made of it."""
    if not settings.prune.enabled:
        return
    if task.steps_itself and not hasattr(task.program, "loss"):
        why = "prune.enabled: an analysis needs the loss of a batch, which only the loop knows"
        hint = "pass an object with loss(model, batch) as task="
    elif torch.cuda.is_initialized():
        why = "prune.enabled: the program uses CUDA already, so no process can be forked that analyses on the CPU"
        hint = "make model and data on the CPU; or write a task (docs/task.md) and start it with `tolariad run`"
    else:
        return
    raise StartRefused(EXIT_CONFIG, why, hint)


class Analyses:
    """The program's side. `tell` sends an answer to the recorder; a thread of this object calls it."""

    def __init__(self, task: Any, config: bytes, run_dir: Path, tell: Callable[[words.Analysed], None]) -> None:
        """Fork the process. Call it in the training thread, before anything is built of `task`."""
        self._tell = tell
        self._asked: int | None = None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._link = Link(ours)
        self._pid = os.fork()
        if self._pid == 0:
            _serve_and_exit(theirs, _Run(task, config, run_dir))
        theirs.close()
        self._thread = threading.Thread(target=self._read, name="tolaria-analyses", daemon=True)
        self._thread.start()

    def ask(self, word: words.Analyse | words.EndAnalysis) -> None:
        """Begin an analysis, or end one."""
        if isinstance(word, words.Analyse):
            self._asked = word.cycle
        try:
            self._link.send(word)
        except OSError:
            self._lose()

    def _read(self) -> None:
        while True:
            try:
                word, _ = self._link.receive()
            except (LinkLost, OSError):
                self._lose()
                return
            if isinstance(word, words.Analysed):
                self._asked = None
                self._tell(word)

    def _lose(self) -> None:
        cycle, self._asked = self._asked, None
        if cycle is not None:
            self._tell(words.Analysed(cycle=cycle, why=f"{_GONE}."))

    def close(self) -> None:
        """End both processes."""
        self._asked = None
        with suppress(OSError):
            os.kill(self._pid, signal.SIGKILL)
        with suppress(ChildProcessError):  # the program may wait for all of its children itself
            os.waitpid(self._pid, 0)
        self._thread.join()
        self._link.close()


# -- the forked process ------------------------------------------------------------------------------------------------


class _Run(NamedTuple):
    task: Any
    config: bytes
    run_dir: Path


def _serve_and_exit(connection: socket.socket, run: _Run) -> NoReturn:
    """Answer until the program is gone. Nothing of the program's own code runs after that."""
    try:
        os.setsid()  # ^C of a terminal is for the program
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_DFL)
        lifelines.offer_as_victim(lifelines.HELPER_SCORE)
        _Server(Link(connection), run).serve()
    finally:
        os._exit(0)


class _Server:
    def __init__(self, link: Link, run: _Run) -> None:
        self._link, self._run = link, run
        self._gives_way = read_resolved(run.config).prune.analysis_priority == "idle"
        # An analysis that came while another one was under way: that one is given up.
        self._next: words.Analyse | None = None

    def serve(self) -> None:
        """Answer one request after the other. Raises LinkLost at the end."""
        while True:
            word, self._next = self._next or self._link.receive()[0], None
            if isinstance(word, words.Analyse) and (found := self._analysed(word)) is not None:
                self._link.send(found)

    def _analysed(self, word: words.Analyse) -> words.Analysed | None:
        """Return the answer; None if nobody wants it any more.

        The first process runs if nothing else wants its core. If it starves, a second one takes turns with the
        training, as a daemon's does.
        """
        turns = (Turn.IDLE, Turn.ALTERNATE) if self._gives_way else (Turn.SHARE,)
        for turn in turns:
            forked = _Forked(partial(_answer, self._run, word, idle=turn is Turn.IDLE), turn)
            ends = forked.began + word.limit_s / len(turns)
            try:
                while (left_s := ends - time.monotonic()) > 0 and not forked.has_starved():
                    ready, _, _ = select.select((self._link.fileno(), forked.reader), (), (), forked.next_s(left_s))
                    if self._link.fileno() in ready and self._is_given_up(word.cycle):
                        return None
                    if forked.reader in ready and forked.has_ended():
                        break
                else:
                    continue
            finally:
                how = forked.end()
            if forked.answer:
                return words.Analysed(cycle=word.cycle, answer=bytes(forked.answer))
            return words.Analysed(cycle=word.cycle, why=f"{_GONE}{how}.")
        return words.Analysed(cycle=word.cycle, why=too_slow(word.limit_s))

    def _is_given_up(self, cycle: int) -> bool:
        word, _ = self._link.receive()
        if isinstance(word, words.Analyse):
            self._next = word
            return True
        return isinstance(word, words.EndAnalysis) and word.cycle == cycle


class _Forked:
    """A process that computes an answer and writes it to a pipe."""

    def __init__(self, compute: Callable[[], bytes], turn: Turn) -> None:
        self._turn, self._runs = turn, True
        self.began, self.answer = time.monotonic(), bytearray()
        self.reader, writer = os.pipe()
        server = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                lifelines.die_with_parent(server)
                os.close(self.reader)
                with os.fdopen(writer, "wb") as pipe:
                    pipe.write(compute())
            finally:
                os._exit(1)
        os.close(writer)

    def has_starved(self) -> bool:
        """Return whether it waits for a core that is never idle."""
        return self._turn is Turn.IDLE and has_starved(self._pid)

    def next_s(self, left_s: float) -> float:
        """Return for how many seconds to wait for it. If it takes turns, stop it for most of them."""
        if self._turn is not Turn.ALTERNATE:
            return min(left_s, LOOK_S)
        self._runs = not self._runs
        os.kill(self._pid, signal.SIGCONT if self._runs else signal.SIGSTOP)
        return min(left_s, RUN_S if self._runs else PAUSE_S)

    def has_ended(self) -> bool:
        """Read what is there. Return whether nothing follows."""
        piece = os.read(self.reader, _READ_BYTES)
        self.answer += piece
        return not piece

    def end(self) -> str:
        """Kill it. Return how it had ended, as the end of a sentence."""
        with suppress(OSError):
            os.kill(self._pid, signal.SIGKILL)
        _, status = os.waitpid(self._pid, 0)
        os.close(self.reader)
        number = os.waitstatus_to_exitcode(status)
        return f", by {signal.Signals(-number).name}" if number < 0 else ""


def _answer(run: _Run, word: words.Analyse, *, idle: bool) -> bytes:
    started = time.perf_counter()
    os.setsid()
    worker.stand_back((), idle=idle)
    from tolariad.leyline import pruning

    request, request_id = pruning.read_request(word.request)
    given = FoundTask(run.task, "")
    found = worker.answer_by(run.run_dir, lambda: run.config, request, started, given)
    response_id = str(uuid.uuid4())
    if isinstance(found, str):
        return pruning.write_failure(found, request_id, response_id)
    return pruning.write_answer(request, found, request_id, response_id)
