"""Validations within an epoch: exact over deaths and rollbacks, and judged by best, patience and plateaus."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from tests.library.loops.programs import die, killed
from tests.library.small import CONFIG, EPOCHS, STEPS_PER_EPOCH, bits, data, loaders, network
from tests.recorded import Stop, dies_at, events_of, of, sound
from tolariad import Tolaria
from tolariad.core import messages as m
from tolariad.core.messages.sentences.text import sentence
from tolariad.core.state.run_state import RunState, fold
from tolariad.library.loop_task import LoopMisused

EVERY, STEPS = 3, EPOCHS * STEPS_PER_EPOCH
# Every third step, and each epoch's end. Step 24 is both, and is validated once.
PLACES = [(1, 3), (1, 6), (1, 0), (2, 1), (2, 4), (2, 7), (2, 0), (3, 2), (3, 5), (3, 0)]
# A rate that is too high, so that the loss does not always improve, and is lowered at each plateau.
RATES = {"base_lr": 0.3, "warmup_epochs": 0, "policy": "morpho_adaptive", "plateau_patience": 0, "plateau_factor": 0.5}


class Task:
    """Calls `after(step)` after each step."""

    def __init__(self, after=lambda step: None):
        self.after = after

    def on_step_end(self, model, step):
        self.after(step)


def run_of(folder, **options) -> Tolaria:
    given = {"learning_rate": RATES, "validate": {"every_steps": EVERY}, "keep_best": "loss", **options}
    return Tolaria({"tolaria": {**CONFIG["tolaria"], **given}}, run_dir=folder)


def train(folder, after=lambda step: None, **options):
    """Return the model after training, or after the death of the trainer."""
    model = network()
    run_of(folder, **options).train(model, *loaders(), EPOCHS, task=Task(after))
    return bits(model)


def facts(folder):
    """What must be the same: each validation and its place; each step's rates; plateaus; the best one."""
    events = sound(folder)
    best = [(e.epoch, e.batch, e.value) for e in of(events, m.ValidationImproved)]
    return (
        [(e.epoch, e.batch, e.step, e.metrics) for e in of(events, m.ValidationFinished)],
        [(e.step, e.loss, e.rates) for e in of(events, m.StepCompleted)],
        [(e.epoch, e.applied_before_step, e.rate) for e in of(events, m.PlateauReached)],
        best,
    )


def best_of(folder):
    """The place of the checkpoint that is kept as the best."""
    return [(e.epoch, e.batch) for e in of(events_of(folder), m.CheckpointCommitted) if e.best][-1]


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """The undisturbed run: bits, facts, the best one's checkpoint."""
    folder = tmp_path_factory.mktemp("calm") / "run"
    return train(folder), facts(folder), best_of(folder)


def test_it_validates_every_few_steps_and_at_each_epochs_end(calm, tmp_path):
    """Each validation lowers the rate from its next step on, and the best one within an epoch has a checkpoint."""
    _, (validations, steps, plateaus, best), kept = calm
    assert [(epoch, batch) for epoch, batch, _, _ in validations] == PLACES
    assert [step for _, batch, step, _ in validations if batch] == [3, 6, 9, 12, 15, 18, 21]
    within = {step + 1 for _, batch, step, _ in validations if batch}
    assert within & {before for _, before, _ in plateaus}
    changed = {step for (_, _, was), (step, _, now) in pairwise(steps) if was != now}
    assert {before for _, before, _ in plateaus if before <= STEPS} <= changed | {1}
    epoch, batch, _ = best[-1]
    assert kept == ((epoch, batch) if batch else (epoch + 1, 0))
    assert any(batch for _, batch, _ in best)


def test_a_run_that_does_not_validate_within_epochs_has_other_rates(calm, tmp_path):
    """So the comparison above would notice if a validation judged no plateau."""
    train(tmp_path / "run", validate={})
    validations, steps, _, _ = facts(tmp_path / "run")
    assert [(epoch, batch) for epoch, batch, _, _ in validations] == [(1, 0), (2, 0), (3, 0)]
    assert steps != calm[1][1]


@pytest.mark.sample(3)
@pytest.mark.parametrize("gap", [0, 1000], ids=["dense", "rare"])
@pytest.mark.parametrize("at", range(1, STEPS))
def test_a_death_after_any_step_leaves_the_same_validations_rates_and_best(tmp_path, calm, at, gap):
    """Of those that the journal has none is made again. With rare checkpoints many steps are."""
    options = {"checkpoint": {"min_gap_s": gap}, "checkpoint_interval_epochs": 1 if gap == 0 else 1000}
    with pytest.raises(Stop):
        train(tmp_path / "run", dies_at(at), **options)
    again = train(tmp_path / "run", **options)
    assert again == calm[0]
    assert facts(tmp_path / "run") == calm[1]
    assert best_of(tmp_path / "run") == calm[2]


# With the batches of each validation and the pieces of each checkpoint that are written until the program is killed.
POINTS = {
    "in a validation": "validation:5",
    "before its checkpoint": "capture:4",
    "while that is written": "checkpoint_file:11",
    "when it is published": "publish:3",
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("point", POINTS.values(), ids=POINTS)
def test_a_kill_in_a_validation_or_while_the_best_is_saved_costs_neither(tmp_path, calm, point):
    """The one that did not end is made again. The best one's checkpoint is written in the re-run."""
    folder = tmp_path / "run"
    killed(lambda: train(folder, checkpoint={"min_gap_s": 1000}), point)
    again = train(folder, checkpoint={"min_gap_s": 1000})
    assert (again, facts(folder), best_of(folder)) == calm


def test_the_checkpoint_of_the_best_is_made_again_where_a_re_run_passes_it(tmp_path, calm):
    """Its disk was bad, and then the program was killed. The fold saves what belongs to that place."""
    folder, rare = tmp_path / "run", {"checkpoint": {"min_gap_s": 1000}}
    # The first checkpoint of the run is written before any step; the second is that of the first best validation.
    killed(lambda: train(folder, lambda step: die() if step == 5 else None, **rare), "publish:2!EIO")
    before = events_of(folder)
    again = train(folder, **rare)
    events = events_of(folder)
    copied = next(e for e in of(events[len(before) :], m.StateCopied) if e.id.startswith("c"))
    state = fold(RunState(), events[: events.index(copied) + 1])

    assert not [e for e in of(before, m.CheckpointCommitted) if e.best]
    assert (copied.epoch, copied.batch, copied.step) == (1, 3, 3)
    assert state.progress.rerun is not None
    assert state.copies.held[copied.id].limits.best_place == (1, 3)
    assert (again, facts(folder)) == calm[:2]


@pytest.mark.parametrize("patience", [2, 3], ids=["at an epoch's end", "within one"])
def test_patience_counts_validations_and_ends_the_run_at_the_one_that_used_it_up(tmp_path, patience):
    """No step is made after it, and none by the next start. The first validation is the best here."""
    options = {"stop": {"patience": patience}, "keep_best": "accuracy", "learning_rate": {"base_lr": 3.0}}
    train(tmp_path / "run", **options)
    train(tmp_path / "run", **options)
    events = sound(tmp_path / "run")
    (reached,), (best,) = of(events, m.LimitReached), of(events, m.ValidationImproved)

    assert (reached.limit, best.epoch, best.batch) == (m.Limit.PATIENCE, *PLACES[0])
    assert [(e.epoch, e.batch) for e in of(events, m.ValidationFinished)] == PLACES[: patience + 1]
    assert of(events, m.StepCompleted)[-1].step == of(events, m.ValidationFinished)[-1].step == reached.step
    assert of(events, m.RunCompleted)


def test_a_rollback_within_an_epoch_validates_again_what_lies_after_its_target(tmp_path, calm):
    """And the best one is the best of the line that is left."""
    tolaria, back = run_of(tmp_path / "run"), []

    def go_back(step):
        if step == 14 and not back:
            back.append(tolaria.rollback(1))

    model = network()
    tolaria.train(model, *loaders(), EPOCHS, task=Task(go_back))
    events = events_of(tmp_path / "run")
    (rolled,) = of(events, m.RolledBack)
    after = events[events.index(rolled) :]
    assert bits(model) == calm[0]
    assert [(e.epoch, e.batch) for e in of(after, m.ValidationFinished)] == PLACES[3:]
    left = [place for place in calm[1][3] if place[:2] in PLACES[3:]]
    assert [(e.epoch, e.batch, e.value) for e in of(after, m.ValidationImproved)] == left


def test_a_change_of_the_interval_re_runs_the_plateaus_that_the_journal_has(tmp_path):
    """The new interval holds from the first new step on; it needs no flag."""
    rare = {"checkpoint": {"min_gap_s": 1000}, "checkpoint_interval_epochs": 1000, "keep_best": None}
    with pytest.raises(Stop):
        train(tmp_path / "run", dies_at(14), **rare)
    train(tmp_path / "run", validate={"every_steps": 4}, **rare)
    validations, *_ = facts(tmp_path / "run")
    assert [step for _, batch, step, _ in validations if batch] == [3, 6, 9, 12, 20]


def test_the_words_of_a_validation_say_where_it_was(calm):
    """Within an epoch by the step, after it by the epoch."""
    within = m.ValidationFinished(epoch=2, step=12, metrics={"loss": 0.5}, samples=48, seconds=0.1, batch=4)
    assert sentence(within) == "Validation after step 12, in epoch 2: loss 0.5 (48 samples)."
    best = m.ValidationImproved(epoch=2, metric="loss", value=0.5, batch=4, step=12)
    assert sentence(best) == "Step 12 is the best so far: loss 0.5."


# -- a loop of one's own -----------------------------------------------------------------------------------------------


def loop(folder, after=lambda step: None, *, at_the_end=True, **options):
    """A loop that validates by itself after every third step, and keeps the best value that it has seen."""
    model, kept = network(), {"best": float("inf"), "seen": []}
    given = {"learning_rate": RATES, "keep_best": "loss", **options}
    run = Tolaria({"tolaria": {**CONFIG["tolaria"], **given}}, run_dir=folder).run(model, None, loader())
    run.keep("kept", kept)
    for epoch in run.epochs(EPOCHS):
        for inputs, targets in run.batches():
            run.step(cross_entropy(model(inputs), targets))
            step = (epoch - 1) * STEPS_PER_EPOCH + run.batch + 1
            if step % EVERY == 0:
                loss = measured(model)
                run.validated(loss=loss)
                # After the call: a checkpoint of the best must hold this too.
                kept["best"] = min(kept["best"], loss)
                kept["seen"].append(loss)
            after(step)
        if at_the_end:
            run.validated(loss=measured(model))
    return bits(model), kept


def loader():
    return DataLoader(data(), batch_size=12, shuffle=True)


def measured(model) -> float:
    model.eval()
    with torch.no_grad():
        loss = cross_entropy(model(data(48).tensors[0]), data(48).tensors[1]).item()
    model.train()
    return loss


@pytest.fixture(scope="module")
def calm_loop(tmp_path_factory):
    folder = tmp_path_factory.mktemp("calm") / "run"
    return loop(folder), facts(folder), best_of(folder)


def test_a_loop_may_validate_after_any_step_and_judges_plateaus_there(calm_loop):
    """Its last validation, at the last batch of the last epoch, is followed by the epoch's own."""
    _, (validations, _, plateaus, best), _ = calm_loop
    assert [(epoch, batch) for epoch, batch, _, _ in validations] == PLACES
    assert {before - 1 for _, before, _ in plateaus} & {3, 6, 9, 12, 15, 18, 21}
    assert any(batch for _, batch, _ in best)


@pytest.mark.sample(3)
@pytest.mark.parametrize("at", range(1, STEPS))
def test_a_loop_that_is_killed_after_any_step_goes_on_to_the_same_bits(tmp_path, calm_loop, at):
    """What the loop keeps, too: a best one's checkpoint is taken when the body of the loop has ended."""
    killed(lambda: loop(tmp_path / "run", lambda step: die() if step == at else None))
    assert (loop(tmp_path / "run"), facts(tmp_path / "run"), best_of(tmp_path / "run")) == calm_loop


def test_a_loop_that_validates_by_steps_only_needs_no_validation_at_an_epochs_end(tmp_path):
    """That of the epoch's last batch is the epoch's. Patience does not count the ends of other epochs."""
    loop(tmp_path / "run", at_the_end=False, stop={"patience": 9})
    validations, *_ = facts(tmp_path / "run")
    assert [(epoch, batch) for epoch, batch, _, metrics in validations if metrics] == [
        place for place in PLACES if place[1] or place == (3, 0)
    ]
    assert not of(events_of(tmp_path / "run"), m.LimitReached)


def test_a_validation_amid_a_step_or_a_second_one_is_refused(tmp_path):
    """Gradients of some of its batches are there, and a checkpoint of the best could not hold them."""

    def misused(folder, accumulate, times):
        model = network()
        config = {**CONFIG["tolaria"], "accumulate": accumulate}
        run = Tolaria({"tolaria": config}, run_dir=tmp_path / folder).run(model, None, loader())
        for _ in run.epochs(EPOCHS):
            for inputs, targets in run.batches():
                run.step(cross_entropy(model(inputs), targets))
                for _ in range(times):
                    run.validated(loss=1.0)

    with pytest.raises(LoopMisused, match="amid a step"):
        misused("amid", 2, 1)
    with pytest.raises(LoopMisused, match="twice for one step"):
        misused("twice", 1, 2)
