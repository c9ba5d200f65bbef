"""Generated pages agree with the code."""

from __future__ import annotations

import pytest

from tests.house.pages import PAGES


@pytest.mark.parametrize("path", list(PAGES), ids=lambda path: path.name)
def test_a_generated_page_is_up_to_date(path):
    """After a change of the code the page must be written again (`make docs`)."""
    assert path.read_text(encoding="utf-8") == PAGES[path]()
