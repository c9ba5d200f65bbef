"""The end of an epoch as a protocol: begun, asked, answered or overdue, ordered, continued.

Only these tests ask somebody.
"""

from __future__ import annotations

import msgspec
import pytest

from tests.core.boundary.test_orders import acted
from tests.core.boundary.toys import Turn, TurningWorld
from tests.core.simulate import find, tick_until, until, until_found
from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.decision import Decision
from tolariad.core.rules import boundary as boundary_rules
from tolariad.core.rules.table import reactions
from tolariad.core.rules.table.reactions import TABLE
from tolariad.core.state import boundary
from tolariad.core.state import run_state as state


class Asked(m.BoundaryAsked, frozen=True, kw_only=True):
    """An adviser was asked."""


class Advised(m.BoundaryClosed, frozen=True, kw_only=True):
    """It answered: turn these knobs."""

    turns: tuple[tuple[str, int], ...] = ()


class Overdue(m.BoundaryClosed, frozen=True, kw_only=True):
    """It did not answer in time, or a rollback or the end of the trainer came first."""


class Answer(msgspec.Struct, frozen=True):
    """Input: an answer of the adviser; or `late`: its time is over."""

    generation: int
    turns: tuple[tuple[str, int], ...] = ()
    late: bool = False


def ask(now, event, _):
    """Ask after every epoch."""
    return Decision((Asked(epoch=event.epoch, generation=now.boundary.next_generation),))


def answered(now, given, _):
    """Record what is still awaited; anything else is void."""
    if not now.boundary.awaits(given.generation):
        return None
    if given.late:
        return Decision((Overdue(generation=given.generation),))
    return Decision((Advised(generation=given.generation, turns=given.turns),))


def overtaken(_, event, at):
    """Record the end of a question that this event closed: nobody waits for its answer any more."""
    asked = at.was.boundary.asked
    return Decision((Overdue(generation=asked.generation),)) if asked is not None else None


def ordered(_, event, __):
    """The orders of an answer."""
    return Decision(tuple(m.OrderGiven(order=Turn(knob=knob, to=to)) for knob, to in event.turns))


@pytest.fixture
def adviser(monkeypatch):
    """Put an adviser into the table: it is asked in EpochFinished's row, above the rule that goes on."""
    monkeypatch.setitem(boundary.APPLY, Asked, boundary._asked)
    monkeypatch.setitem(boundary.APPLY, Advised, boundary._closed)
    monkeypatch.setitem(boundary.APPLY, Overdue, boundary._closed)
    monkeypatch.setattr(state, "FOLDS", state._by_event())
    rules = dict(reactions.ENGINE._rules)
    rules[m.EpochFinished] = (*rules[m.EpochFinished][:-1], ask, rules[m.EpochFinished][-1])
    rules[Answer] = (answered,)
    rules[Advised] = (ordered, boundary_rules.go_on_closed)
    rules[Overdue] = (boundary_rules.go_on_closed,)
    for closes in (m.RollbackBegun, m.RolledBack, m.TrainerDied, m.TrainerEnded):
        rules[closes] = (overtaken, *rules[closes])
    monkeypatch.setattr(reactions.ENGINE, "_rules", rules)


class AskedWorld(TurningWorld):
    """Remembers what the trainer is sent."""

    def __init__(self, seed, **policy):
        self.sent = []
        super().__init__(seed, **policy)

    def _do(self, effect):
        self.sent.append(effect)
        super()._do(effect)

    def until_asked(self, epoch=1):
        return tick_until(
            self, lambda: self.state.boundary.asked == boundary.OpenQuestion(epoch, epoch), f"asked {epoch}"
        )

    def continued(self):
        return [effect.epoch for effect in self.sent if isinstance(effect, m.Continue)]

    def run_with_answers(self):
        """To the run's end; every question is answered with no order."""
        for _ in range(500):
            if self.exit is not None:
                return
            if self.state.boundary.asked is not None and not self.due:
                self.give(Answer(self.state.boundary.asked.generation))
            self.tick()


def test_with_nobody_to_ask_an_epoch_ends_in_one_turn():
    """The report is recorded and answered at once; nothing of the protocol is in the journal or the state."""
    world = AskedWorld(0)
    until_found(world, m.EpochFinished)

    assert isinstance(world.sent[-1], m.Continue)
    assert find(world, m.BoundaryAsked) == find(world, m.BoundaryClosed) == []
    assert (world.state.boundary.asked, world.state.boundary.generations) == (None, 0)
    world.run()
    assert world.continued() == [1, 2, 3]


@pytest.mark.usefixtures("adviser")
def test_an_answer_in_time_gives_its_orders_before_training_goes_on():
    """The trainer waits at the end of the epoch; the orders act before the next step, under the answer's cause."""
    world = AskedWorld(0).until_asked()
    for _ in range(5):
        world.tick()
    assert (world.continued(), world.trainer.wait_epoch) == ([], 1)
    before = len(world.sent)
    world.give(Answer(1, (("left", 4), ("right", 5))))

    assert [type(effect).__name__ for effect in world.sent[before:]] == ["Turn", "Turn", "Continue"]
    (advised,) = find(world, Advised)
    assert {event.cause for event in find(world, m.OrderGiven)} == {world.events.index(advised) + 1}
    world.run_with_answers()
    assert acted(world) == [(1, 5, "Turn"), (2, 5, "Turn")]
    assert world.continued() == [1, 2, 3]
    assert world.state.run.phase is st.Phase.COMPLETED


@pytest.mark.usefixtures("adviser")
def test_an_overdue_answer_is_not_waited_for_and_void_when_it_comes():
    """Training goes on without it; neither that generation nor a wrong one gives an order later."""
    world = AskedWorld(0).until_asked()
    world.give(Answer(1, late=True))
    assert world.continued() == [1]
    events = len(world.events)
    world.give(Answer(1, (("left", 4),)))
    assert len(world.events) == events
    world.until_asked(2)
    events = len(world.events)
    for generation in (1, 3):
        world.give(Answer(generation, (("left", 4),)))
    assert (len(world.events), world.continued()) == (events, [1])
    world.run_with_answers()

    assert len(find(world, Overdue)) == 1
    assert find(world, m.OrderGiven) == []
    assert world.state.run.phase is st.Phase.COMPLETED


@pytest.mark.usefixtures("adviser")
def test_a_rollback_closes_the_question():
    """The trainer need not wait while the rollback is prepared; the answer is void; a new branch asks anew."""
    world = AskedWorld(0, checkpoint_every_epochs=1)
    world.until_asked(1).give(Answer(1))
    world.until_asked(2)
    world.command(m.Rollback(epoch=1))
    assert world.state.boundary.asked is None
    assert world.continued() == [1, 2]
    world.give(Answer(2, (("left", 4),)))
    until_found(world, m.RolledBack)
    tick_until(world, lambda: world.state.boundary.asked == boundary.OpenQuestion(2, 3), "the new branch's question")
    world.run_with_answers()

    assert find(world, m.OrderGiven) == []
    assert [event.generation for event in find(world, Asked)] == [1, 2, 3, 4]
    assert [event.generation for event in find(world, Overdue)] == [2]
    assert world.state.run.phase is st.Phase.COMPLETED


@pytest.mark.usefixtures("adviser")
def test_a_rollback_that_is_given_up_leaves_no_trainer_waiting():
    """Nothing was restored; training goes on after the epoch's end, without the answer."""
    world = AskedWorld(0, checkpoint_every_epochs=1).until_asked(1)
    world.broken.update(one.id for one in world.state.checkpoints.catalogue)
    world.command(m.Rollback())
    until_found(world, m.RollbackAborted)
    world.broken.clear()

    assert world.state.boundary.asked is None
    assert world.continued() == [1]


@pytest.mark.usefixtures("adviser")
@pytest.mark.parametrize("who", ["trainer", "daemon"])
def test_the_end_of_the_trainer_closes_the_question(who):
    """Nobody waits any more, so nobody is told to go on; the answer is void; the next trainer is not held up."""
    world = AskedWorld(0).until_asked()
    if who == "trainer":
        world.crash_trainer()
        world.tick()
    else:
        world.restart_daemon()
    assert (world.state.boundary.asked, world.continued()) == (None, [])
    assert [event.generation for event in find(world, Overdue)] == [1]
    world.give(Answer(1, (("left", 4),)))
    world.run_with_answers()

    assert find(world, m.OrderGiven) == []
    assert [event.epoch for event in find(world, Asked)] == [1, 2, 3]
    assert world.state.run.phase is st.Phase.COMPLETED


@pytest.mark.usefixtures("adviser")
@pytest.mark.parametrize("had_acted", [True, False])
def test_a_re_run_repeats_the_answer_from_the_journal(had_acted):
    """It asks nobody a second time: what acted is in the script, and what had not acted is sent."""
    world = AskedWorld(0, checkpoint_every_epochs=100).until_asked()
    world.give(Answer(1, (("left", 4),)))
    if had_acted:
        until(world, 6)
    world.crash_trainer()
    until_found(world, m.RerunFinished)
    until(world, 7)
    script = [(one.number, one.before_step, one.after_epoch, one.order.to) for one in world.trainer.script_orders]

    assert script == ([(1, 5, 1, 4)] if had_acted else [])
    assert world.trainer.knobs == {"left": 4}
    assert [event.epoch for event in find(world, Asked)] == [1]
    assert acted(world) == [(1, 5, "Turn")]


def test_the_rules_that_end_the_wait_come_last():
    """Of EpochFinished and RollbackBegun: whoever is asked records that above, and orders leave before Continue."""
    last = {row.kind: row.rules[-1] for row in TABLE}
    assert last[m.EpochFinished] is boundary_rules.go_on
    assert last[m.RollbackBegun] is boundary_rules.go_on_closed


@pytest.mark.usefixtures("adviser")
def test_disasters_leave_no_trainer_waiting(seed):
    """Thirty drawn worlds with an adviser that answers sometimes: each question has one end, or is still open."""
    questions = 0
    for offset in range(30):
        world = AskedWorld(seed + offset, deaths_max=50)
        world.goes_back = True
        for _ in range(300):
            if world.random.random() < 0.2:
                generation = world.random.randrange(world.state.boundary.generations + 2)
                world.give(Answer(generation, (("left", generation),), late=world.random.random() < 0.3))
            world.anything()
        asked = [event.generation for event in find(world, Asked)]
        closed = [event.generation for event in find(world, m.BoundaryClosed)]
        assert asked == list(range(1, len(asked) + 1)), f"seed {seed + offset}"
        still_open = world.state.boundary.asked
        assert sorted(closed) == asked[: -1 if still_open else None], f"seed {seed + offset}"
        waits = world.trainer is not None and world.trainer.wait_epoch > 0 and not world.trainer.orders
        waits = waits and not world.trainer.todo and not world.due
        if waits and not world.trainer.prepared and not world.trainer.held:
            assert world.state.boundary.asked is not None, f"seed {seed + offset}"
        questions += len(asked)
    print(f"{questions} questions")
    assert questions >= 30
