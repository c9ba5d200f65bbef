"""An installation has two packages, two commands, pinned versions, and this project's `journal`."""

from __future__ import annotations

import configparser
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import journal
import tolariad
from tests.house.tree import PRODUCT, ROOT, every_file, imports_of, python_files

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
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


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


def build(kind: str, source: Path, target: Path) -> Path:
    """Build a wheel or sdist as `make dist` does."""
    # hatchling builds what its working folder holds. Tests start no process in the checkout, where a user's runs are;
    # this one only reads it.
    command = ["env", "-C", str(source), sys.executable, "-m", "hatchling", "build"]
    command += ["--target", kind, "--directory", str(target)]
    built = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert built.returncode == 0, built.stderr
    (found,) = target.iterdir()
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """A wheel of this tree."""
    return build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


def test_a_wheel_has_both_packages_and_both_commands_and_nothing_else(wheel, tmp_path):
    """Every file of the two packages, with types, protocol descriptions and licence; it imports from anywhere."""
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
        packed.extractall(tmp_path)
    (info,) = tmp_path.glob("*.dist-info")
    ours = {path.relative_to(ROOT).as_posix() for path in every_file() if path.relative_to(ROOT).parts[0] in PRODUCT}
    commands = configparser.ConfigParser()
    commands.read(info / "entry_points.txt")

    assert {name for name in names if not name.startswith(info.name)} == ours
    assert {"tolariad/py.typed", "tolariad/control/io.esper.tolaria.varlink"} <= ours
    assert set(commands["console_scripts"]) == {"tolaria", "tolariad"}
    assert (info / "licenses" / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    found = run_python("import journal, tolariad; print(journal.__file__, tolariad.__version__)", [tmp_path])
    assert found.stdout.split() == [str(tmp_path / "journal" / "__init__.py"), tolariad.__version__]


def test_an_sdist_is_enough_to_build_the_same_wheel(wheel, tmp_path):
    """Byte for byte: it lacks nothing, and two builds are equal. No environment or run of a developer is in it."""
    with tarfile.open(build("sdist", ROOT, tmp_path / "sdist")) as packed:
        packed.extractall(tmp_path / "source", filter="data")
    (source,) = (tmp_path / "source").iterdir()
    kept = {path.relative_to(ROOT).parts[0] for path in every_file()} | {"PKG-INFO"}

    assert {path.name for path in source.iterdir()} == kept
    assert build("wheel", source, tmp_path / "again").read_bytes() == wheel.read_bytes()


def test_public_names_resolve_on_first_use():
    """A public name is the object of its module, and an unknown one raises AttributeError."""
    result = run_python("import tolariad; print(tolariad.Task.__module__); tolariad.Nothing", [ROOT])

    assert result.stdout.strip() == "tolariad.trainer.tasks.task"
    assert "has no attribute 'Nothing'" in result.stderr
