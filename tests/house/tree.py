"""The source tree for the house tests: files, parsed modules, and their imports."""

from __future__ import annotations

import ast
import functools
import gc
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("journal", "tolariad")
GENERATED = ("tolariad/leyline/v1",)
# Environments: .venv, and one for each other version of torch.
_ENVIRONMENT = ".venv"
_NEVER_SOURCE = {".git", "__pycache__", "runs", "dist", "build", "node_modules"}


@dataclass(frozen=True)
class Import:
    """One imported module: its full name, the line, and whether the import runs when the module is imported."""

    name: str
    line: int
    runs_at_import: bool
    in_function: bool


def every_file() -> list[Path]:
    """List every file of the repository that git does not ignore, tracked or not yet."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, capture_output=True, check=True).stdout.decode().split("\0")
        return [ROOT / name for name in listed if name and (ROOT / name).is_file()]
    except (OSError, subprocess.CalledProcessError):
        return list(_walked(ROOT))


def _walked(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.name in _NEVER_SOURCE or path.name.startswith(_ENVIRONMENT):
            continue
        if path.is_file():
            yield path
        elif path.is_dir() and not path.is_symlink():
            yield from _walked(path)


@functools.cache
def python_files(*folders: str) -> tuple[Path, ...]:
    """List the Python files below the folders, or of the whole repository, without generated ones."""
    found = []
    for path in every_file():
        name = path.relative_to(ROOT).as_posix()
        mine = not folders or name.split("/")[0] in folders
        if mine and name.endswith(".py") and not name.startswith(GENERATED):
            found.append(path)
    return tuple(sorted(found))


@functools.cache
def parse(path: Path) -> ast.Module:
    """Parse one file."""
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    # Millions of nodes stay in this cache: a collection need not walk them.
    gc.freeze()
    return tree


@functools.cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """List every node of a file once, for rules that check all nodes."""
    return tuple(ast.walk(parse(path)))


def shown(path: Path, line: int) -> str:
    """Return a place in the form in which editors open it."""
    return f"{path.relative_to(ROOT)}:{line}"


def module_name(path: Path) -> str:
    """Return the dotted name by which a file is imported."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def imports_of(path: Path) -> tuple[Import, ...]:
    """List the imports of a module, with relative names resolved, `from package import module` as the module."""
    module = module_name(path)
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    return tuple(_walk(parse(path), package, runs=True, in_function=False))


def graph_of(paths: Iterable[Path]) -> dict[str, set[str]]:
    """Map each of these modules to those of them that it imports; imports for types alone count, too."""
    files = {module_name(path): path for path in paths}
    return {
        name: {found.name for found in imports_of(path) if found.name in files} - {name} for name, path in files.items()
    }


def cycle_in(graph: dict[str, set[str]]) -> list[str]:
    """Return one cycle as a path that ends where it began, empty if there is none."""
    finished: set[str] = set()

    def search(node: str, trail: list[str]) -> list[str]:
        if node in trail:
            return [*trail[trail.index(node) :], node]
        if node in finished:
            return []
        for after in sorted(graph.get(node, ())):
            found = search(after, [*trail, node])
            if found:
                return found
        finished.add(node)
        return []

    for start in sorted(graph):
        found = search(start, [])
        if found:
            return found
    return []


def is_standard(name: str) -> bool:
    """Return whether a module belongs to the standard library."""
    return name.split(".", maxsplit=1)[0] in sys.stdlib_module_names or name == "__future__"


def is_module(name: str) -> bool:
    """Return whether a dotted name is a module of this repository."""
    base = ROOT.joinpath(*name.split("."))
    return base.with_suffix(".py").is_file() or (base / "__init__.py").is_file()


def _walk(node: ast.AST, package: str, *, runs: bool, in_function: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(alias.name, child.lineno, runs, in_function)
        elif isinstance(child, ast.ImportFrom):
            base = _absolute(child, package)
            for alias in child.names:
                inner = f"{base}.{alias.name}"
                yield Import(inner if is_module(inner) else base, child.lineno, runs, in_function)
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from _walk(child, package, runs=False, in_function=in_function)
        else:
            function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _walk(child, package, runs=runs and not function, in_function=in_function or function)


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if node.level == 0:
        return node.module or ""
    base = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1])
    return f"{base}.{node.module}" if node.module else base
