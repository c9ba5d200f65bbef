"""Commands that only read stay fast because they load no heavy module."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = ("torch", "numpy", "asyncio", "structlog", "uvloop", "aiofiles", "rich")
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


# Names that Linux has and other systems with a POSIX Python have not.
ONLY_LINUX = """
import os, resource, select, signal, socket, sys
names = "memfd_create eventfd eventfd_read eventfd_write pidfd_open posix_fallocate posix_fadvise O_DIRECT O_NOATIME"
names += " sched_setaffinity sched_getaffinity sched_setscheduler copy_file_range splice setresuid"
gone = [(os, name) for name in names.split()]
gone += [(os, name) for name in dir(os) if name.startswith(("MFD_", "EFD_", "SCHED_"))]
gone += [(select, "epoll"), (signal, "pidfd_send_signal"), (resource, "prlimit")]
gone += [(socket, name) for name in ("SO_PEERCRED", "SCM_CREDENTIALS", "SO_PASSCRED")]
for module, name in gone:
    if hasattr(module, name):
        delattr(module, name)
sys.platform = "darwin"
"""


def loaded_by(*arguments: str, before: str = "") -> tuple[int, list[str]]:
    """Run one command in a fresh interpreter. Return its exit code and the heavy modules that it loaded."""
    command = [sys.executable, "-c", before + PROBE, json.dumps(arguments), json.dumps(HEAVY)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    marked = [line for line in result.stderr.splitlines() if line.startswith("loaded:")]
    if not marked:
        pytest.fail(f"tolaria {' '.join(arguments)} did not end:\n{result.stderr}")
    return tuple(json.loads(marked[0].removeprefix("loaded:")))


@pytest.mark.sample(6)
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
        ("diff", "{run}", "{run}"),
        ("diff", "{run}", "step:1", "now"),
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
    """A query to a journal loads no torch, numpy, asyncio, structlog or rich."""
    filled = [one.format(run=finished_run, runs=finished_run.parent, empty=tmp_path) for one in arguments]

    code, loaded = loaded_by(*filled)

    # 1: the answer is no; 3: there is no daemon to answer, so the journal did. Usage errors would prove nothing.
    assert code in {0, 1, 3}
    assert loaded == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("list", "{runs}"),
        ("events", "{run}"),
        ("state", "{run}", "--at", "step:1"),
        ("why", "{run}", "phase"),
        ("status", "{run}"),
        ("journal", "verify", "{run}"),
        ("journal", "export", "{run}"),
    ],
    ids=" ".join,
)
def test_a_reading_command_works_where_there_is_no_linux(arguments, finished_run):
    """Reading a journal on a laptop needs nothing that only Linux has."""
    code, _ = loaded_by(
        *(one.format(run=finished_run, runs=finished_run.parent) for one in arguments), before=ONLY_LINUX
    )

    assert code == (3 if arguments[0] == "status" else 0)
