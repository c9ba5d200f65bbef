"""The state is digested after every N-th step, at the end of an epoch and at a checkpoint, and compared in a re-run."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from tolariad.core import messages as m
from tolariad.trainer.step import digesting
from tolariad.trainer.step.digesting import every_steps


def digests(daemon):
    """Return the reports of the state after updates, by step."""
    return {one.step: one for one in daemon.of(m.ParametersDigestedReport) if not one.checkpoint}


def test_every_third_step_the_last_of_each_epoch_and_each_checkpoint(daemon_in, configured):
    """A report follows its step's; the first one of a trainer names the tensors, and the others do not again."""
    daemon = daemon_in("run", 2)
    setup = daemon.train_here(configured("digits", epochs=2, batch_size=256, digest={"every_steps": 4}))
    steps = 2 * setup.train.batches
    assert sorted(digests(daemon)) == sorted({*range(4, steps + 1, 4), steps // 2, steps})
    kinds = daemon.of(m.StepReport, m.ParametersDigestedReport)
    for before, one in pairwise(kinds):
        if isinstance(one, m.ParametersDigestedReport) and not one.checkpoint:
            assert (type(before), before.step) == (m.StepReport, one.step)
    named = [one.names for one in daemon.of(m.ParametersDigestedReport)]
    assert {one.checkpoint for one in daemon.of(m.ParametersDigestedReport)} >= {one.id for one in daemon.committed}
    # Before the first update the optimizer has no moments.
    assert len(named[0]) < len(named[1])
    assert len([one for one in named if one]) == 1 + len(daemon.committed)
    of_weight = [name for name in named[1] if name.endswith("0.weight")]
    assert {name.partition(" of ")[0] for name in of_weight if " of " in name} >= {"exp_avg", "exp_avg_sq"}


@pytest.mark.parametrize("late", [False, True], ids=["at once", "read late"])
def test_a_re_run_names_the_first_step_and_tensor_that_differ(daemon_in, configured, monkeypatch, late):
    """One bit of one parameter is another one after a restart, from step 5 on. No bit of it is a false alarm before."""
    if late:
        monkeypatch.setattr("tolariad.trainer.build.reads_late", lambda settings, device: True)
    daemon = daemon_in("run", 1)
    configuration = configured("digits", epochs=1, batch_size=128, digest={"every_steps": 1})
    daemon.checkpoint_after_step, daemon.exit_after_step = 2, 8
    daemon.train_here(configuration)
    real = digesting.tensors_of

    def flipped(setup):
        found = real(setup)
        if setup.rates.global_step == 5:
            bits = next(tensor for name, tensor in found.items() if name.startswith("exp_avg of")).view(torch.int32)
            bits.view(-1)[0] ^= 1
        return found

    monkeypatch.setattr(digesting, "tensors_of", flipped)
    daemon.train_here(configuration)
    found = daemon.of(m.RerunReport)[-1].first_difference
    assert found.step == 5
    assert found.field.startswith("digest of exp_avg of ")
    assert found.expected != found.found


def test_a_re_run_of_the_same_steps_has_no_difference(resumes, configured):
    """Every step is compared, over an epoch's end: parameters, moments, buffers and averages."""
    options = {"epochs": 2, "batch_size": 256, "ema": {"decay": 0.9}, "task_options": {"model": "cnn"}}
    configuration = configured("digits", digest={"every_steps": 1}, **options)
    broken, calm = resumes(configuration, 2, (4, 9), checkpoint_every_epoch=False)
    assert any(one.first <= 6 < one.last for one in broken.reruns())
    assert {step: one.tensors for step, one in digests(broken).items()} == {
        step: one.tensors for step, one in digests(calm).items()
    }


@pytest.mark.parametrize(
    ("cost_s", "step_s", "steps"),
    [(1e-4, 1.0, 1), (0.005, 1.0, 1), (0.0051, 1.0, 2), (5e-5, 1e-3, 16), (1.0, 1e-6, 1 << 28), (1e9, 1e-9, 1 << 30)],
)
def test_digests_take_at_most_half_a_percent_of_the_steps(cost_s, step_s, steps):
    """The least power of two of steps with which that is so; it has a bound."""
    assert every_steps(cost_s, step_s) == steps
    assert steps == 1 << 30 or cost_s <= 0.005 * step_s * steps


def test_without_a_setting_digests_come_as_rarely_as_they_must(daemon_in, configured, monkeypatch):
    """Their distance is a power of two that follows from the measured times."""
    monkeypatch.setattr(digesting, "_FIRST", 2)
    monkeypatch.setattr(digesting, "every_steps", lambda cost_s, step_s: 4 if cost_s > 0 and step_s > 0 else 1)
    daemon = daemon_in("run", 1)
    setup = daemon.train_here(configured("digits", epochs=1, batch_size=128))
    assert sorted(digests(daemon)) == sorted({2, *range(4, setup.train.batches + 1, 4), setup.train.batches})
