"""The importance that earlier analyses have computed, for the request of the next one."""

from __future__ import annotations

from msgspec import Struct


class KnownImportance(Struct, frozen=True, kw_only=True):
    """The scores of the newest analysis, by group.

    `epoch` is the epoch of its checkpoint, `samples` the number of samples from which the scores were computed.
    """

    epoch: int
    estimator: str
    samples: int
    scores: dict[str, tuple[float, ...]]
