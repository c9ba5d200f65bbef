"""Why something happened: the chain of causes back to its beginning, and what the event led to.

Promises: it follows the events' own fields (`cause`, `root`) and guesses nothing. A search is bounded, and the answer
says if it stopped early.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

import msgspec

from journal import JournalEntry
from journal.reader import Reader
from tolariad.core import state as st
from tolariad.core.calc.steps.table import is_step
from tolariad.core.messages.vocabulary import EVENT_TYPES
from tolariad.forensics.level import Level
from tolariad.forensics.links import Link, causes_of, entry_at, link_of
from tolariad.forensics.moment import state_at
from tolariad.forensics.positions import JournalPosition, PositionKind
from tolariad.forensics.rank_fates import Fate, fates_of
from tolariad.forensics.slowness import StepTimes
from tolariad.forensics.surroundings import (
    consequences_of,
    ended_before,
    kept_around,
    level_of,
    shortly_before,
    until,
)
from tolariad.forensics.timeline import (
    Brief,
    Query,
    backwards,
    brief,
    decode_fields,
    entry_of_step,
    first_at,
    number_in,
    up_to,
)
from tolariad.forensics.topics import ENDED_BY, JUDGE, NEVER, TOPICS

_MEASURED: Final = "BudgetsMeasured"


class NoAnswer(LookupError):
    """No event of the journal fits the topic."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The causes and consequences of one event.

    * `causes`: the chain from its root to the direct cause of `event`. For a judgement of masks, the events by which
      these masks came to act stand before it.
    * `after`: for a start, the event that ended the process before it.
    * `consequences`: the events that `event` led to, in order.
    * `searched_all`: False if the search stopped early, so that there may be more consequences.
    * `skipped`: for a step, the batches that were passed over before it.
    * `ended`: for a state such as a pause, the event that ended it, after that event's causes.
    * `around`: for the topic `slow`, what happened shortly before. Nothing says that it is the cause.
    * `timed`: for the topics `slow` and `rank`, the newest times of several ranks.
    * `fates`: for the topic `rank`, each trouble of a rank.
    * `level`, `kept`: for an unusual step, loss and norm around it, and the checkpoints before and after it.
    """

    topic: str
    event: Link
    causes: tuple[Link, ...]
    consequences: tuple[Link, ...]
    searched_all: bool
    after: tuple[Link, ...] = ()
    skipped: tuple[Link, ...] = ()
    ended: tuple[Link, ...] = ()
    around: tuple[Link, ...] = ()
    timed: Link | None = None
    fates: tuple[Fate, ...] = ()
    level: Level | None = None
    kept: tuple[Link, ...] = ()


def why(reader: Reader, topic: str, *, position: JournalPosition | None = None, until_seq: int | None = None) -> Answer:
    """Explain a topic: a word of TOPICS, `seed:SLOT`, `phase`, a checkpoint's id, or an event type.

    With `position`, explain the event there. `until_seq`: ignore later events. Raises NoAnswer.
    """
    if topic == "slow":
        return _slower(reader, until_seq)
    fates = fates_of(reader, until_seq) if topic == "rank" and position is None else None
    if position is not None:
        entry = _at_position(reader, position)
    else:
        entry = entry_at(reader, fates.told) if fates is not None else _newest(reader, topic, until_seq)
    if entry is None:
        raise NoAnswer(_nothing(topic, by_then=until_seq is not None) + _instead(reader, topic, until_seq))
    event = link_of(entry)
    timed = entry_at(reader, fates.timed) if fates is not None else None
    causes = (*_judged(reader, event), *causes_of(reader, event))
    consequences, complete = consequences_of(reader, entry, until_seq)
    verified = _first_step_with(reader, event, until_seq)
    return Answer(
        topic=topic,
        event=event,
        causes=causes,
        after=ended_before(reader, event) if not causes else (),
        consequences=(*consequences, *verified),
        searched_all=complete,
        skipped=_skipped_before(reader, event),
        ended=_ended(reader, event, until_seq),
        timed=link_of(timed) if timed is not None else None,
        fates=fates.troubles if fates is not None else (),
        level=level_of(reader, event, until_seq),
        kept=kept_around(reader, event, until_seq),
    )


def _slower(reader: Reader, until_seq: int | None) -> Answer:
    """Return the first of the slower steps, with their times as `slower`, and what happened before it."""
    times = StepTimes()
    timed: Link | None = None
    for entry in up_to(reader.seek(seq=1), until_seq):
        if is_step(raw := bytes(entry.event)):
            times.take(raw)
        elif brief(entry.event).type == _MEASURED and (fields := decode_fields(entry.event)).get("ranks"):
            timed = Link(entry.seq, fields)
    found = times.slower()
    first = entry_of_step(reader, found.step) if found is not None else None
    if (found is None or first is None) and timed is not None:
        return Answer(topic="slow", event=timed, causes=(), consequences=(), searched_all=True, timed=timed)
    if found is None or first is None:
        then = until_seq is not None
        raise NoAnswer(_nothing("slow", by_then=then) + _instead(reader, "slow", until_seq))
    slower = {"before_s": found.before_s, "after_s": found.after_s, "factor": found.after_s / found.before_s}
    return Answer(
        topic="slow",
        event=Link(first.seq, {**decode_fields(first.event), "slower": slower}),
        causes=(),
        consequences=(),
        searched_all=True,
        around=shortly_before(reader, first.seq),
        timed=timed,
    )


def _instead(reader: Reader, topic: str, until_seq: int | None) -> str:
    """Return which topics have an answer, for one that has none."""
    if topic.partition(":")[0] not in TOPICS:
        return ""
    found = happened(reader, until_seq)
    return f". It has an answer for: {', '.join(found)}" if found else ""


def happened(reader: Reader, until_seq: int | None = None) -> dict[str, Link]:
    """Return the words of TOPICS that have an answer in this run, newest first, each with the event it explains."""
    newest: dict[str, Link] = {}
    kinds = {kind for types in TOPICS.values() for entry in types for kind in entry.split("|")}
    of_type: dict[str, list[str]] = {}
    for kind in kinds:
        of_type.setdefault(kind.partition(":")[0], []).append(kind)
    times = StepTimes()
    for entry in up_to(reader.seek(seq=1), until_seq):
        if is_step(raw := bytes(entry.event)):
            times.take(raw)
            continue
        told = brief(entry.event)
        fitting = [kind for kind in of_type.get(told.type, ()) if told.is_of(kind)]
        if fitting:
            link = link_of(entry)
            newest.update(dict.fromkeys(fitting, link))
    found: dict[str, Link] = {}
    for topic, types in TOPICS.items():
        for entry_types in types:
            if links := [newest[kind] for kind in entry_types.split("|") if kind in newest]:
                found[topic] = max(links, key=lambda link: link.seq)
                break
    if (slower := times.slower()) is not None and (first := entry_of_step(reader, slower.step)) is not None:
        found["slow"] = link_of(first)
    return dict(sorted(found.items(), key=lambda item: item[1].seq, reverse=True))


def is_topic(word: str) -> bool:
    """Return whether this is a word that `why` knows, or an event's type. A checkpoint's id depends on the run."""
    return word in TOPICS or word == "phase" or word.startswith("seed:") or word in EVENT_TYPES


def _nothing(topic: str, *, by_then: bool) -> str:
    then = "by then " if by_then else ""
    if topic == "lr":
        had = "had " if by_then else ""
        return f"{then}no order and no plateau {had}changed a rate of this run; only its schedules did"
    word, _, slot = topic.partition(":")
    if word == "seed" and slot:
        return (
            f"{then}no seed in slot {slot!r} moved, and no move was ordered; `tolaria seeds list` shows the slots. The "
            "default policy grows a seed if the loss stops improving; `tolaria why RUN strategy` shows the last answer"
        )
    if topic in TOPICS:
        return f"{then}this run {NEVER[topic]}; `tolaria why RUN phase` explains its phase"
    words = ", ".join(sorted(TOPICS))
    return f"no event fits {topic!r}; use seq:N, step:N, a checkpoint's id, an event type, or one of: phase, {words}"


def _at_position(reader: Reader, position: JournalPosition) -> JournalEntry | None:
    if position.kind is not PositionKind.STEP:
        return entry_at(reader, first_at(reader, position))
    # A step that was not made yet may have been tried.
    return entry_of_step(reader, position.value) or next(reversed(_skips(reader, position.value)), None)


def _skips(reader: Reader, step: int) -> list[JournalEntry]:
    """Return the batches that were passed over before the first record of a step, or since the last one."""
    found = []
    for entry in reader.seek(step=max(0, step - 1)):
        told = brief(entry.event)
        if told.type == "StepSkipped" and told.step == step:
            found.append(entry)
        elif told.type == "StepCompleted" and told.step is not None and told.step >= step:
            break
    return found


def _skipped_before(reader: Reader, event: Link) -> tuple[Link, ...]:
    step = number_in(event.fields, "step")
    if event.fields.get("type") != "StepCompleted" or step is None:
        return ()
    return tuple(link_of(one) for one in _skips(reader, step))


def _ended(reader: Reader, event: Link, until_seq: int | None) -> tuple[Link, ...]:
    """Return the event that ended what `event` began, after its causes; empty if it lasts."""
    types = ENDED_BY.get(str(event.fields.get("type")), ())
    if not types or event.seq == until_seq:
        return ()
    for entry in up_to(reader.seek(seq=event.seq + 1), until_seq):
        if brief(entry.event).type in types:
            end = link_of(entry)
            return (*(one for one in causes_of(reader, end) if one.seq > event.seq), end)
    return ()


def _first_step_with(reader: Reader, event: Link, until_seq: int | None) -> tuple[Link, ...]:
    """Return the record of the first step made with a changed rate. The kernel has checked its digest of the rates.

    The added field `verified` names group and rate. Empty if the group's rate changed again before that step.
    """
    step, verified = number_in(event.fields, "applied_before_step"), _rate_change(event.fields)
    if verified is None or step is None:
        return ()
    entry = entry_of_step(reader, step)
    if entry is None or (until_seq is not None and entry.seq > until_seq) or _changed_again(reader, event, entry.seq):
        return ()
    return (Link(entry.seq, {**decode_fields(entry.event), "verified": verified}),)


def _rate_change(fields: dict[str, Any]) -> dict[str, Any] | None:
    """Return group and rate if the event changed a rate, else None."""
    order = fields.get("order")
    if fields.get("type") == "OrderActed" and isinstance(order, dict) and order.get("type") == "SetRate":
        return {"group": order.get("group"), "rate": order.get("value")}
    if fields.get("type") == "PlateauReached":
        return {"group": fields.get("group"), "rate": fields.get("rate")}
    return None


def _changed_again(reader: Reader, event: Link, before_seq: int) -> bool:
    group = (_rate_change(event.fields) or {}).get("group")
    for entry in reader.seek(seq=event.seq + 1):
        if entry.seq >= before_seq:
            return False
        may_be = brief(entry.event).type in ("OrderActed", "PlateauReached")
        changed = _rate_change(decode_fields(entry.event)) if may_be else None
        if changed is not None and changed["group"] == group:
            return True
    return False


def _newest(reader: Reader, topic: str, until_seq: int | None) -> JournalEntry | None:
    query = until(until_seq) if until_seq is not None else Query()

    def first(wanted: Callable[[Brief], bool]) -> JournalEntry | None:
        return next((one for one in backwards(reader, query) if wanted(brief(one.event))), None)

    def newest_of(types: Collection[str]) -> JournalEntry | None:
        return first(lambda told: any(told.is_of(one) for one in types))

    if topic == "phase":
        phase = state_at(reader, until_seq).state.run.phase
        return newest_of([kind.__name__ for kind, table in st.TRANSITIONS.items() if phase in table.values()])
    word, _, slot = topic.partition(":")
    if topic in TOPICS or (word == "seed" and slot):
        of = f":{slot}" if slot else ""
        found = (newest_of([f"{kind}{of}" for kind in types.split("|")]) for types in TOPICS[word])
        return next((entry for entry in found if entry is not None), None)
    if word in EVENT_TYPES:
        return newest_of((topic,))
    return first(lambda told: told.id == topic and told.type.startswith("Checkpoint"))


def _judged(reader: Reader, event: Link) -> tuple[Link, ...]:
    """Return the newest masks of the cycle that `event` judges, after their causes; empty if it judges none."""
    if event.fields.get("type") not in JUDGE:
        return ()
    for entry in backwards(reader, until(event.seq)):
        if brief(entry.event).name != "OrderActed:MaskUnits":
            continue
        applied = link_of(entry)
        if applied.fields["order"].get("cycle") == event.fields.get("cycle"):
            return (*causes_of(reader, applied), applied)
    return ()
