"""`checkpoints/latest` leads to the newest checkpoint."""

from __future__ import annotations

import pytest

from tolariad.storage.latest import LATEST, name_newest


def test_the_link_is_relative_and_replaced_at_once(tmp_path):
    """It leads to the folder, also in a copy of the run; nothing is left beside it."""
    for name in ("c000001", "c000002", "c000002"):
        (tmp_path / name).mkdir(exist_ok=True)
        name_newest(tmp_path, name)
        assert str((tmp_path / LATEST).readlink()) == name
    assert sorted(one.name for one in tmp_path.iterdir()) == ["c000001", "c000002", LATEST]


def test_what_the_user_has_put_there_stays(tmp_path):
    """A folder of that name is no link; an id that is no name of a checkpoint is refused."""
    (tmp_path / LATEST).mkdir()
    with pytest.raises(FileExistsError):
        name_newest(tmp_path, "c000001")
    with pytest.raises(ValueError, match=r"\.\."):
        name_newest(tmp_path, "../x")
