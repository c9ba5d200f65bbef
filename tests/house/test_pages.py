"""Generated pages agree with the code."""

from __future__ import annotations

import html
import re

import pytest

from tests.house.pages import PAGES
from tests.house.pictures import pictures


@pytest.mark.parametrize("path", list(PAGES), ids=lambda path: path.name)
def test_a_generated_page_is_up_to_date(path):
    """After a change of the code the page must be written again (`make docs`)."""
    assert path.read_text(encoding="utf-8") == PAGES[path]()


def test_the_pictures_show_what_the_commands_print():
    """Their text is that of today's code (`make docs`); they take nothing from the network, and are small."""
    for path, drawn in pictures().items():
        stored = path.read_text(encoding="utf-8")
        assert words_of(stored) == words_of(drawn), path.name
        assert len(words_of(stored)) > 100
        assert "url(" not in stored.replace("url(#", "")
        assert len(stored) < 40_000


def words_of(svg):
    """Return the text of a picture. Its places and colours are those of the version of rich."""
    return "".join(html.unescape("".join(re.findall(r"<text[^>]*>(.*?)</text>", svg))).split())
