"""Fixtures of the kernel's tests."""

from __future__ import annotations

import pytest

from tests.kernel.rig import Rig


@pytest.fixture
def rig(tmp_path):
    made = Rig(tmp_path / "journal")
    yield made
    made.close()
