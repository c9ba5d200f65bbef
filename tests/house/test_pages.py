"""Generated pages are what the code says today."""

from __future__ import annotations

import pytest

from tests.house.pages import PAGES


@pytest.mark.parametrize("path", list(PAGES), ids=lambda path: path.name)
def test_a_generated_page_is_up_to_date(path):
    """Whoever changes the code writes the page again (`make docs`)."""
    assert path.read_text(encoding="utf-8") == PAGES[path]()
