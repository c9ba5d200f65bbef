"""Real small trainings are left alone, and a rate far too high is found in them.

`make study` runs them all; `python -m tests.study.trainings` writes the tables of docs/detection-study.md.
"""

from __future__ import annotations

import statistics

import pytest

from tests.study.trainings import reinforced, supervised, unsupervised
from tests.study.trainings.base import Hot, Training, run
from tests.study.trainings.table import measure, tables

# No kind of batch may be skipped in more than a twentieth of its steps.
KIND = 0.05
SHORT = (
    Training("GAN", "turns", unsupervised.adversarial, {"shown": "turns", "steps": 600}),
    Training("warm restarts", "of 150", supervised.restarts, {"period": 150, "steps": 900}),
    Training("DQN", "every 50", reinforced.q_learning, {"every": 50, "steps": 700}),
    Training("contrastive", "growing", unsupervised.contrast, {"growing": True, "steps": 500}),
)


@pytest.mark.sample(1)
@pytest.mark.parametrize("training", SHORT, ids=lambda one: one.group)
def test_a_healthy_training_is_never_told_to_go_back(training):
    """Nor is a kind of its batches starved. Each oscillates, jumps or grows, as its like does."""
    outcome = run(training, 1, acts=True)

    assert outcome.back == []
    assert outcome.worst_kind <= KIND
    assert outcome.skips <= outcome.steps / 100


@pytest.mark.torture
def test_a_rare_second_task_learns_as_well_as_without_a_detector():
    """A twentieth of the batches has five times the loss. A detector that skipped them reduced the accuracy from 0.89
    to 0.15.
    """
    training = Training("two heads", "a twentieth, x5", supervised.two_heads, {"steps": 1500})
    acting, recording = run(training, 1, acts=True), run(training, 1, acts=False)

    assert acting.back == recording.back == []
    assert acting.worst_kind <= KIND
    assert acting.met["second"] == recording.met["second"] > 50
    assert recording.measure > 0.8
    assert acting.measure >= recording.measure - 0.02


def test_a_rate_a_thousandfold_too_high_is_found_in_a_real_training():
    """Put in at step 500: the run is told to go back soon after, and not before."""
    training = Training("ordinary", "sgd", supervised.classify, {"optimizer": "sgd", "rate": 0.1, "steps": 800})
    outcome = run(training, 1, acts=True, hot=Hot(500, 1000.0))

    assert len(outcome.back) == 1
    assert 500 <= outcome.back[0][0] <= 564


@pytest.mark.study
def test_no_healthy_training_is_harmed_and_faults_are_found():
    """In all of them: no rollback, under one skip in 1000 steps, and as good as with a detector that only records."""
    study = measure(print)
    print(tables(study))
    acting = [one.acting for one in study.healthy]
    heads = [one for one in study.healthy if one.acting.training.group == "two heads"]

    assert len(acting) >= 60
    assert [(one.training.name, one.seed, one.back) for one in acting if one.back] == []
    assert sum(one.skips for one in acting) < sum(one.steps for one in acting) / 1000
    assert [(one.training.name, one.seed, one.worst_kind) for one in acting if one.worst_kind > KIND] == []
    assert statistics.fmean(one.gained for one in heads) >= -0.01
    assert min(one.gained for one in heads) >= -0.03
    # A contrastive loss cannot rise above the logarithm of its batch: here x2.4.
    missed = {one.training.make for one in study.struck if one.factor == 1000.0 and one.after is None}
    assert missed <= {unsupervised.contrast}
