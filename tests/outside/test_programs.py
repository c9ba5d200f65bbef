"""A program that is not installed skips its test by name, and the summary says how to install it."""

from __future__ import annotations

import os

import pytest

from tests.outside.programs import PACKAGES, SINCE, outside, to_install


def skipped(program: str) -> str:
    with pytest.raises(pytest.skip.Exception) as skip:
        outside(program)
    return str(skip.value)


def test_the_path_is_given_also_of_a_server_that_is_on_no_users_path(monkeypatch, tmp_path):
    """The first on the path; then the folders of servers are searched."""
    program = tmp_path / "redis-server"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert outside("redis-server") == str(program)

    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("tests.outside.programs._ALSO", (str(tmp_path),))
    assert outside("redis-server") == str(program)


def test_one_command_installs_all_that_skipped_tests_named(monkeypatch):
    """Each package once; a package whose version is too old here is not among them, and no other reason is read."""
    monkeypatch.setenv("PATH", os.devnull)
    monkeypatch.setattr("tests.outside.programs._ALSO", ())
    reasons = [skipped(program) for program in PACKAGES | SINCE]

    assert [reason.split()[0] for reason in reasons] == [*PACKAGES, *SINCE]
    assert to_install(reasons).split()[:3] == ["apt-get", "install", "--no-install-recommends"]
    assert to_install(reasons).split()[3:] == sorted({*PACKAGES.values()})
    assert to_install(["Skipped: torch sees no CUDA device here", skipped("varlinkctl")]) == ""
