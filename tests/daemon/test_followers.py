"""The followers that start with a run end with it, have everything then, and never hold it up."""

from __future__ import annotations

import asyncio
import logging
import os

import pytest

from tests.followers.recording import values, went_back, write_journal
from tests.waiting import wait_for
from tolariad.core.calc.settings.followers import Follow
from tolariad.daemon.followers import Followers


@pytest.fixture
def run_dir(tmp_path):
    folder = tmp_path / "run"
    write_journal(went_back().events, folder / "journal")
    (folder / "logs").mkdir()
    return folder


async def kept(followers: Followers, condition):
    """Keep the followers until the condition holds."""
    keeping = asyncio.create_task(followers.keep())
    await asyncio.to_thread(wait_for, condition, "the follower")
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)


async def test_a_follower_has_the_whole_run_when_the_daemon_has_ended(run_dir, tmp_path):
    """It goes on while the run is open, and ends after its stdin is closed."""
    followers = Followers([Follow(to="tensorboard", uri=str(tmp_path / "out"), project="p")], run_dir)
    await kept(followers, lambda: list((tmp_path / "out" / "p").rglob("tolaria-position.json")))
    (one,) = followers._all
    assert one._process.poll() is None, "it waits for more"
    followers.close()

    assert one._process.returncode == 0
    found = [values(path.read_bytes()) for path in (tmp_path / "out").rglob("*tfevents*")]
    assert sorted(sum(tag == "train/loss" for _, tag, _ in file) for file in found) == [8, 10]


async def test_a_follower_without_its_package_is_said_once(run_dir, monkeypatch, caplog):
    """The sentence names the extra to install; the follower is not started again and again."""
    (run_dir / "wandb.py").write_text("raise ImportError('no wandb here')\n")
    monkeypatch.setenv("PYTHONPATH", str(run_dir))
    followers = Followers([Follow(to="wandb")], run_dir)
    with caplog.at_level(logging.WARNING):
        await kept(followers, lambda: caplog.records)
    (one,) = followers._all
    one.look()

    (said,) = [record.getMessage() for record in caplog.records]
    assert "pip install 'tolariad[wandb]'" in said
    assert "It is not started again" in said
    assert one._process is None
    followers.close()


async def test_one_that_does_not_end_is_killed(run_dir, tmp_path, monkeypatch, caplog):
    """The daemon's end waits for a stated time, and says what copies the rest."""
    monkeypatch.setattr("tolariad.daemon.followers._END_S", 0.2)
    monkeypatch.setattr("tolariad.daemon.followers._SAY_S", 0.1)
    followers = Followers([Follow(to="tensorboard", uri=str(tmp_path / "out"))], run_dir)
    (one,) = followers._all
    one._command = ("/bin/sleep", "1000")
    await kept(followers, lambda: one._process)
    process = one._process
    followers.close()

    assert process.returncode == -9
    assert "The followers to tensorboard still copy the end of the run" in caplog.text
    assert "tolaria follow" in caplog.text
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
