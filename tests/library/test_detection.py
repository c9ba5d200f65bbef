"""Runs that get into trouble recover on their own, and end with the bits of a run that never met it."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from journal import Reader
from tests.library.test_library import CONFIG, bits, data, network
from tolariad import Tolaria, TrainingResult
from tolariad.core.decision import Accepted
from tolariad.core.vocabulary import Event, decode_event
from tolariad.core.vocabulary.checkpoints import RerunFinished
from tolariad.core.vocabulary.detection import InstabilityDetected
from tolariad.core.vocabulary.learning_rate import LrSet
from tolariad.core.vocabulary.rollback import RolledBack
from tolariad.core.vocabulary.steps import SkipReason, StepCompleted, StepSkipped

EPOCHS, STEPS_PER_EPOCH, SICK = 3, 8, 40


def poisoned(value: float) -> TensorDataset:
    """The data of a calm run with one sample of nonsense."""
    inputs, targets = data().tensors
    inputs = inputs.clone()
    inputs[SICK] = value
    return TensorDataset(inputs, targets)


def train(run_dir, dataset, hook=None, *, model=None, **config) -> TrainingResult:
    class Hooks:
        def on_step_end(self, model, step):
            if hook is not None:
                hook(step)

    tolaria = Tolaria({"tolaria": {**CONFIG["tolaria"], **config}}, run_dir=run_dir)
    loader = DataLoader(dataset, batch_size=12, shuffle=True)
    return tolaria.train(network() if model is None else model, loader, None, EPOCHS, task=Hooks())


def events_of(run_dir) -> list[Event]:
    return [decode_event(entry.event) for entry in Reader(run_dir / "journal")]


def of(events: list[Event], kind: type[Event]) -> list:
    return [event for event in events if isinstance(event, kind)]


@pytest.fixture(scope="module")
def skipped(tmp_path_factory):
    """Bits and events of the run that skips the batches with a sample that is not a number."""
    model, run_dir = network(), tmp_path_factory.mktemp("nan") / "run"
    assert train(run_dir, poisoned(float("nan")), model=model).phase == "completed"
    return bits(model), events_of(run_dir)


def test_a_batch_that_is_not_a_number_is_skipped_and_nothing_of_it_stays(skipped):
    """Once in each epoch; running statistics would be NaN for ever, parameters too."""
    parameters, events = skipped
    skips = of(events, StepSkipped)
    model = network()
    model.load_state_dict(
        {
            name: torch.frombuffer(bytearray(raw), dtype=model.state_dict()[name].dtype).view_as(
                model.state_dict()[name]
            )
            for name, raw in parameters.items()
        }
    )

    assert [(skip.epoch, skip.reason) for skip in skips] == [(n, SkipReason.NON_FINITE) for n in (1, 2, 3)]
    assert all(tensor.isfinite().all() for tensor in model.state_dict().values())
    assert [one.step for one in of(events, StepCompleted)] == list(range(1, EPOCHS * (STEPS_PER_EPOCH - 1) + 1))


def test_what_the_batch_held_does_not_matter(tmp_path, skipped):
    """Infinite instead of not a number: every draw of dropout and every statistic behind it is the same."""
    model = network()
    train(tmp_path / "run", poisoned(float("inf")), model=model)

    assert bits(model) == skipped[0]


def test_the_journal_says_what_was_found_and_what_was_done(skipped):
    """Each skip has the finding as its cause, with value, baseline and limit."""
    events = skipped[1]
    numbered = dict(enumerate(events, 1))
    for skip in of(events, StepSkipped):
        found = numbered[skip.cause]
        assert isinstance(found, InstabilityDetected)
        assert (found.finding.value, found.step, found.epoch, found.batch) == (
            *("non_finite", skip.step, skip.epoch, skip.batch),
        )


@pytest.mark.parametrize("at", [5, 12, 17])
def test_a_run_that_dies_behind_a_skip_resumes_to_the_bit(tmp_path, skipped, at):
    """Shortly after it, or long after: the re-run skips it again."""

    def hook(step):
        if step == at and not (tmp_path / "raised").exists():
            (tmp_path / "raised").touch()
            raise InterruptedError

    with pytest.raises(InterruptedError):
        train(tmp_path / "run", poisoned(float("nan")), hook)
    model = network()
    train(tmp_path / "run", poisoned(float("nan")), hook, model=model)

    assert bits(model) == skipped[0]
    assert all(one.first_difference is None for one in of(events_of(tmp_path / "run"), RerunFinished))


LONG = {"epochs": 12, "hot_at": 84}


def train_long(
    run_dir, *, model, hot: float | None, die_at: int | None = None, **config
) -> tuple[TrainingResult, list]:
    """Twelve epochs of the calm data; at one step a rate of `hot` is ordered, once; a death at `die_at` of branch 1."""
    tolaria = Tolaria(
        {"tolaria": {**CONFIG["tolaria"], "checkpoint": {"min_gap_s": 0, "throttle_mb_s": None}, **config}},
        run_dir=run_dir,
    )
    done = run_dir.parent / f"{run_dir.name}.done"

    class Hooks:
        def on_step_end(self, model, step):
            if hot is not None and step == LONG["hot_at"] and not done.exists():
                done.touch()
                group = tolaria._live.state.rates.groups[0].name
                assert isinstance(tolaria._live._order(LrSet(group=group, value=hot)), Accepted)
            if step == die_at and tolaria._live.state.rollbacks.done and not (run_dir.parent / "died").exists():
                (run_dir.parent / "died").touch()
                raise InterruptedError

    loader = DataLoader(data(), batch_size=12, shuffle=True)
    result = tolaria.train(model, loader, None, LONG["epochs"], task=Hooks())
    return result, events_of(run_dir)


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """The bits of the run in which nobody ordered anything."""
    model = network()
    train_long(tmp_path_factory.mktemp("calm") / "run", model=model, hot=None)
    return bits(model)


HOT = {"learning_rate": {"base_lr": 0.01, "warmup_epochs": 0, "max_order_factor": 0}}


def test_a_rate_ordered_far_too_high_is_gone_back_from(tmp_path, calm):
    """The loss explodes, the run goes back behind the order, and ends as if it had never been given."""
    model = network()
    result, events = train_long(tmp_path / "run", model=model, hot=1000.0, **HOT)
    (back,) = of(events, RolledBack)
    found = [one for one in of(events, InstabilityDetected) if one.asks]

    assert result.phase == "completed"
    assert len(found) == 1
    assert back.step < LONG["hot_at"]
    assert bits(model) == calm


def test_a_death_behind_the_way_back_changes_nothing(tmp_path, calm):
    """The re-run is on the new branch and finds what it found."""
    with pytest.raises(InterruptedError):
        train_long(tmp_path / "run", model=network(), hot=1000.0, die_at=86, **HOT)
    model = network()
    _, events = train_long(tmp_path / "run", model=model, hot=1000.0, **HOT)

    assert len(of(events, RolledBack)) == 1
    assert [one.first_difference for one in of(events, RerunFinished)] == [None]
    assert bits(model) == calm


def test_where_nothing_is_to_be_done_the_run_goes_on_and_the_journal_says_what_was_seen(tmp_path):
    """`detect.act: false`: no batch is skipped, nobody goes back, and each finding waits for its answer."""
    result, events = train_long(tmp_path / "run", model=network(), hot=1000.0, detect={"act": False}, **HOT)

    assert (result.phase, result.steps) == ("completed", LONG["epochs"] * STEPS_PER_EPOCH)
    assert of(events, InstabilityDetected)
    assert not of(events, RolledBack)
    assert not of(events, StepSkipped)
