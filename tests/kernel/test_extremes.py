"""Impossible values in every order and every report: each is recorded and can be folded, or is refused."""

from __future__ import annotations

import socket

import msgspec
import pytest
from msgspec import inspect
from msgspec.structs import replace

from tests.core.facts import environment
from tests.core.simulate import OPERATOR, World
from tests.extremes import built, drawn, extremes_of, members
from tests.kernel.rig import step_report
from tolariad.channel import ChannelError, DaemonEnd, Page
from tolariad.channel.packets import REPORT_BYTES_MAX, Packets
from tolariad.core import messages as m
from tolariad.core.calc.learning_rate.group import Group
from tolariad.core.calc.learning_rate.schedule import LRPolicy, Schedule
from tolariad.core.calc.pruning.phase import PruningPhase
from tolariad.core.calc.pruning.plan import PlannedShare, PrunePlan
from tolariad.core.calc.pruning.verdict import PruningDecision
from tolariad.core.calc.seeds.stages import Stage
from tolariad.core.decision import Accepted
from tolariad.core.engine import Decided
from tolariad.core.messages.vocabulary import Report, decode_event, encode_event
from tolariad.core.rules.table.decide import decide
from tolariad.core.rules.table.orders import ORDERS
from tolariad.core.state.run_state import RunState, apply, capture, read_capture
from tolariad.kernel.turn import Turn, Unrecordable

COMMANDS = list(ORDERS)
REPORTS = members(Report)
# So many values are tried of a report in the ordinary suite.
MOST = 1500
HUGE = 99999999999999999999999


def training() -> RunState:
    """A run in the middle of its second epoch, with checkpoints, a group of rates and a slot for a seed."""
    world = World(3)
    while world.state.progress.step < 6:
        world.anything()
    schedule = Schedule(policy=LRPolicy.CONSTANT, base_lr=1.0)
    state = apply(world.state, m.LrGroupsRegistered(groups=(Group(name="a", schedule=schedule),)))
    return apply(state, m.SeedSlotsRegistered(slots=(m.SlotFound("a"),), blueprints=("a",)))


def grown(state: RunState) -> RunState:
    """The same run with a seed in its slot."""
    order = m.MoveSeed(slot="a", stage=Stage.GERMINATED, number=1)
    return apply(state, m.OrderActed(order=order, applied_before_step=1, number=1))


def pruned(state: RunState, order: type) -> RunState:
    """The same run with pruning enabled and a cycle analysed; its masks applied, for a compaction."""
    policy = replace(state.run.policy, prune=PrunePlan(transition_epoch=0, budgets=HALF, caps=HALF))
    state = replace(state, run=replace(state.run, policy=policy))
    if order is m.PruneAnalyze:
        return state
    begun = {"checkpoint": "c000001", "step": 4, "epoch": 1, "phase": PruningPhase.ACTIVE_PRUNING}
    units = {"units": {"a": (1,)}, "sha256": "ab", "channels": 1, "total": 10}
    units |= {"pruned_parameters": 4, "total_parameters": 40}
    found = {"decision": PruningDecision.GO, **units}
    state = apply(state, m.PruneCycleBegun(cycle=1, share=0.5, cap=0.5, **begun))
    state = apply(state, m.PruneAnalyzed(cycle=1, **found))
    if order is m.PruneCompact:
        masks = m.MaskUnits(cycle=1, **units)
        state = apply(
            state,
            m.OrderActed(
                order=masks, applied_before_step=5, number=1, outcome=m.Masking(parameters=4, pruned_parameters=4)
            ),
        )
        state = apply(state, m.MaskSetPassed(cycle=1))
    return state


HALF = (PlannedShare(0, 0.5),)
RUNNING = training()
GROWN = grown(RUNNING)
PRUNE_ORDERS = (m.PruneAnalyze, m.PruneApply, m.PruneCompact, m.PruneDisable, m.PruneEnable)
STATES = {
    **dict.fromkeys((m.SeedAdvance, m.SeedCull), GROWN),
    **{kind: pruned(RUNNING, kind) for kind in PRUNE_ORDERS},
}


def recorded(decided: Decided[RunState]) -> None:
    """Assert that the events of an input can be written, read back, and folded to a state that can be captured."""
    turn = Turn(m.Now(1, 1))
    turn.add(decided, None)

    # Compare bytes, not events: NaN is not equal to itself.
    assert [encode_event(decode_event(raw)) for raw in turn.raw] == turn.raw
    assert read_capture(capture(decided.state)) is not None


@pytest.mark.sample(5)
@pytest.mark.parametrize("kind", COMMANDS, ids=lambda kind: kind.__name__)
def test_every_order_with_an_extreme_is_recorded_or_refused(kind):
    """Orders are given as unchecked objects, as a program in the same process may do."""
    refused = taken = 0
    state = STATES.get(kind, RUNNING)
    for path, document in extremes_of(kind):
        command = built(inspect.type_info(kind), document)
        if not isinstance(command, kind):
            continue
        decision = decide(state, m.CommandReceived(command=command, actor=OPERATOR), m.Now(1, 1))
        assert isinstance(decision.answer, Accepted | m.Refusal), path
        if isinstance(decision.answer, m.Refusal):
            refused += 1
            assert len(decision.answer.why.split()) > 3, (path, decision.answer)
            assert len(decision.answer.why) < 1000, path
        else:
            taken += 1
        recorded(decision)

    assert refused > 20
    assert taken or kind in (m.Resume, m.QuarantineRemove)


@pytest.fixture(scope="module")
def wire():
    """A daemon's end, and the bare socket of a trainer that may write any bytes."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    end = DaemonEnd(ours, Page.create(1))
    packets = Packets(theirs)
    yield packets, end
    packets.close()
    end.close()


@pytest.mark.sample(10)
@pytest.mark.parametrize("most", [MOST, pytest.param(None, marks=pytest.mark.torture)])
@pytest.mark.parametrize("kind", REPORTS, ids=lambda kind: kind.__name__)
def test_every_report_with_an_extreme_is_recorded_or_refused(kind, most, wire, seed):
    """Over the socket, in every field: the kernel can record all that the channel accepts."""
    packets, end = wire
    taken, said = 0, set()
    for path, document in drawn(extremes_of(kind), most, seed, kind.__name__):
        try:
            raw = msgspec.msgpack.encode([1, 1, document])
        except (OverflowError, UnicodeEncodeError):
            continue
        packets.send(raw)
        try:
            numbered = end.receive()
        except ChannelError as error:
            said.add(str(error).partition(": ")[0])
            continue
        taken += 1
        assert numbered is not None, path
        recorded(decide(RUNNING, m.ReportReceived(incarnation=1, report=numbered.report), m.Now(1, 1)))

    assert taken
    assert said
    assert said <= {f"{kind.__name__} of the trainer cannot be recorded", "a report of the trainer cannot be decoded"}


def test_an_order_that_no_event_can_hold_harms_nobody_else(rig):
    """This order once ended a recorder. The same turn's other inputs, and the run, continue."""
    trainer = rig.until_training()
    trainer.report(step_report(1))
    answer = rig.command(m.QuarantineAdd(batches=m.Batches(1, 1, HUGE)))
    note = rig.command(m.Note(text="still here"))
    trainer.report(step_report(2))
    rig.wait(lambda: rig.kernel.durable.progress.step == 2)

    assert isinstance(answer, m.Refusal)
    assert str(HUGE) in answer.why
    assert "batches.last" in answer.why
    assert isinstance(note, Accepted)
    assert rig.kernel.failure is None
    assert rig.events(m.QuarantineAdded) == []


def test_a_decision_that_cannot_be_encoded_is_refused_and_leaves_no_trace(rig, monkeypatch):
    """If the bounds let a value pass, its event is not folded, and other inputs of the turn are recorded."""
    rig.until_training()
    before = rig.kernel.durable
    monkeypatch.setattr("tolariad.core.calc.bounds.refusal", lambda _: None)
    answers = [
        rig.command(one)
        for one in (
            m.Note(text="before"),
            m.QuarantineAdd(batches=m.Batches(1, 1, 2**64)),
            m.Note(text="\ud800"),
            m.Note(text="after"),
        )
    ]

    assert [type(one) for one in answers] == [Accepted, m.Refusal, m.Refusal, Accepted]
    assert "QuarantineAdded cannot be recorded" in answers[1].why
    assert rig.kernel.durable.seq == before.seq + 2
    assert rig.kernel.durable.quarantine == before.quarantine
    assert rig.kernel.failure is None


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (m.Told(event=m.EpochStarted(epoch=2**40)), "epoch must be"),
        (m.ValidationReport(epoch=1, step=1, metrics={}, samples=2**64 - 1, seconds=0.1), "samples must be"),
        (m.Told(event=m.ValidationBegun(epoch=1, step=2**63)), "step must be"),
        (m.ExceptionReport(step=1, traceback="x" * (2 << 20)), "traceback must have at most"),
        (m.ExceptionReport(step=1, traceback="x" * (REPORT_BYTES_MAX + 1)), "a message of"),
    ],
)
def test_a_report_out_of_its_bounds_ends_its_trainer_and_not_the_recorder(rig, report, said):
    """ReportRefused names the field, and another trainer follows."""
    trainer = rig.until_training()
    trainer.report(report)
    rig.wait(lambda: rig.events(m.ReportRefused))

    assert said in rig.events(m.ReportRefused)[0].why
    rig.wait(lambda: rig.effects(m.KillTrainer))
    rig.gone()
    rig.wait(lambda: len(rig.effects(m.SpawnTrainer)) > 1)
    assert isinstance(rig.command(m.Note(text="lives")), Accepted)
    assert rig.kernel.failure is None


@pytest.mark.parametrize("changes", [{"step": 2**63}, {"epoch": 2**31}, {"batch": 2**60}, {"data": 2**32}])
def test_a_step_of_the_ring_out_of_its_bounds_ends_its_trainer(rig, changes):
    """Its record is complete and its check right, but a frame's labels cannot hold it."""
    trainer = rig.until_training()
    trainer.report(msgspec.structs.replace(step_report(1), **changes))
    rig.wait(lambda: rig.events(m.ReportRefused))

    assert "out of their bounds" in rig.events(m.ReportRefused)[0].why
    assert isinstance(rig.command(m.Note(text="lives")), Accepted)


def test_many_long_reports_at_once_fit_into_frames(rig):
    """A frame is bounded, so a turn is too: further reports wait for the next turn."""
    trainer = rig.until_training()
    for epoch in range(1, 41):
        metrics = {f"{n:04d}" + "x" * 20_000: 1.0 for n in range(100)}
        report = m.ValidationReport(epoch=epoch, step=0, metrics=metrics, samples=1, seconds=0.1)
        trainer.report(report)
        while trainer.unsent_count:
            trainer.wait(0.01)
    rig.wait(lambda: rig.kernel.durable.progress.epoch_validated == 40)

    assert rig.kernel.failure is None


def test_an_event_that_is_too_long_is_named():
    """An event of sixteen megabytes is refused."""
    note = m.NoteAdded(text="x" * (17 << 20))
    turn = Turn(m.Now(1, 1))

    with pytest.raises(Unrecordable, match="NoteAdded cannot be recorded: it has"):
        turn.add(Decided(RunState(seq=1), (note,)), None)
    assert (turn.raw, turn.events) == ([], [])


def test_an_environment_may_be_what_it_is():
    """An ordinary report passes: the bounds do not affect real trainers."""
    ready = m.ReadyReport(environment=environment(), parameters=10**12, steps_per_epoch=10**7)
    recorded(decide(RUNNING, m.ReportReceived(incarnation=1, report=ready), m.Now(1, 1)))
