"""`tolariad check` and `tolariad new-task`: before a run."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import click

from tolariad.cli import output
from tolariad.cli.errors import CommandError
from tolariad.config import ConfigError, load, require_task, resolved_json, schema, without_effect
from tolariad.forensics.words import safe, safe_lines

EXIT_CONFIG: Final = 78
_TEMPLATE: Final = Path(__file__).resolve().parents[1] / "trainer" / "tasks" / "template.py"


@click.command()
@click.argument("config", required=False, type=click.Path(path_type=Path))
@click.option("--task", help="A built-in task, package.module:Name or ./file.py:Name.")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Over the configuration; may be repeated.")
@click.option(
    "--schema", "as_schema", is_flag=True, help="Print the JSON Schema of configurations and do nothing else."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def check(*, config: Path | None, task: str | None, sets: tuple[str, ...], as_schema: bool, as_json: bool) -> int:
    """Validate CONFIG, run real batches forward and backward, and say what the run will be and cost."""
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
            EXIT_CONFIG, str(error), hint="docs/configuration.md has every key", name="Config"
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
        output.note(f"accepted, without effect yet: {', '.join(idle)}")
    return 0


def _costs(resolved: bytes) -> dict[str, Any]:
    """Build and try everything, in a process of its own: this one stays free of torch."""
    with tempfile.TemporaryDirectory(prefix="tolariad-check-") as folder:
        path = Path(folder) / "config.resolved.json"
        path.write_bytes(resolved)
        command = [sys.executable, "-m", "tolariad.trainer", "--check", "--config-json", str(path)]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError as error:
        what = f"the check ended with exit code {done.returncode} and no answer"
        raise CommandError(EXIT_CONFIG, what, hint="what it printed stands above", name="Config") from error
    if "error" in answer:
        if answer.get("traceback"):
            output.note(safe_lines(answer["traceback"]))
        raise CommandError(EXIT_CONFIG, str(answer["error"]), hint="nothing was started", name="Config")
    return answer


def _cost_lines(costs: dict[str, Any]) -> list[str]:
    an_epoch = f"{costs['steps_per_epoch']} steps an epoch" if costs["steps_per_epoch"] else "epochs of unknown length"
    lines = [
        f"parameters     {costs['parameters']:,}",
        f"memory         {output.size(costs['state_bytes'])} of tensors, {output.size(costs['peak_memory_bytes'])} at most",
        f"checkpoint     {output.size(costs['checkpoint_bytes'])}, as much host memory while it is written",
        f"step           {costs['step_ms']:.2f} ms, {an_epoch}, loss {output.number(costs['loss'])}",
        f"journal        {costs['journal_gb_day']:.2f} GB a day at that speed",
        f"runs on        {costs['device']}, {costs['threads']} threads, determinism {costs['determinism']}",
    ]
    return [*lines, *(f"note           {safe(note)}" for note in costs["notes"])]


@click.command("new-task")
@click.argument("path", type=click.Path(path_type=Path))
def new_task(path: Path) -> int:
    """Write a working task to PATH, to start from; nothing that exists is written over."""
    if path.suffix != ".py":
        path /= "task.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(_TEMPLATE.read_text(encoding="utf-8"))
    except FileExistsError as error:
        raise CommandError(2, f"{path} exists already", hint="give another path", name="Usage") from error
    shown = str(path) if path.is_absolute() else f"./{path}"
    output.put(
        f"{path} is written; try `tolariad run --task {shown}:MyTask --epochs 10 --set learning_rate.base_lr=0.03`"
    )
    return 0
