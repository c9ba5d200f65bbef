"""A snapshot of the rates as the rate controller returns it, and the error for a rate that other code changed."""

from __future__ import annotations

from msgspec import Struct


class LRSnapshot(Struct, frozen=True):
    """The rates of update `step`. `checksums`: a fingerprint of each group over its id, its parameters and its rate.

    `timestamp` is wall time in seconds.
    """

    epoch: int
    step: int
    group_lrs: dict[str, float]
    checksums: dict[str, str]
    timestamp: float


class LRIntegrityError(Exception):
    """Code other than the rate controller changed a learning rate or the parameters that it applies to."""
