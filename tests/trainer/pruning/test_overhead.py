"""The price of pruning for the training process while it only analyses: counted calls, and what one of them costs."""

from __future__ import annotations

import sys
import time
from collections import Counter

import pytest

from tests.trainer.pruning.in_a_run import TASK
from tolariad.trainer import pruning

EPOCHS = 3
STEPS = 10 * EPOCHS
ROOM = pruning.__path__[0]
# Of a step of 20 ms: 20 us.
SHARE_MAX = 0.001
STEP_S = 0.02


def hooks(model):
    """Return how many hooks torch calls for the model's modules and parameters."""
    of_modules = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return sum(len(getattr(one, name)) for one in model.modules() for name in of_modules) + sum(
        len(getattr(one, name) or ()) for one in model.parameters() for name in ("_backward_hooks",)
    )


@pytest.fixture
def counted(daemon_in, configured):
    """Train, and return the last setup and the calls into the room of pruning by function."""

    def train(name, **prune):
        calls: Counter[str] = Counter()

        def count(frame, event, _):
            if event == "call" and frame.f_code.co_filename.startswith(ROOM):
                calls[frame.f_code.co_qualname] += 1

        daemon = daemon_in(name, EPOCHS)
        sys.setprofile(count)
        try:
            setup = daemon.train_here(configured(f"{TASK}:Pruned", batch_size=5, prune=prune))
        finally:
            sys.setprofile(None)
        assert daemon.last_step == STEPS
        return setup, calls

    return train


def test_validation_only_adds_four_calls_to_a_step_and_no_hook(counted):
    """Without pruning there is none in a step. What grows with the steps is named here, call by call."""
    bare, without = counted("without")
    setup, calls = counted("with", enabled=True)

    assert calls - without == {
        "Pruner.saw": STEPS,
        "Pruner.due": STEPS,
        "StepTimes.since_last": STEPS,
        # The first step has none before it.
        "StepTimes.add": STEPS - 1,
    }
    assert "Pruner.saw" not in without
    assert "Pruner.zero_gradients" not in calls
    assert "Pruner.hold" not in calls
    assert hooks(setup.model) == hooks(bare.model)


def test_validation_only_costs_under_a_thousandth_of_a_step_of_20_ms(counted):
    """All that a step calls, by the thread's time on a core; some 1 us, so another machine has room."""
    setup, _ = counted("run", enabled=True)
    pruner, count = setup.pruner, 2000
    assert pruner.watches

    def once():
        begun = time.thread_time()
        for step in range(count):
            pruner.saw(step, 1.0, rerunning=False)
            assert pruner.due() is None
        return (time.thread_time() - begun) / count

    each = min(once() for _ in range(5))
    print(f"\na step: {each * 1e6:.2f} us, {each / STEP_S:.4%} of 20 ms")

    assert each < SHARE_MAX * STEP_S
