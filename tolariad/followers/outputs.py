"""The outputs by their names. Each loads its package only when it is opened."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal, get_args

from tolariad.followers.following import OpenOutput, Output
from tolariad.followers.records import About, BranchOf

OutputName = Literal["tensorboard", "wandb", "mlflow"]
OUTPUTS: Final[tuple[OutputName, ...]] = get_args(OutputName)


def opening(to: OutputName, uri: str, project: str, run_dir: Path) -> OpenOutput:
    """Return the function that opens an output for a run.

    `uri`: for tensorboard the log folder, by default `exports/tensorboard` of the run; for mlflow the tracking server;
    for wandb a server, or `offline`. `project`: a folder below the log folder, the experiment, or the project.
    """

    def opened(about: About, branch_of: BranchOf) -> Output:
        match to:
            case "tensorboard":
                from tolariad.followers.tensorboard import TensorBoardOutput

                root = Path(uri) if uri else run_dir / "exports" / "tensorboard"
                return TensorBoardOutput(root / project if project else root, about, branch_of)
            case "mlflow":
                from tolariad.followers.mlflow import MlflowOutput

                return MlflowOutput(uri, project, run_dir, about, branch_of)
            case "wandb":
                from tolariad.followers.wandb import WandbOutput

                return WandbOutput(uri, project, run_dir, about, branch_of)

    return opened
