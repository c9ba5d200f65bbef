"""The settings of followers: programs beside the run that copy its numbers to where people look."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from tolariad.core.calc.bounds import TEXT_CHARACTERS_MAX


class Follow(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A follower that starts with the run, as `tolaria follow` does by hand."""

    to: Annotated[Literal["tensorboard", "wandb", "mlflow"], Meta(description="where the run's numbers go")]
    uri: Annotated[
        str,
        Meta(
            max_length=TEXT_CHARACTERS_MAX,
            description="log folder of TensorBoard, by default `exports/tensorboard` of the run; address of the MLflow "
            "or W&B server; `offline` for W&B without one",
        ),
    ] = ""
    project: Annotated[
        str,
        Meta(
            max_length=TEXT_CHARACTERS_MAX,
            description="MLflow's experiment, W&B's project, a folder below TensorBoard's log folder",
        ),
    ] = ""


Followers: TypeAlias = Annotated[
    tuple[Follow, ...],
    Meta(
        max_length=16,
        description="programs that start with the run and copy its numbers to where people look: `[{to: tensorboard}]`",
    ),
]
