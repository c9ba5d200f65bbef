"""A real daemon with a strategy of the user's own: what it orders acts, through kill -9, and its faults are said."""

from __future__ import annotations

import pytest

from tests import order_events
from tests.daemon.harness import SETS, of_type
from tests.recorded import sound
from tests.waiting import within
from tolariad.core import messages as m

EPOCHS = 3
OWN = '''
import time
from pathlib import Path

from tolariad.leyline import AdaptationCommand, CommandOptimizerAdjustment

HERE = Path(__file__).parent


def command(packet, name, **fields):
    place = f"{packet.training_metrics['branch']:.0f}.{packet.current_epoch}"
    return AdaptationCommand(version=1, command_id=f"{place} {name}", annotations={"reason": "as planned"}, **fields)


class Own:
    """Raises the weight decay after each epoch, names what does not exist, and counts its questions."""

    def __init__(self):
        self.count = 0

    def step(self, packet):
        self.count += 1
        while packet.current_epoch == 2 and (HERE / "hold").exists():
            (HERE / "asked").touch()
            time.sleep(0.01)
        adjust = CommandOptimizerAdjustment(hyperparameters={"weight_decay": 0.01 * self.count, "lr": 0.003})
        lie = CommandOptimizerAdjustment(optimizer_id="generator", hyperparameters={"lr": 1.0})
        return [
            command(packet, "lie", command_type=3, optimizer_adjustment=lie),
            command(packet, "decay", command_type=3, optimizer_adjustment=adjust),
        ]

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


class Sleeper(Own):
    """Never answers."""

    def step(self, packet):
        time.sleep(600)
'''


@pytest.fixture
def asked(start, tmp_path):
    """Start a daemon whose run has the strategy of this name."""
    (tmp_path / "own.py").write_text(OWN)

    def begin(name, own="Own", **sets):
        # A busy machine must not make it late if the test does not mean it to be.
        patient = {"integration.tamiyo_timeout_s": 60, "budgets.act": "false"}
        often = {"rng_seed": 3, "checkpoint_interval_epochs": 10, "checkpoint.min_gap_s": 0}
        chosen = patient | often | {"strategy": f"{tmp_path}/own.py:{own}"} | sets
        lines = [*SETS, *(f"{key}={value}" for key, value in chosen.items())]
        run_dir = tmp_path / name
        return run_dir, start(run_dir=run_dir, task="digits", epochs=EPOCHS, sets=lines, trainer_command=None)

    return begin


def steps(run_dir):
    return [(one.step, one.loss, one.lr) for one in of_type(run_dir, m.StepCompleted)]


def changed(run_dir):
    return [
        (one.applied_before_step, one.order.values)
        for one in of_type(run_dir, order_events.acted(m.SetHyperparameters))
    ]


def test_killed_while_the_strategy_is_asked_a_run_ends_as_one_that_never_was(asked, tmp_path):
    """The next start asks again, with the state of before, and before it makes an update; every step is the same."""
    calm_dir, calm = asked("calm")
    assert calm.wait() == 0
    (tmp_path / "hold").touch()
    run_dir, killed = asked("killed")
    assert within(60.0, (tmp_path / "asked").exists)
    killed.kill()
    (tmp_path / "hold").unlink()
    _, again = asked("killed")
    assert again.wait() == 0, again.stderr

    assert [one.epoch for one in of_type(run_dir, m.StrategyAsked)] == [1, 2, 2]
    assert [one.reason for one in of_type(run_dir, m.StrategyTimedOut)] == [m.NoAnswer.OVERTAKEN]
    sound(run_dir)
    assert [values["weight_decay"] for _, values in changed(run_dir)] == pytest.approx([0.01, 0.02])
    assert changed(run_dir) == changed(calm_dir)
    assert steps(run_dir) == steps(calm_dir)
    # What the strategy invents costs one command, and the rest of the answer acts.
    whys = [one.why for one in of_type(run_dir, m.CommandRefused)]
    assert len(whys) == EPOCHS - 1
    assert "there is no optimizer or group 'generator'" in whys[0]


def test_a_strategy_that_never_answers_costs_its_time_and_nothing_else(asked):
    """A question ends after the limit, and nothing is ordered: the run completes as one that asks nobody.

    The second one may find the process that was killed for the first not yet started again.
    """
    run_dir, daemon = asked("late", "Sleeper", **{"integration.tamiyo_timeout_s": 0.3})
    assert daemon.wait() == 0, daemon.stderr
    ends = of_type(run_dir, m.StrategyTimedOut)

    assert [one.epoch for one in ends] == [1, 2]
    assert ends[0].reason is m.NoAnswer.LATE
    assert ends[1].reason in (m.NoAnswer.LATE, m.NoAnswer.FAILED)
    assert of_type(run_dir, m.OrderGiven) == of_type(run_dir, m.StrategyCommanded) == []
