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
from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.decision import Accepted, Answer
from tolariad.core.state.replay import newest_usable, replay_records
from tolariad.core.state.run_state import RunState
from tolariad.kernel import marks


def test_the_page_shows_a_report_only_once_its_event_is_on_disk(rig):
    """A trainer may continue when its report is durable, not when it has arrived."""
    trainer = rig.until_training()
    number = rig.step(1)
    rig.wait(lambda: trainer.page.durable >= number)

    assert m.StepCompleted in [type(event) for event in events_on_disk(rig.journal.folder)]


def test_no_update_may_begin_before_the_first_checkpoint_is_committed(rig):
    """A page starts frozen and is opened by CheckpointCommitted."""
    trainer = rig.until_training()

    assert not trainer.page.frozen
    names = [type(event).__name__ for event in events_on_disk(rig.journal.folder)]
    assert names[-1] == "CheckpointCommitted"


def test_a_command_is_answered_with_its_number_once_it_is_durable(rig):
    """The number is that of its event, which is on disk when the answer comes."""
    rig.until_training()
    answer = rig.command(m.Pause(reason="r"))

    assert isinstance(answer, Accepted)
    event = events_on_disk(rig.journal.folder)[answer.seq - 1]
    assert isinstance(event, m.PauseRequested)
    assert rig.order(m.Hold)[0].cause == answer.seq


def test_what_a_dead_trainer_had_sent_is_taken_before_its_death(rig):
    """There are more reports than one turn takes, and the trainer's death comes right after them."""
    trainer = rig.until_training()
    for number in range(1, 1501):
        rig.step(number)
    trainer.close()
    rig.gone()
    rig.wait(lambda: rig.events(m.TrainerDied))

    assert rig.kernel.durable.progress.step == 1500
    assert rig.events(m.TrainerDied)[0].step == 1500


def test_a_report_of_another_incarnation_is_dropped(rig):
    """A trainer that was given up cannot report for its successor."""
    trainer = rig.until_training()
    trainer.page._words[1] = 99  # it believes to be another incarnation
    trainer.report(m.Told(event=m.EpochStarted(epoch=1)))
    trainer.page._words[1] = 1
    rig.command(m.Note(text="after"))

    assert rig.kernel.durable.progress.epoch_started == 0


def test_a_gap_in_the_running_number_ends_the_trainer(rig):
    """A lost report must not be ignored."""
    trainer = rig.until_training()
    trainer._number += 1
    trainer.report(m.Told(event=m.EpochStarted(epoch=1)))
    rig.wait(lambda: rig.effects(m.KillTrainer))

    assert rig.kernel.durable.progress.epoch_started == 0


def test_a_record_of_the_ring_that_can_never_be_taken_ends_the_trainer(rig):
    """With a damaged record the trainer would otherwise wait at its gate for ever."""
    trainer = rig.until_training()
    rig.step(1)
    rig.wait(lambda: rig.kernel.durable.progress.step == 1)
    trainer._number += 1  # one that never comes
    rig.step(2)
    rig.wait(lambda: rig.effects(m.KillTrainer))

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
    trainer.report(m.ReadyReport(environment=environment(), parameters=1, steps_per_epoch=100))
    order, attachment = rig.order(m.TrainFrom)
    script = msgspec.msgpack.decode(attachment, type=m.Script)
    assert order.checkpoint.step == 0
    assert order.durable_step == 7
    assert [step.step for step in script.steps] == list(range(1, 8))
    trainer.report(m.TrainingStartedReport(step=0, checkpoint=order.checkpoint.id))
    trainer.report(m.RerunReport(first=1, last=7, compared=7))
    trainer.report(step_report(8))
    rig.wait(lambda: rig.kernel.durable.progress.step == 8)
    assert rig.kernel.durable.run.phase is st.Phase.RUNNING
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
        rig.command(m.Note(text=big))
        if number % 20 == 0:
            assert isinstance(rig.command(m.Pause()), Accepted)
            assert isinstance(rig.command(m.Resume()), Accepted)

    assert rig.kernel.failure is None


def test_a_trainer_is_recorded_before_anything_it_says(rig):
    """Even if the recorder was busy, a trainer's start is recorded before its reports."""
    rig.wait(lambda: rig.effects(m.SpawnTrainer))
    busy = threading.Event()
    rig.kernel.call(lambda: busy.wait(SOON_S))
    end, sock = channel_pair(1)
    trainer = TrainerEnd(sock, Page.attach(os.dup(end.page.descriptor)))
    rig.kernel.attach(end, m.TrainerSpawned(incarnation=1, pid=4242, start_ticks=1, boot_id="b"))
    trainer.report(m.ReadyReport(environment=environment(), parameters=1, steps_per_epoch=100))
    busy.set()
    rig.wait(lambda: rig.events(m.ExecutionContextRecorded))

    names = [type(event).__name__ for one in rig.published for _, event in one.events]
    assert names.index("TrainerStarted") < names.index("ExecutionContextRecorded")
    assert rig.events(m.ExecutionContextRecorded)[0].incarnation == 1


def test_the_gate_is_closed_before_the_report_that_closed_it_is_shown_as_durable(rig, monkeypatch):
    """Otherwise the trainer, which waits for that number, could begin one more update in between."""
    trainer = rig.until_training()
    seen = []
    set_durable = Page.set_durable

    def looking(page, number):
        seen.append((rig.kernel.durable.run.phase, page.frozen))
        set_durable(page, number)

    monkeypatch.setattr(Page, "set_durable", looking)
    trainer.report(m.SetupRefusedReport(why="as good a failure as any"))
    rig.wait(lambda: rig.events(m.RunFailed))
    rig.wait(lambda: seen and seen[-1][0] is st.Phase.FAILED)

    assert all(frozen for phase, frozen in seen if phase is st.Phase.FAILED)


def test_a_rollback_that_hangs_halts_the_run_by_the_kernels_own_clock(rig):
    """No report comes any more. A turn a second checks the deadline, and the trainer is ended."""
    trainer = rig.until_training()
    rig.step(1)
    rig.command(m.Rollback())
    order = rig.order(m.PrepareRollback)[0]
    trainer.report(m.RollbackHeardReport(rollback=order.rollback))
    rig.wait(lambda: rig.events(m.RollbackHeard))
    assert not rig.effects(m.KillTrainer)
    rig.kernel._clock = lambda: m.Now(time.time_ns(), time.monotonic_ns() + 31 * 10**9)
    rig.wait(lambda: rig.effects(m.KillTrainer))

    assert "was not done 30 s" in rig.events(m.RunFrozen)[0].why
    assert trainer.page.frozen


def test_an_order_that_comes_after_the_end_is_refused_and_written_into_no_other_file(rig, tmp_path):
    """A thread of a program that gives one does not wait for ever. The end may have freed the descriptor."""
    descriptors = {int(one.name) for one in Path("/proc/self/fd").iterdir()}
    rig.kernel.stop()
    files = [os.open(tmp_path / f"other-{number}", os.O_CREAT | os.O_RDWR) for number in range(3)]
    answer = rig.command(m.Note(text="too late"))
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
            mine.append(rig.command(m.Note(text="and on")))

    threads = [threading.Thread(target=orders, args=(mine,)) for mine in answers]
    for one in threads:
        one.start()
    wait_for(lambda: all(answers))
    rig.kernel.stop()
    for one in threads:
        one.join(SOON_S)

    noted = sum(isinstance(one, m.NoteAdded) for one in events_on_disk(rig.journal.folder))
    assert [mine[-1].error for mine in answers] == ["WrongPhase"] * 4
    assert noted == sum(len(mine) - 1 for mine in answers)
