"""If the configuration does not set the number of torch threads, a run keeps the number it had."""

from __future__ import annotations

import msgspec
import pytest
from blake3 import blake3

from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.calc.settings.model import Settings
from tolariad.core.state.run_state import RunState
from tolariad.daemon.opening import OpenRun, earlier_threads
from tolariad.daemon.settings import resolve
from tolariad.storage import Manifest
from tolariad.storage.manifest import complete, encode_manifest


def opened(run_dir, *, torch_threads: int | None) -> OpenRun:
    """A run whose newest checkpoint was made with three threads."""
    made = Manifest(
        **dict.fromkeys(("training_run_id", "parent_checkpoint_id", "reason"), "x"),
        **dict.fromkeys(("epoch", "batch", "global_step", "created_ns"), 1),
        checkpoint_id="c000001",
        model_hash="0" * 64,
        chunks=(),
        torch_threads=3,
    )
    folder = run_dir / "checkpoints" / "c000001"
    folder.mkdir(parents=True)
    text = encode_manifest(complete(made, ()))
    (folder / "manifest.json").write_bytes(text)
    entry = st.CatalogueEntry(
        id="c000001",
        reason=m.CheckpointReason.EPOCH,
        manifest=blake3(text).hexdigest(),
        **dict.fromkeys(("step", "epoch", "batch", "branch", "size", "begun_seq", "committed_seq", "wall"), 1),
    )
    return OpenRun(
        run_dir=run_dir,
        journal=None,
        state=RunState(checkpoints=st.Checkpoints(catalogue=(entry,))),
        resolved=resolve(Settings(task="digits", torch_threads=torch_threads), 1),
        run_id=bytes(16),
        boot_id="",
        facts=(),
        mode=None,
    )


def test_the_number_of_the_newest_checkpoint_is_kept(run_dir):
    """The trainer gets three threads, as when the checkpoint was written."""
    assert earlier_threads(opened(run_dir, torch_threads=None)) == 3


def test_the_configuration_wins(run_dir):
    """A number in the configuration is not passed to the trainer."""
    assert earlier_threads(opened(run_dir, torch_threads=1)) is None


@pytest.mark.parametrize("found", ["no checkpoint", "another manifest"])
def test_without_a_witness_the_machine_decides(run_dir, found):
    """Without a checkpoint, or with one that is not the journal's, there is no number to pass."""
    run = opened(run_dir, torch_threads=None)
    if found == "no checkpoint":
        run = msgspec.structs.replace(run, state=RunState())
    else:
        (run_dir / "checkpoints" / "c000001" / "manifest.json").write_text("{}")
    assert earlier_threads(run) is None
