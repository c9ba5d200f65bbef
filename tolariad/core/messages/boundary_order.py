"""Every kind of boundary order, as one tagged union. State, channel and script use it; add a kind here."""

from __future__ import annotations

from typing import TypeAlias

from tolariad.core.messages.pruning_mask import CompactModel, MaskUnits, ReleaseMasks
from tolariad.core.messages.rates import SetRate
from tolariad.core.messages.rates_hyper import SetHyperparameters
from tolariad.core.messages.seeds import MoveSeed
from tolariad.core.messages.strategy import KeepStrategyState

AnyBoundaryOrder: TypeAlias = (
    SetRate | SetHyperparameters | MoveSeed | KeepStrategyState | MaskUnits | ReleaseMasks | CompactModel
)
