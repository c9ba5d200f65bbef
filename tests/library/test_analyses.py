"""A program's run is pruned: its checkpoints are analysed in a process forked from it, to the masks of a daemon."""

from __future__ import annotations

import os
import signal

import msgspec
import pytest
import torch

from tests import order_events
from tests.library import prunable
from tests.library.inside import ordered, state_of, written_at_once
from tests.library.loops.programs import killed
from tests.library.small import CONFIG, bits
from tests.recorded import events_of, of, sound
from tests.waiting import wait_for
from tolariad import Tolaria
from tolariad.attach import words
from tolariad.core import messages as m
from tolariad.core.calc.settings.rules import read_resolved, resolved_json
from tolariad.leyline import pruning
from tolariad.library import analyses
from tolariad.refusal import StartRefused
from tolariad.trainer.pruning.analysing import analyse

pytest.importorskip("torch_pruning", reason="torch-pruning (extra `pruning`) is not installed")

EPOCHS, AT = 4, 18
PRUNE = {
    "pruning_phase_transition_epoch": 0,
    "batch_size": 12,
    "prune": {
        "enabled": True,
        # An idle one may wait for a core for minutes on a busy machine.
        "analysis_priority": "normal",
        "min_samples": 50,
        "min_channels": 2,
        "last_epoch": 100000,
        "budgets": [{"epoch": 0, "share": 0.2}],
        "caps": [{"epoch": 0, "share": 0.4}],
        "safety": {
            "grace_steps": 1,
            "window_steps": 3,
            "accuracy_drop": 1,
            "gradient_norm": 1e6,
            "speed": 0,
            "memory": 1,
            "failures": 99,
        },
        "validation": {"accuracy_retention": 0.0, "gradient_ratio": 1e6},
    },
}


@pytest.fixture(autouse=True)
def _checkpoints_at_once(monkeypatch):
    written_at_once(monkeypatch.setattr)


class Prunes(prunable.Losses):
    """Orders an analysis after a step, waits for it, and orders its masks, which then act before the next step."""

    def __init__(self, also=lambda tolaria, step: None):
        self.tolaria, self.also = None, also

    def on_step_end(self, model, step):
        if step == AT:
            self.prune()
        self.also(self.tolaria, step)

    def prune(self):
        """A step that is made again may have ordered all of it already."""
        if state_of(self.tolaria).pruning.found is None:
            assert ordered(self.tolaria, m.PruneAnalyze())
            wait_for(lambda: state_of(self.tolaria).pruning.open is None)
        state = state_of(self.tolaria)
        if state.pruning.found is not None and state.pruning.found.units and not state.boundary.waiting:
            assert ordered(self.tolaria, m.PruneApply())
            # What is answered after the order was decided after that was sent.
            assert ordered(self.tolaria, m.Note(text="sent"))


def train(run_dir, also=lambda tolaria, step: None):
    """Return the weights of a pruned run."""
    model, task = prunable.network(), Prunes(also)
    task.tolaria = Tolaria({"tolaria": {**CONFIG["tolaria"], **PRUNE}}, run_dir=run_dir)
    result = task.tolaria.train(model, *prunable.loaders(), EPOCHS, task=task)
    assert result.phase == "completed"
    return bits(model)


def facts(run_dir):
    """What must be the same: what was found, and at which step it acted."""
    events = sound(run_dir)
    analyzed = [
        (e.decision, e.units, e.sha256, e.plan, e.accuracy, e.accuracy_masked) for e in of(events, m.PruneAnalyzed)
    ]
    masked = [(e.applied_before_step, e.order.units) for e in of(events, order_events.acted(m.MaskUnits))]
    return analyzed, masked


def test_the_masks_are_those_that_the_daemons_analysis_of_the_same_task_finds(tmp_path, monkeypatch):
    """The same request, with the task built from its file as a daemon builds it: units, plan, hash, figures."""
    asked, resolved = [], []
    ask, begin = analyses.Analyses.ask, analyses.Analyses.__init__

    def heard(self, word):
        asked.append(word)
        ask(self, word)

    def begun(self, task, config, run_dir, tell):
        resolved.append(config)
        begin(self, task, config, run_dir, tell)

    monkeypatch.setattr(analyses.Analyses, "ask", heard)
    monkeypatch.setattr(analyses.Analyses, "__init__", begun)
    train(tmp_path / "run")
    ((found, *_), masked) = facts(tmp_path / "run")

    (first, *_) = [one for one in asked if isinstance(one, words.Analyse)]
    request, _ = pruning.read_request(first.request)
    request = msgspec.structs.replace(request, output="")
    settings = msgspec.structs.replace(read_resolved(resolved[0]), task=f"{prunable.__file__}:Prunable")
    expected = analyse(tmp_path / "run", resolved_json(settings), request, 0.0)
    measured = expected.measured

    assert found == (
        *(expected.decision, expected.units, expected.masks_sha256, expected.plan),
        *(measured.accuracy_before, measured.accuracy),
    )
    assert expected.units
    assert masked == [(AT + 1, expected.units)]


@pytest.mark.sample(1)
@pytest.mark.parametrize("point", ["prune_order:1", "prune_acted:1", f"step:{AT + 4}", "analysed"])
def test_a_pruned_run_that_is_killed_ends_with_the_same_bits(tmp_path, point):
    """While the masks act, and after them; and while the analysis is under way."""
    calm = train(tmp_path / "calm")

    def die(tolaria, step):
        if point == "analysed" and step == AT - 1:
            assert ordered(tolaria, m.PruneAnalyze())
            os.kill(os.getpid(), signal.SIGKILL)

    killed(lambda: train(tmp_path / "run", die), "" if point == "analysed" else point)
    assert train(tmp_path / "run") == calm
    assert facts(tmp_path / "run")[1] == facts(tmp_path / "calm")[1]


def test_a_process_that_dies_is_a_failed_cycle_and_training_goes_on(tmp_path, monkeypatch):
    """Its end is the answer, with its signal."""
    monkeypatch.setattr(analyses, "_answer", lambda run, word, idle: os.kill(os.getpid(), signal.SIGKILL))
    train(tmp_path / "run")

    failed = [one.why for one in of(events_of(tmp_path / "run"), m.PruneCycleFailed)]
    assert failed
    assert "Its process has ended, by SIGKILL." in failed[0]


def test_a_loop_without_a_loss_is_refused_before_anything_is_recorded(tmp_path):
    """Only the loop knows its loss."""
    model = prunable.network()
    run = Tolaria({"tolaria": {**CONFIG["tolaria"], **PRUNE}}, run_dir=tmp_path / "run").run(
        model, torch.optim.SGD(model.parameters(), lr=0.1), prunable.loaders()[0]
    )
    with pytest.raises(StartRefused, match="an analysis needs the loss of a batch"):
        next(iter(run.epochs(1)))
    assert not (tmp_path / "run" / "journal").exists()
