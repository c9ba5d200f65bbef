"""The recorder's invariants, on real files and a real channel; the trainer is this test."""

from __future__ import annotations

import os
import threading
import time

import msgspec
import pytest

from journal import Journal, Reader
from journal.files import OsFiles
from tests.core.simulate import OPERATOR, daemon_started, environment, run_started
from tolariad.channel import TrainerEnd, channel_pair
from tolariad.channel.page import Page
from tolariad.core.decision import Accepted, Answer, Refusal
from tolariad.core.inputs import CommandReceived, Now, Opened, SignalReceived, StartMode, TrainerGone, TrainerSpawned
from tolariad.core.replay import newest_usable, replay_records
from tolariad.core.run import Phase
from tolariad.core.state import RunState
from tolariad.core.vocabulary import checkpoints as ck
from tolariad.core.vocabulary import control as cv
from tolariad.core.vocabulary import run as rv
from tolariad.core.vocabulary import steps as sv
from tolariad.core.vocabulary import trainer as tv
from tolariad.kernel import Kernel, Published

SOON_S = 20.0


def now() -> Now:
    return Now(time.time_ns(), time.monotonic_ns())


class Rig:
    """A kernel over a journal in a folder, and this test as its trainer, its loop and its operator."""

    def __init__(self, folder, files=None, segment_bytes=128 * 1024, mode=StartMode.EXPLICIT, **policy):
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
        self.kernel = Kernel(journal, state, clock=now, publish=self._publish)
        self.kernel.begin(bytes(16), bytes(32), bytes(16))
        self.kernel.start()
        self.kernel.submit(Opened(mode=mode, facts=facts))
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
        """Until the condition holds; every durable turn is a moment to look."""
        with self.changed:
            assert self.changed.wait_for(condition, SOON_S), [e for p in self.published for _, e in p.events][-6:]

    def command(self, command) -> Answer:
        answers: list[Answer] = []
        done = threading.Event()

        def answer(given: Answer) -> None:
            answers.append(given)
            done.set()

        self.kernel.submit(CommandReceived(command=command, actor=OPERATOR), answer)
        assert done.wait(SOON_S)
        return answers[0]

    def spawn(self) -> TrainerEnd:
        """Answer SpawnTrainer: a channel, whose other end this test holds."""
        count = len(self.events(tv.TrainerStarted))
        self.wait(lambda: len(self.effects(tv.SpawnTrainer)) > count)
        incarnation = self.effects(tv.SpawnTrainer)[-1].incarnation
        end, sock = channel_pair(incarnation)
        self.trainer = TrainerEnd(sock, Page.attach(os.dup(end.page.descriptor)))
        spawned = TrainerSpawned(incarnation=incarnation, pid=4242, start_ticks=1, boot_id="b")
        self.kernel.attach(end, spawned)
        return self.trainer

    def order(self, kind):
        """The next order, which must be of this type."""
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
        """A trainer that is ready, has its first checkpoint, and may step."""
        self.spawn()
        self.trainer.report(tv.ReadyReport(environment=environment(), parameters=1, steps_per_epoch=100))
        self.order(ck.TrainFrom)
        id_ = self.order(ck.TakeCheckpoint)[0].id
        self.trainer.report(ck.TrainingStartedReport(step=0))
        assert self.trainer.page.frozen
        self.trainer.report(written(id_, 0))
        self.wait(lambda: not self.trainer.page.frozen)
        return self.trainer

    def step(self, number):
        return self.trainer.report(step_report(number))

    def gone(self, incarnation=1):
        self.kernel.submit(TrainerGone(incarnation=incarnation, reason=tv.DeathReason.SIGNAL, signal="SIGKILL"))

    def close(self):
        self.kernel.stop()
        self.journal.close()


def step_report(number):
    return sv.StepReport(step=number, epoch=1, batch=number, loss=1.0, grad_norm=1.0, lr=0.1, rates=1)


def written(id_, step):
    piece = ck.Piece(name="m", size=1, blake3="00")
    return ck.CheckpointWrittenReport(
        id=id_, step=step, epoch=1, batch=step, manifest="00", pieces=(piece,), seconds=0.0
    )


@pytest.fixture
def rig(tmp_path):
    made = Rig(tmp_path / "journal")
    yield made
    made.close()


def events_on_disk(folder):
    from tolariad.core.vocabulary import decode_event

    return [decode_event(entry.event) for entry in Reader(folder)]


def test_the_page_shows_a_report_only_once_its_event_is_on_disk(rig):
    """The trainer's permission to go on is durability, not arrival."""
    trainer = rig.until_training()
    number = rig.step(1)
    rig.wait(lambda: trainer.page.durable >= number)

    assert sv.StepCompleted in [type(event) for event in events_on_disk(rig.journal.folder)]


def test_no_update_may_begin_before_the_first_checkpoint_is_committed(rig):
    """A page starts frozen and is opened by CheckpointCommitted."""
    trainer = rig.until_training()

    assert not trainer.page.frozen
    names = [type(event).__name__ for event in events_on_disk(rig.journal.folder)]
    assert names[-1] == "CheckpointCommitted"


def test_a_command_is_answered_with_its_number_once_it_is_durable(rig):
    """The number names the very event, and it is on disk when the answer comes."""
    rig.until_training()
    answer = rig.command(cv.Pause(reason="r"))

    assert isinstance(answer, Accepted)
    event = events_on_disk(rig.journal.folder)[answer.seq - 1]
    assert isinstance(event, cv.PauseRequested)
    assert rig.order(cv.Hold)[0].cause == answer.seq


def test_what_a_dead_trainer_had_sent_is_taken_before_its_death(rig):
    """More reports than one turn takes, and the news of the death right behind them."""
    trainer = rig.until_training()
    for number in range(1, 1501):
        rig.step(number)
    trainer.close()
    rig.gone()
    rig.wait(lambda: rig.events(tv.TrainerDied))

    assert rig.kernel.durable.progress.step == 1500
    assert rig.events(tv.TrainerDied)[0].step == 1500


def test_a_report_of_another_incarnation_is_dropped(rig):
    """A trainer that was given up cannot speak for its successor."""
    trainer = rig.until_training()
    trainer.page._words[1] = 99  # it believes to be another incarnation
    trainer.report(sv.EpochStartedReport(epoch=1))
    trainer.page._words[1] = 1
    rig.command(cv.Note(text="after"))

    assert rig.kernel.durable.progress.epoch_started == 0


def test_a_gap_in_the_running_number_ends_the_trainer(rig):
    """A lost report may not be papered over."""
    trainer = rig.until_training()
    trainer._number += 1
    trainer.report(sv.EpochStartedReport(epoch=1))
    rig.wait(lambda: rig.effects(tv.KillTrainer))

    assert rig.kernel.durable.progress.epoch_started == 0


def test_a_record_of_the_ring_that_can_never_be_taken_ends_the_trainer(rig):
    """A damaged one, say: the trainer would stand at its gate for ever, its heart beating."""
    trainer = rig.until_training()
    rig.step(1)
    rig.wait(lambda: rig.kernel.durable.progress.step == 1)
    trainer._number += 1  # one that never comes
    rig.step(2)
    rig.wait(lambda: rig.effects(tv.KillTrainer))

    assert rig.kernel.durable.progress.step == 1


def test_a_restart_gives_the_trainer_the_steps_that_the_checkpoint_lacks(tmp_path):
    """The script, cut from the journal: bits as they were recorded."""
    rig = Rig(tmp_path / "journal")
    trainer = rig.until_training()
    for number in range(1, 8):
        rig.step(number)
    rig.wait(lambda: rig.kernel.durable.progress.step == 7)
    trainer.close()
    rig.close()

    rig = Rig(tmp_path / "journal")
    trainer = rig.spawn()
    trainer.report(tv.ReadyReport(environment=environment(), parameters=1, steps_per_epoch=100))
    order, attachment = rig.order(ck.TrainFrom)
    script = msgspec.msgpack.decode(attachment, type=ck.Script)
    assert order.checkpoint.step == 0
    assert order.durable_step == 7
    assert [step.step for step in script.steps] == list(range(1, 8))
    trainer.report(ck.TrainingStartedReport(step=0, checkpoint=order.checkpoint.id))
    trainer.report(ck.RerunReport(first=1, last=7, compared=7))
    trainer.report(step_report(8))
    rig.wait(lambda: rig.kernel.durable.progress.step == 8)
    assert rig.kernel.durable.run.phase is Phase.RUNNING
    rig.close()


def test_rotation_and_replay_give_the_live_state_again(tmp_path):
    """Small segments: captures, hashes and all events fold to what the kernel had."""
    rig = Rig(tmp_path / "journal", segment_bytes=64 * 1024)
    rig.until_training()
    for number in range(1, 400):
        rig.step(number)
        if number % 40 == 0:
            rig.wait(lambda number=number: rig.kernel.durable.progress.step == number)
    rig.wait(lambda: rig.kernel.durable.progress.step == 399)
    live = rig.kernel.durable
    rig.close()

    journal = Journal.open(tmp_path / "journal", segment_bytes=64 * 1024)
    newest = newest_usable(journal.captures())
    assert newest.seq > 0
    from_capture = replay_records(newest, journal.records(after_seq=newest.seq), strict=True).state
    from_start = replay_records(RunState(), journal.records(), strict=True).state
    journal.close()
    assert from_capture == live
    assert from_start == live


class Full(OsFiles):
    """A disk on which nothing can be written any more, once `broken` is set."""

    broken = False

    def pwrite(self, *args, **kwargs):
        if self.broken:
            raise OSError(28, "No space left on device")
        return super().pwrite(*args, **kwargs)


def test_a_journal_that_fails_freezes_the_run_and_says_why(tmp_path):
    """Nothing is acknowledged, the gate closes, the state falls back to what is on disk, a signal still ends the daemon."""
    files = Full()
    rig = Rig(tmp_path / "journal", files=files)
    trainer = rig.until_training()
    files.broken = True
    answer = rig.command(cv.Note(text="lost"))

    assert isinstance(answer, Refusal)
    assert answer.error == "NotDurable"
    assert rig.kernel.failure is not None
    assert trainer.page.frozen
    number = rig.step(1)
    again = rig.command(cv.Pause())
    assert isinstance(again, Refusal)
    assert again.error == "Frozen"
    assert "no space" in again.why
    assert trainer.page.durable < number
    rig.kernel.submit(SignalReceived(count=1, name="SIGTERM"))
    rig.wait(lambda: rig.effects(rv.ExitDaemon))
    assert rig.effects(rv.ExitDaemon)[0].code == 74
    rig.close()

    rig = Rig(tmp_path / "journal")
    rig.wait(lambda: rig.published)
    assert not any(isinstance(event, cv.NoteAdded) for event in events_on_disk(tmp_path / "journal"))
    rig.close()


def test_a_defect_in_a_decision_freezes_the_run_instead_of_ending_the_recorder(rig, monkeypatch):
    """The thread lives on and answers with the reason."""
    trainer = rig.until_training()
    monkeypatch.setattr("tolariad.kernel.decide", lambda *_: 1 / 0)
    rig.step(1)
    rig.wait(lambda: rig.kernel.failure)
    answer = rig.command(cv.Note(text="x"))

    assert isinstance(answer, Refusal)
    assert "ZeroDivisionError" in answer.why
    assert trainer.page.frozen


def test_a_ping_is_answered_while_nothing_happens(rig):
    """The watchdog's question."""
    answered = threading.Event()
    rig.kernel.ping(answered.set)

    assert answered.wait(SOON_S)


def test_a_trainer_that_reads_nothing_does_not_stop_the_kernel(rig):
    """Orders that do not fit wait in the outbox; commands are answered all the same."""
    rig.until_training()
    big = "x" * 4000
    for number in range(300):
        rig.command(cv.Note(text=big))
        if number % 20 == 0:
            assert isinstance(rig.command(cv.Pause()), Accepted)
            assert isinstance(rig.command(cv.Resume()), Accepted)

    assert rig.kernel.failure is None


def test_a_trainer_is_recorded_before_anything_it_says(rig):
    """However long the recorder was busy: reports that came meanwhile belong to a trainer that is known."""
    rig.wait(lambda: rig.effects(tv.SpawnTrainer))
    busy = threading.Event()
    rig.kernel.ping(lambda: busy.wait(SOON_S))
    end, sock = channel_pair(1)
    trainer = TrainerEnd(sock, Page.attach(os.dup(end.page.descriptor)))
    rig.kernel.attach(end, TrainerSpawned(incarnation=1, pid=4242, start_ticks=1, boot_id="b"))
    trainer.report(tv.ReadyReport(environment=environment(), parameters=1, steps_per_epoch=100))
    busy.set()
    rig.wait(lambda: rig.events(tv.ExecutionContextRecorded))

    names = [type(event).__name__ for one in rig.published for _, event in one.events]
    assert names.index("TrainerStarted") < names.index("ExecutionContextRecorded")
    assert rig.events(tv.ExecutionContextRecorded)[0].incarnation == 1


def test_the_gate_is_closed_before_the_report_that_closed_it_is_shown_as_durable(rig, monkeypatch):
    """Else the trainer, waiting for just that number, could begin one more update in between."""
    trainer = rig.until_training()
    seen = []
    set_durable = Page.set_durable

    def looking(page, number):
        seen.append((rig.kernel.durable.run.phase, page.frozen))
        set_durable(page, number)

    monkeypatch.setattr(Page, "set_durable", looking)
    trainer.report(tv.SetupRefusedReport(why="as good a failure as any"))
    rig.wait(lambda: rig.events(rv.RunFailed))
    rig.wait(lambda: seen and seen[-1][0] is Phase.FAILED)

    assert all(frozen for phase, frozen in seen if phase is Phase.FAILED)


def test_after_the_journal_failed_the_recorder_sleeps(tmp_path):
    """Nobody reads the trainer's reports any more: that they wait must not keep a core busy."""
    files = Full()
    rig = Rig(tmp_path / "journal", files=files)
    trainer = rig.until_training()
    files.broken = True
    rig.command(cv.Note(text="lost"))
    trainer.report(sv.EpochStartedReport(epoch=1))
    turns = []
    turn_failed = rig.kernel._turn_failed
    rig.kernel._turn_failed = lambda: turns.append(turn_failed())
    time.sleep(0.3)

    assert len(turns) < 10
    rig.close()


def test_bytes_that_are_no_report_end_the_trainer_and_not_the_recorder(rig):
    """Text that is not UTF-8 is told in another way than other nonsense."""
    trainer = rig.until_training()
    trainer._number += 1
    trainer._packets.send(b"\x93\x01" + bytes([trainer._number]) + b"\x82\xa4type\xb1ExceptionReport\xff\xa1x")
    rig.wait(lambda: rig.effects(tv.KillTrainer))

    assert rig.kernel.failure is None
