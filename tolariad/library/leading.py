"""Rank 0's call of `run`: its recorder records the run of the whole group, and it lets the other ranks take part.

Promises: nothing is recorded before all ranks have built the same. The end of the run, and a refusal, reach all ranks.
If the recorder is lost, the group ends: who has started the ranks starts all of them again.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from blake3 import blake3

from tolariad.attach import words
from tolariad.channel import Page, TrainerEnd
from tolariad.channel.points import LeaderPoints
from tolariad.channel.rank_ends import LeaderEnd
from tolariad.core import messages as m
from tolariad.core.calc.run.exits import EXIT_TRY_AGAIN
from tolariad.library.attached import Attached
from tolariad.library.crew import Crew, turn_away
from tolariad.library.failed import RunFailed
from tolariad.library.joined import Joined
from tolariad.library.ranks import wrapper_of
from tolariad.library.recorder import Recorder
from tolariad.refusal import StartRefused
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.loop import Trainer
from tolariad.trainer.process.lifecycle import Steps
from tolariad.trainer.ranks.group import Leader
from tolariad.trainer.ranks.leading import RanksOfLeader
from tolariad.trainer.ranks.stepping import StepperOfRanks
from tolariad.trainer.setup import Place, Setup
from tolariad.trainer.step.parameter_digest import digesting, tensors_of
from tolariad.trainer.step.stepper import Stepper


class Leading(Attached):
    """One call of `run` in rank 0 of a group."""

    _crew: Crew

    @classmethod
    def of(cls, place: Place) -> type[Attached]:
        """Return the class for this place."""
        return type("LeadingHere", (cls,), {"_place": place})

    def _met(self, hello: words.Hello) -> Recorder | Joined:
        try:
            return super()._met(hello)
        except StartRefused as refused:
            # Not if the run is live: another group may be meeting in its folder.
            if refused.code != EXIT_TRY_AGAIN:
                turn_away(Path(hello.run_dir), self._place.ranks, refused)
            raise

    def _build(self, task: Any, *, accept_data: bool) -> None:
        """Meet the other ranks, build, and compare. Raises StartRefused, SetupRefused."""
        self._stopping, self._stops = threading.RLock(), False
        self._crew = Crew(Path(self._hello.run_dir), self._place.ranks, self._saying.note)
        self.group = self._crew.mapping, self._crew.check
        self._crew.gather(self._recorder.opened)
        try:
            super()._build(task, accept_data=accept_data)
            own = built(self._setup)
        except (StartRefused, SetupRefused) as refused:
            self._crew.refuse(f"rank 0: {refused}")
            raise
        self._crew.agree(own)
        self._crew.begin(self._take)

    def _take(self, word: words.Word) -> None:
        """Act for another rank. The thread that reads the links calls this."""
        match word:
            case words.Signal(name=name):
                self._take_signal(name)
            case words.Order(command=m.Stop(reason=reason)):
                self.stop(reason)

    def stop(self, reason: str) -> bool:
        """Order a stop with a checkpoint, once for all ranks. Return whether it was accepted.

        The loops of all ranks may ask for it at the same step, and a second order would be refused.
        """
        with self._stopping:
            self._stops = self._stops or super().stop(reason)
            return self._stops

    def _through_losses(self, drive: Callable[[Trainer], Steps]) -> Steps:
        yield from self._serve(drive)

    def _lost(self) -> NoReturn:
        raise RunFailed("the recorder ended without a word, and so do all ranks; what is recorded stays")

    def _train(self, order: words.Train, descriptors: list[int], drive: Callable[[Trainer], Steps]) -> Steps:
        self._crew.train(order)
        yield from super()._train(order, descriptors, drive)

    def _end_over(self, sock: socket.socket, page: Page) -> TrainerEnd:
        return LeaderEnd(sock, page, self._crew)

    def _trainer(self, channel: TrainerEnd, ring: int | None) -> Trainer:  # noqa: ARG002 - there are no snapshots
        page = self._crew.page
        group = Leader(page, LeaderPoints(page), self._crew.check)
        group.clock.watch(wrapper_of(self._setup.model))
        ranks = RanksOfLeader(group, self._crew.pieces, stepper_of_ranks(self._stepper, *self.group))
        return Trainer(self._setup, channel, self._run_dir, self._run_id, stepper=self._stepper, makers=ranks)

    def _hear_over(self, over: words.Over) -> None:
        self._crew.tell_over(over)

    def _close(self) -> None:
        super()._close()
        if hasattr(self, "_crew"):
            self._crew.close()


def stepper_of_ranks(stepper: type[Stepper] | None, mapping: int | None, waiting: Callable[[], None]) -> Any:
    """Return what makes the steps of a rank: those of a loop, or of `train`, for which `stepper` is None."""
    if stepper is not None:
        return StepperOfRanks
    from tolariad.trainer.ranks.leaf_steps import StepperOfSharedLeaves

    return partial(StepperOfSharedLeaves, mapping=mapping, waiting=waiting)


def built(setup: Setup) -> dict[str, str]:
    """Return what must be equal on all ranks, by the name that a user knows. Raises SetupRefused."""
    if setup.garden.plots:
        raise SetupRefused(
            "the model has slots for seeds, and several ranks cannot grow them yet: pass it without slots "
            "(docs/ranks.md)"
        )
    environment, train = setup.environment, setup.train
    values = {
        "the model (parameters, buffers and their shapes)": environment.model_hash[:12],
        "the optimizer": environment.optimizers,
        "the number of batches in an epoch": str(train.batches),
        "the batches of a step": str(setup.settings.accumulate),
        "the version of torch": environment.torch,
        "the number of torch's threads": str(environment.threads),
        "the kind of device": setup.device.type,
    }
    if setup.settings.parallel.exact:
        # Each rank reads its own batches and gets the gradients of all: no later step would show what differs here.
        values["the first items of the data"] = blake3(repr(environment.data[:1]).encode()).hexdigest()[:12]
        values["the model as it was built"] = f"{digesting(tensors_of(setup)).read().whole:016x}"
    return values
