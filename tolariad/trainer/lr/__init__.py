"""One hand on the learning rate (Tolaria's UnifiedLRController, source 000).

Promises: P5, as docs/learning-rate.md says it. It must not know: channels, journals, the training loop.
"""

from __future__ import annotations

from tolariad.core.learning_rate import GroupConfig, LRIntegrityError, LRPolicy, LRSnapshot
from tolariad.trainer.lr.controller import UnifiedLRController
from tolariad.trainer.lr.violation import Violation

__all__ = ["GroupConfig", "LRIntegrityError", "LRPolicy", "LRSnapshot", "UnifiedLRController", "Violation"]
