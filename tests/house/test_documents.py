"""The pages name things that exist, and the architecture page agrees with the import test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import journal.format
from tests.house.test_imports import EVERYBODY, OPTIONAL, ROOMS, ROOTS, is_ours, is_within, room_of
from tests.house.tree import GENERATED, PRODUCT, ROOT, every_file, imports_of, is_standard, module_name, python_files
from tolariad.core.state.run_state import FOLD_VERSION
from tolariad.leyline import SystemStateSerializer
from tolariad.storage.manifest import FORMAT

PAGES = sorted(path for path in every_file() if path.suffix == ".md")
# A group of entry points, loggers, and modules that a test of the layers invents.
NOT_MODULES = {"tolariad.blueprints", "tolariad.run", "tolariad.test"}
INVENTED = ("tests/house/test_layers.py", "tests/house/test_documents.py")
# The names of distributions whose packages have other names.
PACKAGES = {"PyYAML": "yaml", "google-crc32c": "google_crc32c", "protobuf": "google.protobuf"}


def named_paths(text: str) -> list[str]:
    """List the texts in backticks that look like a file or folder of this repository."""
    roots = "journal|tolariad|tests|systemd|docs|examples|proto"
    return re.findall(rf"`((?:{roots})/[\w@./-]*)`", text)


def architecture_rows() -> dict[str, set[str]]:
    """Return the rooms of the architecture page, with the imports that it allows."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`(?:journal|tolariad)/[^|]*) \|[^|]*\| ([^|]*) \|$", page, re.MULTILINE)
    found = {}
    for names, allowed in rows:
        for name in re.findall(r"`([^`]+)`", names):
            room = name.removeprefix("tolariad/").rstrip("/").removesuffix(".py")
            found[room] = {PACKAGES.get(one, one) for one in re.split(r"[,;] ", allowed) if " " not in one}
    return found


def anchors(page: Path) -> set[str]:
    """Return what a link to a section of this page may name, as forges make it of a heading."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return {
        re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    }


def is_lost(page: Path, target: str) -> bool:
    """Return whether a relative link names no file, or no section of it."""
    name, _, section = target.partition("#")
    to = page.parent / name if name else page
    return not to.exists() or (bool(section) and to.suffix == ".md" and section not in anchors(to))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path):
    """Every relative link, with the section that it names, and every path in backticks exists."""
    text = page.read_text(encoding="utf-8")
    links = [target for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target]
    lost = [target for target in links if is_lost(page, target)]
    lost += [name for name in named_paths(text) if not (ROOT / name).exists()]

    assert not lost, "\n".join(["", *lost])


def is_gone(name: str) -> bool:
    """Return whether a dotted name is no module of ours, and no name in one."""
    at, parts = ROOT, name.split(".")
    while parts and (at / parts[0]).is_dir():
        at /= parts.pop(0)
    file = at / f"{parts[0]}.py" if parts else at
    if parts and file.exists():
        parts.pop(0)
    else:
        file = at / "__init__.py"
    return bool(parts) and not re.search(rf"\b{parts[0]}\b", file.read_text(encoding="utf-8") if file.exists() else "")


@pytest.mark.parametrize("kind", [".py", ".md"])
def test_no_line_names_a_module_that_is_gone(kind: str):
    """Dotted names, and paths of Python files, in code, comments, docstrings and pages. Old records may name any."""
    gone = []
    for path in every_file():
        name = path.relative_to(ROOT).as_posix()
        if path.suffix != kind or name.startswith(("docs/decisions/", "CHANGELOG", *GENERATED, *INVENTED)):
            continue
        text = path.read_text(encoding="utf-8")
        dotted = set(re.findall(r"(?<![\w./-])tolariad(?:\.[a-z]\w*)+\b(?!/)", text))
        files = set(re.findall(r"(?<![\w./-])(?:journal|tolariad|tests|examples)/[\w/]+\.py\b", text))
        gone += [f"{name}: {one}" for one in sorted(dotted - NOT_MODULES) if is_gone(one)]
        gone += [f"{name}: {one}" for one in sorted(files) if not (ROOT / one).exists()]

    assert not gone, "\n".join(["", *gone])


def test_the_architecture_page_allows_no_more_than_the_rule():
    """Every room is on the page, and the import test allows all that the page allows."""
    rows = architecture_rows()
    rooms = {room_of(module_name(path)) for path in python_files(*PRODUCT)} - {
        "__init__",
        "trainer.__main__",
        "attach.__main__",
    }
    too_much = {
        room: extra
        for room, allowed in rows.items()
        if room not in ROOTS and (extra := allowed - ROOMS[room][0] - ROOMS[room][1] - {"nothing"})
    }

    assert rooms - set(rows) == set()
    assert too_much == {}


def test_the_architecture_page_has_what_the_code_imports():
    """The table has every import between rooms, not only some."""
    rows = architecture_rows()
    hidden = set()
    for path in python_files(*PRODUCT):
        room = room_of(module_name(path))
        if room in ROOTS:
            continue
        for found in imports_of(path):
            if is_standard(found.name) or is_within(found.name, {"msgspec", *rows[room], *OPTIONAL}):
                continue
            if not is_ours(found.name) or room_of(found.name) not in {room, *rows[room], *EVERYBODY}:
                hidden.add(f"{room}: {found.name}")

    assert hidden == set()


def test_every_promise_of_the_design_has_its_row_and_every_row_its_tests():
    """P1 to P13 have a row each at least, and each row names a test that exists."""
    page = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (P\d+|-) \| (.+) \| (.+) \|$", page, re.MULTILINE)

    assert {number for number, *_ in rows} - {"-"} == {f"P{n}" for n in range(1, 14)}
    assert [text for _, text, shown_by in rows if not re.search(r"`tests/[\w/.]+`", shown_by)] == []


def test_the_formats_on_the_page_are_those_of_the_code():
    """docs/releases.md says what an old file may expect, by the numbers that this version writes."""
    page = (ROOT / "docs" / "releases.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| (journal|fold|checkpoint|messages)[^|]* \| `?([\w.]+)", page, re.MULTILINE))

    assert rows == {
        "journal": str(journal.format.VERSION),
        "fold": str(FOLD_VERSION),
        "checkpoint": FORMAT,
        "messages": str(SystemStateSerializer.CURRENT_VERSION),
    }


def test_every_fault_class_that_the_page_names_has_its_file():
    """Each class is on the page once, with files that exist."""
    page = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8").partition("fault classes\n")[2]
    rows = re.findall(r"^\| (\d+)(?: to (\d+))? \| .+ \| (.+) \|$", page, re.MULTILINE)
    classes = [n for first, last, _ in rows for n in range(int(first), int(last or first) + 1)]
    files = [name for *_, shown_by in rows for name in re.findall(r"`([\w/.]+)`", shown_by)]

    assert classes == [n for n in range(1, 20) if n != 17]  # 17 is of latencies: `make bench`
    assert [name for name in files if not any((ROOT / at / name).exists() for at in (".", "tests/journal"))] == []


def test_every_term_of_the_glossary_has_one_entry():
    """Terms are in alphabetical order, each once, and a term in italics has an entry of its own."""
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \| (.+) \|$", page, re.MULTILINE)[1:]
    terms = [term for term, _ in rows]
    known = {re.sub(r" \(.*", "", term) for term in terms}
    used = {word for _, meaning in rows for word in re.findall(r"\*([^*]+)\*", meaning)}
    stems = {one: {one, one.removesuffix("s"), one.removesuffix("ed"), one.removesuffix("es")} for one in used}

    assert terms == sorted(set(terms), key=str.lower)
    assert [one for one, forms in stems.items() if not forms & known] == []


def test_the_architecture_page_fits_on_two_printed_pages():
    """At most 110 lines, none of them wider than a page; detail belongs into contributing.md and the docstrings."""
    lines = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").splitlines()

    assert len(lines) <= 110
    assert [line for line in lines if len(line) > 140] == []


def test_every_decision_is_in_the_index():
    """The index has a row for each record, in the order of the numbers."""
    folder = ROOT / "docs" / "decisions"
    records = sorted(path.name for path in folder.glob("*.md") if path.name != "README.md")
    rows = re.findall(r"^\| \[(\d{4})\]\(([^)]+)\)", (folder / "README.md").read_text(encoding="utf-8"), re.MULTILINE)

    assert [name for _, name in rows] == records
    assert [number for number, _ in rows] == [name[:4] for name in records]
