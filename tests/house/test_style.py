"""The style of the code: lengths, docstrings, errors, and forbidden constructs.

Each rule walks the whole tree. Its message names path, line and what to write instead.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.tree import PRODUCT, ROOT, every_file, module_name, nodes, parse, python_files, shown

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 400
# The commands, and the program that the daemon starts: its output is kept line by line.
MAY_PRINT = ("tolariad/strategy/__main__.py", "tolariad/cli/", "tolariad/trainer/__main__.py")
# Loading any of these from a file or a socket can run code.
CODE_LOADERS = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
# Assembled, so that this file does not contain the texts that it searches for.
LEFTOVERS = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK"]) + r")\b")
FOREIGN = re.compile(
    "|".join(
        [
            "/" + r"work/(main|shared)",
            "/" + "tmp/plan",
            "/" + r"root/",
            r"\.\./" + "shared",
            r"\b[Ii]ssue" + r" #?\d",
            "Clau" + "de",
            "Anthro" + "pic",
            "language model" + " wrote",
            r"\bAI[- ]" + "(assistant|generated|agent)",
            "helper" + " session",
        ]
    )
)
TEXT = {".py", ".md", ".toml", ".txt", ".yaml", ".yml", ".json", ".service", ".socket", ".conf", ".proto", ""}


@functools.cache
def functions(path: Path) -> tuple[ast.FunctionDef | ast.AsyncFunctionDef, ...]:
    """List every function and method of a file."""
    return tuple(node for node in nodes(path) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def every_test() -> Iterator[tuple[Path, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield every test function with its file."""
    for path in python_files("tests"):
        if path.name.startswith("test_"):
            yield from ((path, function) for function in functions(path) if function.name.startswith("test"))


def offences(pattern: str) -> list[str]:
    """Return the places in the product at which a tree matches one of the rules below."""
    rule = RULES[pattern]
    found = []
    for path in python_files(*PRODUCT):
        name = path.relative_to(ROOT).as_posix()
        found += [f"{name}:{node.lineno}: {pattern}" for node in nodes(path) if rule(node, name)]
    return found


def is_bare_assert(node: ast.AST, _: str) -> bool:
    """Use a typed error: `python -O` removes assertions."""
    return isinstance(node, ast.Assert)


def is_print(node: ast.AST, name: str) -> bool:
    """Log it or return it: only commands write to stdout."""
    called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    return called and not name.startswith(MAY_PRINT)


def is_stub(node: ast.AST, _: str) -> bool:
    """Remove it until it is implemented."""
    raised = node.exc if isinstance(node, ast.Raise) else None
    called = raised.func if isinstance(raised, ast.Call) else raised
    return isinstance(called, ast.Name) and called.id == "NotImplementedError"


def is_swallowed(node: ast.AST, _: str) -> bool:
    """Log it at least: any error may be hidden here."""
    if not isinstance(node, ast.ExceptHandler):
        return False
    broad = node.type is None or (isinstance(node.type, ast.Name) and node.type.id in {"Exception", "BaseException"})
    silent = all(isinstance(one, ast.Pass | ast.Continue) or is_constant(one) for one in node.body)
    return broad and silent


def is_constant(node: ast.stmt) -> bool:
    """Return whether a statement is a lone literal, such as `...`."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def is_code_loader(node: ast.AST, name: str) -> bool:
    """Use safetensors for tensors, and msgpack, JSON or protobuf for the rest."""
    if isinstance(node, ast.Import):
        return any(alias.name.split(".", maxsplit=1)[0] in CODE_LOADERS for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").split(".", maxsplit=1)[0] in CODE_LOADERS
    if not isinstance(node, ast.Call):
        return False
    called, exporting = ast.unparse(node.func), "tolariad/trainer/probes/exporting.py"
    # With weights_only torch runs no code of the file. Exports are for other programs.
    is_safe = any(ast.unparse(one) == "weights_only=True" for one in node.keywords)
    loads, saves = called == "torch.load" and not is_safe, called == "torch.save" and name != exporting
    return loads or saves or called in {"eval", "exec"}


def is_wait_for(node: ast.AST, _: str) -> bool:
    """On 3.11 it can lose a cancellation that arrives when its awaitable ends. The task then never ends."""
    return isinstance(node, ast.Call) and ast.unparse(node.func) in {"asyncio.wait_for", "wait_for"}


RULES = {
    "a bare assert; raise a typed error": is_bare_assert,
    "a print outside the commands; log it or return it": is_print,
    "a stub; build it or leave it out": is_stub,
    "an error swallowed unseen; name its type or log it": is_swallowed,
    "a loader that can run code; use safetensors, msgpack or JSON": is_code_loader,
    "asyncio.wait_for, which can lose a cancellation; use asyncio.timeout": is_wait_for,
}


@pytest.mark.parametrize("pattern", list(RULES))
def test_the_product_never_contains(pattern):
    """journal and tolariad contain no assertions, prints, stubs, swallowed errors or pickles."""
    found = offences(pattern)

    assert not found, "\n".join(["", *found])


def test_functions_fit_on_a_screen():
    """No function is longer than a screen, tests included."""
    long = [
        f"{shown(path, function.lineno)}: {function.name} has {length} lines, at most {FUNCTION_LINES_MAX}"
        for path in python_files()
        for function in functions(path)
        if (length := (function.end_lineno or 0) - function.lineno + 1) > FUNCTION_LINES_MAX
    ]

    assert not long, "\n".join(["", *long])


def test_files_are_one_idea():
    """No Python file is longer than 400 lines."""
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in python_files()}
    long = [
        f"{shown(path, n)}: {n} lines, at most {FILE_LINES_MAX}" for path, n in lengths.items() if n > FILE_LINES_MAX
    ]

    assert not long, "\n".join(["", *long])


def test_every_module_says_what_it_is_for():
    """Every module begins with a docstring."""
    silent = [shown(path, 1) for path in python_files() if parse(path).body and ast.get_docstring(parse(path)) is None]

    assert not silent, "\n".join(["", *silent])


def test_every_test_says_what_it_promises():
    """Every test has a docstring that names the behaviour it checks."""
    bare = [f"{shown(path, one.lineno)}: {one.name}" for path, one in every_test() if not ast.get_docstring(one)]

    assert not bare, "\n".join(["", *bare])


def test_every_test_asserts():
    """Every test can fail."""
    helpers = [one for path in python_files("tests") for one in functions(path) if not one.name.startswith("test")]
    asserting = {one.name for one in helpers if can_fail(one, set())}
    empty = [f"{shown(path, one.lineno)}: {one.name}" for path, one in every_test() if not can_fail(one, asserting)]

    assert not empty, "\n".join(["", *empty])


def can_fail(function: ast.FunctionDef | ast.AsyncFunctionDef, helpers: set[str]) -> bool:
    """Return whether a function asserts, expects an error, or calls a helper that does."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in {"pytest.raises", "pytest.warns", "pytest.fail"} or name.split(".")[-1] in helpers:
                return True
    return False


def test_nothing_is_left_for_later():
    """The code contains no reminders of later work."""
    found = lines_with(LEFTOVERS, {".py", ".toml", ".service", ".socket", ".conf", ".proto"})

    assert not found, "\n".join(["", *found])


def test_nothing_speaks_of_the_place_it_was_made_in():
    """The code has no path of one machine, and nothing that only its authors could know."""
    found = lines_with(FOREIGN, TEXT)

    assert not found, "\n".join(["", *found])


def test_public_names_are_documented():
    """Public functions and classes of the product carry a docstring."""
    bare = [
        f"{shown(path, node.lineno)}: {node.name}"
        for path in python_files(*PRODUCT)
        for node in parse(path).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
        and not ast.get_docstring(node)
    ]

    assert not bare, "\n".join(["", *bare])


def test_tests_mirror_the_tree():
    """A test folder has the name of the package or room that it checks."""
    rooms = {module_name(path).split(".")[1] for path in python_files("tolariad") if "." in module_name(path)}
    folders = {
        path.relative_to(ROOT).parts[1] for path in python_files("tests") if len(path.relative_to(ROOT).parts) > 2
    }
    beside = {
        "house",
        "journal",
        "journals",
        "systemd",
        "campaign",
        "examples",
        "bench",
        "study",
        "torture",
        "everyday",
        "gpu",
        "outside",
    }

    assert folders - rooms - beside == set()


def test_tests_of_core_have_a_folder_for_each_concern():
    """A folder of them is named for a concern: a file of a layer, or a folder of calculations. The others lie
    beside.
    """
    core = ROOT / "tolariad" / "core"
    concerns = {path.stem for layer in ("messages", "state", "rules") for path in (core / layer).glob("*.py")}
    concerns |= {path.parent.name for path in (core / "calc").glob("*/__init__.py")}
    folders = {path.parent.name for path in (ROOT / "tests" / "core").glob("*/*.py")}

    assert len(folders) > 5, "they are looked for where they are"
    assert folders - concerns == {"reactions"}


def lines_with(pattern: re.Pattern[str], kinds: set[str]) -> list[str]:
    """Return the lines of the repository's own text files that match."""
    found = []
    for path in every_file():
        if path.suffix not in kinds or path.name == "LICENSE":
            continue
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            continue
        found += [f"{shown(path, n)}: {line.strip()[:100]}" for n, line in enumerate(lines, 1) if pattern.search(line)]
    return found
