"""The layers of core: values < words < slice < ask < engine < rules < table. A module imports only layers below its
own.

A module's name says its layer: `words.py` or `NAME_words.py`, and so on. `sentences.py` puts words into text, and
`reactions.py` holds rows of the table. Any other module of a package is a value: it knows no message. The files beside
the packages are listed here. docs/architecture.md explains the layers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from tests.house import tree
from tests.house.tree import cycle_in, graph_of, python_files

LAYERS = ("values", "words", "slice", "ask", "engine", "rules", "table")
# A message may hold a value of another concern's message, an ask may need the answer of another ask. Rules never call
# rules: what one concern decides reaches another as an event.
MAY_IMPORT_ITS_OWN = {"values", "words", "slice", "ask", "engine", "table"}
# Packages of calculations: nothing in them knows a message, whatever its name.
CALCULATIONS = {"detection", "learning_rate", "settings"}
FILES = {
    "base": "words",
    "copying": "values",
    "folding": "words",
    "units": "values",
    "bounds": "values",
    "interfaces": "values",
    "stability": "values",
    "vocabulary": "words",
    "inputs": "words",
    "decision": "engine",
    "engine": "engine",
    "state": "table",
    "orders": "table",
    "reactions": "table",
    "decide": "table",
    "replay": "table",
}
_NAMED = re.compile(r"(?:^|_)(words|sentences|slice|ask|rules|reactions)$")
_ALSO_NAMED = {"sentences": "words", "reactions": "table"}


def layer_of(module: str) -> str:
    """Return the layer of a module of core; KeyError for a file beside the packages that is not listed."""
    parts = module.split(".")[2:]
    if len(parts) < 2:
        return FILES[parts[0]] if parts[0] in FILES else _of_package(parts[0])
    if parts[0] in CALCULATIONS:
        return "values"
    named = _NAMED.search(parts[-1])
    return _ALSO_NAMED.get(named.group(1), named.group(1)) if named else "values"


def _of_package(name: str) -> str:
    if not (tree.ROOT / "tolariad" / "core" / name).is_dir():
        raise KeyError(f"core/{name}.py: list it in FILES, or put it into the package of its concern")
    return "values"


def faults(graph: Mapping[str, set[str]]) -> list[str]:
    """List the imports that go up, or stay in a layer where they may not."""
    found = []
    for module, imported in graph.items():
        mine = layer_of(module)
        for name in sorted(imported):
            theirs = layer_of(name)
            is_below = LAYERS.index(theirs) < LAYERS.index(mine)
            if not is_below and not (theirs == mine and mine in MAY_IMPORT_ITS_OWN):
                found.append(f"{module} ({mine}) imports {name} ({theirs})")
    return found


def core() -> dict[str, set[str]]:
    """Return the modules of core with what they import of core."""
    graph = graph_of(path for path in python_files("tolariad") if "tolariad/core/" in path.as_posix())
    del graph["tolariad.core"]
    return graph


def test_a_module_of_core_imports_only_layers_below_its_own():
    """Of any package; imports for types alone count."""
    graph = core()

    assert len(graph) > 80, "all of core is looked at"
    assert not (found := faults(graph)), "\n".join(["", *found])


def test_core_has_no_circle_of_modules():
    """Those of one layer import each other one way."""
    assert cycle_in(core()) == []


def test_a_package_of_a_concern_imports_only_values_by_itself():
    """Importing a concern's words must not import its rules."""
    packages = {name for name in core() if name.count(".") == 2 and name.split(".")[2] not in FILES}
    calculations = {f"tolariad.core.{name}" for name in CALCULATIONS}

    above = {name: {one for one in core()[name] if layer_of(one) != "values"} for name in packages - calculations}

    assert {name: found for name, found in above.items() if found} == {}


@pytest.fixture
def made_up(tmp_path, monkeypatch):
    """A function that writes modules of a core, and returns their graph."""
    monkeypatch.setattr(tree, "ROOT", tmp_path)

    def write(modules: dict[str, str]) -> dict[str, set[str]]:
        paths = []
        for name, text in modules.items():
            path = tmp_path / "tolariad" / "core" / f"{name.replace('.', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            paths.append(path)
        return graph_of(paths)

    return write


@pytest.mark.parametrize(
    ("modules", "expected"),
    [
        ({"run.words": "", "run.slice": "from tolariad.core.run import words"}, []),
        (
            {"run.words": "from tolariad.core.state.run import Run", "run.slice": "Run = 1"},
            ["tolariad.core.messages.run (words) imports tolariad.core.state.run (slice)"],
        ),
        (
            {
                "run.slice": "if TYPE_CHECKING:\n    from tolariad.core.state.run_state import RunState",
                "state": "RunState = 1",
            },
            ["tolariad.core.state.run (slice) imports tolariad.core.state.run_state (table)"],
        ),
        (
            {"run.ask": "def f():\n    from tolariad.core.engine import At", "engine": "At = 1"},
            ["tolariad.core.queries.run (ask) imports tolariad.core.engine (engine)"],
        ),
        ({"run.ask": "from tolariad.core.steps.limit_ask import f", "steps.limit_ask": "f = 1"}, []),
        (
            {"run.rules": "from tolariad.core.steps import other_rules", "steps.other_rules": ""},
            ["tolariad.core.rules.run (rules) imports tolariad.core.steps.other_rules (rules)"],
        ),
        (
            {"run.sums": "from tolariad.core.messages.run import A", "run.words": "A = 1"},
            ["tolariad.core.run.sums (values) imports tolariad.core.messages.run (words)"],
        ),
        (
            {"run.sentences": "from tolariad.core.state.run import Run", "run.slice": "Run = 1"},
            ["tolariad.core.messages.sentences.run (words) imports tolariad.core.state.run (slice)"],
        ),
        (
            {"run.rules": "from tolariad.core.run import reactions", "run.reactions": ""},
            ["tolariad.core.rules.run (rules) imports tolariad.core.run.reactions (table)"],
        ),
    ],
)
def test_an_import_that_goes_up_is_found(made_up, modules, expected):
    """On a made-up tree: across packages, for types alone, inside functions, between rules."""
    assert faults(made_up(modules)) == expected


def test_a_circle_for_types_alone_is_found(made_up):
    """Also within one layer, in which a single import is allowed."""
    graph = made_up(
        {
            "run.ask": "from tolariad.core.queries.steps import f",
            "steps.ask": "if TYPE_CHECKING:\n    from tolariad.core.queries.run import g",
        }
    )

    assert faults(graph) == []
    assert cycle_in(graph) == ["tolariad.core.queries.run", "tolariad.core.queries.steps", "tolariad.core.queries.run"]


def test_a_file_beside_the_packages_must_be_listed(made_up):
    """A file there belongs to no concern: that is a decision."""
    with pytest.raises(KeyError, match="list it in FILES"):
        faults(made_up({"miscellany": "import tolariad.core.messages.base", "base": ""}))
