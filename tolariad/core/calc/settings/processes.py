"""The settings of the processes that train."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Struct

from tolariad.core.calc.settings import values as units


class TrainerSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The processes that train, one after the other. A word in place of the section is `kind`."""

    SCALAR: ClassVar[str] = "kind"

    kind: Annotated[
        Literal["process", "thread"],
        Meta(description="the training loop has a process of its own; `thread`, of earlier versions, means the same"),
    ] = "process"
    spare: Annotated[
        Literal["auto", "on", "off", "built"] | bool,
        Meta(
            description="keep a process that takes the place of a trainer that died; auto: while memory is free; "
            "built: as auto, and it builds the task while the trainer trains (CPU only)"
        ),
    ] = "auto"
    silent_s: Annotated[
        units.PositiveSeconds,
        Meta(
            description="a rank of a program that the others have waited for so long is killed: longer than what one "
            "rank does alone, such as a validation (docs/ranks.md)"
        ),
    ] = 600.0


class Parallel(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Training by several processes of one machine, which are called ranks (docs/ranks.md).

    A program under torchrun sets it itself.
    """

    ranks: Annotated[
        units.Ranks,
        Meta(
            description="processes that train together: `tolariad run` starts so many; a program under torchrun has "
            "those of torchrun"
        ),
    ] = 1
    strategy: Annotated[
        Literal["ddp"], Meta(description="`ddp`: every rank has the whole model, and gradients are averaged")
    ] = "ddp"
    exact: Annotated[
        bool,
        Meta(
            description="add gradients in one order, so that a run has the same bits with any number of ranks "
            "(docs/exact-sums.md)"
        ),
    ] = False
    leaves: Annotated[
        units.Leaves | None,
        Meta(description="micro-batches of a step, of all ranks together; needed if `exact` is set, and else without"),
    ] = None
