"""The built-in tasks learn what they are meant to learn."""

from __future__ import annotations

from pathlib import Path

from tolariad.config import load
from tolariad.core.calc.settings.rules import resolved_json
from tolariad.trainer.tasks import template

TEMPLATE = Path(template.__file__)


def test_digits_reaches_97_percent_with_its_defaults(daemon_in, configured):
    """20 epochs of the default network, as the first tour runs it."""
    daemon = daemon_in("digits", 20, checkpoint_every_epoch=False)
    daemon.train_here(configured("digits"))
    assert len(daemon.validations) == 20
    assert daemon.validations[20].metrics["accuracy"] >= 0.97
    assert daemon.validations[20].samples == 360


def test_the_template_reaches_90_percent_with_the_general_defaults(daemon_in, tmp_path):
    """20 epochs, as `tolariad new-task` says, and no key but task and epochs: it is no built-in task."""
    file = tmp_path / "mine.py"
    file.write_text(TEMPLATE.read_text())
    name = f"{file}:MyTask"
    settings = load({"tolaria": {"task": name, "epochs": 20, "rng_seed": 7, "torch_threads": 1}})
    daemon = daemon_in(name, 20, checkpoint_every_epoch=False)
    daemon.train_here(resolved_json(settings))
    assert settings.learning_rate.base_lr == 0.0001
    assert daemon.validations[20].metrics["accuracy"] >= 0.9


def test_the_language_model_gets_better(daemon_in, configured):
    """A few steps on real text are enough to see the loss fall."""
    daemon = daemon_in("chars", 1, checkpoint_every_epoch=False)
    daemon.exit_after_step = 12
    daemon.train_here(configured("chars", learning_rate={"base_lr": 3e-3, "warmup_epochs": 0}))
    losses = [daemon.steps[step].loss for step in sorted(daemon.steps)]
    assert sum(losses[-3:]) < 0.9 * sum(losses[:3])
