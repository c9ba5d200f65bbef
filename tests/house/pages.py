"""The files made from the code: pages under docs/ and the record of events.

`python -m tests.house.pages` writes them again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgspec

from tests.everyday.page import everyday_page
from tests.house.configuration_page import configuration_page
from tests.house.events_page import events_page, record
from tests.house.leyline_page import leyline_page
from tests.house.reactions_page import reactions_page
from tests.house.tree import ROOT
from tests.journals.make_golden import write_expected
from tolariad.core.messages.vocabulary import EVENT_TYPES

EVENTS_RECORD = ROOT / "tests" / "core" / "events-0.1.json"


def events_record() -> str:
    """Return the record of event types and fields with those of today added. Nothing is ever taken from it.

    The kinds of a field that may be of several are added to as well.

    A field without a default is not added to an event that is recorded already: old events lack it, so a test
    must fail.
    """
    recorded: dict[str, dict[str, str]] = json.loads(EVENTS_RECORD.read_text(encoding="utf-8"))
    for name, fields in record().items():
        kind, known = EVENT_TYPES.get(name), recorded.get(name, {})
        required = (
            {one.encode_name for one in msgspec.structs.fields(kind) if one.required} if kind and known else set()
        )
        grown = {one: type_ for one, type_ in fields.items() if one in known and admits(type_, known[one])}
        recorded[name] = {one: type_ for one, type_ in fields.items() if one not in required} | known | grown
    ordered = {name: dict(sorted(recorded[name].items())) for name in sorted(recorded)}
    return json.dumps(ordered, indent=1) + "\n"


def admits(now: str, before: str) -> bool:
    """Return whether a field of the type `now` admits all that one of the type `before` did."""
    return set(before.split(" or ")) <= set(now.split(" or "))


PAGES: dict[Path, Callable[[], str]] = {
    ROOT / "docs" / "configuration.md": configuration_page,
    ROOT / "docs" / "events.md": events_page,
    ROOT / "docs" / "leyline.md": leyline_page,
    ROOT / "docs" / "reactions.md": reactions_page,
    ROOT / "docs" / "everyday.md": everyday_page,
    EVENTS_RECORD: events_record,
}


def write_pages() -> None:
    """Write every generated page."""
    for path, page in PAGES.items():
        path.write_text(page(), encoding="utf-8")
        print(f"written: {path.relative_to(ROOT)}")
    write_expected()


if __name__ == "__main__":
    write_pages()
