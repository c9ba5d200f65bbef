"""The rate of a seed in a run: it rises from the germination, as recorded, whatever trainer computes it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.trainer.seeds.test_seeds_in_a_run import EPOCHS, MOVES, TASK, orders
from tolariad.core.calc.learning_rate.schedule import LRPolicy
from tolariad.core.calc.seeds.stages import Stage

BASE, WARMUP = 0.01, 8
RATES = {"base_lr": BASE, "policy": "cosine", "warmup_epochs": 0, "min_lr": 0.0}


def warm(order):
    """The order, with a warm-up if it is a germination."""
    move = order.order
    return replace(order, order=replace(move, warmup_steps=WARMUP)) if move.stage is Stage.GERMINATED else order


def trained(daemon_in, configured, name, *cuts, script, seeds=None):
    """Train with these orders; each cut ends a trainer after that step. Return daemon and set-up."""
    daemon = daemon_in(name, EPOCHS, script_orders=script)
    config = configured(f"{TASK}:Seeded", epochs=EPOCHS, batch_size=5, learning_rate=RATES, seeds=seeds or {})
    for cut in cuts:
        daemon.exit_after_step = cut
        daemon.train_here(config)
    setup = daemon.train_here(config)
    daemon.reruns()
    return daemon, setup


@pytest.mark.parametrize(("seeds", "base"), [({}, 0.1 * BASE), ({"lr": 0.5}, 0.5)])
def test_each_seed_has_a_warmup_of_its_own(daemon_in, configured, seeds, base):
    """From a hundredth of its base at its first update to the base, and there it stays while the host's rate decays."""
    _, setup = trained(daemon_in, configured, "run", script=tuple(map(warm, orders())), seeds=seeds)
    used = {one.step: one.group_lrs for one in setup.rates.lr_history}
    inner = [used[step]["seed.inner"] for step in range(3, 31)]
    outer = [used[step].get("seed.outer") for step in range(6, 31)]
    rise = [base * (0.01 + (1.0 - 0.01) * (n / WARMUP)) for n in range(WARMUP)]

    assert inner == rise + [base] * 20
    # It is culled before update 13, and another one germinates before update 24.
    assert outer == rise[:7] + [None] * 11 + rise[:7]
    assert used[30]["default"] == 0.0
    assert {group.policy for group in setup.rates.groups[1:]} == {LRPolicy.SEED_WARMUP}


@pytest.mark.parametrize("cuts", [(2,), (5, 8), (10,), (14, 24), (27,)])
def test_a_run_that_was_cut_short_within_a_warmup_ends_as_one_that_was_not(daemon_in, configured, cuts):
    """Its checkpoints hold the schedules, and a re-run makes the germination with the same one."""
    script = tuple(map(warm, orders()))
    calm, _ = trained(daemon_in, configured, "calm", script=script)
    cut, _ = trained(daemon_in, configured, "cut", *cuts, script=script)

    assert cut.files("end") == calm.files("end")
    assert cut.steps == calm.steps


def test_a_seed_of_an_older_journal_keeps_the_curve_of_the_host(daemon_in, configured):
    """Its germination has no warm-up: the rates are the host's at every step, also after a restart."""
    script = orders(MOVES[:2])
    daemon, setup = trained(daemon_in, configured, "run", 12, 22, script=script)
    used = [one.group_lrs for one in setup.rates.lr_history if "seed.inner" in one.group_lrs]

    assert used
    assert all(one["seed.inner"] == one["default"] for one in used)
    assert setup.rates.groups[1].schedule == setup.rates.groups[0].schedule
    assert daemon.ended
