"""The analysis of a checkpoint, in this process: what it answers, what it leaves alone, and what it refuses."""

from __future__ import annotations

import json
import random

import pytest
import torch
from msgspec.structs import replace
from safetensors import safe_open

from tests.trainer.conftest import FakeDaemon, config
from tests.trainer.pruning.in_a_run import AFTER, EPOCHS, FIRST, SECOND, TASK, scripted
from tests.trainer.tasks.analysed import FILE
from tolariad.core import messages as m
from tolariad.core.calc.pruning import verdict
from tolariad.core.calc.pruning.analysis import AnalysisRequest, refusal_of
from tolariad.core.calc.pruning.known import KnownImportance
from tolariad.core.calc.pruning.phase import PruningPhase
from tolariad.core.calc.pruning.verdict import PruningDecision
from tolariad.core.calc.seeds.stages import Stage
from tolariad.core.calc.settings.rules import read_resolved, resolved_json
from tolariad.storage.importance import read_importance
from tolariad.storage.tensor_file import parse
from tolariad.trainer.pruning import validation, watch, worker
from tolariad.trainer.pruning.analysing import SAMPLED_UNITS, analyse
from tolariad.trainer.pruning.history import read_history, stability, write_history
from tolariad.trainer.pruning.plan import read_plan
from tolariad.trainer.pruning.units import PruningRefused

pytest.importorskip("torch_pruning", reason="torch-pruning (extra `pruning`) is not installed")

# Layers of these tests are narrow.
FREE = {"min_channels": 2, "max_layer_share_per_cycle": 0.5, "min_samples": 100}


class Trained:
    """A run that was trained by the fake daemon, and requests about its last checkpoint."""

    def __init__(self, folder, task, epochs=1, orders=(), **explicit):
        self.config = config(task, **{"epochs": epochs, "batch_size": 20, **explicit})
        self.run = folder
        self.daemon = FakeDaemon(folder, epochs, script_orders=orders)
        self.daemon.train_here(self.config)
        last = self.daemon.committed[-1]
        self.request = AnalysisRequest(
            cycle=1,
            checkpoint=last.id,
            manifest=last.manifest,
            epoch=epochs,
            phase=PruningPhase.ACTIVE_PRUNING,
            share=0.1,
            cap=0.2,
            output="importance/p000001.safetensors",
        )

    def prune(self, **prune):
        return replace(read_resolved(self.config), prune=replace(read_resolved(self.config).prune, **prune))

    def analyse(self, settings=None, **fields):
        given = resolved_json(settings) if settings is not None else self.config
        return analyse(self.run, given, replace(self.request, **fields), 0.0)


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """The CNN of the digits, after two epochs."""
    return Trained(tmp_path_factory.mktemp("digits"), "digits", 2, batch_size=64, task_options={"model": "cnn"})


@pytest.fixture(scope="module")
def lossy(tmp_path_factory):
    """A small network whose task has a loss only, with a moving average of the weights."""
    return Trained(tmp_path_factory.mktemp("lossy"), f"{FILE}:Lossy", prune=FREE, ema={"decay": 0.9})


def timeless(answer):
    return replace(answer, seconds=0.0, cpu_seconds=0.0, measured=replace(answer.measured, memory=None))


def test_the_default_ranks_the_channels_of_the_digits_network(digits):
    """Rank correlation of at least 0.5 with the measured change of the loss, on 16 channels; the checks pass."""
    answer = digits.analyse()
    plan = read_plan(answer.plan)

    assert answer.decision is PruningDecision.GO
    assert answer.correlation >= 0.5
    assert (answer.sampled, answer.estimator) == (SAMPLED_UNITS, "fisher")
    # For each channel: 144 weights of its own, a bias, scale and shift, and 16 positions that ten outputs read.
    of_channel = 16 * 9 + 1 + 2 + 16 * 10
    # A tenth of 10 026 parameters; the layer of 16 is at its floor.
    assert answer.parameters == 10_026
    assert (list(answer.units), len(answer.units["5"])) == (["5"], 1_002 // of_channel)
    assert (plan.units, plan.masks.sha256) == (answer.units, answer.masks_sha256)
    assert refusal_of(digits.request, answer, digits.prune().prune) == ""
    assert answer.refused == ("10: its channels are outputs of the model",)
    assert answer.samples >= 1000
    assert answer.measured.accuracy_before > 0.5
    assert answer.measured.loss_before is None
    assert 0.0 < answer.measured.spread < 0.1
    assert 0.0 < answer.measured.memory < 1.0
    assert answer.parameters_masked == plan.masks.count == 3 * of_channel


def test_memory_that_was_full_before_the_masks_is_not_held_against_them(lossy, monkeypatch):
    """As in the safety window: only if it was within the limit without them."""
    shares = []
    for module in (watch, validation):
        monkeypatch.setattr(module, "memory_in_use", lambda device: shares.pop(0) if len(shares) > 1 else shares[0])
    shares[:] = [0.95]
    full = lossy.analyse()
    shares[:] = [0.5, 0.95]
    filled = lossy.analyse()

    assert full.decision is not PruningDecision.NO_GO
    assert full.measured.memory is None
    assert (filled.decision, filled.measured.memory) == (PruningDecision.NO_GO, 0.95)
    assert "95% of the memory are in use" in filled.reasons[-1]


def test_an_analysis_is_a_pure_function_of_its_checkpoint(lossy):
    """Two analyses are the same for any state of the generators; the checkpoint's files are as before."""
    files = lossy.daemon.files(lossy.request.checkpoint)
    first = lossy.analyse()
    torch.manual_seed(99)
    random.seed(99)
    second = lossy.analyse(cycle=1)

    assert timeless(first) == timeless(second)
    assert lossy.daemon.files(lossy.request.checkpoint) == files


def test_a_task_without_an_accuracy_is_judged_by_its_loss(lossy):
    """1 - the relative rise of the loss stands for the accuracy; without validation data it is the training loss."""
    answer = lossy.analyse()

    assert answer.measured.accuracy_before == 1.0
    assert answer.measured.loss_before > 0.0
    assert abs(answer.measured.accuracy - 1.0) < 0.5
    assert answer.measured.spread > 0.0


def test_a_task_without_validation_data_is_judged_on_its_training_data(tmp_path):
    """A run can be trained without a validation."""
    answer = Trained(tmp_path, f"{FILE}:Unvalidated", prune=FREE).analyse()

    assert answer.measured.accuracy_before == 1.0
    assert answer.measured.accuracy != 1.0


def test_masked_and_rejected_units_are_not_chosen_again(lossy):
    """Those that are masked live no more; those that were rejected are passed over."""
    answer = lossy.analyse()
    first = answer.units
    second = lossy.analyse(masked=first, pruned=answer.parameters_masked, cap=0.9)
    third = lossy.analyse(avoid=first)

    assert first
    for other in (second, third):
        assert other.units
        assert all(not set(units) & set(first.get(name, ())) for name, units in other.units.items())
    assert second.measured.layer_share > third.measured.layer_share


def test_each_estimator_can_be_configured(lossy):
    """Its scores are those of the file."""
    for estimator in ("moments", "magnitude"):
        answer = lossy.analyse(lossy.prune(estimator=estimator))
        (scores,) = read_history(lossy.run, lossy.request.output, estimator).values()

        assert answer.estimator == estimator
        assert {name: tuple(scores[name][unit] for unit in units) for name, units in answer.units.items()} == (
            answer.scores
        )


def test_masks_that_ruin_the_model_are_refused(lossy):
    """Most of the units: more than half of a layer, and a loss that rises."""
    settings = lossy.prune(min_layer_share=0.0, min_channels=1, max_layer_share_per_cycle=1.0)
    answer = lossy.analyse(settings, share=0.9, cap=0.9)

    assert answer.decision is PruningDecision.NO_GO
    assert any("A layer would lose" in one for one in answer.reasons)
    assert refusal_of(replace(lossy.request, share=0.9, cap=0.9), answer, settings.prune) == ""


def test_after_a_doubt_half_of_the_units_are_left(lossy, monkeypatch):
    """The budget is halved, and judged again. On this few samples the drop is no doubt by the margin of all sets."""
    monkeypatch.setattr(verdict, "SAMPLES_LEAST", 0.0)
    prune = lossy.prune().prune
    doubting = lossy.prune(
        validation=replace(prune.validation, accuracy_retention=0.0),
        safety=replace(prune.safety, accuracy_drop=0.0, spread_factor=0.0),
    )
    whole = lossy.analyse(share=0.4, cap=0.4)
    half = lossy.analyse(doubting, share=0.4, cap=0.4)

    assert half.decision is PruningDecision.CONDITIONAL_GO
    assert half.reasons
    assert sum(map(len, half.units.values())) <= sum(map(len, whole.units.values())) // 2
    assert all(set(units) <= set(whole.units[name]) for name, units in half.units.items())
    assert refusal_of(replace(lossy.request, share=0.4, cap=0.4), half, doubting.prune) == ""


def test_a_run_on_a_device_is_analysed_on_the_cpu(lossy):
    """It takes nothing of the device's memory, and no worker of the data."""
    settings = replace(lossy.prune(), device="cuda", precision="bf16", workers=2, compile=True)

    assert timeless(lossy.analyse(settings)) == timeless(lossy.analyse())


@pytest.mark.parametrize("task", ["ByName", "LikeTransformers"])
def test_a_model_that_is_called_by_names_is_traced(tmp_path, task):
    """The names have positions; an argument that is left out before one that is given has its default."""
    answer = Trained(tmp_path, f"{FILE}:{task}", prune=FREE).analyse()

    assert [one.name for one in answer.groups] == ["a", "b"]
    assert answer.units


def test_a_model_that_was_masked_and_compacted_is_analysed_as_it_is(tmp_path):
    """Units are counted in the model as it is; shares are of the parameters that it had before any pruning."""
    trained = Trained(tmp_path, f"{TASK}:Pruned", EPOCHS, scripted(), batch_size=5, prune=FREE)
    gone = {name: len({*FIRST[name], *SECOND[name]}) for name in FIRST}
    # Of 387 parameters 237 are left: rows of 6 and of 11, biases, scales and shifts, three columns of 9.
    fields = {"masked": AFTER, "removed": gone, "taken": 150, "pruned": 190, "share": 0.1, "cap": 1.0}
    answer = trained.analyse(**fields)

    assert [(one.name, one.width) for one in answer.groups] == [("first", 11), ("last", 9)]
    assert answer.parameters == 11 * (6 + 1 + 2) + 9 * (11 + 1) + 3 * (9 + 1)
    # A tenth of 387. A channel of `first` has 16 (two of its 9 columns are masked), one of `last` 14.
    assert 38 - 13 < answer.parameters_masked <= 38
    assert sum(map(len, answer.units.values())) == 2
    assert not any(set(units) & set(AFTER[name]) for name, units in answer.units.items())
    assert answer.measured.layer_share >= 5 / 12
    assert refusal_of(replace(trained.request, **fields), answer, trained.prune().prune) == ""


def test_a_seed_that_is_no_part_of_the_model_yet_is_not_pruned(tmp_path):
    """Neither its own channels nor those that it is blended with; once it is fossilised it is pruned as any layer."""
    moves = (Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.SHADOWING, Stage.PROBATIONARY, Stage.FOSSILIZED)

    def groups(folder, stages, **fields):
        orders = tuple(
            m.ScriptOrder(at + 1, 0, at + 1, seed_move(stage, 100 + at)) for at, stage in enumerate(stages, 1)
        )
        folder.mkdir()
        trained = Trained(folder, f"{TASK}:Seeded", 2, orders, batch_size=5, prune=FREE)
        answer = trained.analyse(**fields)
        assert refusal_of(replace(trained.request, **fields), answer, trained.prune().prune) == ""
        assert answer.measured.structure == ""
        return answer.groups

    # `last` was masked before the seed came.
    growing = [one.name for one in groups(tmp_path / "growing", moves[:3], masked={"last": (0,)}, pruned=1)]
    grown = [one.name for one in groups(tmp_path / "grown", moves)]

    assert growing == ["first"]
    assert set(grown) > {"first"}
    assert any(name.startswith("slot.seed.") for name in grown)


def test_a_model_without_groups_has_an_answer_too(tmp_path):
    """Nothing can be masked, which is no fault of the model."""
    trained = Trained(tmp_path, f"{FILE}:Flat", prune=FREE)
    answer = trained.analyse()
    again = trained.analyse(cycle=2, former=trained.request.output, output="importance/p000002.safetensors")

    assert (answer.decision, answer.groups, answer.units) == (PruningDecision.GO, (), {})
    assert (answer.correlation, again.stability) == (None, None)
    assert refusal_of(trained.request, answer, trained.prune().prune) == ""


def seed_move(stage, cause):
    built = {"number": 1, "blueprint": "bottleneck", "example": (5, 12), "dtype": "float32"}
    more = built if stage is Stage.GERMINATED else {"blend_steps": 4} if stage is Stage.BLENDING else {}
    return m.MoveSeed(slot="s", stage=stage, cause=cause, **more)


@pytest.mark.parametrize(
    ("task", "why"),
    [
        ("ByNameOnly", "the model is called with 'scale' by name only"),
        ("Around", "the task's loss does not call the model itself"),
        ("Itself", "the task's training_step makes its own updates"),
    ],
)
def test_a_task_that_cannot_be_analysed_is_refused(tmp_path, task, why):
    """With the reason, and no file."""
    trained = Trained(tmp_path, f"{FILE}:{task}", prune=FREE)

    with pytest.raises(PruningRefused, match=why):
        trained.analyse()
    assert not (tmp_path / "importance").exists()


def test_a_failure_is_a_sentence(lossy, tmp_path, capsys):
    """A damaged checkpoint, a refusal, an error of the task: whatever is raised in the worker."""
    path = tmp_path / "config.resolved.json"

    def told(settings=None, **fields):
        path.write_bytes(lossy.config if settings is None else resolved_json(settings))
        return worker.answer(lossy.run, path, replace(lossy.request, **fields), 0.0)

    assert told(manifest="00" * 32).startswith("The checkpoint cannot be used: manifest.json: its BLAKE3 is")
    assert told(checkpoint="c999999").startswith("The checkpoint cannot be used: manifest.json: cannot be read")
    slow = lossy.prune(validation=replace(lossy.prune().prune.validation, timeout_s=1e-9))
    assert told(slow) == (
        "The model cannot be analysed: the validation of masks took more than 1e-09 s (prune.validation.timeout_s)"
    )
    assert told(output="../outside").startswith("The analysis raised OSError: '../outside' is not a file in")
    assert "Traceback" in capsys.readouterr().err


# -- the importance file ----------------------------------------------------------------------------------------------


def test_the_file_holds_the_scores_of_the_last_four_analyses(tmp_path):
    """In order, and readable by any reader of safetensors; the oldest is left out, and what a killed process left."""
    history = {cycle: {"a": (cycle + 0.5, 2.0), "b.c": (0.25,)} for cycle in range(1, 7)}
    (tmp_path / "importance").mkdir()
    (tmp_path / "importance" / ".p000005.safetensors.77").write_bytes(b"of a process that was killed")
    labels = {"cycle": "6", "estimator": "fisher", "epoch": "35", "samples": "1000"}
    size = write_history(tmp_path, "importance/p000006.safetensors", history, labels)
    content = (tmp_path / "importance" / "p000006.safetensors").read_bytes()

    assert size == len(content)
    assert [path.name for path in (tmp_path / "importance").iterdir()] == ["p000006.safetensors"]
    assert read_history(tmp_path, "importance/p000006.safetensors", "fisher") == {n: history[n] for n in (3, 4, 5, 6)}
    assert read_history(tmp_path, "importance/p000006.safetensors", "moments") == {}, "scores of another estimator"
    assert max(parse(content)) == "000006/b.c"
    assert read_importance(tmp_path, "importance/p000006.safetensors") == KnownImportance(
        epoch=35, estimator="fisher", samples=1000, scores=history[6]
    )
    library = pytest.importorskip("safetensors")
    with library.safe_open(tmp_path / "importance" / "p000006.safetensors", "np") as file:
        assert file.metadata() == {"format": "tolaria-importance-1", **labels}
        assert file.get_tensor("000006/a").tolist() == [6.5, 2.0]


def test_a_file_that_cannot_be_read_has_no_history(tmp_path):
    """It was removed, is damaged, or is something else: the importance is then the first one."""
    (tmp_path / "importance").mkdir()
    (tmp_path / "importance" / "short").write_bytes(b"\x10\x00")
    (tmp_path / "importance" / "other").write_bytes((2).to_bytes(8, "little") + b"[]")

    for name in ("", "importance/gone", "importance/short", "importance/other", "../importance/short"):
        assert read_history(tmp_path, name, "fisher") == {}
        assert read_importance(tmp_path, name) is None


def test_the_file_says_how_important_each_layer_is(lossy):
    """The mean over the units that live, beside the score of each unit: of layers too wide or too narrow."""
    masked = {"first": (2, 5)}
    answer = lossy.analyse(masked=masked, output="importance/layers.safetensors")
    path = lossy.run / "importance" / "layers.safetensors"
    with safe_open(path, "np") as file:
        layers = json.loads(file.metadata()["layers"])
        units = {group.name: file.get_tensor(f"{answer.cycle:06d}/{group.name}") for group in answer.groups}

    assert layers.keys() == units.keys() == {group.name for group in answer.groups}
    for name, scores in units.items():
        live = [score for unit, score in enumerate(scores) if unit not in masked.get(name, ())]
        assert layers[name] == pytest.approx(sum(live) / len(live), rel=1e-9)


def test_stability_is_over_units_that_live_in_both():
    """A group of another width, and masked units, say nothing."""
    before = {"a": (1.0, 2.0, 3.0, 9.0), "b": (1.0, 2.0)}

    assert stability({"a": (1.0, 2.0, 3.0, 0.0)}, before, {"a": (3,)}) == 1.0
    assert stability({"a": (3.0, 2.0, 1.0, 0.0)}, before, {"a": (3,)}) == -1.0
    assert stability({"b": (1.0, 2.0, 3.0)}, before, {}) is None


def test_the_former_importance_gives_the_stability(digits):
    """Of the same checkpoint it is 1; the file then holds both."""
    digits.analyse()
    again = digits.analyse(cycle=2, former=digits.request.output, output="importance/p000002.safetensors")

    assert again.stability == pytest.approx(1.0)
    assert list(read_history(digits.run, "importance/p000002.safetensors", again.estimator)) == [1, 2]


def test_scores_of_two_estimators_are_not_compared(digits):
    """If the setting has changed since the last analysis, there is no stability, and the file begins anew."""
    digits.analyse()
    given = {"cycle": 2, "former": digits.request.output, "output": "importance/p2"}
    other = digits.analyse(digits.prune(estimator="magnitude"), **given)

    assert other.stability is None
    assert list(read_history(digits.run, "importance/p2", "magnitude")) == [2]
