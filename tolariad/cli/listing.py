"""`tolaria list`: list the known runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from tolariad.cli import output, runs
from tolariad.cli.errors import CommandError, Exit, translated
from tolariad.cli.live import current
from tolariad.control.where import socket_of
from tolariad.forensics.words import safe


def _targets(folder: Path | None) -> Iterator[runs.Target]:
    if folder is None:
        yield from runs.candidates()
        return
    if not folder.is_dir():
        raise CommandError(Exit.USAGE, f"there is no folder {folder}", hint="give a folder that holds runs")
    if (folder / runs.JOURNAL).is_dir():
        yield runs.Target(folder, socket_of(folder))
    for entry in sorted(folder.iterdir()):
        if (entry / runs.JOURNAL).is_dir():
            yield runs.Target(entry, socket_of(entry))


def row(target: runs.Target) -> dict[str, Any]:
    """Return what is known about one run. If its status cannot be read, `error` says why."""
    folder = target.folder
    shown: dict[str, Any] = {"name": (folder or target.socket.parent).name, "dir": str(folder) if folder else None}
    try:
        status = current(target)
    except Exception as error:
        known = translated(error)
        if known is None:
            raise
        return {**shown, "live": False, "phase": None, "step": None, "error": known.what, "size": _size(folder)}
    folder = folder or Path(status["dir"])
    return {
        "name": status["name"] or shown["name"],
        "dir": str(folder),
        "live": status["live"],
        "phase": status["phase"],
        "epoch": status["epoch"],
        "epochs": status["epochs"],
        "step": status["step"],
        "loss": status["loss"],
        "loss_state": status["loss_state"],
        "accuracy": status["accuracy"],
        "age_s": _age_s(status["time"]),
        "size": _size(folder),
        "error": None,
    }


def _age_s(moment: str) -> float | None:
    """Return the seconds since `moment`. The year 1970 means that nothing is recorded yet: None."""
    try:
        recorded_s = datetime.fromisoformat(moment).timestamp()
    except ValueError:
        return None
    return max(0.0, time.time() - recorded_s) if recorded_s else None


def _size(folder: Path | None) -> int | None:
    """Return the bytes on disk: allocated blocks, so a sparse file counts what it really takes."""
    if folder is None:
        return None
    total = 0
    for path in folder.rglob("*"):
        try:
            found = path.lstat()
        except OSError:
            continue
        total += found.st_blocks * 512
    return total


@click.command("list")
@click.argument("folder", required=False, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines.")
def list_runs(folder: Path | None, as_json: bool) -> int:
    """List the runs in FOLDER; by default live runs and ./runs."""
    rows = [row(target) for target in _targets(folder)]
    if as_json:
        for one in rows:
            output.put_json(one)
        return Exit.DONE
    if not rows:
        output.note("no runs found; `tolariad run --task digits --dir runs/first` starts one")
        return Exit.DONE
    names = ("NAME", "PHASE", "LIVE", "EPOCH", "STEP", "LOSS", "ACCURACY", "AGE", "SIZE", "FOLDER")
    output.put_table([names, *map(_cells, rows)])
    for one in rows:
        if one["error"]:
            output.note(safe(f"{one['name']}: {one['error']}"))
    return Exit.DONE


def _cells(one: dict[str, Any]) -> tuple[str, ...]:
    accuracy = one.get("accuracy")
    return (
        safe(str(one["name"])),
        one["phase"] or "?",
        "yes" if one["live"] else "no",
        f"{one['epoch']}/{one['epochs']}" if one["phase"] else "-",
        output.number(one["step"]),
        output.number(one.get("loss"), one.get("loss_state")),
        f"{100 * accuracy:.2f} %" if accuracy is not None else "-",
        output.duration(one.get("age_s")),
        output.size(one["size"]) if one["size"] is not None else "-",
        safe(str(one["dir"] or "-")),
    )
