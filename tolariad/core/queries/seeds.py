"""Questions about seeds: whether a move may be ordered, and which moves are due without an order.

Promises: every answer is a function of the folded state. A refusal is a sentence that says what stands in the way, and
what to do. Operators and the strategy get the same answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Final, Protocol, TypeAlias

from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.calc.bounds import NOTE_CHARACTERS_MAX, shown
from tolariad.core.calc.learning_rate.seed_warmup import seed_warmup_steps
from tolariad.core.calc.seeds import ledger
from tolariad.core.calc.seeds.gates import judge_impact
from tolariad.core.calc.seeds.stages import CULLABLE, GROWTH, MOVES, PLANTED, Learning, Stage, is_legal, next_of
from tolariad.core.calc.text.nearest import did_you_mean, nearest
from tolariad.core.calc.text.phrases import listed
from tolariad.core.queries.health import why_conservative


class ReadsSeeds(st.HasRun, st.HasProgress, st.HasBoundary, st.HasHealth, st.HasArchitecture, st.HasSeeds, Protocol):
    """The slices that moves of seeds depend on."""


MoveOrRefusal: TypeAlias = m.OrderGiven | m.Refusal

SEED_PARAMETERS_MAX: Final = 32
# What a germination may bring to the ledger; the rest is for the shape of the slot's input.
_ARGUMENTS_MAX: Final = NOTE_CHARACTERS_MAX - 512
# The stages that somebody may order; the others follow by themselves.
_ORDERED: Final = frozenset({*GROWTH, Stage.CULLED})


# -- orders ------------------------------------------------------------------------------------------------------------


def advance_seed(state: ReadsSeeds, slot: str) -> MoveOrRefusal:
    """Return the event that orders the seed's next stage, or why there is none."""
    seed = state.seeds.seed(slot)
    to = next_of(seed.stage)
    if to is not None or not state.seeds.has(slot):
        return move_seed(state, slot, to or Stage.TRAINING)
    return m.Refusal("Refused", _standing(state, seed))


def move_seed(
    state: ReadsSeeds, slot: str, stage: Stage, blueprint: str = "", parameters: Mapping[str, float] | None = None
) -> MoveOrRefusal:
    """Return the event that orders a move to `stage`, or why there is none.

    `blueprint` and `parameters` are used with GERMINATED only. `Name` is enough for `file.py:Name`, if that is the only
    blueprint of this name.
    """
    blueprint = _whole_name(state, blueprint)
    refused = _refused(state, slot, stage)
    if refused is None and stage is Stage.GERMINATED:
        refused = _refused_germination(state, slot, blueprint, parameters or {})
    if refused is not None:
        return refused
    return m.OrderGiven(order=_ordered(state, slot, stage, blueprint, parameters or {}))


def _ordered(
    state: ReadsSeeds, slot: str, stage: Stage, blueprint: str = "", parameters: Mapping[str, float] | None = None
) -> m.MoveSeed:
    seed, germinates, policy = state.seeds.seed(slot), stage is Stage.GERMINATED, state.run.policy
    return m.MoveSeed(
        slot=slot,
        stage=stage,
        before=seed.stage,
        number=state.seeds.germinations + 1 if germinates else seed.germination,
        blueprint=blueprint if germinates else "",
        # A whole number in an order is read back as a float: the ledger's entry must be the same before and after.
        parameters={name: float(value) for name, value in (parameters or {}).items()} if germinates else {},
        blend_steps=policy.blend_steps if stage is Stage.BLENDING else 0,
        learning=_learning(policy, stage),
        warmup_steps=_warmup_steps(state) if germinates else None,
    )


def _learning(policy: m.Policy, stage: Stage) -> Learning:
    match stage:
        case Stage.PROBATIONARY:
            return policy.seeds_evaluate
        case Stage.FOSSILIZED:
            return policy.seeds_fossil
        case _:
            return Learning.TRAIN


def _warmup_steps(state: ReadsSeeds) -> int | None:
    """Return the updates over which the rate of a seed that is ordered now will rise."""
    policy, progress = state.run.policy, state.progress
    if policy.seed_warmup_epochs is None:
        return None
    # Without a length of the data, schedules divide the run's last step into equal epochs.
    length, total = progress.steps_per_epoch, policy.stop_steps
    if length:
        total = length * policy.epochs
    elif total is not None:
        length = -(-total // max(1, policy.epochs))
    ended = progress.epoch_finished
    return seed_warmup_steps(
        policy.seed_warmup_epochs, progress.step, steps_per_epoch=length, epochs_ended=ended, total=total
    )


def _refused(state: ReadsSeeds, slot: str, stage: Stage) -> m.Refusal | None:
    phase, seed = state.run.phase, state.seeds.seed(slot)
    if phase in st.TERMINAL or phase is st.Phase.STOPPING:
        return m.Refusal("WrongPhase", f"the run is {phase.value}; this needs a run that trains or will")
    if not state.seeds.has(slot):
        return m.Refusal("NotFound", _unknown_slot(state, slot))
    if (waiting := waiting_move(state, slot)) is not None:
        ordered = f"a move of slot {slot} to {waiting.stage.name} is ordered already"
        return m.Refusal("Refused", f"{ordered}; it takes effect at the next step boundary")
    if stage not in _ORDERED or not is_legal(seed.stage, stage):
        return m.Refusal("Refused", _illegal(state, seed, stage))
    if stage in (Stage.GERMINATED, Stage.BLENDING) and (why := _no_start_in(state, slot)):
        return m.Refusal("Refused", why)
    if stage is Stage.SHADOWING and (why := _still_blending(state, seed)):
        return m.Refusal("Refused", why)
    if stage is Stage.FOSSILIZED:
        now = state.progress.metrics.get("loss")
        if why := judge_impact(seed.loss_before, now, state.run.policy.max_regression):
            return m.Refusal("Refused", f"gate G4_SYSTEM_IMPACT: {why}")
    if len(state.boundary.waiting) >= st.WAITING_MAX:
        return m.Refusal("Refused", f"{st.WAITING_MAX} orders wait for their boundary already")
    return None


def _refused_germination(
    state: ReadsSeeds, slot: str, blueprint: str, parameters: Mapping[str, float]
) -> m.Refusal | None:
    if not blueprint.strip():
        return m.Refusal("Refused", f"a germination needs a blueprint, such as {_known_blueprints(state)}")
    # A path or a module is none of them, unless the configuration names it: an order must not bring code of its own.
    known = state.seeds.blueprints
    if blueprint not in known:
        near, what = did_you_mean(nearest(blueprint, known)), f"there is no blueprint {shown(blueprint)}"
        own = "; `seeds.blueprints` of the configuration adds one of your own" if ":" in blueprint else ""
        return m.Refusal("NotFound", f"{what}; there are {_known_blueprints(state)}{own}{near}")
    if len(parameters) > SEED_PARAMETERS_MAX:
        return m.Refusal(
            "Refused", f"a blueprint takes at most {SEED_PARAMETERS_MAX} parameters, not {len(parameters)}"
        )
    if wrong := next((name for name, value in parameters.items() if not isfinite(value)), None):
        return m.Refusal("Refused", f"the parameter {shown(wrong)} of the blueprint is not a finite number")
    entry = ledger.germinated(slot, state.seeds.germinations + 1, blueprint=blueprint, parameters=parameters)
    if len(entry.arguments) > _ARGUMENTS_MAX:
        return m.Refusal("Refused", f"slot, blueprint and parameters take more than {_ARGUMENTS_MAX} characters")
    waiting = sum(order.stage is Stage.GERMINATED for _, order in state.boundary.of_kind(m.MoveSeed))
    if len(state.architecture.changes) + waiting >= st.CHANGES_MAX:
        return m.Refusal(
            "Refused", f"the model has changed {st.CHANGES_MAX} times, which is the most that a run records"
        )
    return None


# -- reasons -----------------------------------------------------------------------------------------------------------


def _unknown_slot(state: ReadsSeeds, slot: str) -> str:
    names = [one.name for one in state.seeds.slots]
    if names:
        return f"there is no slot {shown(slot)}; there are {listed(names)}{did_you_mean(nearest(slot, names))}"
    if not state.progress.environment:
        return f"there is no slot {shown(slot)}: the trainer is still being built"
    return f"there is no slot {shown(slot)}: the model has no slots for seeds; docs/growing.md says how to give it some"


def _whole_name(state: ReadsSeeds, blueprint: str) -> str:
    """Return the known blueprint that is called so, or the text itself."""
    known = state.seeds.blueprints
    found = [one for one in known if one.endswith(f":{blueprint}")] if blueprint not in known else []
    return found[0] if len(found) == 1 else blueprint


def _known_blueprints(state: ReadsSeeds) -> str:
    return listed(state.seeds.blueprints) or "bottleneck"


def _illegal(state: ReadsSeeds, seed: st.Seed, stage: Stage) -> str:
    if stage is Stage.GERMINATED and seed.stage in PLANTED - {Stage.FOSSILIZED}:
        return f"slot {seed.slot} holds a seed in {seed.stage.name}; `tolaria seeds cull {seed.slot}` removes it"
    if (seed.stage in MOVES and not MOVES[seed.stage] & _ORDERED) or seed.stage is Stage.DORMANT:
        return _standing(state, seed)
    possible = " or ".join(to.name for to in sorted(MOVES.get(seed.stage, frozenset())))
    return f"the seed in slot {seed.slot} is in {seed.stage.name} and cannot move to {stage.name}, only to {possible}"


def _standing(state: ReadsSeeds, seed: st.Seed) -> str:
    """Return why nothing can be ordered of a seed in this stage, except a germination."""
    slot = seed.slot
    match seed.stage:
        case Stage.DORMANT:
            return f"slot {slot} is empty; `tolaria seeds germinate {slot} --blueprint B` lets a seed germinate"
        case Stage.FOSSILIZED:
            return f"the seed in slot {slot} is fossilized: it is a permanent part of the model"
        case Stage.CULLED | Stage.EMBARGOED | Stage.RESETTING:
            until = embargo_ends(state, seed)
            when = f"after epoch {until}" if until > state.progress.epoch_finished else "in a moment"
            return f"slot {slot} is empty since a cull, and is free again {when}"
        case _:
            return f"slot {slot} is in {seed.stage.name}, and nothing more can happen to it"


def _no_start_in(state: ReadsSeeds, slot: str) -> str:
    """Return why nothing new may be started in this slot, or ""."""
    if not state.run.policy.morphogenesis:
        return "`enable_morphogenetic` is false in the configuration: nothing may change the model"
    if why := why_conservative(state):
        return why
    entry = state.quarantine.of_seed(slot)
    if entry is not None:
        return f"slot {slot} is in quarantine as {entry.name}: {entry.why}; `tolaria quarantine remove {entry.name}`"
    return ""


def _still_blending(state: ReadsSeeds, seed: st.Seed) -> str:
    alpha = seed.alpha_after(state.progress.step)
    if alpha == 1.0:
        return ""
    last = seed.since_step + seed.blend_steps - 1
    return f"the seed in slot {seed.slot} is still blended in: alpha is {alpha:.4g}, and 1 after step {last}"


# -- without an order --------------------------------------------------------------------------------------------------


def waiting_move(state: st.HasBoundary, slot: str) -> m.MoveSeed | None:
    """Return the move of this slot that has not ended, or None."""
    return next((order for _, order in state.boundary.of_kind(m.MoveSeed) if order.slot == slot), None)


def embargo_ends(state: st.HasRun, seed: st.Seed) -> int:
    """Return the epoch after which a culled slot is free again. The epoch of the cull counts."""
    return seed.since_epochs + state.run.policy.embargo_epochs


def why_culled(state: ReadsSeeds, slot: str) -> str:
    """Return why the seed in this slot is to be culled without an order of anybody, or ""."""
    if state.quarantine.of_seed(slot) is not None:
        return "the seed is in quarantine"
    measure = state.seeds.measures.get(slot)
    return "its parameters are not finite, so it cannot recover" if measure is not None and measure.non_finite else ""


def due_moves(state: ReadsSeeds) -> Iterator[m.MoveSeed]:
    """Yield the moves that follow without an order of anybody.

    A culled slot is embargoed, reset and free again. A seed in quarantine is culled, also if a rollback brings it back.
    So is one with parameters that are not finite: its later gradients are not finite either, so it never recovers.
    """
    if state.run.phase in st.TERMINAL or not state.seeds.seeds:
        return
    room = st.WAITING_MAX - len(state.boundary.waiting)
    for slot in [one.name for one in state.seeds.slots]:
        to = _due(state, state.seeds.seed(slot))
        if to is not None and waiting_move(state, slot) is None and room > 0:
            room -= 1
            yield _ordered(state, slot, to)


def _due(state: ReadsSeeds, seed: st.Seed) -> Stage | None:
    match seed.stage:
        case Stage.CULLED:
            return Stage.EMBARGOED
        case Stage.EMBARGOED if state.progress.epoch_finished >= embargo_ends(state, seed):
            return Stage.RESETTING
        case Stage.RESETTING:
            return Stage.DORMANT
        case stage if stage in CULLABLE and why_culled(state, seed.slot):
            return Stage.CULLED
        case _:
            return None
