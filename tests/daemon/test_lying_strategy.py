"""A user's strategy that hangs, dies, lies and floods in a real run with seeds: training goes on, and it is said."""

from __future__ import annotations

from pathlib import Path

import yaml

from tests import order_events
from tests.campaign import grown
from tests.daemon.harness import of_type
from tests.recorded import pieces
from tolariad.core import messages as m

HERE = Path(__file__).parents[1]
# After which epoch what is done; in between the strategy answers.
LIES = {
    2: "hangs",
    4: "exits",
    6: "segfaults",
    8: "a thousand commands",
    10: "a thousand frames",
    12: "garbage",
    14: "another version",
    16: "remembers too much",
}
OWN = """
import sys
from pathlib import Path

sys.path.insert(0, {root!r})

from tests.strategy.process.liars import FAULTS, Honest
from tolariad.leyline import AdaptationCommand, CommandOptimizerAdjustment, CommandSeedOperation

HERE = Path(__file__).parent
LIES = {lies!r}
GO_ON = ("a thousand commands", "another version", "remembers too much")
NAN = float("nan")


def seed(name, operation, target="early", **more):
    return AdaptationCommand(
        version=1,
        command_id=name,
        command_type=1,
        target_seed_id=target,
        seed_operation=CommandSeedOperation(operation=operation, **more),
    )


class Liar(Honest):
    rubbish = ""

    def __init__(self):
        (HERE / "ready").touch()

    def step(self, packet):
        epoch = packet.current_epoch
        if epoch in LIES:
            if LIES[epoch] not in GO_ON:
                (HERE / "ready").unlink()
            wrong = FAULTS[LIES[epoch]](self, epoch)
            return [] if wrong is None else wrong
        self.rubbish = ""
        if epoch == 18:
            adjust = CommandOptimizerAdjustment(hyperparameters={{"lr": NAN}})
            return [
                seed("nobody", 9, "nobody"),
                seed("nan", 1, blueprint_id="bottleneck", parameters={{"reduction": NAN}}),
                seed("alpha", 1, blueprint_id="bottleneck", parameters={{"alpha": 2.0}}),
                seed("too early", 5),
                AdaptationCommand(version=1, command_id="rate", command_type=3, optimizer_adjustment=adjust),
            ]
        return []

    def state_dict(self):
        return {{"rubbish": self.rubbish}}

    def load_state_dict(self, state):
        self.rubbish = state["rubbish"]
"""
# Each question finds a strategy that has started again: epochs take less time than that.
TASK = """
import sys
import time
from pathlib import Path

sys.path.insert(0, {root!r})

from tests.campaign.grown import Grown


class Waiting(Grown):
    def on_epoch_end(self, model, epoch, metrics):
        while not (Path(__file__).parent / "ready").exists():
            time.sleep(0.01)
"""
EPOCHS = 20


def carried_out(folder, template, **more):
    """Carry out a run in a real daemon; return its folder."""
    folder.mkdir()
    settings = {**grown.CONFIG, "task": f"{folder.parent}/task.py:Waiting", "epochs": EPOCHS, "batch_size": 24, **more}
    settings["journal"] = {"segment_bytes": 1_000_000}
    (folder / "config.yaml").write_text(yaml.safe_dump({"tolaria": settings}))
    run_dir = folder / "run"
    ended = template.run(["run", folder / "config.yaml", "--dir", run_dir], folder=folder)
    assert ended.returncode == 0, ended.stderr
    return run_dir


def steps(run_dir):
    return [(one.step, one.loss, one.grad_norm, one.lr) for one in of_type(run_dir, m.StepCompleted)]


def test_whatever_a_strategy_does_training_goes_on_to_the_bit_and_says_so(tmp_path, template):
    """Each fault is the end of its question, with the reason; each lie is a command refused; no step differs."""
    (tmp_path / "task.py").write_text(TASK.format(root=str(HERE.parent)))
    (tmp_path / "ready").touch()
    calm = carried_out(tmp_path / "calm", template, strategy="none")
    (tmp_path / "ready").unlink()
    (tmp_path / "own.py").write_text(OWN.format(root=str(HERE.parent), lies=LIES))
    more = {"strategy": f"{tmp_path}/own.py:Liar", "integration": {"tamiyo_timeout_s": 4}}
    run_dir = carried_out(tmp_path / "lied to", template, **more)
    ends = {one.epoch: one.fallback for one in of_type(run_dir, m.StrategyTimedOut)}

    # Two limits of one length end a question that hangs: the recorder's, and that of the process that asks.
    said = [" 4 s", "exit code 3", "SIGSEGV", "1000 commands", "16 commands", "no answer", "version 2", "32768"]
    assert ends.keys() == LIES.keys()
    assert all(what in ends[epoch] for epoch, what in zip(LIES, said, strict=True)), ends
    refused = {one.id: one.why for one in of_type(run_dir, m.CommandRefused)}
    assert refused.keys() == {"nobody", "nan", "too early", "rate"}, refused
    assert "nobody" in refused["nobody"]
    assert "finite" in refused["nan"]
    assert "finite" in refused["rate"]
    assert steps(run_dir) == steps(calm)
    assert of_type(run_dir, order_events.acted(m.MoveSeed)) == []
    given = [
        one for one in of_type(run_dir, m.OrderGiven) if not isinstance(one, order_events.given(m.KeepStrategyState))
    ]
    assert [one.order.parameters for one in given] == [{"alpha": 2.0}]
    files, undisturbed = pieces(run_dir), pieces(calm)
    assert {name: files[name] for name in files if "state" not in name} == {
        name: undisturbed[name] for name in undisturbed if "state" not in name
    }
