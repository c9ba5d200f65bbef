"""How loud single batches of a run are: the one thing of a detector that a rollback keeps."""

from msgspec import Struct


class Loud(Struct, frozen=True, omit_defaults=True):
    """How far single values of the last 4096 steps lay above their level: losses and gradient norms.

    In logarithms; 0: not known, as for values that may be negative.
    """

    loss: float = 0.0
    norm: float = 0.0
