"""The parts: `python -m tests.gpu.parts NAME --device DEVICE --folder FOLDER [--small]`. Each is a process of its own.

A part returns the figures of its row; it raises if something is not as promised. The last line that it prints is the
row as JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.gpu.gpt import Size
from tests.gpu.runs import Run, Unexpected, differing
from tests.recorded import of
from tolariad.core import messages as m

RESULT: Final = "RESULT "
_TESTS: Final = Path(__file__).resolve().parents[1]


class Place(NamedTuple):
    """Where a part runs. `small`: sizes for a machine without a device."""

    device: str
    folder: Path
    small: bool

    @property
    def little(self) -> dict[str, Any]:
        """The sizes of a model that trains in milliseconds."""
        return {"layers": 2, "heads": 4, "width": 64, "context": 64, "vocabulary": 256, "rows": 160, "dropout": 0.1}

    @property
    def strict(self) -> dict[str, Any]:
        """Settings of runs whose bits are compared: 40 steps, checkpoints among them."""
        return {
            "determinism": "strict",
            "precision": "bf16",
            "epochs": 2,
            "batch_size": 8,
            "checkpoint.interval_s": 1.0,
            "checkpoint.min_gap_s": 0,
            "learning_rate.base_lr": 1e-3,
        }


def device(place: Place) -> str:
    """What there is."""
    import torch

    found = f"torch {torch.__version__}, Python {sys.version.split()[0]}, {os.cpu_count()} cores"
    if place.device == "cpu":
        return found
    properties = torch.cuda.get_device_properties(place.device)
    driver = Path("/proc/driver/nvidia/version")
    words = driver.read_text().split() if driver.exists() else []
    version = next((word for word in words if re.fullmatch(r"[0-9]+(\.[0-9]+)+", word)), "unknown")
    memory = f"{properties.total_memory / 2**30:.0f} GiB"
    return f"{found}, CUDA {torch.version.cuda}, driver {version}, {memory}"


def tests(place: Place) -> str:
    """Every test that needs a device."""
    files = [str(one) for one in sorted(_TESTS.rglob("test_*.py")) if "pytest.mark.cuda" in one.read_text()]
    # Without plugins that this tree does not know; a warning that is new here is not an error.
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "pytest_asyncio.plugin", "-p", "no:cacheprovider", "-q", "-rf"]
    command += ["-m", "cuda", "-W", "default", "-o", "faulthandler_timeout=120", *files]
    found = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=_TESTS.parent, check=False)
    print(found.stdout, found.stderr)
    last = next((line for line in reversed(found.stdout.splitlines()) if re.search(r"\d+ \w+ in ", line)), "no result")
    counts = re.sub(r"=+|in [\d.]+s.*", "", last).strip()
    if found.returncode or (place.device != "cpu" and "skipped" in counts):
        failed = re.findall(r"^(?:FAILED|ERROR) \S+?::(\S+)", found.stdout, re.MULTILINE)
        raise Unexpected(f"{counts}: {', '.join(failed)}" if failed else counts)
    return f"{len(files)} files: {counts}"


def eager(place: Place) -> str:
    """Throughput without the compiler."""
    return _throughput(place, compiled=False)


def compiled(place: Place) -> str:
    """Throughput with the compiler."""
    return _throughput(place, compiled=True)


def _throughput(place: Place, *, compiled: bool) -> str:
    import torch

    from tests.gpu.throughput import Plan, plain, recorded

    size = Size(2, 2, 32, 32, 256) if place.small else Size()
    plan = Plan(4, 6, 20, 10) if place.small else Plan(8, 10, 40, 10)
    on = torch.device(place.device)
    alone = plain(size, plan, on, compiled=compiled)
    torch.compiler.reset()
    ours = recorded(size, plan, on, place.folder / "run", compiled=compiled)
    again = plain(size, plan, on, compiled=compiled) if not compiled else alone
    base = statistics.mean([alone.tokens_s, again.tokens_s])
    waits = {name: count / plan.watched for name, count in (ours.waits - alone.waits).items()}
    events = waits.pop("Event.synchronize", 0.0)
    figures = (
        f"{ours.tokens_s:,.0f} tokens/s, plain {base:,.0f}: {100 * ours.tokens_s / base:.1f} %; "
        f"{sum(waits.values()):g} syncs a step more, and {events:g} waits for the numbers of the step before"
    )
    if waits:
        raise Unexpected(f"{figures} ({', '.join(f'{name}: {count:g}' for name, count in waits.items())})")
    return figures


def checkpoint(place: Place) -> str:
    """A checkpoint and both tiers of a rollback, of 100 million parameters with AdamW's state: 1.2 GB."""
    width, layers = (64, 2) if place.small else (768, 12)
    options = {"layers": layers, "heads": 4, "width": width, "context": 64, "vocabulary": 256 if place.small else 19000}
    settings = {
        "precision": "bf16",
        "batch_size": 4,
        "epochs": 1000,
        "snapshots.every": 8,
        "snapshots.watch_steps": 1,
        "snapshots.memory_gb": 6 if not place.small else 0.1,
        "checkpoint.interval_s": 1_000_000.0,
        "checkpoint.throttle_mb_s": None,
        "detect.act": False,
    }
    run = Run(place.folder / "run", place.device, {**options, "rows": 64}, **settings)
    run.start()
    run.step(4)
    run.order("checkpoint")
    written = of(run.events(), m.CheckpointCommitted)[-1]
    held, took = 1e3 * written.spans.held, written.seconds
    figures = [f"{written.size / 1e9:.2f} GB: training held {held:.0f} ms, on disk after {took:.1f} s"]
    # Newer than the checkpoint, which a rollback to an older one would abandon.
    taken = run.until("a promoted snapshot", lambda events: _promoted(events, written.step))
    figures.append(f"snapshot: held {1e3 * taken.held_s:.0f} ms")
    for tier in ("fast", "full"):
        before = len(of(run.events(), m.RolledBack))
        run.order("rollback", "--tier", tier, "--yes", *(("--to", written.id) if tier == "full" else ()))
        back = of(run.events(), m.RolledBack)[before]
        # A snapshot's name is not one of a checkpoint's.
        used = "full" if back.checkpoint in {one.id for one in of(run.events(), m.CheckpointCommitted)} else "fast"
        seconds = back.spans.load + back.commit_s + back.confirm_s
        figures.append(f"rollback {tier}: {1e3 * seconds:.0f} ms" + ("" if used == tier else f" (went the {used} way)"))
    run.step(of(run.events(), m.RolledBack)[-1].step + 3)
    run.order("stop", "--now", "--yes")
    return "; ".join(figures)


def _promoted(events: Sequence[m.Event], after: int) -> m.SnapshotTaken | None:
    """Return a promoted snapshot of a step after this one, or None."""
    names = {one.id for one in of(events, m.SnapshotPromoted)}
    return next((one for one in of(events, m.SnapshotTaken) if one.id in names and one.step > after), None)


def resume(place: Place) -> str:
    """Killed and resumed to the same bits, under `determinism: strict`."""
    calm = _calm(place, {})
    run = Run(place.folder / "broken", place.device, place.little, **place.strict)
    run.start()
    run.step(9)
    run.kill_trainer()
    run.until("a second trainer", lambda events: len(of(events, m.TrainingStarted)) > 1)
    run.step(22)
    run.kill_daemon()
    run.start()
    return _same_as(calm, run)


def resume_compiled(place: Place) -> str:
    """The same with the compiler."""
    settings = {"compile": True}
    calm = _calm(place, settings)
    run = Run(place.folder / "broken", place.device, place.little, **place.strict, **settings)
    run.start()
    run.step(14)
    run.kill_daemon()
    run.start()
    return _same_as(calm, run)


def nan(place: Place) -> str:
    """A loss that is NaN, once."""
    options = {**place.little, "fault": "nan", "at": 12, "once": str(place.folder / "once")}
    run = Run(place.folder / "run", place.device, options, **place.strict)
    run.start()
    events = run.finish()
    back, skipped = of(events, m.RolledBack), of(events, m.StepSkipped)
    if not back and not skipped:
        raise Unexpected("nothing followed from a NaN")
    finite = _last_of_each(events)
    if any(loss != loss for loss in finite):
        raise Unexpected("a step with a NaN is part of the run")
    what = f"rolled back to step {back[0].step}" if back else f"skipped before step {skipped[0].step}"
    ranges = [added.batches for added in of(events, m.QuarantineAdded) if added.batches is not None]
    batches = sum(one.last - one.first + 1 for one in ranges)
    return f"{what}, {batches} batches in quarantine; completed, every loss of its {len(finite)} steps is finite"


def memory(place: Place) -> str:
    """Out of memory, once."""
    calm = _calm(place, {})
    options = {**place.little, "fault": "memory", "at": 12, "once": str(place.folder / "once")}
    run = Run(place.folder / "run", place.device, options, **place.strict)
    run.start()
    run.step(13)
    (raised,) = of(run.events(), m.ExceptionRaised)
    if "OutOfMemoryError" not in raised.kind:
        raise Unexpected(f"it raised {raised.kind}")
    return f"{raised.kind.rpartition('.')[2]} recorded, started again; {_same_as(calm, run)}"


def held(place: Place) -> str:
    """A process that holds most of the device is killed: the next one gets the memory."""
    options = {**place.little, "holds": 0.8}
    run = Run(place.folder / "run", place.device, options, **place.strict)
    run.start()
    run.step(9)
    run.kill_trainer()
    run.step(25)
    events = run.finish()
    died = of(events, m.TrainerDied)[0]
    first = next(one for one in of(events, m.StepCompleted) if one.mono > died.mono)
    again = of(events, m.TrainerDied)
    if len(again) > 1:
        raise Unexpected(f"{len(again)} trainers died: {', '.join(one.reason for one in again)}")
    seconds = (first.mono - died.mono) / 1e9
    return f"80 % of the free memory, SIGKILL; the next process took it too, and trained {seconds:.1f} s later"


def _calm(place: Place, settings: dict[str, Any]) -> dict[str, bytes]:
    """Return the last checkpoint of a run that nobody disturbs. It is made once for all parts."""
    folder = place.folder.parent / f"calm-{'-'.join(settings) or 'plain'}"
    if (folder / "done").exists():
        from tests.recorded import pieces

        return pieces(folder / "run")
    run = Run(folder, place.device, place.little, **place.strict, **settings)
    run.start()
    run.finish()
    (folder / "done").touch()
    return run.end_files()


def _same_as(calm: dict[str, bytes], run: Run) -> str:
    """Wait for the end of a run, and compare it with the one that nobody disturbed. Raises Unexpected."""
    events = run.finish()
    if files := differing(calm, run.end_files()):
        raise Unexpected(f"the last checkpoint differs from that of the undisturbed run in {', '.join(files)}")
    again = of(events, m.RerunFinished)
    if odd := [one for one in again if one.first_difference is not None]:
        raise Unexpected(f"a step came out otherwise: {odd[0].first_difference}")
    started = len(of(events, m.TrainingStarted))
    return f"the same bits after {started} starts, {sum(one.compared for one in again)} steps compared"


def _last_of_each(events: Sequence[m.Event]) -> list[float]:
    """Return the loss of each step that is part of the run in the end."""
    found: dict[int, float] = {}
    for one in of(events, m.StepCompleted, m.RolledBack):
        if isinstance(one, m.RolledBack):
            found = dict(itertools.takewhile(lambda item, at=one.step: item[0] <= at, sorted(found.items())))
        else:
            found[one.step] = one.loss
    return list(found.values())


PARTS: Final[dict[str, Callable[[Place], str]]] = {
    "device": device,
    "tests": tests,
    "bf16, plain and recorded": eager,
    "checkpoint and rollback": checkpoint,
    "kill and resume": resume,
    "NaN": nan,
    "out of memory": memory,
    "a killed process that held the device": held,
    "bf16, compiled": compiled,
    "kill and resume, compiled": resume_compiled,
}


def main() -> None:
    """Run one part, and print its row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=PARTS)
    parser.add_argument("--device", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--small", action="store_true")
    given = parser.parse_args()
    given.folder.mkdir(parents=True)
    begun = time.perf_counter()
    row = {"ok": True, "text": "", "seconds": 0.0}
    try:
        row["text"] = PARTS[given.name](Place(given.device, given.folder, given.small))
    except Exception as error:
        import traceback

        traceback.print_exc()
        row |= {"ok": False, "text": f"{'' if isinstance(error, Unexpected) else type(error).__name__ + ': '}{error}"}
    row["seconds"] = time.perf_counter() - begun
    shutil.rmtree(given.folder / "run", ignore_errors=True)
    print(f"\n{RESULT}{json.dumps(row)}", flush=True)


if __name__ == "__main__":
    main()
