"""A feed over anything that is iterated: a loader of torch's, one of the user's own, or any other iterable.

A checkpoint within an epoch has the state of the objects that decide the order, at the epoch's begin and now. It also
has the indices drawn ahead. A resume puts the begin back, comes to the place again, and puts the present back. It comes
there by drawing indices only, by loading batches and dropping them, or by the data's own state.

Promises: a resume gives the batches that would have come without the interruption, or adds to `findings` why it may
not. No process-wide generator is changed. What the user's objects hold is changed in place.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final
from weakref import ref

from torch.utils.data import DataLoader

from tolariad.trainer.data import findings
from tolariad.trainer.data.carriers import iterator_seed
from tolariad.trainer.data.digest import digest_of
from tolariad.trainer.data.draws import hidden_draws
from tolariad.trainer.data.feed import Feed, Return, length_of
from tolariad.trainer.data.first_start import Subject, checked
from tolariad.trainer.data.held import held_by, shared_with, with_set_epoch
from tolariad.trainer.data.leaves import same
from tolariad.trainer.data.order import DrawnSoFar
from tolariad.trainer.data.own_state import OF_DATA, OF_ORDER, Moved, OwnState, is_shared
from tolariad.trainer.data.past import PastEpoch, draw_again
from tolariad.trainer.data.randomness import preserved_host_rng, seed_host, seeds_of
from tolariad.trainer.data.share import ELSEWHERE
from tolariad.trainer.data.sources import RebuiltSource, Source, SwappedSource
from tolariad.trainer.data.walk import Place
from tolariad.trainer.data.workers import warm_up
from tolariad.trainer.torch_private.loaders import shut_down

# Of so many epochs the state at their begin is remembered: one that begins once more is the same again.
_BEGINS_MAX: Final = 4


class IteratedFeed(Feed):
    """Data that are iterated over once in each epoch."""

    def __init__(self, data: Any, rng_seed: int, sources: Sequence[Source], back: Return, keeper: Any = None) -> None:
        super().__init__()
        self._data, self._rng_seed, self._sources, self._back = data, rng_seed, sources, back
        # What says by `state_dict` where the data are.
        self._keeper = keeper
        self.batches = length_of(data)
        self._order = OwnState(self._order_roots, OF_ORDER, self._data_objects, leaves_out=self._is_librarys)
        self._shared: set[int] = set()
        self._held_state = OwnState(self._data_roots, OF_DATA, leaves_out=lambda one: id(one) not in self._shared)
        # The epoch that is being iterated, its begin, and how many of its batches were taken; 0 between two epochs.
        self._epoch = self._taken = 0
        # The batches that `epoch` returned last, while somebody holds them.
        self._running: Callable[[], Generator[Any] | None] = lambda: None
        self._begin: tuple[Moved, Moved] = ({}, {})
        self._seen = 0
        self._begins: dict[int, tuple[Moved, Moved]] = {}
        self._resumed: dict[str, Any] | None = None
        # The epochs before, of a sampler that holds an iterator, and whether this process has drawn any.
        self._past: list[PastEpoch] = []
        self._has_drawn = False
        self._lasting: dict[str, Any] = {}  # the iterators that the data held at the end of the epoch before
        # The state of the data set when workers that live on were started, and told the epoch.
        self._at_start: Moved = {}
        # Items that are read first in each process: reading one makes a generator.
        self._warms: tuple[int | str, ...] = ()
        self._is_warm = False
        # Its order is drawn at an epoch's beginning, and stored.
        self._is_whole = self._order.holds_model and back is Return.BY_INDEX

    # -- the user's objects --------------------------------------------------------------------------------------------

    def _order_roots(self) -> Iterable[Place]:
        if self._back is not Return.BY_STATE:
            yield Place("data", self._data)
        elif isinstance(self._data, DataLoader):
            # The loader itself says its state; these it does not know.
            yield Place("sampler", self._sources[0].indices)
            yield Place("generator", self._data.generator)

    def _is_librarys(self, generator: Any) -> bool:
        return any(generator is source.library_generator for source in self._sources)

    def _data_objects(self) -> list[Any]:
        return [one for source in self._sources for one in (source.loader.dataset, source.loader.collate_fn)]

    def _data_roots(self) -> Iterable[Place]:
        for number, source in enumerate(self._sources):
            label = f" {number + 1}" if number else ""
            yield Place(f"dataset{label}", source.loader.dataset)
            yield Place(f"collate_fn{label}", source.loader.collate_fn)

    def _has_moved(self) -> tuple[Moved, Moved]:
        return self._order.moved(), self._held_state.moved()

    def share(self, training: Iterable[Any]) -> None:
        """Leave the generators alone that the training holds too. Their state is then a part of checkpoints."""
        self._shared = shared_with(training, self._data_objects())

    def check(self, ignored: Sequence[str]) -> None:
        """Draw twice what a resume would have to draw again, in a child, and add what differs to `findings`."""
        subject = Subject(
            self._data,
            self._sources,
            self._order,
            self._shared,
            keeper=self._keeper,
            is_kept=self._back is Return.BY_INDEX,
        )
        found = checked(subject, ignored)
        self.findings += found.findings
        self._warms = found.warms
        if found.draws_otherwise and subject.is_kept:
            self._is_whole = True
        elif self._is_whole:
            self.found(findings.holds_model())
        if any(source.loader.num_workers and not getattr(source.loader, "in_order", True) for source in self._sources):
            self.found(findings.in_no_order())
        if not all(source.can_end_workers for source in self._sources):
            self.found(findings.workers_stay())
        if self._order.iterators and not subject.is_kept:
            self.found(findings.holds_iterator(self._order.iterators))

    # -- an epoch ------------------------------------------------------------------------------------------------------

    def epoch(self, epoch: int, start: int) -> Iterator[Any]:
        """Yield the batches of `epoch` after the first `start`."""
        self._leave()
        resumed, self._resumed = self._resumed, None
        if resumed is not None and (resumed["epoch"], resumed["taken"]) != (epoch, start):
            resumed = None
        with preserved_host_rng():
            self._prepare(epoch, start, resumed)
            iterator = iter(()) if resumed is not None and self._was_at_end(resumed) else self._iterator_over(epoch)
            if resumed is not None and self._back is Return.BY_INDEX:
                # Workers have copies of the data set as it was at the epoch's begin.
                self._held_state.restore(resumed["now"][1])
        batches = self._batches(iterator, epoch)
        self._running = ref(batches)
        if self._back is Return.BY_LOADING and start:
            self._load_again(batches, epoch, start, resumed)
        return batches

    def _prepare(self, epoch: int, start: int, resumed: dict[str, Any] | None) -> None:
        """Bring the user's objects to the epoch's begin, and the orders to the place."""
        skips = self._back is Return.BY_INDEX
        for source in self._sources:
            source.go_on_after(start if skips else 0)
            source.warm_by(self._warms)
            if not self._is_warm:
                for index in () if source.loader.num_workers else self._warms:
                    warm_up(source.loader.dataset, index)
            held = held_by(source.loader.dataset, source.loader.collate_fn)
            source.seeder.hold(one for one in held if id(one) not in self._shared)
        self._is_warm = self._has_drawn = True
        self._begin_workers(epoch)
        known = resumed["begin"] if resumed is not None else self._begins.get(epoch)
        if known is None:
            for source in self._sources:
                source.begin_drawing(epoch)
            known = self._has_moved()
        else:
            for source in self._sources:
                if source.library_generator is not None:
                    source.begin_drawing(epoch)
            self._order.restore(known[0])
            self._held_state.restore(known[1])
        if resumed is not None:
            self._load_own(resumed["own"])
        self._epoch, self._taken, self._begin, self._seen = epoch, start, (known[0], known[1]), 0
        if self.batches is not None:
            # A length that is known only after a first iterator would be another one after a resume.
            self.batches = length_of(self._data)
        if epoch:
            self._begins[epoch] = self._begin
            while len(self._begins) > _BEGINS_MAX:
                del self._begins[next(iter(self._begins))]
        told = [DrawnSoFar(*one) for one in resumed["sources"]] if resumed is not None else []
        for number, source in enumerate(self._sources):
            source.begin(epoch)
            if number < len(told) and resumed is not None:
                by_state = self._back is Return.BY_STATE
                returned = partial(self._order.restore, resumed["now"][0]) if by_state else None
                source.order.resume(told[number], skip=start if skips else 0, redraw=skips, returned=returned)
            else:
                if self._is_whole and not source.order.draw_whole():
                    self._is_whole = False
                    self.found(findings.too_long())
                if skips:
                    source.order.skip(start)
        if resumed is not None and skips:
            self._judge(resumed, self._order.differing(resumed["now"][0]))
            self._order.restore(resumed["now"][0])

    def _tell_epoch(self, epoch: int) -> None:
        for one in with_set_epoch(self._data, *self._data_objects()):
            one.set_epoch(epoch)

    def _begin_workers(self, epoch: int) -> None:
        """Tell the epoch, and say if workers that live on do not see what has changed in the data set."""
        if not any(source.is_persistent for source in self._sources):
            self._tell_epoch(epoch)
            return
        lives = any(source.has_workers for source in self._sources)
        if lives and (changed := self._held_state.differing(self._at_start, is_shared)):
            self.found(findings.unseen_by_workers(changed))
        before = self._held_state.moved()
        self._tell_epoch(epoch)
        now = self._held_state.moved()
        # Workers are told the epoch too.
        told = {path: leaf for path, leaf in now.items() if not same(leaf, before.get(path))}
        self._at_start = {**self._at_start, **told} if lives else now

    def _was_at_end(self, _: dict[str, Any]) -> bool:
        """Return whether the data had no further batch, and begin their next epoch if they are asked for one."""
        return False

    def _judge(self, resumed: dict[str, Any], differing: list[str]) -> None:
        """Report an order that came out differently. `differing`: paths of state that is not as at the checkpoint."""
        if all(source.order.agrees is not False for source in self._sources):
            return
        place = f"epoch {resumed['epoch']}, {resumed['taken']} batches"
        is_beside = differing and all(source.order.counts_agree for source in self._sources)
        self.found(findings.order_moved(place, differing) if is_beside else findings.order_differs(place))

    def _iterator_over(self, epoch: int) -> Iterator[Any]:
        source = self._sources[0] if self._sources else None
        if isinstance(source, RebuiltSource):
            if source.fetching.of_stream and not source.loader.num_workers:
                source.seeder.seed(iterator_seed(self._rng_seed, epoch, 0))
            return source.iterator(epoch)
        if source is not None and not source.loader.num_workers:
            source.seeder.seed(iterator_seed(self._rng_seed, epoch, 0))
        else:
            seed_host(iterator_seed(self._rng_seed, epoch, 0))
        with self._in_place():
            return iter(self._data)

    def _in_place(self) -> ExitStack:
        stack = ExitStack()
        for source in self._sources:
            if isinstance(source, SwappedSource):
                stack.enter_context(source.in_place())
        return stack

    def _batches(self, iterator: Iterator[Any], epoch: int) -> Generator[Any]:
        """Yield the batches. The workers end with them, unless they go on with the next epoch."""
        seed, is_rebuilt = seeds_of(self._rng_seed, "batch", epoch), self._is_rebuilt
        try:
            while True:
                if self.is_elsewhere(self._taken):
                    self._taken += 1
                    yield ELSEWHERE
                    continue
                with preserved_host_rng(), self._in_place():
                    if not is_rebuilt:
                        seed_host(seed(self._taken + 1))
                    batch = next(iterator, self)
                if batch is self:
                    self._is_over(epoch)
                    return
                self._taken += 1
                if self._taken == 1:
                    self._look_at_draws()
                if self._back is not Return.BY_INDEX:
                    self._seen = digest_of((self._seen, batch))
                yield batch
        finally:
            if not any(source.is_persistent for source in self._sources):
                shut_down(iterator)

    def _look_at_draws(self) -> None:
        """Say if a first batch came in a way that a resume cannot repeat. torch's lasting iterators begin anew."""
        now = self._order.running() if self._lasting else {}
        room = DataLoader.__module__ if any(source.is_persistent for source in self._sources) else ""
        lasting, self._lasting = self._lasting, {}
        if paths := [path for path, one in now.items() if lasting.get(path) is one and type(one).__module__ != room]:
            self.found(findings.holds_iterator(paths))
        for finding in hidden_draws(self._data, self._sources):
            self.found(finding)

    def _leave(self) -> None:
        """End an epoch that was left before its end, also if somebody still holds its batches."""
        if (running := self._running()) is not None:
            running.close()

    def _is_over(self, epoch: int) -> None:
        self._epoch = self._taken = 0
        self._lasting = self._order.running() if self._back is Return.BY_LOADING else {}
        if self._order.iterators and self._back is Return.BY_INDEX and epoch:
            order = self._sources[0].order
            self._past.append(PastEpoch(epoch, order.drawn, order.digest))

    @property
    def _is_rebuilt(self) -> bool:
        return bool(self._sources) and isinstance(self._sources[0], RebuiltSource)

    def _load_again(self, batches: Iterator[Any], epoch: int, start: int, resumed: dict[str, Any] | None) -> None:
        """Load the first batches of the epoch, drop them, and put the state of the checkpoint back."""
        self._taken = 0
        for _ in range(start):
            self._beat()
            if next(batches, self) is self:
                break
        if resumed is None:
            return
        if self._taken != start or (resumed["seen"] and self._seen != resumed["seen"]):
            self.found(findings.batches_differ(epoch, start))
        else:
            self._judge(resumed, self._order.differing(resumed["now"][0]))
        self._order.restore(resumed["now"][0])
        self._held_state.restore(resumed["now"][1])

    @contextmanager
    def untouched(self) -> Iterator[None]:
        """Put the state of the order back after the block: a validation is the same each time, and leaves no trace."""
        before = self._order.moved()
        try:
            yield
        finally:
            self._order.restore(before)

    # -- a checkpoint --------------------------------------------------------------------------------------------------

    def state(self) -> Any:
        """Return what a resume needs: the state of the user's objects, and within an epoch the place in the orders."""
        if self._resumed is not None:
            return self._resumed
        now = self._has_moved()
        common = {
            "now": now,
            "marks": self._order.marks(),
            "whole": self._is_whole,
            "warms": self._warms,
            "past": [tuple(one) for one in self._past],
        }
        if not self._epoch:
            return {**common, "epoch": 0, "taken": 0, "begin": ({}, {}), "sources": [], "seen": 0, "own": self._own()}
        after = self._taken if self._back is Return.BY_INDEX else -1
        return {
            **common,
            "epoch": self._epoch,
            "taken": self._taken,
            "begin": self._begin,
            "sources": [tuple(source.order.so_far(after)) for source in self._sources],
            "seen": self._seen,
            "own": self._own(),
        }

    def _own(self) -> Any:
        """Return the state that the data say themselves."""
        return None

    def _load_own(self, state: Any) -> None:
        """Restore what `_own` returned."""

    def load_state(self, state: Any) -> None:
        """Restore what `state` returned. Between two epochs at once, else when the epoch begins."""
        self._epoch = self._taken = 0
        self._begins.clear()
        if state is None:
            return
        self._is_whole, self._warms = state["whole"], tuple(state["warms"])
        self._come_back([PastEpoch(*one) for one in state["past"]])
        if otherwise := self._order.built_otherwise(state["marks"], state["now"][0]):
            self.found(findings.built_otherwise(otherwise))
        if state["epoch"]:
            self._resumed = state
        else:
            self._order.restore(state["now"][0])
            self._held_state.restore(state["now"][1])
            self._load_own(state["own"])

    def _come_back(self, past: list[PastEpoch]) -> None:
        """Bring an iterator that the sampler holds to the place after these epochs."""
        self._past = past
        if not self._order.iterators or self._back is not Return.BY_INDEX:
            return
        why = "this process has drawn from it already"
        if not self._has_drawn:
            with preserved_host_rng():
                why = draw_again(self._sources[0], past, self._tell_epoch)
        if why:
            self.found(findings.iterator_is_lost(self._order.iterators, why))

    def end_workers(self) -> None:
        """End all workers: those of an epoch that was left, and those that wait for the next one."""
        self._leave()
        for source in self._sources:
            source.end_workers()

    def load_ahead(self, batches: int | None) -> None:
        """Let each worker load so many batches ahead, from the next epoch on. None: as many as the loader says."""
        for source in self._sources:
            source.load_ahead(batches)
