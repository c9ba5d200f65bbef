"""The pages under docs/ that are made from the code. `python -m tests.house.pages` writes them again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.house.reactions_page import reactions_page
from tests.house.tree import ROOT
from tests.journals.make_golden import write_expected
from tolariad.core.settings_page import configuration_page
from tolariad.core.vocabulary.page import events_page

PAGES: dict[Path, Callable[[], str]] = {
    ROOT / "docs" / "configuration.md": configuration_page,
    ROOT / "docs" / "events.md": events_page,
    ROOT / "docs" / "reactions.md": reactions_page,
}


def write_pages() -> None:
    """Write every generated page."""
    for path, page in PAGES.items():
        path.write_text(page(), encoding="utf-8")
        print(f"written: {path.relative_to(ROOT)}")
    write_expected()


if __name__ == "__main__":
    write_pages()
