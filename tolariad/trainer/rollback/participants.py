"""Participants of a rollback: parts of the program whose state goes back with the training's, and which have a vote.

A task names them in `participants(model)`, a subsystem calls `Setup.participants.register`. They are asked in the order
of registration, before the training itself. Their states are part of every checkpoint and snapshot.

Promises: a participant that gives no answer in its share of the tier's limit is not waited for. It goes back when it
can. Until then every capture contains the target's state of it. Nothing here reads a file.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from tolariad.trainer.checkpoints.tree import made
from tolariad.trainer.process.threads import same_device

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

_log: Final = logging.getLogger(__name__)
# The name of the training itself in the list of those that agreed.
TRAINING: Final = "training"
# All participants together have this part of a tier's limit to vote, and the same part to go back.
_PART_OF_LIMIT: Final = 0.25


class Participant(Protocol):
    """Its state is what a checkpoint can hold (docs/checkpoints.md).

    Optional: `prepare_rollback(state)` raises if the participant cannot go back to that state, and changes nothing.
    `abort_rollback()` is called if it was asked and the rollback is given up. In a rollback the calls are made one at a
    time, in a thread beside the one that trains.
    """

    def state_dict(self) -> Any:
        """Return the state."""
        ...

    def load_state_dict(self, state: Any) -> None:
        """Go back to a state that `state_dict` returned. The tensors in it are copies."""
        ...


class ParticipantRefused(Exception):
    """A participant raised. `participant` is its name; the text says why."""

    def __init__(self, participant: str, error: Exception) -> None:
        super().__init__(str(error) or type(error).__name__)
        self.participant = participant


class Votes(NamedTuple):
    """The names of the participants that agreed, and of those that gave no answer."""

    agreed: tuple[str, ...]
    abstained: tuple[str, ...]


class _Due:
    """A state to go back to. The thread that does it sets `is_done`."""

    def __init__(self, state: Any) -> None:
        self.state = state
        self.is_done = False


class _Seat:
    """One participant."""

    def __init__(self, name: str, participant: Participant) -> None:
        self.name, self.participant = name, participant
        self._due: _Due | None = None
        self._is_asked = False
        # Calls in threads do not overlap: a late one ends before the next begins.
        self._calls = threading.Lock()

    @property
    def due(self) -> _Due | None:
        """The state that it has still to go back to. Only the thread of training asks."""
        if self._due is not None and self._due.is_done:
            self._due = None
        return self._due

    def prepare(self, state: Any, share_s: float) -> bool:
        """Ask for its vote. Return whether it answered in time. Raises ParticipantRefused."""
        self._is_asked = True
        prepare = getattr(self.participant, "prepare_rollback", None)
        return not callable(prepare) or self._answers(lambda: prepare(state), share_s)

    def go_back(self, state: Any, due: _Due, share_s: float) -> None:
        """Put its state back, or leave that to a thread if it takes longer. Raises ParticipantRefused."""
        self._due, self._is_asked = due, False

        def load() -> None:
            # A later rollback may have another state for it.
            if self._due is due:
                self.participant.load_state_dict(state)
                due.is_done = True

        self._answers(load, share_s)

    def abort(self, share_s: float) -> None:
        """Say that the rollback is given up, if it was asked."""
        abort = getattr(self.participant, "abort_rollback", None)
        if callable(abort) and self._is_asked:
            self._is_asked = False
            try:
                self._answers(abort, share_s)
            except ParticipantRefused:
                return  # it is logged, and nobody can refuse an abort

    def _answers(self, call: Callable[[], None], share_s: float) -> bool:
        """Make a call in a thread. Return whether it ended in time. Raises ParticipantRefused if it raised by then."""
        answers: list[Exception | None] = []
        take_device = same_device()

        def run() -> None:
            take_device()
            with self._calls:
                try:
                    call()
                except Exception as error:  # noqa: BLE001 - any of them is a refusal
                    _log.exception("participant %s of a rollback raised", self.name)
                    answers.append(error)
                else:
                    answers.append(None)

        # A daemon thread: a participant that hangs must not keep the process from ending.
        thread = threading.Thread(target=run, name=f"rollback-{self.name}", daemon=True)
        thread.start()
        thread.join(share_s)
        if answers and answers[0] is not None:
            raise ParticipantRefused(self.name, answers[0]) from answers[0]
        return bool(answers)


class Participants:
    """The participants of one run, in order."""

    def __init__(self) -> None:
        self._seats: dict[str, _Seat] = {}

    def register(self, name: str, participant: Participant) -> None:
        """Add a participant after the others. Call it before training begins. Raises ValueError with a sentence."""
        if name in ("", TRAINING, *self._seats):
            raise ValueError(f"{name!r} cannot be the name of a participant: it is taken, or empty")
        methods = ("state_dict", "load_state_dict")
        if missing := [method for method in methods if not callable(getattr(participant, method, None))]:
            raise ValueError(f"the participant {name!r} has no method {', '.join(missing)}")
        self._seats[name] = _Seat(name, participant)

    def states(self) -> dict[str, Any]:
        """Return the state of each: the one that it has, or has still to go back to."""
        return {
            name: seat.participant.state_dict() if (due := seat.due) is None else due.state
            for name, seat in self._seats.items()
        }

    def known(self, held: dict[str, Any]) -> dict[str, Any]:
        """Return what `held` has of these participants, in their order. A state of one that is gone is not used."""
        return {name: held[name] for name in self._seats if name in held}

    @property
    def late(self) -> tuple[str, ...]:
        """The names of those that have still to go back."""
        return tuple(name for name, seat in self._seats.items() if seat.due is not None)

    def prepare(self, held: dict[str, Any], device: torch.device, limit_s: float) -> Votes:
        """PREPARE: ask each whether it can go back to its state in `held`. Raises ParticipantRefused.

        `limit_s` is the tier's time limit, in seconds. A participant whose state is not in the target keeps its state,
        and is not asked.
        """
        states, share_s = self.known(held), self._share_s(limit_s)
        answered = {name: self._seats[name].prepare(made(state, device), share_s) for name, state in states.items()}
        return Votes(
            tuple(name for name, answer in answered.items() if answer),
            tuple(name for name, answer in answered.items() if not answer),
        )

    def restore(
        self, held: dict[str, Any], device: torch.device, limit_s: float | None, done: Callable[[str], None]
    ) -> None:
        """COMMIT: each goes back to its state in `held`. `done` is called with the name of each.

        `limit_s` is the tier's time limit, in seconds; at a start it is None, and every participant is waited for.
        Raises ParticipantRefused or, at a start, the participant's own exception.
        """
        for name, state in self.known(held).items():
            seat = self._seats[name]
            if limit_s is None:
                seat.participant.load_state_dict(made(state, device))
            else:
                seat.go_back(made(state, device), _Due(made(state, device)), self._share_s(limit_s))
            done(name)

    def abort(self, limit_s: float) -> None:
        """Say that the rollback is given up, to all that were asked."""
        for seat in self._seats.values():
            seat.abort(self._share_s(limit_s))

    def _share_s(self, limit_s: float) -> float:
        return limit_s * _PART_OF_LIMIT / max(1, len(self._seats))
