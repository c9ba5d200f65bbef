"""Find the core that a disk interrupts, from /sys and /proc. The recorder waits for that disk, so it should run there.

Promises: reading never raises. It returns None if no single core can be named. That is so for a network or stacked file
system, for a disk with one queue for each core, and if /proc is hidden.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

# If the busiest interrupt has a smaller share than this, the disk has one queue for each core, and each core completes
# its own requests.
_SHARE_MIN: Final = 0.75
_SYS: Final = Path("/sys")
_PROC: Final = Path("/proc")


def disk_core(folder: Path, sys_root: Path = _SYS, proc_root: Path = _PROC) -> int | None:
    """Return the core that the disk under `folder` interrupts, or None."""
    try:
        device = folder.stat().st_dev
    except OSError:
        return None
    return device_core(os.major(device), os.minor(device), sys_root, proc_root)


def device_core(major: int, minor: int, sys_root: Path = _SYS, proc_root: Path = _PROC) -> int | None:
    """Return the core that the block device of these numbers interrupts, or None."""
    disk = _whole_disk(sys_root / "dev" / "block" / f"{major}:{minor}")
    numbers = _interrupts(disk) if disk is not None else []
    counts = {number: count for number in numbers if (count := _count(number, proc_root)) > 0}
    if not counts:
        return None
    busiest = max(counts, key=lambda number: counts[number])
    if counts[busiest] < _SHARE_MIN * sum(counts.values()):
        return None
    return _only_core(proc_root / "irq" / str(busiest))


def _whole_disk(block: Path) -> Path | None:
    """Return the disk of a partition. A device mapper counts as the disk below it if there is only one."""
    try:
        disk = block.resolve(strict=True)
        if (disk / "partition").exists():
            disk = disk.parent
        while (disk / "slaves").is_dir() and (under := list((disk / "slaves").iterdir())):
            if len(under) > 1:
                return None
            disk = under[0].resolve(strict=True)
            disk = disk.parent if (disk / "partition").exists() else disk
    except OSError:
        return None
    return disk


def _interrupts(disk: Path) -> list[int]:
    """Return the interrupts of the disk's controller: the nearest parent device that has any."""
    try:
        place = (disk / "device").resolve(strict=True)
        for one in (place, *place.parents):
            listed = one / "msi_irqs"
            if listed.is_dir():
                return [int(entry.name) for entry in listed.iterdir() if entry.name.isdecimal()]
    except OSError:
        return []
    return []


def _count(number: int, proc_root: Path) -> int:
    """Return how often this interrupt has occurred, summed over all cores."""
    try:
        lines = (proc_root / "interrupts").read_text().splitlines()
    except OSError:
        return 0
    cores = len(lines[0].split()) if lines else 0
    for line in lines[1:]:
        name, _, rest = line.partition(":")
        if name.strip() == str(number):
            return sum(int(word) for word in rest.split()[:cores] if word.isdecimal())
    return 0


def _only_core(folder: Path) -> int | None:
    for name in ("effective_affinity_list", "smp_affinity_list"):
        try:
            text = (folder / name).read_text().strip()
        except OSError:
            continue
        if text.isdecimal():
            return int(text)
    return None
