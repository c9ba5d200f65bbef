"""The rules of findings, of an accuracy that collapses, and of a step that stalls.

| finding | before its update | a step late (CUDA without `detect.sync`) |
|---|---|---|
| NON_FINITE | the trainer skips it (`detect.skip`), else MAJOR | MAJOR |
| SPIKE, EXPLOSION | the trainer skips it (`detect.skip`), else as below | as below |
| SUSTAINED, not finite | MAJOR: a rollback | the same |
| SUSTAINED, EXPLAINED, LOST, EXPLOSION, four SPIKE or NON_FINITE | the autopilot pins a state and watches | the same |
| COLLAPSE | a record after one validation; after two in a row the autopilot compares | |
| SHIFT to a norm of a hundred times the usual | a record; the autopilot pins a state and watches | the same |
| RISE, SHIFT, STALL | a record: the update is made | a record |

`rules/insurance.py` has what the autopilot does. In the safety window of masks a finding that calls for a rollback
leads to one at once: the masks are undone.

Invariants: a trainer that waits always gets an answer: a rollback, its end, or GoOn. If nothing may be done (policy,
another rollback, a run that ends), the update is made and the finding is only recorded.
"""

from __future__ import annotations

from math import isfinite

from msgspec.structs import replace

from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core import state as st
from tolariad.core.calc.detection.rules import is_stalled
from tolariad.core.decision import Decision
from tolariad.core.engine import At


def reported(state: q.ReadsHealth, report: m.InstabilityReport, _: At[q.ReadsHealth]) -> Decision | None:
    """Record the finding that the trainer reported, with what it calls for."""
    at = state.progress.step
    if report.late and report.step != at:
        # The report crossed with a rollback: its step is abandoned.
        return None
    if not report.late and (report.step != at + 1 or state.progress.rerun is not None):
        refusal = state.trainer.refused(f"step {report.step} was judged, but the next step is {at + 1}")
        return Decision((refusal,))
    found = m.detected(report.verdict, step=report.step, epoch=report.epoch, batch=report.batch)
    found = replace(
        found,
        asks=not report.late,
        first_batch=report.first_batch,
        began=report.began,
        unit=report.unit,
        loud=report.loud,
    )
    return Decision((q.judged(state, found, q.level_of(report.verdict)),))


def raise_emergency(state: q.ReadsHealth, event: m.InstabilityDetected, at: At[q.ReadsHealth]) -> Decision | None:
    """Raise the emergency of a finding in the safety window of masks, or of a run without an autopilot's answer."""
    if event.level is None or event.insured:
        return None
    target = q.target_of(at.was, event, event.level)
    if target is None:
        why = f"{q.finding_in_words(event)}; there is no checkpoint to go back to"
        if isfinite(event.value):
            return Decision(q.conservative_mode_entered(state, f"{why}; the run goes on"))
        return Decision((m.EmergencyRaised(level=event.level, why=why, follows=m.Follows.HALT),))
    is_lost = not isfinite(event.value) or state.run.policy.detect_halt
    raised = m.EmergencyRaised(
        level=event.level,
        why=q.finding_in_words(event),
        follows=m.Follows.ROLLBACK,
        checkpoint=target.id,
        # If the run cannot go on from here, it halts unless some target can be used.
        otherwise=m.RefusalPolicy.HALT if is_lost else m.RefusalPolicy.OLDER,
    )
    return Decision((raised,))


def answer(state: q.ReadsHealth, event: m.InstabilityDetected, at: At[q.ReadsHealth]) -> Decision | None:
    """Let a waiting trainer go on, unless the finding led to a rollback or a halt: these are its answer then."""
    goes_back = state.rollbacks.open is not None and at.was.rollbacks.open is None
    halts = state.run.phase is st.Phase.FROZEN and at.was.run.phase is not st.Phase.FROZEN
    return None if not event.asks or goes_back or halts else Decision((), (m.GoOn(step=event.step),))


def after_refusal(
    state: q.ReadsHealth, report: m.RollbackRefusedReport | m.StrategyVoted, at: At[q.ReadsHealth]
) -> Decision | None:
    """No target was usable and the run does not halt: let a waiting trainer go on, in conservative mode."""
    opened, asked = at.was.rollbacks.open, state.instability.asked
    if opened is None or state.rollbacks.open is not None or asked is None or opened.otherwise is m.RefusalPolicy.HALT:
        return None
    return Decision(
        q.conservative_mode_entered(state, f"{q.given_up(opened, report)}; the run goes on"), (m.GoOn(step=asked.step),)
    )


# -- accuracy and time -------------------------------------------------------------------------------------------------


def after_validation(_: q.ReadsHealth, event: m.ValidationFinished, at: At[q.ReadsHealth]) -> Decision | None:
    """After a validation: record a collapse of the accuracy. After two in a row, go back.

    One validation alone may be wrong. The target is from before the first of the two.
    """
    was, accuracy = at.was, event.metrics.get("accuracy")
    s = was.instability
    verdict = None if accuracy is None else s.collapse(accuracy)
    if verdict is None or s.fallen >= st.FALLEN_TO_ACT:
        return None
    found = m.detected(verdict, step=event.step, epoch=event.epoch, batch=was.progress.batch)
    found = replace(found, began=max(0, event.step - s.sound_step))
    return Decision((q.judged(was, found, m.Level.MAJOR if s.fallen + 1 == st.FALLEN_TO_ACT else None),))


def stalled(_: q.ReadsHealth, event: m.StepCompleted, at: At[q.ReadsHealth]) -> Decision | None:
    """Record a step that took far longer than others."""
    before = at.was.instability
    if not before.last_mono or before.step_s == 0.0:
        return None
    verdict = is_stalled((event.mono - before.last_mono) / 1e9, before.step_s)
    if verdict is None:
        return None
    return Decision((m.detected(verdict, step=event.step, epoch=event.epoch, batch=event.batch),))
