"""`tolaria report`: a run, or two over each other, as one HTML page that loads nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from journal.reader import Reader
from tolariad.cli import naming, output, runs
from tolariad.cli.completing import run_names
from tolariad.cli.diff_words import about, told
from tolariad.cli.errors import CommandError, Exit
from tolariad.cli.long_work import bar
from tolariad.core.calc.text.plain import safe
from tolariad.forensics.differences.runs import compare_runs
from tolariad.forensics.report.gathering import gathered
from tolariad.forensics.report.page import page


@click.command()
@click.argument("words", nargs=-1, metavar="[RUN] [RUN_B]", shell_complete=run_names)
@output.to_file("The page to write: a file that ends in .html. An existing one is replaced.", required=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: the file, its size, the runs.")
@naming.options
def report(*, words: tuple[str, ...], file: Path, as_json: bool, **place: Any) -> int:
    """Write RUN as one page: numbers, events, checkpoints, lost work, orders, and what the time was spent on.

    With RUN_B, both runs are drawn over each other, and the page begins with where they first differ. The page needs no
    network, no server and no other file. It can be printed, and read without scripts.
    """
    target = runs.named(**place)
    if len(words) > 2 - (target is not None):
        raise click.UsageError("give one run, or two to draw over each other")
    if file.suffix.lower() not in (".html", ".htm"):
        raise click.UsageError(f"-o {str(file)!r}: the name must end in .html")
    targets = [*([target] if target is not None else []), *(runs.find(run=word) for word in words)] or [runs.find()]
    journals = [runs.journal_of(one) for one in targets]
    names = [one.parent.name for one in journals]
    if len(set(names)) < len(names):
        names = [str(one.parent) for one in journals]
    with bar("reading, and drawing"):
        pages = [gathered(journal, name) for journal, name in zip(journals, names, strict=True)]
        text = page(pages, _verdict(journals, names) if len(journals) == 2 else ())
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(Exit.NO, f"{file} cannot be written: {error.strerror}", name="Output") from error
    size = len(text.encode())
    if as_json:
        output.put_json({"file": str(file), "size": size, "runs": [str(one.parent) for one in journals]})
    else:
        output.put(safe(f"{file}: {' and '.join(names)}, {output.size(size)}"))
    return Exit.DONE


def _verdict(journals: list[Path], names: list[str]) -> list[str]:
    with Reader(journals[0]) as a, Reader(journals[1]) as b:
        found = compare_runs(a, b)
    return [f"{found.verdict.value}: {told(found, names)}", *about(found, names)]
