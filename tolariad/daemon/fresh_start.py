"""Begin a run anew in the same folder if it never came to its first step, so that a typo costs no second folder.

Promises: nothing is deleted: journal and checkpoints of the earlier attempt are moved into the folder `failed-N`, which
`tolaria events RUN/failed-N` reads. A kill at any point leaves a folder in which the next start begins anew.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from tolariad import run_files
from tolariad.core import state as st
from tolariad.core.state.run_state import RunState

ASIDE: Final = "failed-"
_MAY_TRAIN: Final = (st.Phase.STARTING, st.Phase.RECOVERING, st.Phase.RUNNING, st.Phase.STOPPED, st.Phase.FAILED)


def never_trained(state: RunState) -> bool:
    """Return whether the run exists, has used no batch, and nobody paused it or must decide about it."""
    run, progress = state.run, state.progress
    is_waiting = run.pause is not None or run.gap is not None or run.phase not in _MAY_TRAIN
    return state.seq > 0 and not (is_waiting or progress.step or progress.skipped or progress.branch)


def set_aside(folder: Path, *names: str) -> Path:
    """Move these folders of the run, in this order, into a new folder `failed-N`, and return it. Raises OSError.

    The journal must come last, and be locked: without it the next start would take the others for those of a lost run.
    """
    folder, number = folder.resolve(), 1
    while (aside := folder / f"{ASIDE}{number}").exists():
        number += 1
    run_files.make_folder(folder, aside.name)
    for name in names:
        if (folder / name).exists():
            (folder / name).rename(aside / name)
            for changed in (aside, folder):
                _sync(changed)
    return aside


def _sync(folder: Path) -> None:
    descriptor = run_files.open_folder(folder.parent, folder.name)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
