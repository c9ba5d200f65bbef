"""Commands that only read stay fast because they load no heavy module."""

from __future__ import annotations

import json
import subprocess
import sys
import typing
from collections.abc import Iterator, Sequence

import msgspec
import pytest

import journal
from tests.house.tree import is_module
from tolariad.core.messages.vocabulary import EVENT_TYPES
from tolariad.core.state.run_state import Capture, RunState

# Packages of others, and parts of the standard library that take milliseconds.
HEAVY = [
    "torch",
    "numpy",
    "asyncio",
    "structlog",
    "uvloop",
    "aiofiles",
    "rich",
    "psutil",
    "duckdb",
    "google.protobuf",
    "argparse",
    "email",
    "ssl",
    "http",
    "concurrent.futures",
    "multiprocessing",
    "importlib.metadata",
    "unittest",
    "xml",
    "pdb",
]
# Our own, that only the recorder or the trainer needs, and more of the standard library: not for the commands that an
# operator waits for.
OF_OTHERS = [
    "journal.writer",
    "journal.packing",
    "journal.repairing",
    "journal.export",
    "journal.verification",
    "tolariad.config",
    "tolariad.daemon",
    "tolariad.kernel",
    "tolariad.trainer",
    "tolariad.supervisor",
    "tolariad.telemetry",
    "tolariad.core.rules",
    "tolariad.core.decision",
    "tolariad.core.calc.detection.detector",
    "tolariad.core.calc.detection.envelope",
    "yaml",
    "logging",
    "ctypes",
    "subprocess",
    "tempfile",
    "random",
    "statistics",
    "fractions",
    "dataclasses",
    "shutil",
    "string",
]
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


def loaded_by(*arguments: str, before: str = "", looked_for: Sequence[str] = HEAVY) -> tuple[int, list[str]]:
    """Run one command in a fresh interpreter. Return its exit code and which of some modules it loaded."""
    command = [sys.executable, "-c", before + PROBE, json.dumps(arguments), json.dumps(looked_for)]
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


@pytest.mark.parametrize(
    "arguments",
    [
        ("list", "{runs}"),
        ("events", "{run}", "-n", "5"),
        ("state", "{run}", "--at", "step:1"),
        ("state", "{run}", "--at", "step:1", "--json"),
        ("diff", "{run}", "{run}"),
        ("diff", "{run}", "step:1", "now"),
    ],
    ids=" ".join,
)
def test_a_question_loads_nothing_of_the_recorder(arguments, finished_run):
    """Neither the journal's writer nor the detector, nor parts of the standard library that these need."""
    filled = [one.format(run=finished_run, runs=finished_run.parent) for one in arguments]

    code, loaded = loaded_by(*filled, looked_for=OF_OTHERS)

    assert code in {0, 1}
    assert loaded == []


def test_the_modules_that_are_looked_for_exist():
    """One that was renamed would never be found."""
    missing = [name for name in OF_OTHERS if name.startswith(("journal", "tolariad")) and not is_module(name)]

    assert missing == []


def test_the_public_names_of_the_journal_are_there():
    """Each is imported when it is used, from the module that has it."""
    assert sorted(journal._HOMES) == sorted(journal.__all__)
    assert [name for name in journal.__all__ if getattr(journal, name, None) is None] == []
    assert set(journal.__all__) <= set(dir(journal))
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        journal.Nothing  # noqa: B018


def parts_of(kind: object, seen: set[type]) -> Iterator[type]:
    """Yield each Struct that a type holds, once."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind not in seen:
        seen.add(kind)
        yield kind
        for one in typing.get_type_hints(kind).values():
            yield from parts_of(one, seen)
    for one in typing.get_args(kind):
        yield from parts_of(one, seen)


def test_no_annotation_of_what_is_decoded_is_text():
    """msgspec compiles one that is text, in each process: a thousand of them take longer than all else of a command."""
    seen: set[type] = set()
    kinds = [one for kind in (Capture, *EVENT_TYPES.values()) for one in parts_of(kind, seen)]

    text = [
        f"{kind.__module__}.{kind.__name__}.{name}"
        for kind in kinds
        for name, found in vars(kind).get("__annotations__", {}).items()
        if isinstance(found, str)
    ]

    assert len(kinds) > 150, "all of them are looked at"
    assert [one for one in text if not one.startswith(f"{RunState.__module__}.")] == []
