"""`tolaria seeds list|germinate|advance|cull`: the slots of a run's model, and the seeds that grow in them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tolariad.cli import naming, output, runs
from tolariad.cli.errors import Exit
from tolariad.cli.orders import Parameters, sends, takes_run
from tolariad.core.calc.text.phrases import last_name
from tolariad.forensics.words import safe

if TYPE_CHECKING:
    from tolariad.control.reply_tables import SeedTable

_COLUMNS: Final = ("slot", "stage", "alpha", "norm", "lr", "params", "epochs", "seed")


@click.group(cls=naming.RunGroup, usual="list")
def seeds(**_: object) -> None:
    """Show the slots for seeds; let seeds germinate and grow.

    Without a command, list the slots of the run.
    """


@seeds.command("list")
@naming.argument
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@naming.takes_target
def list_slots(target: runs.Target, *, as_json: bool) -> int:
    """List the slots of RUN, and the seeds in them.

    The list shows stage, alpha, and the last measurements of each seed. `epochs` counts those since the germination.
    Alpha is the share of the seed in the slot's output.
    """
    table = target.ask("SeedsList", _folded)
    if as_json:
        output.put_json(table)
        return Exit.DONE
    table = output.printable(table)
    output.put_rows(table["slots"], _COLUMNS, _row, as_json=False)
    if not table["slots"]:
        output.note("the model has no slots for seeds, or the trainer is still starting")
    if table["conservative"]:
        output.note("the run is in conservative mode: no seed germinates, and none is blended in")
    return Exit.DONE


def _folded(journal: Path) -> SeedTable:
    from tolariad.control.tables import seed_table

    return seed_table(runs.folded(journal))


def _row(slot: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        safe(slot["slot"]),
        slot["stage"],
        f"{slot['alpha']:.4g}",
        _number(slot["gradient_norm"]),
        _number(slot["learning_rate"]),
        _number(slot["parameters"]),
        _number(slot["epochs"]),
        safe(_seed(slot)),
    )


def _number(value: float | None) -> str:
    return "-" if value is None else str(value) if isinstance(value, int) else f"{value:.4g}"


def _seed(slot: Mapping[str, Any]) -> str:
    """Return what there is to say of the seed: blueprint, the pending move, the last one."""
    parts = [f"{last_name(slot['blueprint'])} (no. {slot['number']})"] if slot["number"] is not None else []
    parts += ["frozen"] if slot.get("learning") == "frozen" else []
    parts += [f"pending: {slot['waiting']}"] if slot["waiting"] else []
    parts += [f"in quarantine as {slot['quarantine']}"] if slot["quarantine"] else []
    parts += [f"free after epoch {slot['free_after']}"] if slot["free_after"] is not None else []
    if slot["moved_step"] is not None:
        why = f": {slot['moved_why']}" if slot["moved_why"] else ""
        parts.append(f"{slot['stage']} from step {slot['moved_step']} by {slot['moved_by'] or 'tolariad'}{why}")
    return "; ".join(parts) or "-"


def _parameters(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, float]:
    """Read `name=number` as often as it is given."""
    found: dict[str, float] = {}
    for one in given:
        name, equals, text = one.partition("=")
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (name and equals and math.isfinite(value)):
            raise click.BadParameter(f"give a name and a finite number, as rank=4, not {one!r}")
        found[name] = value
    return found


@seeds.command()
@click.argument("slot")
@takes_run
@sends("SeedsGerminate")
@click.option(
    "--blueprint",
    required=True,
    metavar="B",
    help="bottleneck, conv, low_rank, an installed one, or one of seeds.blueprints.",
)
@click.option(
    "--set", "parameters", multiple=True, metavar="K=V", callback=_parameters, help="A parameter of the blueprint."
)
def germinate(*, slot: str, blueprint: str, parameters: dict[str, float]) -> Parameters:
    """Let a seed germinate in SLOT, at the next step boundary.

    At first the seed does not change the model's results. `tolaria seeds advance` lets it learn, and later take part.
    """
    return {"slot": slot, "blueprint": blueprint, "parameters": parameters or None}


@seeds.command()
@click.argument("slot")
@takes_run
@sends("SeedsAdvance")
def advance(*, slot: str) -> Parameters:
    """Move the seed in SLOT to its next stage, if it passes the gate.

    The stages are GERMINATED, TRAINING, BLENDING, SHADOWING, PROBATIONARY and FOSSILIZED.
    """
    return {"slot": slot}


@seeds.command()
@click.argument("slot")
@takes_run
@sends("SeedsCull")
def cull(*, slot: str) -> Parameters:
    """Remove the seed in SLOT, at the next step boundary.

    The slot stays empty for seeds.embargo_epochs; then another seed can germinate in it.
    """
    return {"slot": slot}
