"""Folders in which no run can be started: refused with their exit code and a sentence, before anything is written."""

from __future__ import annotations

import stat

import pytest

from journal import Files
from tolariad import config
from tolariad.core import messages as m
from tolariad.core.calc.run.exits import EXIT_CONFIG, EXIT_DAMAGED, EXIT_IO
from tolariad.daemon.opening import ALLOW_FILESYSTEM, open_run
from tolariad.daemon.request import RunRequest, StartRefused
from tolariad.refusal import require_linux
from tolariad.supervisor.notify import Notifier

NFS = 0x6969


def opened(run_dir, **asked):
    return open_run(RunRequest(run_dir=run_dir, task="digits", **asked), m.StartMode.EXPLICIT, Notifier({}))


@pytest.mark.parametrize(
    ("where", "value", "missing"),
    [("sys.platform", "darwin", r"Linux is missing here \(darwin\)"), ("os.pidfd_open", None, "pidfd_open is missing")],
)
def test_a_machine_that_cannot_run_a_daemon_says_what_it_lacks(monkeypatch, where, value, missing):
    """The refusal also says that reading works there. Without anything missing there is no message."""
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
    """Exit 65: a new journal would not know the checkpoints, and would reuse their names."""
    checkpoint = run_dir / "checkpoints" / "c000001"
    checkpoint.mkdir(parents=True)
    (checkpoint / "manifest.json").write_text("{}")
    with pytest.raises(StartRefused, match="no journal") as caught:
        opened(run_dir)
    assert caught.value.code == EXIT_DAMAGED
    assert not (run_dir / "journal").exists()

    (checkpoint / "manifest.json").unlink()  # one that was never finished proves nothing
    opened(run_dir).journal.close()


def test_a_folder_without_a_run_has_none_to_continue(run_dir):
    """Exit 78: the refusal names the folder and what begins a run there; nothing is made."""
    folder = run_dir / "nowhere"
    with pytest.raises(
        StartRefused, match=r"no run in .*/nowhere that could go on\n.* a configuration or --task"
    ) as caught:
        open_run(RunRequest(run_dir=folder), m.StartMode.EXPLICIT, Notifier({}))
    assert caught.value.code == EXIT_CONFIG
    assert not folder.exists()


def test_a_run_that_shall_prune_without_torch_pruning_is_refused_at_once(run_dir, monkeypatch):
    """Exit 78, and nothing is made: an analysis would fail hours later."""
    monkeypatch.setattr(config.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(StartRefused, match=r"prune\.enabled: needs the package torch-pruning") as caught:
        opened(run_dir / "new", sets=("prune.enabled=true",))
    assert caught.value.code == EXIT_CONFIG
    assert not (run_dir / "new").exists()

    opened(run_dir / "new").journal.close()


def test_a_run_says_at_its_start_if_it_ends_before_its_first_masks(run_dir):
    """The digits train 20 epochs, and the first 30 mask nothing."""
    run = opened(run_dir, sets=("prune.enabled=true",))
    run.journal.close()

    assert any("no masks are due in this run" in one for one in run.resolved.notes)


def test_a_network_file_system_is_refused_unless_it_is_allowed(run_dir, monkeypatch):
    """Exit 78; the configuration's key, and the variable for containers, allow it."""
    monkeypatch.setattr(Files, "file_system", lambda *_: NFS)
    monkeypatch.setenv(ALLOW_FILESYSTEM, "0")
    with pytest.raises(StartRefused, match=r"nfs.*journal\.allow_filesystem") as caught:
        opened(run_dir)
    assert caught.value.code == EXIT_CONFIG
    assert not (run_dir / "journal").exists()

    monkeypatch.setenv(ALLOW_FILESYSTEM, "1")
    opened(run_dir).journal.close()
    monkeypatch.setenv(ALLOW_FILESYSTEM, "0")
    opened(run_dir, sets=("journal.allow_filesystem=true",)).journal.close()


def test_a_link_in_the_folder_is_refused_and_nothing_is_written_through_it(run_dir, tmp_path):
    """Exit 78 for links as the trainer's lock, log and stacks, and as folders: they may lead to another user's file."""
    victim = tmp_path / "victim"
    for name in ("trainer.lock", "logs/trainer.log", "logs/trainer.stacks", "config.resolved.json"):
        victim.write_text("somebody else's")
        (run_dir / name).parent.mkdir(parents=True, exist_ok=True)
        (run_dir / name).symlink_to(victim)
        with pytest.raises(StartRefused, match=f"{name}.*symbolic link") as caught:
            opened(run_dir)
        assert caught.value.code == EXIT_CONFIG
        assert victim.read_text() == "somebody else's"
        assert not (run_dir / "journal").exists()
        (run_dir / name).unlink()
    opened(run_dir).journal.close()


def test_a_folder_that_everybody_may_write_to_is_refused(run_dir):
    """Exit 78, before anything is written into it."""
    run_dir.mkdir(exist_ok=True)
    run_dir.chmod(0o777)
    with pytest.raises(StartRefused, match=r"everybody may write to it.*chmod g-w,o-w") as caught:
        opened(run_dir)
    assert caught.value.code == EXIT_CONFIG
    assert list(run_dir.iterdir()) == []


@pytest.mark.parametrize("umask", [0, 0o077])
def test_every_file_of_a_real_run_has_its_mode_whatever_the_umask(start, run_dir, umask):
    """0640 and 0750, by daemon and trainer, rotation, packing and checkpoints; the socket 0660."""
    sets = ["journal.segment_bytes=65536"]
    run_dir = run_dir / "fresh"
    wrapper = ("sh", "-c", f'umask {umask:04o}; exec "$@"', "sh")
    daemon = start(run_dir=run_dir, wrapper=wrapper, task="digits", epochs=100_000, sets=sets)
    daemon.until(lambda status: status["step"] > 60)
    sock = stat.S_IMODE((run_dir / "control.sock").stat().st_mode)
    daemon.call("Stop")
    assert daemon.wait() == 0, daemon.stderr

    found = {
        str(path.relative_to(run_dir)): stat.S_IMODE(path.stat().st_mode)
        for path in (run_dir, *run_dir.rglob("*"))
        if not path.is_symlink() and ".coverage" not in path.name
    }
    folders = {name for name in found if (run_dir / name).is_dir()}
    assert {"journal", "logs", "checkpoints"} <= folders
    assert {name: bits for name, bits in found.items() if bits != (0o750 if name in folders else 0o640)} == {}
    assert sock == 0o660
