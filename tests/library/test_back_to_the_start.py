"""P12: after a rollback to its start, a run of many short epochs is judged by its new branch only."""

from __future__ import annotations

from tests.library.small import Hooks, bits, loaders, made, network
from tests.recorded import events_of, findings, of
from tolariad.core import messages as m

EPOCHS, STEPS_PER_EPOCH = 50, 2
BACK_AT = (EPOCHS - 5) * STEPS_PER_EPOCH
# Slow enough that the first epochs answer less than half as well as the last ones.
CHANGED = {"learning_rate": {"base_lr": 0.01, "warmup_epochs": 0}, "checkpoint_interval_epochs": 20}


def train(run_dir, back_at: int = 0):
    """Return bits, events, and the answers to a rollback that is ordered once, after update `back_at`."""
    answers: list[bool] = []

    def hook(step):
        if step == back_at and not answers:
            answers.append(tolaria.rollback(0))

    tolaria, model = made(run_dir, **CHANGED), network()
    result = tolaria.train(model, *loaders(batch=48), EPOCHS, task=Hooks(hook))
    assert (result.phase, result.steps) == ("completed", EPOCHS * STEPS_PER_EPOCH)
    return bits(model), events_of(run_dir), answers


def test_a_rollback_to_the_start_after_many_epochs_goes_on_to_the_end_with_the_same_bits(tmp_path):
    """Only the ordered rollback, no emergency, no halt; every validation equals that of an undisturbed run."""
    calm, plain, _ = train(tmp_path / "calm")
    found, events, answers = train(tmp_path / "run", back_at=BACK_AT)
    (begun,), (back,) = of(events, m.RollbackBegun), of(events, m.RolledBack)
    accuracies = [one.metrics["accuracy"] for one in of(events, m.ValidationFinished)]
    before, after = accuracies[:-EPOCHS], accuracies[-EPOCHS:]

    assert answers == [True]
    assert (back.step, begun.to_step) == (0, 0)
    # The hook runs before its step is reported.
    assert back.from_step in (BACK_AT - 1, BACK_AT)
    # The bait: held against the average of the branch that was left, the first epochs would be a collapse.
    assert max(after[:2]) < 0.5 * min(before[-5:])
    assert findings(events) == of(events, m.EmergencyRaised) == of(events, m.RunFrozen) == []
    assert after == [one.metrics["accuracy"] for one in of(plain, m.ValidationFinished)]
    assert found == calm


def test_a_rollback_after_an_audited_update_accuses_nobody(tmp_path):
    """It overwrites the parameter that the audit holds until the next update: that is no change by other code."""
    answers: list[bool] = []

    def hook(step):
        if step == 3 and not answers:
            answers.append(tolaria.rollback(0))

    tolaria = made(tmp_path / "run", **CHANGED, audit={"every_steps": 1})
    tolaria.train(network(), *loaders(batch=48), 3, task=Hooks(hook))
    events = events_of(tmp_path / "run")

    assert (answers, len(of(events, m.RolledBack))) == ([True], 1)
    assert of(events, m.AuditDiffered) == []
