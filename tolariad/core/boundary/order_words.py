"""Every kind of boundary order, as one tagged union: add a kind here. State, channel and script take it from here."""

from __future__ import annotations

from typing import TypeAlias

from tolariad.core.rates.words import SetRate

AnyBoundaryOrder: TypeAlias = SetRate
