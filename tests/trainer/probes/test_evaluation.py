"""`Evaluate`: a checkpoint is evaluated as the run would evaluate it, on the task's test data."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.trainer.tasks.tested import FILE, points
from tolariad.trainer.probes.messages import Evaluate

UNSAVED = {"loss", "correct"}


def by_hand(setup, inputs, labels):
    """Evaluate a trained model in a plain loop of torch."""
    with torch.no_grad():
        logits = setup.model.eval()(inputs)
    loss = torch.nn.functional.cross_entropy(logits, labels)
    return {"loss": loss.item(), "correct": (logits.argmax(1) == labels).double().mean().item()}


@pytest.mark.parametrize("form", ["sums", "means", "one"])
def test_test_data_are_evaluated_as_a_plain_loop_does(trained, form):
    """In each of the three forms of `evaluate`; the last batch is smaller, and counts for less."""
    run = trained(task_options={"form": form})
    found, code = run.ask(Evaluate)
    expected = by_hand(run.setup, *points(25, 3))

    assert (code, found.data, found.samples, found.weights) == (0, "test", 25, "trained")
    assert {name: pytest.approx(expected[name], rel=1e-6) for name in UNSAVED & set(found.metrics)} == {
        name: value for name, value in found.metrics.items() if name in UNSAVED
    }
    assert "loss" in found.metrics
    assert found.metrics.get("state", 6.0) == 6.0  # the task's own state is restored


def test_validation_data_give_the_bits_of_the_run(trained):
    """If the task has no test data: the metrics are those that the run recorded, of trained and averaged weights."""
    for explicit in ({}, {"ema": {"decay": 0.5}}):
        run = trained("Untested", **explicit)
        found, code = run.ask(Evaluate)

        assert (code, found.data) == (0, "validation")
        assert found.metrics == run.daemon.validations[1].metrics
        assert found.weights == ("averaged" if explicit else "trained")


def test_the_moving_average_can_be_left_out(trained):
    """Both are evaluated on request, and differ; without an average, asking for it is refused."""
    run = trained(ema={"decay": 0.5})
    averaged, trained_weights = (run.ask(Evaluate, averaged=wanted)[0] for wanted in (True, False))
    refused, code = trained().ask(Evaluate, averaged=True)

    assert (averaged.weights, trained_weights.weights) == ("averaged", "trained")
    assert averaged.metrics != trained_weights.metrics
    assert trained_weights.metrics["loss"] == pytest.approx(by_hand(run.setup, *points(25, 3))["loss"], rel=1e-6)
    assert code == 78
    assert "leave --ema out" in refused.error


def test_a_model_that_grew_is_grown_again(trained):
    """The ledger's changes are repeated before the weights are copied."""
    run = trained("Widens")
    found, code = run.ask(Evaluate)

    assert run.setup.model[0].out_features == 10
    assert code == 0, found
    assert found.metrics["loss"] == pytest.approx(by_hand(run.setup, *points(25, 3))["loss"], rel=1e-6)


def test_numbers_that_are_not_finite_have_words(trained):
    """JSON has none of them."""
    found, code = trained(task_options={"form": "nan"}).ask(Evaluate)

    assert code == 0
    assert (found.metrics["broken"], found.metrics["high"]) == (None, None)
    assert found.metrics_state == {"broken": "nan", "high": "pos_inf"}


def test_optimizer_and_device_of_the_run_do_not_matter(trained, configured):
    """Weights are evaluated with a configuration that could not continue the run."""
    run = trained()
    other = configured(f"{FILE}:Tested", epochs=1, batch_size=25, optimizer={"name": "sgd"})

    assert run.ask(Evaluate, other)[0].metrics == {
        name: pytest.approx(value, rel=1e-6) for name, value in run.ask(Evaluate)[0].metrics.items()
    }


def test_what_the_task_raises_is_70_with_its_traceback(trained, configured):
    """In the middle of the data."""
    refused, code = trained().ask(Evaluate, configured(f"{FILE}:Raises", epochs=1, batch_size=10))

    assert code == 70
    assert refused.error == "the task raises ZeroDivisionError: lost"
    assert "tested.py" in refused.traceback


def test_a_checkpoint_of_another_model_or_with_damage_is_refused(trained, configured):
    """78 if the task builds another model, 65 if a byte differs; the error names the tensor, and the file."""
    run = trained()
    unfit, unfit_code = run.ask(Evaluate, configured("digits", epochs=1))
    weights = Path(run.weights.folder) / "model-00000.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    damaged, damaged_code = run.ask(Evaluate)

    assert (unfit_code, damaged_code) == (78, 65)
    assert "checkpoint end does not fit the model that the task builds" in unfit.error
    assert "checkpoint end does not verify: model-00000.safetensors: its BLAKE3 is" in damaged.error
    assert "--checkpoint" in damaged.hint
