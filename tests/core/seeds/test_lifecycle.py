"""The life of seeds in a run: what follows by itself, deaths, rollbacks; no order leads to an illegal stage."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from tests import order_events
from tests.core.facts import environment
from tests.core.rates.test_rates_restored import gone_back
from tests.core.seeds.seeded import SLOTS, SeededWorld, assert_agrees, in_step, moved_to
from tests.core.simulate import find, take_checkpoint, tick_until, until, until_found
from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core import state as st
from tolariad.core.calc.seeds.gates import SeedMeasure
from tolariad.core.calc.seeds.ledger import GERMINATE, REMOVE
from tolariad.core.calc.seeds.stages import Stage
from tolariad.core.messages.sentences.text import sentence
from tolariad.core.rules.table.decide import decide
from tolariad.core.state.run_state import RunState, apply, fold

LONG = {"epochs": 5}
AFTER_A_CULL = [Stage.CULLED, Stage.EMBARGOED, Stage.RESETTING, Stage.DORMANT]


def world_at(step=2, **policy):
    return until(SeededWorld(0, **{**LONG, **policy}), step)


def stages(world, slot="trunk"):
    """The stages that the slot went through, in order."""
    return [one.order.stage for one in find(world, order_events.acted(m.MoveSeed)) if one.order.slot == slot]


def ledger(state):
    """Name and slot of each entry of the ledger."""
    return [(one.name, json.loads(one.arguments)["slot"]) for one in state.architecture.changes]


def test_a_culled_slot_is_free_again_after_its_embargo():
    """Cull and embargo at one boundary, the rest after the epochs of the embargo, without an order of anybody."""
    world = moved_to(world_at(embargo_epochs=2), Stage.TRAINING)
    world.cull(reason="it is worse")
    tick_until(world, lambda: world.stage() is Stage.EMBARGOED, "embargoed")
    culled = world.state.progress.epoch_finished
    assert ledger(world.state) == [(GERMINATE, "trunk"), (REMOVE, "trunk")]
    tick_until(world, lambda: world.stage() is Stage.RESETTING, "resetting")
    assert world.state.progress.epoch_finished == culled + 2
    tick_until(world, lambda: world.stage() is Stage.DORMANT, "dormant")
    assert stages(world)[-4:] == AFTER_A_CULL
    by = [(one.by, one.reason) for one in find(world, order_events.acted(m.MoveSeed))[-4:]]
    assert by[0] == ("test", "it is worse")
    assert by[1:] == [
        ("tolariad", "a culled slot stays empty for a while"),
        ("tolariad", "the embargo has ended"),
        ("tolariad", "the slot is reset"),
    ]
    assert world.state.seeds.seeds == {}
    world.germinate()
    tick_until(world, lambda: world.stage() is Stage.GERMINATED, "another seed")
    assert world.state.seeds.seed("trunk").germination == 2


def test_an_embargo_goes_on_through_deaths_and_starts():
    """The orders wait in the journal; each acts once."""
    world = moved_to(world_at(embargo_epochs=2), Stage.TRAINING)
    world.cull()
    for _ in range(400):
        if world.stage() is Stage.DORMANT:
            break
        world.tick()
        if world.random.random() < 0.05:
            world.crash_trainer()
        if world.random.random() < 0.02:
            world.restart_daemon()
    assert stages(world)[-4:] == AFTER_A_CULL
    assert len(stages(world)) == 6


def test_a_reset_that_is_not_clean_is_tried_again_at_the_next_epoch():
    """Gate G5 refuses the slot while it holds something."""
    world = moved_to(world_at(embargo_epochs=0), Stage.TRAINING)
    world.cull()
    tick_until(world, lambda: world.stage() is Stage.RESETTING, "resetting")
    cause = world.state.boundary.waiting[0].cause.seq
    world.trainer.later.clear()
    world.trainer.orders.clear()
    why = "the slot still holds 40 parameters of the culled seed"
    world.trainer.todo.append(m.BoundaryOrderReport(order=cause, applied_before_step=4, refused=why))
    until_found(world, order_events.aborted(m.MoveSeed))
    assert world.stage() is Stage.RESETTING
    assert world.state.boundary.waiting == ()
    tick_until(world, lambda: world.stage() is Stage.DORMANT, "tried again")
    assert find(world, order_events.aborted(m.MoveSeed))[-1].why == why


def test_one_event_is_the_move_and_the_ledger_s_entry():
    """No crash comes between the two; a number of the next change follows from both kinds."""
    world = moved_to(world_at(), Stage.GERMINATED)
    moved = find(world, order_events.acted(m.MoveSeed))[-1]
    before = fold(RunState(), world.events[: world.events.index(moved)])
    after = apply(before, moved)
    assert (ledger(before), before.seeds.seed("trunk").stage) == ([], Stage.DORMANT)
    assert (ledger(after), after.seeds.seed("trunk").stage) == ([(GERMINATE, "trunk")], Stage.GERMINATED)
    (change,) = after.architecture.changes
    assert json.loads(change.arguments) == {
        "blueprint": "bottleneck",
        "dtype": "float32",
        "example": [1, 8],
        "number": 1,
        "parameters": {},
        "slot": "trunk",
    }
    assert change.applied_before_step == moved.applied_before_step
    assert not any(isinstance(one, type(change)) for one in q.script_from_journal(world.events, None).changes)


def test_the_digest_of_orders_covers_what_a_seed_is_and_not_why():
    """Another blueprint or shape of input is another run; another reason is none."""

    def digest(**given):
        why = {name: given.pop(name) for name in ("by", "reason", "outcome") if name in given}
        order = m.MoveSeed(**{"slot": "a", "stage": Stage.GERMINATED, "number": 1, **given})
        return fold(RunState(), [m.OrderActed(order=order, applied_before_step=3, number=1, **why)]).boundary.digest

    same = digest(blueprint="conv", example=(1, 8))
    assert digest(blueprint="conv", example=(1, 8), reason="because", by="me", outcome=m.SeedMove(epochs=3)) == same
    others = [digest(blueprint="conv", example=(1, 9)), digest(blueprint="low_rank", example=(1, 8))]
    others += [digest(blueprint="conv", example=(1, 8), number=2)]
    others += [digest(blueprint="conv", example=(1, 8), parameters={"rank": 2.0})]
    assert len({same, *others}) == 5


@pytest.mark.parametrize("checkpoint", ["before", "after"])
def test_a_re_run_repeats_the_moves_that_its_checkpoint_does_not_hold(checkpoint):
    """With shape and type of the input, so that nothing is run forward to build the seed."""
    world = world_at(checkpoint_every_epochs=100)
    if checkpoint == "after":
        moved_to(world, Stage.TRAINING)
    take_checkpoint(world)
    if checkpoint == "before":
        moved_to(world, Stage.TRAINING)
    until(world, world.state.progress.step + 2)
    known = world.state.seeds, dict(world.trainer.stages)
    world.crash_trainer()
    until_found(world, m.TrainingStarted)
    repeated = [
        one.order
        for one in world.trainer.script_orders
        if one.number > world.trainer.saved[world.state.checkpoints.newest.id][1]
    ]
    assert len(repeated) == (2 if checkpoint == "before" else 0)
    assert all((one.example, one.dtype) == ((1, 8), "float32") for one in repeated if one.stage is Stage.GERMINATED)
    until(world, world.state.progress.step + 1)
    assert (world.state.seeds, dict(world.trainer.stages)) == known
    assert stages(world) == [Stage.GERMINATED, Stage.TRAINING]


def test_a_rollback_restores_the_seeds_and_the_ledger_of_its_target():
    """To either side of a germination; the number of a germination is not used again."""
    world = world_at(3, checkpoint_every_epochs=100)
    take_checkpoint(world)
    before = world.state.checkpoints.newest.id
    moved_to(world, Stage.GERMINATED)
    take_checkpoint(world)
    after = world.state.checkpoints.newest.id
    moved_to(world, Stage.GERMINATED, "neck")
    until(world, world.state.progress.step + 1)

    gone_back(world, to=after)
    assert ledger(world.state) == [(GERMINATE, "trunk")]
    assert {slot: one.stage for slot, one in world.state.seeds.seeds.items()} == {"trunk": Stage.GERMINATED}
    gone_back(world, to=before)
    assert (ledger(world.state), world.state.seeds.seeds, world.stage("neck")) == ([], {}, Stage.DORMANT)
    assert world.state.seeds.slots == SLOTS
    tick_until(world, lambda: in_step(world), "training goes on")
    assert_agrees(world)
    moved_to(world, Stage.GERMINATED)
    assert world.state.seeds.seed("trunk").germination == 3


def test_of_two_copies_at_one_place_only_the_later_holds_a_move_between_them():
    """Step and batch are the same: the place cannot tell, the journal's order does."""
    world = world_at(checkpoint_every_epochs=100)
    world.command(m.Pause())
    tick_until(world, lambda: world.state.run.phase is st.Phase.PAUSED, "paused")
    ids = []
    for order in (None, world.germinate):
        if order is not None:
            order()
            tick_until(world, lambda: world.stage() is Stage.GERMINATED, "germinated")
        take_checkpoint(world)
        ids.append(world.state.checkpoints.newest.id)
    first, second = (next(one for one in find(world, m.StateCopied) if one.id == id_) for id_ in ids)
    assert (first.step, first.epoch, first.batch) == (second.step, second.epoch, second.batch)
    assert [one.orders for one in world.state.checkpoints.catalogue if one.id in ids] == [0, 1]
    gone_back(world, to=ids[1])
    assert (world.stage(), len(world.state.architecture.changes)) == (Stage.GERMINATED, 1)
    gone_back(world, to=ids[0])
    assert (world.stage(), len(world.state.architecture.changes)) == (Stage.DORMANT, 0)


def test_a_rollback_to_a_seed_in_quarantine_culls_it_again():
    """The target has the seed; the quarantine survives the rollback."""
    world = moved_to(world_at(), Stage.TRAINING)
    take_checkpoint(world)
    target = world.state.checkpoints.newest.id
    world.command(m.QuarantineAdd(seed="trunk"))
    tick_until(world, lambda: world.stage() is Stage.EMBARGOED, "culled")
    gone_back(world, to=target)
    tick_until(world, lambda: world.stage() is Stage.EMBARGOED, "culled again")
    assert stages(world)[-4:] == [Stage.CULLED, Stage.EMBARGOED, Stage.CULLED, Stage.EMBARGOED]


def test_a_germination_that_waits_is_followed_by_the_cull_of_a_quarantine():
    """The order for the seed was on its way when its slot came into quarantine."""
    world = world_at()
    world.germinate()
    world.command(m.QuarantineAdd(seed="trunk"))
    tick_until(world, lambda: world.stage() is Stage.EMBARGOED, "culled")
    assert stages(world) == [Stage.GERMINATED, Stage.CULLED, Stage.EMBARGOED]


def test_a_seed_that_is_not_finite_is_culled_at_the_epoch_s_end():
    """It can never recover; the reason says so. Its neighbour stays."""
    world = moved_to(moved_to(world_at(), Stage.TRAINING, "neck"), Stage.TRAINING)
    world.trainer.not_finite.add("trunk")
    tick_until(world, lambda: world.stage() is Stage.EMBARGOED, "culled")
    (culled,) = [one for one in find(world, order_events.acted(m.MoveSeed)) if one.order.stage is Stage.CULLED]
    assert (culled.order.slot, culled.by) == ("trunk", "tolariad")
    assert culled.reason == "its parameters are not finite, so it cannot recover"
    assert st.is_said(culled)
    assert culled.outcome.epochs == find(world, m.EpochFinished)[-1].epoch
    assert world.stage("neck") is Stage.TRAINING


def test_a_seed_whose_blueprint_has_another_file_is_said_at_the_next_start():
    """The hash at its germination is recorded. The same file is not said."""
    world = moved_to(world_at(), Stage.TRAINING)
    moved = next(one for one in find(world, order_events.acted(m.MoveSeed)) if one.order.stage is Stage.GERMINATED)
    order = replace(moved.order, blueprint="/a/own.py:Wide")
    germinated = replace(moved, order=order, outcome=replace(moved.outcome, source="ab"))
    state = fold(RunState(), [germinated])
    same, other = (m.BlueprintSource(name="/a/own.py:Wide", hash=one) for one in ("ab", "cd"))
    assert state.seeds.other_blueprints((same,)) == ()
    assert state.seeds.other_blueprints(()) == ()
    assert state.seeds.other_blueprints((other,)) == ("/a/own.py:Wide",)
    ready = m.ReadyReport(environment=environment(), parameters=9, steps_per_epoch=4, sources=(other,))
    (built,) = [one for one in decide(state, ready, m.Now(1, 1)).events if isinstance(one, m.ExecutionContextRecorded)]
    assert built.other_blueprints == ("/a/own.py:Wide",)
    assert sentence(built).endswith(" Blueprint Wide changed.")
    assert st.is_said(built)
    assert not st.is_said(replace(built, other_blueprints=()))


def test_a_trainer_whose_seed_is_in_another_stage_is_not_trusted():
    """A move that the journal does not allow ends it; nothing of it is recorded."""
    world = world_at()
    world.germinate()
    cause = world.state.boundary.waiting[0].cause.seq
    tick_until(world, lambda: world.stage() is Stage.GERMINATED, "germinated")
    world.advance()
    waiting = world.state.boundary.waiting[0]
    seeds = {"trunk": apply(world.state, find(world, order_events.acted(m.MoveSeed))[-1]).seeds.seed("trunk")}
    assert cause != waiting.cause.seq
    wrong = fold(
        world.state,
        [m.OrderActed(order=m.MoveSeed(slot="trunk", stage=Stage.CULLED, number=1), applied_before_step=4, number=2)],
    )
    report = m.SeedMovedReport(order=waiting.cause.seq, applied_before_step=4)
    (refused,) = decide(wrong, report, m.Now(1, 1)).events
    assert isinstance(refused, m.ReportRefused)
    assert "trunk moved to TRAINING; in the journal it is in CULLED" in refused.why
    assert seeds["trunk"].stage is Stage.GERMINATED


def test_measurements_are_recorded_once_an_epoch_and_shown_with_the_seed():
    """Also if the epoch's end is reported again; numbers that are not finite become -1."""
    world = moved_to(world_at(), Stage.TRAINING)
    until_found(world, m.EpochFinished)
    (measured,) = find(world, m.SeedsMeasured)
    assert [(one.slot, one.stage) for one in measured.seeds] == [("trunk", Stage.TRAINING)]
    assert world.state.seeds.measures == {"trunk": measured.seeds[0]}
    again = m.SeedsMeasuredReport(epoch=measured.epoch, seeds=measured.seeds)
    assert decide(world.state, again, m.Now(1, 1)).events == ()
    nan = SeedMeasure(slot="trunk", gradient_norm=float("nan"), drift=float("inf"))
    (told,) = decide(world.state, m.SeedsMeasuredReport(epoch=9, seeds=(nan,)), m.Now(1, 1)).events
    assert (told.seeds[0].gradient_norm, told.seeds[0].drift) == (-1.0, -1.0)


def test_the_slots_of_a_model_are_recorded_once_and_when_they_change():
    """A trainer without slots records nothing; a slot that is gone keeps its seed in case it comes back."""
    world = moved_to(world_at(), Stage.TRAINING)
    world.crash_trainer()
    until_found(world, m.ExecutionContextRecorded)
    assert len(find(world, m.SeedSlotsRegistered)) == 1
    ready = m.ReadyReport(environment=world.environment, parameters=9, steps_per_epoch=4, slots=SLOTS[1:])
    changed = decide(world.state, ready, m.Now(1, 1))
    (event,) = [one for one in changed.events if isinstance(one, m.SeedSlotsRegistered)]
    assert [one.name for one in event.slots] == ["neck", "head"]
    assert not changed.state.seeds.has("trunk")
    assert changed.state.seeds.seed("trunk").stage is Stage.TRAINING
    many = tuple(m.SlotFound(f"s{n}") for n in range(st.SEED_SLOTS_MAX + 9))
    state = fold(RunState(), [m.SeedSlotsRegistered(slots=many)])
    assert len(state.seeds.slots) == st.SEED_SLOTS_MAX
