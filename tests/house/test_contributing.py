"""docs/contributing.md shows code that is in the tree, and commands that work."""

from __future__ import annotations

import re

import pytest

from tests.house.tree import ROOT

PAGE = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n# (\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
SHELL = "\n".join(re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))


def missing(shown: str, code: str) -> list[str]:
    """The pieces of what is shown, between lines of dots, that do not come one after the other in the code."""
    lost, at = [], 0
    for piece in re.split(r"^ *\.\.\.\n", shown, flags=re.MULTILINE):
        found = code.find(piece, at)
        if found < 0 or (found and code[found - 1] != "\n"):
            lost.append(piece)
        else:
            at = found + len(piece)
    return lost


def test_every_block_of_python_names_its_file():
    """Otherwise nobody would compare it."""
    assert len(BLOCKS) == PAGE.count("```python") >= 15


@pytest.mark.parametrize(("path", "shown"), BLOCKS, ids=[path for path, _ in BLOCKS])
def test_the_code_on_the_page_is_in_the_tree(path, shown):
    """Line by line, and in this order."""
    assert missing(shown, (ROOT / path).read_text(encoding="utf-8")) == []


def test_a_line_that_is_not_in_the_file_is_found():
    """The comparison can say no: another word, another order, half a line."""
    code = "a = 1\nb = 22\n"
    assert missing("a = 1\n...\nb = 22\n", code) == []
    assert missing("a = 2\n", code) == ["a = 2\n"]
    assert missing("b = 22\n...\na = 1\n", code) == ["a = 1\n"]
    assert missing("= 22\n", code) == ["= 22\n"]


def test_the_commands_on_the_page_are_those_of_the_makefile():
    """Targets, and folders of tests."""
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = set(re.findall(r"\bmake (\w+)", PAGE))

    assert named
    assert named <= targets
    assert [one for one in re.findall(r"\btests/[\w/.]+", SHELL) if not (ROOT / one).exists()] == []


@pytest.mark.parametrize(
    "title", ["order", "event", "setting", "built-in task", "detector", "rule", "kind of boundary order"]
)
def test_the_page_says_how_to_add(title):
    """Each has its heading."""
    article = "an" if title[0] in "aeiou" else "a"
    assert f"\n## Add {article} {title}\n" in PAGE
