"""For a benchmark: `digits` with four slots, whose trainer writes down each epoch boundary, and a strategy for it.

The trainer's stopwatch counts a boundary in the buckets of a histogram. Here every one is written.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from torch import nn

from tolariad.leyline import AdaptationCommand, CommandOptimizerAdjustment, CommandType
from tolariad.trainer.health.stopwatch import Stopwatch
from tolariad.trainer.seeds import SeedSlot
from tolariad.trainer.tasks.digits import Digits

SLOTS = 4


class WrittenStopwatch(Stopwatch):
    """Appends what each boundary took, in seconds, to the file that the environment names: the fields of Spent."""

    def went_on(self) -> None:
        if self._in_boundary:
            spent = self._spent() - self._before - self._elsewhere
            with Path(os.environ["TOLARIA_BOUNDARIES"]).open("a") as file:
                file.write(f"{spent.clock} {spent.waited} {spent.ran}\n")
        super().went_on()


class Slotted(Digits):
    """The network of `digits`, with a slot after the first layer of units and three more."""

    def model(self, cfg: Any) -> nn.Module:
        import tolariad.trainer.loop

        tolariad.trainer.loop.Stopwatch = WrittenStopwatch  # type: ignore[misc]  # of this process only
        layers: list[nn.Module] = [nn.Linear(64, 128), nn.ReLU()]
        layers += [SeedSlot(f"slot{number}") for number in range(SLOTS)]
        return nn.Sequential(*layers, nn.Linear(128, 10))


class Planter:
    """Germinates a seed in each slot, trains them, and orders a hyper-parameter after every epoch."""

    def step(self, packet: Any) -> list[AdaptationCommand]:
        place = f"{packet.training_metrics['branch']:.0f}.{packet.current_epoch}"

        def command(name: str, kind: int, **fields: Any) -> AdaptationCommand:
            return AdaptationCommand(version=1, command_id=f"{place} {name}", command_type=kind, **fields)

        eps = CommandOptimizerAdjustment(hyperparameters={"eps": 1e-8 * (1 + packet.current_epoch % 2)})
        commands = [command("eps", CommandType.COMMAND_OPTIMIZER, optimizer_adjustment=eps)]
        for seed in packet.seed_states:
            if seed.stage in (1, 2):
                operation = "SEED_OP_GERMINATE" if seed.stage == 1 else "SEED_OP_START_TRAINING"
                given = {"operation": operation, "blueprint_id": "bottleneck"}
                fields = {"target_seed_id": seed.seed_id, "seed_operation": given}
                commands.append(command(seed.seed_id, CommandType.COMMAND_SEED, **fields))
        return commands
