"""A rollback of the fast tier in a real run with a participant that agrees, refuses memory, is silent, or fails."""

from __future__ import annotations

import threading

import pytest
import torch

from tests.library.inside import written_at_once
from tests.library.seeds import hashed_at_once
from tests.library.small import EPOCHS, bits, loaders, made, network
from tests.library.test_fast_tier import SNAPSHOTS, Back
from tests.recorded import events_of, of
from tolariad.core import messages as m


@pytest.fixture(autouse=True)
def in_step(monkeypatch):
    """Snapshots and checkpoints are there at the same steps on a slow machine as on a quick one."""
    hashed_at_once(monkeypatch.setattr)
    written_at_once(monkeypatch.setattr)


LIMITS = {"rollback": {"fast_path_timeout_ms": 60_000, "full_path_timeout_s": 60.0}}


class Plan:
    """Scales the inputs of each step; `answers` may say something else than yes to the first questions."""

    def __init__(self, answers=()):
        self.scale, self.answers = torch.ones(()), list(answers)

    def move(self):
        self.scale = self.scale * 1.01

    def state_dict(self):
        return {"scale": self.scale}

    def prepare_rollback(self, state):
        if self.answers:
            self.answers.pop(0)()

    def load_state_dict(self, state):
        self.scale = state["scale"]


def trained(run_dir, plan, limits=LIMITS, *, goes_back=True):
    """Train with this participant and one rollback; return the model's bits, the plan's, and the events."""
    tolaria = made(run_dir, **{**SNAPSHOTS, **limits})
    back, model = Back(tolaria, checkpoint="c000002"), network()

    class Planned:
        def participants(self, _):
            return {"plan": plan}

        def loss(self, model, batch):
            return torch.nn.functional.cross_entropy(model(batch[0] * plan.scale), batch[1])

        def on_step_end(self, _, step):
            plan.move()
            if goes_back:
                back(step)

    result = tolaria.train(model, *loaders(), EPOCHS, task=Planned())
    assert result.phase == "completed"
    assert bool(back.ordered) == goes_back
    return bits(model), plan.scale.item(), events_of(run_dir)


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("calm") / "run", Plan(), goes_back=False)[:2]


def test_the_participant_goes_back_with_the_run_from_memory(tmp_path, calm):
    """Its vote is recorded, and the run ends as one that never went back."""
    *found, events = trained(tmp_path / "run", Plan())
    (prepared,), (done,) = of(events, m.RollbackPrepared), of(events, m.RolledBack)

    assert tuple(found) == calm
    assert (prepared.participants, prepared.abstained, done.late) == (("plan", "training"), (), ())
    assert done.checkpoint.startswith("s")


def test_a_refused_snapshot_is_kept_and_the_disk_is_gone_back_to(tmp_path, calm):
    """The next tier, under the same id; the participant says why."""

    def refuse():
        raise RuntimeError("not in the middle of an epoch")

    *found, events = trained(tmp_path / "run", Plan([refuse]))
    (escalated,), (done,) = of(events, m.RollbackEscalated), of(events, m.RolledBack)

    assert tuple(found) == calm
    assert "participant plan: not in the middle of an epoch" in escalated.why
    assert done.checkpoint == escalated.checkpoint
    assert of(events, m.SnapshotRejected) == []


def test_a_participant_without_an_answer_stops_no_rollback(tmp_path):
    """The run goes back, says who was silent, and ends; the participant follows when it can."""
    free, plan = threading.Event(), Plan()
    plan.answers.append(lambda: free.wait(60))
    limits = {"rollback": {"fast_path_timeout_ms": 500}}
    _, __, events = trained(tmp_path / "run", plan, limits)
    (prepared,), (done,) = of(events, m.RollbackPrepared), of(events, m.RolledBack)
    free.set()

    assert (prepared.participants, prepared.abstained, done.late) == (("training",), ("plan",), ("plan",))
    assert of(events, m.RollbackEscalated) == []
