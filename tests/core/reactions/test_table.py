"""The table of reactions as a whole: it ends, rules keep to it, and the direct path of a step equals the long one."""

from __future__ import annotations

import pytest

from tests.core.facts import run_started
from tests.core.reactions.checked import checked_rule
from tests.core.reactions.recording import KEPT, differences, outcome_of, records
from tests.core.simulate import World, until
from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.decision import Decision
from tolariad.core.engine import DEPTH_MAX
from tolariad.core.messages.vocabulary import EVENT_TYPES
from tolariad.core.rules.table.decide import decide
from tolariad.core.rules.table.orders import ORDERS
from tolariad.core.rules.table.reactions import ENGINE, TABLE
from tolariad.core.state.run_state import RunState


def arrows() -> dict[type[m.Event], frozenset[type[m.Event]]]:
    """Which events each type of event may lead to."""
    return {row.kind: row.makes for row in TABLE if issubclass(row.kind, m.Event)}


def deepest(kind: type[m.Event], above: tuple[type[m.Event], ...]) -> int:
    """The longest chain that begins with this type."""
    assert kind not in above, f"events lead to each other: {[one.__name__ for one in (*above, kind)]}"
    return 1 + max((deepest(one, (*above, kind)) for one in arrows().get(kind, ())), default=0)


def test_what_follows_from_what_has_no_cycle():
    """So every chain ends, since a rule makes finitely many events; and far above the limit of the engine."""
    assert max(deepest(kind, ()) for kind in arrows()) < DEPTH_MAX / 2


def test_every_row_is_of_something_that_exists():
    """Inputs, reports and events; none is of a command, which has its order."""
    events = {row.kind for row in TABLE if issubclass(row.kind, m.Event)}
    assert events <= set(EVENT_TYPES.values())
    assert {kind.__name__ for kind in ORDERS} == {name for kind in st.ACCEPTING for name in kind.accepts()}


def test_a_rule_that_makes_something_undeclared_is_found():
    """The hook that the whole suite runs with sees it."""
    row = next(one for one in TABLE if one.kind is m.Told)
    rule = checked_rule(row, lambda *_: Decision((run_started(),)))
    with pytest.raises(AssertionError, match="made \\['RunStarted'\\]: declare it"):
        rule(None, m.Told(event=m.EpochStarted(epoch=1)), None)
    assert hasattr(ENGINE._rules[row.kind][0], "__wrapped__"), "the suite runs with it"


def test_the_direct_path_of_a_step_equals_the_table():
    """In every state of a run, whether or not anything follows from the step."""
    compared = followed = 0
    for record in records(KEPT):
        report = getattr(record.given, "report", None)
        if not isinstance(report, m.StepReport):
            continue
        direct = decide(record.state, record.given, record.now)
        assert direct == ENGINE.decide(record.state, report, record.now)
        compared, followed = compared + 1, followed + (len(direct.events) > 1)
    assert compared > 20
    assert followed > 10


def test_recorded_decisions_come_out_the_same():
    """A changed rule shows here: name the differences and keep the new decisions (recording.py says how)."""
    counted = 0
    for record in records(KEPT):
        found = outcome_of(decide(record.state, record.given, record.now))
        assert not list(differences(record, found)), (type(record.given).__name__, record.given)
        counted += 1
    assert counted > 500


def test_the_state_after_a_decision_is_the_fold_of_its_events():
    """The recorder takes it over and folds nothing."""
    facts = (run_started(),)
    opened = decide(RunState(), m.Opened(mode=m.StartMode.EXPLICIT, facts=facts), m.Now(1, 1))
    assert opened.state.seq == len(opened.events) == 1
    world = until(World(1), 9)
    assert world.state.seq == len(world.events)
