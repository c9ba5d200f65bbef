"""Sentences have at most 25 words, and lines at most 120 columns.

These rules count the words of a sentence, in pages and in docstrings:

* A sentence ends at `.`, `!` or `?` before a space, and at the end of a paragraph or of a list item.
* A cell of a table is a paragraph of its own. There a semicolon ends a sentence too, because it separates notes.
* A code span is one word, and so is a row of them: `a`, `b` and `c`. Of a link the text counts.
* Headings, code blocks and lines that are indented by four columns or more are not counted.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

from tests.house.tree import GENERATED, ROOT, every_file, python_files, shown
from tests.house.wrapping import WIDTH

WORDS_MAX = 25
# A triple-quoted text that begins a line is a docstring; one after other text is a value.
TRIPLE = re.compile(r'^[ \t]*r?"""(.*?)"""|"""(.*?)"""', re.DOTALL | re.MULTILINE)
LIST_ITEM = re.compile(r"(?:[-*+]|\d+\.)\s")
# A closing quote, bracket or emphasis belongs to the sentence. After a second full stop (`...`) it goes on.
END = re.compile(r"""(?<!\.)[.!?]["')\]*_]*\s+""")
END_IN_CELL = re.compile(r"""[.!?;]["')\]*_]*\s+""")
ABBREVIATIONS = ("e.g.", "i.e.", "vs.", "cf.")


def paragraphs(lines: list[str], first: int) -> Iterator[tuple[int, str, bool]]:
    """Yield each paragraph with its line, and whether it is a cell of a table."""
    gathered: list[str] = []
    code, listed, at = False, False, first
    for number, line in enumerate([*lines, ""], first):
        text = line.strip()
        code ^= (fence := text.startswith("```"))
        ends = code or fence or not text or text[0] in "#|<" or line.startswith("    ")
        item = LIST_ITEM.match(text) and (listed or not gathered or text.startswith(("- ", "* ", "+ ", "1. ")))
        if gathered and (ends or item):
            yield at, " ".join(gathered), False
            gathered = []
        if text.startswith("|") and not code:
            yield from ((number, cell.strip(), True) for cell in re.split(r"(?<!\\)\|", text.strip("|")))
        elif not ends:
            at, listed = (at, listed) if gathered else (number, bool(item))
            gathered.append(LIST_ITEM.sub("", text, count=1) if item else text)


def sentences(paragraph: str, *, cell: bool = False) -> Iterator[str]:
    """Yield the sentences of a paragraph, with code spans and links made short."""
    text = re.sub(r"``.+?``|`[^`]+`", "CODE", paragraph)
    text = re.sub(r"CODE(?:\s*(?:,|/|·|,? and|,? or)\s*CODE)+", "CODE", text)
    text = re.sub(r"\]\([^)\s]*\)", "]", text)
    begin = 0
    for end in (END_IN_CELL if cell else END).finditer(text):
        if not text[: end.start() + 1].endswith(ABBREVIATIONS):
            yield text[begin : end.end()]
            begin = end.end()
    yield text[begin:]


def too_long(path: Path, lines: list[str], first: int = 1) -> list[str]:
    """List the sentences of a page or a docstring that have too many words."""
    return [
        f"{shown(path, at)}: {words} words, at most {WORDS_MAX}: {sentence}"
        for at, paragraph, cell in paragraphs(lines, first)
        if paragraph.count(" ") >= WORDS_MAX
        for sentence in sentences(paragraph, cell=cell)
        if (words := sum(bool(re.search(r"\w", word)) for word in sentence.split())) > WORDS_MAX
    ]


def docstrings(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the docstrings of a file that may have a long sentence: first line, and lines without indentation."""
    for found in TRIPLE.finditer(text):
        said = found[1] or ""  # a value is not looked at
        if len(said.split()) > WORDS_MAX:
            head, _, rest = said.partition("\n")
            yield text.count("\n", 0, found.start(1)) + 1, [head.strip(), *textwrap.dedent(rest).split("\n")]


def test_the_counter_counts_as_its_rules_say():
    """Each rule of this file, by a sentence that needs it."""
    assert [*sentences("One. `a.b c`, `d` and `e` two! A [link](to/a/page.md) ...")] == [
        "One. ",
        "CODE two! ",
        "A [link] ...",
    ]
    assert [*sentences("one; two", cell=True)] == ["one; ", "two"]
    assert [*sentences("one; two, e.g. three")] == ["one; two, e.g. three"]
    page = ["# Head", "a", "b", "* c", "  d", "", "    code", "| e | f |", "```", "g", "```", "h"]
    assert [*paragraphs(page, 1)] == [
        (2, "a b", False),
        (4, "c d", False),
        (8, "e", True),
        (8, "f", True),
        (12, "h", False),
    ]
    long = f"One. {'word ' * WORDS_MAX}"
    assert [*docstrings(f'def f():\n    """{long}\n\n    Two.\n    """\n    return """{long}"""\n')] == [
        (2, [long.strip(), "", "Two.", ""])
    ]
    assert len(too_long(ROOT / "README.md", ["word " * 26])) == 1
    assert too_long(ROOT / "README.md", ["word " * 25]) == []


def test_sentences_of_the_pages_are_short():
    """README, CHANGELOG, and all pages below docs, generated ones too. Change the code of a generated page."""
    pages = [path for path in every_file() if path.suffix == ".md"]
    long = [one for page in pages for one in too_long(page, page.read_text(encoding="utf-8").splitlines())]

    assert len(pages) > 50, "they are looked for where they are"
    assert not long, "\n".join(["", *long])


def test_sentences_of_docstrings_are_short():
    """All docstrings, of tests too."""
    found = [(path, *one) for path in python_files() for one in docstrings(path.read_text(encoding="utf-8"))]
    long = [one for path, at, lines in found for one in too_long(path, lines, at)]

    assert len(found) > 1000, "they are looked for where they are"
    assert not long, "\n".join(["", *long])


def test_lines_fit_into_the_columns():
    """Pages, code and what is installed. A row of a table cannot be broken; generated code is protoc's."""
    kinds = {".py", ".md", ".toml", ".yaml", ".proto", ".sh", ".service", ".socket", ".conf"}
    named = {"Makefile", "Containerfile"}
    wide = [
        f"{shown(path, number)}: {len(line)} columns, at most {WIDTH}"
        for path in every_file()
        if path.suffix in kinds or path.name in named
        if not path.relative_to(ROOT).as_posix().startswith(GENERATED)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > WIDTH and not (path.suffix == ".md" and line.startswith("|"))
    ]

    assert not wide, "\n".join(["", *wide])
