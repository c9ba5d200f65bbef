"""What a shell offers after `tolaria ...` and a tab: known runs, folders, and the topics of `why`.

click gives commands and options by itself. Promises: nothing is connected to, and no journal is opened.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click
    from click.shell_completion import CompletionItem


def run_names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the names of known runs; the shell offers folders if none begins so."""
    del context, parameter
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="dir"), *map(CompletionItem, _names(incomplete))]


def run_or_topic(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the topics of `why` as well."""
    from click.shell_completion import CompletionItem

    from tolariad.forensics.topics import TOPICS

    topics = sorted(one for one in (*TOPICS, "phase") if one.startswith(incomplete))
    return [*run_names(context, parameter, incomplete), *map(CompletionItem, topics)]


def _names(incomplete: str) -> Iterator[str]:
    from tolariad.cli.runs import candidates

    found = {target.folder.name for target in candidates() if target.folder is not None}
    # A name with a control character would act on the terminal.
    yield from sorted(name for name in found if name.startswith(incomplete) and name.isprintable())
