"""What a rollback does with every field of RunState, and why: one table.

A field without a row fails a test. docs/rollback-state.md is generated from the table.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple


class Fate(enum.Enum):
    """What a rollback does with a field.

    RESTORED: it gets the value that it had at the target. ANEW: it gets its default. SET: the slice's own rule computes
    it from RolledBack. SURVIVES: nothing.
    """

    RESTORED = "restored"
    ANEW = "begins anew"
    SET = "set by the rollback"
    SURVIVES = "survives"


class FateRow(NamedTuple):
    """Some fields of one slice that share a fate, and why."""

    slice: str
    fate: Fate
    names: str
    why: str


ROWS: Final = (
    FateRow("seq", Fate.SURVIVES, "", "the number of the last event: nothing is ever removed from the journal"),
    FateRow("run", Fate.SET, "phase", "the rollback is complete: the run recovers"),
    FateRow(
        "run",
        Fate.SURVIVES,
        "run_id name task rng_seed config config_hash policy started_wall parent",
        "which run this is and how it is configured",
    ),
    FateRow(
        "run",
        Fate.SURVIVES,
        "pause stop why failure daemon_pid boot_id starts gap",
        "orders of operators and of the system, and the daemon's process",
    ),
    FateRow(
        "progress",
        Fate.RESTORED,
        "loss grad_norm lr epoch_first_step epoch_loss_sum metrics best_accuracy train_loss skip_epoch skip_batch",
        "the last step's figures, the epoch's sums, the last validation, the best accuracy, the last skip",
    ),
    FateRow(
        "progress",
        Fate.SET,
        "step epoch batch epoch_started epoch_validated epoch_finished",
        "RolledBack contains the place; these get the values that they had there",
    ),
    FateRow("progress", Fate.SET, "branch", "a rollback opens a new branch"),
    FateRow("progress", Fate.SET, "digest", "it covers everything that training did, abandoned steps included"),
    FateRow("progress", Fate.SET, "epoch_mono speed", "they measure time, which does not go back"),
    FateRow(
        "progress", Fate.SET, "environment_since", "every step after the target is made in the present environment"
    ),
    FateRow("progress", Fate.ANEW, "validating validating_epoch", "a validation under way ends with the rollback"),
    FateRow("progress", Fate.SURVIVES, "last_mono last_wall", "when the last step was recorded: time does not go back"),
    FateRow("progress", Fate.SURVIVES, "steps_per_epoch environment determinism", "they describe the present trainer"),
    FateRow("progress", Fate.SURVIVES, "skipped", "a counter"),
    FateRow("checkpoints", Fate.SET, "catalogue open best watched", "checkpoints after the target are abandoned"),
    FateRow("checkpoints", Fate.SET, "branch", "a rollback opens a new branch"),
    FateRow("checkpoints", Fate.SET, "clock_mono", "the next checkpoint is due an interval after the rollback"),
    FateRow(
        "checkpoints",
        Fate.SET,
        "watch_from",
        "the run went wrong after the target, so no checkpoint is promoted before enough new healthy steps",
    ),
    FateRow("checkpoints", Fate.SURVIVES, "ordered removed", "counters; a name is never used twice"),
    FateRow("checkpoints", Fate.SURVIVES, "removing exhausted given_up", "they describe files on disk"),
    FateRow("checkpoints", Fate.SURVIVES, "script_seq rerunning", "they describe the present trainer's re-run"),
    FateRow(
        "trainer",
        Fate.SURVIVES,
        "incarnation alive pid start_ticks boot_id ready began held deaths deaths_total hung raised last_death cured",
        "the trainer's process and its deaths: a rollback changes neither",
    ),
    FateRow("rerun", Fate.SURVIVES, "open finished compared differed", "the present trainer's re-run, and counters"),
    FateRow("control", Fate.SURVIVES, "outcomes accepted", "a repeated order must find its first answer"),
    FateRow(
        "limits",
        Fate.RESTORED,
        "best best_epoch reached",
        "the best epoch, from which patience counts; a limit that was reached after the target",
    ),
    FateRow("limits", Fate.SURVIVES, "end", "an operator's order, which is not of the steps that are given up"),
    FateRow("limits", Fate.ANEW, "clock_mono", "the time of training does not count until training has begun again"),
    FateRow(
        "limits", Fate.SURVIVES, "trained_ns", "`stop.hours` counts all hours of training, abandoned steps included"
    ),
    FateRow(
        "rates",
        Fate.RESTORED,
        "changes unjudged",
        "why each rate is what it is; whether an epoch without a metric was recorded",
    ),
    FateRow(
        "rates",
        Fate.SET,
        "groups stale",
        "the checkpoint contains the rates: the trainer reports them when it is at the target (RatesRestored)",
    ),
    FateRow("rates", Fate.SURVIVES, "given_by", "an accepted order acts once, whatever the branch"),
    FateRow("rates", Fate.SURVIVES, "max_order_factor", "configuration"),
    FateRow("boundary", Fate.SET, "acted", "the trainer reports how many orders its target contains (RatesRestored)"),
    FateRow("boundary", Fate.SURVIVES, "waiting", "an accepted order acts once, whatever the branch"),
    FateRow("boundary", Fate.SURVIVES, "digest", "it covers all orders that acted, on abandoned branches too"),
    FateRow("boundary", Fate.ANEW, "asked", "the run leaves the epoch's end that the question was about"),
    FateRow("boundary", Fate.SURVIVES, "generations", "a counter; a late answer must be recognised as void"),
    FateRow(
        "stability",
        Fate.RESTORED,
        "in_epoch",
        "rate violations of the target's epoch",
    ),
    FateRow(
        "stability",
        Fate.ANEW,
        "healthy_epochs",
        "conservative mode survives, so the healthy epochs that end it are counted from the rollback on",
    ),
    FateRow("stability", Fate.SURVIVES, "failures reset_s probes heeds_budgets", "configuration"),
    FateRow(
        "stability",
        Fate.SURVIVES,
        "breaker violations total",
        "a breaker and counters: the code that changed rates is still there",
    ),
    FateRow(
        "stability",
        Fate.SURVIVES,
        "since since_wall why troubled",
        "conservative mode may be the answer to the fault that caused the rollback",
    ),
    FateRow(
        "rollbacks",
        Fate.SET,
        "done open target branches rate_factor places",
        "the history of rollbacks: it keeps the run from going back to one place without end",
    ),
    FateRow("rollbacks", Fate.SURVIVES, "begun asked", "a counter; an order that waits"),
    FateRow(
        "emergency",
        Fate.SURVIVES,
        "level why raised troubled",
        "the level falls only after a whole healthy epoch, or by an operator's order",
    ),
    FateRow(
        "instability",
        Fate.RESTORED,
        "accuracy validations fallen step_s sound_step",
        "the averages that accuracy and step time are compared with",
    ),
    FateRow(
        "instability",
        Fate.ANEW,
        "asked last_mono",
        "the question is answered; the first step after the rollback has no earlier one to be timed from",
    ),
    FateRow("instability", Fate.SURVIVES, "found", "a counter"),
    FateRow(
        "instability",
        Fate.SURVIVES,
        "trouble",
        "where the run went back from, and how often: without it the run would go back without end",
    ),
    FateRow("instability", Fate.SURVIVES, "chance", "configuration"),
    FateRow("quarantine", Fate.SURVIVES, "added entries", "a batch that did harm is not used again, on any branch"),
    FateRow("disk", Fate.SURVIVES, "low free floor", "it describes the disk"),
    FateRow("overruns", Fate.SET, "breakers", "what this rollback took is measured"),
    FateRow("overruns", Fate.ANEW, "going raised", "the rollback and the emergency that led to it are over"),
    FateRow(
        "overruns", Fate.SURVIVES, "act limits breaker_rules parameters", "configuration, and the size of the model"
    ),
    FateRow("overruns", Fate.SURVIVES, "memory", "what the process holds is no part of a branch"),
    FateRow("overruns", Fate.SURVIVES, "slow_boundaries", "how slow the machine is does not depend on the branch"),
    FateRow(
        "snapshots",
        Fate.RESTORED,
        "unhealthy_step",
        "the last step that was not healthy",
    ),
    FateRow(
        "snapshots",
        Fate.SET,
        "kept fresh",
        "snapshots after the target are gone; the others need new healthy steps to be promoted",
    ),
    FateRow("snapshots", Fate.SET, "branch", "a rollback opens a new branch"),
    FateRow("snapshots", Fate.SET, "last_step last_epoch", "the next snapshot is due as if the target were the last"),
    FateRow("snapshots", Fate.SURVIVES, "begun ring off open", "a counter, the memory, and one that is being taken"),
    FateRow("said", Fate.SURVIVES, "starts", "a counter"),
    FateRow("said", Fate.SET, "total latest", "the rollback itself is added; earlier entries stay"),
    FateRow("architecture", Fate.SET, "changes", "changes of the model after the target are undone"),
    FateRow("known", Fate.SET, "held last_batch best_end", "the values of places after the target are dropped"),
)
