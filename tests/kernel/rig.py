"""A kernel over a journal in a folder. The test plays its trainer, its event loop and its operator."""

from __future__ import annotations

import os
import threading
import time

from journal import Journal, Reader
from tests.core.simulate import OPERATOR, daemon_started, environment, run_started
from tolariad.channel import TrainerEnd, channel_pair
from tolariad.channel.page import Page
from tolariad.core import messages as m
from tolariad.core.decision import Answer
from tolariad.core.state.replay import newest_usable, replay_records
from tolariad.kernel import Kernel, Published

SOON_S = 60.0


def now() -> m.Now:
    return m.Now(time.time_ns(), time.monotonic_ns())


class Rig:
    """A kernel over a journal in a folder. The test plays its trainer, its event loop and its operator."""

    def __init__(
        self,
        folder,
        files=None,
        segment_bytes=128 * 1024,
        mode=m.StartMode.EXPLICIT,
        scheduling=None,
        lost=str,
        **policy,
    ):
        journal = (
            Journal.open(folder, segment_bytes=segment_bytes, files=files)
            if files
            else Journal.open(folder, segment_bytes=segment_bytes)
        )
        state = newest_usable(journal.captures())
        state = replay_records(state, journal.records(after_seq=state.seq), strict=True).state
        facts = (daemon_started(),) if state.seq else (run_started(**policy), daemon_started())
        self.published: list[Published] = []
        self.changed = threading.Condition()
        self.journal = journal
        self.kernel = Kernel(journal, state, clock=now, publish=self._publish, scheduling=scheduling, lost=lost)
        self.kernel.begin(bytes(16), bytes(32), bytes(16))
        self.kernel.start()
        self.kernel.submit(m.Opened(mode=mode, facts=facts))
        self.trainer: TrainerEnd | None = None

    def _publish(self, published: Published) -> None:
        with self.changed:
            self.published.append(published)
            self.changed.notify_all()

    def effects(self, kind):
        return [effect for one in self.published for effect in one.effects if isinstance(effect, kind)]

    def events(self, kind):
        return [event for one in self.published for _, event in one.events if isinstance(event, kind)]

    def wait(self, condition):
        """Wait until the condition holds; it is checked after every durable turn."""
        with self.changed:
            assert self.changed.wait_for(condition, SOON_S), [e for p in self.published for _, e in p.events][-6:]

    def command(self, command) -> Answer:
        answers: list[Answer] = []
        done = threading.Event()

        def answer(given: Answer) -> None:
            answers.append(given)
            done.set()

        self.kernel.submit(m.CommandReceived(command=command, actor=OPERATOR), answer)
        assert done.wait(SOON_S)
        return answers[0]

    def spawn(self) -> TrainerEnd:
        """Answer SpawnTrainer with a channel whose other end the test holds."""
        count = len(self.events(m.TrainerStarted))
        self.wait(lambda: len(self.effects(m.SpawnTrainer)) > count)
        incarnation = self.effects(m.SpawnTrainer)[-1].incarnation
        end, sock = channel_pair(incarnation)
        self.trainer = TrainerEnd(sock, Page.attach(os.dup(end.page.descriptor)))
        spawned = m.TrainerSpawned(incarnation=incarnation, pid=4242, start_ticks=1, boot_id="b")
        self.kernel.attach(end, spawned)
        return self.trainer

    def order(self, kind):
        """Return the next order, which must be of this type."""
        assert self.trainer is not None
        deadline = time.monotonic() + SOON_S
        while time.monotonic() < deadline:
            found = self.trainer.order()
            if found is not None:
                assert isinstance(found[0], kind), found[0]
                return found
            self.trainer.wait(0.05)
        raise AssertionError(f"no {kind.__name__} came")

    def until_training(self):
        """Start a trainer and commit its first checkpoint, so that it may step."""
        self.spawn()
        self.trainer.report(m.ReadyReport(environment=environment(), parameters=1, steps_per_epoch=100))
        self.order(m.TrainFrom)
        id_ = self.order(m.TakeCheckpoint)[0].id
        self.trainer.report(m.TrainingStartedReport(step=0))
        assert self.trainer.page.frozen
        self.trainer.report(written(id_, 0))
        self.wait(lambda: not self.trainer.page.frozen)
        return self.trainer

    def step(self, number):
        return self.trainer.report(step_report(number))

    def gone(self, incarnation=1):
        self.kernel.submit(m.TrainerGone(incarnation=incarnation, reason=m.DeathReason.SIGNAL, signal="SIGKILL"))

    def close(self):
        self.kernel.stop()
        self.journal.close()


def step_report(number):
    return m.StepReport(step=number, epoch=1, batch=number, loss=1.0, grad_norm=1.0, lr=0.1, rates=1)


def written(id_, step):
    piece = m.Piece(name="m", size=1, blake3="00")
    return m.CheckpointWrittenReport(
        id=id_, step=step, epoch=1, batch=step, manifest="00", pieces=(piece,), seconds=0.0
    )


def events_on_disk(folder):
    from tolariad.core.messages.vocabulary import decode_event

    return [decode_event(entry.event) for entry in Reader(folder)]
