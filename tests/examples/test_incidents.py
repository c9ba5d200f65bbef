"""The runs with incidents: each question of docs/forensics.md has its answer on them."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.examples.test_examples import ROOT

pytestmark = pytest.mark.torture
_ASK = [sys.executable, "-c", "from tolariad.cli.tolaria import main; main()"]


def test_the_incidents_are_answered(tmp_path):
    """A NaN, a spike, a killed trainer, a lowered rate, a rollback, and a twin with another rate."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-m", "examples.incidents", "."], env=environment, cwd=tmp_path, check=True)

    def asked(*words, code=0):
        done = subprocess.run(
            [*_ASK, *words, "--json"], env=environment, cwd=tmp_path, capture_output=True, check=False
        )
        assert done.returncode == code, (words, done.stderr)
        return json.loads(done.stdout)

    assert asked("why", "night", "nan")["event"]["type"] == "StepSkipped"
    assert 17 in asked("why", "night", "nan", "--rows")["rows"]["rows"]
    assert asked("why", "night", "rollback")["event"]["type"] == "RolledBack"
    assert asked("why", "night", "death")["event"]["signal"] == "SIGKILL"
    assert asked("why", "night", "lr")["event"]["reason"] == "the norm drifts"
    assert asked("why", "night", "stop")["event"]["type"] == "RunStopped"
    assert asked("why", "night", "restart")["event"]["type"] in ("TrainingStarted", "DaemonStarted")
    found = asked("diff", "calm", "twin", code=1)
    assert (found["verdict"], found["context"][0]["name"]) == ("config", "learning_rate.base_lr")
    assert asked("diff", "night", "step:20", "now", code=1)["steps"] > 0
    assert asked("report", "night", "-o", "night.html")["size"] > 50_000
    assert asked("checkout", "night", "--step", "50", "-o", "step-50")["from_step"] <= 50
