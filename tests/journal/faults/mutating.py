"""Take one safety rule out of a file. A comment marks the rule: `# safety: NAME`, or several names with commas.

A marker stands at the end of a line, or on lines of its own above it. A change never quotes the marked text, so the
line can be written anew without a change here. The statement that a change is about is the innermost one that begins or
lies on the marked line.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import NamedTuple

_MARKER = re.compile(r"# safety: ([a-z-]+(?:, [a-z-]+)*)$")


class Kind(Enum):
    """The change of the marked line."""

    GONE = "the statement is taken out"
    NEVER = "the condition of the `if` is False"
    ALWAYS = "the condition of the `if` is True"
    WITHOUT = "one operand of the statement's `and` or `or` is taken out"
    LINE = "another line stands there"
    BEFORE = "another line stands before it"


class Change(NamedTuple):
    """One change. `text`: the other line, without its indentation; `operand`: which one, from 0."""

    kind: Kind
    text: str = ""
    operand: int = 0


GONE, NEVER, ALWAYS = Change(Kind.GONE), Change(Kind.NEVER), Change(Kind.ALWAYS)


def without(operand: int) -> Change:
    """Take out one operand of the statement's `and` or `or`."""
    return Change(Kind.WITHOUT, operand=operand)


def line(text: str) -> Change:
    """Put another line in its place."""
    return Change(Kind.LINE, text)


def before(text: str) -> Change:
    """Put lines before it."""
    return Change(Kind.BEFORE, text)


def markers(folder: Path) -> Iterator[tuple[str, Path, int]]:
    """Yield each marker below `folder`: its name, its file, and the line that it marks, from 1."""
    for path in sorted(folder.rglob("*.py")):
        lines = path.read_text(encoding="utf-8").splitlines()
        for number, text in enumerate(lines, start=1):
            if found := _MARKER.search(text):
                marked = number
                while lines[marked - 1].lstrip().startswith("#"):
                    marked += 1
                yield from ((name, path, marked) for name in found[1].split(", "))


def changed(source: str, number: int, change: Change) -> str:
    """Return the source with the change at line `number`. Raises ValueError if the change does not fit the line."""
    lines = source.splitlines(keepends=True)
    indent = lines[number - 1][: len(lines[number - 1]) - len(lines[number - 1].lstrip())]
    given = "".join(f"{indent}{text}\n" for text in change.text.split("\n"))
    if change.kind is Kind.LINE:
        return _replaced(lines, number, number, given)
    if change.kind is Kind.BEFORE:
        return _replaced(lines, number, number - 1, given)
    statement = _innermost(ast.parse(source), number)
    if change.kind is Kind.GONE:
        return _replaced(lines, statement.lineno, statement.end_lineno or 0, f"{indent}pass\n")
    if change.kind is Kind.WITHOUT:
        return _without(source, statement, change.operand)
    if not isinstance(statement, ast.If):
        raise ValueError(f"line {number} has no `if`")  # noqa: TRY004 - a fault of the table, as the others are
    return _put(source, statement.test, str(change.kind is Kind.ALWAYS))


def _replaced(lines: list[str], first: int, last: int, text: str) -> str:
    return "".join((*lines[: first - 1], text, *lines[last:]))


def _innermost(tree: ast.Module, number: int) -> ast.stmt:
    around = (one for one in ast.walk(tree) if isinstance(one, ast.stmt) and one.lineno <= number <= _end(one))
    return max(around, key=lambda one: (one.lineno, -_end(one)))


def _end(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno


def _without(source: str, statement: ast.stmt, operand: int) -> str:
    header = statement.test if isinstance(statement, ast.If) else statement
    found = next((node for node in ast.walk(header) if isinstance(node, ast.BoolOp)), None)
    if found is None or operand >= len(found.values):
        raise ValueError(f"line {statement.lineno} has no operand {operand} of an `and` or `or`")
    word = " and " if isinstance(found.op, ast.And) else " or "
    # In brackets, as the operands may lie on several lines.
    left = (source[slice(*_span(source, one))] for index, one in enumerate(found.values) if index != operand)
    return _put(source, found, f"({word.join(f'({one})' for one in left)})")


def _put(source: str, node: ast.expr, text: str) -> str:
    start, end = _span(source, node)
    return source[:start] + text + source[end:]


def _span(source: str, node: ast.expr) -> tuple[int, int]:
    return _offset(source, node.lineno, node.col_offset), _offset(
        source, node.end_lineno or 0, node.end_col_offset or 0
    )


def _offset(source: str, number: int, column: int) -> int:
    lines = source.splitlines(keepends=True)
    return sum(map(len, lines[: number - 1])) + len(lines[number - 1].encode()[:column].decode())
