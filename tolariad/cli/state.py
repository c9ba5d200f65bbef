"""`tolaria state`: fold the journal up to a moment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from journal.reader import Reader
from tolariad.cli import naming, output
from tolariad.cli.errors import Exit
from tolariad.cli.events import line, read_position
from tolariad.cli.long_work import bar
from tolariad.core.calc.text.plain import plain
from tolariad.forensics.moment import seq_at, state_at
from tolariad.forensics.positions import JournalPosition
from tolariad.forensics.timeline import decode_fields
from tolariad.forensics.words import block, safe


@click.command()
@naming.argument
@click.option(
    "--at", callback=read_position, help="At this point: a sequence number, step:N, epoch:N or a time. Default: now."
)
@click.option("--full", is_flag=True, help="Print every field of the state.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with every field of the state.")
@naming.takes_journal
def state(folder: Path, *, at: JournalPosition | None, full: bool, as_json: bool) -> int:
    """Show the state of RUN, now or at an earlier point."""
    with Reader(folder) as reader:
        with bar("folding the journal"):
            replayed = state_at(reader, seq_at(reader, at) if at else None)
        last = next(iter(reader.seek(seq=replayed.state.seq)), None) if replayed.state.seq else None
    shown: dict[str, Any] = plain(msgspec.to_builtins(replayed.state, builtin_types=(bytes,)))
    if as_json:
        output.put_json({**shown, "unknown_events": replayed.unknown})
    elif full:
        output.put(f"state after event {shown['seq']}")
        output.put(block({name: value for name, value in shown.items() if name != "seq"}, indent="  "))
    else:
        from tolariad.cli.status_words import FACTS_INDENT, state_lines
        from tolariad.control.status import LiveFacts, run_status

        status = run_status(replayed.state, str(folder.parent), LiveFacts(segment=reader.segments))
        event = line(last.seq, decode_fields(last.event)) if last is not None else "no event"
        for text in state_lines(msgspec.to_builtins(status), event):
            output.put(text, indent=FACTS_INDENT)
        output.note("--full shows every field of the state")
    for kind, count in replayed.unknown.items():
        output.note(f"{count} events of type {safe(kind)} are unknown to this version and were skipped")
    return Exit.DONE
