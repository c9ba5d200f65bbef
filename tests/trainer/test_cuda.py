"""On a GPU: one wait for each step, and runs resume to the same bits. Skipped without a GPU."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from tolariad.core.calc.settings.reading import read_settings
from tolariad.core.calc.settings.rules import resolved_json
from tolariad.trainer.build import build
from tolariad.trainer.checkpoints import lanes, pinned
from tolariad.trainer.data.randomness import rng_states, set_rng_states
from tolariad.trainer.orders import Boundary
from tolariad.trainer.step.gradients import InFlight, forward_backward, update

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device here"),
]
TASKS = f"{Path(__file__).with_name('tasks')}/augmenting.py"


@pytest.fixture(scope="module", autouse=True)
def workspace():
    """cuBLAS reads it with its first handle, so it is set before any test."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def configured(task="Augmenting", **explicit):
    base = {"task": f"{TASKS}:{task}", "rng_seed": 7, "device": "cuda:0", "torch_threads": 1, "determinism": "strict"}
    return resolved_json(read_settings({"epochs": 2, "batch_size": 8, **base, **explicit}))


def on_device(task, **explicit):
    named = {"task": f"{Path(TASKS).with_name('on_device.py')}:{task}", "rng_seed": 3, **explicit}
    return configured(**named)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_nothing_in_a_step_waits_for_the_device_before_its_loss_is_read(precision):
    """torch's sync guard raises at every wait; the numbers equal those of the host."""
    setup = build(configured(precision=precision))
    batch = [torch.randn(8, 1, 4, 4).pin_memory(), torch.arange(8).remainder(3).pin_memory()]
    for step in (1, 2):
        forward_backward(setup, [batch], step).read()
        update(setup, skip=False)
        setup.optimizer.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = forward_backward(setup, [batch, batch], 3)
        update(setup, skip=False)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert isinstance(found, InFlight)
    assert setup.reads_late
    gradients = [parameter.grad for parameter in setup.model.parameters()]
    assert found.read().grad_norm == pytest.approx(float(torch.nn.utils.get_total_norm(gradients)), rel=1e-5)


def test_the_devices_generator_comes_back():
    """Dropout on the device draws the same numbers as without the interruption."""
    torch.cuda.manual_seed_all(3)
    states = rng_states()
    drawn = torch.rand(5, device="cuda")
    torch.rand(100, device="cuda")
    set_rng_states(states)
    assert torch.equal(torch.rand(5, device="cuda"), drawn)


@pytest.mark.parametrize(
    ("task", "options"),
    [
        ("Augmenting", {}),
        ("Augmenting", {"precision": "bf16"}),
        ("Overflowing", {"precision": "fp16"}),
        ("Augmenting", {"ema": {"decay": 0.9}, "accumulate": 2}),
        ("Augmenting", {"detect": {"sync": True}, "grad_norm": {"every": 3}}),
    ],
    ids=["fp32", "bf16", "fp16 with skips", "average", "read at once"],
)
def test_a_run_on_the_device_resumes_to_the_same_bits(daemon_in, task, options):
    """Interrupted twice, once after a checkpoint within an epoch."""
    configuration = configured(task, **options)
    plain = daemon_in("plain", 2)
    plain.train_here(configuration)
    broken = daemon_in("broken", 2)
    for checkpoint_at, exit_at in ((2, 4), (None, 6)):
        broken.checkpoint_after_step, broken.exit_after_step = checkpoint_at, exit_at
        broken.train_here(configuration)
    broken.train_here(configuration)
    assert broken.ended
    assert broken.files("end") == plain.files("end")
    assert broken.skips == plain.skips or options.get("precision") == "fp16"
    assert broken.reruns()
    assert bool(plain.skips) is (task == "Overflowing")


@pytest.fixture
def unwatched(monkeypatch):
    """Torch's sync guard raises at every wait in a step, and at none between two steps."""
    real = Boundary.stop

    def stop(boundary):
        torch.cuda.set_sync_debug_mode("default")
        real(boundary)
        steps.append(boundary)
        if len(steps) > 3:
            torch.cuda.set_sync_debug_mode("error")

    steps: list[Boundary] = []
    monkeypatch.setattr(Boundary, "stop", stop)
    yield steps
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize(
    ("task", "options"),
    [
        ("Plain", {}),
        ("Measuring", {"precision": "bf16", "ema": {"decay": 0.9}, "batch_size": 4, "accumulate": 2}),
        ("Clipping", {}),
        ("Cautious", {"grad_norm": {"every": 3}}),
        ("Several", {"grad_norm": {"every": 2}}),
    ],
    ids=["plain", "averages and metrics", "clipped", "cautious", "several"],
)
def test_no_step_of_a_run_waits_for_the_device(daemon_in, unwatched, task, options):
    """The cases of test_simulated_gpu.py. The first steps make memory and handles, which may wait."""
    daemon = daemon_in("run", 1)
    try:
        daemon.train_here(on_device(task, epochs=1, **options))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(daemon.steps) == 5
    assert len(unwatched) >= 5


def test_the_memory_of_a_checkpoint_is_pinned_and_given_back():
    """Copies into it are asynchronous; afterwards it is ordinary memory again."""
    memory = torch.zeros(1 << 22, dtype=torch.uint8)
    assert pinned.pin(memory)
    assert memory.is_pinned()
    source = torch.arange(1 << 20, dtype=torch.float32, device="cuda")
    lanes.copy([(memory.view(torch.float32), source)])
    assert torch.equal(memory.view(torch.float32), source.cpu())
    pinned.unpin(memory)
    assert not memory.is_pinned()
    # Pinned twice is an error, which the next kernel must not report again.
    assert pinned.pin(memory)
    assert not pinned.pin(memory)
    assert float(torch.ones(3, device="cuda").sum()) == 3.0
    pinned.unpin(memory)


def test_a_copy_waits_for_streams_of_the_task():
    """What a task computes on a stream of its own is part of the state."""
    stream, target = torch.cuda.Stream(), torch.empty(1 << 20)
    source = torch.zeros(1 << 20, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        source.fill_(1.0)
    lanes.copy([(target, source)])
    assert float(target.min()) == 1.0
