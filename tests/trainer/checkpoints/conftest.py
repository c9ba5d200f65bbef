"""A run of the task in `own.py`."""

from __future__ import annotations

import pytest

from tests.trainer.checkpoints.own import OwnTask


@pytest.fixture
def made(configured, monkeypatch):
    """Build a run of the task; each call returns an equal one."""
    from tolariad.trainer import build
    from tolariad.trainer.tasks import task

    monkeypatch.setattr(build, "find_task", lambda _: task.FoundTask(OwnTask(), ""))
    return lambda: build.build(configured("digits", epochs=1))
