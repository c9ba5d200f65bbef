"""The rows of pruning in the table of reactions: cycles, masks, the safety window, compaction.

The rules that begin a cycle, cancel it, or judge a validation are in the rows of what they follow from, in
`core.rules.table.reactions`.
"""

from __future__ import annotations

from typing import Final

from tolariad.core import messages as m
from tolariad.core.engine import Row, on
from tolariad.core.rules import insurance, pruning, pruning_window
from tolariad.core.state.run_state import RunState

_REJECTED: Final = (m.RollbackBegun, m.RollbackRequested, m.OrderGiven, m.PruneBreakerOpened)

PRUNING: Final[tuple[Row[RunState], ...]] = (
    on(m.AnalysisReply, pruning.replied, makes=(m.PruneAnalyzed, m.PruneCycleFailed)),
    on(m.PruneWatchReport, pruning_window.watched, makes=(m.PruneWatched,)),
    on(m.PruneCycleBegun, pruning.analyze),
    on(m.PruneDisabled, pruning.cancel, makes=(m.PruneCycleCancelled,)),
    on(
        m.PruneAnalyzed,
        pruning.open_breaker,
        pruning.mask_found,
        makes=(m.PruneBreakerOpened, m.OrderGiven),
    ),
    on(m.PruneCycleFailed, pruning.open_breaker, makes=(m.PruneBreakerOpened,)),
    on(m.PruneWatched, pruning_window.judge_watched, makes=(m.MaskSetPassed, m.MaskSetRejected)),
    on(m.MaskSetPassed, pruning_window.compact_due, makes=(m.OrderGiven,)),
    on(m.MaskSetRejected, pruning.open_breaker, pruning_window.undo_rejected, makes=_REJECTED),
    on(
        m.RollbackAborted,
        *(pruning_window.release_left, insurance.compare_again),
        makes=(m.OrderGiven, m.ComparisonBegun),
    ),
    on(m.RunCompleted, pruning.cancel, makes=(m.PruneCycleCancelled,)),
    on(m.RunFrozen, pruning.cancel, makes=(m.PruneCycleCancelled,)),
)
