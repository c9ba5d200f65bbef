"""The pages point at things that exist, and the architecture page says what the import test holds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.house.test_imports import ROOMS, ROOTS, room_of
from tests.house.tree import PRODUCT, ROOT, every_file, module_name, python_files

PAGES = sorted(path for path in every_file() if path.suffix == ".md")
# A distribution's name, where the package it brings has another.
PACKAGES = {"PyYAML": "yaml", "google-crc32c": "google_crc32c", "protobuf": "google.protobuf"}


def named_paths(text: str) -> list[str]:
    """List what stands in backticks and looks like a file or folder of this repository."""
    roots = "journal|tolariad|tests|systemd|docs|examples|proto"
    return re.findall(rf"`((?:{roots})/[\w@./-]*)`", text)


def architecture_rows() -> dict[str, set[str]]:
    """Read the rooms of the architecture page's table and what it lets each import."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`(?:journal|tolariad)/[^|]*) \|[^|]*\| ([^|]*) \|$", page, re.MULTILINE)
    found = {}
    for names, allowed in rows:
        for name in re.findall(r"`([^`]+)`", names):
            room = name.removeprefix("tolariad/").rstrip("/").removesuffix(".py")
            found[room] = {PACKAGES.get(one, one) for one in re.split(r"[,;] ", allowed) if " " not in one}
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path):
    """Every relative link and every path in backticks names something that is there."""
    text = page.read_text(encoding="utf-8")
    links = [target.split("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target]
    lost = [target for target in links if target and not (page.parent / target).exists()]
    lost += [name for name in named_paths(text) if not (ROOT / name).exists()]

    assert not lost, "\n".join(["", *lost])


def test_the_architecture_page_allows_no_more_than_the_rule():
    """Every room that exists is on the page, and what the page allows it the import test allows too."""
    rows = architecture_rows()
    rooms = {room_of(module_name(path)) for path in python_files(*PRODUCT)} - {"__init__", "trainer.__main__"}
    too_much = {
        room: extra
        for room, allowed in rows.items()
        if room not in ROOTS and (extra := allowed - ROOMS[room][0] - ROOMS[room][1] - {"nothing"})
    }

    assert rooms - set(rows) == set()
    assert too_much == {}
