"""`tolariad check` and `tolariad new-task`: the commands to use before a run."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from tolariad.cli import naming, output, probes, runs
from tolariad.cli.errors import CommandError
from tolariad.cli.wrapping import named
from tolariad.config import from_environment, require_extras, schema
from tolariad.core import queries as q
from tolariad.core.calc.pruning.notes import prune_notes
from tolariad.core.calc.run.exits import EXIT_CONFIG
from tolariad.core.calc.settings.model import Settings, Validate
from tolariad.core.calc.settings.ranks import with_leaves
from tolariad.core.calc.settings.reading import ConfigError
from tolariad.core.calc.settings.rules import rate_notes, resolved_json, without_effect
from tolariad.core.calc.settings.strategies import DEFAULT, NONE
from tolariad.forensics.words import safe
from tolariad.kernel.recorder import HOLD_NS
from tolariad.trainer.probes.messages import EstimateCosts

# A frame of the journal is whole pages; a step's event is about that long.
_PAGE_BYTES: Final = 4096
_EVENT_BYTES: Final = 150
_DAY_S: Final = 86_400
_GROUPS_MAX: Final = 6
# A strategy may import torch.
_REHEARSAL_S: Final = 120.0
_TEMPLATE: Final = Path(__file__).resolve().parents[1] / "trainer" / "tasks" / "template.py"


@click.command()
@click.argument("config", required=False, type=click.Path(path_type=Path))
@click.option("--task", help="A built-in task, package.module:Name, ./file.py:Name, lightning:./file.py:Module.")
@naming.by_name_or_folder
@click.option(
    "--set", "sets", multiple=True, metavar="KEY=VALUE", help="Override a key of the configuration. Repeatable."
)
@click.option(
    "--schema", "as_schema", is_flag=True, help="Print the JSON Schema of configurations and do nothing else."
)
@click.option("-v", "--verbose", is_flag=True, help="Print the resolved configuration too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check(
    *,
    config: Path | None,
    task: str | None,
    sets: tuple[str, ...],
    as_schema: bool,
    verbose: bool,
    as_json: bool,
    **place: Any,
) -> int:
    """Validate CONFIG, or the configuration of a run; try a few batches, and print what a run costs.

    Forward and backward pass run on real batches of the task. Nothing is written and no run is started.
    """
    if as_schema:
        output.put(json.dumps(schema(), indent=2))
        return 0
    settings = _settings(config, task, sets, runs.named(**place))
    try:
        require_extras(settings)
    except ConfigError as error:
        raise CommandError(EXIT_CONFIG, str(error), hint="docs/pruning.md says what it needs", name="Config") from error
    resolved = resolved_json(settings)
    costs = _costs(resolved)
    journal = durable(settings.journal.sync, costs["step_ms"], costs["journal_gb_day"])
    strategy = rehearsed(settings)
    variables = from_environment()
    if as_json:
        told = {"config": json.loads(resolved), "costs": costs, "journal": msgspec.to_builtins(journal)}
        told |= {"environment": variables} if variables else {}
        output.put_json(told | ({"strategy": strategy} if strategy else {}))
        return 0
    if verbose:
        output.put(json.dumps(json.loads(resolved), indent=2))
    for line in _environment_lines(variables, sets):
        output.put(line)
    for line in [*_plan_lines(settings, costs), *_cost_lines(costs, journal, settings.validate)]:
        output.put(line)
    for line in _slot_lines(costs.get("slots", [])):
        output.put(line)
    for line in _prune_lines(costs.get("pruning")):
        output.put(line, indent=15)
    if strategy:
        output.put(_strategy_line(settings, strategy))
    for note in (*rate_notes(settings), *prune_notes(settings)):
        output.note(note)
    if not verbose:
        output.note("--verbose prints the resolved configuration too")
    idle = without_effect(settings)
    if idle:
        output.note(f"keys without effect in this version: {', '.join(idle)}")
    return 0


def _settings(config: Path | None, task: str | None, sets: tuple[str, ...], target: runs.Target | None) -> Settings:
    if target is not None:
        return probes.settings_for(runs.known_folder(target), config, task, sets)
    if config is None and task is None:
        raise click.UsageError("give a configuration, --task, or a run by --run")
    return probes.settings_of(config, task, sets)


def rehearsed(settings: Settings) -> dict[str, Any] | None:
    """Try a strategy of the user in a process of its own. Return what it did, None without one. Raises CommandError."""
    if settings.strategy is None or settings.strategy in (NONE, DEFAULT):
        return None
    command = (sys.executable, "-m", "tolariad.strategy", "--rehearse", "--name", settings.strategy)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_REHEARSAL_S, check=False)
    except subprocess.TimeoutExpired as error:
        why = f"the strategy {settings.strategy} did not end its rehearsal within {_REHEARSAL_S:g} s"
        raise CommandError(EXIT_CONFIG, why, hint="docs/strategy.md says what step() may do", name="Config") from error
    if done.returncode:
        why = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit code {done.returncode}"
        raise CommandError(EXIT_CONFIG, why, hint="docs/strategy.md shows a whole strategy", name="Config")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _strategy_line(settings: Settings, found: dict[str, Any]) -> str:
    commands = output.counted(found["commands"], "command")
    slowest = f"slowest answer {found['slowest_ms']:.2f} ms"
    of = f"{found['packets']} made-up epochs"
    return f"strategy       {safe(settings.strategy or '')}: {commands} for {of}, {slowest}"


def _costs(resolved: bytes) -> dict[str, Any]:
    """Build and try the task."""
    return probes.ask(EstimateCosts(config=resolved.decode()), dict[str, Any])


class Durable(msgspec.Struct, frozen=True):
    """The durable bytes of a day, in GB: written step by step, and with `sync`, which joins short steps in a write."""

    sync: str
    gb_day_by_step: float
    gb_day: float


def durable(sync: str, step_ms: float, by_step: float) -> Durable:
    """Return the journal's volume for steps of this length.

    `by_step` is the volume in GB a day if each step is written at once.
    """
    joins = sync == "batch" or (sync == "auto" and step_ms * 1e6 < q.SHORT_STEP_NS)
    held_s = max(HOLD_NS / 1e9, step_ms / 1e3)
    pages = math.ceil(_EVENT_BYTES * held_s / (step_ms / 1e3) / _PAGE_BYTES)
    joined = _DAY_S / held_s * pages * _PAGE_BYTES / 1e9
    return Durable(sync, by_step, min(by_step, joined) if joins else by_step)


def _plan_lines(settings: Settings, costs: dict[str, Any]) -> list[str]:
    """Return what is trained, and the rates of each group: those that a run would have."""
    batches = f"batches of {costs['batch_samples']}"
    settings = with_leaves(settings)
    if settings.accumulate > 1:
        batches += f", {settings.accumulate} of them a step"
    ranks = settings.parallel.ranks
    if settings.parallel.exact:
        share = f" on {ranks} ranks" if ranks > 1 else ""
        batches += f"{share}, added in their order: {settings.accumulate * costs['batch_samples']} samples a step"
    elif ranks > 1:
        whole = ranks * settings.accumulate * costs["batch_samples"]
        batches += f" on each of {ranks} ranks: {whole} samples a step in all"
    groups = costs["groups"]
    rates = [f"{safe(one['name'])}: {_rates(one)}" for one in groups] if len(groups) > 1 else [_rates(groups[0])]
    rates = _first(rates)
    return [
        f"task           {safe(str(settings.task))}, {output.counted(settings.epochs, 'epoch')}, {batches}",
        f"rates          {rates[0]}",
        *(f"               {one}" for one in rates[1:]),
    ]


def _environment_lines(variables: Mapping[str, str], sets: tuple[str, ...]) -> Iterator[str]:
    """Yield the keys that the environment sets, each with its variable."""
    later = {text.partition("=")[0].strip().removeprefix("tolaria.") for text in sets}
    head = "environment"
    for key, variable in variables.items():
        ends = ", but --set comes after it" if key in later else ""
        yield f"{head:15}{safe(key)} = {safe(os.environ[variable])}   ({safe(variable)}{ends})"
        head = ""


def _rates(group: Mapping[str, Any]) -> str:
    steps = group["warmup_steps"]
    warm_up = f", warm-up {output.counted(steps, 'step')}" if steps else ""
    return f"{safe(group['policy'])}, base_lr {group['base_lr']:g}{warm_up}"


def _journal_lines(journal: Durable) -> list[str]:
    """Return the volume of a day, and what `journal.sync` does about it."""
    lines = [f"journal        {journal.gb_day_by_step:.2f} GB a day if each step is written at once"]
    short = f"steps below {q.SHORT_STEP_NS / 1e6:g} ms"
    match journal.sync:
        case "step":
            lines.append("               journal.sync: step does that, whatever the length of a step")
        case "auto" if journal.gb_day == journal.gb_day_by_step:
            lines.append(f"               journal.sync: auto does that here; it would join {short}")
        case sync:
            of = short if sync == "auto" else "what comes together"
            lines.append(f"               journal.sync: {sync} joins {of}: {journal.gb_day:.2f} GB at most")
    return lines


def _cost_lines(costs: dict[str, Any], journal: Durable, validate: Validate) -> list[str]:
    an_epoch = (
        f"{output.counted(costs['steps_per_epoch'], 'step')} an epoch"
        if costs["steps_per_epoch"]
        else "epochs of unknown length"
    )
    threads = output.counted(costs["threads"], "thread")
    lines = [
        f"parameters     {costs['parameters']:,}{_trainable(costs)}",
        f"memory         tensors {output.size(costs['state_bytes'])}, peak {output.size(costs['peak_memory_bytes'])}",
        f"checkpoint     {output.size(costs['checkpoint_bytes'])}, and as much host memory while it is written",
        f"step           {costs['step_ms']:.2f} ms, {an_epoch}, loss {output.number(costs['loss'])}",
        *_evaluate_lines(costs, validate.every_steps),
        *_journal_lines(journal),
        f"runs on        {costs['device']}, {threads}, determinism {costs['determinism']}",
    ]
    return [*lines, *(f"note           {safe(note)}" for note in costs["notes"])]


def _slot_lines(slots: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a line for each of the first slots, with the shape of its input."""
    each = [
        f"{safe(one['name'])}: input {' x '.join(map(str, one['shape']))}"
        if one["shape"] is not None
        else f"{safe(one['name'])}: the model never calls the module at this place, so nothing can grow; choose another"
        for one in slots
    ]
    each = _first(each)
    for head, line in zip(("slots", *("" for _ in each)), each, strict=False):
        yield f"{head:15}{line}"


def _prune_lines(found: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield what can be pruned, and the first modules that cannot, each with the reason."""
    if found is None:
        return
    if found["why"]:
        yield f"pruning        {output.painted('impossible', 'yellow')}: {safe(found['why'])}"
        return
    if found["total"]:
        layers = _in_layers(found["channels"], "channel", found["layers"])
        heads = f" and {_in_layers(found['heads'], 'head', found['attentions'])}" if found["heads"] else ""
        yield f"pruning        {layers}{heads} can be masked; {_of_first_cycle(found)}"
    else:
        yield f"pruning        {output.painted('nothing', 'yellow')} in this model can be masked"
    refused = [f"refused: {safe(one['name'])}: {safe(one['why'])}" for one in found["refused"]]
    fixed = [f"masked only: {safe(one['name'])}: {safe(one['why'])}" for one in found["masked_only"]]
    for line in _first([*fixed, *refused]):
        yield f"{'':15}{line}"


def _of_first_cycle(found: Mapping[str, Any]) -> str:
    share = f"{found['budget']} of {output.counted(found['parameters'], 'parameter')}"
    if found["first"]:
        return f"with {share} the first cycle masks {output.counted(found['first'], 'channel')} at most"
    floors = "no layer may lose one (prune.min_channels, min_heads, min_layer_share)"
    return f"the first cycle masks none: its share (prune.budgets) is less than a unit ({share}), or {floors}"


def _in_layers(count: int, unit: str, layers: int) -> str:
    return f"{output.counted(count, unit)} in {output.counted(layers, 'layer')}"


def _first(lines: list[str]) -> list[str]:
    """Return the first lines, and how many more there are."""
    left = len(lines) - _GROUPS_MAX
    return [*lines[:_GROUPS_MAX], f"and {left} more; --json has them all"] if left > 0 else lines


def _trainable(costs: dict[str, Any]) -> str:
    """Return how many parameters are trained, if others are frozen or in no optimizer."""
    return f", {costs['trainable']:,} of them trained" if costs["trainable"] != costs["parameters"] else ""


def _evaluate_lines(costs: dict[str, Any], every: int | None) -> Iterator[str]:
    """Yield the lines of the validation, if there is one. A number that is not finite is null in JSON."""
    if every:
        is_none = "; but there are no validation data" if costs["evaluate_ms"] is None else ""
        yield f"validation     after every {output.counted(every, 'step')}, and after each epoch{is_none}"
    if costs["evaluate_ms"] is not None:
        shown = (f"{named(name)} {output.number(value)}" for name, value in costs["metrics"].items())
        yield f"evaluate       {costs['evaluate_ms']:.2f} ms for one batch: {', '.join(shown) or 'no metric'}"


@click.command("new-task")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: the file, and the task's name.")
def new_task(path: Path, *, as_json: bool) -> int:
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
    if as_json:
        output.put_json({"file": str(path), "task": f"{shown}:MyTask"})
        return 0
    output.put(f"wrote {path}; try `tolariad run --task {shown}:MyTask --epochs 20`")
    return 0
