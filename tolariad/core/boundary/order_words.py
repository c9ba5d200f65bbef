"""Every kind of boundary order, as one tagged union. State, channel and script use it; add a kind here."""

from __future__ import annotations

from typing import TypeAlias

from tolariad.core.pruning.mask_words import CompactModel, MaskUnits, ReleaseMasks
from tolariad.core.rates.hyper_words import SetHyperparameters
from tolariad.core.rates.words import SetRate
from tolariad.core.seeds.words import MoveSeed
from tolariad.core.strategy.words import KeepStrategyState

AnyBoundaryOrder: TypeAlias = (
    SetRate | SetHyperparameters | MoveSeed | KeepStrategyState | MaskUnits | ReleaseMasks | CompactModel
)
