"""The price of metrics in a step: none and four, side by side, in the trainer and in the recorder.

PRICE_TURNS (4000) is the number of steps of each kind. To compare a step without metrics with another version of this
project, run `test_step_alone.py` of both.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from typing import Any

import pytest
import torch

from tests.bench.price_task import PriceTask
from tests.bench.test_step_alone import recorded, timed
from tests.core.simulate import World
from tolariad.channel import Reports, TrainerEnd, channel_pair
from tolariad.core import messages as m
from tolariad.core.calc.steps.table import step_row
from tolariad.core.messages.vocabulary import encode_event
from tolariad.core.rules.table.decide import decide

TURNS = int(os.environ.get("PRICE_TURNS", "4000"))
NAMES = ("accuracy", "margin", "tokens", "entropy")


class Metered(PriceTask):
    """The same losses, with or without metrics. `others`: what the loss is returned with; None: it is alone."""

    others: dict[str, Any] | None = None

    def loss(self, model: torch.nn.Module, batch: Any) -> Any:
        loss = super().loss(model, batch)
        return loss if self.others is None else {"loss": loss, **self.others}


KINDS: dict[str, dict[str, Any] | None] = {
    "none": None,
    "four numbers": dict.fromkeys(NAMES, 0.5),
    "four tensors": {name: torch.tensor(0.5) for name in NAMES},
}


def put(title: str, found: dict[str, list[float]]) -> None:
    print(f"{title:28s}{'5 % below':>12s}{'25 % below':>12s}{'median':>10s}{'over none':>12s}")
    for kind, values in found.items():
        values.sort()
        over = statistics.median(values) - statistics.median(found["none"])
        low, lower = values[len(values) // 20], values[len(values) // 4]
        print(f"{kind:28s}{low:12.2f}{lower:12.2f}{statistics.median(values):10.2f}{over:+12.2f}")


@pytest.mark.bench
def test_the_price_in_the_trainer_is_printed(tmp_path, seed):
    """Microseconds of processor time of whole steps, the kinds in random order; everything is durable at once."""
    draw = random.Random(seed)
    torch.set_num_threads(1)
    setup, step, close = recorded(tmp_path, f"{__name__}:Metered")
    task = setup.task
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for turn in range(-200, TURNS):
        for kind in draw.sample(list(KINDS), len(KINDS)):
            task.others = KINDS[kind]
            took = timed(step)
            if turn >= 0:
                found[kind].append(took)
    close()
    print(f"\nload {os.getloadavg()[0]:.1f}, torch {torch.__version__}: {TURNS} steps of each kind")
    put("trainer, us a step", found)
    assert all(len(values) == TURNS for values in found.values())


@pytest.mark.bench
def test_the_price_in_the_recorder_is_printed():
    """Microseconds from the ring to the bytes of the frame and the row of the table, beside the training."""
    world = World(1)
    world.run(200)
    state = decide(
        world.state,
        m.ReportReceived(incarnation=world.state.trainer.incarnation, report=m.MetricsNamedReport(names=NAMES)),
        m.Now(1, 1),
    ).state
    ours, theirs = channel_pair(1)
    end, reports = TrainerEnd(theirs, ours.page), Reports(ours, 1)
    ours.page.set_durable(1 << 60)
    found: dict[str, list[float]] = {}
    for kind, metrics in (("none", ()), ("four numbers", (0.1, 0.2, 0.3, 0.4))):
        number, now = state.progress.step, state
        found[kind] = []
        for turn in range(TURNS):
            number += 1
            end.report_step((number, 1, turn + 1, 0.5, 1.0, 0.1, 7), metrics)
            begun = time.perf_counter()
            (report,) = reports.drain(1, check_socket=False)
            decided = decide(
                now, m.ReportReceived(incarnation=now.trainer.incarnation, report=report), m.Now(turn, turn)
            )
            for event in decided.events:
                step_row(encode_event(event))
            found[kind].append((time.perf_counter() - begun) * 1e6)
            assert type(decided.events[0]) is m.StepCompleted
            now = decided.state
    end.close()
    ours.close()
    print()
    put("recorder, us a step", found)
