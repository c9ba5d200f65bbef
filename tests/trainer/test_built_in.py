"""The built-in tasks learn what they are meant to learn."""

from __future__ import annotations


def test_digits_reaches_97_percent_with_its_defaults(daemon_in, configured):
    """20 epochs of the default network, as the first tour runs it."""
    daemon = daemon_in("digits", 20, checkpoint_every_epoch=False)
    daemon.train_here(configured("digits"))
    assert len(daemon.validations) == 20
    assert daemon.validations[20].metrics["accuracy"] >= 0.97
    assert daemon.validations[20].samples == 360


def test_the_language_model_gets_better(daemon_in, configured):
    """A few steps on real text are enough to see the loss fall."""
    daemon = daemon_in("chars", 1, checkpoint_every_epoch=False)
    daemon.exit_after_step = 12
    daemon.train_here(configured("chars", learning_rate={"base_lr": 3e-3, "warmup_epochs": 0}))
    losses = [daemon.steps[step].loss for step in sorted(daemon.steps)]
    assert sum(losses[-3:]) < 0.9 * sum(losses[:3])
