"""The recorder's invariants, on real files and a real channel. The test plays the trainer."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import msgspec

from journal import Journal, Reader
from tests.core.simulate import environment
from tests.kernel.rig import SOON_S, Rig, events_on_disk, step_report
from tests.waiting import wait_for
from tolariad.channel import TrainerEnd, channel_pair
from tolariad.channel.page import Page
from tolariad.core.checkpoints import words as ck
from tolariad.core.control import words as cv
from tolariad.core.decision import Accepted, Answer
from tolariad.core.inputs import Now, TrainerSpawned
from tolariad.core.replay import newest_usable, replay_records
from tolariad.core.rollback import words as rb
from tolariad.core.run import words as rv
from tolariad.core.run.slice import Phase
from tolariad.core.state import RunState
from tolariad.core.steps import script_words as sc
from tolariad.core.steps import words as sv
from tolariad.core.trainer import words as tv
from tolariad.kernel import marks


def test_the_page_shows_a_report_only_once_its_event_is_on_disk(rig):
    """A trainer may continue when its report is durable, not when it has arrived."""
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
    """The number is that of its event, which is on disk when the answer comes."""
    rig.until_training()
    answer = rig.command(cv.Pause(reason="r"))

    assert isinstance(answer, Accepted)
    event = events_on_disk(rig.journal.folder)[answer.seq - 1]
    assert isinstance(event, cv.PauseRequested)
    assert rig.order(cv.Hold)[0].cause == answer.seq


def test_what_a_dead_trainer_had_sent_is_taken_before_its_death(rig):
    """There are more reports than one turn takes, and the trainer's death comes right after them."""
    trainer = rig.until_training()
    for number in range(1, 1501):
        rig.step(number)
    trainer.close()
    rig.gone()
    rig.wait(lambda: rig.events(tv.TrainerDied))

    assert rig.kernel.durable.progress.step == 1500
    assert rig.events(tv.TrainerDied)[0].step == 1500


def test_a_report_of_another_incarnation_is_dropped(rig):
    """A trainer that was given up cannot report for its successor."""
    trainer = rig.until_training()
    trainer.page._words[1] = 99  # it believes to be another incarnation
    trainer.report(sv.EpochStartedReport(epoch=1))
    trainer.page._words[1] = 1
    rig.command(cv.Note(text="after"))

    assert rig.kernel.durable.progress.epoch_started == 0


def test_a_gap_in_the_running_number_ends_the_trainer(rig):
    """A lost report must not be ignored."""
    trainer = rig.until_training()
    trainer._number += 1
    trainer.report(sv.EpochStartedReport(epoch=1))
    rig.wait(lambda: rig.effects(tv.KillTrainer))

    assert rig.kernel.durable.progress.epoch_started == 0


def test_a_record_of_the_ring_that_can_never_be_taken_ends_the_trainer(rig):
    """With a damaged record the trainer would otherwise wait at its gate for ever."""
    trainer = rig.until_training()
    rig.step(1)
    rig.wait(lambda: rig.kernel.durable.progress.step == 1)
    trainer._number += 1  # one that never comes
    rig.step(2)
    rig.wait(lambda: rig.effects(tv.KillTrainer))

    assert rig.kernel.durable.progress.step == 1


def test_a_restart_gives_the_trainer_the_steps_that_the_checkpoint_lacks(tmp_path):
    """The script from the journal has the recorded bits."""
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
    script = msgspec.msgpack.decode(attachment, type=sc.Script)
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
    """With small segments, captures, hashes and all events fold to the kernel's state."""
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


def test_what_is_left_to_fold_is_short(tmp_path, monkeypatch):
    """Captures are between the frames of a long segment, and one is at the end after an orderly stop."""
    monkeypatch.setattr(marks, "CAPTURE_EVENTS", 32)
    rig = Rig(tmp_path / "journal", segment_bytes=16 << 20)
    rig.until_training()
    for number in range(1, 200):
        rig.step(number)
        rig.wait(lambda number=number: rig.kernel.durable.progress.step == number)
    with Reader(tmp_path / "journal") as reader:
        captures = list(reader.captures())
        # The last one may be on its way.
        assert len(captures) >= 199 // 32
        for one in captures:
            replayed = replay_records(RunState(), reader.records(), until_seq=one.seq).state
            assert newest_usable([one]) == replayed
    live = rig.kernel.durable
    rig.close()

    with Reader(tmp_path / "journal") as reader:
        assert newest_usable(reader.captures()) == live


def test_a_ping_is_answered_while_nothing_happens(rig):
    """The watchdog relies on this."""
    answered = threading.Event()
    rig.kernel.call(answered.set)

    assert answered.wait(SOON_S)


def test_a_trainer_that_reads_nothing_does_not_stop_the_kernel(rig):
    """Orders that do not fit wait in the outbox, and commands are still answered."""
    rig.until_training()
    big = "x" * 4000
    for number in range(300):
        rig.command(cv.Note(text=big))
        if number % 20 == 0:
            assert isinstance(rig.command(cv.Pause()), Accepted)
            assert isinstance(rig.command(cv.Resume()), Accepted)

    assert rig.kernel.failure is None


def test_a_trainer_is_recorded_before_anything_it_says(rig):
    """Even if the recorder was busy, a trainer's start is recorded before its reports."""
    rig.wait(lambda: rig.effects(tv.SpawnTrainer))
    busy = threading.Event()
    rig.kernel.call(lambda: busy.wait(SOON_S))
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
    """Otherwise the trainer, which waits for that number, could begin one more update in between."""
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


def test_a_rollback_that_hangs_halts_the_run_by_the_kernels_own_clock(rig):
    """No report comes any more. A turn a second checks the deadline, and the trainer is ended."""
    trainer = rig.until_training()
    rig.step(1)
    rig.command(rb.Rollback())
    order = rig.order(rb.PrepareRollback)[0]
    trainer.report(rb.RollbackHeardReport(rollback=order.rollback))
    rig.wait(lambda: rig.events(rb.RollbackHeard))
    assert not rig.effects(tv.KillTrainer)
    rig.kernel._clock = lambda: Now(time.time_ns(), time.monotonic_ns() + 31 * 10**9)
    rig.wait(lambda: rig.effects(tv.KillTrainer))

    assert "was not done 30 s" in rig.events(rv.RunFrozen)[0].why
    assert trainer.page.frozen


def test_an_order_that_comes_after_the_end_is_refused_and_written_into_no_other_file(rig, tmp_path):
    """A thread of a program that gives one does not wait for ever. The end may have freed the descriptor."""
    descriptors = {int(one.name) for one in Path("/proc/self/fd").iterdir()}
    rig.kernel.stop()
    files = [os.open(tmp_path / f"other-{number}", os.O_CREAT | os.O_RDWR) for number in range(3)]
    answer = rig.command(cv.Note(text="too late"))
    rig.kernel.call(files.clear)

    assert (answer.error, "has ended" in answer.why) == ("WrongPhase", True)
    assert descriptors & set(files), "no descriptor was used again, so nothing is shown"
    assert [os.fstat(one).st_size for one in files] == [0, 0, 0]
    for one in files:
        os.close(one)


def test_every_order_is_answered_however_close_to_the_end(rig):
    """Threads give orders while the kernel stops: each one is recorded or refused."""
    answers: list[list[Answer]] = [[] for _ in range(4)]

    def orders(mine: list[Answer]) -> None:
        while not mine or isinstance(mine[-1], Accepted):
            mine.append(rig.command(cv.Note(text="and on")))

    threads = [threading.Thread(target=orders, args=(mine,)) for mine in answers]
    for one in threads:
        one.start()
    wait_for(lambda: all(answers))
    rig.kernel.stop()
    for one in threads:
        one.join(SOON_S)

    noted = sum(isinstance(one, cv.NoteAdded) for one in events_on_disk(rig.journal.folder))
    assert [mine[-1].error for mine in answers] == ["WrongPhase"] * 4
    assert noted == sum(len(mine) - 1 for mine in answers)
