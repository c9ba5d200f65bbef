"""`tolaria version` says what a report needs, and nothing private; `tolaria run` is `tolariad run`."""

from __future__ import annotations

import platform
import socket
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import tolariad as package
from tolariad.cli import version
from tolariad.core.state.run_state import FOLD_VERSION


def test_it_names_every_version_that_matters(tolaria):
    """As lines for a report, and as one object with the same facts."""
    said, facts = tolaria("version"), tolaria("version", "--json").json

    assert said.code == 0
    assert facts["tolariad"] == package.__version__
    assert (facts["journal_format"], facts["fold_version"]) == (2, FOLD_VERSION)
    assert facts["checkpoint_format"] == "tolaria_3.1_c020"
    assert facts["torch"] == metadata.version("torch")
    assert facts["python"].endswith(platform.python_version())
    assert facts["kernel"].endswith(platform.release())
    assert {place["place"] for place in facts["file_systems"]} >= {"working folder", "temporary files"}
    assert facts["packages"]["msgspec"] == metadata.version("msgspec")
    assert set(facts["extras"]) >= {"bus", "gpu", "examples", "pruning"}
    for text in (facts["torch"], facts["python"], facts["kernel"], f"fold {FOLD_VERSION}", "scikit-learn"):
        assert text in said.out


def test_it_names_no_path_host_or_user(tolaria, tmp_path, monkeypatch):
    """It is pasted in public. An absolute path would contain a slash after a space or a quote."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    for words in ((), ("--json",)):
        out = tolaria("version", *words).out
        private = (str(Path.home()), str(Path.cwd()), str(tmp_path), sys.prefix, socket.gethostname() + ".")
        assert [text for text in private if text in out and len(text) > 1] == []
        assert " /" not in out
        assert '"/' not in out


def test_the_file_system_of_a_run_is_that_of_its_journal(tolaria, tmp_path, monkeypatch):
    """The nearest mount counts, the last one if there are several, also with a space in its name."""
    journal = tmp_path / "a b" / "run" / "journal"
    journal.mkdir(parents=True)
    mounts = tmp_path / "mountinfo"
    place = str(tmp_path / "a b").replace(" ", "\\040")
    rows = [("/", "ext4"), (place, "nfs4"), (place, "xfs"), ("/unrelated", "tmpfs")]
    mounts.write_text("".join(f"1 0 0:1 / {at} rw - {kind} none rw\n" for at, kind in rows))
    monkeypatch.setattr(version, "_MOUNTS", mounts)
    facts = tolaria("version", tmp_path / "a b" / "run", "--json").json

    kinds = {one["place"]: one["kind"] for one in facts["file_systems"]}
    assert (kinds["run"], kinds["working folder"]) == ("xfs", "ext4")
    assert tolaria("version", tmp_path).code == 2


@pytest.mark.parametrize("lost", ["_MOUNTS", "_NVIDIA"])
def test_what_a_system_does_not_have_is_said(tolaria, tmp_path, monkeypatch, lost):
    """No mountinfo, no driver, no torch: no error."""
    monkeypatch.setattr(version, lost, tmp_path / "none")
    monkeypatch.setattr(version.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(version, "_version_of", lambda _: None)
    said = tolaria("version")

    assert said.code == 0
    assert "torch         not installed" in said.out


def test_a_driver_and_a_build_for_it_are_named(tolaria, tmp_path, monkeypatch):
    """From the kernel's file, and from the file that torch's build writes."""
    (tmp_path / "nvidia").write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release\n")
    (tmp_path / "version.py").write_text("cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n")
    (tmp_path / "__init__.py").touch()
    spec = version.importlib.util.spec_from_file_location("torch", tmp_path / "__init__.py")
    monkeypatch.setattr(version, "_NVIDIA", tmp_path / "nvidia")
    monkeypatch.setattr(version.importlib.util, "find_spec", lambda _: spec)
    facts = tolaria("version", "--json").json

    assert (facts["torch_cuda"], facts["torch_rocm"], facts["nvidia_driver"]) == ("13.0", None, "580.95.05")


def test_run_is_a_command_of_tolaria_too(tolaria, tolariad):
    """The same options, refusals and codes; the options before it name the run, or are refused."""
    said, (code, out, err) = tolaria("run"), tolariad("run")
    assert (said.code, said.out, said.err.replace("tolaria:", "tolariad:")) == (code, out, err)
    helps = tolaria("run", "--help").out, tolariad("run", "--help")[1]
    assert helps[0].replace("tolaria run", "tolariad run") == helps[1]

    refused = tolaria("--socket", "x.sock", "run", "--task", "digits")
    assert (refused.code, "--dir RUN" in refused.err) == (2, True)
    # A process of its own: what follows takes the process's signals.
    command = [sys.executable, "-c", "from tolariad.cli.tolaria import main; main()", "--dir", "none/here", "run"]
    nowhere = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (nowhere.returncode, "there is no run in none/here" in nowhere.stderr) == (78, True)
