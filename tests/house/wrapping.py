"""Breaks the long lines of a generated page at spaces. A row of a table stays one line."""

from __future__ import annotations

import re
import textwrap

WIDTH = 120


def wrapped(page: str) -> str:
    """Return the page without lines over `WIDTH` columns, but for tables and code."""
    lines, code = [], False
    for line in page.split("\n"):
        code ^= line.startswith("```")
        if len(line) <= WIDTH or code or line.startswith("|"):
            lines.append(line)
        else:
            item = re.match(r" *(?:(?:[*-]|\d+\.) )?", line)
            indent = " " * item.end() if item else ""
            lines += textwrap.wrap(
                line, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
            )
    return "\n".join(lines)
