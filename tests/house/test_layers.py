"""The layers of core are its folders: calc < messages < state < queries < rules. A file imports lower folders only.

In a folder there is a file for each concern. Messages, state and queries are namespaces: another folder takes them
whole (`from tolariad.core import messages as m`), a file of the same folder takes names directly. docs/architecture.md
explains the layers.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from tests.house import tree
from tests.house.tree import cycle_in, graph_of, imports_of, module_name, parse, python_files, shown

LAYERS = ("calc", "messages", "state", "queries", "engine", "rules")
# The files beside the folders, with their layers. The last three have names that outside programs import.
BESIDE = {
    "decision": "engine",
    "engine": "engine",
    "interfaces": "calc",
    "pruning": "calc",
    "stability": "calc",
}
# Files that are no part of their folder's namespace. They have names of their own, or all concerns together.
APART = {
    "messages": {"vocabulary", "sentences"},
    "state": {"run_state", "replay"},
    "queries": set(),
}
# Every file of state has its own.
IN_EVERY_FILE = {"APPLY"}
# Rules declare the slices that they read; only these know the whole state.
KNOW_RUN_STATE = re.compile(r"tolariad\.core\.(state\.(run_state|replay)|rules\.table\.\w+)")
RUN_STATE = "tolariad.core.state.run_state"


def layer_of(module: str) -> str:
    """Return the layer of a module of core; KeyError for a file beside the folders that is not listed."""
    first = module.split(".")[2]
    if first in LAYERS and first != "engine":
        return first
    if first not in BESIDE:
        raise KeyError(f"core/{first}: put it into the folder of its layer, or list it in BESIDE")
    return BESIDE[first]


def faults(graph: Mapping[str, set[str]]) -> list[str]:
    """List the imports that go up, those from rules to rules, and those of the whole state."""
    found = []
    for module, imported in graph.items():
        for name in sorted(imported):
            mine, theirs = layer_of(module), layer_of(name)
            if LAYERS.index(theirs) > LAYERS.index(mine):
                found.append(f"{module} imports {name}, which is above it")
            elif mine == theirs == "rules" and ".table." not in module:
                found.append(f"{module} imports {name}: rules never call rules, they react to events")
            elif name == RUN_STATE and not KNOW_RUN_STATE.fullmatch(module):
                found.append(f"{module} imports {name}: declare the slices that it reads")
    return found


def taken_apart(paths: Iterable[Path]) -> list[str]:
    """List the imports of one file of a namespace from another folder."""
    return [
        f"{shown(path, one.line)}: {one.name}; write `from tolariad.core import {folder}`"
        for path in paths
        for one in imports_of(path)
        if (folder := namespace_of(one.name)) and module_name(path).rpartition(".")[0] != f"tolariad.core.{folder}"
        if module_name(path) != f"tolariad.core.{folder}"
    ]


def namespace_of(module: str) -> str:
    """Return the namespace that a file is part of, or ""."""
    parts = module.split(".")
    is_part = len(parts) == 4 and parts[:2] == ["tolariad", "core"] and parts[2] in APART
    return parts[2] if is_part and parts[3] not in APART[parts[2]] else ""


def core() -> dict[str, set[str]]:
    """Return the modules of core with what they import of core."""
    graph = graph_of(path for path in python_files("tolariad") if "tolariad/core/" in path.as_posix())
    del graph["tolariad.core"]
    return graph


def test_a_module_of_core_imports_only_folders_below_its_own():
    """Imports for types alone count, and those inside functions."""
    graph = core()

    assert len(graph) > 80, "all of core is looked at"
    assert not (found := faults(graph)), "\n".join(["", *found])


def test_core_has_no_circle_of_modules():
    """Files of one folder import each other one way."""
    assert cycle_in(core()) == []


def test_the_folders_have_no_circle():
    """No pair of folders imports each other, those inside a layer included; calculations are one."""
    rooms: dict[str, set[str]] = {}
    for module, imported in core().items():
        rooms.setdefault(room_of(module), set()).update(room_of(name) for name in imported)

    assert cycle_in({room: others - {room} for room, others in rooms.items()}) == []
    assert len(rooms) <= 13


def room_of(module: str) -> str:
    """Return the folder of a module, or its own name beside the folders."""
    parts = module.split(".")[2:]
    is_package = (tree.ROOT / "tolariad" / "core" / "/".join(parts)).is_dir()
    return "calc" if parts[0] == "calc" else ".".join(parts if is_package else parts[:-1] or parts)


def test_other_folders_take_a_namespace_whole():
    """In all rooms: a reader sees at each name which layer it is from."""
    assert not (found := taken_apart(python_files("tolariad"))), "\n".join(["", *found])


@pytest.mark.parametrize("folder", list(APART))
def test_a_namespace_has_the_names_of_its_files_once(folder):
    """Two files that define one name would hide each other; a file that is left out would be missing."""
    whole = importlib.import_module(f"tolariad.core.{folder}")
    files = [path for path in python_files("tolariad") if namespace_of(module_name(path)) == folder]
    wrong = [
        f"{module_name(path)}.{name}"
        for path in files
        for name in public_names(path) - IN_EVERY_FILE
        if getattr(whole, name, None) is not getattr(importlib.import_module(module_name(path)), name)
    ]

    assert len(files) > 8, "they are looked for where they are"
    assert wrong == []


def public_names(path: Path) -> set[str]:
    """Return the names that a file defines for others."""
    found: set[str] = set()
    for node in parse(path).body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
            case ast.Assign(targets=targets):
                found |= {one.id for one in targets if isinstance(one, ast.Name)}
            case _:
                pass
    return {name for name in found if not name.startswith("_")}


@pytest.fixture
def made_up(tmp_path, monkeypatch):
    """A function that writes modules of a core, and returns their paths."""
    monkeypatch.setattr(tree, "ROOT", tmp_path)

    def write(modules: dict[str, str]) -> list[Path]:
        paths = []
        for name, text in modules.items():
            path = tmp_path / "tolariad" / "core" / f"{name.replace('.', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            paths.append(path)
        return paths

    return write


@pytest.mark.parametrize(
    ("modules", "expected"),
    [
        ({"messages.__init__": "", "state.run": "from tolariad.core import messages as m"}, []),
        (
            {"messages.run": "from tolariad.core import state as st", "state.__init__": "Run = 1"},
            ["tolariad.core.messages.run imports tolariad.core.state, which is above it"],
        ),
        (
            {
                "queries.run": "if TYPE_CHECKING:\n    from tolariad.core.rules.run import go_on",
                "rules.run": "go_on = 1",
            },
            ["tolariad.core.queries.run imports tolariad.core.rules.run, which is above it"],
        ),
        (
            {"queries.run": "def f():\n    from tolariad.core.engine import At", "engine": "At = 1"},
            ["tolariad.core.queries.run imports tolariad.core.engine, which is above it"],
        ),
        ({"queries.run": "from tolariad.core.queries.limits import f", "queries.limits": "f = 1"}, []),
        (
            {"rules.run": "from tolariad.core.rules import steps", "rules.steps": ""},
            ["tolariad.core.rules.run imports tolariad.core.rules.steps: rules never call rules, they react to events"],
        ),
        ({"rules.table.reactions": "from tolariad.core.rules import steps", "rules.steps": ""}, []),
        (
            {"calc.run.sums": "from tolariad.core.messages.run import A", "messages.run": "A = 1"},
            ["tolariad.core.calc.run.sums imports tolariad.core.messages.run, which is above it"],
        ),
        (
            {"rules.run": "from tolariad.core.state.run_state import RunState", "state.run_state": "RunState = 1"},
            ["tolariad.core.rules.run imports tolariad.core.state.run_state: declare the slices that it reads"],
        ),
    ],
)
def test_an_import_that_goes_up_is_found(made_up, modules, expected):
    """On a made-up tree: for types alone, inside functions, between rules, of the whole state."""
    assert faults(graph_of(made_up(modules))) == expected


def test_a_name_that_is_taken_from_one_file_of_a_namespace_is_found(made_up):
    """From another folder only; vocabulary and the whole state are asked for by their files."""
    paths = made_up(
        {
            "messages.run": "A = 1",
            "messages.vocabulary": "from tolariad.core.messages.run import A",
            "state.run": "from tolariad.core.messages.run import A\nfrom tolariad.core.messages.vocabulary import B",
        }
    )

    assert [line.split(": ")[1] for line in taken_apart(paths)] == [
        "tolariad.core.messages.run; write `from tolariad.core import messages`"
    ]


def test_a_circle_for_types_alone_is_found(made_up):
    """Also within one folder, in which a single import is allowed."""
    graph = graph_of(
        made_up(
            {
                "queries.run": "from tolariad.core.queries.steps import f",
                "queries.steps": "if TYPE_CHECKING:\n    from tolariad.core.queries.run import g",
            }
        )
    )

    assert faults(graph) == []
    assert cycle_in(graph) == ["tolariad.core.queries.run", "tolariad.core.queries.steps", "tolariad.core.queries.run"]


def test_a_file_beside_the_folders_must_be_listed(made_up):
    """A file there is in no layer: that is a decision."""
    with pytest.raises(KeyError, match="list it in BESIDE"):
        faults(graph_of(made_up({"miscellany": "import tolariad.core.engine", "engine": ""})))
