"""Programs that are not ours, for `make outside`: a test whose program is not installed is skipped by name."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable

import pytest

# Debian's package of each program.
PACKAGES = {
    "chromium": "chromium",
    "munged": "munge",
    "nsenter": "util-linux",
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "redis-server": "redis-server",
    "slurmctld": "slurm-wlm",
    "slurmd": "slurm-wlm",
    "sbatch": "slurm-wlm",
    "strace": "strace",
    "systemd": "systemd",
    "systemd-analyze": "systemd",
    "systemd-journald": "systemd",
    "systemd-socket-activate": "systemd",
    "systemd-sysusers": "systemd",
    "unshare": "util-linux",
}
# Programs that a package has from a version on, which apt may not have.
SINCE = {"varlinkctl": "systemd 255"}
# Folders of servers, which are not on a user's path.
_ALSO = ("/usr/sbin", "/sbin", "/usr/lib/systemd", "/lib/systemd")
_ABSENT = re.compile(r"apt-get install (\S+)\)")


def outside(program: str) -> str:
    """Return the program's path. If it is not installed, the test is skipped and the summary says how to install it."""
    found = shutil.which(program, path=os.pathsep.join((os.environ["PATH"], *_ALSO)))
    if found is None and program in SINCE:
        pytest.skip(f"{program} is not installed; {SINCE[program]} and newer have it")
    if found is None:
        pytest.skip(f"{program} is not installed (apt-get install {PACKAGES[program]})")
    return found


def to_install(reasons: Iterable[str]) -> str:
    """Return the command that installs what skipped tests named; empty if they named nothing."""
    packages = sorted({name for reason in reasons for name in _ABSENT.findall(reason)})
    return " ".join(("apt-get install --no-install-recommends", *packages)) if packages else ""
