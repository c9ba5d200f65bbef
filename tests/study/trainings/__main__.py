"""`python -m tests.study.trainings` runs every training and writes its tables into docs/detection-study.md."""

from __future__ import annotations

from tests.study.trainings.table import measure, write

if __name__ == "__main__":
    write(measure(lambda line: print(line, flush=True)))
