"""Commands that only read stay fast because of what they do not load."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.house.tree import ROOT

HEAVY = ("torch", "numpy", "asyncio", "structlog", "prometheus_client", "uvloop", "textual")
PROBE = """
import json, sys
from tolariad.cli.tolaria import main
try:
    code = main(json.loads(sys.argv[1]))
except SystemExit as exit:
    code = exit.code
loaded = sorted(set(json.loads(sys.argv[2])) & set(sys.modules))
print("loaded:" + json.dumps([code or 0, loaded]), file=sys.stderr)
"""


def loaded_by(*arguments: str) -> tuple[int, list[str]]:
    """Run one command in a fresh interpreter; its exit code, and which heavy modules it had loaded when it ended."""
    command = [sys.executable, "-c", PROBE, json.dumps(arguments), json.dumps(HEAVY)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    marked = [line for line in result.stderr.splitlines() if line.startswith("loaded:")]
    if not marked:
        pytest.fail(f"tolaria {' '.join(arguments)} did not end:\n{result.stderr}")
    return tuple(json.loads(marked[0].removeprefix("loaded:")))


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("list", "{runs}"),
        ("list", "{empty}"),
        ("events", "{run}"),
        ("events", "{run}", "-o", "json", "-n", "5"),
        ("events", "{run}", "--since", "step:1", "-r", "--lineage", "-g", "loss"),
        ("state", "{run}"),
        ("state", "{run}", "--at", "step:1", "--json"),
        ("why", "{run}", "phase"),
        ("why", "{run}", "lr"),
        ("lr", "show", "{run}"),
        ("quarantine", "list", "{run}"),
        ("checkpoints", "{run}", "--verify"),
        ("export-weights", "{run}", "-o", "{empty}/model.safetensors"),
        ("journal", "verify", "{run}"),
        ("journal", "stats", "{run}"),
        ("journal", "repair", "{run}", "--dry-run"),
        ("journal", "export", "{run}", "-o", "{empty}/events.jsonl"),
        ("status", "--dir", "{run}", "--json"),
        ("status", "{run}", "--budgets"),
        ("logs", "--dir", "{run}"),
    ],
    ids=" ".join,
)
def test_a_reading_command_loads_nothing_heavy(arguments, finished_run, tmp_path):
    """No torch, numpy, asyncio or structlog for a question to a journal."""
    filled = [one.format(run=finished_run, runs=finished_run.parent, empty=tmp_path) for one in arguments]

    code, loaded = loaded_by(*filled)

    # 1: the answer is no; 3: there is no daemon to answer, so the journal did. Usage errors would prove nothing.
    assert code in {0, 1, 3}
    assert loaded == []
