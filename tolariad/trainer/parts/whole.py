"""The list of the parts of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tolariad.trainer.parts.architecture import ArchitecturePart
from tolariad.trainer.parts.average import AveragePart
from tolariad.trainer.parts.detector import DetectorPart
from tolariad.trainer.parts.model import ModelPart
from tolariad.trainer.parts.owners import OwnersPart
from tolariad.trainer.parts.participants import ParticipantsPart
from tolariad.trainer.parts.plain import ActedPart, DataPart, RandomPart, ScalingPart, TaskPart
from tolariad.trainer.parts.pruning import PruningPart
from tolariad.trainer.parts.rates import RatesPart
from tolariad.trainer.parts.seeds import SeedsPart
from tolariad.trainer.parts.strategy import StrategyPart

if TYPE_CHECKING:
    from tolariad.trainer.parts.part import Part
    from tolariad.trainer.setup import Setup


def parts_of(setup: Setup) -> tuple[Part, ...]:
    """Return the parts of a run, in the order in which they are restored: each may rely on those before it."""
    return (
        ArchitecturePart(setup),
        ParticipantsPart(setup),
        ModelPart(setup),
        *(() if setup.average is None else (AveragePart(setup, setup.average),)),
        StrategyPart(),
        ScalingPart(setup),
        OwnersPart(setup),
        SeedsPart(setup),
        RatesPart(setup),
        PruningPart(setup),
        ActedPart(setup),
        DetectorPart(setup),
        TaskPart(setup),
        DataPart(setup),
        RandomPart(setup),
    )
