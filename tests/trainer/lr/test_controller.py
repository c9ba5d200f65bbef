"""UnifiedLRController as a library: registration, steps, orders, plateaus, history, state."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tolariad.core.calc.learning_rate.curve import rate
from tolariad.core.calc.learning_rate.schedule import LRSnapshot, Schedule
from tolariad.trainer.lr import GroupConfig, LRIntegrityError, LRPolicy, UnifiedLRController


def parameters(count=2):
    return [nn.Parameter(torch.ones(3)) for _ in range(count)]


def step(optimizer, controller, epoch=1, **metrics):
    """One step of a user's own loop."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return controller.step(epoch, metrics)


@pytest.fixture
def made():
    """Return a controller over one SGD with one group, and its reports."""

    def make(policy=LRPolicy.HOST_COSINE, config=None, groups=None, **more):
        told = []
        horizon = {"steps_per_epoch": 10, "total_steps": 50, **more}
        controller = UnifiedLRController({}, on_violation=told.append, **horizon)
        optimizer = torch.optim.SGD(groups or parameters(), lr=0.1)
        controller.register_optimizer("host", optimizer, config or GroupConfig("host", policy, 0.1))
        return controller, optimizer, told

    return make


def test_each_update_has_the_rate_of_its_step(made):
    """Weights move by exactly the rates of the closed form; the last step has min_lr."""
    controller, optimizer, told = made(config=GroupConfig("host", LRPolicy.HOST_COSINE, 0.1, warmup_epochs=1))
    schedule = Schedule(policy=LRPolicy.HOST_COSINE, base_lr=0.1, min_lr=1e-6, total_steps=50, warmup_steps=10)
    used = []
    for _ in range(50):
        used.append(optimizer.param_groups[0]["lr"])
        step(optimizer, controller)
    assert used == [rate(schedule, number) for number in range(1, 51)]
    assert used.index(1e-6) == 49
    assert told == []


def test_a_skipped_step_advances_nothing(made):
    """A GradScaler that found an overflow does not call step; the schedule waits with it."""
    controller, optimizer, _ = made()
    first = step(optimizer, controller)
    assert controller.step(1, {}) == first
    assert controller.global_step == 1


def test_groups_keep_their_ratio_and_have_ids_of_their_own(made):
    """One configuration for all groups; ids never repeat, in one optimizer or over several."""
    first, second, third = parameters(3)
    groups = [{"params": [first], "lr": 1.0}, {"params": [second], "lr": 0.1}]
    controller, _, _ = made(LRPolicy.CONSTANT, groups=groups)
    other = torch.optim.SGD([third], lr=1.0)
    ids = controller.register_optimizer("seed", other, GroupConfig("host_0", LRPolicy.SEED_WARMUP, 0.3))
    assert controller.rates() == {"host_0": 0.1, "host_1": pytest.approx(0.01), "host_0_2": 0.3}
    assert ids == ("host_0_2",)


def test_each_group_has_its_own_policy(made):
    """A sequence has one configuration for each group; one too few is refused."""
    first, second = parameters()
    configs = [GroupConfig("a", LRPolicy.LINEAR, 0.1), GroupConfig("b", LRPolicy.CONSTANT, 0.2)]
    controller, optimizer, _ = made(config=configs, groups=[{"params": [first]}, {"params": [second]}])
    step(optimizer, controller)
    assert controller.rates()["a"] < 0.1
    assert controller.rates()["b"] == 0.2
    with pytest.raises(ValueError, match="1 configurations for 2"):
        UnifiedLRController({}).register_optimizer("x", optimizer, configs[:1])


def test_what_is_registered_already_is_refused(made):
    """Refused: a name used twice, and a parameter that another optimizer holds."""
    controller, optimizer, _ = made()
    config = GroupConfig("again", LRPolicy.CONSTANT, 0.1)
    with pytest.raises(ValueError, match="'host' is registered already"):
        controller.register_optimizer("host", torch.optim.SGD(parameters(), lr=1.0), config)
    with pytest.raises(ValueError, match="holds a parameter that a registered one holds"):
        controller.register_optimizer("seed", torch.optim.SGD(optimizer.param_groups[0]["params"], lr=1.0), config)


def test_an_optimizer_that_is_let_go_is_its_owners_again(made):
    """After that rates may be changed and parameters registered again. A wrong name is refused with the known ones."""
    controller, optimizer, told = made()
    controller.unregister_optimizer("host")
    optimizer.param_groups[0]["lr"] = 7.0
    optimizer.step()
    assert (optimizer.param_groups[0]["lr"], told) == (7.0, [])
    with pytest.raises(KeyError, match="there are none"):
        controller.unregister_optimizer("host")


def test_a_frozen_group_does_not_move_and_its_state_neither(made):
    """At rate 0 an optimizer's moments would still change, so the group is left out of the step."""
    first, second = parameters()
    configs = [GroupConfig("a", LRPolicy.FROZEN, 0.1), GroupConfig("b", LRPolicy.CONSTANT, 0.1)]
    controller, optimizer, _ = made(config=configs, groups=[{"params": [first]}, {"params": [second]}])
    optimizer.param_groups[0]["momentum"] = 0.9
    step(optimizer, controller)
    assert torch.equal(first, torch.ones(3))
    assert first not in optimizer.state
    assert not torch.equal(second, torch.ones(3))
    controller.order("a", 0.05, LRPolicy.CONSTANT, reason="thaw")
    step(optimizer, controller)
    assert torch.equal(first, torch.full((3,), 0.95))


def test_new_parameters_begin_with_a_thousandth_and_warm_up_over_ten_epochs(made):
    """A tenth of the base rate, warmed up from a hundredth of that, from the step at which they were added."""
    controller, optimizer, told = made(LRPolicy.CONSTANT, total_steps=500)
    for _ in range(7):
        step(optimizer, controller)
    id_ = controller.add_new_parameters(optimizer, parameters(1))
    assert controller.rates()[id_] == pytest.approx(0.1 * 0.1 * 0.01)
    for _ in range(100):
        step(optimizer, controller)
    assert controller.rates()[id_] == pytest.approx(0.01)
    assert controller.add_new_parameters(optimizer, parameters(1), "host") == "morpho_group_2"
    assert told == []


def test_a_removed_group_leaves_no_state_behind(made):
    """Its parameters and their moments are removed from the optimizer."""
    controller, optimizer, told = made(LRPolicy.CONSTANT)
    optimizer.param_groups[0]["momentum"] = 0.9
    (new,) = parameters(1)
    id_ = controller.add_new_parameters(optimizer, [new])
    step(optimizer, controller)
    assert new in optimizer.state
    controller.remove_group(id_)
    step(optimizer, controller)
    assert new not in optimizer.state
    assert list(controller.rates()) == ["host"]
    assert told == []


@pytest.mark.parametrize(
    ("value", "policy", "why"),
    [
        (1.1, None, "at most 10-fold"),
        (0.009, None, "at most 10-fold"),
        (0.0, None, "--policy frozen"),
        (float("nan"), None, "a number from 0 on"),
        (0.1, LRPolicy.FROZEN, "a frozen group has rate 0"),
    ],
)
def test_an_order_that_goes_too_far_is_refused(made, value, policy, why):
    """The rate stays as it was."""
    controller, _, _ = made(LRPolicy.CONSTANT)
    with pytest.raises(ValueError, match=why):
        controller.order("host", value, policy, reason="a slip of the finger")
    assert controller.rates() == {"host": 0.1}


def test_an_order_is_exact_and_the_curve_scales(made):
    """The next update has exactly the value; without a limit any value is accepted."""
    controller, optimizer, told = made()
    for _ in range(5):
        step(optimizer, controller)
    before = controller.order("host", 0.02, reason="loss is noisy")
    assert before > 0.09
    assert optimizer.param_groups[0]["lr"] == 0.02
    step(optimizer, controller)
    assert 0.0 < optimizer.param_groups[0]["lr"] < 0.02
    assert told == []
    free = UnifiedLRController({"learning_rate": {"max_order_factor": 0}})
    free.register_optimizer("x", torch.optim.SGD(parameters(), lr=1), GroupConfig("x", LRPolicy.CONSTANT, 1e-4))
    assert free.order("x", 10.0, reason="why not") == 1e-4


def test_a_plateau_looks_once_an_epoch_at_the_validation_loss(made):
    """`val_loss` before `host_loss` before `loss`, the newest of the epoch; the rate falls from the next epoch on."""
    controller, optimizer, _ = made(LRPolicy.MORPHO_ADAPTIVE)
    for epoch in range(1, 14):
        for _ in range(3):
            rates = step(optimizer, controller, epoch, loss=1.0 / epoch, val_loss=1.0)
        assert rates["host"] == (0.1 if epoch < 13 else pytest.approx(0.01))


def test_a_plateau_without_a_metric_holds_and_says_so_once(made, caplog):
    """A default of 0 would count as no improvement, and reduce the rate to almost 0."""
    controller, optimizer, _ = made(LRPolicy.MORPHO_ADAPTIVE)
    for epoch in range(1, 40):
        step(optimizer, controller, epoch, accuracy=0.5)
    assert controller.rates() == {"host": 0.1}
    assert len(caplog.messages) == 1
    assert "none of val_loss, host_loss, loss" in caplog.messages[0]


def test_a_missing_horizon_is_said_once(caplog):
    """A cosine without an end keeps its base rate."""
    controller = UnifiedLRController({})
    optimizer = torch.optim.SGD(parameters(), lr=1.0)
    controller.register_optimizer("host", optimizer, GroupConfig("host", LRPolicy.HOST_COSINE, 0.1))
    for _ in range(2000):
        step(optimizer, controller)
    assert controller.rates() == {"host": 0.1}
    note = "total_steps is not known: host_cosine holds its base rate after the warm-up"
    assert caplog.messages == [f"learning rate: {note}"]


def test_the_history_holds_the_last_thousand_steps(made):
    """A snapshot has the rates its step used, a fingerprint of each group, and the time."""
    controller, optimizer, _ = made(LRPolicy.LINEAR, total_steps=3000)
    used = []
    for _ in range(1100):
        used.append(optimizer.param_groups[0]["lr"])
        step(optimizer, controller)
    history = controller.lr_history
    assert len(history) == 1000
    assert isinstance(history[-1], LRSnapshot)
    assert (history[0].step, history[-1].step) == (101, 1100)
    assert [one.group_lrs["host"] for one in history] == used[100:]
    assert history[-1].checksums["host"] != history[-2].checksums["host"]
    assert history[-1].timestamp >= history[0].timestamp > 0


def test_a_state_goes_on_where_it_was_taken(made):
    """Orders, plateaus and the position in the schedules are restored into an equally configured controller."""
    controller, optimizer, _ = made()
    for _ in range(12):
        step(optimizer, controller)
    controller.order("host", 0.03, reason="test")
    state = controller.state_dict()
    other, twin, _ = made()
    other.load_state_dict(state)
    for _ in range(40):
        assert twin.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]
        step(optimizer, controller)
        step(twin, other)


def test_a_groups_schedule_that_was_added_is_saved_with_it(made):
    """Restored into a controller that got the group at another step: both use the same rates through the warm-up."""
    controller, optimizer, _ = made()
    for _ in range(12):
        step(optimizer, controller)
    id_ = controller.add_new_parameters(optimizer, [torch.nn.Parameter(torch.zeros(2))])
    for _ in range(3):
        step(optimizer, controller)
    controller.order(id_, 2e-3, reason="test")
    other, twin, _ = made()
    assert other.add_new_parameters(twin, [torch.nn.Parameter(torch.zeros(2))]) == id_
    other.load_state_dict(controller.state_dict())
    before = controller.rates()[id_]
    for _ in range(30):
        step(optimizer, controller)
        step(twin, other)
        assert other.rates() == controller.rates()
    assert controller.rates()[id_] > 3 * before


# -- integrity ---------------------------------------------------------------------------------------------------------


def test_a_closure_is_put_right_before_the_update(made):
    """Torch runs it after every hook: its change is overwritten and reported by name."""
    _, optimizer, told = made(LRPolicy.CONSTANT)
    (first, _) = optimizer.param_groups[0]["params"]

    def closure():
        optimizer.param_groups[0]["lr"] = 50.0
        first.grad = torch.ones(3)
        return torch.tensor(4.0)

    for given in ((closure,), ()):
        assert optimizer.step(*given, **({} if given else {"closure": closure})) == 4.0
    assert torch.equal(first, torch.full((3,), 1.0) - 0.1 - 0.1)
    assert [one.found for one in told] == [50.0, 50.0]
    assert all("in closure" in one.where for one in told)


def test_a_hook_registered_later_is_put_right_too(made):
    """The guard moves after it, names it, and finds it again in every step."""
    controller, optimizer, told = made(LRPolicy.CONSTANT)

    def meddle(held, args, kwargs):
        held.param_groups[0]["lr"] = 50.0

    optimizer.register_step_pre_hook(meddle)
    for _ in range(3):
        step(optimizer, controller)
    assert torch.allclose(optimizer.param_groups[0]["params"][0], torch.full((3,), 0.7))
    assert len(told) == 3
    assert all("in meddle" in one.where for one in told)


def test_strict_verification_raises(made):
    """It raises and still corrects the rates; without `strict` it only reports."""
    controller, optimizer, told = made(LRPolicy.CONSTANT)
    assert controller.verify(strict=True)
    optimizer.param_groups[0]["lr"] = 2.0
    with pytest.raises(LRIntegrityError, match=r"group host: .*0\.1.*2\.0"):
        controller.verify(strict=True)
    assert controller.verify()
    assert len(told) == 1


def test_three_violations_open_the_breaker_and_the_guard_stays_on(made):
    """With an open breaker violations are still corrected and reported."""
    controller, optimizer, told = made(LRPolicy.CONSTANT)
    for number in range(1, 6):
        optimizer.param_groups[0]["lr"] = 2.0
        step(optimizer, controller)
        assert controller.circuit_breaker.is_closed() == (number < 3)
    assert len(told) == 5
    assert torch.allclose(optimizer.param_groups[0]["params"][0], torch.full((3,), 0.5))


def test_a_tensor_rate_is_replaced_by_a_number():
    """A tensor that user code holds cannot change the optimizer's rate."""
    held = torch.tensor(0.1)
    optimizer = torch.optim.Adam(parameters(), lr=held, capturable=False, foreach=False)
    controller = UnifiedLRController({}, total_steps=10)
    controller.register_optimizer("host", optimizer, GroupConfig("host", LRPolicy.CONSTANT, 0.1))
    held.fill_(9.0)
    assert type(optimizer.param_groups[0]["lr"]) is float


def test_options_that_are_not_rates_are_their_owners(made):
    """The momentum of a loaded state dict is kept; its rates and new group objects are not."""
    controller, optimizer, told = made(LRPolicy.CONSTANT)
    own = optimizer.param_groups[0]
    state = optimizer.state_dict()
    state["param_groups"][0]["momentum"] = 0.5
    optimizer.load_state_dict(state)
    step(optimizer, controller)
    assert optimizer.param_groups[0] is own
    assert own["momentum"] == 0.5
    assert told == []


def test_other_optimizers_are_nobodys_business(made):
    """An optimizer of other parameters is not restricted."""
    made()
    (free,) = parameters(1)
    free.grad = torch.ones(3)
    torch.optim.SGD([free], lr=1.0).step()
    assert torch.equal(free, torch.zeros(3))


def test_another_list_of_the_same_parameters_is_put_back_without_a_word(made):
    """The replaced list does not affect a step, but a later change in it would be missed."""
    _, optimizer, told = made()
    (group,) = optimizer.param_groups
    mine = group["params"]
    group["params"] = list(mine)
    optimizer.step()

    assert group["params"] is mine
    assert told == []


def test_parameters_of_one_element_are_known_by_what_they_are(made):
    """Two scalar parameters compare as equal if their values are; exchanged, each would use the other's rate."""
    first, second = (nn.Parameter(torch.ones(1)) for _ in range(2))
    configs = [GroupConfig("a", LRPolicy.CONSTANT, 0.1), GroupConfig("b", LRPolicy.CONSTANT, 0.5)]
    _, optimizer, told = made(config=configs, groups=[{"params": [first]}, {"params": [second]}])
    one, other = (group["params"] for group in optimizer.param_groups)
    one[0], other[0] = second, first
    for parameter in (first, second):
        parameter.grad = torch.ones(1)
    optimizer.step()

    assert (first.item(), second.item()) == (pytest.approx(0.9), 0.5)
    assert [violation.what for violation in told] == ["the group's parameters were replaced"] * 2


def test_the_history_of_two_optimizers_has_all_their_groups(made):
    """Each has the rate that its step used, also after one optimizer was released."""
    controller, optimizer, _ = made(LRPolicy.LINEAR)
    other = torch.optim.SGD(parameters(), lr=1.0)
    controller.register_optimizer("seed", other, GroupConfig("seed", LRPolicy.CONSTANT, 0.3))
    used = optimizer.param_groups[0]["lr"]
    step(optimizer, controller)
    controller.unregister_optimizer("seed")
    step(optimizer, controller)

    both, one = controller.lr_history
    assert both.group_lrs == {"host": used, "seed": 0.3}
    assert list(one.group_lrs) == ["host"]
    assert controller.row == tuple(controller.rates().values())
