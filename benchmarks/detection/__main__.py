"""Compute the study and write its tables into docs/detection-study.md.

Results are kept in a file outside the repository, so an interrupted study goes on. `--minutes` ends it earlier.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path

from benchmarks.detection import rows, tables
from benchmarks.detection.driver import pinned_threads


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=Path.home() / ".cache" / "tolariad" / "detection-study.jsonl")
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after so many minutes; the next call goes on")
    parser.add_argument("--only", default="", help="only runs whose key has this text")
    parser.add_argument("--partial", action="store_true", help="show the tables though runs are missing")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/detection-study.md")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    pinned_threads()
    given.results.parent.mkdir(parents=True, exist_ok=True)
    results = rows.Results(given.results)
    wanted = (one for one in rows.all_rows(results) if given.only in one.key)
    left = rows.compute(results, wanted, given.minutes)
    if left and not given.partial:
        print(f"{left} runs are missing; call it again")
        return 1
    if not given.only:
        tables.show(results, write=given.write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
