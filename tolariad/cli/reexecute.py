"""`tolaria reexecute`: make past steps of a run again, and say whether they come out the same."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import click
import msgspec

from journal.reader import Reader
from tolariad.cli import again, naming, output
from tolariad.cli.errors import CommandError, Exit
from tolariad.cli.steps_named import NamedStep, read_step
from tolariad.core.calc.text.plain import safe
from tolariad.forensics.again import Plan, Result, Verdict, judged
from tolariad.forensics.differences.contexts import host_at


@click.command()
@naming.argument
@click.option("--from", "first", required=True, callback=read_step, metavar="A[@B]", help="The first step; @B: branch.")
@click.option("--to", "last", required=True, callback=read_step, metavar="A[@B]", help="The last step; @B: branch.")
@click.option("--bisect", is_flag=True, help="Find the first interval between checkpoints that differs, by halving.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@naming.takes_journal
def reexecute(journal: Path, *, first: NamedStep, last: NamedStep, bisect: bool, as_json: bool) -> int:
    """Make steps of RUN again in a copy, and compare each with the journal: data, loss, gradient norm, rates.

    If RUN has a checkpoint of the last step, weights and optimizer are compared too, tensor by tensor. Steps that
    differ are made a second time. The verdict is one of:

    reproducible: all is the same. transient: the run computed otherwise once; here it comes out alike twice. persistent
    here: the same, but on another machine or in another context. nondeterministic: it comes out otherwise each time.

    RUN is not touched, and may be live. Exit codes: 0: reproducible, 1: any other verdict.
    """
    if first.number > last.number:
        raise click.UsageError(f"step {first.number} is after step {last.number}: give the earlier one first")
    plan = again.planned(journal, last, begin_at_most=first.number - 1)
    if bisect:
        plan = _bisected(journal, first, last)
    again.say_cost(plan)
    one = _made(journal, plan)
    two = None
    if not one.is_same:
        output.note("a step differs: the steps are made a second time")
        two = _made(journal, plan)
    verdict = judged(one, two, is_same_machine=_is_same_machine(journal, plan))
    if as_json:
        output.put_json(_json(plan, verdict, one, two))
    else:
        _put_words(plan, verdict, one, two)
    return Exit.DONE if verdict is Verdict.REPRODUCIBLE else Exit.NO


def _made(journal: Path, plan: Plan) -> Result:
    """Make the steps once. Raises CommandError if they were not made at all."""
    with again.copied(journal, plan) as folder:
        found = again.trained(folder, plan)
        if found.failed and found.difference is None:
            raise CommandError(Exit.NO, f"the steps could not be made again: {found.failed}", name="NotAgain")
        return Result(outcome=found, tensors=again.differing(journal, plan, folder, found))


def _bisected(journal: Path, first: NamedStep, last: NamedStep) -> Plan:
    """Return the plan for the first interval between two checkpoints that does not come out the same.

    If a state differs, all after it do: so halving finds the first. If none differs, the whole range is returned.
    """
    whole = again.planned(journal, last, begin_at_most=first.number - 1)
    steps = sorted({one for one in whole.checkpoints if whole.from_step < one < whole.step})
    ends, low, high = [*steps, whole.step], 0, len(steps)
    begin = whole.from_step
    while low < high:
        middle = (low + high) // 2
        plan = again.planned(journal, NamedStep(ends[middle], last.branch), begin_at_most=begin)
        output.note(f"making steps {begin + 1} to {plan.step} again")
        if _made(journal, plan).is_same:
            low, begin = middle + 1, ends[middle]
        else:
            high = middle
    return again.planned(journal, NamedStep(ends[low], last.branch), begin_at_most=begin)


def _is_same_machine(journal: Path, plan: Plan) -> bool:
    with Reader(journal) as reader:
        return host_at(reader, plan.seq) == platform.node()


def _json(plan: Plan, verdict: Verdict, one: Result, two: Result | None) -> dict[str, Any]:
    return {
        "verdict": verdict.value,
        "from_checkpoint": plan.checkpoint,
        "from_step": plan.from_step,
        "to_step": plan.step,
        "branch": plan.branch,
        "compared": one.outcome.compared,
        "first_difference": msgspec.to_builtins(one.outcome.difference),
        "second_difference": msgspec.to_builtins(two.outcome.difference) if two is not None else None,
        "tensors": None if one.tensors is None else list(one.tensors),
        "expected": one.outcome.expected,
    }


def _put_words(plan: Plan, verdict: Verdict, one: Result, two: Result | None) -> None:
    compared = output.counted(one.outcome.compared, "step")
    output.put(f"{verdict.value}: {compared} from step {plan.from_step + 1} to {plan.step}, compared with the journal")
    for result in (one, two):
        difference = result.outcome.difference if result is not None else None
        if difference is not None:
            output.put(
                safe(
                    f"  step {difference.step}: {difference.field} was {difference.expected}, came out as "
                    f"{difference.found}; {output.counted(difference.count, 'step')} differ"
                )
            )
    if one.outcome.expected:
        output.put(safe(f"  a difference is expected: {one.outcome.expected}"))
    if one.tensors is None:
        output.note(f"the run has no checkpoint of step {plan.step}, so its weights were not compared")
    elif one.tensors:
        output.put(safe(f"  {output.counted(len(one.tensors), 'tensor')} of step {plan.step} differ: {one.tensors[0]}"))
    else:
        output.put(f"  weights and optimizer of step {plan.step} are those of the run's own checkpoint")
