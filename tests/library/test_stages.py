"""Stages that a task, a configuration or an order announces to a real trainer: recorded once, and obeyed."""

from __future__ import annotations

import pytest

from tests import order_events
from tests.library.inside import ordered, state_of
from tests.library.loops.programs import killed
from tests.library.small import EPOCHS, Hooks, bits, loaders, made, network
from tests.recorded import events_of, of, sound
from tolariad.core import messages as m
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.health.monitor import Monitor

BEGAN = order_events.acted(m.BeginStage)


class Task:
    """Announces by its attribute and in its hooks. `hook(step)` is called after each step."""

    stages = {3: "label smoothing on", 10: "another head"}  # noqa: RUF012 - as a user writes it

    def __init__(self, hook=lambda step: None):
        self._hook = hook

    def on_step_end(self, model, step, context):
        if step == 6:
            context.new_stage("augmentation")
        self._hook(step)

    def on_epoch_end(self, model, epoch, metrics, context):
        if epoch == 1:
            context.new_stage("harder batches")


PLANNED = {10: "another objective", 999: "never reached"}
ANNOUNCED = [
    (3, 1, "label smoothing on", m.BY_PROGRAM),
    (7, 1, "augmentation", m.BY_PROGRAM),
    (9, 2, "harder batches", m.BY_PROGRAM),
    (10, 2, "another head", m.BY_PROGRAM),
    (10, 2, "another objective", m.BY_CONFIGURATION),
]


def begun(folder):
    return [(one.applied_before_step, one.outcome.epoch, one.order.why, one.by) for one in of(events_of(folder), BEGAN)]


def train(folder, hook=lambda step: None, task=None, **options):
    model, tolaria = network(), made(folder, stages=PLANNED, **options)
    tolaria.train(model, *loaders(), EPOCHS, task=task or Task(hook))
    return bits(model)


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("calm") / "run"
    return train(folder), folder


def last_pieces(folder):
    return [(one.name, one.blake3) for one in of(events_of(folder), m.CheckpointCommitted)[-1].pieces]


@pytest.mark.sample(2)
@pytest.mark.parametrize("place", ["step:3", "step:6", "boundary:7", "step:8", "boundary:10", "step:10"])
def test_stages_of_a_task_are_recorded_once_over_a_death(tmp_path, calm, place):
    """By its attribute, its hooks and the configuration; the last checkpoint has the bits of the undisturbed run."""
    killed(lambda: train(tmp_path / "run"), place)
    assert train(tmp_path / "run") == calm[0]
    sound(tmp_path / "run")

    assert begun(calm[1]) == ANNOUNCED
    assert begun(tmp_path / "run") == ANNOUNCED
    assert last_pieces(tmp_path / "run") == last_pieces(calm[1])


def test_orders_that_may_make_the_loss_jump_let_the_detector_begin_anew(tmp_path, monkeypatch):
    """A stage, a higher rate, another end; not a lower rate. The state has them, and a start hears of them."""
    begun_anew, orders = (
        [],
        {
            2: m.LrSet(group="default", value=0.02),
            4: m.LrSet(group="default", value=0.01),
            6: m.Extend(epochs=2),
            8: m.AnnounceStage(text="new classes"),
        },
    )
    begin_anew = Monitor.begin_anew
    monkeypatch.setattr(Monitor, "begin_anew", lambda watch: (begun_anew.append(at[0]), begin_anew(watch)))
    at, seen = [0], []

    def hook(step):
        at[0] = step
        if step in orders:
            assert ordered(tolaria, orders[step])
        seen[:] = [(one.before_step, one.why) for one in state_of(tolaria).stages.begun]

    tolaria = made(tmp_path / "run", learning_rate={"base_lr": 0.01, "warmup_epochs": 0, "policy": "constant"})
    tolaria.train(network(), *loaders(), EPOCHS, task=Hooks(hook))

    assert [why for _, why in seen] == [
        "the rate of default was ordered to be 0.02",
        "another end of the training was ordered",
        "new classes",
    ]
    assert begun_anew == [step - 1 for step, _ in seen]


@pytest.mark.parametrize("stages", [{0: "a"}, {"soon": "a"}, {3: ""}, {3: 4}])
def test_stages_of_a_task_that_name_no_step_or_no_change_are_refused(tmp_path, stages):
    """Before training, with the form that they have."""
    task = Task()
    task.stages = stages

    with pytest.raises(SetupRefused, match="first update"):
        train(tmp_path / "run", task=task)


def test_parts_of_a_model_that_are_called_stages_are_no_announcement(tmp_path):
    """A task may be a module with such parts."""
    task = Task()
    task.stages = [1, 2]
    train(tmp_path / "run", task=task)

    assert begun(tmp_path / "run") == [ANNOUNCED[1], ANNOUNCED[2], ANNOUNCED[4]]
