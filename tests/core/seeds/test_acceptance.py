"""Orders of seeds: which are accepted, and every sentence that refuses one."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests import order_events
from tests.core.seeds.seeded import SeededWorld, moved_to
from tests.core.simulate import World, completes, find, tick_until, until, until_found
from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core import state as st
from tolariad.core.calc.seeds.stages import GROWTH, Learning, Stage
from tolariad.core.decision import Accepted
from tolariad.core.messages.vocabulary import decode_event, encode_event
from tolariad.core.state.run_state import RunState, fold

LONG = {"epochs": 5, "embargo_epochs": 1}


def world_at(step=2, **policy):
    """A run that trains, without a seed."""
    return until(SeededWorld(0, **{**LONG, **policy}), step)


def refused(answer, error, *parts):
    assert isinstance(answer, m.Refusal), answer
    assert answer.error == error, answer
    assert [part for part in parts if part not in answer.why] == [], answer.why


def test_a_germination_is_an_event_first_and_then_an_order():
    """Recorded with its number and blueprint, acted on at the boundary, and done."""
    world = world_at()
    answer = world.germinate(blueprint="conv", parameters={"rank": 4.0}, reason="it stalls")
    (ordered,) = find(world, order_events.given(m.MoveSeed))
    assert answer == Accepted(world.events.index(ordered) + 1)
    assert (ordered.order.slot, ordered.order.stage, ordered.order.before) == ("trunk", Stage.GERMINATED, Stage.DORMANT)
    assert (ordered.order.number, ordered.order.blueprint, ordered.order.parameters) == (1, "conv", {"rank": 4.0})
    tick_until(world, lambda: find(world, order_events.acted(m.MoveSeed)), "a move")
    (moved,) = find(world, order_events.acted(m.MoveSeed))
    assert (moved.cause, moved.order.number, moved.number) == (answer.seq, 1, 1)
    assert (moved.order.blueprint, moved.order.parameters, moved.order.example, moved.order.dtype) == (
        "conv",
        {"rank": 4.0},
        (1, 8),
        "float32",
    )
    assert (moved.outcome.parameters_added, moved.outcome.measure.parameters) == (40, 40)
    assert (moved.by, moved.reason) == ("test", "it stalls")
    assert world.stage() is Stage.GERMINATED


def test_a_whole_number_is_recorded_as_it_is_read_back():
    """JSON has one kind of number. The ledger's text must not differ between the live state and a replay."""
    world = world_at()
    world.germinate(parameters={"rank": 4})
    tick_until(world, lambda: world.stage() is Stage.GERMINATED, "germinated")
    replayed = fold(RunState(), [decode_event(encode_event(event)) for event in world.events])
    assert replayed.architecture == world.state.architecture
    assert '"parameters": {"rank": 4.0}' in world.state.architecture.changes[0].arguments


def test_a_seed_advances_from_stage_to_stage_up_to_the_model_itself():
    """Each time by one order; the blending has its number of steps; nothing is left to advance."""
    world = moved_to(world_at(blend_steps=2), Stage.FOSSILIZED)
    stages = [one.order.stage for one in find(world, order_events.acted(m.MoveSeed))]
    assert stages == list(GROWTH)
    assert [one.order.blend_steps for one in find(world, order_events.acted(m.MoveSeed))] == [
        2 * (one is Stage.BLENDING) for one in GROWTH
    ]
    for answer in (world.advance(), world.cull(), world.germinate()):
        refused(answer, "Refused", "permanent part of the model")


@pytest.mark.parametrize("evaluate", Learning)
@pytest.mark.parametrize("fossil", Learning)
def test_a_move_says_whether_the_seed_goes_on_learning(evaluate, fossil):
    """As configured when it was ordered, in the order and in the state; every other stage learns."""
    world = moved_to(world_at(seeds_evaluate=evaluate, seeds_fossil=fossil), Stage.FOSSILIZED)
    said = {Stage.PROBATIONARY: evaluate, Stage.FOSSILIZED: fossil}
    expected = [said.get(stage, Learning.TRAIN) for stage in GROWTH]

    assert [one.order.learning for one in find(world, order_events.given(m.MoveSeed))] == expected
    assert [one.order.learning for one in find(world, order_events.acted(m.MoveSeed))] == expected
    assert [one.order.learning for one in find(world, order_events.acted(m.MoveSeed))] == expected
    assert world.state.seeds.seed("trunk").learning is fossil


@pytest.mark.parametrize(
    ("policy", "steps"), [({"seed_warmup_epochs": 1}, 3), ({"seed_warmup_epochs": 10}, 7), ({}, None)]
)
def test_a_germination_has_the_length_of_its_warmup(policy, steps):
    """In steps, at most half of what is left. Without the setting, as in an older journal: the host's curve."""
    world = world_at(**policy)
    world.state = replace(world.state, progress=replace(world.state.progress, steps_per_epoch=3))
    world.germinate()
    tick_until(world, lambda: world.stage() is Stage.GERMINATED, "germinated")
    (moved,) = find(world, order_events.acted(m.MoveSeed))
    (entry,) = world.state.architecture.changes

    assert (moved.order.warmup_steps, moved.order.warmup_steps) == (steps, steps)
    assert ('"warmup_steps"' in entry.arguments) == (steps is not None)


def test_an_order_with_a_known_id_is_answered_by_its_own_kind_only():
    """Three orders are accepted by one type of event; each keeps its name."""
    world = world_at()
    first = world.germinate(id="a")
    assert world.germinate(id="a") == first
    refused(world.advance(id="a"), "Refused", "given to another order, SeedGerminate")
    tick_until(world, lambda: world.stage() is Stage.GERMINATED, "germinated")
    cull = world.cull(id="b")
    assert world.cull(id="b") == cull
    assert [one.command for one in world.state.control.outcomes if one.id] == ["SeedGerminate", "SeedCull"]


def test_an_unknown_slot_is_refused_with_the_nearest_name():
    """With those that there are; a model without slots says where to read more."""
    world = world_at()
    refused(world.germinate("trunc"), "NotFound", "'trunc'", "did you mean trunk?", "trunk, neck, head")
    refused(world.advance("x"), "NotFound", "there are trunk, neck, head")
    refused(World(0).command(m.SeedCull(slot="a")), "NotFound", "still being built")
    without = until(World(0), 2)
    refused(without.command(m.SeedGerminate(slot="a", blueprint="conv")), "NotFound", "docs/growing.md")


def test_an_unknown_blueprint_is_refused_and_so_is_code_that_an_order_brings():
    """A file or a module must be named in the configuration first."""
    world = world_at()
    refused(world.germinate(blueprint="botleneck"), "NotFound", "did you mean bottleneck?", "conv, low_rank")
    refused(world.germinate(blueprint=" "), "Refused", "needs a blueprint")
    refused(world.germinate(blueprint="./mine.py:Mine"), "NotFound", "`seeds.blueprints` of the configuration")
    known = replace(world.state.seeds, blueprints=("conv", "./mine.py:Mine"))
    world.state = replace(world.state, seeds=known)
    assert isinstance(world.germinate(blueprint="./mine.py:Mine"), Accepted)


def test_a_blueprint_of_a_file_may_be_ordered_by_its_last_name():
    """The order holds the whole name. Two of the same name must be told apart."""
    world = world_at()
    known = replace(world.state.seeds, blueprints=("/a/mine.py:Mine", "/a/mine.py:Two", "/b/mine.py:Two"))
    world.state = replace(world.state, seeds=known)
    refused(world.germinate(blueprint="Two"), "NotFound", "/a/mine.py:Two", "/b/mine.py:Two")
    refused(world.germinate(blueprint="ine"), "NotFound")
    assert isinstance(world.germinate(blueprint="Mine"), Accepted)
    assert find(world, order_events.given(m.MoveSeed))[0].order.blueprint == "/a/mine.py:Mine"


@pytest.mark.parametrize(
    ("parameters", "why"),
    [
        ({"rank": float("nan")}, "'rank' of the blueprint is not a finite number"),
        ({f"p{n}": 0.0 for n in range(q.SEED_PARAMETERS_MAX + 1)}, "at most 32 parameters"),
        ({"x" * 900 + str(n): 0.0 for n in range(5)}, "characters"),
    ],
)
def test_parameters_that_cannot_be_recorded_are_refused(parameters, why):
    """The ledger holds them as JSON of a bounded length."""
    refused(world_at().germinate(parameters=parameters), "Refused", why)


def test_an_illegal_move_is_refused_with_what_is_possible():
    """An empty slot, a seed that is there already, a culled one."""
    world = world_at()
    refused(world.advance(), "Refused", "slot trunk is empty", "tolaria seeds germinate trunk")
    refused(world.cull(), "Refused", "slot trunk is empty")
    moved_to(world, Stage.TRAINING)
    refused(world.germinate(), "Refused", "holds a seed in TRAINING", "tolaria seeds cull trunk")
    world.cull()
    tick_until(world, lambda: world.stage() in (Stage.CULLED, Stage.EMBARGOED), "culled")
    tick_until(world, lambda: not world.state.boundary.waiting, "no order waits")
    for answer in (world.germinate(), world.advance(), world.cull()):
        refused(answer, "Refused", "empty since a cull", "free again")


def test_one_slot_has_one_move_at_a_time():
    """Another slot is free to move."""
    world = world_at()
    world.germinate()
    refused(world.cull(), "Refused", "a move of slot trunk to GERMINATED is ordered already", "next step boundary")
    assert isinstance(world.germinate("neck"), Accepted)


def test_a_seed_that_is_still_blended_in_does_not_advance():
    """The answer has alpha, and the step after which it is 1."""
    world = moved_to(world_at(blend_steps=6), Stage.BLENDING)
    (blended,) = [one for one in find(world, order_events.acted(m.MoveSeed)) if one.order.stage is Stage.BLENDING]
    last = blended.applied_before_step + 5
    refused(world.advance(), "Refused", "still blended in", f"1 after step {last}")
    until(world, last - 1)
    assert 0 < world.state.seeds.seed("trunk").alpha_after(last - 1) < 1
    until(world, last)
    assert world.state.seeds.seed("trunk").alpha_after(last) == 1.0
    assert isinstance(world.advance(), Accepted)


def test_a_seed_that_made_the_validation_worse_is_not_fossilized():
    """Gate G4 knows the loss of the validation before the blending."""
    world = moved_to(world_at(), Stage.PROBATIONARY)
    seed = replace(world.state.seeds.seed("trunk"), loss_before=0.5)
    progress = replace(world.state.progress, metrics={"loss": 0.6})
    world.state = replace(world.state, seeds=replace(world.state.seeds, seeds={"trunk": seed}), progress=progress)
    refused(world.advance(), "Refused", "G4_SYSTEM_IMPACT", "0.6", "0.525")


def test_conservative_mode_starts_nothing_but_lets_a_seed_go_on():
    """No germination and no blending; a cull and the other stages are allowed."""
    world = moved_to(world_at(), Stage.TRAINING)
    moved_to(world, Stage.GERMINATED, "neck")
    world.give(m.Scheduled(recorded=m.ConservativeModeEntered(why="rates were changed")))
    refused(world.germinate("head"), "Refused", "conservative mode", "rates were changed")
    refused(world.advance(), "Refused", "conservative mode")
    assert isinstance(world.advance("neck"), Accepted)
    assert isinstance(world.cull(), Accepted)


def test_nothing_germinates_if_the_configuration_forbids_it():
    """`enable_morphogenetic: false`."""
    refused(world_at(morphogenesis=False).germinate(), "Refused", "enable_morphogenetic")


def test_a_full_ledger_refuses_a_germination_and_never_a_cull():
    """A seed must always be possible to remove."""
    world = moved_to(world_at(), Stage.GERMINATED)
    held = world.state.architecture
    full = (*held.changes, *(st.ShapeChange("grow", "{}", 1) for _ in range(st.CHANGES_MAX - len(held.changes))))
    world.state = replace(world.state, architecture=replace(held, changes=full))
    refused(world.germinate("neck"), "Refused", str(st.CHANGES_MAX))
    assert isinstance(world.cull(), Accepted)
    tick_until(world, lambda: world.stage() is not Stage.GERMINATED, "culled")
    assert world.state.architecture.changes[-1].name == "seed.remove"
    assert len(world.state.architecture.changes) == st.CHANGES_MAX + 1


def test_a_run_that_has_ended_or_stops_takes_no_order():
    """As for every other boundary order."""
    world = world_at(epochs=1)
    completes(world)
    refused(world.germinate(), "WrongPhase", "the run is completed")
    stopping = world_at()
    stopping.command(m.Stop())
    refused(stopping.germinate(), "WrongPhase", "the run is stopping")


def test_a_gate_that_fails_ends_the_order_and_leaves_the_seed():
    """The sentence of the gate is the reason."""
    world = moved_to(world_at(), Stage.TRAINING)
    until(world, world.state.progress.step + 1)
    world.sick.add("trunk")
    world.advance()
    until_found(world, order_events.aborted(m.MoveSeed))
    (aborted,) = find(world, order_events.aborted(m.MoveSeed))[-1:]
    assert "were dropped because the seed's gradients were not finite" in aborted.why
    assert (aborted.order.slot, aborted.order.stage) == ("trunk", Stage.BLENDING)
    assert (world.stage(), world.state.boundary.waiting) == (Stage.TRAINING, ())


def test_a_seed_in_quarantine_is_culled_and_does_not_germinate_again():
    """Until the entry is removed. A name that is no slot is refused, and so is a fossil."""
    world = moved_to(world_at(), Stage.TRAINING)
    moved_to(world, Stage.FOSSILIZED, "neck")
    refused(world.command(m.QuarantineAdd(seed="nowhere")), "NotFound", "trunk, neck, head")
    refused(world.command(m.QuarantineAdd(seed="neck")), "Refused", "fossilized")
    assert isinstance(world.command(m.QuarantineAdd(seed="trunk", reason="it diverges")), Accepted)
    refused(world.command(m.QuarantineAdd(seed="trunk")), "Refused", "in quarantine already, as q0001")
    tick_until(world, lambda: world.stage() is Stage.DORMANT, "the slot is free")
    refused(world.germinate(), "Refused", "in quarantine as q0001", "it diverges")
    assert isinstance(world.germinate("head"), Accepted)
    world.command(m.QuarantineRemove(name="q0001"))
    assert isinstance(world.germinate(), Accepted)
