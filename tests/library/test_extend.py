"""Another end of the training, for a real trainer: the bits of a run that was configured so, through any death."""

from __future__ import annotations

import functools

import pytest
from torch.utils.data import DataLoader

from tests.library.small import CONFIG, EPOCHS, STEPS_PER_EPOCH, Hooks, bits, data, loaders, made, network
from tests.recorded import events_of, of
from tolariad import Tolaria
from tolariad.core import messages as m
from tolariad.trainer.orders.reporter import Reporter

CONSTANT = {"learning_rate": {"base_lr": 0.01, "warmup_epochs": 0, "policy": "constant"}}


def train(run_dir, epochs=EPOCHS, hook=None, **config):
    """The bits of the weights, and the events."""
    tolaria, model = made(run_dir, **config), network()
    tolaria.train(model, *loaders(), epochs, task=Hooks(hook and functools.partial(hook, tolaria)))
    return bits(model), events_of(run_dir)


def steps_of(events):
    return [(one.step, one.epoch, one.batch, one.loss, one.rates) for one in of(events, m.StepCompleted)]


def ordered_at(step, **end):
    """A hook that orders the end once."""
    given = []

    def hook(tolaria, now):
        if now == step and not given:
            given.append(tolaria.extend(**end))
            assert given == [True]

    return hook


@pytest.fixture
def last_moment(monkeypatch):
    """Let an order arrive when the trainer has come to its end, and before the daemon hears of that."""
    orders = []
    report = Reporter.report

    def later(self, what):
        if isinstance(what, m.TrainingEndedReport) and orders:
            orders.pop()()
        return report(self, what)

    monkeypatch.setattr(Reporter, "report", later)
    return orders


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("short", "end", "whole"),
    [
        ({"epochs": 2}, {"epochs": 4}, {"epochs": 4}),
        ({"stop": {"steps": 11}}, {"steps": 19}, {"stop": {"steps": 19}}),
        ({"stop": {"steps": 11}}, {"epochs": 3}, {}),
        ({"stop": {"steps": 16}}, {"epochs": 3}, {}),
    ],
    ids=["epochs", "steps within an epoch", "to whole epochs", "steps at an epoch's end"],
)
def test_at_the_last_moment_training_goes_on_as_if_it_was_configured_so(tmp_path, last_moment, short, end, whole):
    """The trainer has reported its end already: that report is ignored, and no step, epoch or weight differs."""
    told = []

    def hook(tolaria, step):
        if not told:
            last_moment.append(lambda: told.append(tolaria.extend(**end)))
            told.append(None)

    found, events = train(tmp_path / "extended", hook=hook, **CONSTANT, **short)
    expected, calm = train(tmp_path / "calm", **CONSTANT, **whole)

    assert told == [None, True]
    assert found == expected
    assert steps_of(events) == steps_of(calm)
    for kind in (m.EpochStarted, m.EpochFinished):
        assert [one.epoch for one in of(events, kind)] == [one.epoch for one in of(calm, kind)]
    assert len(of(events, m.RunCompleted)) == 1


def test_an_earlier_end_is_a_prefix_of_the_run(tmp_path):
    """Rates keep the curve of the configured end, here a cosine, so the steps are those of the whole run."""
    _, events = train(tmp_path / "short", hook=ordered_at(3, epochs=2))
    _, calm = train(tmp_path / "calm")

    assert steps_of(events) == steps_of(calm)[: 2 * STEPS_PER_EPOCH]
    (completed,) = of(events, m.RunCompleted)
    assert (completed.step, completed.epochs) == (2 * STEPS_PER_EPOCH, 2)


@pytest.mark.sample(2)
@pytest.mark.parametrize("dies_at", [4, 18, 26, 34])
def test_a_death_after_the_order_changes_no_bit(tmp_path, dies_at):
    """The next trainer has the new end, runs again what the journal holds, and finds no difference.

    None dies in the first step after a checkpoint: if that one is committed, there is nothing to run again.
    """
    expected, calm = train(tmp_path / "calm", hook=ordered_at(3, epochs=5))
    order = ordered_at(3, epochs=5)

    def hook(tolaria, step):
        order(tolaria, step)
        if step == dies_at:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        train(tmp_path / "killed", hook=hook)
    found, events = train(tmp_path / "killed")

    assert found == expected
    assert steps_of(events) == steps_of(calm)
    assert len(of(events, m.StepCompleted)) == 5 * STEPS_PER_EPOCH
    assert [one.first_difference for one in of(events, m.RerunFinished)] == [None]
    assert len(of(events, m.LrGroupsRegistered)) == len(of(events, m.EndOrdered)) == 1


def test_an_end_that_has_passed_is_false(tmp_path):
    """And without a run there is nothing to extend."""
    said = []

    def hook(tolaria, step):
        if step == 9:
            said.extend([tolaria.extend(epochs=1), tolaria.extend(steps=8), tolaria.extend(), tolaria.extend(epochs=3)])

    train(tmp_path / "run", hook=hook)

    assert said == [False, False, False, True]
    assert not Tolaria(CONFIG, run_dir=tmp_path / "run").extend(epochs=9)


def test_a_complete_run_goes_on_with_more_epochs_and_without_a_word(tmp_path):
    """From its last checkpoint: with constant rates the weights are those of a run that was configured so."""
    train(tmp_path / "run", 2, **CONSTANT)
    found, events = train(tmp_path / "run", 4, **CONSTANT)
    expected, calm = train(tmp_path / "calm", 4, **CONSTANT)

    assert found == expected
    assert steps_of(events) == steps_of(calm)
    assert [one.keys for one in of(events, m.ConfigChanged)] == [("epochs",)]
    assert [one.epochs for one in of(events, m.RunCompleted)] == [2, 4]


def test_a_complete_run_goes_on_with_more_steps_and_without_a_word(tmp_path, caplog):
    """The cosine is over the epochs, so it stays as planned: the bits are those of a run that was configured so."""
    train(tmp_path / "run", stop={"steps": 11})
    found, events = train(tmp_path / "run", stop={"steps": 19})
    expected, calm = train(tmp_path / "calm", stop={"steps": 19})
    said = [record.getMessage() for record in caplog.records if record.name == "tolariad.run"]

    assert found == expected
    assert steps_of(events) == steps_of(calm)
    assert [one.keys for one in of(events, m.ConfigChanged)] == [("stop.steps",)]
    assert any("was complete after epoch 1, step 11, and goes on to epoch 3, at most step 19" in one for one in said)
    assert any("learning rates keep their curves: default (host_cosine) ends at" in one for one in said)


@pytest.mark.parametrize(
    ("change", "keys", "differs"),
    [
        ({"learning_rate": {"base_lr": 0.02, "warmup_epochs": 0}}, "learning_rate.base_lr", True),
        ({"detect": {"skip": False}}, "detect.skip", False),
    ],
    ids=["other rates", "equal all the same"],
)
def test_a_change_that_was_accepted_says_what_it_did_to_the_steps_run_again(tmp_path, caplog, change, keys, differs):
    """The figures are those of the re-run: how many steps there were, and how many of them differ."""

    def hook(tolaria, step):
        if step == 14:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        train(tmp_path / "run", hook=hook)
    config = {"tolaria": {**CONFIG["tolaria"], **change}}
    tolaria = Tolaria(config, run_dir=tmp_path / "run", accept_config=True)
    loader = DataLoader(data(), batch_size=12, shuffle=True)
    tolaria.train(network(), loader, DataLoader(data(48), batch_size=24), EPOCHS)
    (rerun,) = of(events_of(tmp_path / "run"), m.RerunFinished)
    said = [record.getMessage() for record in caplog.records if record.name == "tolariad.run"]

    assert rerun.compared > 1
    assert (rerun.first_difference is not None) == differs
    assert rerun.expected == f"changed: {keys}"
    count = f"Re-run finished: {rerun.compared} of {rerun.compared} re-run steps"
    words = f"{count} differ from the journal, as expected (changed: {keys}): " if differs else f"{count} equal the"
    assert sum(one.startswith(words) for one in said) == 1
    assert any(one.startswith(f"changed and recorded: {keys}") for one in said)


def test_another_plan_at_a_start_is_no_divergence(tmp_path, caplog):
    """More epochs for a run that is not complete: rates are computed anew, the re-run says so, and the run goes on."""

    def hook(tolaria, step):
        if step == 14:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        train(tmp_path / "run", hook=hook)
    _, events = train(tmp_path / "run", 5)
    (rerun,) = of(events, m.RerunFinished)
    said = [record.getMessage() for record in caplog.records if record.name == "tolariad.run"]

    assert rerun.expected == "changed: epochs"
    assert rerun.first_difference.field == "lr"
    assert [one.epochs for one in of(events, m.RunCompleted)] == [5]
    assert any("learning rates are computed anew for 40 steps: default (host_cosine) was" in one for one in said)


def test_a_free_key_leaves_the_re_run_exact(tmp_path):
    """Another cadence is taken over without a word, and a step that would differ is still a divergence."""

    def hook(tolaria, step):
        if step == 14:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        train(tmp_path / "run", hook=hook)
    _, events = train(tmp_path / "run", checkpoint={"min_gap_s": 5, "keep_last": 9}, keep_best="loss")
    (rerun,) = of(events, m.RerunFinished)

    assert (rerun.first_difference, rerun.expected) == (None, "")
    assert of(events, m.ConfigChanged)[0].keys == ("checkpoint.keep_last", "checkpoint.min_gap_s", "keep_best")
