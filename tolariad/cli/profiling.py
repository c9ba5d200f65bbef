"""`tolariad profile`: where the time of a step goes, and the trace of torch's profiler."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from tolariad.cli import output, probes
from tolariad.cli.errors import CommandError
from tolariad.cli.tolariad import default_folder
from tolariad.core.calc.run.exits import EXIT_IO
from tolariad.forensics.words import safe
from tolariad.trainer.probes.messages import Profile, ProfileSteps

_SHOWN: Final = 10
_NAME_COLUMNS: Final = 44
_OURS: Final = "tolariad"


@click.command()
@probes.takes_subject
@click.option("--steps", type=click.IntRange(1, 10_000), default=20, show_default=True, help="Number of steps.")
@click.option("--warmup", type=click.IntRange(0, 10_000), default=5, show_default=True, help="Steps before them.")
@output.to_file("The trace to write, compressed if it ends in .gz. Default: NAME.trace.json.gz.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def profile(*, steps: int, warmup: int, file: Path | None, as_json: bool, **given: Any) -> int:
    """Show where the time of a training step goes.

    The command prints the time of a step's parts and the slowest operations, and writes a trace. It makes steps on a
    copy of the model: with CONFIG a new one, with --dir one with the weights of the run's checkpoint. Steps with a
    clock come first, then as many under torch's profiler, which slows them down. Open the trace with
    https://ui.perfetto.dev or chrome://tracing. Nothing of a run is changed.
    """
    with probes.subject(**given) as subject:
        trace = file or Path(f"{_name(**given)}.trace.json.gz")
        if not trace.parent.is_dir():
            raise CommandError(EXIT_IO, f"{trace}: there is no folder {trace.parent}", name="NoFolder")
        request = ProfileSteps(
            config=subject.config, weights=subject.weights, warmup=warmup, steps=steps, output=str(trace)
        )
        found = probes.ask(request, Profile)
    if as_json:
        output.put_json({"model": subject.words, **msgspec.to_builtins(found)})
        return 0
    for line in _lines(found, subject):
        output.put(safe(line))
    return 0


def _name(config: Path | None, task: str | None, folder: Path | None, **_: Any) -> str:
    """Return the name of the run, or the one that a run of this configuration would have."""
    return (folder if folder is not None else default_folder(config, task)).resolve().name


def _lines(found: Profile, subject: probes.Subject) -> Iterator[str]:
    """Yield where the time goes, the dearest operations, and where the trace is."""
    yield f"model          {subject.words}"
    yield f"step           {found.step_ms:.3f} ms, the mean of {output.counted(found.steps, 'step')}"
    yield f"runs on        {found.device}, {output.counted(found.threads, 'thread')}"
    yield ""
    rows = [(part.name, f"{part.ms:.3f} ms", f"{100 * part.ms / found.step_ms:.1f} %") for part in found.parts]
    for line, part in zip(output.table(rows, numbers=(1, 2)), found.parts, strict=True):
        yield line + ("   without waiting for the journal" if part.name == _OURS else "")
    yield ""
    yield from _operations(found)
    yield ""
    yield f"profiler       a step took {found.profiled_ms:.3f} ms under it; the operations are from there"
    yield f"trace          {found.trace}, {output.size(found.trace_bytes)}: open it in ui.perfetto.dev"


def _operations(found: Profile) -> Iterator[str]:
    """Yield the table of the dearest operations, by their own time on the device if there is one."""
    on_device = any(one.device_ms for one in found.operations)
    total = sum(one.device_ms if on_device else one.cpu_ms for one in found.operations)
    head = ("OPERATION, IN A STEP", "CALLS", "CPU MS", *(("DEVICE MS",) if on_device else ()), "SHARE")
    rows = [head]
    for one in found.operations[:_SHOWN]:
        spent = one.device_ms if on_device else one.cpu_ms
        times = (f"{one.cpu_ms:.3f}", *((f"{one.device_ms:.3f}",) if on_device else ()))
        rows.append((_cut(one.name), f"{one.calls:g}", *times, f"{100 * spent / total if total else 0:.1f} %"))
    yield from output.table(rows, numbers=range(1, len(head)))


def _cut(name: str) -> str:
    """Return the name of an operation without the middle of a long one; that of a CUDA kernel has its arguments."""
    if len(name) <= _NAME_COLUMNS:
        return name
    return f"{name[: _NAME_COLUMNS - 14]}...{name[-11:]}"
