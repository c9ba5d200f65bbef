"""Draw twice, at the first start, what a resume would have to draw again. What differs is named before it matters.

The reading is in a forked child: counters, queues and files of this process stay as they are. Two items are read in one
order and then in the other, under the same seeds: a resume reads an item after other items. The first indices of the
order are drawn twice from the same state of the sampler.

Promises: at most two seconds, and waits for a processor. Data that repeat themselves lead to no word. Data that draw
from entropy, the clock, a counter or a queue are named, with the field that differs.
"""

from __future__ import annotations

import copy
import math
import re
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple

import torch

from tolariad.trainer.checkpoints.tree import decode_tree, encode_tree, made
from tolariad.trainer.data.carriers import Seeder
from tolariad.trainer.data.feed import Bearing, Finding, length_of
from tolariad.trainer.data.findings import in_a_thread, keeps_draws
from tolariad.trainer.data.fingerprint import hash_of_value, item_of
from tolariad.trainer.data.forked import Send, said_by_child
from tolariad.trainer.data.held import held_by
from tolariad.trainer.data.order import Drawn
from tolariad.trainer.data.own_state import OF_DATA, Moved, OwnState
from tolariad.trainer.data.randomness import derived_seed
from tolariad.trainer.data.sources import Source, is_known, reads_ahead
from tolariad.trainer.data.walk import WHOLE, Place, threads_that_may_draw

_LIMIT_S: Final = 2.0
_ORDER_S: Final = 0.3
_INDICES_MAX: Final = 10_000
_STREAMED: Final = 3
# The number of an item whose seed no other one had.
_OTHER: Final = 1000
# What torch's data pipes note themselves while they are iterated over, and begin anew.
_PIPES_OWN: Final = re.compile(
    r"\._(valid_iterator_id|number_of_samples_yielded|snapshot_state|fast_forward_iterator|buffer|seed)(\[.*\])?$"
)
_FIELDS_MAX: Final = 64
_DEPTH_MAX: Final = 6
_AT_END: Final = {("", ""): "at its end"}
_ADVICE: Final = "Draw from random, numpy.random, torch, or a generator that the data set holds"


class Subject(NamedTuple):
    """The data to check.

    * `order`: the state that decides the order.
    * `shared`: the `id`s of generators that are not seeded for the check.
    * `keeper`: the object whose `state_dict` says how far the data are, or None.
    * `is_kept`: an order that cannot be drawn again is stored.
    """

    data: Any
    sources: Sequence[Source]
    order: OwnState
    shared: set[int]
    keeper: Any
    is_kept: bool


class Checked(NamedTuple):
    """The findings. `draws_otherwise`: the order cannot be drawn again. `warms`: reading these makes a generator."""

    findings: list[Finding]
    draws_otherwise: bool
    warms: tuple[int | str, ...]


def checked(subject: Subject, ignored: Sequence[str]) -> Checked:
    """Check the data. `ignored`: fields of an item that nobody trains on."""
    if is_known(subject.data):
        return Checked([], draws_otherwise=False, warms=())
    begun = time.monotonic()
    said: list[dict[str, Any]] = list(said_by_child(lambda send: _try(subject, send), _LIMIT_S))
    later = [one for one in said if one["part"] == "later"]
    if later and (left := begun + _LIMIT_S - time.monotonic()) > 0.0:
        said += said_by_child(lambda send: _try_anew(subject, later, send), left)
    findings = [finding for one in said for finding in _findings_of(one, subject, ignored)]
    if not any(one["part"] == "done" for one in said):
        words = (
            f"whether the data repeat themselves was not checked: reading a few items takes over {_LIMIT_S:g} s, or "
            "ends the process"
        )
        findings.append(Finding(Bearing.NOTED, words))
    return Checked(
        findings,
        draws_otherwise=any(one["part"] == "order" for one in said),
        warms=tuple(one["index"] for one in said if one["part"] == "warms"),
    )


def _findings_of(one: dict[str, Any], subject: Subject, ignored: Sequence[str]) -> Iterator[Finding]:
    match one["part"]:
        case "order":
            kept = (
                "The order of an epoch is drawn at its beginning and stored in checkpoints, so a resume within an "
                "epoch is exact; the orders of later epochs will be others. "
            )
            words = (
                f"the sampler ({one['kind']}) draws another order when it is asked again from the same state, from "
                f"batch {one['batch']} on: a resumed run will see another order. {kept if subject.is_kept else ''}Draw "
                "from random, numpy.random, torch, or a generator that the sampler holds"
            )
            yield Finding(Bearing.INEXACT, words)
        case "item" | "stream" | "collate":
            for path, name in one["differs"]:
                if name in ignored:
                    continue
                what = {"item": f"item {one['index']}", "stream": f"item {one['index']} of the stream"}
                of = f"{what.get(one['part'], 'a collated batch')}{path}"
                hint = f" If it is not trained on: data.ignore: [{name}]" if name else ""
                words = (
                    f"{of} differs when it is read again under the same seed: a resumed run will see other data. "
                    f"{_ADVICE}.{hint}"
                )
                yield Finding(Bearing.INEXACT, words)
                return
        case "kept":
            differs = [(path, name) for path, name in one["differs"] if name not in ignored]
            if differs:
                yield keeps_draws(f"item {one['index']}{differs[0][0]}")
        case "state":
            path, _ = one["differs"][0]
            words = (
                f"the data do not come back by their own state: {type(subject.keeper).__qualname__}.load_state_dict() "
                f"with what state_dict() gave is followed by other items (item {one['index']}{path} after it differs). "
                "A resumed run will see other data. Put into the state all that decides what comes next, such as "
                "generators and buffers"
            )
            yield Finding(Bearing.INEXACT, words)
        case "moved" if any(source.is_stream and source.is_persistent for source in subject.sources):
            words = (
                f"the stream keeps a state of its own ({', '.join(one['paths'][:3])}) in workers that live on: it is "
                "in no checkpoint, so after a resume the epochs that follow will be others. Use persistent_workers="
                "False, or no workers and a stream with state_dict() and load_state_dict()"
            )
            yield Finding(Bearing.INEXACT, words)
        case "thread":
            yield in_a_thread()
        case "device":
            words = "the items lie on a device: whether they repeat themselves is not checked, and no step has a digest"
            yield Finding(Bearing.NOTED, words)


# -- in the child ------------------------------------------------------------------------------------------------------


def _try(subject: Subject, send: Send) -> None:
    for number, source in enumerate(subject.sources):
        dataset = source.loader.dataset
        held = held_by(dataset, source.loader.collate_fn)
        seeder = Seeder(one for one in held if id(one) not in subject.shared)
        # Generators are seeded before each item, so that they move does not matter.
        before = OwnState(partial(_root, dataset), OF_DATA, leaves_out=lambda _: True)
        if not source.is_stream:
            if indices := _try_order(source, subject.order, send):
                _Items(source, seeder, before, send).compare(indices, number)
        elif subject.keeper is None:
            _try_stream(dataset, seeder, before, send)
        elif subject.keeper is dataset:
            _try_own_state(dataset, dataset, seeder, send)
        moved = [path for path in before.differing({}) if not _PIPES_OWN.search(path)]
        if moved:
            send({"part": "moved", "paths": moved})
    if not subject.sources and subject.keeper is None:
        _try_stream(subject.data, Seeder(), subject.order, send)
    if subject.keeper is subject.data and not any(source.loader.num_workers for source in subject.sources):
        _try_own_state(subject.data, subject.keeper, Seeder(), send)
    send({"part": "done"})


def _root(dataset: Any) -> list[Place]:
    return [Place("dataset", dataset)]


def _try_order(source: Source, order: OwnState, send: Send) -> list[Any]:
    """Draw the first indices twice. Return two of them."""
    first = list(_drawn(source, _INDICES_MAX))
    order.restore({})
    again = list(_drawn(source, len(first), seconds=math.inf))
    found = next((n for n, (a, b) in enumerate(zip(first, again, strict=False)) if _marked(a) != _marked(b)), None)
    if found is None and len(again) < len(first):
        found = len(again)
    if found is not None:
        indices = source.indices
        inner = getattr(indices, "sampler", indices)
        send({"part": "order", "kind": type(inner).__qualname__, "batch": found + 1})
    return _two_of(source, first)


def _two_of(source: Source, first: list[Drawn]) -> list[Any]:
    is_batched = source.loader.batch_sampler is not None
    flat = [index for one in first[:_STREAMED] for index in (one.value if is_batched else [one.value])]
    different = [index for index in flat if repr(index) != repr(flat[0])]
    return [flat[0], (different or flat)[-1]] if flat else []


def _drawn(source: Source, limit: int, seconds: float = _ORDER_S) -> Iterator[Drawn]:
    source.begin(1)
    source.begin_drawing(1)
    give_up = time.monotonic() + seconds
    for one in islice(source.order.draws(), limit):
        yield one
        if one.first > _INDICES_MAX or time.monotonic() > give_up:
            return


def _marked(one: Drawn) -> int:
    plain = one.value.tolist() if hasattr(one.value, "tolist") else one.value
    return zlib.crc32(repr(plain).encode("utf-8", "replace"))


class _Items:
    """Reads items of one data set."""

    def __init__(self, source: Source, seeder: Seeder, before: OwnState, send: Send) -> None:
        """`before`: the state of the data set, which is put back after a resume too if there are no workers."""
        self._loader, self._seeder, self._before, self._send = source.loader, seeder, before, send

    def read(self, index: Any, number: int) -> dict[tuple[str, str], str]:
        """Return the hashes of an item under the seed of this number."""
        self._seeder.seed(derived_seed(0, "check", number))
        return _fields_read(lambda: item_of(self._loader.dataset, index))

    def compare(self, indices: list[Any], source: int) -> None:
        """Read two items twice, and say what differs. `source`: the number of the data set."""
        (a, b), read, loader, seeder = indices, self.read, self._loader, self._seeder
        if "device" in {name for _, name in read(a, 0)}:
            self._send({"part": "device"})
            return
        known = {id(one) for one in seeder.held}
        new = [one for one in held_by(loader.dataset, loader.collate_fn) if id(one) not in known]
        warms = bool(new) and isinstance(a, (int, str))
        if warms:
            self._send({"part": "warms", "index": a})
            seeder.hold((*seeder.held, *new))
        if self._come_back():
            first_a, first_b = read(a, 0), read(b, 1)
            self._come_back()
            again_a, again_b = read(a, 0), read(b, 1)
        else:
            first_a, first_b, again_b, again_a = read(a, 0), read(b, 1), read(b, 1), read(a, 0)
        for index, one, other in ((a, first_a, again_a), (b, first_b, again_b)):
            if differs := _differing(one, other):
                self._send({"part": "item", "index": repr(index)[:40], "differs": differs})
                return
        if loader.batch_sampler is not None:
            one, other = self._collated(a, b), self._collated(a, b)
            if differs := _differing(one, other):
                self._send({"part": "collate", "index": "", "differs": differs})
        if not warms and (loader.persistent_workers or not loader.num_workers):
            self._come_back()
            read(a, 0), read(b, 1)
            moved = b"" if loader.num_workers else encode_tree(self._kept(), "state")[0]
            fields = [[*key, value] for key, value in read(a, _OTHER).items()]
            self._send({"part": "later", "source": source, "index": repr(a), "moved": moved, "fields": fields})

    def _kept(self) -> Moved:
        """Return the state that a checkpoint will hold: not the entries of what grows with the data set."""
        moved = self._before.moved()
        if (length_of(self._loader.dataset) or WHOLE + 1) <= WHOLE:
            return moved
        return {path: leaf for path, leaf in moved.items() if not path.endswith("]")}

    def _collated(self, *indices: Any) -> dict[tuple[str, str], str]:
        self._come_back()
        self._seeder.seed(derived_seed(0, "check", 2))
        dataset, collate = self._loader.dataset, self._loader.collate_fn
        return _fields_read(lambda: collate([item_of(dataset, index) for index in indices]))

    def _come_back(self) -> bool:
        """Put the state back, as a resume does. Workers have copies, whose state is in no checkpoint."""
        if self._loader.num_workers:
            return False
        self._before.restore({})
        return True


def _try_anew(subject: Subject, later: Sequence[Mapping[str, Any]], send: Send) -> None:
    """Read, in a new process, an item that was read after others. What the data keep is drawn anew here."""
    for one in later:
        source = subject.sources[one["source"]]
        held = held_by(source.loader.dataset, source.loader.collate_fn)
        seeder = Seeder(each for each in held if id(each) not in subject.shared)
        before = OwnState(partial(_root, source.loader.dataset), OF_DATA, leaves_out=lambda _: True)
        for index in _two_of(source, list(_drawn(source, _STREAMED)))[:1]:
            if repr(index) != one["index"]:
                continue
            if one["moved"]:
                before.restore(made(decode_tree(one["moved"], {}), torch.device("cpu")))
            now = _Items(source, seeder, before, send).read(index, _OTHER)
            then = {(path, name): value for path, name, value in one["fields"]}
            if differs := _differing(then, now):
                send({"part": "kept", "index": repr(index)[:40], "differs": differs})


def _try_stream(data: Any, seeder: Seeder, before: OwnState, send: Send) -> None:
    alone = threads_that_may_draw()
    iterator = _begun(data, seeder)
    begun = threads_that_may_draw()
    first = _streamed(iterator, seeder)
    is_read_ahead = max(begun, threads_that_may_draw()) > alone
    before.restore({})
    _compare("stream", first, _streamed(_begun(data, seeder), seeder), send)
    if is_read_ahead:
        before.restore({})
        _tell_draws(first, data, seeder, send)


def _try_own_state(data: Any, keeper: Any, seeder: Seeder, send: Send) -> None:
    """Go on after a few items, and then once more from the state that was said at that place."""
    alone = threads_that_may_draw()
    iterator = _begun(data, seeder)
    begun = threads_that_may_draw()
    _streamed(iterator, seeder)
    # A state may hold what the data change later.
    state = copy.deepcopy(keeper.state_dict())
    rest = _streamed(iterator, seeder, _STREAMED)
    keeper.load_state_dict(state)
    rest = rest[: rest.index(_AT_END)] if _AT_END in rest else rest
    if max(begun, threads_that_may_draw()) > alone:
        keeper.load_state_dict(copy.deepcopy(state))
        _tell_draws(rest, data, seeder, send)
        keeper.load_state_dict(state)
    again = _begun(data, seeder, _STREAMED + 1 if reads_ahead(data) else 0)
    _compare("state", rest, _streamed(again, seeder, _STREAMED)[: len(rest)], send)


def _tell_draws(items: list[dict[tuple[str, str], str]], data: Any, seeder: Seeder, send: Send) -> None:
    """Say if items that a thread of the data reads ahead depend on the seed: nobody knows which one is set then."""
    if items != _streamed(_begun(data, seeder, _OTHER), seeder, _OTHER)[: len(items)]:
        send({"part": "thread"})


def _begun(data: Any, seeder: Seeder, number: int = 0) -> Iterator[Any]:
    """Make the iterator. `number`: the item that it reads already."""
    seeder.seed(derived_seed(0, "check", number))
    return iter(data)


def _streamed(iterator: Iterator[Any], seeder: Seeder, after: int = 0) -> list[dict[tuple[str, str], str]]:
    """Read a few items, each under its seed."""
    found = []
    for number in range(after + 1, after + _STREAMED + 1):
        seeder.seed(derived_seed(0, "check", number))
        found.append(_fields_read(lambda: next(iterator)))
    return found


def _compare(part: str, first: list[dict[tuple[str, str], str]], again: list[Any], send: Send) -> None:
    for number, (one, other) in enumerate(zip(first, again, strict=True), 1):
        if differs := _differing(one, other):
            send({"part": part, "index": str(number), "differs": differs})
            return


def _fields_read(read: Callable[[], Any]) -> dict[tuple[str, str], str]:
    """Return the hash of each field of what is read, by its words and its name."""
    try:
        value = read()
    except StopIteration:
        return _AT_END
    except Exception as error:  # noqa: BLE001 - an item may raise anything, each time the same
        if "CUDA" in str(error) or "device" in type(error).__name__.lower():
            return {("", "device"): ""}
        return {("", ""): f"raises {type(error).__name__}"}
    return dict(islice(_fields(value, "", "", 0), _FIELDS_MAX))


def _fields(value: Any, path: str, name: str, depth: int) -> Iterator[tuple[tuple[str, str], str]]:
    if isinstance(value, torch.Tensor) and value.device.type not in ("cpu", "meta"):
        yield (path, "device"), ""
    elif isinstance(value, Mapping) and depth < _DEPTH_MAX:
        for key, one in islice(value.items(), _FIELDS_MAX):
            yield from _fields(one, f"{path}, field {key!r}", str(key), depth + 1)
    elif isinstance(value, (list, tuple)) and depth < _DEPTH_MAX:
        names = getattr(value, "_fields", ())
        for number, one in enumerate(value[:_FIELDS_MAX]):
            label = names[number] if number < len(names) else ""
            words = f", field {label!r}" if label else f", element {number}"
            yield from _fields(one, f"{path}{words}", label or name, depth + 1)
    else:
        yield (path, name), hash_of_value(value)


def _differing(one: dict[tuple[str, str], str], other: dict[tuple[str, str], str]) -> list[tuple[str, str]]:
    return [key for key in {**one, **other} if one.get(key) != other.get(key)]
