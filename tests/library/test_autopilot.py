"""Real runs with a rise of the loss: damage is gone back for, a change is left alone, and what is unclear is tried."""

from __future__ import annotations

import os
import random
import signal
import threading

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from journal import JournalEntry, Reader
from tests.library.inside import ordered, pid_of, state_of
from tests.library.small import bits, made
from tests.recorded import events_of, of, sound
from tolariad.core import messages as m
from tolariad.core.calc.detection.comparison import Judgement
from tolariad.core.messages.sentences.text import sentence
from tolariad.core.messages.vocabulary import decode_event
from tolariad.forensics.why import why

EPOCHS, BATCH, SAMPLES = 16, 4, 128
STRUCK = 300


def rows(samples: int) -> TensorDataset:
    """Four classes that a small network learns well."""
    generator = torch.Generator().manual_seed(2)
    labels = torch.randint(4, (samples,), generator=generator)
    inputs = torch.randn(samples, 8, generator=generator)
    inputs[torch.arange(samples), labels] += 5.0
    return TensorDataset(inputs, labels)


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))


def is_first(tolaria) -> bool:
    """Return whether the run has not gone back. A step that is made again after a death is struck again."""
    return not state_of(tolaria).progress.branch


class Struck:
    """A task to which `strike(model)` happens after step STRUCK, until the run has gone back.

    `smooth`: its labels are smoothed from then on. `turned`: they are others. `dies`: the steps after which it dies
    once. `hook`: is called after each step.
    """

    def __init__(self, folder, strike=None, smooth=False, turned=False, dies=(), hook=None):
        self._folder, self._strike, self._smooth, self._turned = folder, strike, smooth, turned
        self._dies, self._hook = dies, hook
        self.steps = 0

    def loss(self, model, batch):
        inputs, labels = batch
        if self._turned and self.steps >= STRUCK:
            labels = (labels + 1) % 4
        smoothing = 0.4 if self._smooth and self.steps >= STRUCK else 0.0
        return functional.cross_entropy(model(inputs), labels, label_smoothing=smoothing)

    def evaluate(self, model, batch):
        inputs, labels = batch
        return {"loss": functional.cross_entropy(model(inputs), labels)}

    def on_step_end(self, model, step):
        self.steps = step
        if step == STRUCK and self._strike is not None and is_first(self.tolaria):
            self._strike(model)
        if self._hook is not None and self._hook(self.tolaria):
            self._hook = None
        if step in self._dies and self._once(f"died {step}"):
            raise InterruptedError

    def _once(self, name):
        try:
            (self._folder / name).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


def train(folder, validated=True, **given) -> tuple[list[m.Event], nn.Module]:
    """Train once more after every death, to the end. Snapshots are off: they are taken where the trainer is by then."""
    config = {"rollback": {"fast_path_enabled": False}, "checkpoint": {"min_gap_s": 0, "throttle_mb_s": None}}
    while True:
        model = network()
        loaders = DataLoader(rows(SAMPLES), BATCH, shuffle=True), DataLoader(rows(64), 32) if validated else None
        tolaria = made(folder / "run", **config, learning_rate={"base_lr": 0.01, "warmup_epochs": 0})
        task = Struck(folder, **given)
        task.tolaria = tolaria
        try:
            result = tolaria.train(model, *loaders, EPOCHS, task=task)
        except InterruptedError:
            continue
        assert result.phase == "completed"
        return events_of(folder / "run"), model


@torch.no_grad()
def negated(model: nn.Module) -> None:
    """A fault that no value shows: finite, and of the usual size."""
    model[3].weight.neg_()


def told(events):
    """What the autopilot did, by step."""
    kinds = (m.StatePinned, m.StatesCompared, m.RolledBack, m.QuarantineAdded, m.PinReleased, m.HeldOnTo)
    return [(type(one).__name__, getattr(one, "step", None)) for one in of(events, *kinds)]


def test_weights_that_were_damaged_are_gone_back_for_and_the_run_ends_well(tmp_path):
    """A layer was negated. The comparison shows it, and the run ends as well as a clean one."""
    events, _ = train(tmp_path, strike=negated)
    (compared, *_), (back, *_) = of(events, m.StatesCompared), of(events, m.RolledBack)
    last = of(events, m.ValidationFinished)[-1]

    assert compared.judgement is Judgement.WEIGHTS
    assert back.step <= STRUCK
    assert last.metrics["loss"] < 0.3
    sound(tmp_path / "run")


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    """Events and bits of a run whose weights were damaged once."""
    folder = tmp_path_factory.mktemp("damaged")
    events, model = train(folder, strike=negated)
    return events, bits(model)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "dies", [(STRUCK + 45, STRUCK + 150), (STRUCK + 80, STRUCK + 161), (STRUCK + 120, STRUCK - 20)]
)
def test_killed_on_the_way_the_run_ends_with_the_same_decisions_and_bits(tmp_path, damaged, dies):
    """While it watches, while it keeps batches for the comparison, and after it went back."""
    events, model = train(tmp_path, strike=negated, dies=dies)

    assert of(events, m.TrainerDied, m.RerunFinished)
    assert told(events) == told(damaged[0])
    assert bits(model) == damaged[1]


@pytest.mark.parametrize("validated", [True, False])
def test_labels_that_are_smoothed_are_a_change_and_nothing_is_undone(tmp_path, validated):
    """The network has learnt them, and knows the old ones, if a validation can ask for them. Without one both ways are
    not tried either. The detector learns the new level by an order.
    """
    events, _ = train(tmp_path, smooth=True, validated=validated)

    assert [one.judgement for one in of(events, m.StatesCompared)] == [Judgement.CHANGED]
    assert not of(events, m.RolledBack)
    assert [one.order for one in of(events, m.OrderActed) if isinstance(one.order, m.LearnAnew)]


def test_labels_that_destroy_what_was_learnt_are_gone_back_for_twice_and_then_the_run_goes_on(tmp_path):
    """It does not halt, and says which command goes back."""
    events, _ = train(tmp_path, turned=True)

    assert {one.judgement for one in of(events, m.StatesCompared)} == {Judgement.DATA}
    assert len(of(events, m.RolledBack)) == 2
    (kept,) = of(events, m.HeldOnTo)
    assert f"--to {kept.checkpoint}" in sentence(kept)


def test_an_operator_who_goes_back_ends_a_comparison(tmp_path):
    """He may have changed something: nothing is watched any more, and no pin is held."""

    def go_back(tolaria):
        state = state_of(tolaria)
        is_due = state.insurance.comparing is not None
        return is_due and ordered(tolaria, m.Rollback(to=state.insurance.pins[0].checkpoint))

    events, _ = train(tmp_path, strike=negated, hook=go_back)

    assert len(of(events, m.ComparisonAborted)) == 1
    assert not of(events, m.StatesCompared)
    assert of(events, m.PinReleased)[-1].why == "the run went back"
    sound(tmp_path / "run")


def loop(folder, hook=None) -> tuple[list[m.Event], nn.Module]:
    """A loop of one's own, whose model is damaged once after STRUCK updates. The model counts them."""
    folder.mkdir(exist_ok=True)
    model, run_dir = network(), folder / "run"
    loader = DataLoader(rows(SAMPLES), BATCH, shuffle=True)
    config = {"snapshots": {"every": {"steps": 20}}, "checkpoint": {"min_gap_s": 0, "throttle_mb_s": None}}
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    tolaria = made(run_dir, **config, learning_rate={"base_lr": 0.01, "warmup_epochs": 0})
    run = tolaria.run(model, optimizer, loader)
    for _ in run.epochs(EPOCHS):
        for inputs, labels in run.batches():
            if int(model[1].num_batches_tracked) == STRUCK and is_first(tolaria):
                negated(model)
            run.step(functional.cross_entropy(model(inputs), labels))
            if hook is not None and hook(tolaria):
                hook = None
    return events_of(run_dir), model


def test_a_loop_of_ones_own_tries_both_ways(tmp_path):
    """Nothing computes its loss but the loop. Both ways are compared by the losses of the same last batches."""
    events, _ = loop(tmp_path)
    first, second = of(events, m.StatesCompared)

    assert (first.judgement, first.newest, first.held) == (Judgement.UNCLEAR, None, None)
    assert second.went_on is False
    assert len(of(events, m.RolledBack)) == 1
    sound(tmp_path / "run")
    told = why(Reader(tmp_path / "run" / "journal"), "rollback")
    types = [link.fields["type"] for link in (*told.causes, told.event)]
    assert types[0] == "InstabilityDetected"
    assert types[-1] == "RolledBack"
    assert [one for one in types if one.startswith("State")] == ["StatePinned", "StatesCompared"]
    # The newest of each: the branch that went on, and the way back that is not needed any more.
    for event, cause in (("StatePinned", "StatesCompared"), ("PinReleased", "StepCompleted")):
        told = why(Reader(tmp_path / "run" / "journal"), event)
        assert told.event.fields["type"] == event
        assert cause in [link.fields["type"] for link in told.causes]


# -- the recorder is killed --------------------------------------------------------------------------------------------


class Kills:
    """Kills the recorder of a run with SIGKILL as soon as the journal has such an event, the nth of its kind.

    A thread looks, because no hook is called between a comparison and the way back.
    """

    def __init__(self, kind: str, number: int = 1) -> None:
        self._kind, self._number, self._ends = kind, number, threading.Event()
        self.done = False

    def __call__(self, tolaria) -> bool:
        """Begin to look, from a hook or a loop. Return True: once is enough."""
        self._thread = threading.Thread(target=self._look, args=(tolaria,), daemon=True)
        self._thread.start()
        return True

    def _look(self, tolaria) -> None:
        seq = found = 0
        while not self._ends.wait(0.002):
            with Reader(tolaria.run_dir / "journal") as reader:
                for entry in reader.records(after_seq=seq):
                    if isinstance(entry, JournalEntry):
                        seq, found = entry.seq, found + (type(decode_event(entry.event)).__name__ == self._kind)
            if found >= self._number:
                os.kill(pid_of(tolaria), signal.SIGKILL)
                self.done = True
                return

    def end(self) -> None:
        self._ends.set()
        self._thread.join()


# After the pin, within the watch, when it is compared and goes back, and while it learns again.
MOMENTS = ("StatePinned", "ComparisonBegun", "StatesCompared", "RollbackBegun", "RollbackPrepared", "RolledBack")


# The branch that went on is pinned and compared too.
TWICE = (("StatePinned", 2), ("ComparisonBegun", 2), ("StatesCompared", 2))


@pytest.mark.sample(1)
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_recorder_that_is_killed_at_any_moment_changes_no_decision_and_no_bit(tmp_path, damaged, moment):
    """Another one opens the run and folds the autopilot's memory from the journal."""
    kills = Kills(moment)
    events, model = train(tmp_path, strike=negated, hook=kills)
    kills.end()

    assert kills.done
    assert m.DeathReason.WITH_DAEMON in [one.reason for one in of(events, m.TrainerDied)]
    assert told(events) == told(damaged[0])
    assert bits(model) == damaged[1]
    sound(tmp_path / "run")


@pytest.mark.torture
@pytest.mark.parametrize(("moment", "number"), [*((one, 1) for one in MOMENTS), *TWICE])
def test_a_trial_whose_recorder_is_killed_at_any_moment_comes_to_the_same_decisions(tmp_path, moment, number):
    """Of both branches: when each is pinned, begun to be compared, compared, and gone back to."""
    undisturbed, _ = loop(tmp_path / "calm")
    kills = Kills(moment, number)
    events, _ = loop(tmp_path / "killed", kills)
    kills.end()
    kinds, expected = ([one[0] for one in decided(found)] for found in (events, undisturbed))

    assert kills.done
    assert [one for one in kinds if one != "StatePinned"] == [one for one in expected if one != "StatePinned"]
    sound(tmp_path / "killed" / "run")


# -- kill -9 -----------------------------------------------------------------------------------------------------------

SCRIPT = """
from pathlib import Path
from tests.library import test_autopilot as runs
from tests.library.small import bits
events, model = {call}
Path("bits").write_text(repr(sorted(bits(model).items())))
"""
CALLS = {"damaged": "runs.train(Path('.').absolute(), strike=runs.negated)", "loop": "runs.loop(Path('.').absolute())"}
# Within the watch, the batches of the comparison, the comparison itself, a pin that is written, and the way back.
POINTS = (f"step:{STRUCK + 60}", f"step:{STRUCK + 150}", "comparison:1", "compared:1", "rollback_prepare:1")
POINTS += ("rollback_commit:1", "rollback_confirm:1")


@pytest.fixture(scope="module")
def undisturbed(template, tmp_path_factory):
    """What each script decided and ended with when nobody killed it, by name."""
    known: dict[str, tuple[list, str]] = {}

    def of_call(name: str) -> tuple[list, str]:
        if name not in known:
            known[name] = scripted(template, tmp_path_factory.mktemp(name), name)
        return known[name]

    return of_call


def scripted(template, folder, name, *points: str) -> tuple[list, str]:
    """Start the script, killed at each of the points, and then to its end. Return decisions and bits."""
    program = folder / "script.py"
    program.write_text(SCRIPT.format(call=CALLS[name]))
    for point in points:
        ended = template.run([], folder=folder, program=str(program), failpoint=point)
        assert ended.returncode == -signal.SIGKILL, ended.stderr
    ended = template.run([], folder=folder, program=str(program))
    assert ended.returncode == 0, ended.stderr
    sound(folder / "run")
    return decided(events_of(folder / "run")), (folder / "bits").read_text()


def decided(events) -> list:
    """What the autopilot did. How far the run was when it went back for a trial depends on the time of a write."""
    return [one[:1] if one[0] == "StatesCompared" else one for one in told(events)]


@pytest.mark.sample(1)
@pytest.mark.parametrize("point", POINTS)
def test_a_program_that_is_killed_at_any_moment_comes_to_the_same_decisions_and_bits(
    template, tmp_path, undisturbed, point
):
    """Between pin, comparison and the way back; started again it ends as one that nobody killed."""
    assert scripted(template, tmp_path, "damaged", point) == undisturbed("damaged")


@pytest.mark.torture
@pytest.mark.parametrize("point", POINTS)
def test_a_trial_that_is_killed_at_any_two_moments_comes_to_the_same_decisions(
    template, tmp_path, undisturbed, point, seed
):
    """Of both branches, at this moment and at a drawn one before the run is over."""
    second = random.Random(f"{seed} {point}").choice(["step:20", "gate:5", "checkpoint_file:1", "publish:1"])
    print(f"seed {seed}: {point}, {second}")
    decisions, _ = scripted(template, tmp_path, "loop", point, second)
    kinds = [one[0] for one in decisions]

    assert [one for one in kinds if one != "StatePinned"] == [
        one[0] for one in undisturbed("loop")[0] if one[0] != "StatePinned"
    ]
