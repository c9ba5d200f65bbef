"""The growing example: it runs as a user runs it, and its seeds live from germination to the model itself."""

from __future__ import annotations

import pytest
import torch
import yaml

from tests import order_events
from tests.house.tree import ROOT
from tests.recorded import events_of, of
from tests.strategy.packets import packet, seed
from tolariad.core import messages as m
from tolariad.core.calc.seeds.stages import GROWTH
from tolariad.leyline import SeedLifecycleStage as Stage
from tolariad.leyline import SeedOperation as Operation
from tolariad.strategy import find_strategy
from tolariad.trainer.seeds import find_blueprint

EXAMPLE = ROOT / "examples" / "growing"
# Short: few steps in an epoch, hasty gates, and no breaker that a loaded machine could open.
QUICK = {
    "epochs": 20,
    "batch_size": 240,
    "budgets": {"act": False},
    "journal": {"sync": "batch"},
}


@pytest.fixture
def config(tmp_path):
    """Write the configuration of the example, with fewer steps."""
    document = yaml.safe_load((EXAMPLE / "config.yaml").read_text(encoding="utf-8"))
    section = document["tolaria"]
    for key in ("task", "strategy"):
        section[key] = section[key].replace("./", f"{EXAMPLE}/")
    (blueprint,) = section["seeds"]["blueprints"]
    whole = blueprint.replace("./", f"{EXAMPLE}/")
    section["seeds"] = {"blueprints": [whole], "blend_steps": 6, "gates": {"min_steps": 1}}
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({"tolaria": section | QUICK}), encoding="utf-8")
    return path


def test_the_example_grows_in_both_slots_also_over_a_kill(tmp_path, config, template):
    """Its trainer is killed while the first seed is blended in: no step differs after that, and no move comes twice."""
    token = tmp_path / "token"
    token.touch()
    words = ["run", config, "--dir", tmp_path / "run"]
    done = template.run(words, folder=tmp_path, failpoint=f"step:50@{token}")
    events = events_of(tmp_path / "run")
    moves = [(one.order.slot, one.order.stage) for one in of(events, order_events.acted(m.MoveSeed))]

    assert done.returncode == 0, done.stderr
    assert len(of(events, m.RunCompleted)) == 1
    assert len(of(events, m.TrainingStarted)) == 2
    assert [one.first_difference for one in of(events, m.RerunFinished)] == [None]
    assert [stage for slot, stage in moves if slot == "early"][: len(GROWTH) - 1] == list(GROWTH[:-1])
    assert len(set(moves)) == len(moves)
    assert "late" in {slot for slot, _ in moves}
    blueprints = {
        one.order.blueprint for one in of(events, order_events.acted(m.MoveSeed)) if one.order.stage is GROWTH[0]
    }
    assert blueprints == {f"{EXAMPLE}/blueprint.py:Widening"}


def test_a_seed_stays_if_the_loss_is_better_and_goes_if_not():
    """At the end of its trial. The strategy remembers the loss before the seed over a restart."""
    for loss, operation in ((0.5, Operation.SEED_OP_FOSSILIZE), (1.5, Operation.SEED_OP_CULL)):
        strategy, _ = find_strategy(f"{EXAMPLE}/strategy.py:OneByOne")
        strategy.step(packet(4, 1.0, [seed("early")]))
        other, _ = find_strategy(f"{EXAMPLE}/strategy.py:OneByOne")
        other.load_state_dict(strategy.state_dict())
        for epoch in (5, 6, 7):
            last = other.step(packet(epoch, loss, [seed("early", Stage.SEED_STAGE_PROBATIONARY)]))
        assert last.seed_operation.operation == operation
        refused = other.step(packet(8, loss, [seed("early", Stage.SEED_STAGE_PROBATIONARY)]))
        assert refused.seed_operation.operation == Operation.SEED_OP_CULL


def test_the_blueprint_is_the_identity_at_birth():
    """And learns from the first step on: its last layer has a gradient."""
    h = torch.rand(3, 4, 5, 5)
    grown = find_blueprint(f"{EXAMPLE}/blueprint.py:Widening", {"factor": 2.0}).build(h)
    out = grown(h)
    out.sum().backward()

    assert torch.equal(out, h)
    assert sum(one.numel() for one in grown.parameters()) == 4 * 8 * 9 + 8 + 8 * 4 + 4
    assert grown.narrow.weight.grad.abs().sum() > 0
