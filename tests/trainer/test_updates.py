"""A step of several updates: the numbers are torch's, and the step is one, whatever happens in it."""

from __future__ import annotations

import copy
import math
import signal
from pathlib import Path

import pytest
import torch

from tolariad.core import messages as m
from tolariad.core.calc.settings.reading import ConfigError
from tolariad.trainer.build import build
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.orders.gate import Gate
from tolariad.trainer.probes.costs import costs
from tolariad.trainer.step.several import StepperOfUpdates, compute_updates
from tolariad.trainer.step.undo import UpdateBackup
from tolariad.trainer.step.updates import Updates

FILE = Path(__file__).with_name("tasks") / "updating.py"
# A step passes `step` after each of its three updates, and once more when it is complete.
MORE_POINTS = ("step:1", "step:27", "step:28", "gate:6")
CONSTANT = {"base_lr": 0.004, "warmup_epochs": 0, "policy": "constant"}


def task(name: str = "Adversaries") -> str:
    return f"{FILE}:{name}"


def bits(values) -> list[bytes]:
    return [value.detach().reshape(-1).view(torch.uint8).numpy().tobytes() for value in values]


def state_of(setup) -> list[bytes]:
    """Every bit of the parameters, buffers and optimizer states."""
    tensors = list(setup.model.state_dict().values())
    for owner in setup.owners:
        tensors += [value for held in owner.optimizer.state.values() for value in held.values()]
    return bits(tensors)


@pytest.mark.parametrize("options", [{}, {"precision": "bf16"}, {"name": "Clips"}], ids=str)
def test_the_updates_are_those_of_a_plain_loop_with_these_optimizers(configured, options):
    """Parameters and states, bit for bit: in bf16 no update uses weights from before the update in front of it."""
    name = task(options.pop("name", "Adversaries"))
    setup = build(configured(name, epochs=1, batch_size=8, learning_rate=CONSTANT, **options))
    theirs = copy.deepcopy(setup.model)
    optimizers, updates = setup.task.optimizers(theirs), Updates(setup)
    for step, batch in enumerate(setup.train.epoch(1, 0), 1):
        drawn = torch.get_rng_state()
        updates.begin(step)
        found = compute_updates(setup, batch, updates).read()
        setup.rates.advance(1)
        torch.set_rng_state(drawn)
        losses, norms = [], []
        made = setup.task.losses(theirs, batch)
        while True:
            with torch.autocast("cpu", torch.bfloat16, enabled=setup.settings.precision == "bf16"):
                name, loss, again = next(made, ("", None, False))
            if loss is None:
                break
            theirs.zero_grad()
            loss.backward(retain_graph=again)
            own = [p for group in optimizers[name].param_groups for p in group["params"]]
            for parameter in set(theirs.parameters()) - set(own):
                parameter.grad = None
            most = 0.05 if setup.clip is not None else math.inf
            norms.append(float(torch.nn.utils.clip_grad_norm_(theirs.parameters(), most)))
            optimizers[name].step()
            losses.append(loss.item())
        assert found.loss == sum(losses)
        assert found.grad_norm == pytest.approx(math.hypot(*norms), rel=1e-5)
        assert all(parameter.grad is None for parameter in setup.model.parameters())
    assert step == 5
    assert bits(setup.model.state_dict().values()) == bits(theirs.state_dict().values())


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "options",
    [{}, {"precision": "fp16"}, {"precision": "bf16"}, {"ema": {"decay": 0.9}}, {"audit": {"every_steps": 1}}]
    + [{"name": name} for name in ("Clips", "Poisoned", "SpikesLast", "Grows")],
    ids=lambda options: str(next(iter(options.values()), "plain")),
)
def test_a_run_that_was_cut_short_ends_as_one_that_was_not(resumes, configured, options):
    """The steps after the checkpoint come out the same, skipped ones too, and so do all files of the last one."""
    name = options.pop("name", "Adversaries")
    configuration = configured(task(name), epochs=3, batch_size=8, learning_rate=CONSTANT, **options)
    _, calm = resumes(configuration, 3)

    assert calm.of(m.AuditDiffered, m.LrViolationDetected) == []


@pytest.mark.parametrize("point", ["step:26", *(pytest.param(p, marks=pytest.mark.torture) for p in MORE_POINTS)])
def test_a_run_killed_between_two_updates_of_a_step_ends_as_one_that_was_not(daemon_in, configured, point):
    """The step is in the journal as a whole or not at all; it is made again from the start."""
    configuration = configured(task(), epochs=3, batch_size=8)
    calm, killed = daemon_in("calm", 3), daemon_in("killed", 3)
    assert calm.serve(calm.spawn(configuration)) == 0
    assert killed.serve(killed.spawn(configuration, point)) == -signal.SIGKILL
    assert killed.serve(killed.spawn(configuration)) == 0
    assert killed.files("end") == calm.files("end")
    assert [one.loss for one in killed.steps.values()] == [one.loss for one in calm.steps.values()]


def test_a_step_passes_the_gate_once_and_is_reported_once(daemon_in, configured, monkeypatch):
    """Three updates, one wait before the first of them, one report."""
    happened = []
    wait, end = Gate.wait, Updates.end
    monkeypatch.setattr(Gate, "wait", lambda gate: (happened.append("gate"), wait(gate))[1])
    monkeypatch.setattr(Updates, "end", lambda self, found: (happened.append(self.count), end(self, found))[1])
    daemon = daemon_in("run", 1)
    daemon.train_here(configured(task(), epochs=1, batch_size=8))
    assert happened == ["gate", 3] * 5
    assert sorted(daemon.steps) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("name", ["Poisoned", "PoisonedFirst", "SpikesLast"])
def test_a_finding_at_any_update_undoes_the_whole_step(configured, name):
    """State and buffers are bit for bit those before the step; the optimizers have no state that they did not have."""
    setup = build(configured(task(name), epochs=1, batch_size=8, learning_rate=CONSTANT))
    backup = UpdateBackup()
    updates, seen = Updates(setup, backup.keep), []
    for step, batch in enumerate(setup.train.epoch(1, 0), 1):
        before = state_of(setup)
        backup.begin()
        setup.watch.backup.keep()
        updates.begin(step, drops_unhealthy=True)
        found = compute_updates(setup, batch, updates).read()
        seen.append(found.loss)
        if not bool((batch[0] == 77.0).any()):
            assert not updates.is_dropped
            continue
        assert updates.is_dropped is (name != "SpikesLast")
        assert backup.put_back() is (name != "PoisonedFirst")
        setup.watch.backup.put_back()
        assert state_of(setup) == before
    assert max(seen) > 100.0 if name == "SpikesLast" else sum(map(math.isnan, seen)) == 1


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["Poisoned", "PoisonedFirst", "SpikesLast"])
def test_a_run_skips_the_step_and_goes_on_as_if_its_batch_were_not_there(daemon_in, configured, monkeypatch, name):
    """Each epoch has one skip, with its reason; it leaves every bit as it was, and the audit finds nothing."""
    begin, skip, before = StepperOfUpdates.begin, StepperOfUpdates._skip, []
    monkeypatch.setattr(
        StepperOfUpdates, "begin", lambda self, n: (before.append(state_of(self._setup)), begin(self, n))[1]
    )

    def skipped(self, *given):
        skip(self, *given)
        assert state_of(self._setup) == before[-1]

    monkeypatch.setattr(StepperOfUpdates, "_skip", skipped)
    daemon = daemon_in("run", 10)
    options = {"batch_size": 4, "learning_rate": CONSTANT, "audit": {"every_steps": 1}}
    trained = daemon.train_here(configured(task(name), epochs=10, **options))
    reasons = {skip.reason for skip in daemon.skips}

    assert reasons == {m.SkipReason.SPIKE if name == "SpikesLast" else m.SkipReason.NON_FINITE}
    if name != "SpikesLast":
        assert len(daemon.skips) == 10
    assert all(tensor.isfinite().all() for tensor in trained.model.state_dict().values())
    assert daemon.of(m.AuditDiffered) == []


def test_an_update_that_is_not_made_is_never_reported_as_a_step(daemon_in, configured):
    """Every batch is sick: after some skips the detector asks for more than a skip, and is told to go on."""
    daemon = daemon_in("run", 12)

    def also(daemon):
        for report in daemon.reports:
            if isinstance(report, m.InstabilityReport) and report.step not in told:
                told.append(report.step)
                daemon.end.send(m.GoOn(step=report.step))

    told: list[int] = []
    configuration = configured(task("Poisoned"), epochs=12, batch_size=40)
    daemon.train_here(configuration, also)
    assert told == [1]
    assert (daemon.steps, len(daemon.skips)) == ({}, 12)
    assert {skip.reason for skip in daemon.skips} == {m.SkipReason.NON_FINITE}


def test_the_loss_of_the_step_is_the_one_that_the_task_returns(configured):
    """Other numbers are metrics. If a loss of an update is not finite, that is the step's."""
    setup = build(configured(task("GivesLoss"), epochs=1, batch_size=8))
    updates = Updates(setup)
    updates.begin(1)
    batch = next(setup.train.epoch(1, 0))
    assert compute_updates(setup, batch, updates).read().loss == 2.5
    assert updates.metrics == {"loss": torch.tensor(2.5), "other": 1}
    updates.log("more", 3)
    assert setup.metrics.so_far() == {"other": 1.0, "more": 3.0}
    assert set(updates.losses) <= {"judge", "maker"}
    assert sum(updates.losses.values()) == pytest.approx(sum(updates._losses))
    updates.begin(2)
    updates.update("judge", setup.model["judge"](batch[0]).mean() * math.inf)
    assert not math.isfinite(updates.end({"loss": 1.0}).read().loss)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("NeverUpdates", "made no update; call run.update.name, loss. in it"),
        ("Misspells", "update.'juge'.: the optimizers are judge, maker; did you mean judge"),
        ("GivesText", "must return a dict of numbers by name; 'loss' is a str"),
        ("Detaches", r"update.'judge', loss.: the loss has no gradient. Give it as it was computed: not `loss.detach"),
        ("KeepsRun", "update.'judge'. was called outside of a step"),
    ],
)
def test_a_mistake_in_a_training_step_is_refused_by_name(daemon_in, configured, name, says):
    """With a sentence, and the run ends."""
    daemon = daemon_in("run", 1)
    with pytest.raises(SetupRefused, match=says):
        daemon.train_here(configured(task(name), epochs=1, batch_size=8))


def test_micro_batches_are_refused_before_training(configured):
    """A step that makes its own updates cannot be spread over several batches by us."""
    with pytest.raises(SetupRefused, match=r"accumulate is 2, but training_step.* makes its own"):
        build(configured(task(), epochs=1, batch_size=8, accumulate=2))


def test_such_a_task_needs_no_loss_and_is_checked_like_any_other(configured):
    """`tolariad check` makes a few of its steps."""
    setup = build(configured(task(), epochs=1, batch_size=8))
    assert not hasattr(setup.task, "loss")
    found = costs(setup)
    assert (found.steps_per_epoch, math.isfinite(found.loss)) == (5, True)


# -- optimizers of the configuration -----------------------------------------------------------------------------------

PARTS = {"judge": {"name": "adam", "betas": [0.5, 0.999], "base_lr": 0.004}, "maker": {"name": "sgd", "momentum": 0.9}}


def test_the_configuration_gives_each_part_of_the_model_an_optimizer(daemon_in, configured):
    """By the part's name, each at its own rate; the run is that of the task's own optimizers at these rates."""
    rates = {**CONSTANT, "base_lr": 0.001}
    configuration = configured(task("Configured"), epochs=1, batch_size=8, learning_rate=rates, optimizers=PARTS)
    setup = build(configuration)
    assert setup.rates.rates() == {"judge": 0.004, "maker": 0.001}
    assert {owner.name: type(owner.optimizer) for owner in setup.owners} == {
        "judge": torch.optim.Adam,
        "maker": torch.optim.SGD,
    }
    ours, theirs = daemon_in("ours", 1), daemon_in("theirs", 1)
    ours.train_here(configuration)
    theirs.train_here(configured(task(), epochs=1, batch_size=8, learning_rate=CONSTANT))
    assert [one.loss for one in ours.steps.values()] == [one.loss for one in theirs.steps.values()]


def test_patterns_and_groups_of_a_part_have_names_and_rates_of_their_own(configured):
    """A part may be what patterns match; its groups are named after it."""
    parts = {
        "outer": {"match": ["maker.*", "judge.3.*"], "groups": [{"match": "*.bias", "name": "biases", "base_lr": 0.5}]},
        "inner": {"match": "judge.0.*", "policy": "frozen", "base_lr": 0.0},
    }
    setup = build(configured(task("Configured"), epochs=1, batch_size=8, learning_rate=CONSTANT, optimizers=parts))
    assert setup.rates.rates() == {"inner": 0.0, "outer.biases": 0.5, "outer": 0.004}


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"judge": {}}, r"none of `optimizers` .judge. has maker.0.weight, maker.0.bias, .*; add a part"),
        ({"judge": {}, "maker": {"match": "*"}}, "judge.0.weight belongs to two of `optimizers`, judge and maker"),
        ({"judge": {}, "make": {}}, r"optimizers.make: the model has no part 'make' .* .its parts: maker, judge."),
        ({"judge": {}, "maker": {"match": ["maker.*", "x"]}}, "the pattern 'x' matches no parameter that is trained"),
        ({"the judge": {}, "maker": {}}, "'the judge' is not a name of letters"),
    ],
)
def test_what_leaves_open_which_optimizer_a_parameter_has_is_refused(configured, parts, says):
    """By name, before training."""
    with pytest.raises(SetupRefused, match=says):
        build(configured(task("Configured"), epochs=1, batch_size=8, optimizers=parts))


def test_optimizers_of_task_and_configuration_exclude_each_other(configured):
    """Neither is dropped in silence."""
    with pytest.raises(SetupRefused, match="both the configuration's `optimizers` and the task's optimizers"):
        build(configured(task(), epochs=1, batch_size=8, optimizers=PARTS))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"optimizers": {"a": {"lr": 0.1}}}, "optimizers.a.lr: is not set here; use base_lr"),
        ({"optimizers": {"a": {"name": "sgd", "betas": [0.1, 0.2]}}}, "optimizers.a.betas: sgd has no such argument"),
        ({"optimizers": {"a": {"base_lr": 1e-9}}}, "optimizers.a.base_lr: 1e-09 is below min_lr"),
        ({"optimizers": {"a": {}}, "optimizer": {"name": "sgd"}}, "optimizer: is not used if there are `optimizers`"),
    ],
)
def test_a_wrong_key_of_an_optimizer_is_refused_with_its_path(given, says):
    """Before anything starts."""
    from tolariad.config import load

    with pytest.raises(ConfigError, match=says):
        load({"tolaria": {"task": "digits", **given}})
