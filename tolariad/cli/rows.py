"""The rows of the batch that an event tells of: which items of the data it was made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from journal.reader import Reader
from tolariad.cli import output, probes
from tolariad.cli.errors import CommandError, Exit
from tolariad.core.calc.text.plain import safe
from tolariad.forensics.timeline import decode_fields, entry_of_step, number_in
from tolariad.trainer.probes.messages import FindRows, FoundRows

_INDENT: Final = 11


def rows_of(journal: Path, fields: dict[str, Any], *, describes: bool) -> FoundRows:
    """Ask a process that has torch. Raises CommandError if the event tells of no batch, or the data have no rows."""
    epoch, batch = number_in(fields, "epoch"), number_in(fields, "batch")
    if not epoch or not batch:
        what = f"the event {fields.get('type')} tells of no batch"
        raise CommandError(Exit.NO, what, hint="choose a step: `tolaria why RUN step:N --rows`", name="NoBatch")
    settings = probes.settings_for(journal.parent, None, None, ())
    digest = _digest(journal, fields)
    trial = FindRows(
        config=probes.Subject(settings=settings).config,
        epoch=epoch,
        first=max(1, batch - settings.accumulate + 1),
        last=batch,
        digest=digest,
        describes=describes,
    )
    return probes.ask(trial, FoundRows)


def _digest(journal: Path, fields: dict[str, Any]) -> int:
    """Return the recorded digest of the batch: of the event itself, or of the step that was made from it; else 0."""
    if (own := number_in(fields, "data")) is not None:
        return own
    step = number_in(fields, "step")
    if step is None:
        return 0
    with Reader(journal) as reader:
        entry = entry_of_step(reader, step)
    made = decode_fields(entry.event) if entry is not None else {}
    is_same = all(number_in(made, name) == number_in(fields, name) for name in ("epoch", "batch"))
    return (number_in(made, "data") or 0) if is_same else 0


def put_rows(found: FoundRows) -> None:
    """Print the answer, and on stderr how sure it is."""
    verified = " NOT VERIFIED: loaded again, the batch has another digest." if found.is_verified is False else ""
    output.put(safe(f"  rows     {', '.join(map(str, found.rows))}.{verified}"), indent=_INDENT)
    for row, text in zip(found.rows, found.described, strict=False):
        output.put(safe(f"    {row}: {text}"), indent=_INDENT)
    if found.is_verified:
        output.note("the batch was loaded again, and has the digest that the journal has")
    elif found.is_verified is None:
        output.note("the journal has no digest of this batch: the rows follow from the seed and the order of the data")
