"""A real run with a strategy: what it orders acts once, at one step, through deaths and rollbacks, to the bit."""

from __future__ import annotations

import os
from typing import ClassVar

import pytest

import tolariad.strategy
from tests import order_events
from tests.daemon.harness import is_gone
from tests.library.inside import written_at_once
from tests.library.seeds import hashed_at_once
from tests.library.small import EPOCHS, STEPS_PER_EPOCH, bits, made, network, train
from tests.library.test_fast_tier import SNAPSHOTS, Back
from tests.recorded import Stop, dies_at, events_of, of, sound
from tests.waiting import wait_for
from tolariad.core import messages as m
from tolariad.leyline import AdaptationCommand, CommandOptimizerAdjustment
from tolariad.trainer.checkpoints.restore import load

ASKED = {"strategy": "default"}
LIMITS = {"rollback": {"fast_path_timeout_ms": 60_000, "full_path_timeout_s": 60.0}}
SLOW = {"integration": {"tamiyo_timeout_s": 60.0}, "budgets": {"act": False}}


def adjust(id_, optimizer="", **values):
    """Return a command for hyper-parameters of an optimizer."""
    adjustment = CommandOptimizerAdjustment(optimizer_id=optimizer, hyperparameters=values)
    return AdaptationCommand(version=1, command_id=id_, command_type=3, optimizer_adjustment=adjustment)


class Scripted:
    """Counts its questions in its state, and gives the commands of an epoch by `script`."""

    script: ClassVar[dict[int, list[AdaptationCommand]]] = {}

    def __init__(self, *_):
        self.count = 0

    def step(self, packet):
        self.count += 1
        commands = [*self.script.get(packet.current_epoch, ()), adjust("count", eps=1e-8 * (1 + self.count))]
        # A command that comes twice acts once, whatever the branch; after a rollback it must be another one.
        place = f"{packet.training_metrics['branch']:.0f}.{packet.current_epoch}"
        return [_with_id(command, f"{place} {command.command_id}") for command in commands]

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


def _with_id(command, id_):
    named = AdaptationCommand()
    named.CopyFrom(command)
    named.command_id = id_
    return named


@pytest.fixture
def scripted(monkeypatch):
    """Put the scripted strategy in the place of the default policy."""
    monkeypatch.setattr(tolariad.strategy, "DefaultStrategy", Scripted)
    monkeypatch.setattr(
        Scripted,
        "script",
        {1: [adjust("a", weight_decay=0.2, beta1=0.8, lr=0.02)], 2: [adjust("b", weight_decay=0.05)]},
    )


def trained(run_dir, hook=None, **more):
    """Train with the strategy; return the model's bits and the events."""
    tolaria = made(run_dir, **{**ASKED, **SLOW, **LIMITS, **more})
    model = network()
    train(run_dir, hook(tolaria) if hook is not None else None, model=model, tolaria=tolaria)
    return bits(model), events_of(run_dir)


@pytest.fixture
def calm(scripted, tmp_path):
    return trained(tmp_path / "calm")


def acted(events):
    """Return what acted, at which step."""
    found = of(events, m.OrderActed)
    return [(type(event.order).__name__, event.applied_before_step, event.number) for event in found]


def test_ordered_hyper_parameters_change_the_updates_from_one_step_on(calm, tmp_path):
    """Rate, decay and a beta are those of the order; the run without the strategy ends with other bits."""
    found, events = calm
    other = network()
    train(tmp_path / "other", model=other)

    first = STEPS_PER_EPOCH + 1
    changed = of(events, order_events.acted(m.SetHyperparameters))
    assert [(event.applied_before_step, event.order.values) for event in changed[:2]] == [
        (first, {"weight_decay": pytest.approx(0.2), "beta1": pytest.approx(0.8)}),
        (first, {"eps": pytest.approx(2e-8)}),
    ]
    assert [event.order.value for event in of(events, order_events.acted(m.SetRate))] == [pytest.approx(0.02)]
    assert found != bits(other)
    assert of(events, m.AuditDiffered) == of(events, m.LrViolationDetected) == []


def test_a_breaker_is_opened_and_closed(scripted, monkeypatch, tmp_path):
    """Both are events with the strategy's reason."""
    opened, closed = (
        AdaptationCommand(
            version=1,
            command_id=state,
            command_type=4,
            circuit_breaker={"desired_state": f"CIRCUIT_STATE_{state}", "rationale": "noisy"},
            annotations={"breaker": "lr"},
        )
        for state in ("OPEN", "CLOSED")
    )
    monkeypatch.setattr(Scripted, "script", {1: [opened], 2: [closed]})
    _, events = trained(tmp_path / "run")
    found = [(event.breaker, event.state.value, event.actor.reason) for event in of(events, m.BreakerSet)]
    assert found == [("lr", "open", "noisy"), ("lr", "closed", "noisy")]


def test_every_part_of_the_boundary_is_measured(calm):
    """The daemon's parts in the answer, the trainer's in its tallies."""
    _, events = calm
    for answer in of(events, m.StrategyAnswered):
        spans, waits = answer.spans, answer.spans.waits
        each = [(getattr(spans, part), getattr(waits, part)) for part in ("assembly", "encoding", "answer", "check")]
        assert all(0 <= waited <= took and took > 0 for took, waited in each)
        assert 100 < answer.packet_bytes < 1000
    measured = {one.budget for event in of(events, m.BudgetsMeasured) for one in event.tallies}
    assert {"adaptation", "epoch_boundary"} <= measured


@pytest.mark.sample(2)
@pytest.mark.parametrize("at", [STEPS_PER_EPOCH, STEPS_PER_EPOCH + 1, STEPS_PER_EPOCH + 3, 2 * STEPS_PER_EPOCH])
def test_a_run_that_dies_ends_with_the_bits_of_one_that_never_did(calm, tmp_path, at):
    """Orders and the strategy's state are repeated by the re-run; nobody is asked a second time."""
    few = {"checkpoint_interval_epochs": 10}
    with pytest.raises(Stop):
        trained(tmp_path / "run", lambda _: dies_at(at), **few)
    found, _ = trained(tmp_path / "run", **few)
    events = sound(tmp_path / "run")

    assert found == calm[0]
    assert acted(events) == acted(calm[1])
    assert [event.epoch for event in of(events, m.StrategyAsked)] == list(range(1, EPOCHS))


@pytest.mark.parametrize("tier", list(m.Tier))
def test_a_rollback_takes_hyper_parameters_and_the_strategy_back(calm, tmp_path, monkeypatch, tier):
    """Every byte is compared after it. What is asked again gets the answer of the run that never went back."""
    hashed_at_once(monkeypatch.setattr)
    written_at_once(monkeypatch.setattr)
    # After a rollback to an epoch's end nobody is asked for the orders of that end again.
    to = "c000001" if tier is m.Tier.FULL else ""
    found, events = trained(tmp_path / "run", lambda tolaria: Back(tolaria, tier=tier, to=to), **SNAPSHOTS)

    (done,) = of(events, m.RolledBack)
    assert [event.vote for event in of(events, m.StrategyVoted)] == [m.Vote.AGREED]
    assert found == calm[0]
    held = [event.order.state for event in of(events, order_events.acted(m.KeepStrategyState))]
    assert held[-1] == [event.order.state for event in of(calm[1], order_events.acted(m.KeepStrategyState))][-1]
    assert done.from_step > done.step


def test_values_that_an_optimizer_refuses_change_nothing(scripted, monkeypatch, tmp_path):
    """Its own constructor says why; a name that it does not have is refused with those that it has."""
    wrong = [
        adjust("x", eps=-1.0),
        adjust("y", momentum=0.9),
        adjust("z", "generator", eps=1.0),
        adjust("v", amsgrad=1.0),
    ]
    monkeypatch.setattr(Scripted, "script", {1: wrong})
    _, events = trained(tmp_path / "run")
    whys = [event.why for event in of(events, order_events.aborted(m.SetHyperparameters))]

    assert len(whys) == 3
    assert "Invalid epsilon value" in whys[0]
    assert "has no hyper-parameter 'momentum'" in whys[1]
    assert "weight_decay" in whys[1]
    assert "amsgrad" in whys[2]
    (refused,) = of(events, m.CommandRefused)
    assert "there is no optimizer or group 'generator'" in refused.why
    assert all(set(event.order.values) == {"eps"} for event in of(events, order_events.acted(m.SetHyperparameters)))


def test_a_capture_holds_the_strategy_s_state(calm, tmp_path):
    """Of the epoch at whose end it was taken; a run without a strategy has none."""
    newest = max((tmp_path / "calm" / "checkpoints").glob("c*"))
    kept = of(calm[1], order_events.acted(m.KeepStrategyState))[-1].order.state
    assert load(newest, _manifest_of(calm[1], newest.name)).state["strategy"] == kept
    train(tmp_path / "plain")
    plain = max((tmp_path / "plain" / "checkpoints").glob("c*"))
    assert "strategy" not in load(plain, _manifest_of(events_of(tmp_path / "plain"), plain.name)).state


def _manifest_of(events, id_):
    return next(event.manifest for event in of(events, m.CheckpointCommitted) if event.id == id_)


MINE = """
import os
from tolariad.leyline import AdaptationCommand, CommandOptimizerAdjustment

print("made by", os.getpid())


class Mine:
    def step(self, packet):
        adjustment = CommandOptimizerAdjustment(hyperparameters={"eps": 1e-6 * packet.current_epoch})
        place = f"{packet.current_epoch}"
        return AdaptationCommand(version=1, command_id=place, command_type=3, optimizer_adjustment=adjustment)
"""


def test_a_strategy_of_one_s_own_answers_a_library_run_from_its_own_process(tmp_path, caplog):
    """Every question has an answer, the first one too; its output is logged; its process ends with the run."""
    (tmp_path / "mine.py").write_text(MINE)
    _, events = trained(tmp_path / "run", strategy=f"{tmp_path / 'mine.py'}:Mine")
    values = [event.order.values for event in of(events, order_events.acted(m.SetHyperparameters))]
    (said,) = [one for one in caplog.messages if one.startswith("strategy: made by ")]
    pid = int(said.rpartition(" ")[2])

    assert values == [{"eps": pytest.approx(1e-6 * epoch)} for epoch in range(1, EPOCHS)]
    assert of(events, m.StrategyTimedOut) == []
    assert pid != os.getpid()
    wait_for(lambda: is_gone(pid))


def test_a_strategy_that_cannot_be_started_is_said_and_training_goes_on(tmp_path):
    """A file that raises: no answer, the reason in the journal, and the parameters of a run without a strategy."""
    (tmp_path / "broken.py").write_text("raise OSError('no such table')")
    found, events = trained(tmp_path / "run", strategy=f"{tmp_path / 'broken.py'}:Mine")
    other = network()
    train(tmp_path / "plain", model=other)

    assert found == bits(other)
    assert "no such table" in of(events, m.StrategyTimedOut)[0].fallback
