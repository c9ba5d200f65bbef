"""`tolaria lr show` and `tolaria lr set`: show and change the learning rates of a run."""

from __future__ import annotations

import functools
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from tolariad.cli import naming, orders, output, runs
from tolariad.cli.errors import CommandError, Exit
from tolariad.core.calc.settings.optimization import FUNCTION_FORM, POLICY_NAMES
from tolariad.forensics.words import safe
from tolariad.rate_functions import FunctionRefused, tabulate

if TYPE_CHECKING:
    from tolariad.control.reply_tables import RateTable

_COLUMNS: Final = ("group", "policy", "base", "now", "next", "last change")


@click.group(cls=naming.RunGroup, usual="show")
def lr(**_: object) -> None:
    """Show and change learning rates.

    Without a command, show those of the run.
    """


@lr.command()
@naming.argument
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@naming.takes_target
def show(target: runs.Target, *, as_json: bool) -> int:
    """Show the policy, the rates and the last change of each group."""
    table = target.ask("LrShow", _folded)
    if as_json:
        output.put_json(table)
        return Exit.DONE
    table = output.printable(table)
    output.put_table([_COLUMNS, *map(_row, table["groups"])])
    if not table["groups"]:
        output.note("no parameter group is known yet: the trainer is still starting")
    if table["violations"]:
        output.note(
            f"{output.counted(table['violations'], 'change')} of a rate from outside the rate controller reverted; "
            "`tolaria events RUN -t LrViolationDetected` lists them"
        )
    return Exit.DONE


def _folded(journal: Path) -> RateTable:
    from tolariad.control.tables import rate_table

    return rate_table(runs.folded(journal))


def _row(group: dict[str, Any]) -> tuple[str, ...]:
    return (
        safe(group["name"]),
        f"{group['policy']}, a frozen seed" if group.get("frozen") else group["policy"],
        f"{group['base']:.6g}",
        "-" if group["now"] is None else f"{group['now']:.6g}",
        f"{group['next']:.6g}",
        _last_change(group),
    )


def _last_change(group: dict[str, Any]) -> str:
    waiting = f"{group['waiting']} pending; " if group["waiting"] else ""
    if group["changed_step"] is None:
        return (waiting + "-") if waiting else "-"
    why = f": {group['changed_why']}" if group["changed_why"] else ""
    return safe(f"{waiting}{group['changed_rate']:.6g} from step {group['changed_step']} by {group['changed_by']}{why}")


def _finite(_: click.Context, __: click.Parameter, value: float) -> float:
    """Refuse NaN and infinity: JSON cannot represent them."""
    if not math.isfinite(value):
        raise click.BadParameter(f"give a finite number as the learning rate, not {value}")
    return value


def _policy(_: click.Context, __: click.Parameter, text: str | None) -> str | None:
    """Check the name of a policy. Return a function with its absolute path."""
    if text is None or text in POLICY_NAMES:
        return text
    if not re.search(r"\.py:[A-Za-z_]\w*$", text):
        raise click.BadParameter(f"{text!r} is not one of {', '.join(POLICY_NAMES)}, {FUNCTION_FORM}")
    return str(Path(text).absolute())


@lr.command("set")
@click.argument("group")
@click.argument("value", type=float, callback=_finite)
@orders.sends("LrSet")
@click.option(
    "--policy",
    callback=_policy,
    metavar="POLICY",
    help=f"The group's policy from then on: {', '.join(POLICY_NAMES)}, or {FUNCTION_FORM}. "
    "constant keeps VALUE; frozen, with VALUE 0, stops the group's training.",
)
def set_rate(*, policy: str | None, **rate: Any) -> orders.Parameters:
    """Set the learning rate of GROUP from the next step on.

    `tolaria lr show` prints the names of the groups. The rest of the group's schedule is scaled by the same factor.
    One order may change a rate at most by the factor learning_rate.max_order_factor.

    A function is called here, with your rights, for every step of the group's schedule. The run gets its values only.
    """
    if policy is None or ":" not in policy:
        return {**rate, "policy": policy}
    return {**rate, "function": functools.partial(_tabulated, policy, str(rate["group"]))}


def _tabulated(policy: str, name: str, target: runs.Target) -> dict[str, Any]:
    groups = {one["name"]: one for one in target.ask("LrShow", _folded)["groups"]}
    if name not in groups:
        known = ", ".join(map(safe, groups)) or "none yet: the trainer is still being built"
        raise CommandError(Exit.REFUSED, f"there is no group {safe(name)!r}; there are {known}", name="NotFound")
    try:
        table: dict[str, Any] = msgspec.to_builtins(tabulate(policy, groups[name].get("curve_steps")))
    except FunctionRefused as error:
        raise CommandError(Exit.USAGE, str(error), hint="nothing was ordered", name="Usage") from error
    return table
