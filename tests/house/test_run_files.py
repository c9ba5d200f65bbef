"""Files are opened in two modules: `tolariad/run_files.py`, and `journal/files.py` for the journal.

They follow no link, never block, and set fixed modes. The table below lists all other code that opens a file. Each row
has the reason: the file does not belong to a run, or opening it is safe.
"""

from __future__ import annotations

import ast

import pytest

from tests.house.tree import PRODUCT, ROOT, parse, python_files

OPENERS = {"tolariad/run_files.py", "journal/files.py"}
# How a file or a folder is opened or made; `.open(…)` with a mode is a Path's.
CALLS = {"read_text", "read_bytes", "write_text", "write_bytes", "mkdir", "touch"}
_SYSTEM = "files of /proc and /sys"
_USERS = "a path that the user gives, with the user's own umask"
_PACKAGE = "a file of this package"
ALLOWED: dict[str, str] = {
    "tolariad/supervisor/interrupts.py": _SYSTEM,
    "tolariad/boot.py": _SYSTEM,
    "tolariad/supervisor/procfs.py": _SYSTEM,
    "tolariad/processor_time.py": _SYSTEM,
    "tolariad/supervisor/arena.py": _SYSTEM,
    "tolariad/trainer/process/determinism.py": _SYSTEM,
    "tolariad/lifelines.py::be_the_nicest_session": _SYSTEM,
    "tolariad/lifelines.py::offer_as_victim": _SYSTEM,
    "tolariad/trainer/health/stopwatch.py": _SYSTEM,
    "tolariad/trainer/ranks/exact/meeting.py::_state_of": _SYSTEM,
    "tolariad/trainer/data/forked.py": "/dev/null",
    "tolariad/trainer/pruning/watch.py::memory_in_use": _SYSTEM,
    "tolariad/control/peer.py": _SYSTEM,
    "tolariad/config.py": _USERS,
    "tolariad/rate_functions.py": _USERS,
    "tolariad/daemon/settings.py::given_text": _USERS,
    "tolariad/daemon/secret.py::read_secret": _USERS,
    "tolariad/strategy/finding.py": _USERS,
    "tolariad/trainer/tasks/task.py": _USERS,
    "tolariad/trainer/seeds/registry.py::source_of": _USERS,
    "tolariad/trainer/process/code.py": _USERS,
    "tolariad/trainer/probes/exporting.py": _USERS,
    "tolariad/trainer/probes/weights_file.py::_read": _USERS,
    "tolariad/cli/checking.py": _USERS,
    "tolariad/cli/journals.py::_written": _USERS,
    "tolariad/cli/report.py": _USERS,
    "tolariad/forensics/parquet.py::_opened": "a file in a folder of its own, beside the user's",
    "tolariad/forensics/report/page.py::_of_package": _PACKAGE,
    "tolariad/cli/errors.py": "/dev/null",
    "tolariad/followers/place.py": _USERS,
    "tolariad/followers/tensorboard.py": _USERS,
    "tolariad/followers/wandb.py::_last_step": "a file of wandb's, in a folder of wandb's",
    "tolariad/attach/__main__.py::_leave_place": "/dev/null",
    "tolariad/cli/version.py": "files of /proc, torch's own version.py, and what installers record",
    "tolariad/storage/export.py": _USERS,
    "tolariad/storage/copy.py": _USERS,
    "tolariad/storage/write.py::sync_folder": "a folder, only to sync it; also one that the user gives",
    "tolariad/trainer/tasks/digits.py": _PACKAGE,
    "tolariad/trainer/tasks/chars.py": _PACKAGE,
    "tolariad/loop_files.py::read_own_text": _PACKAGE,
    "tolariad/loop_files.py::read_run_file": "opens through run_files, as its opener",
    "tolariad/control/place.py::private_folder": "the user's runtime folder, made 0700 and checked",
    "tolariad/trainer/rollback/snapshots.py": "a memory slot, no file",
}


def opens(node: ast.AST) -> bool:
    """Return whether this call opens a file, or creates a file or folder."""
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Name):
        return node.func.id == "open"
    if not isinstance(node.func, ast.Attribute):
        return False
    if ast.unparse(node.func) in {
        "os.open",
        "os.mkdir",
        "os.makedirs",
        "gzip.open",
        "shutil.copytree",
        "shutil.copyfile",
    }:
        return True
    is_of_path = node.func.attr == "open" and not ast.unparse(node.func.value)[:1].isupper()
    return node.func.attr in CALLS or is_of_path


def found_in(tree: ast.Module, name: str) -> list[tuple[str, int]]:
    """List the calls with the functions that contain them."""
    found: list[tuple[str, int]] = []

    def visit(node: ast.AST, function: str) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            function = node.name
        if opens(node):
            found.append((f"{name}::{function}", node.lineno))
        for child in ast.iter_child_nodes(node):
            visit(child, function)

    visit(tree, "")
    return found


def test_files_of_a_run_are_opened_in_one_place():
    """A bare open follows links, waits for a FIFO and uses the umask's mode."""
    broken, used = [], set()
    for path in python_files(*PRODUCT):
        name = path.relative_to(ROOT).as_posix()
        if name in OPENERS:
            continue
        for place, line in found_in(parse(path), name):
            known = {place, name} & ALLOWED.keys()
            used |= known
            if not known:
                broken.append(f"{name}:{line}: open it with tolariad.run_files (the journal: journal.files)")

    assert not broken, "\n".join(["", *broken])
    assert ALLOWED.keys() - used == set(), "these open nothing any more"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("open('x')", 1),
        ("os.open('x', 0)", 1),
        ("path.open('rb')", 1),
        ("(folder / 'x').open()", 1),
        ("path.write_text('x')", 1),
        ("path.mkdir()", 1),
        ("Journal.open(folder)", 0),
        ("run_files.open_file(folder, 'x', 0)", 0),
        ("state.open.append(1)", 0),
    ],
)
def test_an_open_is_told_from_what_is_none(text, count):
    """The rule can refuse, so a clean tree has a meaning."""
    assert len(found_in(ast.parse(text), "x")) == count
