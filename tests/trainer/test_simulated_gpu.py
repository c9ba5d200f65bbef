"""Runs on a simulated CUDA device: no step waits for it, and nothing is read too early, or on the wrong side."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.simulated_gpu import CUDA, OnDevice, SimulatedGpu
from tests.trainer.pruning import in_a_run
from tests.trainer.seeds.test_seeds_in_a_run import MOVES, orders
from tolariad.core.calc.seeds.stages import Stage
from tolariad.trainer.checkpoints import lanes, pinned
from tolariad.trainer.checkpoints.buffers import HostBuffer
from tolariad.trainer.checkpoints.random_states import fitted
from tolariad.trainer.orders import Boundary
from tolariad.trainer.process.threads import same_device
from tolariad.trainer.step import measured

TASKS = Path(__file__).with_name("tasks")
STEPS = 5


@pytest.fixture
def gpu(monkeypatch):
    """The device, in use for the whole test."""
    with SimulatedGpu(monkeypatch) as device:
        yield device


@pytest.fixture
def counted(gpu, monkeypatch):
    """What the host waited for in each step, between two boundaries. The first entry is what came before the first."""
    found = []

    def stop(boundary):
        found.append((dict(gpu.waits), gpu.events, gpu.transfers))
        real(boundary)
        gpu.waits.clear()
        gpu.events = gpu.transfers = 0

    real = Boundary.stop
    monkeypatch.setattr(Boundary, "stop", stop)
    return found


def on_device(configured, task, **options):
    base = {"device": "cuda:0", "epochs": 1, "batch_size": 8, "determinism": "strict", "rng_seed": 3}
    return configured(f"{TASKS}/on_device.py:{task}", **{**base, **options})


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
def test_no_step_waits_for_the_device(daemon_in, configured, counted, task, options):
    """The numbers of a step are one transfer, for which the next step waits; metrics of the task are another."""
    daemon = daemon_in("run", 1)
    daemon.train_here(on_device(configured, task, **options))
    assert len(daemon.steps) == STEPS
    steps = counted[1:]
    assert len(steps) == STEPS
    of_metrics = 1 if task == "Measuring" else 0
    assert [one for one in steps if one[0]] == []
    # The state after the last step of an epoch is digested, which is one more transfer.
    assert [one[2] for one in steps] == [1 + of_metrics] * (STEPS - 1) + [2 + of_metrics]
    # The first step has nothing to read yet, nor has one after a boundary at which an order was obeyed.
    assert all(one[1] <= 1 + of_metrics + (one is steps[-1]) for one in steps)


def test_a_step_with_masks_does_not_wait_either(daemon_in, configured, counted):
    """Masked gradients and weights are set to 0 on the device."""
    options = {"prune": {"enabled": True}, "batch_size": 5, "device": "cuda:0", "epochs": 1}
    daemon = daemon_in("run", 1, waiting=(in_a_run.masks(1, in_a_run.FIRST, cause=1),))
    setup = daemon.train_here(configured(f"{in_a_run.TASK}:Pruned", **options))
    assert setup.pruner.active
    weight = dict(setup.model.named_parameters())["first.weight"]
    assert isinstance(weight, OnDevice)
    assert not weight.held[2].any()
    assert [one for one, _, _ in counted[3:]] == [{}] * (in_a_run.STEPS - 2)


def test_a_step_with_seeds_waits_for_their_norms_only(daemon_in, configured, counted):
    """They come in one transfer, beside that of the step's numbers. A seed learns, and another one is blended in."""
    daemon = daemon_in("run", 1, script_orders=orders(MOVES[:5]))
    task = f"{TASKS}/seeded.py:Seeded"
    setup = daemon.train_here(configured(task, epochs=1, batch_size=5, ema={"decay": 0.9}, device="cuda:0"))
    assert {name: plot.stage for name, plot in setup.garden.plots.items()} == {
        "inner": Stage.BLENDING,
        "outer": Stage.TRAINING,
    }
    steps = counted[1:]
    assert [waits for waits, _, _ in steps] == [{}] * len(steps)
    # Before an order is obeyed, the step before is settled.
    assert all(events <= 3 and transfers <= 2 for _, events, transfers in steps[:-1])


def test_losses_are_read_at_once_if_the_update_depends_on_them(daemon_in, configured, counted):
    """With `detect.sync` a step waits for its own numbers, and for nothing else."""
    daemon = daemon_in("run", 1)
    daemon.train_here(on_device(configured, "Plain", detect={"sync": True}))
    assert [one[:2] for one in counted[1:]] == [({}, 1)] * (STEPS - 1) + [({}, 2)]


@pytest.mark.parametrize("task", ["Measuring", "Several"])
def test_a_run_resumes_to_the_same_bits(daemon_in, configured, gpu, task):
    """Interrupted within an epoch, and after a checkpoint. Its draws are the device's."""
    configuration = on_device(configured, task, epochs=2)
    calm, broken = daemon_in("calm", 2), daemon_in("broken", 2)
    calm.train_here(configuration)
    for checkpoint_at, exit_at in ((2, 3), (None, 7)):
        broken.checkpoint_after_step, broken.exit_after_step = checkpoint_at, exit_at
        broken.train_here(configuration)
        torch.cuda.manual_seed_all(99)
    broken.train_here(configuration)
    assert broken.files("end") == calm.files("end")
    assert broken.steps == calm.steps
    assert broken.reruns()
    assert all(one.device == CUDA for one in nn.Linear(1, 1).to("cuda").parameters())


def test_the_numbers_are_those_of_the_host(daemon_in, configured, monkeypatch):
    """The same run without the device, but for what it draws there."""
    losses = []
    for device in ("cpu", "cuda:0"):
        daemon = daemon_in(device.replace(":", ""), 1)
        options = {"task_options": {"dropout": 0}, "device": device}
        with monkeypatch.context() as patch:
            if device == "cpu":
                daemon.train_here(on_device(configured, "Plain", **options))
            else:
                with SimulatedGpu(patch):
                    daemon.train_here(on_device(configured, "Plain", **options))
        losses.append([(step.loss, step.grad_norm) for step in daemon.steps.values()])
    for one, other in zip(*losses, strict=True):
        assert one == pytest.approx(other, rel=1e-5)


# -- what the simulation finds: without these, a test above would prove nothing ----------------------------------------


def test_a_wait_is_counted(gpu):
    """By its name: reading, comparing, choosing by values, blocking copies."""
    one = torch.ones(3).to("cuda", non_blocking=True)
    assert not gpu.waits
    for read in (
        lambda: one.sum().item(),
        one.tolist,
        lambda: torch.equal(one, one),
        lambda: one[one > 0],
        lambda: one[torch.tensor([0])],
        lambda: torch.ones(3).to("cuda"),
        one.cpu,
        lambda: torch.tensor(1.0, device="cuda"),
        lambda: torch.where(one > 0, torch.ones(()), one),
        lambda: bool(one[0]),
        lambda: torch.nonzero(one),
    ):
        before = gpu.waits.total()
        read()
        assert gpu.waits.total() == before + 1
    for free in (
        lambda: torch.full((), 1.0, device="cuda"),
        lambda: torch.where(one > 0, 1.0, one),
        lambda: one * torch.tensor(2.0),
        lambda: one[1:],
        lambda: one.double().sum(),
    ):
        before = gpu.waits.total()
        assert isinstance(free(), OnDevice)
        assert gpu.waits.total() == before


def test_tensors_of_both_sides_are_refused(gpu):
    """As a real device does."""
    here, there = torch.ones(2, 2), torch.ones(2, 2).to("cuda")
    for call in (lambda: here + there, lambda: there @ here, lambda: torch.stack([there[0, 0], torch.ones(())])):
        with pytest.raises(RuntimeError, match="same device"):
            call()
    with pytest.raises(TypeError, match="numpy"):
        there.numpy()


def test_numbers_that_are_read_before_their_event_are_garbage(daemon_in, configured, gpu, monkeypatch):
    """A transfer without the wait for its event is found."""
    monkeypatch.setattr(measured.Transfer, "read", lambda self: self._host.tolist())
    daemon = daemon_in("run", 1)
    daemon.train_here(on_device(configured, "Plain"))
    assert all(step.loss > 1e5 or step.loss < 0 for step in daemon.steps.values())


def test_a_checkpoint_that_does_not_wait_for_its_copies_holds_garbage(gpu, monkeypatch):
    """The copies into pinned memory are asynchronous; into other memory they are not."""
    source = torch.arange(4.0).to("cuda")
    for waits in (True, False):
        if not waits:
            monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
        buffer = HostBuffer(pinned=True)
        buffer.reserve(16)
        target = buffer.take(16).view(torch.float32)
        lanes.copy([(target, source)])
        assert torch.equal(target, torch.arange(4.0)) is waits


# -- memory, threads, random states ------------------------------------------------------------------------------------


def test_the_memory_of_checkpoints_is_pinned_and_given_back(gpu):
    """Also when it grows, in the background."""
    buffer = HostBuffer(pinned=True)
    buffer.reserve(5000)
    (first,) = gpu.pinned
    buffer.reserve_ahead(100_000)
    buffer.wait()
    assert list(gpu.pinned.values()) == [100_000]
    assert first not in gpu.pinned
    buffer.release()
    assert not gpu.pinned


def test_memory_that_cannot_be_pinned_is_used_as_it_is(gpu, monkeypatch, caplog):
    """With a warning; the error does not come again with the next kernel."""
    runtime, kernels = torch.cuda.cudart(), []
    monkeypatch.setattr(runtime, "cudaHostRegister", lambda *_: 712)
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: kernels.append(1))
    assert not pinned.pin(torch.empty(100, dtype=torch.uint8))
    assert "cannot be pinned (CUDA says 712)" in caplog.text
    assert kernels
    buffer = HostBuffer(pinned=True)
    buffer.reserve(64)
    buffer.release()


def test_a_thread_works_on_the_device_of_the_one_that_began_it(gpu, monkeypatch):
    """A new thread begins on device 0."""
    chosen = []
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: chosen.append((device, threading.get_ident())))
    thread = threading.Thread(target=same_device())
    thread.start()
    thread.join()
    assert [device for device, _ in chosen] == [3]
    assert chosen[0][1] != threading.get_ident()


@pytest.mark.parametrize(
    ("held", "was", "here", "now", "expected"),
    [
        ("ab", 1, 2, 1, "ab"),
        ("abcd", 3, 1, 0, "d"),
        ("a", 0, 3, 2, "aya"),
        ("ab", 0, 3, 1, "aaz"),
        ("", 0, 2, 0, ""),
    ],
    ids=["the same", "fewer", "more", "another number", "none"],
)
def test_random_states_fit_a_machine_with_other_devices(monkeypatch, held, was, here, now, expected):
    """The run's device continues with the draws of the run's device, wherever that was."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: here)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda number: "xyz"[number])
    states = {"torch": "t", "cuda": list(held), "device": was}
    found = fitted(states, torch.device("cuda", now))
    assert "".join(found["cuda"]) == expected
    assert found["torch"] == "t"
    on_host = fitted(states, torch.device("cpu"))
    assert on_host["cuda"] == (list(held) if len(held) == here else [])
