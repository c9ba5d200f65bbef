"""File systems whose promises nobody tested are refused, unless the caller allows them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from journal import Files, FileSystemRefused, Journal
from journal.filesystem import UNTESTED

OPEN = """
import sys
from pathlib import Path
from journal import Journal
Journal.open(Path(sys.argv[1]), allow_filesystem=False)
"""


class Lying(Files):
    """Reports the file system type that the test chose."""

    def __init__(self, magic: int) -> None:
        self.magic = magic

    def file_system(self, folder):
        return self.magic


@pytest.mark.parametrize("magic", UNTESTED)
def test_network_and_stacked_file_systems_are_refused_by_name(tmp_path, magic):
    """The refusal names the type and the setting, before any write; the caller can allow it."""
    folder = tmp_path / "journal"
    with pytest.raises(FileSystemRefused, match=UNTESTED[magic]) as caught:
        Journal.open(folder, files=Lying(magic), allow_filesystem=False)
    assert "journal.allow_filesystem" in str(caught.value)
    assert not folder.exists()
    Journal.open(folder, files=Lying(magic), allow_filesystem=True).close()


@pytest.mark.parametrize("magic", [0xEF53, 0x58465342, 0x9123683E, 0x01021994, 0x2FC12FC1])
def test_local_file_systems_are_not(tmp_path, magic):
    """ext4, XFS, btrfs, tmpfs and ZFS are accepted."""
    with Journal.open(tmp_path / "journal", files=Lying(magic), allow_filesystem=False) as journal:
        assert journal.last_seq == 0


def test_the_type_is_the_one_the_system_tells(tmp_path):
    """It is the number that `stat -f` prints, also for a folder that does not exist yet."""
    if shutil.which("stat") is None:
        pytest.skip("no stat command")
    said = subprocess.run(["stat", "-f", "-c", "%t", tmp_path], capture_output=True, text=True, check=True).stdout
    assert Files().file_system(tmp_path) == int(said, 16)
    assert Files().file_system(tmp_path / "not" / "yet") == int(said, 16)
    assert Files().free_bytes(tmp_path) == os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize


def test_a_real_overlay_is_refused(tmp_path):
    """Mounted in its own namespace, if the tests run as root."""
    for name in ("lower", "upper", "work", "merged"):
        (tmp_path / name).mkdir()
    options = ",".join(f"{name}dir={tmp_path / name}" for name in ("lower", "upper", "work"))
    merged = tmp_path / "merged"
    mount = (
        f"mount -t overlay overlay -o {options} {merged} || exit 99; exec {sys.executable} -c '{OPEN}' {merged}/journal"
    )
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("mounting takes root and unshare")
    found = subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True, text=True)
    if found.returncode == 99:
        pytest.skip(f"no overlay can be mounted here: {found.stderr.strip()}")
    assert found.returncode != 0
    assert "not written on overlay" in found.stderr
