"""`tolaria export-weights`: weights, and the optimizer's state, for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tolariad.cli import naming, output, probes, runs
from tolariad.cli.checkpoints import wanted
from tolariad.cli.errors import CommandError, Exit
from tolariad.cli.long_work import bar
from tolariad.core import queries as q
from tolariad.forensics.words import safe
from tolariad.storage.export import Exported, NoAverage, Weights
from tolariad.storage.export import export_weights as export
from tolariad.storage.verify import CheckpointUnusable
from tolariad.trainer.probes.messages import ExportedState, ExportState
from tolariad.trainer.probes.messages import Weights as Held

if TYPE_CHECKING:
    from tolariad.core import state as st

# Files for torch.load.
_OF_TORCH: Final = (".pt", ".pth", ".bin")


@click.command("export-weights")
@naming.argument
@click.option(
    "--id",
    "--checkpoint",
    "id_",
    metavar="ID",
    help="The checkpoint's id, `best`, or `last`: the default, but for a run that halted.",
)
@click.option(
    "--ema",
    "weights",
    flag_value=Weights.AVERAGED,
    type=Weights,
    help="Export the moving average of the weights instead.",
)
@click.option("--with-optimizer", is_flag=True, help="Write the optimizer's state too, to a .pt file or a folder.")
@click.option(
    "-o",
    "--output",
    "file",
    required=True,
    type=click.Path(path_type=str),
    help="The file to write: .safetensors, or .pt for torch.load. Or a folder, for model.pt and optimizer.pt.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@naming.takes_journal
def export_weights(
    journal: Path, *, id_: str | None, weights: Weights | None, with_optimizer: bool, file: str, as_json: bool
) -> int:
    """Write the weights of a checkpoint to a file.

    torch.load(FILE, weights_only=True) reads what is written for torch: the model's state_dict or, with
    --with-optimizer, a dict with `model` and `optimizer` (`optimizers` by name, if there are several). The checkpoint
    is verified first.
    """
    state = runs.folded(journal)
    # Of a run that halted not the newest one, which may have the fault.
    entry, chosen = wanted(state.checkpoints, id_ or q.last_healthy(state) or None), weights or Weights.TRAINED
    is_folder = file.endswith("/") or Path(file).is_dir() or (with_optimizer and not Path(file).suffix)
    if with_optimizer and not is_folder and Path(file).suffix not in _OF_TORCH:
        raise click.UsageError(f"--with-optimizer needs a .pt file or a folder, not {file}")
    done: Exported | ExportedState
    if is_folder or Path(file).suffix in _OF_TORCH:
        done, files = _for_torch(journal, entry, chosen, file, is_folder=is_folder, with_optimizer=with_optimizer)
    else:
        with bar("verifying, and writing"):
            done, files = _as_safetensors(journal, entry, chosen, Path(file)), {file: "model"}
    if as_json:
        shown = {"id": entry.id, "step": entry.step, "epoch": entry.epoch, "weights": chosen.value, "file": file}
        more: dict[str, object] = {"seeds": done.seeds} if done.seeds else {}
        more |= {"compactions": done.compactions} if done.compactions else {}
        more |= {"files": files} if with_optimizer or is_folder else {}
        output.put_json({**shown, "tensors": done.tensors, "size": done.size, **more})
        return Exit.DONE
    what = f"{chosen.value} weights{' and optimizer' if with_optimizer else ''}"
    held = f"{output.counted(done.tensors, 'tensor')}, {output.size(done.size)}"
    output.put(safe(f"{', '.join(files)}: {what} of checkpoint {entry.id}, step {entry.step}: {held}"))
    if done.seeds:
        slots = ", ".join(done.seeds)
        output.put(safe(f"They include the seeds in {slots}: put these into the model first, by regrow()."))
    if done.compactions:
        output.put("They are of a model with fewer channels: remove the same from the model first, by shrink().")
    return Exit.DONE


def _as_safetensors(journal: Path, entry: st.CatalogueEntry, weights: Weights, file: Path) -> Exported:
    try:
        folder = journal.parent / "checkpoints" / entry.id
        return export(folder, entry.manifest, weights, file, promoted=entry.promoted)
    except NoAverage as error:
        hint = "leave --ema out to export the weights; set `ema.decay` in the configuration to keep an average"
        raise CommandError(Exit.NO, str(error), hint=hint, name="NoAverage") from error
    except CheckpointUnusable as error:
        hint = "choose another one with --id; `tolaria checkpoints RUN --verify` checks all of them"
        what = f"checkpoint {entry.id} does not verify: {error}"
        raise CommandError(Exit.NO, what, hint=hint, name="CheckpointUnusable") from error


def _for_torch(
    journal: Path, entry: st.CatalogueEntry, weights: Weights, file: str, *, is_folder: bool, with_optimizer: bool
) -> tuple[ExportedState, dict[str, str]]:
    """Write files of torch, in a process that has torch. Raises CommandError."""
    held = Held(entry.id, str(journal.parent.absolute() / "checkpoints" / entry.id), entry.manifest)
    trial = ExportState(
        config="",
        weights=held,
        output=file,
        is_folder=is_folder,
        averaged=weights is Weights.AVERAGED,
        with_optimizer=with_optimizer,
        promoted=entry.promoted,
    )
    try:
        done = probes.ask(trial, ExportedState)
    except CommandError as error:
        raise CommandError(Exit.NO, error.what, hint=error.hint, name=error.name) from error
    return done, done.files
