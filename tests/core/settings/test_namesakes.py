"""A key that is unknown where it stands, and known elsewhere."""

from __future__ import annotations

import pytest

from tests.core.settings.test_settings import problems_of


@pytest.mark.parametrize("section", ["checkpoint", "stop"])
def test_a_key_of_the_top_level_in_a_section_is_pointed_to_its_place(section):
    """Not to a key of the section that is spelt alike, such as keep_last."""
    what = f"unknown key; keep_best is set at the top level, beside {section}"
    assert problems_of({section: {"keep_best": "loss"}}) == {f"{section}.keep_best": (what, None)}
