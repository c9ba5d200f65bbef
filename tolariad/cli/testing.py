"""`tolariad test`: evaluate a checkpoint on the task's test data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from tolariad.cli import output, probes
from tolariad.cli.errors import CommandError
from tolariad.cli.runs import JOURNAL
from tolariad.cli.tolariad import default_folder
from tolariad.cli.wrapping import filled
from tolariad.core.calc.run.exits import EXIT_USAGE
from tolariad.forensics.words import safe
from tolariad.trainer.probes.messages import Evaluate, Evaluated


@click.command()
@probes.takes_subject
@click.option(
    "--ema/--no-ema",
    default=None,
    help="Test the moving average of the weights, or the weights. Default: as the run validates.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def test(
    *, config: Path | None, task: str | None, folder: Path | None, ema: bool | None, as_json: bool, **given: Any
) -> int:
    """Evaluate a checkpoint on the test data of its task.

    CONFIG stands for the run in ./runs/NAME; --run names any other. Test data come from the task's test_data(cfg);
    without that method, the validation data are used. The run may be live, and nothing of it is changed.
    """
    if folder is None:
        folder = _run_of(config, task)
    with probes.subject(config, task, folder, **given) as subject:
        found = probes.ask(Evaluate(config=subject.config, weights=subject.weights, averaged=ema), Evaluated)
    entry = subject.entry
    if entry is None:
        raise RuntimeError("a run's folder gives a checkpoint; this is a defect, please report it")
    if as_json:
        output.put_json({"run": str(folder), "id": entry.id, "step": entry.step, **msgspec.to_builtins(found)})
        return 0
    if found.data == "validation":
        output.note("the task has no test_data(cfg): these are its validation data")
    output.put(safe(f"checkpoint     {entry.id} of {folder}, step {entry.step}, {found.weights} weights"))
    output.put(
        f"data           {output.counted(found.samples, 'sample')} of the {found.data} data, "
        f"{output.duration(found.seconds)}"
    )
    for name, value in found.metrics.items():
        output.put(f"{filled(safe(name), 14)} {output.number(value, found.metrics_state.get(name))}")
    if not found.metrics:
        output.note("the task's evaluate(model, batch) returns no metric")
    return 0


def _run_of(config: Path | None, task: str | None) -> Path:
    """Return the folder in which `tolariad run` trains this. Raises CommandError if there is no run."""
    if config is None and task is None:
        raise click.UsageError("give a configuration, --task, or a run by --run")
    folder = default_folder(config, task)
    if (folder / JOURNAL).is_dir():
        return folder
    given = str(config) if config is not None else f"--task {task}"
    hint = f"train it by `tolariad run {given}`, or name the folder of its run by --dir"
    raise CommandError(EXIT_USAGE, f"there is no trained model: {folder} has no run", hint=hint, name="NoRun")
