"""`tolariad check` and `tolariad new-task`: the commands to use before a run."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click

from tolariad.cli import output
from tolariad.cli.errors import CommandError
from tolariad.config import load, schema
from tolariad.core.settings.reading import ConfigError
from tolariad.core.settings.rules import require_task, resolved_json, without_effect
from tolariad.forensics.words import safe, safe_lines

EXIT_CONFIG: Final = 78
_TEMPLATE: Final = Path(__file__).resolve().parents[1] / "trainer" / "tasks" / "template.py"


@click.command()
@click.argument("config", required=False, type=click.Path(path_type=Path))
@click.option("--task", help="A built-in task, package.module:Name or ./file.py:Name.")
@click.option(
    "--set", "sets", multiple=True, metavar="KEY=VALUE", help="Override a key of the configuration. Repeatable."
)
@click.option(
    "--schema", "as_schema", is_flag=True, help="Print the JSON Schema of configurations and do nothing else."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check(*, config: Path | None, task: str | None, sets: tuple[str, ...], as_schema: bool, as_json: bool) -> int:
    """Validate CONFIG, try a few batches, and print what a run costs.

    Forward and backward pass run on real batches of the task. Nothing is written and no run is started.
    """
    if as_schema:
        output.put(json.dumps(schema(), indent=2))
        return 0
    if config is None and task is None:
        raise click.UsageError("give a configuration, or --task")
    try:
        settings = load(config if config is not None else {"tolaria": {}}, [*([f"task={task}"] if task else []), *sets])
        require_task(settings)
    except ConfigError as error:
        raise CommandError(
            EXIT_CONFIG, str(error), hint="docs/configuration.md lists all keys", name="Config"
        ) from error
    resolved = resolved_json(settings)
    costs = _costs(resolved)
    if as_json:
        output.put_json({"config": json.loads(resolved), "costs": costs})
        return 0
    output.put(json.dumps(json.loads(resolved), indent=2))
    for line in _cost_lines(costs):
        output.put(line)
    idle = without_effect(settings)
    if idle:
        output.note(f"keys without effect in this version: {', '.join(idle)}")
    return 0


def _costs(resolved: bytes) -> dict[str, Any]:
    """Build and try the task in a separate process, so that this one does not load torch."""
    with tempfile.TemporaryDirectory(prefix="tolariad-check-") as folder:
        path = Path(folder) / "config.resolved.json"
        path.write_bytes(resolved)
        command = [sys.executable, "-m", "tolariad.trainer", "--check", "--config-json", str(path)]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError as error:
        what = f"the process that tried the task ended with exit code {done.returncode} and gave no result"
        raise CommandError(EXIT_CONFIG, what, hint="its output is printed above", name="Config") from error
    if "error" in answer:
        if answer.get("traceback"):
            output.note(safe_lines(answer["traceback"]))
        raise CommandError(EXIT_CONFIG, str(answer["error"]), hint="nothing was started", name="Config")
    return answer


def _cost_lines(costs: dict[str, Any]) -> list[str]:
    an_epoch = f"{costs['steps_per_epoch']} steps an epoch" if costs["steps_per_epoch"] else "epochs of unknown length"
    lines = [
        f"parameters     {costs['parameters']:,}",
        f"memory         tensors {output.size(costs['state_bytes'])}, peak {output.size(costs['peak_memory_bytes'])}",
        f"checkpoint     {output.size(costs['checkpoint_bytes'])}, and as much host memory while it is written",
        f"step           {costs['step_ms']:.2f} ms, {an_epoch}, loss {output.number(costs['loss'])}",
        *_evaluate_line(costs),
        f"journal        {costs['journal_gb_day']:.2f} GB a day at that speed",
        f"runs on        {costs['device']}, {costs['threads']} threads, determinism {costs['determinism']}",
    ]
    return [*lines, *(f"note           {safe(note)}" for note in costs["notes"])]


def _evaluate_line(costs: dict[str, Any]) -> Iterator[str]:
    """Yield the line of the validation, if there is one. A number that is not finite is null in JSON."""
    if costs["evaluate_ms"] is not None:
        shown = (f"{safe(name)} {output.number(value)}" for name, value in costs["metrics"].items())
        yield f"evaluate       {costs['evaluate_ms']:.2f} ms for one batch: {', '.join(shown) or 'no metric'}"


@click.command("new-task")
@click.argument("path", type=click.Path(path_type=Path))
def new_task(path: Path) -> int:
    """Write a working example task to PATH.

    If PATH does not end in .py, it is a folder and the file is PATH/task.py. An existing file is never overwritten.
    """
    if path.suffix != ".py":
        path /= "task.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(_TEMPLATE.read_text(encoding="utf-8"))
    except FileExistsError as error:
        raise CommandError(2, f"{path} already exists", hint="give another path", name="Usage") from error
    shown = str(path) if path.is_absolute() else f"./{path}"
    output.put(f"wrote {path}; try `tolariad run --task {shown}:MyTask --epochs 10 --set learning_rate.base_lr=0.03`")
    return 0
