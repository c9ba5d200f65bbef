"""What the run does after a finding: one pure machine of findings, losses and comparisons.

| input | condition | what follows |
|---|---|---|
| a finding: finite, or four steps that are not | one is watched or tried already, or the run went on here | nothing |
| | after two returns from this place | `GoOn` once, or `Halt` if that is wanted |
| | else | `PinState` from before it, and the watch begins |
| another one, not finite | less than two returns from this place | `GoBack` |
| | in the second branch of a trial | `Choose` the branch that went on |
| | after two returns | `Halt` |
| a loss | the watched level came down, stays, or grows | `Compare` the present state with the pinned one |
| | the run has passed the place of its last return | `Release`, and the count begins anew |
| a comparison | WEIGHTS, DATA | `GoBack` to the pin, the batches of the rise in quarantine |
| | CHANGED, or nothing held out and the newest no worse, and the level came down | `Release` |
| | CHANGED, and no loss had risen | `TryBoth`; without trials `Release` |
| | CHANGED | `Release`, and the detector begins anew |
| | UNCLEAR | `TryBoth`, once a place; without trials, and if the run ends soon, `GoOn` |
| the present state is kept | in a trial | `GoBack`, and a comparison of both branches at the same batch |
| both branches compared | | `Choose` one of them |

Promises: pure functions of values. The state is part of the run's state; a rollback does not restore it. Finite values
never halt a run unless that is wanted.
"""

import math
from enum import Enum
from typing import Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from tolariad.core.calc.detection.comparison import Comparison, Judgement, judged, returned_is_better
from tolariad.core.calc.detection.place import RETURNS_MAX, Batch, Place, found_again, is_passed, widened
from tolariad.core.calc.detection.rules import NO_LIMIT, Finding, Signal, Verdict, is_watched
from tolariad.core.calc.detection.watch import HORIZON, WINDOW, Outcome, Watch, followed, level_of
from tolariad.core.calc.noise import error_of

# A state this many updates before the rise is safe from what led to it.
MARGIN: Final = 8
# How many batches a comparison measures. They come after the end of the watch: data may be read only once.
COMPARED: Final = 16


class Future(Enum):
    """A branch of a trial: the one that went on, or the one that went back to the pin."""

    WENT_ON = "went_on"
    RETURNED = "returned"


class PinState(Struct, frozen=True):
    """Keep the newest state at or before `step`, until it is released."""

    step: int


class Release(Struct, frozen=True):
    """Let the pins go, unless the run has still to pass a place.

    `begins_anew`: the detector learns its level anew, because the run has changed.
    """

    why: str
    begins_anew: bool = False


class Compare(Struct, frozen=True):
    """Measure losses of the present and the pinned weights, on the next `COMPARED` batches and on held-out ones."""


class GoBack(Struct, frozen=True):
    """Restore the pin, with `batches` batches from `first` on in quarantine.

    `keeps_loud`: the detector remembers how loud single batches were.
    """

    first: Batch
    batches: int
    why: str
    keeps_loud: bool = False


class TryBoth(Struct, frozen=True):
    """Keep the present state as a second pin. When it is kept, call `kept`."""


class Choose(Struct, frozen=True):
    """Go on with this branch; drop the other."""

    future: Future


class GoOn(Struct, frozen=True):
    """Go on in conservative mode and keep the pin: a person or the end of the run decides."""

    why: str


class Halt(Struct, frozen=True):
    """Halt the run."""

    why: str


Act: TypeAlias = PinState | Release | Compare | GoBack | TryBoth | Choose | GoOn | Halt


class Trial(Struct, frozen=True):
    """A trial of both branches. `until`: where they are compared; None: the present state is not kept yet.

    `went_on`: the losses of the last batches before `until`, on the branch that went on. `held`: its held-out loss
    there; None: there is none.
    """

    went_on: tuple[float, ...]
    held: float | None = None
    until: Batch | None = None


class Autopilot(Struct, frozen=True):
    """The state.

    * `watch`: the rise that is watched. `outcome`: how the watch ended, until the comparison is there.
    * `began`: the batch from which the watched rise may have come. `ended`: the last one that the watch saw.
    * `place`: where the run went back from, while it has not passed it.
    * `trial`: the trial that goes on.
    * `last`: the newest losses, while a place is known.
    * `given_up`: the run went on here after two returns, or because nothing told what would help.
    """

    watch: Watch | None = None
    outcome: Outcome | None = None
    began: Batch = (1, 1)
    ended: Batch = (1, 1)
    place: Place | None = None
    trial: Trial | None = None
    last: tuple[float, ...] = ()
    given_up: bool = False

    @property
    def is_idle(self) -> bool:
        """Whether losses tell it nothing."""
        return self.watch is None and self.place is None

    @property
    def returns(self) -> int:
        """How often the run went back from the present place."""
        return 0 if self.place is None else self.place.returns


class Policy(Struct, frozen=True):
    """The settings that the machine reads.

    `halts`: halt where the run would go on. `epoch_batches`: batches of an epoch; 0: not known. `step_batches`: batches
    of one update. `horizon`: how many steps a rise is watched.
    """

    trial: bool = True
    halts: bool = False
    epoch_batches: int = 0
    step_batches: int = 1
    horizon: int = HORIZON


Answer: TypeAlias = tuple[Autopilot, tuple[Act, ...]]


class Found(Struct, frozen=True):
    """Where a finding was made: in the update `step`, with the batch `batch`.

    `began`: how many updates before it the rise began. `first`: the batch from which it may have come. `unit`: the
    unit of a loss that may have either sign; 0 for positive losses.
    """

    step: int
    batch: Batch
    first: Batch
    began: int = 0
    unit: float = 0.0


def found(state: Autopilot, verdict: Verdict, at: Found, policy: Policy) -> Answer:
    """Answer a finding that is watched."""
    if not math.isfinite(verdict.value) and not (verdict.finding is Finding.NON_FINITE and is_watched(verdict)):
        return _not_finite(state, verdict, at, policy)
    if state.watch is not None or state.trial is not None or state.given_up:
        return state, ()
    if state.returns >= RETURNS_MAX:
        why = f"{state.returns} returns did not help"
        return replace(state, given_up=True), (Halt(why) if policy.halts else GoOn(why),)
    watch, outcome = _watch(verdict, at, policy), None
    if verdict.signal is Signal.ACCURACY:
        # The accuracy of two validations has shown it already: nothing is left to watch.
        outcome = Outcome.STAYS
    state = replace(state, watch=watch, outcome=outcome, began=at.first, ended=at.batch)
    return state, (PinState(max(0, at.step - at.began - MARGIN)), *(() if outcome is None else (Compare(),)))


def _watch(verdict: Verdict, at: Found, policy: Policy) -> Watch:
    """Return how the run watches what was found."""
    if verdict.signal is Signal.ACCURACY:
        return Watch(math.inf, math.inf, horizon=0)
    if not math.isfinite(verdict.value):
        # The finite losses among them tell nothing, so 32 of them are enough. The comparison sees the others as well.
        return Watch(NO_LIMIT, NO_LIMIT, horizon=policy.horizon)
    if verdict.finding is Finding.SHIFT:
        # Only the norm leapt.
        return Watch(0.0, 0.0, horizon=policy.horizon)
    return Watch(verdict.baseline, verdict.value, scale=at.unit, horizon=policy.horizon)


def _not_finite(state: Autopilot, verdict: Verdict, at: Found, policy: Policy) -> Answer:
    if state.trial is not None and state.trial.until is not None:
        return _chosen(state, Future.WENT_ON)
    place, why = found_again(state.place, at.batch, math.inf), f"{verdict.signal.value} is not finite"
    if place.returns >= RETURNS_MAX:
        return replace(state, place=place), (Halt(f"{why} after {place.returns} returns"),)
    state = replace(state, began=at.first, ended=at.batch, place=place)
    return _back(state, None, at.batch, policy, why)


def stepped(state: Autopilot, at: Batch, loss: float) -> Answer:
    """Answer the loss of the update that ends with batch `at`, after its finding if it had one."""
    if state.is_idle:
        return state, ()
    state = replace(state, last=(*state.last, loss)[-WINDOW:])
    if state.watch is None:
        return _passing(state, at) if state.trial is None else (state, ())
    if state.outcome is not None:
        return state, ()
    watch, outcome = followed(state.watch, loss)
    state = replace(state, watch=watch, outcome=outcome, ended=at)
    return state, () if outcome is None else (Compare(),)


def _passing(state: Autopilot, at: Batch) -> Answer:
    """Leave the place of the last return if the run has come past it in health."""
    last = tuple(loss for loss in state.last if math.isfinite(loss))
    if state.place is None or len(last) < WINDOW or not is_passed(state.place, at, level_of(last)):
        return state, ()
    if state.given_up:
        # The pin stays: the run did not come past it by the autopilot's help.
        return Autopilot(), ()
    return Autopilot(), (Release("the run passed the place in health"),)


def compared(state: Autopilot, comparison: Comparison, at: Batch, policy: Policy) -> Answer:
    """Answer the comparison that `Compare` asked for. `at`: the last batch that was trained with."""
    judgement = judged(comparison)
    if state.watch is None:
        return state, ()
    if state.watch.is_silent and judgement is Judgement.CHANGED and policy.trial:
        # An optimizer that stalls does no damage. Only another branch shows what it has not learnt.
        judgement = Judgement.UNCLEAR
    if (why := _released(state, judgement, comparison)) is not None:
        return settled(state, begins_anew=why.begins_anew), (why,)
    place = found_again(state.place, at, NO_LIMIT if state.watch.is_silent else state.watch.ceiling)
    state = replace(state, place=place)
    if judgement is not Judgement.UNCLEAR:
        return _back(state, judgement, at, policy, f"the {judgement.value} are to blame")
    # Without an outcome the run ends soon: both ways cannot be trained to the same batch.
    if not policy.trial or place.tried or state.outcome is None:
        state = replace(state, watch=None, outcome=None, given_up=True)
        return state, (GoOn("nothing tells whether going back would help"),)
    place, held = replace(place, tried=True), comparison.held
    trial = Trial(state.last[-COMPARED:], None if held is None else held.now)
    return replace(state, watch=None, outcome=None, place=place, trial=trial), (TryBoth(),)


def settled(state: Autopilot, *, begins_anew: bool) -> Autopilot:
    """Return the memory once what was watched is explained. A place that the run has not passed yet stays counted.

    A fault that comes at a step, or with what the code does there, lies ahead after each return: a rise before it that
    is explained must not let the run go back without end. `begins_anew`: the level that was usual there tells nothing
    any more.
    """
    place = state.place
    if place is not None and begins_anew:
        place = replace(place, ceiling=max(place.ceiling, NO_LIMIT))
    return Autopilot(place=place, given_up=state.given_up and place is not None)


def _released(state: Autopilot, judgement: Judgement, comparison: Comparison) -> Release | None:
    """Return why the pin is not needed after a comparison; None: it is."""
    newest, held = comparison.newest, comparison.held
    # Without held-out batches the newest ones alone speak for weights that have come down again.
    is_healed = held is None and (newest is None or newest.is_no_worse)
    if state.outcome is Outcome.CAME_DOWN and (judgement is Judgement.CHANGED or is_healed):
        return Release("the loss came down by itself")
    if judgement is not Judgement.CHANGED:
        return None
    if state.watch is not None and state.watch.is_silent:
        return Release("no loss rose")
    return Release("the objective or the data changed, and the network is sound", begins_anew=True)


def kept(state: Autopilot, at: Batch, policy: Policy) -> Answer:
    """Answer that the present state of a trial is kept: it contains the batches up to `at`."""
    if state.trial is None or state.trial.until is not None:
        return state, ()
    trial = replace(state.trial, until=at)
    state, acts = _back(state, Judgement.UNCLEAR, state.ended, policy, "both ways are tried")
    return replace(state, trial=trial), acts


def not_kept(state: Autopilot) -> Answer:
    """Answer that the present state of a trial cannot be kept: there is no trial."""
    if state.trial is None or state.trial.until is not None:
        return state, ()
    why = "the state that both ways would begin from could not be kept"
    return replace(state, trial=None, given_up=True), (GoOn(why),)


def _back(state: Autopilot, judgement: Judgement | None, at: Batch, policy: Policy, why: str) -> Answer:
    place = state.place or Place(at, math.inf)
    rise = between(state.began, at, policy.epoch_batches) + 1
    # Weights that were damaged twice at one place were damaged by its batches.
    if judgement is Judgement.WEIGHTS and not place.returns:
        rise = 0
    batches = widened(place.returns, rise, policy.epoch_batches, policy.step_batches)
    place = replace(place, returns=place.returns + 1)
    # Losses of a damaged network, and of batches that do damage, are no kind of batch to get used to: with them known,
    # the same fault at the next batches was not found again.
    keeps_loud = judgement in (None, Judgement.UNCLEAR)
    return Autopilot(began=state.began, place=place), (GoBack(state.began, batches, why, keeps_loud),)


def between(first: Batch, last: Batch, epoch_batches: int) -> int:
    """Return how many batches come after `first`, up to `last`. Of an epoch of unknown length only its own count."""
    epochs = max(0, last[0] - first[0])
    if epochs and not epoch_batches:
        return last[1]
    return max(0, epochs * epoch_batches + last[1] - first[1])


def branches_compared(state: Autopilot, held: float | None) -> Answer:
    """Answer the held-out loss of the branch that went back, at the batch up to which both were trained.

    Without held-out data the losses of the same last batches count, each from before its update.
    """
    trial = state.trial
    if trial is None:
        return state, ()
    if held is not None and trial.held is not None:
        is_better = returned_is_better(held, trial.held)
    else:
        last = state.last[-len(trial.went_on) :] if trial.went_on else ()
        # The same batches, so the noise is that of their differences.
        error = error_of([one - other for one, other in zip(last[::-1], trial.went_on[::-1], strict=False)])
        is_better = bool(last) and returned_is_better(_mean(last), _mean(trial.went_on), error)
    return _chosen(state, Future.RETURNED if is_better else Future.WENT_ON)


def _mean(losses: tuple[float, ...]) -> float:
    return math.fsum(losses) / len(losses) if all(map(math.isfinite, losses)) else math.inf


def _chosen(state: Autopilot, future: Future) -> Answer:
    if future is Future.RETURNED:
        return replace(state, trial=None, last=()), (Choose(future),)
    until = None if state.trial is None else state.trial.until
    # The trial may have been made on the way to a place that lies further on.
    lies_ahead = state.place is not None and until is not None and state.place.at > until
    return Autopilot(place=state.place if lies_ahead else None), (Choose(future),)


def pin_lost(state: Autopilot) -> Autopilot:
    """Return the state after the pin had to go: nothing is watched any more."""
    return replace(state, watch=None, outcome=None, trial=None)
