"""Pruning as calculations: phase and schedule, the budget over layers, and the judgement of masks. No message is known.

The two classes have the source documents' names; every decision is one of the pure functions beside them.
"""

from tolariad.core.calc.pruning.phase import PruningPhase, StructuredPruningPhaseManager
from tolariad.core.calc.pruning.schedule import ProgressivePruningSchedule

__all__ = ["ProgressivePruningSchedule", "PruningPhase", "StructuredPruningPhaseManager"]
