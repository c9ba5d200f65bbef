"""A journal that fails and a defect of the recorder: the run freezes, the socket gives the reason, nothing is lost."""

from __future__ import annotations

import threading
import time

from journal import JournalFull
from journal.files import Files
from tests.core.simulate import OPERATOR, environment
from tests.kernel.rig import SOON_S, Rig, events_on_disk, written
from tolariad.core import messages as m


class Full(Files):
    """A disk on which every write fails after `broken` is set."""

    broken = False

    def pwrite(self, *args, **kwargs):
        if self.broken:
            raise OSError(28, "No space left on device")
        return super().pwrite(*args, **kwargs)


def test_a_journal_that_fails_freezes_the_run_and_says_why(tmp_path):
    """Nothing is acknowledged, the gate closes, the state is the one on disk, a signal still ends the daemon."""
    files = Full()
    rig = Rig(tmp_path / "journal", files=files)
    trainer = rig.until_training()
    files.broken = True
    answer = rig.command(m.Note(text="lost"))

    assert isinstance(answer, m.Refusal)
    assert answer.error == "NotDurable"
    assert rig.kernel.failure is not None
    # Kept private: the kernel's promise about `head`, which nothing outside it may read.
    assert rig.kernel._head is rig.kernel.durable
    assert trainer.page.halted
    number = rig.step(1)
    again = rig.command(m.Pause())
    assert isinstance(again, m.Refusal)
    assert again.error == "Frozen"
    assert "No space left on device" in again.why
    assert trainer.page.durable < number
    answered = threading.Event()
    rig.kernel.call(answered.set)
    assert answered.wait(SOON_S)  # the watchdog's question: it is frozen, not dead
    rig.kernel.submit(m.SignalReceived(count=1, name="SIGTERM"))
    rig.wait(lambda: rig.effects(m.ExitDaemon))
    assert rig.effects(m.ExitDaemon)[0].code == 74
    rig.close()

    rig = Rig(tmp_path / "journal")
    rig.wait(lambda: rig.published)
    assert not any(isinstance(event, m.NoteAdded) for event in events_on_disk(tmp_path / "journal"))
    rig.close()


def test_whoever_looks_sees_that_a_write_waits_for_space(tmp_path, monkeypatch):
    """Until it is there: then the write is done, and nothing was lost."""
    rig = Rig(tmp_path / "journal")
    rig.until_training()
    commit, tries, freed = rig.journal.commit, threading.Semaphore(0), threading.Event()

    def full(*args, **kwargs):
        if freed.is_set():
            return commit(*args, **kwargs)
        tries.release()
        raise JournalFull("there is no space for the next segment", errno=28)

    monkeypatch.setattr(rig.journal, "commit", full)
    assert not rig.kernel.waits_for_space
    rig.kernel.submit(m.CommandReceived(command=m.Note(text="kept"), actor=OPERATOR))
    # The second try comes after the first one has failed.
    assert tries.acquire(timeout=SOON_S)
    assert tries.acquire(timeout=SOON_S)
    assert rig.kernel.waits_for_space
    freed.set()
    rig.wait(lambda: rig.events(m.NoteAdded))

    assert not rig.kernel.waits_for_space
    rig.close()


def test_an_order_into_files_that_are_gone_is_not_acknowledged(tmp_path):
    """A deleted file takes writes without an error. The order is refused, the run is frozen, and the daemon ends."""
    gone: list[str] = []
    rig = Rig(tmp_path / "journal", lost=lambda: gone[0] if gone else "")
    trainer = rig.until_training()
    gone.append("the folder was deleted")
    answer = rig.command(m.Note(text="lost"))
    assert isinstance(answer, m.Refusal)
    assert (answer.error, answer.why) == ("NotDurable", "the folder was deleted")
    assert trainer.page.halted
    assert [one.code for one in rig.effects(m.ExitDaemon)] == [74]
    rig.close()


def test_files_that_are_gone_end_the_daemon_without_any_order(tmp_path):
    """The watch asks for a check; if nothing is missing, the check changes nothing."""
    gone: list[str] = []
    rig = Rig(tmp_path / "journal", lost=lambda: gone[0] if gone else "")
    trainer = rig.until_training()
    rig.kernel.check_place()
    rig.step(1)
    rig.wait(lambda: rig.kernel.durable.progress.step == 1)
    assert rig.kernel.failure is None
    gone.append("the folder was deleted")
    rig.kernel.check_place()
    rig.wait(lambda: rig.effects(m.ExitDaemon))
    assert rig.kernel.failure == "the folder was deleted"
    assert trainer.page.halted
    rig.close()


def test_a_critical_emergency_halts_and_a_run_without_a_checkpoint_is_only_shut(rig):
    """Re-runs before the first checkpoint may continue; after CRITICAL nothing does."""
    rig.spawn()
    shut = (rig.trainer.page.frozen, rig.trainer.page.halted)
    rig.trainer.report(m.ReadyReport(environment=environment(), parameters=1, steps_per_epoch=100))
    rig.order(m.TrainFrom)
    id_ = rig.order(m.TakeCheckpoint)[0].id
    rig.trainer.report(written(id_, 0))
    rig.wait(lambda: not rig.trainer.page.frozen)
    rig.command(m.RaiseEmergency(level=m.Level.CRITICAL))

    assert shut == (True, False)
    rig.wait(lambda: rig.trainer.page.halted)
    assert not rig.trainer.order_pending


def test_a_defect_in_a_decision_freezes_the_run_instead_of_ending_the_recorder(rig, monkeypatch):
    """The thread continues and answers with the reason."""
    trainer = rig.until_training()
    monkeypatch.setattr("tolariad.kernel.turn.decide", lambda *_: 1 / 0)
    rig.step(1)
    rig.wait(lambda: rig.kernel.failure)
    answer = rig.command(m.Note(text="x"))

    assert isinstance(answer, m.Refusal)
    assert "ZeroDivisionError" in answer.why
    assert trainer.page.frozen


def test_after_the_journal_failed_the_recorder_sleeps(tmp_path):
    """The trainer's reports are not read any more; pending ones must not keep a core busy."""
    files = Full()
    rig = Rig(tmp_path / "journal", files=files)
    trainer = rig.until_training()
    files.broken = True
    rig.command(m.Note(text="lost"))
    trainer.report(m.Told(event=m.EpochStarted(epoch=1)))
    turns = []
    turn_failed = rig.kernel._turn_failed
    rig.kernel._turn_failed = lambda: turns.append(turn_failed())
    time.sleep(0.3)

    assert len(turns) < 10
    rig.close()


def test_bytes_that_are_no_report_end_the_trainer_and_not_the_recorder(rig):
    """This includes text that is not UTF-8, which raises another exception."""
    trainer = rig.until_training()
    trainer._number += 1
    trainer._packets.send(b"\x93\x01" + bytes([trainer._number]) + b"\x82\xa4type\xb1ExceptionReport\xff\xa1x")
    rig.wait(lambda: rig.effects(m.KillTrainer))

    assert rig.kernel.failure is None
    assert rig.events(m.ReportRefused)[0].incarnation == 1
