"""`tolaria why`: follow the causes of an event, and its consequences."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from journal.reader import Reader
from tolariad.cli import naming, output, runs
from tolariad.cli.completing import run_or_topic
from tolariad.cli.errors import Exit
from tolariad.cli.events import line, position, read_position, verbose
from tolariad.cli.level_words import level_lines
from tolariad.cli.long_work import bar
from tolariad.cli.rank_words import fate_lines, times_lines
from tolariad.core import messages as m
from tolariad.core.calc.text.phrases import with_run
from tolariad.core.calc.text.plain import plain, plain_event
from tolariad.forensics.links import Link
from tolariad.forensics.moment import seq_at
from tolariad.forensics.positions import BadPosition, JournalPosition
from tolariad.forensics.topics import TOPICS
from tolariad.forensics.why import Answer, happened, is_topic
from tolariad.forensics.why import why as explain
from tolariad.forensics.words import block, in_words, is_cut, safe

_INDENT: Final = 11
_TOPIC_WIDTH: Final = max(map(len, TOPICS)) + 1


@click.command()
@click.argument("words", nargs=-1, metavar="[RUN] TOPIC [SLOT]", shell_complete=run_or_topic)
@click.option(
    "--at",
    callback=read_position,
    help="Search up to here: a sequence number, step:N, epoch:N or a time. Default: now.",
)
@output.in_style("verbose")
@click.option("--rows", is_flag=True, help="Also name the items of the data that the batch was made of.")
@click.option("--show", is_flag=True, help="The same, and each as the task's describe(item) shows it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@naming.options
def why(
    *,
    words: tuple[str, ...],
    as_json: bool,
    rows: bool,
    show: bool,
    at: JournalPosition | None,
    style: str,
    **place: Any,
) -> int:
    """Show the causes of an event of RUN, and its consequences. Without TOPIC, list the topics that have an answer.

    TOPIC selects the event: seq:N, step:N, a checkpoint's id, an event type, or a word.

    Words for the course of the run: restart, pause, resume, stop, end, completion, phase, checkpoint, rejected, rerun,
    rollback. Words for troubles: death, hang, failure, freeze, spike, skip, nan, slow, rank, violation, conservative,
    memory. Words for changes: lr, stage, hyperparameters, strategy, seed, prune, compaction.

    If several events fit, the newest is shown. With `RUN seed SLOT`, or with the topic seed:SLOT, it is the newest of
    this slot.
    """
    target = runs.named(**place)
    run, topic = _run_and_topic(words, is_named=target is not None)
    target = target if target is not None else runs.find(run=run)
    journal = runs.journal_of(target)
    with Reader(journal) as reader, bar("searching"):
        until_seq = seq_at(reader, at) if at else None
        listed = happened(reader, until_seq) if topic is None else {}
        if topic is not None:
            answer = explain(reader, topic, position=_as_position(topic), until_seq=until_seq)
    if topic is None:
        return _listed(listed, run, style=style, as_json=as_json)
    found = None
    if rows or show:
        from tolariad.cli.rows import rows_of

        found = rows_of(journal, answer.event.fields, describes=show)
    if as_json:
        output.put_json(_json(answer) | ({} if found is None else {"rows": msgspec.to_builtins(found)}))
        return Exit.DONE
    _put_words(answer, verbose if style == "verbose" else line, runs.named_by(journal))
    if found is not None:
        from tolariad.cli.rows import put_rows

        put_rows(found)
    elif topic == "spike":
        output.note("`--rows` names the items of the data that this batch was made of, `--show` shows them")
    return Exit.DONE


def _listed(found: dict[str, Link], run: str | None, *, style: str, as_json: bool) -> int:
    """List the topics that have an answer, each with the event that it explains; then those of which nothing is."""
    if as_json:
        topics = {topic: plain_event(link.seq, link.fields) for topic, link in found.items()}
        output.put_json({"topics": topics, "never": sorted(TOPICS.keys() - found.keys())})
        return Exit.DONE
    shown = verbose if style == "verbose" else line
    for topic, link in found.items():
        output.put(f"  {topic:<{_TOPIC_WIDTH}}{shown(link.seq, link.fields)}", indent=_TOPIC_WIDTH + 2)
    output.put(f"nothing happened of: {', '.join(sorted(TOPICS.keys() - found.keys()))}")
    given = f"{shlex.quote(run)} " if run is not None else ""
    output.note(f"`tolaria why {given}TOPIC` shows causes and consequences; TOPIC may be phase, step:N or seq:N too")
    return Exit.DONE


def _run_and_topic(words: tuple[str, ...], *, is_named: bool) -> tuple[str | None, str | None]:
    """Return RUN and the topic; None if it was not given. `is_named`: an option names the run."""
    run: str | None = None
    is_seed = len(words) == 2 and words[0] == "seed" and not runs.is_known("seed")
    if not is_named and words and not is_seed and (len(words) > 1 or _is_run(words[0])):
        run, words = words[0], words[1:]
    match words:
        case ():
            return run, None
        case (topic,):
            return run, topic
        case ("seed", slot):
            return run, f"seed:{slot}"
        case _:
            topic = words[0]
            more = "; an option names the run, so the first argument is the topic" if is_named else ""
            raise click.UsageError(f"only the topic seed takes a slot, not {topic}{more}")


def _is_run(word: str) -> bool:
    """Return whether a single argument is a run: a folder, or a known run whose name is no topic."""
    if Path(word).is_dir():
        return True
    return not is_topic(word) and _as_position(word) is None and runs.is_known(word)


def _as_position(topic: str) -> JournalPosition | None:
    """Return the position that `topic` names (`seq:N`, `step:N`, a time), or None if it is a word."""
    with contextlib.suppress(BadPosition):
        return position(topic) if ":" in topic or topic.isdecimal() else None
    return None


def _json(answer: Answer) -> dict[str, Any]:
    def plain_links(links: tuple[Link, ...]) -> list[dict[str, Any]]:
        return [plain_event(link.seq, link.fields) for link in links]

    return {
        "topic": answer.topic,
        "event": plain_event(answer.event.seq, answer.event.fields),
        "causes": plain_links(answer.causes),
        "consequences": plain_links(answer.consequences),
        "after": plain_links(answer.after),
        "skipped": plain_links(answer.skipped),
        "ended": plain_links(answer.ended),
        "around": plain_links(answer.around),
        **({"ranks": answer.timed.fields["ranks"]} if answer.timed is not None else {}),
        **({"fates": msgspec.to_builtins(answer.fates)} if answer.fates else {}),
        **({"level": plain(msgspec.to_builtins(answer.level))} if answer.level is not None else {}),
        "checkpoints": plain_links(answer.kept),
        "searched_all": answer.searched_all,
    }


def _put_words(answer: Answer, style: Callable[[int, dict[str, Any]], str], run: str) -> None:
    def shown(seq: int, fields: dict[str, Any]) -> str:
        return with_run(style(seq, fields), run)

    for links, label in (
        (answer.around, "around"),
        (answer.after, "after"),
        (answer.causes, "because"),
        (answer.skipped, "skipped"),
        ((answer.event,), "this"),
    ):
        _put_links(links, label, shown)
    # The lines show the beginning of a long text. Here is the place for all of it, unless the sentence has it.
    told, fields = in_words(answer.event.fields), answer.event.fields.items()
    long = {name: text for name, text in fields if isinstance(text, str) and is_cut(text) and safe(text) not in told}
    if long and style is line:
        output.put(block(long, indent=" " * _INDENT))
    _put_links(answer.consequences, "led to", shown)
    _put_links(answer.ended, "ended by", shown)
    _put_ranks(answer.timed)
    for text in (*fate_lines(answer.fates), *level_lines(answer)):
        output.put(f"  {text}", indent=_INDENT)
    slower = answer.event.fields.get("slower")
    if answer.topic == "slow" and isinstance(slower, dict):
        output.put(
            f"  from here on the median step takes {output.duration(slower['after_s'])} instead of "
            f"{output.duration(slower['before_s'])}: {slower['factor']:.2f} times as long"
        )
        output.note("the events before it are listed by time: nothing in the journal says that one is the cause")
    elif not answer.causes and not answer.after:
        output.note("this event has no recorded cause: an input from outside or a timer led to it")
    if not answer.searched_all:
        output.note(
            "the search for consequences ended early; there may be more. "
            f"`tolaria events {shlex.quote(run)} --since seq:{answer.event.seq}` lists what follows"
        )


def _put_ranks(timed: Link | None) -> None:
    """Print the times of the ranks, from an event that any version may have written."""
    if timed is None:
        return
    try:
        ranks = msgspec.convert(timed.fields["ranks"], tuple[m.RankTimes, ...])
    except msgspec.ValidationError:
        return
    output.put(f"  by rank, the means of the newest timed steps, in epoch {timed.fields.get('epoch')}:")
    for text in times_lines(ranks):
        output.put(f"    {text}")


def _put_links(links: tuple[Link, ...], label: str, shown: Callable[[int, dict[str, Any]], str]) -> None:
    for link in links:
        first, *rest = shown(link.seq, link.fields).split("\n")
        checked = link.fields.get("verified")
        # An event of a newer version may have a field of this name.
        if isinstance(checked, dict) and isinstance(checked.get("rate"), float):
            first += f" Verified: {safe(str(checked.get('group')))} at {checked['rate']:.6g}."
        output.put(f"  {label:<9}{first}", indent=_INDENT)
        for one in rest:
            output.put(" " * _INDENT + one, indent=_INDENT + 4)
