"""An installation has two packages, two commands, pinned versions, and this project's `journal`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import journal
import tolariad
from tests.house.tree import PRODUCT, ROOT, imports_of, python_files

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CONSTRAINTS = dict(
    line.split("==")
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
)


def name_of(requirement: str) -> str:
    """Return a requirement's distribution name in normalized form."""
    return re.split(r"[<>=!~;\[ ]", requirement, maxsplit=1)[0].lower().replace("_", "-")


# Distributions whose modules have another name than they have.
MODULES = {"google-crc32c": "google_crc32c", "protobuf": "google.protobuf", "pyyaml": "yaml"}


def run_python(code: str, path: list[Path]) -> subprocess.CompletedProcess[str]:
    """Run a snippet in an interpreter whose path begins with these folders."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(folder) for folder in path)}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, cwd=path[0], capture_output=True, text=True, timeout=120)


def test_what_is_installed_is_pinned():
    """The constraints have an exact version for every requirement of a run and of the tests."""
    extras = PROJECT["project"]["optional-dependencies"]
    wanted = [*PROJECT["project"]["dependencies"], *extras["examples"], *extras["oracle"], *extras["dev"]]
    pinned = {name_of(name) for name in CONSTRAINTS}

    assert {name_of(one) for one in wanted} - pinned - {"tolariad"} == set()
    assert CONSTRAINTS["torch"] == "2.13.0"


def test_every_runtime_dependency_is_imported():
    """A run installs only what the product imports."""
    imported = {found.name for path in python_files(*PRODUCT) for found in imports_of(path)}
    modules = {(name := name_of(one)): MODULES.get(name, name) for one in PROJECT["project"]["dependencies"]}
    unused = {
        name
        for name, module in modules.items()
        if not any(found == module or found.startswith(f"{module}.") for found in imported)
    }

    assert unused == set()


def test_the_makefile_never_installs_without_the_constraints():
    """Without them an installer may choose another torch build."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    installs = [line for line in text.splitlines() if "pip install" in line]

    assert installs
    assert all("-c $(CONSTRAINTS)" in line for line in installs)
    assert f"TORCH ?= {CONSTRAINTS['torch']}" in text
    assert f"ifeq ($(TORCH),{CONSTRAINTS['torch']})\nVENV := .venv\nCONSTRAINTS := constraints.txt" in text
    assert "hatchling torch==$(TORCH)" in text


def test_no_registry_is_named():
    """The machine decides where packages come from."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt", ".ci/run"):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert not re.search(r"index-url|find-links|https?://(?!keepachangelog|semver)", text), name


def test_continuous_integration_runs_what_a_person_runs():
    """.ci/run is executable and ends in `make test`."""
    script = ROOT / ".ci" / "run"

    assert os.access(script, os.X_OK)
    assert "make test" in script.read_text(encoding="utf-8")


def test_journal_is_ours():
    """`import journal` gives the package beside tolariad."""
    assert Path(journal.__file__).resolve() == ROOT / "journal" / "__init__.py"


def test_another_journal_on_the_path_is_named(tmp_path):
    """If another module of that name comes first, the error says where it is and what to do."""
    (tmp_path / "journal.py").write_text("x = 1\n", encoding="utf-8")
    result = run_python("import tolariad", [tmp_path, ROOT])

    assert result.returncode != 0
    assert str(tmp_path / "journal.py") in result.stderr
    assert "Uninstall it" in result.stderr


def test_another_journal_is_named_by_its_distribution(monkeypatch):
    """If a distribution brought the other one, the message has its name."""
    monkeypatch.setattr("importlib.metadata.packages_distributions", lambda: {"journal": ["tolariad", "diary"]})

    with pytest.raises(ImportError, match="the package diary comes first"):
        tolariad.check_journal_is_ours(Path("/somewhere/journal"), ROOT)


def test_importing_tolariad_loads_nothing_heavy():
    """The public names exist, and are loaded at their first use."""
    heavy = "[m for m in ('torch', 'numpy', 'asyncio', 'structlog') if m in sys.modules]"
    result = run_python(f"import sys, tolariad; print(sorted(tolariad.__all__), {heavy})", [ROOT])

    assert result.stdout.strip() == "['Task', 'Tolaria', 'TrainingResult', '__version__'] []"


def test_an_installation_gives_both_packages_and_both_commands(tmp_path):
    """`pip install .` installs journal and tolariad, the two commands, and nothing else."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    command += ["--no-compile", "--disable-pip-version-check", "--target", str(tmp_path / "site"), str(ROOT)]
    installed = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert installed.returncode == 0, installed.stderr

    folders = {path.name for path in (tmp_path / "site").iterdir() if path.suffix != ".dist-info"}
    assert folders == {"bin", "journal", "tolariad"}
    assert {path.name for path in (tmp_path / "site" / "bin").iterdir()} == {"tolaria", "tolariad"}

    found = run_python("import journal, tolariad; print(journal.__file__)", [tmp_path / "site"])
    assert found.stdout.strip() == str(tmp_path / "site" / "journal" / "__init__.py"), found.stderr


def test_public_names_resolve_on_first_use():
    """A public name is the object of its module, and an unknown one raises AttributeError."""
    result = run_python("import tolariad; print(tolariad.Task.__module__); tolariad.Nothing", [ROOT])

    assert result.stdout.strip() == "tolariad.trainer.tasks.task"
    assert "has no attribute 'Nothing'" in result.stderr
