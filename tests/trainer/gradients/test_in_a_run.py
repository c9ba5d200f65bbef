"""Gradients of seeds in a run: clipped and dropped on their own, with auxiliary losses, the same after a restart."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from tests.trainer.conftest import config
from tests.trainer.seeds.test_seeds_in_a_run import orders
from tolariad.core.calc.seeds.stages import Stage
from tolariad.trainer.build import build
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.gradients import owners as tending
from tolariad.trainer.step.gradients import drop_gradients, forward_backward, update
from tolariad.trainer.step.measured import Transfer

TASKS = Path(__file__).parents[1] / "tasks"
EPOCHS = 2
# Both slots have a seed from the sixth update on: `outer` trains, `inner` is blended in, and is then shadowing.
MOVES = (
    ("inner", Stage.GERMINATED, 2),
    ("inner", Stage.TRAINING, 3),
    ("outer", Stage.GERMINATED, 4),
    ("outer", Stage.TRAINING, 5),
    ("inner", Stage.BLENDING, 6),
    ("inner", Stage.SHADOWING, 14),
)


def configured(task="Auxiliary", *, every=2, threshold=0.0, file="auxiliary", **more) -> bytes:
    """A short run; every second step is a check for any conflict."""
    conflict = {"method": "pcgrad", "threshold": threshold, "every": every} | more.pop("conflict", {})
    seeds = {"conflict": conflict, **more.pop("seeds", {})}
    return config(f"{TASKS / file}.py:{task}", epochs=EPOCHS, batch_size=5, seeds=seeds, **more)


@pytest.fixture
def trained(daemon_in):
    """Train with the moves; each cut ends a trainer after that step. Return the daemon and the last setup."""

    def train(name, *cuts, **options):
        daemon = daemon_in(name, EPOCHS, script_orders=orders(MOVES))
        for cut in cuts:
            daemon.exit_after_step = cut
            daemon.train_here(configured(**options))
        setup = daemon.train_here(configured(**options))
        assert daemon.ended
        return daemon, setup

    return train


@pytest.fixture
def grown(trained):
    """A setup with two seeds, and a batch: steps can be made by hand."""

    def grow(name="grown", **options):
        _, setup = trained(name, **options)
        torch.manual_seed(5)
        return setup, [(torch.randn(5, 6), torch.tensor([0, 1, 2, 0, 1]))]

    return grow


def norm(parameters) -> float:
    """The norm of the gradients of some parameters."""
    return torch.nn.utils.get_total_norm([one.grad for one in parameters if one.grad is not None]).item()


def seeds_of(setup):
    """The plots by name."""
    return {plot.name: plot for plot in setup.garden.growing}


def of_host(setup) -> list:
    """The parameters of the host."""
    return [one for owner in setup.host for group in owner.optimizer.param_groups for one in group["params"]]


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"conflict": {"method": "torchjd:PCGrad"}},
        {"accumulate": 2, "every": 1},
        {"precision": "fp16"},
        {"task": "Poisoned", "every": 3},
    ],
    ids=["pcgrad", "torchjd", "accumulate", "fp16", "not finite"],
)
def test_a_restart_comes_to_the_same_bits(trained, options):
    """Order of projection, dropped losses and counts depend on the step alone, wherever the run was cut."""
    if "torchjd" in str(options):
        pytest.importorskip("torchjd", reason="TorchJD is not installed (extra aggregators)")
    calm, setup = trained("calm", **options)
    cuts = (3, 6) if "accumulate" in options else (4, 7, 11, 16)

    cut, again = trained("cut", *cuts, **options)

    assert cut.files("end") == calm.files("end")
    assert [plot.state() for plot in again.garden.growing] == [plot.state() for plot in setup.garden.growing]


def test_auxiliary_losses_change_what_is_learned_and_are_told(trained):
    """The run differs from one without them. Their numbers are metrics of the step; a step without seeds has none."""
    with_them, setup = trained("with")
    without, _ = trained("without", task="Seeded", file="seeded")

    assert with_them.files("end") != without.files("end")
    names = [name for report in with_them.reports for name in getattr(report, "names", ())]
    assert {"host_loss", "num_active_seeds", "total_weight", "conflicts_detected", "max_seed_contribution"} <= set(
        names
    )
    assert setup.garden.active


def test_conflicts_are_told_at_checks_only(grown):
    """A step that does not compare has no number of conflicts: that is not the same as none."""
    setup, batches = grown()

    told = []
    for step in (1, 2):
        forward_backward(setup, batches, step)
        told.append(setup.metrics.so_far())
        setup.metrics.drop()
        drop_gradients(setup.owners)

    assert told[0]["conflicts_detected"] >= 1.0
    # The first layer, and the seeds' own parameters: the host's loss reaches them through the slots.
    assert told[0]["shared_parameters"] == 2 + sum(len(plot.parameters) for plot in setup.garden.growing)
    assert {"conflicts_detected", "shared_parameters"} & set(told[1]) == set()
    assert told[1]["num_active_seeds"] == 2.0


def test_seeds_without_losses_of_their_own_leave_the_hosts_gradients_alone(grown):
    """With and without clipping of seeds, the host has the same bits; it is never clipped by us."""
    setup, batches = grown(task="Seeded", file="seeded", seeds={"max_gradient_norm": 1e-6})
    expected = [one.clone() for one in host_gradients(setup, batches, tend=False)]

    found = host_gradients(setup, batches, tend=True)

    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert norm(of_host(setup)) > 1e-3
    for plot in setup.garden.growing:
        assert norm(plot.parameters) == pytest.approx(1e-6, rel=1e-3)


def host_gradients(setup, batches, *, tend):
    """Make the gradients of a step, with the same draws. Return those of the host."""
    drop_gradients(setup.owners)
    torch.manual_seed(9)
    held, setup.seed_gradients.tend = setup.seed_gradients.tend, setup.seed_gradients.tend if tend else _nothing
    forward_backward(setup, batches, 1)
    setup.seed_gradients.tend = held
    return [one.grad for one in of_host(setup) if one.grad is not None]


def _nothing(_norm) -> None:
    """Leave the gradients as they are."""


def test_a_host_with_auxiliary_losses_is_clipped_on_its_own(grown):
    """It is clipped to the limit, after its norm was measured for the detector; each seed has the limit for itself."""
    setup, batches = grown(seeds={"max_gradient_norm": 1e-3})

    found = forward_backward(setup, batches, 1)

    assert found.grad_norm > 1e-2
    assert norm(of_host(setup)) == pytest.approx(1e-3, rel=1e-2)
    assert all(norm(plot.parameters) == pytest.approx(1e-3, rel=1e-2) for plot in setup.garden.growing)


def test_a_host_within_the_limit_keeps_its_bits(grown):
    """Its norm is known already; a limit just above it changes nothing, one just below it scales every gradient."""
    setup, batches = grown()
    found = forward_backward(setup, batches, 1)
    free = host_gradients(setup, batches, tend=False)
    for factor, is_scaled in ((1.05, False), (1.005, False), (0.999, True)):
        setup.seed_gradients._limit = found.grad_norm * factor
        clipped = host_gradients(setup, batches, tend=True)
        assert all(torch.equal(one, other) for one, other in zip(clipped, free, strict=True)) is not is_scaled


def test_the_weight_of_a_stage_is_a_setting(grown):
    """Twice the weight is twice the contribution; a stage that has weight 0 by default can be fine-tuned."""
    names = ("total_weight", "num_active_seeds")
    usual, _ = grown()
    other, batches = grown("other", seeds={"stage_weights": {"SHADOWING": 1.0, "TRAINING": 0.0}})
    told = []
    for setup in (usual, other):
        logged = {}
        setup.metrics.log = lambda numbers, *_, **__: logged.update(numbers)  # noqa: B023
        forward_backward(setup, batches, 1)
        told.append([logged[name] for name in names])

    assert [plot.stage for plot in usual.garden.growing] == [Stage.SHADOWING, Stage.TRAINING]
    assert told == [[pytest.approx(1.6), 2.0], [pytest.approx(2.0), 1.0]]


def test_a_task_that_clips_is_not_clipped_twice(grown):
    """Its own limit holds for the host, ours for the seeds."""
    setup, batches = grown(task="Clipping", seeds={"max_gradient_norm": 1e-3})

    forward_backward(setup, batches, 1)

    assert norm(of_host(setup)) == pytest.approx(0.5, rel=1e-2)


def test_a_seed_with_bad_gradients_makes_no_update(grown):
    """It and its optimizer's state stay what they were, and it is counted. The host and the other seed are updated."""
    setup, batches = grown(task="Seeded", file="seeded")
    seeds = seeds_of(setup)
    seeds["inner"].parameters[0].register_hook(lambda gradient: gradient * math.inf)
    before = {name: [one.detach().clone() for one in plot.parameters] for name, plot in seeds.items()}
    counts = {name: plot.dropped for name, plot in seeds.items()}
    state = {key: value.clone() for key, value in next(iter(seeds["inner"].owner.optimizer.state.values())).items()}
    host = [one.detach().clone() for one in of_host(setup)]

    found = forward_backward(setup, batches, 1)
    update(setup, skip=False)

    assert math.isfinite(found.grad_norm)
    assert not changed(seeds["inner"].parameters, before["inner"])
    after = next(iter(seeds["inner"].owner.optimizer.state.values()))
    assert all(torch.equal(after[key], value) for key, value in state.items())
    assert changed(seeds["outer"].parameters, before["outer"])
    assert changed(of_host(setup), host)
    assert seeds["inner"].dropped == counts["inner"] + 1
    assert seeds["outer"].dropped == counts["outer"]


def changed(live, before) -> bool:
    """Whether a parameter has another value."""
    return any(not torch.equal(one, other) for one, other in zip(live, before, strict=True))


def test_a_bad_auxiliary_loss_is_counted_once_a_step(grown):
    """The seed still learns from the host's loss. Two micro-batches with a bad loss are one dropped update."""
    setup, [(inputs, targets)] = grown(task="Poisoned")
    inputs[0, 0] = 1.0
    seeds = seeds_of(setup)
    dropped = seeds["inner"].dropped

    found = forward_backward(setup, [(inputs, targets)] * 2, 1)
    update(setup, skip=False)

    assert math.isfinite(found.grad_norm)
    assert seeds["inner"].dropped == dropped + 1
    assert setup.seed_gradients.auxiliary.end_step() == (False, set())


def test_a_skipped_step_updates_no_seed(grown):
    """No parameter of any owner changes."""
    setup, batches = grown()
    before = [one.detach().clone() for one in setup.model.parameters()]

    forward_backward(setup, batches, 1)
    update(setup, skip=True)

    assert not changed(list(setup.model.parameters()), before)


def test_a_step_that_was_never_settled_is_forgotten(grown):
    """A rollback may commit at the gate. The next step may have seeds without gradients, and settles nothing of it."""
    setup, batches = grown(task="Seeded", file="seeded")
    norms = [plot.gradient_norm for plot in setup.garden.growing]
    forward_backward(setup, batches, 1)
    drop_gradients(setup.garden.owned_by_seeds())

    setup.seed_gradients.tend()
    setup.seed_gradients.settle()

    assert [plot.gradient_norm for plot in setup.garden.growing] == norms


def test_all_norms_come_in_one_transfer(grown, monkeypatch):
    """However many seeds there are, their norms are read once, and only after the host's update has begun."""
    setup, batches = grown(task="Seeded", file="seeded")
    order = []

    class Watched(Transfer):
        def read(self):
            order.append("read")
            return super().read()

    monkeypatch.setattr(tending, "Transfer", Watched)
    for owner in setup.owners:
        owner.optimizer.register_step_pre_hook(lambda *_, name=owner.name: order.append(name))
    forward_backward(setup, batches, 1)
    update(setup, skip=False)

    assert order == ["host", "read", "seed.inner", "seed.outer"]


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ("Stranger", "names the seed 'nobody'; the slots are inner, outer"),
        ("Numbers", "must return a list of tolariad.trainer.gradients.SeedGradientInfo"),
    ],
)
def test_losses_that_cannot_be_used_are_refused(grown, task, said):
    """The message names the method."""
    setup, batches = grown(task="Auxiliary")
    setup.seed_gradients.auxiliary._losses_of = getattr(
        __import__("tests.trainer.tasks.auxiliary", fromlist=[task]), task
    )().seed_losses

    with pytest.raises(SetupRefused, match=said):
        forward_backward(setup, batches, 1)


def test_a_method_that_cannot_be_used_is_refused_at_the_start():
    """TorchJD's name is looked up when the run is built, not in its first step with a seed."""
    pytest.importorskip("torchjd", reason="TorchJD is not installed (extra aggregators)")

    with pytest.raises(SetupRefused, match=r"seeds\.conflict: TorchJD has no aggregator 'Nothing'"):
        build(configured(conflict={"method": "torchjd:Nothing"}))
