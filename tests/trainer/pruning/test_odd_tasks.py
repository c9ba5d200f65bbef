"""The analysis of odd tasks, by model, loss or importance: a layer is refused by name, and the rest is analysed."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.trainer.pruning.test_analysing import FREE, Trained
from tests.trainer.tasks.analysed import FILE
from tolariad.core.calc.pruning.analysis import refusal_of
from tolariad.trainer.pruning import importance

pytest.importorskip("torch_pruning", reason="torch-pruning (extra `pruning`) is not installed")


@pytest.fixture(scope="module")
def lossy(tmp_path_factory):
    """A small network of two layers that can be pruned."""
    return Trained(tmp_path_factory.mktemp("lossy"), f"{FILE}:Lossy", prune=FREE)


def refusals(answer):
    return dict(one.split(": ", 1) for one in answer.refused)


@pytest.mark.parametrize("estimator", ["fisher", "moments"])
def test_a_layer_before_an_lstm_is_refused_and_the_rest_is_analysed(tmp_path, estimator):
    """By name, with the reason. In training more is called: the layer that is read there alone stays too."""
    trained = Trained(tmp_path, f"{FILE}:Recurrent", prune={**FREE, "estimator": estimator})
    answer = trained.analyse(share=0.4, cap=0.4)

    assert [one.name for one in answer.groups] == ["b"]
    assert answer.units.keys() == {"b"}
    assert "rnn is recurrent" in refusals(answer)["a"]
    assert "is recurrent" in refusals(answer)["rnn"]
    assert "aux" in refusals(answer)["c"]
    assert refusal_of(replace(trained.request, share=0.4, cap=0.4), answer, trained.prune().prune) == ""


def test_a_layer_whose_weights_the_loss_reads_by_itself_is_refused(tmp_path):
    """Its columns are those of `a`: without one of them the loss fails, although the model does not."""
    answer = Trained(tmp_path, f"{FILE}:ReadsWeights", prune=FREE).analyse(share=0.4, cap=0.4)

    assert [one.name for one in answer.groups] == ["b"]
    assert "without them the task's loss fails" in refusals(answer)["a"]


def test_a_model_that_chooses_layers_by_its_data_is_traced_with_as_many_as_show_them(tmp_path):
    """A few samples take another way than a batch. A layer that it did not use may have channels of its width."""
    answer = Trained(tmp_path, f"{FILE}:Switched", prune=FREE).analyse(share=0.4, cap=0.4)

    assert answer.groups == ()
    assert "low may have its channels too" in refusals(answer)["high"]
    assert "low may have its channels too" in refusals(answer)["a"]
    assert refusals(answer)["never"] == "the model's outputs do not depend on it"


@pytest.mark.parametrize(("estimator", "left"), [("fisher", ["b"]), ("magnitude", [])])
def test_a_layer_whose_importance_is_no_number_is_refused_alone(lossy, monkeypatch, estimator, left):
    """The weights of `b` are infinite. They read the units of `a`; the magnitudes are of both sides."""
    exact = importance._by_unit

    def broken(tensor, one):
        return exact(tensor, one) * (float("inf") if one.path == "b.weight" else 1.0)

    monkeypatch.setattr(importance, "_by_unit", broken)
    answer = lossy.analyse(lossy.prune(estimator=estimator), share=0.4, cap=0.4)

    assert [one.name for one in answer.groups] == left
    assert list(answer.units) == left
    assert f"by prune.estimator: {estimator}, or not a finite one" in refusals(answer)["a"]
