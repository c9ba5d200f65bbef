"""The price of the state packet: its size, and the time from values to bytes and back.

Budgets of the sources: 280 bytes for a packet without seeds, 80 µs for one with 10 seeds and 5 metrics. Times are of
this thread's own work, so that other load of the machine counts less.
"""

from __future__ import annotations

import os
import platform
import statistics
import time

import google.protobuf
import pytest

from tolariad.core.calc.health.budgets import BUDGETS
from tolariad.leyline import HardwareContext, SeedLifecycleStage, SeedState, SystemStatePacket, SystemStateSerializer

ROUNDS = int(os.environ.get("TOLARIA_BENCH_ROUNDS", "9"))
TIMES = 500
METRICS = ("gradient_norm", "memory_utilization", "inference_latency_ms", "loss_variance", "learning_rate")
HEADER_BYTES_MAX = 280


def packet_of(seeds):
    """A packet with a value in every field."""
    return SystemStatePacket(
        version=1,
        current_epoch=399,
        validation_accuracy=0.9743,
        validation_loss=0.0871,
        timestamp_ns=1_767_323_045_123_456_789,
        hardware_context=HardwareContext(
            device_type="cuda",
            device_id="cuda:0",
            total_memory_gb=79.6,
            available_memory_gb=61.2,
            temperature_celsius=41.0,
            utilization_percent=93.0,
            compute_capability=90,
        ),
        training_metrics={name: 0.125 * n for n, name in enumerate(METRICS, 1)},
        seed_states=[
            SeedState(
                seed_id=f"seed-{n}",
                stage=SeedLifecycleStage.SEED_STAGE_BLENDING,
                gradient_norm=0.31,
                learning_rate=1e-3,
                layer_depth=n + 1,
                metrics={"alpha": 0.5},
                age_epochs=12,
                risk_score=0.1,
            )
            for n in range(seeds)
        ],
        packet_id="0b9a2c1e6a534f0e9d0c2f6f7f0d3c55",
        global_step=11_172,
        training_loss=0.0642,
        source_subsystem="tolaria",
        training_run_id="5f3c9a1de2b847605f3c9a1de2b84760",
        experiment_name="digits",
    )


def microseconds(work):
    """The best and the median round of some work, in µs a call."""
    rounds = []
    for _ in range(ROUNDS):
        begun = time.thread_time_ns()
        for _ in range(TIMES):
            work()
        rounds.append((time.thread_time_ns() - begun) / TIMES / 1e3)
    return min(rounds), statistics.median(rounds)


@pytest.mark.bench
def test_what_a_state_packet_costs():
    """Bytes and µs by number of seeds, always with 5 metrics."""
    print(f"\n{platform.machine()}, Python {platform.python_version()}, protobuf {google.protobuf.__version__}")
    print(f"{'seeds':>5}{'bytes':>8}{'serialize':>12}{'deserialize':>12}{'build too':>12}   (best, µs)")
    sizes, medians = {}, {}
    for seeds in (0, 1, 10, 100):
        packet = packet_of(seeds)
        data = SystemStateSerializer.serialize(packet)
        sizes[seeds] = len(data)
        best, medians[seeds] = microseconds(lambda packet=packet: SystemStateSerializer.serialize(packet))
        read, _ = microseconds(lambda data=data: SystemStateSerializer.deserialize(data))
        whole, _ = microseconds(lambda seeds=seeds: SystemStateSerializer.serialize(packet_of(seeds)))
        print(f"{seeds:5}{len(data):8}{best:12.1f}{read:12.1f}{whole:12.1f}")

    assert sizes[0] < HEADER_BYTES_MAX
    assert medians[10] < BUDGETS["serialization"].limit
