"""`tolaria journal`: verify, repair, export and measure a journal."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import click
import msgspec

from tolariad.cli import naming, output
from tolariad.cli.errors import CommandError, Exit
from tolariad.cli.events import SINCE, UNTIL, stamp
from tolariad.cli.long_work import bar
from tolariad.forensics.words import safe


@click.group(cls=naming.RunGroup)
def journal(**_: object) -> None:
    """Verify, repair, export or measure a run's journal."""


@journal.command()
@naming.argument
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@naming.takes_journal
def verify(path: Path, *, as_json: bool) -> int:
    """Check every byte of RUN's journal. Exit 0 if clean, else 1."""
    from journal.columns import Tabulation
    from journal.verification import Verdict
    from journal.verification import verify as check
    from tolariad.core.calc.steps.table import METRIC, STEP_COLUMNS, step_row

    with bar("verifying"):
        report = check(path, tabulation=Tabulation(STEP_COLUMNS, step_row, METRIC))
    clean = report.verdict is Verdict.CLEAN
    if as_json:
        output.put_json(_plain(report))
        return Exit.DONE if clean else Exit.NO
    verdict = output.painted(report.verdict.value, "green" if clean else "red")
    held = f"{output.counted(report.events, 'event')} in {output.counted(report.segments, 'segment')}"
    output.put(f"{verdict}: {held}, {output.on_disk(report.file_bytes, report.bytes)}, {path}")
    output.put(f"last event {report.last_seq}, chain {report.chain}")
    if report.problem is not None:
        output.put(f"{report.problem.damage}: {safe(report.problem.sentence)}")
    if report.verdict is Verdict.TORN_TAIL:
        output.note(
            "the last write was cut short; it was never acknowledged, so nothing is lost. "
            "The next start moves it aside, and so does `tolaria journal repair`"
        )
    return Exit.DONE if clean else Exit.NO


@journal.command()
@naming.argument
@click.option("-n", "--dry-run", is_flag=True, help="Only print what would be done.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--accept-loss", is_flag=True, help="Give up acknowledged events if they are damaged.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@naming.takes_journal
def repair(path: Path, *, dry_run: bool, yes: bool, accept_loss: bool, as_json: bool) -> int:
    """Cut off a torn write at the end of RUN's journal.

    Only bytes that were never acknowledged are cut. Any other damage is refused with its reason. The cut bytes are
    kept in a file beside the journal.

    With --accept-loss, damaged events that were acknowledged are cut too, and every event after them. The event
    GapRecorded records the loss. The run then stays frozen until `tolaria resume --after-gap`.
    """
    from journal.repairing import RepairAction, plan_repair
    from journal.repairing import repair as mend
    from tolariad.forensics.gap import gap_event

    with bar("verifying"):
        plan = plan_repair(path)
    loses = accept_loss and plan.action is RepairAction.REFUSED and plan.loss is not None
    if (loses or plan.action is RepairAction.CUT_TAIL) and not dry_run:
        if not yes:
            what, hint = safe(plan.sentence), "there is no terminal to ask on: add --yes, or --dry-run"
            output.confirm(f"{what} Continue?", nobody=what, hint=hint, declined="nothing was changed")
        plan = mend(path, accept_loss=gap_event(path, plan.problem) if loses else None)
    if as_json:
        output.put_json(_plain(plan))
    else:
        output.put(safe(plan.sentence))
        if plan.quarantine is not None:
            output.put(f"the cut bytes are kept in {plan.quarantine}")
    if plan.action is RepairAction.LOSE_EVENTS:
        output.note("the run stays frozen until `tolaria resume --after-gap`")
    return Exit.NO if plan.action is RepairAction.REFUSED and not (loses and dry_run) else Exit.DONE


@journal.command()
@naming.argument
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@naming.takes_journal
def stats(path: Path, *, as_json: bool) -> int:
    """Print the size of RUN's journal, in total and for each step."""
    from journal.summary import summarize

    with bar("reading"):
        summary = summarize(path)
    if as_json:
        output.put_json(_plain(summary))
        return Exit.DONE
    kinds = ", ".join(f"{kind} {number}" for kind, number in summary.frames_by_kind.items())
    packed = f" ({summary.segments_packed} packed)" if summary.segments_packed else ""
    output.put(f"{output.counted(summary.segments, 'segment')}{packed}, {output.size(summary.file_bytes)}, {path}")
    output.put(f"{output.counted(summary.frames, 'frame')}, {output.size(summary.frame_bytes)}: {kinds}")
    output.put(f"{output.counted(summary.events, 'event')}, {output.size(summary.event_bytes)} without the frames")
    if summary.bytes_a_step is not None:
        output.put(f"{summary.bytes_a_step:.0f} bytes per step on disk, {summary.events_a_frame:.1f} events per frame")
    if summary.bytes_a_step_packed is not None:
        output.put(f"{summary.bytes_a_step_packed:.0f} bytes per step in packed segments")
    if (sizes := summary.frame_sizes) is not None:
        output.put(f"frame bytes: min {sizes.least}, median {sizes.median}, p99 {sizes.p99}, max {sizes.most}")
        output.put(f"from {stamp(summary.first_wall_ns)} to {stamp(summary.last_wall_ns)}")
    after_failure = output.counted(summary.segments_poisoned, "segment")
    output.put(f"{output.counted(summary.boots, 'boot')}, {after_failure} begun after a failed write")
    return Exit.DONE


@journal.command()
@naming.argument
@output.to_file("Write to FILE instead of stdout. If it ends in .parquet: a table, which needs duckdb.")
@click.option("--steps", is_flag=True, help="With -o FILE.parquet: one row for each step, instead of each event.")
@click.option("--otlp", metavar="URL", help="Send spans of the run's work to this OpenTelemetry collector instead.")
@click.option("--raw", is_flag=True, help="Write the exact bytes of each event, in base64.")
@click.option("--json", "as_json", is_flag=True, help="With -o or --otlp: print one JSON object, what was written.")
@SINCE
@UNTIL
@naming.takes_journal
def export(
    path: Path, *, file: Path | None, steps: bool, otlp: str | None, raw: bool, as_json: bool, **bounds: Any
) -> int:
    """Write RUN's events as JSON lines, or as a Parquet table. Or send its spans to a collector of traces."""
    if otlp is not None:
        if file is not None or steps or raw or any(bounds.values()):
            raise click.UsageError("--otlp sends the spans of the whole run: leave the other options out")
        from tolariad.cli.tracing import send_spans

        return _told({"spans": send_spans(path, otlp), "to": otlp}, as_json=as_json)
    if file is not None and file.suffix == ".parquet":
        if raw or any(bounds.values()):
            raise click.UsageError("a Parquet file has all events: leave --raw, --since and --until out")
        count = _as_parquet(path, file, by_step=steps)
        return _told({"file": str(file), "steps" if steps else "events": count}, as_json=as_json)
    if steps:
        raise click.UsageError("--steps needs -o FILE.parquet; `tolaria metrics RUN --csv` prints the steps as CSV")
    from journal.export import export_json_lines, export_raw_lines
    from journal.reader import Reader
    from tolariad.forensics.timeline import Query, forwards

    query = Query(**bounds)
    write_lines = export_raw_lines if raw else export_json_lines
    with Reader(path) as reader:
        count = _written(file, lambda stream: write_lines(forwards(reader, query), stream.write))
    output.note(output.counted(count, "event"))
    return _told({"file": str(file), "events": count}, as_json=as_json and file is not None)


def _told(what: dict[str, Any], *, as_json: bool) -> int:
    if as_json:
        output.put_json(what)
    return Exit.DONE


def _as_parquet(path: Path, file: Path, *, by_step: bool) -> int:
    from tolariad.forensics.parquet import NoDuckdb, write_events, write_steps

    try:
        with bar("writing"):
            count = (write_steps if by_step else write_events)(path, file)
    except NoDuckdb as error:
        raise CommandError(Exit.NO, str(error), name="NoDuckdb") from error
    except OSError as error:
        raise CommandError(Exit.NO, f"{file} cannot be written: {error.strerror or error}", name="Output") from error
    output.note(output.counted(count, "step" if by_step else "event"))
    return count


def _written(file: Path | None, write: Callable[[TextIO], int]) -> int:
    """Write to stdout, or to a file that appears only when it is complete."""
    if file is None:
        return write(sys.stdout)
    aside = file.with_name(f".{file.name}.partial")
    try:
        with bar("writing"), aside.open("w", encoding="utf-8") as stream:
            count = write(stream)
        aside.replace(file)
    except OSError as error:
        hint = "give a file in a folder that exists, that you may write to, and that has free space"
        what = f"{file} cannot be written: {error.strerror or error}"
        raise CommandError(Exit.NO, what, hint=hint, name=type(error).__name__) from error
    finally:
        aside.unlink(missing_ok=True)
    return count


def _plain(value: Any) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.to_builtins(value, enc_hook=str)
    return shown
