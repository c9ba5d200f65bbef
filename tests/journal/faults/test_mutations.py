"""Fault class 19: remove a safety line from a copy of the journal, and require that the named test fails."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.journal.faults.mutation_rows import Edit, Mutation
from tests.journal.faults.mutation_table import MUTATIONS

ROOT = Path(__file__).parents[3]
# What the named tests need of the tree; the rest of it stays where it is.
COPIED = (
    "journal",
    "tolariad",
    "tests/journal",
    "tests/torture",
    "tests/journals",
    "tests/core/reactions",
    "tests/__init__.py",
    "tests/conftest.py",
    "docs/journal-format.md",
    "pyproject.toml",
)
SEED = "1"
# A rule without which something never ends has been noticed too.
PATIENCE_S = 90.0
SHORT = 2
# Those cost their patience; the short form leaves them to the long one.
ENDLESS = (
    "verify walks a segment again once",
    "who waits hears of a failure",
    "a close does not wait for space",
    "a cancelled task keeps nobody from hearing",
)


def copied(folder: Path) -> Path:
    """Return a copy of the journal and its tests."""
    for name in COPIED:
        source, target = ROOT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    return folder


def changed(text: str, edit: Edit) -> str:
    """Return the file without the rule. Its text must occur exactly once; else the table is out of date."""
    found = text.count(edit.old)
    if found != 1:
        pytest.fail(f"journal/{edit.file} has this text {found} times, not once; mend the table:\n{edit.old}")
    return text.replace(edit.old, edit.new)


def survives(mutation: Mutation, tree: Path) -> str:
    """Run the named test on the changed copy.

    Return why the rule was not missed, or an empty text. Restores the copy.
    """
    before = {edit.file: (tree / "journal" / edit.file).read_text(encoding="utf-8") for edit in mutation.edits}
    try:
        for edit in mutation.edits:
            path = tree / "journal" / edit.file
            path.write_text(changed(path.read_text(encoding="utf-8"), edit), encoding="utf-8")
        status, output = outcome(mutation.killer, tree)
    finally:
        for file, text in before.items():
            (tree / "journal" / file).write_text(text, encoding="utf-8")
    # 1 is a test that failed; 2 and above that it could not be run, which shows nothing.
    return "" if status == 1 else f"{mutation.rule}: {mutation.killer} ended with {status}\n{output[-1500:]}"


def outcome(killer: str, tree: Path) -> tuple[int, str]:
    """Return pytest's exit status for one test in the copy (1 if it does not end) and its output."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "TOLARIA_SEED": SEED}
    test = f"tests/journal/{killer}"
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
        test,
    ]
    try:
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        return 1, ""
    return done.returncode, done.stdout


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


def test_every_safety_line_is_still_where_the_table_says():
    """Each text occurs in its file exactly once and differs from its replacement."""
    for mutation in MUTATIONS:
        for edit in mutation.edits:
            text = (ROOT / "journal" / edit.file).read_text(encoding="utf-8")
            assert changed(text, edit) != text, mutation.rule


def test_each_named_test_is_there():
    """Each killer's file and function exist: a test that is not collected would never fail."""
    for mutation in MUTATIONS:
        file, _, name = mutation.killer.partition("::")
        text = (ROOT / "tests/journal" / file).read_text(encoding="utf-8")
        assert f"def {name.partition('[')[0]}(" in text or not name, mutation.killer


def test_some_safety_lines_cannot_be_taken_out_unnoticed(tmp_path, seed):
    """A few rows, drawn."""
    run(random.Random(seed).sample([one for one in MUTATIONS if one.rule not in ENDLESS], SHORT), tmp_path)


@pytest.mark.torture
def test_no_safety_line_can_be_taken_out_unnoticed(tmp_path):
    """All rows."""
    run(MUTATIONS, tmp_path)
