"""The importance file of an analysis: the scores of all units, and those of the last few analyses before it.

It is a safetensors file in the run's folder `importance`. A tensor `000007/conv1` has the scores of the units of group
`conv1` in cycle 7, float64. The header's metadata say how they were made. Promises: equal scores give equal bytes; the
file has its name only if it is complete; reading needs no pickle.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from tolariad import run_files
from tolariad.core.calc.pruning.files import FOLDER
from tolariad.core.calc.pruning.ranking import rank_correlation
from tolariad.storage.tensor_file import TensorEntry, header, labels_of, layout, parse
from tolariad.trainer.pruning.importance import Scores

FORMAT: Final = "tolaria-importance-1"
# A file has the scores of this many cycles.
_CYCLES: Final = 4
_BYTES_MAX: Final = 256 * 1024 * 1024
_WIDTH: Final = 8

# By cycle, then by group.
History = dict[int, Scores]


def read_history(run: Path, file: str, estimator: str) -> History:
    """Return the scores in a file of the run; empty if they cannot be read, or are those of another estimator.

    Two estimators measure different things, so their scores are not compared.
    """
    found: History = {}
    try:
        content = run_files.read_file(run, file, _BYTES_MAX) if file else b""
        if not content or labels_of(content).get("estimator") != estimator:
            return {}
        for name, tensor in parse(content).items():
            cycle, _, group = name.partition("/")
            found.setdefault(int(cycle), {})[group] = tuple(np.frombuffer(tensor.data, np.float64).tolist())
    except (OSError, ValueError):
        return {}
    return found


def write_history(run: Path, file: str, history: History, labels: Mapping[str, str]) -> int:
    """Write the newest cycles of the history. Return the size of the file. Raises OSError."""
    folder, _, name = file.partition("/")
    if folder != FOLDER or not name or "/" in name:
        raise OSError(f"{file!r} is not a file in the run's folder {FOLDER}")
    values = {
        f"{cycle:06d}/{group}": np.asarray(scores, np.float64)
        for cycle in sorted(history)[-_CYCLES:]
        for group, scores in history[cycle].items()
    }
    entries = layout(
        [
            TensorEntry(name=key, dtype="F64", shape=one.shape, size=one.nbytes, element_size=_WIDTH)
            for key, one in values.items()
        ]
    )
    content = header(entries, {"format": FORMAT, **labels}) + b"".join(values[one.name].tobytes() for one in entries)
    run_files.make_folder(run, FOLDER)
    for unfinished in (run / FOLDER).glob(".*"):
        # One analysis runs at a time: this is of one that was killed.
        unfinished.unlink(missing_ok=True)
    run_files.replace_file(run / FOLDER, name, content)
    return len(content)


def stability(now: Scores, before: Scores, masked: Mapping[str, Sequence[int]]) -> float | None:
    """Return the rank correlation of two importances over the units that live; None if they have none in common."""
    pairs = [
        (score, before[name][unit])
        for name, scores in now.items()
        if len(before.get(name, ())) == len(scores)
        for unit, score in enumerate(scores)
        if unit not in masked.get(name, ())
    ]
    if len(pairs) < 2:
        return None
    return rank_correlation(*zip(*pairs, strict=True))


def layer_means(scores: Scores, masked: Mapping[str, Sequence[int]]) -> str:
    """Return the importance of each layer as a JSON object: the mean over its units that live."""
    means = {}
    for name, ones in scores.items():
        gone = masked.get(name, ())
        live = [score for unit, score in enumerate(ones) if unit not in gone]
        means[name] = math.fsum(live) / len(live) if live else None
    return msgspec.json.encode(means).decode()
