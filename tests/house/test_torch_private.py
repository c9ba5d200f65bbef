"""Private names of torch are used in one package only, where each has a public way beside it."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.house.tree import ROOT, nodes, python_files, shown

# The rooms that import torch.
ROOMS = [ROOT / "tolariad" / "trainer", ROOT / "tolariad" / "library"]
PACKAGE = ROOT / "tolariad" / "trainer" / "torch_private"
# Of the standard library: named tuples have these for everybody.
PUBLIC = {"_replace", "_fields", "_make", "_asdict"}
# The process-wide generators of Python and NumPy have no other names.
GENERATORS = {"random._inst", "np.random.mtrand._rand"}


def is_private(name: str) -> bool:
    """Return whether a name begins with one underscore."""
    return name.startswith("_") and not name.startswith("__")


def own_names() -> set[str]:
    """Return the private attributes that classes of this project have."""
    found = set()
    for path in python_files("tolariad", "journal"):
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                found.add(node.attr)
            elif isinstance(node, ast.AnnAssign | ast.Assign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found |= {one.id for one in targets if isinstance(one, ast.Name)}
    return found - torchs_names()


def torchs_names() -> set[str]:
    """Return the private names that the package gives to functions as text."""
    texts = (node.value for path in PACKAGE.glob("*.py") for node in nodes(path) if isinstance(node, ast.Constant))
    return {text for text in texts if isinstance(text, str) and text.isidentifier() and is_private(text)}


def is_self(node: ast.Attribute) -> bool:
    """Return whether it is an attribute of the object itself."""
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def used_in(path: Path, own: set[str]) -> list[str]:
    """Return each use of a private name that is not ours."""
    found = []
    for node in nodes(path):
        if (
            isinstance(node, ast.Attribute)
            and is_private(node.attr)
            and not (is_self(node) or node.attr in own | PUBLIC or ast.unparse(node) in GENERATORS)
        ):
            found.append((node, ast.unparse(node)))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
            names = [*(node.module or "").split("."), *(one.name for one in node.names)]
            found += [(node, name) for name in names if is_private(name)]
        elif isinstance(node, ast.Import):
            found += [
                (node, one.name)
                for one in node.names
                if one.name.startswith("torch") and any(map(is_private, one.name.split(".")))
            ]
    return [f"{shown(path, node.lineno)}: {what}" for node, what in found]


def test_no_other_module_uses_a_private_name_of_torch():
    """Torch may rename it in any release. Put it into the package, with a public way and a test of both."""
    own = own_names()
    others = [
        path for path in python_files("tolariad") if set(ROOMS) & set(path.parents) and PACKAGE not in path.parents
    ]
    found = [one for path in others for one in used_in(path, own)]
    assert found == []


def test_this_would_be_found():
    """The package itself uses some."""
    own = own_names()
    found = [one for path in python_files("tolariad") if PACKAGE in path.parents for one in used_in(path, own)]
    assert any("_optimizer" in one or "_dynamo" in one or "_pytree" in one for one in found)


def test_every_module_of_the_package_has_a_test():
    """Of the private name against the public way."""
    tests = ROOT / "tests" / "trainer" / "torch_private"
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "light_start"}
    assert {path.stem.removeprefix("test_") for path in tests.glob("test_*.py")} == modules
    assert (ROOT / "tests" / "trainer" / "test_light_start.py").exists()
