"""Fault class 19: remove a safety line from a copy of the project, and require that the named test fails."""

from __future__ import annotations

import ast
import functools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from textwrap import dedent

import pytest

from tests.journal.faults.mutating import ALWAYS, GONE, NEVER, before, changed, line, markers, without
from tests.journal.faults.mutation_rows import Mutation
from tests.journal.faults.mutation_table import MUTATIONS

ROOT = Path(__file__).parents[3]
# The part of the tree that the named tests need; the rest is not copied.
COPIED = ("journal", "tolariad", "tests", "docs/journal-format.md", "pyproject.toml")
# The packages whose lines are marked.
MARKED = ("journal", "tolariad")
SEED = "1"
# A rule without which something never ends has been noticed too.
PATIENCE_S = 90.0
SHORT = 1
# Those cost their patience; the short form leaves them to the long one.
ENDLESS = (
    "verify walks a segment again once",
    "who waits hears of a failure",
    "a close does not wait for space",
    "a cancelled task keeps nobody from hearing",
    "a forked child lets go",
)


def copied(folder: Path) -> Path:
    """Return a copy of the project and its tests."""
    for name in COPIED:
        source, target = ROOT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            # With its bytecode, which fits the files until they are changed. Half-written bytecode has a longer name.
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.pyc.*"))
        else:
            shutil.copy(source, target)
    return folder


def marked(tree: Path) -> Iterator[tuple[str, Path, int]]:
    """Yield each marker of a tree: its name, its file, and the line that it marks."""
    for package in MARKED:
        yield from markers(tree / package)


def survives(mutation: Mutation, tree: Path) -> str:
    """Run the named test on the changed copy.

    Return why the rule was not missed, or an empty text. Restores the copy.
    """
    path, number = next((path, number) for name, path, number in marked(tree) if name == mutation.marker)
    before = path.read_text(encoding="utf-8")
    try:
        path.write_text(changed(before, number, mutation.change), encoding="utf-8")
        status, output = outcome(mutation.killer, tree)
    finally:
        path.write_text(before, encoding="utf-8")
    # 1 is a test that failed; 2 and above that it could not be run, which shows nothing.
    return "" if status == 1 else f"{mutation.rule}: {mutation.killer} ended with {status}\n{output[-1500:]}"


def outcome(killer: str, tree: Path) -> tuple[int, str]:
    """Return pytest's exit status for one test in the copy (1 if it does not end) and its output."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "TOLARIA_SEED": SEED}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "--no-header",
        "--durations=0",
        "-m",
        "sample or not torture",
        f"tests/{killer}",
    ]
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, cwd=tree, env=environment, stdout=output, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            status = process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            return 1, ""
        finally:
            # A test that does not end may have forked: its children would stay.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        return status, output.read().decode(errors="replace")


def run(mutations: Iterable[Mutation], folder: Path) -> None:
    tree = copied(folder)
    survivors, number = [], 0
    green: set[str] = set()
    for number, mutation in enumerate(mutations, start=1):  # noqa: B007 -- counted for the line below
        # Red without a mutation would prove anything.
        if mutation.killer not in green:
            status, output = outcome(mutation.killer, tree)
            assert status == 0, f"{mutation.killer} is not green in the copy\n{output}"
            green.add(mutation.killer)
        why = survives(mutation, tree)
        print(f"class 19, {'SURVIVES' if why else 'noticed'}: {mutation.rule}", flush=True)
        survivors += [why] if why else []
    print(f"class 19: {number - len(survivors)} of {number} safety lines noticed")
    assert not survivors, "\n\n".join(survivors)


def test_every_marker_stands_once_and_has_its_row():
    """The table cannot rot: no marker is lost or doubled, and none is without a row."""
    found = Counter(name for name, _, _ in marked(ROOT))
    assert found == Counter(mutation.marker for mutation in MUTATIONS)
    assert set(found.values()) == {1}


def test_every_row_changes_what_its_marker_marks():
    """The change fits the line, and gives a module of another meaning that can still be compiled."""
    lines = {name: (path.read_text(encoding="utf-8"), number) for name, path, number in marked(ROOT)}
    meaning = functools.cache(lambda source: ast.dump(ast.parse(source)))
    for mutation in MUTATIONS:
        source, number = lines[mutation.marker]
        assert meaning(changed(source, number, mutation.change)) != meaning(source), mutation.rule


def test_a_change_finds_its_statement_wherever_the_line_stands():
    """The innermost one; operands over several lines; a line of its own above another comment."""
    source = dedent(
        """\
        def f(a, b):
            # safety: first
            # a comment
            if a and (
                b
            ):
                return 1
            return 2 if a or b else 3
        """
    )

    def rest(number, change):
        return ast.unparse(ast.parse(changed(source, number, change))).splitlines()[1:]

    last = "    return 2 if a or b else 3"
    assert rest(4, NEVER) == ["    if False:", "        return 1", last]
    assert rest(4, ALWAYS) == ["    if True:", "        return 1", last]
    assert rest(4, without(1)) == ["    if a:", "        return 1", last]
    assert rest(4, GONE) == ["    pass", last]
    assert rest(8, without(0))[-1] == "    return 2 if b else 3"
    assert rest(8, line("return 4"))[-1] == "    return 4"
    assert rest(8, before("a = b\nb = 1"))[-3:] == ["    a = b", "    b = 1", last]
    with pytest.raises(ValueError, match="line 8 has no `if`"):
        changed(source, 8, NEVER)


def test_a_marker_above_a_line_marks_the_next_line_of_code(tmp_path):
    """Other comments may stand between them; one line may have several markers."""
    (tmp_path / "one.py").write_text(
        "# safety: first, second\n# why\nx = 1\ny = 2  # safety: third\n", encoding="utf-8"
    )
    assert [(name, number) for name, _, number in markers(tmp_path)] == [("first", 3), ("second", 3), ("third", 4)]


def test_each_named_test_is_there():
    """Each killer's file and function exist: a test that is not collected would never fail."""
    for mutation in MUTATIONS:
        file, _, name = mutation.killer.partition("::")
        text = (ROOT / "tests" / file).read_text(encoding="utf-8")
        assert f"def {name.partition('[')[0]}(" in text or not name, mutation.killer


def test_some_safety_lines_cannot_be_taken_out_unnoticed(tmp_path, seed):
    """A row, drawn."""
    run(random.Random(seed).sample([one for one in MUTATIONS if one.rule not in ENDLESS], SHORT), tmp_path)


@pytest.mark.torture
def test_no_safety_line_can_be_taken_out_unnoticed(tmp_path):
    """All rows."""
    run(MUTATIONS, tmp_path)
