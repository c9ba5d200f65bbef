"""What digests of the state cost: one alone, by the number and size of tensors, and all of a run in its steps' time.

Nothing is asserted but that a run without a setting has digests. `TOLARIA_BENCH_STEPS` makes the run longer.
"""

from __future__ import annotations

import os
import statistics
import time

import pytest
import torch

from tests.trainer.conftest import FakeDaemon, config
from tolariad.core import messages as m
from tolariad.trainer.step import digesting as when
from tolariad.trainer.step.parameter_digest import digesting, mixed

pytestmark = pytest.mark.bench

STEPS = int(os.environ.get("TOLARIA_BENCH_STEPS", "2000"))
KINDS = {"24 tensors of 4 096": (24, 4096), "300 of 65 536": (300, 1 << 16), "25 of a million": (25, 1_000_000)}


def seconds(action, times=15):
    """Return the median time of an action."""
    found = []
    for _ in range(times):
        before = time.perf_counter()
        action()
        found.append(time.perf_counter() - before)
    return statistics.median(found)


@pytest.mark.parametrize("kind", KINDS)
def test_one_digest(kind):
    """XXH3 on the CPU, beside the sum that a device would compute, here on the CPU too."""
    count, size = KINDS[kind]
    tensors = {str(number): torch.randn(size) for number in range(count)}
    gigabytes = count * size * 4 / 1e9
    host = seconds(lambda: digesting(tensors).read())
    device = seconds(lambda: [mixed(tensor) for tensor in tensors.values()], times=3)
    print(f"\n{kind}: XXH3 {host * 1e6:.0f} us ({gigabytes / host:.1f} GB/s), mixed sum {device * 1e6:.0f} us")


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_all_digests_of_a_run(tmp_path, monkeypatch, model):
    """The share of the time of the steps that went into digests, as often as they come by themselves."""
    spent, steps = [0.0], {}

    def measured(name):
        real = getattr(when.ParameterDigests, name)

        def call(self, *arguments):
            before = time.perf_counter()
            real(self, *arguments)
            spent[0] += time.perf_counter() - before
            steps.setdefault("first", time.perf_counter())
            steps["last"] = time.perf_counter()

        monkeypatch.setattr(when.ParameterDigests, name, call)

    for name in ("begin", "take", "tell"):
        measured(name)
    epochs = max(1, STEPS // 23)
    daemon = FakeDaemon(tmp_path, epochs, checkpoint_every_epoch=False)
    daemon.train_here(config("digits", epochs=epochs, task_options={"model": model}, torch_threads=1))
    made = [one.step for one in daemon.of(m.ParametersDigestedReport) if not one.checkpoint]
    by_themselves = [step for step in made if step % 23]
    whole = steps["last"] - steps["first"]
    every = by_themselves[-1] - by_themselves[-2] if len(by_themselves) > 1 else 0
    print(
        f"\n{model}: {daemon.last_step} steps of {whole / daemon.last_step * 1e6:.0f} us; {len(made)} digests, the "
        f"last ones every {every} steps and at each epoch's end, took {spent[0] / whole:.2%}, "
        f"{spent[0] / max(1, len(made)) * 1e6:.0f} us each"
    )
    assert by_themselves
