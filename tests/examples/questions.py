"""The questions of docs/forensics.md: the commands that answer them, and what the page shows of the answers."""

from __future__ import annotations

import re
import shlex
from typing import NamedTuple

from tests.house.tree import ROOT

PAGE = ROOT / "docs" / "forensics.md"
_SECTION = re.compile(r"^### (\d+)\. (.*?)(?=^#)", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
# On the page it stands for what differs from run to run, or is left out.
_OMITTED = "…"


class Question(NamedTuple):
    """A command, and the lines of its answer that the page shows."""

    number: int
    words: tuple[str, ...]
    shown: tuple[str, ...]


def questions() -> list[Question]:
    """Return those of the page, in order. A question may have several commands."""
    found = []
    for number, section in _SECTION.findall(PAGE.read_text(encoding="utf-8")):
        blocks = "".join(_BLOCK.findall(section))
        for part in re.split(r"^\$ ", blocks, flags=re.MULTILINE)[1:]:
            command, *shown = part.splitlines()
            found.append(Question(int(number), tuple(shlex.split(command)), tuple(filter(str.strip, shown))))
    return found


def missing(shown: tuple[str, ...], answer: str) -> list[str]:
    """Return the shown lines that the answer does not have, in this order. Gaps between words may be of any width."""
    lines = iter(answer.splitlines())
    absent = []
    for line in shown:
        parts = [r"\s+".join(map(re.escape, part.split())) for part in line.split(_OMITTED)]
        pattern = re.compile(r"\s*" + r".*".join(parts) + r"\s*")
        if not any(pattern.fullmatch(one) for one in lines):
            absent.append(line)
            lines = iter(answer.splitlines())
    return absent
