"""Trials in this process: a training with the fake daemon, and requests about its checkpoints."""

from __future__ import annotations

from typing import Any

import pytest

from tests.trainer.tasks.tested import FILE
from tolariad.trainer.probes.answering import tried
from tolariad.trainer.probes.messages import Weights


class Trained:
    """A short training. `ask` makes a request with its configuration, about its last checkpoint or `weights`."""

    def __init__(self, daemon: Any, configuration: bytes) -> None:
        self.daemon, self.configuration = daemon, configuration
        self.setup = daemon.train_here(configuration)
        last = daemon.committed[-1]
        self.weights = Weights(last.id, str(daemon.run_dir / "checkpoints" / last.id), last.manifest)

    def ask(self, kind: Any, configuration: bytes | None = None, **fields: Any) -> Any:
        """Return the answer, or the refusal, and the exit code."""
        config = (configuration or self.configuration).decode()
        return tried(kind(config=config, **{"weights": self.weights, **fields}))


@pytest.fixture
def trained(daemon_in, configured):
    """Train `name` of tasks/tested.py for one epoch of six steps."""

    def make(name: str = "Tested", **explicit: Any) -> Trained:
        made = configured(f"{FILE}:{name}", **{"epochs": 1, "batch_size": 10, **explicit})
        return Trained(daemon_in(f"run-{name}-{len(explicit)}", explicit.get("epochs", 1)), made)

    return make
