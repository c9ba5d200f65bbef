"""`tolaria checkout`: the weights and the optimizer of any past step of a run, verified."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from tolariad.cli import again, naming, output
from tolariad.cli.errors import CommandError, Exit
from tolariad.cli.steps_named import NamedStep, read_step
from tolariad.core.calc.text.plain import safe
from tolariad.forensics.again import Outcome, Plan
from tolariad.storage.copy import copy_checkpoint
from tolariad.storage.verify import CheckpointUnusable


@click.command()
@naming.argument
@click.option("--step", required=True, callback=read_step, metavar="N[@B]", help="The step; @B: of branch B.")
@click.option(
    "-o",
    "--output",
    "target",
    required=True,
    type=click.Path(path_type=Path),
    help="The folder to write: it must not exist.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@naming.takes_journal
def checkout(journal: Path, *, step: NamedStep, target: Path, as_json: bool) -> int:
    """Write the state after any past step of RUN into a folder, in the form of a checkpoint.

    The nearest checkpoint before the step is restored in a copy of the run, and the steps after it are made again, as
    by a restart. Each is compared with the journal, bit for bit: if one differs, nothing is written. RUN is not
    touched, and may be live.
    """
    if target.exists():
        raise CommandError(Exit.USAGE, f"{target} exists: give a folder that does not", name="Exists")
    plan = again.planned(journal, step)
    if (done := _from_recorded(journal, plan, target)) is None:
        again.say_cost(plan)
        done = _made_again(journal, plan, target)
    if as_json:
        output.put_json({**done, "output": str(target)})
    else:
        compared = output.counted(done["compared"], "step")
        how = f"{compared} made again, each equal to the journal" if done["compared"] else "the run's own checkpoint"
        output.put(safe(f"{target}: the state after step {plan.step} ({how})"))
    return Exit.DONE


def _from_recorded(journal: Path, plan: Plan, target: Path) -> dict[str, Any] | None:
    """Take the run's own checkpoint of the step, and return the answer; None if it has none."""
    if plan.recorded is None:
        return None
    place = journal.parent / "checkpoints" / plan.recorded.id
    try:
        copy_checkpoint(place, plan.recorded.manifest, target)
    except CheckpointUnusable as error:
        output.note(f"checkpoint {plan.recorded.id} of step {plan.step} is damaged ({error})")
        return None
    about = _about(journal, plan, 0, digest=True)
    return about | {"from_checkpoint": plan.recorded.id, "from_step": plan.step}


def _made_again(journal: Path, plan: Plan, target: Path) -> dict[str, Any]:
    """Make the steps again, and return the answer. Raises CommandError."""
    with again.copied(journal, plan, target.absolute().parent) as folder:
        found = again.trained(folder, plan)
        tensors = again.differing(journal, plan, folder, found)
        if found.difference is not None or found.failed or tensors:
            raise _differs(plan, found, tensors or ())
        copy_checkpoint(folder / "checkpoints" / found.checkpoint, found.manifest, target)
    return _about(journal, plan, found.compared, digest=tensors is not None)


def _about(journal: Path, plan: Plan, compared: int, *, digest: bool) -> dict[str, Any]:
    """Return the answer. `digest`: it is the same as the run's own checkpoint of this step."""
    return {
        "run": str(journal.parent.absolute()),
        "step": plan.step,
        "branch": plan.branch,
        "event": plan.seq,
        "from_checkpoint": plan.checkpoint,
        "from_step": plan.from_step,
        "compared": compared,
        "equals_checkpoint": digest,
    }


def _differs(plan: Plan, found: Outcome, tensors: Sequence[str]) -> CommandError:
    difference, why = found.difference, found.expected or found.failed
    what = f"the steps could not be made again up to step {plan.step}: {why}"
    if tensors:
        what = (
            f"every step came out as the journal says, but {output.counted(len(tensors), 'tensor')} of step "
            f"{plan.step} differ from the run's own checkpoint: {tensors[0]}. Nothing was written"
        )
    if difference is not None:
        what = (
            f"step {difference.step} came out differently when it was made again: {difference.field} was "
            f"{difference.expected} and is {difference.found}{f' ({why})' if why else ''}. Nothing was written"
        )
    hint = f"`tolaria reexecute RUN --from {plan.from_step + 1} --to {plan.step}` makes them twice and says what it is"
    return CommandError(Exit.NO, what, hint=hint, name="Differs")
