"""Folders in which no run is begun: refused with their exit code and a sentence, before anything is written."""

from __future__ import annotations

import pytest

from journal import OsFiles
from tolariad.core.inputs import StartMode
from tolariad.daemon.opening import ALLOW_FILESYSTEM, open_run, require_linux
from tolariad.daemon.request import EXIT_CONFIG, EXIT_DAMAGED, EXIT_IO, RunRequest, StartRefused
from tolariad.supervisor.notify import Notifier

NFS = 0x6969


def opened(run_dir, **asked):
    return open_run(RunRequest(run_dir=run_dir, task="digits", **asked), StartMode.EXPLICIT, Notifier({}))


@pytest.mark.parametrize(
    ("where", "value", "missing"),
    [("sys.platform", "darwin", r"Linux is missing here \(darwin\)"), ("os.pidfd_open", None, "pidfd_open is missing")],
)
def test_a_machine_that_cannot_run_a_daemon_says_what_it_lacks(monkeypatch, where, value, missing):
    """And that reading works there; where everything is there nothing is said."""
    require_linux()
    if value is None:
        monkeypatch.delattr(where)
    else:
        monkeypatch.setattr(where, value)
    with pytest.raises(StartRefused, match=missing) as caught:
        require_linux()
    assert "reads journals on any machine" in str(caught.value)
    assert caught.value.code == EXIT_IO


def test_checkpoints_without_a_journal_are_a_journal_that_was_lost(run_dir):
    """Exit 65: a new journal would not know them, and would write over their names."""
    checkpoint = run_dir / "checkpoints" / "c000001"
    checkpoint.mkdir(parents=True)
    (checkpoint / "manifest.json").write_text("{}")
    with pytest.raises(StartRefused, match="no journal") as caught:
        opened(run_dir)
    assert caught.value.code == EXIT_DAMAGED
    assert not (run_dir / "journal").exists()

    (checkpoint / "manifest.json").unlink()  # one that was never finished proves nothing
    opened(run_dir).journal.close()


def test_a_network_file_system_is_refused_unless_it_is_allowed(run_dir, monkeypatch):
    """Exit 78, for the key is the configuration's; the key and the variable for containers allow it."""
    monkeypatch.setattr(OsFiles, "file_system", lambda *_: NFS)
    monkeypatch.setenv(ALLOW_FILESYSTEM, "0")
    with pytest.raises(StartRefused, match=r"nfs.*journal\.allow_filesystem") as caught:
        opened(run_dir)
    assert caught.value.code == EXIT_CONFIG
    assert not (run_dir / "journal").exists()

    monkeypatch.setenv(ALLOW_FILESYSTEM, "1")
    opened(run_dir).journal.close()
    monkeypatch.setenv(ALLOW_FILESYSTEM, "0")
    opened(run_dir, sets=("journal.allow_filesystem=true",)).journal.close()
