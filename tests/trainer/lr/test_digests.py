"""The digests of coming rates are computed in blocks; each is that of the row its step used."""

from __future__ import annotations

import torch

from tolariad.core.calc.learning_rate.curve import rates_digest
from tolariad.core.calc.learning_rate.schedule import GroupConfig, LRPolicy
from tolariad.trainer.lr import UnifiedLRController


def optimizer_of(count):
    groups = [{"params": [torch.nn.Parameter(torch.zeros(2))]} for _ in range(count)]
    return torch.optim.SGD(groups, lr=0.1)


def controller_of(*counts):
    controller = UnifiedLRController({}, steps_per_epoch=10, total_steps=5_000)
    for number, count in enumerate(counts):
        configs = [
            GroupConfig(name=f"{number}.{index}", policy=LRPolicy.HOST_COSINE, base_lr=0.1 / (index + 1))
            for index in range(count)
        ]
        controller.register_optimizer(f"o{number}", optimizer_of(count), configs)
    return controller


def test_each_is_that_of_the_row_its_step_used():
    """Across the end of a block, after an order, in a loaded state, and for several optimizers."""
    for counts in ((1,), (3,), (1, 2)):
        controller = controller_of(*counts)
        seen = []
        for step in range(1, 2_200):
            row = controller.row
            assert controller.digest(step, row) == rates_digest(row), (counts, step)
            seen.append(row)
            controller.advance(1)
            if step == 700:
                controller.order("0.0", controller.row[0] / 2, reason="test")
            if step == 900:
                controller.load_state_dict(controller.state_dict())
        assert len(set(seen)) > 2_000


def test_a_row_of_a_step_that_is_past_has_its_own():
    """On a device it is requested one step late, and the rates may have been computed again since."""
    controller = controller_of(1)
    first = controller.row
    controller.digest(1, first)
    controller.advance(1)
    second = controller.row
    controller.order("0.0", second[0] / 2, reason="test")

    assert controller.digest(1, first) == rates_digest(first)
    assert controller.digest(2, second) == rates_digest(second) != controller.digest(2, controller.row)
