"""The call of `run` in a rank that is not 0: the same trainer code, over the orders of rank 0."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from msgspec.structs import replace

from tolariad.attach import words
from tolariad.channel.points import FollowerPoints
from tolariad.channel.rank_ends import FollowerEnd
from tolariad.daemon.children import kept_from_children
from tolariad.library.attached import Attached
from tolariad.library.crew import RankLost
from tolariad.library.joined import Joined
from tolariad.library.leading import built, stepper_of_ranks
from tolariad.library.ranks import wrapper_of
from tolariad.refusal import StartRefused
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.loop import Trainer
from tolariad.trainer.process.lifecycle import End, Steps, steps_through
from tolariad.trainer.ranks.following import RanksOfFollower
from tolariad.trainer.ranks.group import Follower
from tolariad.trainer.setup import Place


class Following(Attached):
    """One call of `run` in a rank that is not 0."""

    _joined: Joined

    @classmethod
    def of(cls, place: Place) -> type[Attached]:
        """Return the class for this place."""
        return type("FollowingHere", (cls,), {"_place": place})

    def _met(self, hello: words.Hello) -> Joined:
        self._joined = Joined(Path(hello.run_dir), self._place, self._say)
        self.group = self._joined.mapping, self._joined.check
        return self._joined

    def _say(self, text: str) -> None:
        self._saying.note(text)

    def _build(self, task: Any, *, accept_data: bool) -> None:  # noqa: ARG002 - rank 0 compares the data
        """Build, and wait until all ranks have built the same. Raises StartRefused, SetupRefused."""
        try:
            super()._build(task, accept_data=True)
            own = built(self._setup)
        except (StartRefused, SetupRefused) as refused:
            self._joined.refuse(str(refused))
            raise
        self._joined.agree(own)

    def _through_losses(self, drive: Callable[[Trainer], Steps]) -> Steps:
        yield from self._serve(drive)

    def _lost(self) -> NoReturn:
        self._joined.check()
        raise RankLost("rank 0 has ended")

    def _train(self, _: words.Train, __: list[int], drive: Callable[[Trainer], Steps]) -> Steps:
        """Run one trainer in this thread until rank 0 ends it."""
        joined = self._joined
        group = Follower(joined.page, FollowerPoints(joined.page, self._place.rank), joined.check)
        group.clock.watch(wrapper_of(self._setup.model))
        channel = FollowerEnd(joined, lambda: group.limit, group.wait)
        ranks = RanksOfFollower(group, joined.give, stepper_of_ranks(self._stepper, *self.group))

        def trainer() -> Trainer:
            return Trainer(self._setup, channel, self._run_dir, self._run_id, stepper=self._stepper, makers=ranks)

        self._channel, was_told = channel, False
        try:
            with kept_from_children(self._run_dir, joined.descriptor, joined.page.descriptor):
                ending = yield from steps_through(trainer, channel, drive)
                was_told = ending.end is End.TOLD
        finally:
            self._figures = replace(self._figures, values=self.figures())
            self._channel = None
            self._has_left, self._has_trained = not was_told, True
            channel.close()
            channel.page.close()
        if ending.error is not None:
            raise ending.error
