"""The rows of pruning in the table of reactions: cycles, masks, the safety window, compaction.

The rules that begin a cycle, cancel it, or judge a validation are in the rows of what they follow from, in
`core.reactions`.
"""

from __future__ import annotations

from typing import Final

from tolariad.core import inputs as given
from tolariad.core.boundary import rules as boundary_rules
from tolariad.core.control import words as cv
from tolariad.core.engine import Row, on
from tolariad.core.pruning import mask_words as mk
from tolariad.core.pruning import rules as prune_rules
from tolariad.core.pruning import window_rules
from tolariad.core.pruning import words as pr
from tolariad.core.rollback import words as rb
from tolariad.core.run import words as rv
from tolariad.core.state import RunState

# The ends of its boundary orders.
PRUNE_APPLIED: Final = (
    mk.MasksApplied,
    mk.MasksAborted,
    mk.MasksReleased,
    mk.MasksReleaseAborted,
    mk.ModelCompacted,
    mk.CompactionAborted,
    cv.ReportRefused,
)
_REJECTED: Final = (rb.RollbackBegun, rb.RollbackRequested, mk.MasksReleaseOrdered, pr.PruneBreakerOpened)

PRUNING: Final[tuple[Row[RunState], ...]] = (
    on(given.AnalysisReply, prune_rules.replied, makes=(pr.PruneAnalyzed, pr.PruneCycleFailed)),
    on(mk.MasksAppliedReport, prune_rules.acted, makes=PRUNE_APPLIED),
    on(mk.MasksReleasedReport, prune_rules.acted, makes=PRUNE_APPLIED),
    on(mk.ModelCompactedReport, prune_rules.acted, makes=PRUNE_APPLIED),
    on(mk.PruneWatchReport, window_rules.watched, makes=(mk.PruneWatched,)),
    on(pr.PruneCycleBegun, prune_rules.analyze),
    on(pr.PruneDisabled, prune_rules.cancel, makes=(pr.PruneCycleCancelled,)),
    on(
        pr.PruneAnalyzed,
        prune_rules.open_breaker,
        prune_rules.mask_found,
        makes=(pr.PruneBreakerOpened, mk.MasksOrdered),
    ),
    on(pr.PruneCycleFailed, prune_rules.open_breaker, makes=(pr.PruneBreakerOpened,)),
    on(mk.MasksOrdered, boundary_rules.send),
    on(mk.MasksApplied, window_rules.release_untimely, makes=(mk.MasksReleaseOrdered,)),
    on(mk.MasksReleaseOrdered, boundary_rules.send),
    on(mk.CompactionOrdered, boundary_rules.send),
    on(mk.MasksAborted, prune_rules.open_breaker, makes=(pr.PruneBreakerOpened,)),
    on(mk.PruneWatched, window_rules.judge_watched, makes=(mk.MaskSetPassed, mk.MaskSetRejected)),
    on(mk.MaskSetPassed, window_rules.compact_due, makes=(mk.CompactionOrdered,)),
    on(mk.MaskSetRejected, prune_rules.open_breaker, window_rules.undo_rejected, makes=_REJECTED),
    on(rb.RollbackAborted, window_rules.release_left, makes=(mk.MasksReleaseOrdered,)),
    on(rv.RunCompleted, prune_rules.cancel, makes=(pr.PruneCycleCancelled,)),
    on(rv.RunFrozen, prune_rules.cancel, makes=(pr.PruneCycleCancelled,)),
)
