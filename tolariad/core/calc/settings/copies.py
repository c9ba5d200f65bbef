"""Settings of the copies of a run's state: checkpoints on disk, and snapshots in memory."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

from msgspec import Meta, Struct

from tolariad.core.calc.settings import values as units


class Checkpoint(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When checkpoints are taken in addition to `checkpoint_interval_epochs`, and how long they are kept."""

    interval_s: Annotated[units.PositiveSeconds, Meta(description="seconds of training between two checkpoints")] = (
        180.0
    )
    interval_steps: Annotated[
        units.Positive | None,
        Meta(description="steps between two checkpoints, in addition; absent: steps do not count"),
    ] = None
    min_gap_s: Annotated[
        units.Seconds,
        Meta(
            description="least seconds between two checkpoints, unless one is ordered; less if one takes under "
            "a hundredth of that time to write"
        ),
    ] = 30.0
    keep_last: Annotated[
        units.Positive, Meta(description="number of newest usable checkpoints that are never deleted")
    ] = 3
    keep: Annotated[
        units.Positive,
        Meta(
            description="number of other checkpoints that are kept, spread evenly over the run; the first, the best, "
            "the newest and those that a rollback needs are not counted"
        ),
    ] = 20
    keep_days: Annotated[units.Days, Meta(description="days after which other checkpoints are deleted")] = 7.0
    importance_days: Annotated[units.Days, Meta(description="days after which importance statistics are deleted")] = (
        30.0
    )
    throttle_mb_s: Annotated[
        units.MegabytesPerSecond | Literal["auto"] | None,
        Meta(
            description="greatest MB/s at which checkpoints are written during training; auto: what the disk gives, "
            "and less while steps or the journal suffer; null: no limit",
            extra={"choices": ("auto", "null", "a number above 0")},
        ),
    ] = "auto"


class SnapshotEvery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When snapshots are taken. A number in place of the section is `steps`. Without both keys, as it pays.

    As it pays: at epochs' ends, and within an epoch if one costs under 0.5 % of the time since the last one.
    """

    SCALAR: ClassVar[str] = "steps"

    steps: Annotated[units.Positive | None, Meta(description="steps between two snapshots")] = None
    seconds: Annotated[
        units.PositiveSeconds | None,
        Meta(description="seconds between two snapshots; with `steps` too, whichever comes first"),
    ] = None


# The share of training's time that a snapshot within an epoch may cost, if the configuration does not say when to take
# one.
SNAPSHOT_SHARE: Final = 0.005


class Snapshots(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Snapshots in memory, for the fast tier of rollback."""

    every: SnapshotEvery = SnapshotEvery()
    watch_steps: Annotated[
        units.Positive, Meta(description="healthy steps after which a snapshot, or a checkpoint, is promoted")
    ] = 32
    memory_gb: Annotated[
        units.Gigabytes | None, Meta(description="memory for snapshots; absent: a share of the free memory")
    ] = None
