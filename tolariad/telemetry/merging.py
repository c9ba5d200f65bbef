"""One page of metrics for all runs of a node, from the page of each. Pure.

Promises: each family stands once and together, as Prometheus's format asks. Each sample names the folder of its run, as
names of runs may be equal. A line that is not of our format is left out: a page may come from another program.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec

from tolariad.telemetry.exposition import escaped

_HEAD: Final = re.compile(r"# (HELP|TYPE) (tolaria_\w+) (.*)", re.ASCII)
_SAMPLE: Final = re.compile(r"(tolaria_\w+)\{(.*)\} (\S+)", re.ASCII)
UP: Final = "tolaria_run_up"


class RunPage(msgspec.Struct, frozen=True):
    """What a run answered. `text` None: nothing."""

    folder: str
    name: str
    text: str | None


def merged(pages: Iterable[RunPage]) -> str:
    """Return the page of all runs."""
    heads: dict[str, dict[str, str]] = {UP: {"HELP": "1 if the run's recorder answers.", "TYPE": "gauge"}}
    samples: dict[str, list[str]] = {UP: []}
    for page in pages:
        folder = f'dir="{escaped(page.folder)}"'
        samples[UP].append(f'{UP}{{{folder},run="{escaped(page.name)}"}} {int(page.text is not None)}')
        family = ""
        for line in (page.text or "").split("\n"):
            if head := _HEAD.fullmatch(line):
                family = head[2]
                heads.setdefault(family, {}).setdefault(head[1], head[3])
            elif (sample := _SAMPLE.fullmatch(line)) and family and sample[1].startswith(family):
                inside = f"{folder},{sample[2]}" if sample[2] else folder
                samples.setdefault(family, []).append(f"{sample[1]}{{{inside}}} {sample[3]}")
    lines = []
    for family, found in samples.items():
        if found:
            lines += [f"# {kind} {family} {words}" for kind, words in heads[family].items()]
            lines += found
    return "\n".join([*lines, ""])
