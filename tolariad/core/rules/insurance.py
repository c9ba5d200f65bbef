"""The rules of the autopilot: what it pins, when it compares, where it goes back to, what it releases.

`core.calc.detection.autopilot` decides; its table says what. The fold gives it each finding, loss and comparison
(`state/insurance.py`). These rules ask the same functions, of the state before the event, and record what follows.

Invariants: everything that the autopilot does is an event. Every pin that is not needed any more is released. A
comparison that was begun ends exactly once.
"""

from __future__ import annotations

from math import isfinite
from typing import Final, Protocol

from msgspec.structs import replace

from tolariad.core import messages as m
from tolariad.core import queries as q
from tolariad.core import state as st
from tolariad.core.calc.detection import autopilot as ap
from tolariad.core.calc.detection.comparison import judged
from tolariad.core.calc.detection.loud import Loud
from tolariad.core.calc.detection.place import Batch, later, ranges
from tolariad.core.decision import Decision
from tolariad.core.engine import At

# So many updates after a watch has ended, the trainer has the order to compare.
_AHEAD: Final = 16


class Reads(q.ReadsHealth, st.HasBoundary, Protocol):
    """The slices that the rules of the autopilot read."""


# -- findings and losses -----------------------------------------------------------------------------------------------


def after_finding(state: Reads, event: m.InstabilityDetected, at: At[Reads]) -> Decision | None:
    """Do what the machine answers to a finding."""
    if not event.insured:
        return None
    was = at.was.insurance
    _, acts = ap.found(was.machine, st.verdict_of(event), st.found_at(was, event), was.policy)
    return _done(state, acts, q.finding_in_words(event), level=event.level or m.Level.MAJOR)


def after_step(state: Reads, event: m.StepCompleted | m.StepSkipped, at: At[Reads]) -> Decision | None:
    """Do what the machine answers to a loss."""
    was = at.was.insurance
    if was.machine.is_idle or (isinstance(event, m.StepSkipped) and event.reason not in st.JUDGED):
        return None
    _, acts = ap.stepped(was.machine, (event.epoch, event.batch), event.loss)
    return _done(state, acts, "") if acts else _before_the_end(state)


# -- comparisons -------------------------------------------------------------------------------------------------------


def compared(state: Reads, report: m.ComparedReport, _: At[Reads]) -> Decision | None:
    """Record a comparison that is awaited, with what it says."""
    s = state.insurance
    opened = s.comparing
    if opened is None or opened.checkpoint != report.checkpoint:
        return None
    event = m.StatesCompared.of(
        report,
        newest=report.measured.newest,
        held=report.measured.held,
        begin=report.measured.begin,
        usual=report.measured.usual,
    )
    if opened.role is m.PinRole.BEFORE:
        event = replace(event, judgement=judged(st.comparison_of(event)))
    else:
        held = None if event.held is None else event.held.now
        acts = ap.branches_compared(s.machine, held)[1]
        event = replace(event, went_on=ap.Choose(ap.Future.WENT_ON) in acts)
    return Decision((event.caused_by(opened.cause),))


def judge(state: Reads, event: m.StatesCompared, at: At[Reads]) -> Decision | None:
    """Do what the machine answers to a comparison."""
    was = at.was.insurance
    if was.machine.trial is not None:
        _, acts = ap.branches_compared(was.machine, None if event.held is None else event.held.now)
        return _done(state, acts, "")
    _, acts = ap.compared(was.machine, st.comparison_of(event), (event.epoch, event.batch), was.policy)
    pin = was.find(event.checkpoint)
    return _done(state, acts, pin.why if pin is not None else "")


def send_again(state: Reads, _: m.ExecutionContextRecorded, __: At[Reads]) -> Decision | None:
    """A new trainer is built: it has to make the open comparison."""
    opened = state.insurance.comparing
    return None if opened is None else Decision((), _order(state, opened.checkpoint, opened.at))


def abort_comparison(state: Reads, event: m.RollbackBegun | m.PinReleased, _: At[Reads]) -> Decision | None:
    """Abort the open comparison: the run leaves its branch, or the pin is gone."""
    opened = state.insurance.comparing
    if opened is None or (isinstance(event, m.PinReleased) and event.checkpoint != opened.checkpoint):
        return None
    why = "a rollback began" if isinstance(event, m.RollbackBegun) else event.why
    return Decision((m.ComparisonAborted(checkpoint=opened.checkpoint, why=why).caused_by(opened.cause),))


def compare_again(state: Reads, _: m.RollbackAborted, __: At[Reads]) -> Decision | None:
    """A rollback that ended a comparison was given up: begin it again."""
    machine = state.insurance.machine
    return _compare(state) if machine.outcome is not None or machine.trial is not None else None


def _compare(state: Reads) -> Decision | None:
    """Begin a comparison with the pin, unless one is open, or the pin is not written yet: its end begins it then."""
    s = state.insurance
    trial = s.machine.trial
    pin = s.pin(m.PinRole.BEFORE if trial is None else m.PinRole.WENT_ON)
    if pin is None or not pin.is_written or s.comparing is not None:
        return None
    if trial is None:
        epoch, batch = max((1, 0), state.progress.place)
        # While steps are short, the trainer may be some ahead of the journal: the order must come before the batches.
        batches = (_AHEAD + ap.COMPARED) * s.policy.step_batches
        place = later((epoch, batch), batches, s.policy.epoch_batches)
        # The run may end before: then as late as there is a batch.
        place = min(place, q.last_to_compare(state, _AHEAD) or place)
    elif trial.until is not None:
        place = trial.until
    else:
        return None
    event = m.ComparisonBegun(checkpoint=pin.checkpoint, epoch=place[0], batch=place[1], why=pin.why, role=pin.role)
    return Decision((event.caused_by(pin.cause),), _order(state, pin.checkpoint, place))


def _before_the_end(state: Reads) -> Decision | None:
    """Begin the comparison early if the run ends before the watch does.

    So near the end that an order may come too late there is none: the way back is kept.
    """
    machine, policy, last = state.insurance.machine, state.insurance.policy, q.last_to_compare(state, _AHEAD)
    if machine.watch is None or machine.outcome is not None or last is None:
        return None
    here, updates = max((1, 0), state.progress.place), policy.step_batches
    near = later(here, _AHEAD * updates, policy.epoch_batches)
    far = later(here, (_AHEAD + ap.COMPARED) * updates, policy.epoch_batches)
    return _compare(state) if near <= last <= far else None


def _order(state: Reads, checkpoint: str, at: Batch) -> tuple[m.CompareStates, ...]:
    target = q.restorable(state, checkpoint)
    if target is None or not state.trainer.alive:
        return ()
    return (m.CompareStates(checkpoint=target.ref, epoch=at[0], batch=at[1]),)


# -- what the machine wants --------------------------------------------------------------------------------------------


def _done(state: Reads, acts: tuple[ap.Act, ...], why: str, *, level: m.Level = m.Level.MAJOR) -> Decision | None:
    """Return the events and effects of these acts. `why`: the finding in words."""
    done = Decision()
    for act in acts:
        done += _one(state, act, why, level)
    return done if done.events or done.effects else None


def _one(state: Reads, act: ap.Act, why: str, level: m.Level) -> Decision:
    match act:
        case ap.PinState(step):
            return _pin(state, step, why)
        case ap.Compare():
            return _compare(state) or Decision()
        case ap.Release(reason, begins_anew):
            # The pin of a return is its way back until the run has passed the place.
            done = Decision() if state.insurance.machine.place is not None else _release(state, reason)
            return done + Decision(_anew(reason)) if begins_anew else done
        case ap.GoBack():
            return _go_back(state, act, why, level)
        case ap.TryBoth():
            return _keep_present(state, why)
        case ap.Choose(future):
            return _choose(state, future)
        case ap.GoOn(reason):
            return _go_on(state, f"{why}: {reason}" if why else reason)
        case ap.Halt(reason):
            said = f"{why}; {reason}" if why else reason
            return Decision((m.EmergencyRaised(level=level, why=said, follows=m.Follows.HALT),))


def _pin(state: Reads, step: int, why: str) -> Decision:
    """Pin the newest copy of the state at or before `step`. One in memory is written as a checkpoint first."""
    if state.insurance.pin(m.PinRole.BEFORE) is not None:
        return Decision()  # the one of the last return from this place
    on_disk, in_memory = q.target_on_disk(state, step), q.copy_in_memory(state, step)
    if in_memory is not None and (on_disk is None or in_memory.step > on_disk.step):
        begun, order = q.checkpoint_begun(state, m.CheckpointReason.PIN, copy_of=in_memory)
        pinned = m.StatePinned(checkpoint=begun.id, step=in_memory.step, why=why, is_written=False)
        return Decision((*_room(state), begun, pinned), (order,))
    if on_disk is None:
        return _go_on(state, f"{why}: there is no state to keep as a way back")
    return Decision((*_room(state), m.StatePinned(checkpoint=on_disk.id, step=on_disk.step, why=why)))


def _keep_present(state: Reads, why: str) -> Decision:
    """Keep the present state as a checkpoint, before the run goes back for a trial."""
    begun, order = q.checkpoint_begun(state, m.CheckpointReason.PIN)
    step, role = state.progress.step, m.PinRole.WENT_ON
    pinned = m.StatePinned(checkpoint=begun.id, step=step, why=why, role=role, is_written=False)
    return Decision((*_room(state), begun, pinned), (order,))


def _room(state: Reads) -> tuple[m.Event, ...]:
    """Release the oldest pin that waits for an operator if another one would be too many."""
    held = [one for one in state.insurance.pins if one.is_held_on_to]
    more = max(0, len(state.insurance.pins) + 1 - st.PINS_MAX)
    return tuple(m.PinReleased(checkpoint=one.checkpoint, why="another state is pinned") for one in held[:more])


def _release(state: Reads, why: str) -> Decision:
    """Release the pins, but not one that waits for an operator, nor the target of a rollback that begins."""
    wanted = state.rollbacks.wanted
    pins = (one for one in state.insurance.pins if not one.is_held_on_to and one.checkpoint not in wanted)
    return Decision(tuple(m.PinReleased(checkpoint=one.checkpoint, why=why) for one in pins))


def _anew(why: str) -> tuple[m.Event, ...]:
    """Return the order that lets the detector learn its level anew."""
    return (m.OrderGiven(order=m.LearnAnew(why=why), why=why),)


def _go_back(state: Reads, act: ap.GoBack, why: str, level: m.Level) -> Decision:
    s = state.insurance
    pin = s.pin(m.PinRole.BEFORE)
    target = q.restorable(state, pin.checkpoint) if pin is not None and pin.is_written else None
    if not isinstance(target, st.CatalogueEntry) or not target.is_way_back:
        target = q.newest_target(state, m.Tier.FULL, pin.step if pin is not None else None)
    is_finite = s.machine.place is None or isfinite(s.machine.place.ceiling)
    said = f"{why}: {act.why}" if why else act.why
    if target is None:
        said = f"{said}; there is no checkpoint to go back to"
        if is_finite:
            return _go_on(state, said)
        return Decision((m.EmergencyRaised(level=level, why=said, follows=m.Follows.HALT),))
    suspects: tuple[m.Batches, ...] = ()
    if state.run.policy.skip_batches:
        suspects = tuple(m.Batches(*one) for one in ranges(act.first, act.batches, s.policy.epoch_batches))
    is_lost = not is_finite or s.policy.halts
    raised = m.EmergencyRaised(
        level=level,
        why=said,
        follows=m.Follows.ROLLBACK,
        checkpoint=target.id,
        otherwise=m.RefusalPolicy.HALT if is_lost else m.RefusalPolicy.OLDER,
        suspects=suspects[0] if suspects else None,
        more_suspects=suspects[1:],
    )
    return Decision((raised,))


def _choose(state: Reads, future: ap.Future) -> Decision:
    """Go on with one branch of a trial. A rollback leads to the one that went on; its pin is released after that."""
    pin = state.insurance.pin(m.PinRole.WENT_ON)
    if pin is None:
        return Decision()
    if future is ap.Future.RETURNED:
        return Decision((m.PinReleased(checkpoint=pin.checkpoint, why="the branch that went back is the better one"),))
    raised = m.EmergencyRaised(
        level=m.Level.MAJOR,
        why="going back was no better, so the branch that went on lives",
        follows=m.Follows.ROLLBACK,
        checkpoint=pin.checkpoint,
        otherwise=m.RefusalPolicy.STAY,
    )
    before = state.insurance.pin(m.PinRole.BEFORE)
    why = "going back was no better"
    gone = () if before is None else (m.PinReleased(checkpoint=before.checkpoint, why=why),)
    return Decision((*gone, raised))


def _go_on(state: Reads, why: str) -> Decision:
    """Go on in conservative mode. The pin stays, and a sentence says how to go back there."""
    pin = state.insurance.pin(m.PinRole.BEFORE)
    kept = m.HeldOnTo(
        why=why, checkpoint=pin.checkpoint if pin is not None else "", step=pin.step if pin is not None else 0
    )
    return Decision((kept, *q.conservative_mode_entered(state, f"{why}; the run goes on")))


# -- pins --------------------------------------------------------------------------------------------------------------


def written(state: Reads, event: m.CheckpointCommitted, at: At[Reads]) -> Decision | None:
    """A pin is written: begin the comparison that waits for it, or the trial. Release one that nobody needs."""
    if at.was.checkpoints.reason_of(event.id) is not m.CheckpointReason.PIN:
        return None
    was, pin = at.was.insurance, state.insurance.find(event.id)
    if pin is None:
        return Decision((m.PinReleased(checkpoint=event.id, why="it is not needed any more"),))
    if pin.role is m.PinRole.WENT_ON:
        _, acts = ap.kept(was.machine, (event.epoch, event.batch), was.policy)
        return _done(state, acts, pin.why)
    return _compare(state) if state.insurance.machine.outcome is not None else None


def not_written(state: Reads, event: m.CheckpointAborted, at: At[Reads]) -> Decision | None:
    """A pin could not be written: an older one on disk takes its place. Without the second pin there is no trial."""
    pin = at.was.insurance.find(event.id)
    if pin is None or pin.is_written:
        return None
    if pin.role is m.PinRole.WENT_ON:
        # The next trainer is told to write it once it trains.
        is_again = event.why in m.WITH_TRAINER
        return None if is_again else _done(state, ap.not_kept(at.was.insurance.machine)[1], pin.why)
    target = q.target_on_disk(state, pin.step)
    if target is None:
        return _go_on(state, f"{pin.why}: there is no state to keep as a way back")
    return Decision((m.StatePinned(checkpoint=target.id, step=target.step, why=pin.why).caused_by(pin.cause),))


def keep_again(state: Reads, _: m.TrainingStarted | m.RerunFinished, __: At[Reads]) -> Decision | None:
    """The trainer ended while the present state of a trial was written: keep it now."""
    s = state.insurance
    trial, before = s.machine.trial, s.pin(m.PinRole.BEFORE)
    if trial is None or trial.until is not None or s.pin(m.PinRole.WENT_ON) is not None:
        return None
    if state.progress.rerun is not None or state.rollbacks.open is not None:
        return None
    return _keep_present(state, before.why if before is not None else "")


def pinned(state: Reads, event: m.StatePinned, _: At[Reads]) -> Decision | None:
    """Another pin took the place of one that could not be written: begin the comparison that waits for it."""
    return _compare(state) if event.is_written and state.insurance.machine.outcome is not None else None


def after_rollback(state: Reads, event: m.RolledBack, at: At[Reads]) -> Decision | None:
    """Begin the comparison of a trial, tell the detector what it knew, and release what belongs to no branch."""
    was, s = at.was.insurance, state.insurance
    done = Decision()
    if was.loud != Loud():
        why = "the loud kind of batch that led to the rollback stays known"
        done += Decision((m.OrderGiven(order=m.RememberLoud(loud=was.loud), why=why),))
    chosen = was.find(event.checkpoint)
    if chosen is not None and chosen.role is m.PinRole.WENT_ON:
        why = "the branch that went on lives"
        return done + Decision((m.PinReleased(checkpoint=chosen.checkpoint, why=why), *_anew(why)))
    if s.machine.trial is not None:
        return done + (_compare(state) or Decision())
    left = {one.id for one in state.checkpoints.catalogue if one.abandoned}
    why = "the run went back to before it" if s.machine.place is not None else "the run went back"
    gone = (one for one in s.pins if one.checkpoint in left or s.machine.place is None)
    done += Decision(tuple(m.PinReleased(checkpoint=one.checkpoint, why=why) for one in gone))
    return done if done.events else None


def completed(state: Reads, _: m.RunCompleted, __: At[Reads]) -> Decision | None:
    """The run is complete: keep the way back from a rise that is not explained yet, and release any other."""
    s = state.insurance
    trial, why, done = s.machine.trial, "the run is complete", Decision()
    if (opened := s.comparing) is not None:
        done += Decision((m.ComparisonAborted(checkpoint=opened.checkpoint, why=why).caused_by(opened.cause),))
    pin, other = s.pin(m.PinRole.BEFORE), s.pin(m.PinRole.WENT_ON)
    if other is not None and any(one.id == other.checkpoint and one.abandoned for one in state.checkpoints.catalogue):
        pin = other  # The run has gone back: that is the way which it left.
    if pin is None or (s.machine.watch is None and trial is None):
        return done + _release(state, why) if s.pins else None
    others = (one for one in s.pins if one is not pin and not one.is_held_on_to)
    done += Decision(tuple(m.PinReleased(checkpoint=one.checkpoint, why=why) for one in others))
    said = f"{pin.why}: the run ended before it was explained"
    return done + Decision((m.HeldOnTo(why=said, checkpoint=pin.checkpoint, step=pin.step),))


def after_order(state: Reads, event: m.OrderActed, _: At[Reads]) -> Decision | None:
    """A stage was announced: release what is watched."""
    why = st.announced(event)
    s = state.insurance
    return _release(state, f"a stage began: {why}") if why and s.pins and s.machine.place is None else None


def release_for_disk(state: Reads, _: m.DiskLow, __: At[Reads]) -> Decision | None:
    """The disk runs low: release the pins, and remove those that are kept for no other reason."""
    wanted = state.rollbacks.wanted
    pins = [one for one in state.insurance.pins if one.checkpoint not in wanted and one.is_written]
    if not pins:
        return None
    why = "space on the disk is low"
    events: list[m.Event] = [m.PinReleased(checkpoint=one.checkpoint, why=why, is_lost=True) for one in pins]
    stays = q.pinned_checkpoints(q.unpinned(state.checkpoints), state.run.policy.keep_last, q.wanted_checkpoints(state))
    names = {one.checkpoint for one in pins}
    going = [
        one for one in state.checkpoints.catalogue if one.id in names and one.id not in stays and not one.condemned
    ]
    events += [m.CheckpointDeletionBegun(id=one.id, why=why, size=one.size) for one in going]
    return Decision(tuple(events), tuple(m.DeleteCheckpoint(id=one.id) for one in going))
