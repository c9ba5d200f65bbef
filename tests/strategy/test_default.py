"""The default policy: each rule by a scenario, and its bounds by any packet."""

from __future__ import annotations

import math

import pytest

from tests.strategy.packets import packet, seed
from tolariad.leyline import AdaptationCommand, CommandType
from tolariad.leyline import SeedLifecycleStage as Stage
from tolariad.leyline import SeedOperation as Op
from tolariad.strategy import DefaultStrategy, PolicyLimits

NAN = math.nan


def said(commands) -> list[tuple[str, ...]]:
    """Each command in short: its rule, and what it asks for."""
    return [(one.annotations["rule"], *_what(one)) for one in commands]


def _what(command: AdaptationCommand) -> tuple[str, ...]:
    if command.command_type == CommandType.COMMAND_SEED:
        operation = Op.Name(command.seed_operation.operation).removeprefix("SEED_OP_")
        return tuple(filter(None, (operation, command.target_seed_id, command.seed_operation.blueprint_id)))
    if command.command_type == CommandType.COMMAND_OPTIMIZER:
        return ("lr", f"{command.optimizer_adjustment.hyperparameters['lr']:.3g}")
    return (CommandType.Name(command.command_type),)


def course(packets, strategy: DefaultStrategy | None = None) -> dict[int, list[tuple[str, ...]]]:
    """Return what the policy gave, by epoch, without the epochs in which it gave nothing."""
    strategy = strategy or DefaultStrategy()
    answers = {one.current_epoch: said(strategy.step(one)) for one in packets}
    return {epoch: answer for epoch, answer in answers.items() if answer}


def flat(last: int, seeds=(), **metrics: float):
    """Epochs 1 to `last` with the same loss."""
    return [packet(epoch, 1.0, seeds, **metrics) for epoch in range(1, last + 1)]


SLOTS = (seed("deep", depth=5), seed("early", depth=1), seed("middle", depth=3))


# -- growing -----------------------------------------------------------------------------------------------------------


def test_a_run_that_improves_is_left_alone():
    """A loss that falls by more than a percent in each epoch gives no command."""
    assert course(packet(epoch, 2.0 * 0.97**epoch, SLOTS) for epoch in range(1, 40)) == {}


def test_a_plateau_grows_a_seed_in_the_first_slot():
    """After three epochs without a gain the slot nearest to the input gets the first blueprint."""
    answer = course(flat(4, SLOTS))

    assert answer == {4: [("plateau", "GERMINATE", "early", "bottleneck")]}


def test_slots_take_turns_and_refused_blueprints_are_changed():
    """Each germination is refused: the slots take turns, each tries every blueprint once, and then it is quiet."""
    given = course(flat(60, SLOTS))
    turns = [one[2:] for answer in given.values() for one in answer]

    assert [name for name, _ in turns] == ["early", "middle", "deep"] * 3
    assert [blueprint for _, blueprint in turns] == [one for one in PolicyLimits().blueprints for _ in range(3)]
    assert min(later - epoch for epoch, later in zip(given, list(given)[1:], strict=False)) >= PolicyLimits().pause


@pytest.mark.parametrize(
    "seeds",
    [
        (seed("a", Stage.SEED_STAGE_EMBARGOED),),
        (seed("a", Stage.SEED_STAGE_CULLED),),
        (seed("a", Stage.SEED_STAGE_RESETTING),),
        (seed("a", Stage.SEED_STAGE_FOSSILIZED),),
        (seed("a", Stage.SEED_STAGE_TERMINATED),),
        (seed("a", Stage.SEED_STAGE_UNKNOWN),),
        (seed("a", 77),),
        (seed("a", quarantined=1.0),),
        (),
    ],
)
def test_a_slot_that_is_not_free_gets_no_seed(seeds):
    """Embargo, quarantine, a fossil, a stage of a later version: nothing grows there."""
    assert course(flat(12, seeds)) == {}


def test_no_seed_is_grown_shortly_before_the_end():
    """A seed that could not become part of the model before the last epoch is not begun."""
    assert course(flat(30, SLOTS, epochs=11.0)) == {}
    assert course(flat(30, SLOTS, epochs=12.0)) == {4: [("plateau", "GERMINATE", "early", "bottleneck")]}


def test_one_seed_grows_at_a_time():
    """While a seed is blended in, a plateau begins no second one."""
    seeds = (seed("early", Stage.SEED_STAGE_BLENDING, alpha=0.5, depth=1), seed("deep", depth=5))
    assert course(flat(9, seeds)) == {}


def test_a_loss_close_to_zero_is_compared_with_the_way_to_it():
    """Noise of a loss that has come from 2.3 to 0.02 is neither a divergence nor a regression of a seed."""
    stages = [Stage.SEED_STAGE_DORMANT] * 3 + [Stage.SEED_STAGE_BLENDING] * 4
    noise = [2.3, 0.5, 0.02, 0.035, 0.035, 0.04, 0.04]
    seeds = [[seed("a", stage, alpha=0.5)] for stage in stages]

    assert course(packet(n, 0.9 * 0.5**n) for n in range(1, 5)) == {}
    assert course(packet(n, loss) for n, loss in enumerate([2.3, 0.5, 0.02, 0.11, 0.11, 0.11], 1)) == {}
    assert course(packet(n, loss, own) for n, (loss, own) in enumerate(zip(noise, seeds, strict=True), 1)) == {}


def test_without_a_validation_the_loss_is_that_of_the_training():
    """The validation's loss of an earlier epoch is not looked at."""
    packets = flat(4, SLOTS, validated=None)
    for one in packets:
        one.validation_loss = 0.5**one.current_epoch
    assert course(packets) == {4: [("plateau", "GERMINATE", "early", "bottleneck")]}


# -- advancing and culling ---------------------------------------------------------------------------------------------


def life(stages, loss_of=lambda epoch: 1.0):
    """Packets of a run in which one seed is in these stages, one an epoch, after a plateau of four epochs."""
    before = [packet(epoch, 1.0, [seed("a")]) for epoch in range(1, 5)]
    grown = [packet(epoch, loss_of(epoch), [seed("a", stage, alpha=1.0)]) for epoch, stage in enumerate(stages, 5)]
    return [*before, *grown]


def test_a_healthy_seed_advances_to_the_fossil():
    """Every stage is left as soon as its rule allows; the loss is better than before the seed."""
    stages = [2, 3, 3, 3, 4, 5, 5, 6, 6, 7, 7]
    given = course(life(stages, lambda epoch: 1.0 if epoch < 9 else 0.9))

    assert given == {
        4: [("plateau", "GERMINATE", "a", "bottleneck")],
        5: [("gate", "START_TRAINING", "a")],
        8: [("gate", "START_GRAFTING", "a")],
        9: [("gate", "STABILIZE", "a")],
        11: [("gate", "EVALUATE", "a")],
        13: [("gate", "FOSSILIZE", "a")],
    }


def test_the_reasons_are_sentences_with_their_numbers():
    """They are what `tolaria why` shows beside the change."""
    strategy = DefaultStrategy()
    reasons = [one.annotations["reason"] for given in life([2, 3, 3, 3]) for one in strategy.step(given)]

    assert reasons == [
        "the best loss, 1, is 3 epochs old",
        "0 epochs in GERMINATED, loss 1, alpha 1",
        "2 epochs in TRAINING, loss 1, alpha 1",
    ]


def test_a_seed_is_settled_only_at_the_full_alpha():
    """BLENDING is left at alpha 1, not before."""
    blended = [packet(epoch, 1.0, [seed("a", Stage.SEED_STAGE_BLENDING, alpha=0.9999)]) for epoch in range(1, 30)]
    assert course(blended) == {}


def test_a_seed_that_harms_is_removed_after_two_epochs():
    """One bad epoch is borne; the second in a row removes the seed."""
    blended = [seed("a", Stage.SEED_STAGE_BLENDING, alpha=0.5)]
    losses = [1.0, 1.2, 1.0, 1.2, 1.3, 1.3]

    assert course(packet(n, loss, blended) for n, loss in enumerate(losses, 1)) == {
        5: [("regression", "CULL", "a")],
        6: [("regression", "CULL", "a")],
    }


def test_a_regression_removes_the_seed_that_moved_last():
    """Two seeds are blended in; only the later one is blamed."""
    early = seed("a", Stage.SEED_STAGE_SHADOWING)
    both = [early, seed("b", Stage.SEED_STAGE_BLENDING, alpha=0.5)]
    packets = [packet(1, 1.0, [early, seed("b")]), packet(2, 1.0, both), packet(3, 1.2, both), packet(4, 1.2, both)]

    assert [one for one in course(packets)[4] if one[0] == "regression"] == [("regression", "CULL", "b")]


@pytest.mark.parametrize(
    ("stage", "epochs", "rule"),
    [(Stage.SEED_STAGE_PROBATIONARY, 6, "trial"), (Stage.SEED_STAGE_TRAINING, 11, "stuck")],
)
def test_a_seed_that_brings_nothing_is_removed(stage, epochs, rule):
    """Without a gain the trial ends; a gate that goes on refusing ends the wait."""
    given = course(flat(epochs, [seed("a", stage)]))
    assert given.pop(epochs) == [(rule, "CULL", "a")]
    assert {one[1] for answer in given.values() for one in answer} <= {"START_GRAFTING"}


def test_a_seed_that_is_not_heard_is_not_blamed():
    """In TRAINING its output is no part of the model's, so a worse loss is not its fault."""
    training = [seed("a", Stage.SEED_STAGE_TRAINING)]
    given = course([packet(1, 1.0, training), *(packet(n, 1.3, training) for n in range(2, 8))])
    assert {one for answer in given.values() for one in answer} == {("gate", "START_GRAFTING", "a")}


def test_a_seed_with_a_doubt_is_not_advanced():
    """A violation in TRAINING, or one worse epoch in SHADOWING, holds it in its stage."""
    doubted = [seed("a", Stage.SEED_STAGE_TRAINING, isolation_violations=1.0)]
    shadowed = [seed("a", Stage.SEED_STAGE_SHADOWING)]

    assert course(flat(9, doubted)) == {}
    assert course([packet(1, 1.0, shadowed), packet(2, 1.2, shadowed)]) == {}
    assert course([packet(1, 1.0, shadowed), packet(2, 1.0, shadowed)]) == {2: [("gate", "EVALUATE", "a")]}


@pytest.mark.parametrize(
    "sick",
    [
        seed("a", Stage.SEED_STAGE_TRAINING, norm=NAN),
        seed("a", Stage.SEED_STAGE_TRAINING, isolation_violations=3.0),
        seed("a", Stage.SEED_STAGE_BLENDING, alpha=math.inf),
        seed("a", Stage.SEED_STAGE_BLENDING, quarantined=1.0),
    ],
)
def test_a_sick_seed_is_removed_at_once(sick):
    """Also in conservative mode: that starts nothing, and ending is allowed."""
    for conservative in (0.0, 1.0):
        assert course([packet(1, 1.0, [sick], conservative=conservative)]) == {1: [("sickness", "CULL", "a")]}


def test_conservative_mode_starts_nothing():
    """No germination and no advance, on any plateau."""
    ready = [seed("a", Stage.SEED_STAGE_GERMINATED), seed("b")]
    assert course(flat(12, SLOTS, conservative=1.0)) == {}
    assert course(flat(9, ready, conservative=1.0)) == {}


# -- a run that is not stable ------------------------------------------------------------------------------------------


def test_a_divergence_rolls_back_and_then_only_lowers_the_rate():
    """Two diverged epochs in a row roll back; after two rollbacks of its own the policy orders no third."""
    up = [packet(1), packet(2, 0.5), packet(3, 9.0), packet(4, 9.0)]
    assert course(up) == {4: [("divergence", "COMMAND_ROLLBACK")]}

    spent = [packet(1, rollbacks=2.0), packet(2, 0.5, rollbacks=2.0), packet(3, 9.0, rollbacks=2.0)]
    given = course([*spent[:2], *(packet(n, 9.0, rollbacks=2.0) for n in range(3, 12))])
    assert {rule[1] for answer in given.values() for rule in answer} == {"lr"}


def test_a_rollback_that_was_refused_is_not_asked_for_in_each_epoch():
    """The run goes on diverging: the rate is lowered next, and a rollback is asked for again after three epochs."""
    given = course([packet(1), packet(2, 0.5), *(packet(n, 9.0) for n in range(3, 8))])
    assert given == {
        4: [("divergence", "COMMAND_ROLLBACK")],
        5: [("divergence", "lr", "0.05")],
        7: [("divergence", "COMMAND_ROLLBACK")],
    }


def test_a_policy_that_knows_of_no_rollbacks_orders_none():
    """Its state goes back with a rollback, so only the packet can bound how often it rolls back."""
    given = course([packet(1, rollbacks=None), *(packet(n, NAN, rollbacks=None) for n in range(2, 9))])
    assert {rule[1] for answer in given.values() for rule in answer} == {"lr"}


def test_after_its_rollback_the_rate_is_lowered_once():
    """The state is that of the target; the packet says that a rollback came between."""
    strategy = DefaultStrategy()
    strategy.step(packet(1))
    target = strategy.state_dict()
    for one in (packet(2, 0.5), packet(3, 9.0), packet(4, 9.0)):
        strategy.step(one)
    strategy.load_state_dict(target)
    again = [packet(n, 0.9**n, rollbacks=1.0, branch=1.0) for n in (2, 3, 4)]

    assert course(again, strategy) == {2: [("after_rollback", "lr", "0.05")]}


@pytest.mark.parametrize(
    ("metrics", "is_calmed"),
    [
        ({"skipped_steps": 6.0, "epoch_steps": 100.0}, True),
        ({"skipped_steps": 5.0, "epoch_steps": 100.0}, False),
        ({"findings": 3.0}, True),
        ({"findings": 2.0}, False),
        ({"skipped_steps": 6.0, "epoch_steps": 0.0}, False),
        ({"skipped_steps": 1.0, "epoch_steps": 16.0}, False),
        ({"skipped_steps": 2.0, "epoch_steps": 4.0}, False),
        ({"skipped_steps": 3.0, "epoch_steps": 16.0}, True),
    ],
)
def test_instability_halves_the_rate(metrics, is_calmed):
    """Many skipped updates, or findings of the detector: the rate is halved, once in three epochs."""
    expected = {2: [("instability", "lr", "0.05")], 5: [("instability", "lr", "0.05")]} if is_calmed else {}
    assert course([packet(1, 1.0), *(packet(n, 0.9**n, **metrics) for n in range(2, 7))]) == expected


def test_large_gradients_count_if_the_loss_is_worse_too():
    """Ten times the usual norm and a worse loss lower the rate; the same norm beside a better loss does not."""
    usual = [packet(n, 1.0, gradient_norm=1.0) for n in range(1, 4)]
    assert course([*usual, packet(4, 1.5, gradient_norm=11.0)]) == {4: [("instability", "lr", "0.05")]}
    assert course([*usual, packet(4, 0.5, gradient_norm=11.0)]) == {}
    assert course([*usual, packet(4, 1.5, gradient_norm=NAN)]) == {4: [("instability", "lr", "0.05")]}


def test_the_rate_has_a_floor():
    """It is never lowered below a sixteenth of the highest rate seen."""
    strategy, rate, rates = DefaultStrategy(), 0.1, []
    strategy.step(packet(1))
    for epoch in range(2, 60):
        for command in strategy.step(packet(epoch, 0.99**epoch, findings=9.0, learning_rate=rate)):
            rate = command.optimizer_adjustment.hyperparameters["lr"]
            rates.append(rate)

    assert rates == pytest.approx([0.05, 0.025, 0.0125, 0.00625])


def test_nothing_grows_soon_after_the_rate_was_lowered():
    """A new rate needs some epochs to show what it does."""
    calmed = [packet(n, 1.0, SLOTS, findings=9.0 if n == 4 else 0.0) for n in range(1, 8)]
    assert course(calmed) == {4: [("instability", "lr", "0.05")], 7: [("plateau", "GERMINATE", "early", "bottleneck")]}


def test_nothing_grows_in_a_run_that_is_not_stable():
    """A plateau beside findings lowers the rate and begins no seed."""
    given = course(flat(12, SLOTS, findings=5.0))
    assert {one[0] for answer in given.values() for one in answer} == {"instability"}
