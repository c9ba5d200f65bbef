"""The rows of the autopilot in the table of reactions: losses of skipped steps, comparisons, pins."""

from __future__ import annotations

from typing import Final

from tolariad.core import messages as m
from tolariad.core.engine import Row, on
from tolariad.core.rules import insurance
from tolariad.core.state.run_state import RunState

# What may follow a loss or a comparison.
GOES_ON: Final = (m.HeldOnTo, m.ConservativeModeEntered)

AUTOPILOT: Final[tuple[Row[RunState], ...]] = (
    on(m.ComparedReport, insurance.compared, makes=(m.StatesCompared,)),
    on(m.StepSkipped, insurance.after_step, makes=(m.ComparisonBegun, m.PinReleased)),
    on(
        m.StatesCompared,
        insurance.judge,
        makes=(m.PinReleased, m.OrderGiven, m.EmergencyRaised, m.CheckpointBegun, m.StatePinned, *GOES_ON),
    ),
    on(m.StatePinned, insurance.pinned, makes=(m.ComparisonBegun,)),
    on(m.PinReleased, insurance.abort_comparison, makes=(m.ComparisonAborted,)),
)
