"""The program's side of its recorder: one thread reads the link, and any thread may order something.

Promises: an order is answered when what it leads to is durable. If the recorder ends without a word, everybody who
waits for it is told, and no order waits for ever.
"""

from __future__ import annotations

import itertools
import os
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeAlias

import tolariad
from tolariad.attach import spawn, words
from tolariad.attach.link import LinkLost
from tolariad.core import messages as m
from tolariad.core.calc.run.exits import EXIT_IO
from tolariad.core.decision import Accepted, Answer
from tolariad.refusal import StartRefused

# The end of a run waits so long for a recorder that hangs, for example in a write; then it kills it.
_END_S: Final = 10.0
# How often the end looks whether it was interrupted. A join without limit could not be.
_LOOK_S: Final = 0.1
# What the trainer's thread obeys: the recorder's order with its descriptors, its last word, or None if it is gone.
Order: TypeAlias = "tuple[words.Train, list[int]] | words.Over | None"


class Recorder:
    """The recorder of one run of this program. `hear` gets every other message; the reading thread calls it."""

    def __init__(self, hello: words.Hello, hear: Callable[[words.Word], None]) -> None:
        """Have a recorder open the run, and wait for that. Raises StartRefused; nothing is recorded."""
        self._hear = hear
        self._numbers = itertools.count(1)
        self._answers: dict[int, queue.SimpleQueue[Answer]] = {}
        self.orders: queue.SimpleQueue[Order] = queue.SimpleQueue()
        self.over: words.Over | None = None
        self.is_lost = self._is_let_go = False
        self._process, self.opened = _opened(hello)
        self._thread = threading.Thread(target=self._read, name="tolaria-link", daemon=True)

    @property
    def descriptor(self) -> int:
        """The descriptor of the link."""
        return self._process.link.fileno()

    @property
    def has_ended(self) -> bool:
        """Whether no message follows."""
        return self.is_lost or self.over is not None

    def begin(self, begin: words.Begin) -> None:
        """Have the start of the run recorded."""
        self._thread.start()
        self.tell(begin)

    def tell(self, word: words.Word) -> None:
        """Send a message, unless the recorder is gone: that is noticed elsewhere. Signal handlers call this too."""
        with suppress(OSError):
            self._process.link.send(word)

    def order(self, command: words.Command) -> Answer:
        """Order something and wait for the answer."""
        number, answered = next(self._numbers), queue.SimpleQueue[Answer]()
        self._answers[number] = answered
        self.tell(words.Order(number=number, command=command))
        # Looked at after the order is entered: whoever ends the link answers those that he finds there.
        if self.has_ended:
            self._answer_late()
        return answered.get()

    def _answer_late(self) -> None:
        why = "the run has ended in this process, so nothing is recorded any more"
        if self.is_lost:
            why = "the recorder ended before it answered; the order may be recorded"
        while self._answers:
            with suppress(KeyError):  # another thread answers too
                self._answers.popitem()[1].put(m.Refusal("WrongPhase", why))

    # -- in the reading thread -----------------------------------------------------------------------------------------

    def _read(self) -> None:
        while not self.has_ended:
            try:
                word, descriptors = self._process.link.receive()
            except (LinkLost, OSError):
                self.is_lost = True
                break
            match word:
                case words.Train():
                    self.orders.put((word, descriptors))
                case words.Answered():
                    self._take_answer(word)
                case words.Over():
                    self.over = word
                case _:
                    self._hear(word)
        self.orders.put(self.over)
        self._answer_late()

    def _take_answer(self, word: words.Answered) -> None:
        answered = self._answers.pop(word.number, None)
        if answered is not None:
            answered.put(word.refusal or Accepted(word.seq))

    # -- the end -------------------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """End a run that was not begun: nothing is recorded."""
        self._process.end(_END_S)

    def end(self) -> None:
        """Wait until the journal is closed, and keep the recorder for the next run.

        If no trainer's end was told, the link's end tells it: then the recorder ends too.
        """
        give_up = time.monotonic() + _END_S
        try:
            while self._thread.is_alive() and time.monotonic() < give_up:
                self._thread.join(_LOOK_S)
        finally:  # also if ^C ends the wait
            if self.over is not None and not self._is_let_go:
                spawn.give_back(self._process)
            else:
                self._process.end(max(0.0, give_up - time.monotonic()) if self.has_ended else 0.0)

    def let_go(self) -> None:
        """Send nothing any more: the recorder then takes it that the program has left the run."""
        if not self.has_ended:
            self._is_let_go = True
            self._process.link.shut()


def hello(
    *,
    run_dir: str,
    config: str | None,
    settings: bytes,
    accept_config: bool,
    accept_data: bool,
    accept_code: bool,
) -> words.Hello:
    """Return the message that opens a run for this program, as it is now."""
    return words.Hello(
        version=tolariad.__version__,
        run_dir=run_dir,
        config=config,
        settings=settings,
        accept_config=accept_config,
        accept_data=accept_data,
        accept_code=accept_code,
        environment=dict(os.environ),
        cwd=str(Path.cwd()),
    )


def _opened(hello: words.Hello) -> tuple[spawn.RecorderProcess, words.Opened]:
    """Return a recorder that has opened the run. Raises StartRefused."""
    # A second time: an idle recorder may have been killed at this moment.
    for _ in range(2):
        process = spawn.take()
        try:
            process.link.send(hello)
            word, _ = process.link.receive()
        except (LinkLost, OSError):
            failed = process.refusal()
            process.end(_END_S)
            continue
        except BaseException:  # ^C while it opens the run
            process.end(_END_S)
            raise
        if isinstance(word, words.Opened):
            return process, word
        spawn.give_back(process)
        if isinstance(word, words.Refused):
            raise StartRefused(word.code, word.why, word.hint)
        raise StartRefused(EXIT_IO, f"{type(word).__name__} came from the recorder; this is a defect, please report it")
    raise failed
