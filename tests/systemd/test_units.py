"""The unit files: valid, closed, in step with the daemon's own limits and exit codes, and each line with its reason."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.house.tree import ROOT
from tests.outside.programs import outside
from tolariad.core.calc.run import exits
from tolariad.core.calc.settings.model import STOP_BUDGET_S

UNITS = ROOT / "systemd"
SERVICE = UNITS / "tolariad@.service"
SOCKET = UNITS / "tolariad@.socket"
CPU_ONLY, NO_NETWORK, NOTIFY_RELOAD = (
    UNITS / "drop-ins" / f"{name}.conf" for name in ("cpu-only", "no-network", "notify-reload")
)
SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}


def directives(path: Path) -> list[tuple[str, str]]:
    """List a unit's assignments in order; one key may stand more than once."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [tuple(line.split("=", 1)) for line in lines if re.match(r"[A-Z][A-Za-z]*=", line)]


def value_of(path: Path, key: str) -> str:
    """Return the value of a key that stands once."""
    (value,) = [value for name, value in directives(path) if name == key]
    return value


def seconds(text: str) -> float:
    """Read a time span of one number and one unit."""
    number, unit = re.fullmatch(r"([0-9]+)(s|min|h)", text).groups()
    return float(number) * SECONDS[unit]


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run systemd-analyze."""
    return subprocess.run([outside("systemd-analyze"), *arguments], capture_output=True, text=True, timeout=60)


def version() -> int:
    """The manager's version."""
    return int(analyze("--version").stdout.split()[1])


@pytest.mark.outside
@pytest.mark.parametrize("unit", [SERVICE, SOCKET], ids=lambda unit: unit.name)
def test_the_manager_finds_nothing_wrong(unit):
    """`systemd-analyze verify` ends with 0 and says nothing about our files."""
    result = analyze("verify", str(unit))

    assert result.returncode == 0, result.stderr
    assert [line for line in result.stderr.splitlines() if "tolariad" in line] == []


@pytest.mark.outside
@pytest.mark.parametrize("drop_in", [CPU_ONLY, NO_NETWORK, NOTIFY_RELOAD], ids=lambda drop_in: drop_in.stem)
def test_the_manager_finds_nothing_wrong_with_a_drop_in(tmp_path, drop_in):
    """Beside its unit, as it is installed."""
    if drop_in is NOTIFY_RELOAD and version() < 253:
        pytest.skip(f"systemd {version()} does not know Type=notify-reload, 253 does")
    shutil.copy(SERVICE, tmp_path)
    folder = tmp_path / f"{SERVICE.name}.d"
    folder.mkdir()
    shutil.copy(drop_in, folder)
    result = subprocess.run(
        [outside("systemd-analyze"), "verify", str(tmp_path / SERVICE.name)],
        capture_output=True, text=True, timeout=60,
        env={**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"},
    )  # fmt: skip

    assert result.returncode == 0, result.stderr
    assert [line for line in result.stderr.splitlines() if "tolariad" in line or drop_in.name in line] == []


def test_a_reload_is_signalled_once():
    """With notify-reload the manager sends the signal for which the daemon reads again. The unit has no command of its
    own.
    """
    assert directives(NOTIFY_RELOAD) == [("Type", "notify-reload"), ("ReloadSignal", "SIGHUP"), ("ExecReload", "")]
    assert value_of(SERVICE, "ExecReload").startswith("/bin/kill -HUP")


@pytest.mark.outside
@pytest.mark.parametrize("drop_ins", [(), (CPU_ONLY,), (NO_NETWORK,)], ids=["alone", "cpu-only", "no-network"])
def test_the_exposure_is_at_most_two(tmp_path, drop_ins):
    """`systemd-analyze security` rates the service at 2.0 or better, with its drop-in too."""
    unit = tmp_path / SERVICE.name
    text = SERVICE.read_text(encoding="utf-8")
    # 252 does not apply drop-ins offline; appended sections mean the same.
    unit.write_text(text + "".join(one.read_text(encoding="utf-8") for one in drop_ins), encoding="utf-8")
    result = analyze("security", "--offline=true", "--no-pager", "--threshold=20", str(unit))

    assert result.returncode == 0, result.stdout[-300:]


def test_the_daemon_gives_up_before_the_manager_does():
    """The internal stop budget is shorter than TimeoutStopSec, else SIGKILL would always win."""
    assert STOP_BUDGET_S + 5 <= seconds(value_of(SERVICE, "TimeoutStopSec"))


def test_exits_that_would_repeat_themselves_are_not_repeated():
    """Every exit code is final but that of a run which another daemon holds; a crash has no exit code. A stop by
    SIGTERM is no failure of the unit.
    """
    assert value_of(SERVICE, "Restart") == "on-failure"
    codes = {code for name, code in vars(exits).items() if name.startswith("EXIT_")}
    final = {int(code) for code in value_of(SERVICE, "RestartPreventExitStatus").split()}
    assert value_of(SERVICE, "SuccessExitStatus") == "143"
    assert final == codes - {exits.EXIT_TRY_AGAIN, exits.EXIT_TERMINATED} == {2, 65, 70, 74, 78, 130}
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| .* \| (yes|no) \|$", page, re.MULTILINE)
    assert {int(code) for code, again in rows if again == "no"} == final | {0, exits.EXIT_TERMINATED}
    assert [int(code) for code, again in rows if again == "yes"] == [exits.EXIT_TRY_AGAIN]


def test_the_socket_is_where_the_daemon_would_bind():
    """The socket unit's path lies in the service's runtime directory, which survives a stop."""
    runtime = value_of(SERVICE, "RuntimeDirectory")

    assert value_of(SOCKET, "ListenStream") == f"/run/{runtime}/control.sock"
    assert value_of(SERVICE, "RuntimeDirectoryPreserve") == "yes"
    assert value_of(SOCKET, "SocketGroup") == value_of(SERVICE, "Group")


def test_the_run_folder_is_the_state_directory():
    """The command uses the folders that the unit makes and may write."""
    state = value_of(SERVICE, "StateDirectory")

    assert f"--dir %S/{state}" in value_of(SERVICE, "ExecStart")
    assert value_of(SERVICE, "RequiresMountsFor") == f"%S/{state}"


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("Type", "notify", "READY follows replay"),
        ("ExecReload", "/bin/kill -HUP $MAINPID", "SIGHUP reads the configuration again"),
        ("NotifyAccess", "main", "workers may not speak for the daemon"),
        ("KillMode", "mixed", "the daemon stops the trainer in order"),
        ("OOMPolicy", "continue", "a trainer killed for memory is not the end of the recorder"),
        ("LimitRTPRIO", "1", "the journal's thread asks for it"),
        ("WatchdogSec", "3min", "a stalled disk is not a hang"),
    ],
)
def test_what_the_daemon_relies_on_is_in_the_unit(key, value, why):
    """Each of these is half of a promise; the daemon is the other half."""
    assert value_of(SERVICE, key) == value, why


@pytest.mark.parametrize(
    "key",
    [
        "MemoryDenyWriteExecute",
        "PrivateUsers",
        "RestrictRealtime",
        "ProcSubset",
        "RemoveIPC",
        "PrivateDevices",
        "Delegate",
    ],
)
def test_what_breaks_training_is_not_in_the_unit(key):
    """Each of these was tried and broke compiled kernels, peer identities, scheduling, figures, memory or devices."""
    assert key not in dict(directives(SERVICE))


@pytest.mark.parametrize("unit", [SERVICE, SOCKET, CPU_ONLY, NO_NETWORK, NOTIFY_RELOAD], ids=lambda unit: unit.name)
def test_every_directive_has_its_reason_beside_it(unit):
    """A directive follows its comment, or stands in one block under it."""
    bare, explained = [], False
    for line in unit.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            explained = True
        elif not line or line.startswith("["):
            explained = False
        elif not explained and not line.startswith("Description="):
            bare.append(line)

    assert bare == []


def test_the_user_and_the_folders_exist_before_the_first_run():
    """sysusers makes the user that the unit names, tmpfiles the folders that no unit makes."""
    users = (UNITS / "tolaria.sysusers").read_text(encoding="utf-8")
    folders = (UNITS / "tolaria.tmpfiles").read_text(encoding="utf-8")

    assert re.search(rf"^u\s+{value_of(SERVICE, 'User')}\s", users, re.MULTILINE)
    assert re.search(r"^d\s+/run/tolaria\s+0755\s", folders, re.MULTILINE)
    assert re.search(r"^d\s+/etc/tolariad\s", folders, re.MULTILINE)


@pytest.mark.outside
def test_the_user_file_is_understood(tmp_path):
    """The manager's own tool reads it and would make the user."""
    users = subprocess.run(
        [outside("systemd-sysusers"), "--dry-run", f"--root={tmp_path}", str(UNITS / "tolaria.sysusers")],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip

    assert users.returncode == 0, users.stderr
    assert "tolaria" in users.stdout + users.stderr
