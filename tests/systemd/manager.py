"""A system manager of the tests' own: systemd as process 1 of fresh namespaces, with nothing in it but our units.

It takes root, a cgroup2 that can be written, and systemd; `cannot_boot` says what is missing. Nothing of the host's
manager, its users or its folders is touched: /run, /etc, /opt, /var/lib and /var/cache are in memory and end with it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.house.tree import ROOT
from tests.outside.programs import outside

UNITS = ROOT / "systemd"
OWNED = Path("~root").expanduser()
PATIENCE_S = 60.0
STUBS = (
    "sysinit",
    "basic",
    "shutdown",
    "sockets",
    "network",
    "multi-user",
    "local-fs",
    "tolaria-test",
    "umount",
    "final",
)
INNER = """set -e
mount --make-rprivate /
mount -t proc proc /proc
mount -t tmpfs -o mode=755 run /run
mkdir -p /run/lock /run/systemd/system /run/etc
mount -t cgroup2 cgroup2 /sys/fs/cgroup
for folder in /var/lib /var/cache /opt; do mount -t tmpfs -o mode=755 memory $folder; done
cp -a /etc/. /run/etc/
mount --bind /run/etc /etc
mkdir -p /opt/tolariad/.venv /etc/tolariad
mount --bind "$PREFIX" /opt/tolariad/.venv
# An interpreter below a home that only its owner may enter: the home is replaced by one with nothing else in it.
case "$BASE" in "$OWNED"/*)
    mkdir /run/base; mount --bind "$BASE" /run/base
    mount -t tmpfs -o mode=755 memory "$OWNED"
    mkdir -p "$BASE"; mount --move /run/base "$BASE";;
esac
systemd-sysusers "$SYSUSERS"
systemd-tmpfiles --create "$TMPFILES"
exec env -i container=t PATH=/usr/sbin:/usr/bin:/sbin:/bin SYSTEMD_UNIT_PATH="$UNITS" "$SYSTEMD" --system \
    --unit=tolaria-test.target --show-status=no --log-target=console --log-level=warning
"""


def cannot_boot() -> str:
    """Return why no manager can be started here; empty if one can. Skips the test if systemd is not installed."""
    outside("systemd")
    if os.geteuid() != 0:
        return "a system manager takes root"
    if str(ROOT).startswith(("/tmp/", "/run/", "/opt/", "/var/", f"{OWNED}/")):
        return f"{ROOT} is not visible inside the units' sandbox"
    if (root := cgroup_root()) is None or not os.access(root, os.W_OK):
        return "no cgroup2 can be written"
    tried = subprocess.run(
        ["unshare", "--pid", "--mount", "--cgroup", "--fork", "true"], capture_output=True, text=True
    )
    return f"no namespaces: {tried.stderr.strip()[:100]}" if tried.returncode else ""


def cgroup_root() -> Path | None:
    """Where the cgroup2 tree is."""
    mounts = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
    return next((Path(fields[1]) for fields in mounts if fields[2] == "cgroup2"), None)


class Manager:
    """One booted manager. `drop_in` adds to a unit; `systemctl` talks to it; `path` is a file that its services see."""

    def __init__(self, folder: Path) -> None:
        self.units = folder / "units"
        self.units.mkdir()
        for name in STUBS:
            (self.units / f"{name}.target").write_text("[Unit]\nDefaultDependencies=no\n")
        (self.units / "modprobe@.service").write_text("[Service]\nType=oneshot\nExecStart=/bin/true\n")
        for unit in ("tolariad@.service", "tolariad@.socket"):
            shutil.copy(UNITS / unit, self.units)
        inner = folder / "inner.sh"
        inner.write_text(INNER)
        self._cgroup = cgroup_root() / f"tolaria-test.{os.getpid()}"
        self._cgroup.mkdir()
        names = ("--pid", "--mount", "--cgroup", "--ipc", "--uts", "--fork", "--kill-child")
        joined = f"echo $$ > {self._cgroup}/cgroup.procs; exec unshare {' '.join(names)} bash {inner}"
        given = {"PREFIX": sys.prefix, "BASE": sys.base_prefix, "UNITS": str(self.units), "SYSTEMD": outside("systemd")}
        given |= {
            "OWNED": str(OWNED),
            "SYSUSERS": str(UNITS / "tolaria.sysusers"),
            "TMPFILES": str(UNITS / "tolaria.tmpfiles"),
        }
        self._log = (folder / "manager.log").open("wb")
        self._process = subprocess.Popen(
            ["bash", "-c", joined], env=os.environ | given, stdout=self._log, stderr=self._log, stdin=subprocess.DEVNULL
        )
        self.pid = 0
        try:
            self.until(self._boots, "a running manager")
        except BaseException:
            self.end()
            raise

    def _boots(self) -> bool:
        number = self._process.pid
        children = Path(f"/proc/{number}/task/{number}/children").read_text().split()
        if self._process.poll() is not None or not children:
            return False
        self.pid = int(children[0])
        return self.systemctl("is-system-running").strip() in {"running", "degraded"}

    def path(self, inside: str) -> Path:
        """A file of the manager's world."""
        return Path(f"/proc/{self.pid}/root{inside}")

    def systemctl(self, *words: str) -> str:
        """Return its output; errors of a unit are in that of `show`."""
        inside = ("nsenter", "-t", str(self.pid), "-p", "-m", "-C", "-i", "-u")
        done = subprocess.run([*inside, "systemctl", *words], capture_output=True, text=True, timeout=PATIENCE_S * 2)
        return done.stdout + done.stderr

    def show(self, unit: str, key: str) -> str:
        """One property."""
        return self.systemctl("show", "--value", "-p", key, unit).strip()

    def drop_in(self, unit: str, *lines: str) -> None:
        """Add to one unit's [Service]."""
        folder = self.units / f"{unit}.d"
        folder.mkdir()
        log = f"StandardError=append:/run/{unit}.log"
        (folder / "test.conf").write_text("\n".join(["[Service]", log, *lines, ""]))
        self.systemctl("daemon-reload")

    def until(self, condition: Callable[[], object], what: str, patience_s: float = PATIENCE_S) -> None:
        """Wait until `condition` holds."""
        deadline = time.monotonic() + patience_s
        while not condition():
            assert time.monotonic() < deadline, f"{what} did not come about\n{self.said()}"
            time.sleep(0.05)

    def said(self) -> str:
        """The logs of the manager and its units, for a failure's message."""
        logs = [Path(self._log.name), *(self.path("/run").glob("*.log") if self.pid else ())]
        return "\n".join(f"== {one.name}\n{one.read_text(errors='replace')[-3000:]}" for one in logs)

    def end(self) -> None:
        """Kill process 1, and with it everything inside; process 1 ignores anything else."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid or self._process.pid, signal.SIGKILL)
        self._process.wait(PATIENCE_S)
        self._log.close()
        for folder, _, _ in os.walk(self._cgroup, topdown=False):
            self._remove(Path(folder))

    def _remove(self, folder: Path) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while folder.exists() and time.monotonic() < deadline:
            try:
                folder.rmdir()
            except OSError:  # somebody in it is still on the way out
                time.sleep(0.02)
