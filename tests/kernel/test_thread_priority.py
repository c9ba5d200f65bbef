"""How the kernel waits for steps: it polls if it has a core, else it is woken. The result is recorded."""

from __future__ import annotations

import time

import pytest

from tests.kernel.rig import SOON_S, Rig
from tests.waiting import within
from tolariad.channel.ring import SLOT_BYTES, SLOTS
from tolariad.core import messages as m

STEPS = 100


class Given:
    """A system that grants what the test says, and remembers being asked."""

    def __init__(self, *, polls):
        self.polls = polls
        self.asked = []

    def take(self, context, trainer_pid):
        self.asked.append(("take", context.environment.threads, trainer_pid))
        refused = "" if self.polls else "SCHED_FIFO: [Errno 1] Operation not permitted"
        return m.SchedulingRecorded(
            incarnation=context.incarnation,
            threads=1,
            cores=(0, 1),
            polls=self.polls,
            scheduler="other",
            refused=refused,
            skippable=True,
        )

    def give_back(self):
        self.asked.append(("give back",))


@pytest.fixture
def rig_with(tmp_path):
    made = []

    def make(given, **policy):
        made.append(Rig(tmp_path / "journal", scheduling=given, **policy))
        return made[-1]

    yield make
    for rig in made:
        rig.close()


def wakes_while_stepping(rig, pause_s):
    """Return how often a trainer of a hundred steps had to wake the recorder.

    Between two steps it waits for `pause_s`, or until the recorder sleeps.
    """
    trainer = rig.until_training()
    wakes = []
    nudge = trainer._packets.nudge
    trainer._packets.nudge = lambda: wakes.append(nudge())
    for number in range(1, STEPS + 1):
        last = rig.step(number)
        rig.wait(lambda last=last: trainer.page.durable >= last)
        within(pause_s, lambda: trainer.page.asleep)
    return len(wakes)


def test_a_recorder_with_a_core_polls_and_no_step_pays_for_waking_it(rig_with, monkeypatch):
    """A handful of wake-ups is allowed for pauses of the machine. However slow it is, its steps are quick ones here."""
    monkeypatch.setattr("tolariad.core.calc.run.cpu_placement._POLLED_NS", 60_000_000_000)
    monkeypatch.setattr("tolariad.kernel.recorder.FLOW_NS", 60_000_000_000)
    assert wakes_while_stepping(rig_with(Given(polls=True)), 0.001) < STEPS // 4


def test_a_recorder_without_one_sleeps_and_is_woken(rig_with):
    """It must not spin on the trainer's cores."""
    assert wakes_while_stepping(rig_with(Given(polls=False)), 1.0) > STEPS // 4


@pytest.mark.parametrize("polls", [True, False])
def test_a_record_that_is_not_whole_is_waited_for_asleep(rig_with, monkeypatch, polls):
    """Polling it without a pause would occupy the recorder's core until the trainer is given up."""
    monkeypatch.setattr("tolariad.channel.pair._STUCK_NS", 500_000_000)
    rig = rig_with(Given(polls=polls))
    trainer = rig.until_training()
    for number in range(1, 11):
        last = rig.step(number)
        rig.wait(lambda last=last: trainer.page.durable >= last)

    def write_without_its_body(number, *_report):
        ring = trainer._ring
        ring._words[ring._count % SLOTS * SLOT_BYTES // 8] = number

    turns = []
    turn = rig.kernel._turn
    monkeypatch.setattr(rig.kernel, "_turn", lambda **how: turns.append(turn(**how)))
    trainer._ring.write = write_without_its_body
    rig.step(11)
    rig.wait(lambda: rig.effects(m.KillTrainer))

    assert rig.kernel.durable.progress.step == 10
    # A millisecond apart, or a few; without a pause they are tens of thousands.
    assert len(turns) < 1500


def test_what_the_system_gave_is_recorded_for_every_trainer_and_a_refusal_stops_nothing(rig_with):
    """A core is asked for when a trainer is ready and given back when it is gone. Steps are recorded in any case."""
    given = Given(polls=False)
    rig = rig_with(given)
    trainer = rig.until_training()
    last = rig.step(1)
    rig.wait(lambda: trainer.page.durable >= last)
    state_before = rig.kernel.durable
    rig.gone()
    rig.wait(lambda: len(rig.effects(m.SpawnTrainer)) == 2)

    (recorded,) = rig.events(m.SchedulingRecorded)
    assert recorded.refused.startswith("SCHED_FIFO")
    assert state_before.progress.step == 1
    assert given.asked == [("take", 1, 4242), ("give back",)]


def test_reports_by_the_socket_are_heard_while_the_ring_is_polled(rig_with):
    """The page shows that one was posted, so the recorder need not read the socket in every turn."""
    rig = rig_with(Given(polls=True))
    trainer = rig.until_training()
    trainer.report(m.Told(event=m.EpochStarted(epoch=1)))
    for number in range(1, 11):
        rig.step(number)
    last = trainer.report(m.Told(event=m.ValidationBegun(epoch=1, step=10)))
    rig.wait(lambda: trainer.page.durable >= last)

    assert len(rig.events(m.StepCompleted)) == 10
    assert len(rig.events(m.ValidationBegun)) == 1


@pytest.mark.parametrize("polls", [True, False])
def test_a_step_that_is_held_back_is_written_soon_whatever_went_before(rig_with, monkeypatch, polls):
    """`sync: batch` allows 50 ms, also for a step after a long silence. The recorder's own sleep is a minute here."""
    for module in ("wakeup", "recorder"):
        monkeypatch.setattr(f"tolariad.kernel.{module}.SLEEP_MAX_MS", 60_000)
    rig = rig_with(Given(polls=polls), sync="batch")
    trainer = rig.until_training()
    last = rig.step(1)
    rig.wait(lambda: trainer.page.durable >= last)
    # Longer than steps are said to flow.
    time.sleep(1.1)
    last = rig.step(2)
    reported = time.monotonic()
    while trainer.page.durable < last and time.monotonic() - reported < SOON_S:
        time.sleep(0.002)

    assert time.monotonic() - reported < 5
