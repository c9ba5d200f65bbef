"""A batch or checkpoint in quarantine is not used again.

The trainer is told, a checkpoint is no target of a rollback, and a batch that kills trainers is added.
"""

from __future__ import annotations

import pytest

from tests.core.health.test_detection_rules import tell
from tests.core.simulate import World, find, kinds, tick_until, until
from tests.core.simulated_trainer import Trainer
from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core import state as st
from tolariad.core.calc.detection.rules import Finding
from tolariad.core.decision import Accepted
from tolariad.core.messages.vocabulary import Report
from tolariad.core.rules.table.decide import decide
from tolariad.core.state.run_state import RunState, fold

BAD = m.Batches(2, 3, 5)


def test_the_trainer_is_told_the_whole_list_at_once_and_again_at_its_next_start():
    """An order, a second one, and the first taken out; then a death."""
    world = until(World(0), 2)
    other = m.Batches(3, 1, 1)
    assert isinstance(world.command(m.QuarantineAdd(batches=BAD, reason="label noise")), Accepted)
    world.command(m.QuarantineAdd(batches=other))
    world.command(m.QuarantineRemove(name="q0001"))
    told = [order.batches for order in world.trainer.orders if isinstance(order, m.SetQuarantine)]

    assert told == [(BAD,), (BAD, other), (other,)]
    assert q.train_from(world.state, None).quarantined == (other,)
    assert [(one.name, one.why) for one in find(world, m.QuarantineAdded)] == [
        ("q0001", "label noise"),
        ("q0002", "an operator ordered it"),
    ]


def test_names_are_never_used_twice_and_a_full_quarantine_takes_no_more():
    """Bounded, with a sentence."""
    world = until(World(0), 2)
    for number in range(st.ENTRIES_MAX):
        world.command(m.QuarantineAdd(batches=m.Batches(9, number + 1, number + 1)))
    refused = world.command(m.QuarantineAdd(batches=BAD))
    known = world.command(m.QuarantineAdd(batches=m.Batches(9, 3, 3)))
    world.command(m.QuarantineRemove(name="q0007"))
    world.command(m.QuarantineAdd(batches=BAD))

    assert isinstance(refused, m.Refusal)
    assert f"{st.ENTRIES_MAX} entries" in refused.why
    assert isinstance(known, m.Refusal)
    assert "already, as q0003" in known.why
    assert len(world.state.quarantine.entries) == st.ENTRIES_MAX
    assert world.state.quarantine.entries[-1].name == f"q{st.ENTRIES_MAX + 1:04d}"


@pytest.mark.parametrize(
    "command",
    [
        m.QuarantineAdd(),
        m.QuarantineAdd(batches=BAD, checkpoint="c000001"),
        m.QuarantineAdd(batches=m.Batches(1, 4, 3)),
        m.QuarantineAdd(batches=m.Batches(0, 1, 1)),
        m.QuarantineAdd(checkpoint="c999999"),
        m.QuarantineAdd(seed="s1"),
        m.QuarantineAdd(seed="s1", batches=BAD),
        m.QuarantineRemove(name="q0001"),
    ],
)
def test_what_means_nothing_is_refused(command):
    """Nothing is recorded."""
    world = until(World(0), 2)
    before = len(world.events)

    assert isinstance(world.command(command), m.Refusal)
    assert len(world.events) == before


def test_a_checkpoint_in_quarantine_is_no_target_until_it_is_taken_out():
    """By name it is refused with the entry's; by itself the run takes an older one."""
    world = until(World(0), 6)
    newest = world.state.checkpoints.newest
    world.command(m.QuarantineAdd(checkpoint=newest.id))
    refused = world.command(m.Rollback(to=newest.id))
    older = world.state.checkpoints.newest
    world.command(m.QuarantineRemove(name="q0001"))

    assert isinstance(refused, m.Refusal)
    assert "in quarantine (q0001)" in refused.why
    assert older.step < newest.step
    assert world.state.checkpoints.newest == newest


def test_the_last_checkpoint_to_start_from_stays_out_of_quarantine():
    """Else the next death would be the run's end; with another one beside it, it may go in."""
    world = until(World(0), 6)
    *older, newest = [one.id for one in world.state.checkpoints.catalogue if one.is_target]
    for one in older:
        assert isinstance(world.command(m.QuarantineAdd(checkpoint=one)), Accepted)
    refused = world.command(m.QuarantineAdd(checkpoint=newest))
    world.command(m.QuarantineRemove(name="q0001"))

    assert isinstance(refused, m.Refusal)
    assert "the last checkpoint" in refused.why
    assert isinstance(world.command(m.QuarantineAdd(checkpoint=newest)), Accepted)


def test_a_seed_in_quarantine_is_state_and_the_trainer_is_not_told():
    """As a journal that has one folds: beside the batches, to its epoch's end."""
    world = until(World(0), 2)
    world.command(m.QuarantineAdd(batches=BAD))
    added = m.QuarantineAdded(name="q0002", why="it starved", seed="s3", until=1)
    state = fold(world.state, (added,))

    assert [(one.name, one.seed, one.until) for one in state.quarantine.entries] == [
        ("q0001", "", None),
        ("q0002", "s3", 1),
    ]
    assert state.quarantine.batches == (BAD,)


def test_after_a_rollback_by_the_detector_the_suspects_are_skipped_where_that_is_wanted():
    """The trainer hears of them before it is told to go back."""
    world, other = until(World(0), 6), until(World(0, skip_batches=False), 6)
    orders = [type(one) for one in tell(world, Finding.DIVERGENCE)]
    tell(other, Finding.DIVERGENCE)
    added = find(world, m.QuarantineAdded)

    assert orders.index(m.SetQuarantine) < orders.index(m.PrepareRollback)
    # From the judged one on as many batches as an epoch of four has, over its end.
    assert [one.batches for one in added] == [m.Batches(2, 3, 4), m.Batches(3, 1, 2)]
    assert kinds(world)[-5:] == [*("InstabilityDetected", "EmergencyRaised", *["QuarantineAdded"] * 2, "RollbackBegun")]
    assert not find(other, m.QuarantineAdded)


@pytest.mark.parametrize("wanted", [True, False])
def test_a_batch_that_kills_three_times_is_skipped_where_that_is_wanted(wanted):
    """`on_death: skip_batch`; the third death at one step, not the third of the run."""
    world = until(World(0, skip_batch_on_death=wanted, deaths_max=9), 6)

    def die() -> None:
        world.crash_trainer()
        for _ in range(80):
            world.tick()
            if world.trainer is not None and world.state.trainer.began and world.state.progress.rerun is None:
                return

    for _ in range(2):
        die()
    assert not find(world, m.QuarantineAdded)
    die()
    expected = [m.Batches(2, world.state.progress.batch + 1, world.state.progress.batch + 1)] if wanted else []

    assert [one.batches for one in find(world, m.QuarantineAdded)] == expected
    assert list(q.train_from(world.state, None).quarantined) == expected


class PassingOver(Trainer):
    """A trainer that skips batches in quarantine, also in a re-run."""

    def _train(self, durable: RunState) -> Report | None:
        epoch = self.done_epoch + 1
        if self._epoch_is_over() or not self._is_held(epoch, self.batch + 1) or not q.gate_open(durable):
            return super()._train(durable)
        self.batch += 1
        at = {"epoch": epoch, "batch": self.batch, "loss": float("nan"), "grad_norm": -1.0}
        return m.StepSkippedReport(step=self.step + 1, reason=m.SkipReason.QUARANTINED, **at)

    def _rerun(self) -> Report | None:
        if not self._epoch_is_over() and self._is_held(self.done_epoch + 1, self.batch + 1):
            self.batch += 1
            self.skipped += 1
            assert isinstance(self.script.popleft(), m.StepSkipped)
            if self.script:
                return None
            compared = self.step - self.first + 1
            return m.RerunReport(first=self.first, last=self.step, compared=compared, skipped=self.skipped)
        return super()._rerun()

    def _is_held(self, epoch: int, batch: int) -> bool:
        return any(one.epoch == epoch and one.first <= batch <= one.last for one in self.order.quarantined)


class Deadly(World):
    """Its trainers skip batches in quarantine, and die at the batch that the test names."""

    def new_trainer(self, incarnation: int) -> Trainer:
        return PassingOver(incarnation, self.environment, self.accuracy, self.broken)

    def die_of_the_next(self) -> None:
        """Let the trainer pass everything that is skipped or re-run, and die of the next batch."""

        def trains() -> bool:
            one, state = self.trainer, self.state
            if one is None or self.due or not state.trainer.began or state.progress.rerun is not None or one.script:
                return False
            return not one._is_held(one.done_epoch + 1, one.batch + 1)

        tick_until(self, trains, "a trainer that trains")
        self.crash_trainer()
        tick_until(self, lambda: self.trainer is None and not self.state.trainer.alive, "its death")


def deadly(**policy) -> Deadly:
    """Two steps into the second epoch."""
    return until(Deadly(0, skip_batch_on_death=True, **policy), 5)


def test_two_batches_in_a_row_that_kill_are_both_passed_over():
    """Three deaths each with no step between them, more than the five that end a run: those of the first are cured."""
    world = deadly()
    at = world.state.progress.batch
    for _ in range(3):
        world.die_of_the_next()
    cured = world.state.trainer
    for _ in range(3):
        world.die_of_the_next()
    deaths = find(world, m.TrainerDied)
    world.run()

    assert (cured.deaths, cured.cured, cured.deaths_total) == (0, 1, 3)
    assert [one.batches.last - at for one in find(world, m.QuarantineAdded)] == [1, 2]
    assert [one.restart_s for one in deaths] == [0.0, 2.0, 4.0, 1.0, 2.0, 4.0]
    assert {one.step for one in deaths} == {5}
    assert world.state.run.phase is st.Phase.COMPLETED
    assert (world.state.trainer.deaths, world.state.trainer.cured) == (0, 0)


def test_a_trainer_that_dies_of_whatever_comes_is_given_up():
    """So many batches in a row take the blame; of the next it dies as often as any trainer may, and the run fails."""
    world = Deadly(0, skip_batch_on_death=True)
    until(world, 1)
    deaths = 0
    while world.state.run.phase is not st.Phase.FAILED and deaths < 99:
        world.die_of_the_next()
        deaths += 1
    added = find(world, m.QuarantineAdded)

    assert deaths == st.CURED_MAX * st.DEATHS_OF_A_BATCH + world.state.run.policy.deaths_max
    assert [one.deaths for one in added] == [st.DEATHS_OF_A_BATCH] * st.CURED_MAX + [0]
    assert f"after {st.CURED_MAX} batches" in world.state.run.why


def test_a_step_between_two_batches_that_kill_gives_them_all_back():
    """Deaths are counted since the last new step."""
    world = deadly()
    for _ in range(3):
        world.die_of_the_next()
    until(world, 6)

    assert (world.state.trainer.deaths, world.state.trainer.cured) == (0, 0)


@pytest.mark.parametrize("order", [m.QuarantineAdd(batches=BAD), m.QuarantineAdd(batches=m.Batches(2, 2, 2))])
def test_what_enters_the_quarantine_for_another_reason_leaves_the_deaths_counted(order):
    """An operator's entry says nothing of what the trainer dies of."""
    world = deadly()
    for _ in range(2):
        world.die_of_the_next()
    world.command(order)

    assert (world.state.trainer.deaths, world.state.trainer.cured) == (2, 0)


def test_deaths_amid_a_validation_are_no_batchs():
    """Three times at the same step, with none of training's batches ahead: no batch is blamed for it."""
    world = World(0, skip_batch_on_death=True, deaths_max=9)
    for _ in range(3):
        tick_until(world, lambda: world.state.progress.validating is not None, "a validation")
        at = world.state.progress.step
        world.crash_trainer()
        tick_until(world, lambda: not world.state.trainer.alive, "its death")
    deaths = find(world, m.TrainerDied)
    world.run()

    assert [one.step for one in deaths] == [at] * 3
    assert find(world, m.QuarantineAdded) == []
    assert world.state.run.phase is st.Phase.COMPLETED


def test_a_batch_that_was_passed_over_names_the_entry_it_was_passed_over_for():
    """Of several entries the one that holds the batch; with `accumulate` any batch of the update. A removed entry names
    none.
    """
    world = until(World(0), 6)
    added = (m.Batches(2, 90, 90), m.Batches(2, 3, 3), m.Batches(2, 4, 4))
    for one in added:
        world.command(m.QuarantineAdd(batches=one))
    at = world.state.progress

    def cause(batch, reason=m.SkipReason.QUARANTINED):
        report = m.StepSkippedReport(step=at.step + 1, epoch=2, batch=batch, loss=0.0, grad_norm=-1.0, reason=reason)
        (event,) = decide(world.state, m.ReportReceived(incarnation=1, report=report), m.Now(1, 1)).events
        return event.cause, event.root

    entries = world.state.quarantine.entries
    assert at.batch == 2
    assert cause(3) == (entries[1].since, entries[1].since)
    assert cause(4) == (entries[1].since, entries[1].since), "batches 3 and 4 in one update"
    # From the trainer itself: it begins a chain of its own.
    assert cause(4, m.SkipReason.SPIKE) == (0, world.state.seq + 1)
    for one in entries[1:]:
        world.command(m.QuarantineRemove(name=one.name))
    assert cause(4) == (0, world.state.seq + 1)


def test_what_is_in_quarantine_until_an_epochs_end_is_taken_out_with_it():
    """By an event, and the trainer is told; the entries without an end stay."""
    world = until(World(0), 2)
    other = m.Batches(3, 1, 1)
    world.command(m.QuarantineAdd(batches=BAD, until=1))
    world.command(m.QuarantineAdd(batches=other))
    late = world.command(m.QuarantineAdd(batches=m.Batches(1, 1, 1), until=0))
    until(world, 5)
    told = [order.batches for order in world.trainer.orders if isinstance(order, m.SetQuarantine)]

    assert isinstance(late, m.Refusal)
    assert [(one.name, one.until) for one in world.state.quarantine.entries] == [("q0002", None)]
    assert [(one.name, one.actor) for one in find(world, m.QuarantineRemoved)] == [("q0001", None)]
    assert q.train_from(world.state, None).quarantined == (other,)
    assert told == [] or told[-1] == (other,)
