"""`tolaria prune status|analyze|apply|compact|disable|enable`: structured pruning of a run's model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tolariad.cli import naming, output, runs
from tolariad.cli.errors import Exit
from tolariad.cli.orders import Parameters, sends, takes_run
from tolariad.core.calc.text.phrases import counted
from tolariad.forensics.words import safe

if TYPE_CHECKING:
    from tolariad.control.reply_tables import PruneTable


@click.group(cls=naming.RunGroup, usual="status")
def prune(**_: object) -> None:
    """Show what is pruned; analyse, mask and remove channels.

    Without a command, show the status of the run.
    """


@prune.command("status")
@naming.argument
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@naming.takes_target
def status(target: runs.Target, *, as_json: bool) -> int:
    """Show the phase of pruning, and the masks of RUN.

    The command also shows the budget, the newest analysis and the safety window.
    """
    table = target.ask("PruneStatus", _folded)
    if as_json:
        output.put_json(table)
        return Exit.DONE
    table = output.printable(table)
    for line in _lines(table):
        output.put(safe(line), indent=9)
    return Exit.DONE


def _folded(journal: Path) -> PruneTable:
    from tolariad.control.pruning import prune_table

    return prune_table(runs.folded(journal))


def _lines(table: Mapping[str, Any]) -> Iterator[str]:
    yield f"phase    {table['phase']} after epoch {table['epoch']}{_why(table)}"
    # In the other phases nothing is masked.
    is_active = table["phase"] == "ACTIVE_PRUNING"
    limits = f"; a cycle may prune {table['budget']:.0%}, all of them {table['cap']:.0%}" if is_active else ""
    yield f"share    {table['share']:.2%} pruned, of all parameters{limits}"
    if table["total"] is not None:
        channels = f"channels {table['total']}: {table['masked']} masked, {table['removed']} removed"
        gone = f"{table['masked_parameters']} masked, {table['removed_parameters']} removed"
        total = table["total_parameters"]
        yield channels + (f"; of {counted(total, 'parameter')} {gone}" if total is not None else "")
    rejected = f", {counted(table['rejected'], 'set')} of masks rejected" if table["rejected"] else ""
    in_a_row = " in a row" if table["failures"] > 1 else ""
    failed = f", {table['failures']} failed{in_a_row}" if table["failures"] else ""
    open_ = f", cycle {table['analyzing']} is being analysed" if table["analyzing"] is not None else ""
    yield f"cycles   {table['cycles']}{open_}{failed}{rejected}"
    if (found := table["found"]) is not None:
        yield from _found(found)
    for one in table["masks"]:
        what = f"{counted(one['channels'], 'channel')} in {counted(one['layers'], 'layer')}"
        what += f", {counted(one['parameters'], 'parameter')}"
        yield f"masks    of cycle {one['cycle']} from step {one['step']}: {what}"
    if (window := table["window"]) is not None:
        yield f"watched  cycle {window['cycle']} until step {window['until_step']}; before it is {window['checkpoint']}"


def _why(table: Mapping[str, Any]) -> str:
    """Return why nothing is masked in this phase, as the end of a sentence."""
    if table["phase"] == "VALIDATION_ONLY" and table["active_after"] is not None:
        return f": nothing is masked up to epoch {table['active_after']} (pruning_phase_transition_epoch)"
    return f": {table['why']}" if table["why"] else ""


def _found(found: Mapping[str, Any]) -> Iterator[str]:
    figures = "".join(f", {name} {found[name]:.2f}" for name in ("correlation", "stability") if found[name] is not None)
    units = f"{counted(found['channels'], 'channel')} with {counted(found['parameters'], 'parameter')}"
    what = f"{units} of {found['checkpoint']} (epoch {found['epoch']}){figures}"
    yield f"analysis cycle {found['cycle']}: {found['decision']}, {what}"
    for reason in found["reasons"]:
        yield f"         {reason}"
    # The reasons of a NO_GO are above.
    if not found["applicable"] and found["why"] and found["decision"] != "NO_GO":
        yield f"         not to be applied: {found['why']}"


@prune.command()
@takes_run
@sends("PruneAnalyze")
def analyze() -> Parameters:
    """Analyse the newest checkpoint beside the training. Nothing is masked."""
    return {}


@prune.command()
@takes_run
@click.option("--cycle", type=click.IntRange(min=1), help="Only if the newest analysis is that of this cycle.")
@sends("PruneApply")
def apply(*, cycle: int | None) -> Parameters:
    """Mask the channels that the newest analysis found.

    The masks act at the next step boundary, and are watched afterwards. If they prove harmful, the run goes back to the
    checkpoint before them, or lifts them.
    """
    return {"cycle": cycle}


@prune.command()
@takes_run
@sends("PruneCompact")
def compact() -> Parameters:
    """Remove all masked channels from the model.

    The model becomes smaller at the next step boundary.
    """
    return {}


@prune.command()
@takes_run
@sends("PruneDisable")
def disable() -> Parameters:
    """Analyse and mask nothing from now on. Masks that are in force stay."""
    return {}


@prune.command()
@takes_run
@sends("PruneEnable")
def enable() -> Parameters:
    """Follow the configured schedule again.

    The breaker that failed cycles have opened is closed.
    """
    return {}
