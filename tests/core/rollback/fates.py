"""The effect of a rollback on every field of the state: the tables of docs/rollback-state.md."""

from __future__ import annotations

import enum
from typing import NamedTuple

from tests.house.tree import ROOT


class Fate(enum.Enum):
    """The headings of the page."""

    RESTORED = "Restored"
    SET = "Set by the rollback"
    ANEW = "Begins anew"
    SURVIVES = "Survives"


class FateRow(NamedTuple):
    """Some fields of one slice that share a fate, and why."""

    slice: str
    fate: Fate
    names: list[str]
    why: str


def _rows() -> list[FateRow]:
    found, fate = [], None
    for line in (ROOT / "docs" / "rollback-state.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            fate = Fate(line.removeprefix("## "))
        elif line.startswith("| ") and not line.startswith("| slice |"):
            slice_, names, why = (cell.strip() for cell in line.strip("|").split("|"))
            found.append(FateRow(slice_, fate, [name.strip("` ") for name in names.split(",") if name != "-"], why))
    return found


ROWS = _rows()
