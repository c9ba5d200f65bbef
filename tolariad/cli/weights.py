"""`tolaria export-weights`: write the weights of a checkpoint to a safetensors file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tolariad.cli import output, runs
from tolariad.cli.errors import CommandError, Exit
from tolariad.forensics.words import safe
from tolariad.storage.export import NoAverage, Weights
from tolariad.storage.export import export_weights as export
from tolariad.storage.verify import CheckpointUnusable

if TYPE_CHECKING:
    from tolariad.core.checkpoints.catalogue_slice import CatalogueEntry
    from tolariad.core.checkpoints.slice import Checkpoints


@click.command("export-weights")
@click.argument("run")
@click.option("--id", "id_", help="The checkpoint's id. Default: the newest one.")
@click.option(
    "--ema",
    "weights",
    flag_value=Weights.AVERAGED,
    type=Weights,
    help="Export the moving average of the weights instead.",
)
@click.option(
    "-o",
    "--output",
    "file",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="The safetensors file to write.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def export_weights(run: str, id_: str | None, weights: Weights | None, file: Path, as_json: bool) -> int:
    """Write the weights of a checkpoint to a safetensors file.

    The checkpoint is verified first.
    """
    journal = runs.journal_folder(run)
    entry = _wanted(runs.folded(journal).checkpoints, id_)
    chosen = weights or Weights.TRAINED
    try:
        done = export(journal.parent / "checkpoints" / entry.id, entry.manifest, chosen, file)
    except NoAverage as error:
        hint = "leave --ema out to export the weights; set `ema.decay` in the configuration to keep an average"
        raise CommandError(Exit.NO, str(error), hint=hint, name="NoAverage") from error
    except CheckpointUnusable as error:
        hint = "choose another one with --id; `tolaria checkpoints RUN --verify` checks all of them"
        what = f"checkpoint {entry.id} does not verify: {error}"
        raise CommandError(Exit.NO, what, hint=hint, name="CheckpointUnusable") from error
    if as_json:
        shown = {"id": entry.id, "step": entry.step, "epoch": entry.epoch, "weights": chosen.value, "file": str(file)}
        output.put_json({**shown, "tensors": done.tensors, "size": done.size})
    else:
        what = f"{chosen.value} weights of checkpoint {entry.id}, step {entry.step}"
        held = f"{output.counted(done.tensors, 'tensor')}, {output.size(done.size)}"
        output.put(safe(f"{file}: {what}: {held}"))
    return Exit.DONE


def _wanted(checkpoints: Checkpoints, id_: str | None) -> CatalogueEntry:
    """Return the committed checkpoint with this id; for None, the newest that is usable. Raises CommandError."""
    if id_ is None:
        found = checkpoints.newest
    else:
        found = next((entry for entry in checkpoints.catalogue if entry.id == id_), None)
    if found is not None:
        return found
    newest = ", ".join(entry.id for entry in checkpoints.catalogue[-5:])
    hint = f"the newest are {newest}" if newest else "the run has no checkpoint yet"
    what = f"there is no committed checkpoint {id_!r}" if id_ else "the run has no usable checkpoint"
    raise CommandError(Exit.NO, what, hint=hint, name="NoCheckpoint")
