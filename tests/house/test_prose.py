"""What a program can check of the prose: the length of lines, and descriptions of fields that stand alone.

Whether a reader understands a sentence at first reading is for a person to judge (docs/contributing.md).
"""

from __future__ import annotations

import re

from tests.house.tree import GENERATED, PRODUCT, ROOT, every_file, python_files, shown
from tests.house.wrapping import WIDTH

# "`limit_s`: of the tier" is half a phrase. "`limit_s`: the tier's time limit, in seconds" stands alone.
FRAGMENT = re.compile(r"`\w+`: (?:of|by|with|from|that|which|until|since)\b")


def test_the_description_of_a_field_stands_alone():
    """A docstring describes a field by a noun phrase or a sentence, not by "of the ..."."""
    looked_at = python_files(*PRODUCT)
    fragments = [
        f"{shown(path, number)}: {found[0]} ...: write a noun phrase or a sentence that stands alone"
        for path in looked_at
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if (found := FRAGMENT.search(line))
    ]

    assert len(looked_at) > 300, "they are looked for where they are"
    assert not fragments, "\n".join(["", *fragments])


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
