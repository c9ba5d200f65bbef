"""From nested mappings to `Settings`: every problem of a document found at once, each with its path and a way out.

Promises: a document either becomes one valid `Settings` or a ConfigError that lists all that is wrong with it; nothing
is guessed, converted between types, or ignored. It must not know: where the mappings came from.

msgspec could convert the whole document in one call, but it stops at the first problem and calls an unknown key by its
name only. So the sections are walked here and msgspec is asked value by value.
"""

from __future__ import annotations

import difflib
import functools
import math
import typing
from collections.abc import Iterator, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Struct

from tolariad.core.bounds import NAME_CHARACTERS_MAX, TEXT_CHARACTERS_MAX, shown, text_refusal
from tolariad.core.settings.model import Settings

# `lr` means something in every torch optimizer, so people write it; here rates have one owner and one place.
_MOVED = {
    "optimizer.lr": "learning_rate.base_lr",
    "optimizer.groups[].lr": "base_lr",
    "lr": "learning_rate.base_lr",
    "seed": "rng_seed",
}
S = TypeVar("S", bound=Struct)


class Problem(Struct, frozen=True, kw_only=True):
    """One thing that is wrong: at which key (dotted), what, what was probably meant, and in which file and line."""

    path: str
    what: str
    nearest: str | None = None
    where: str | None = None

    def __str__(self) -> str:
        """Render as one line: place, key, problem, suggestion."""
        place = f"{self.where}: " if self.where else ""
        hint = f"; did you mean {self.nearest}?" if self.nearest else ""
        return f"{place}{self.path}: {self.what}{hint}" if self.path else f"{place}{self.what}{hint}"


class ConfigError(Exception):
    """The configuration cannot be used. Nothing was changed; `problems` holds everything that was found."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in problems))


def read_settings(document: Mapping[str, Any], places: Mapping[str, str] | None = None) -> Settings:
    """Convert the mapping under `tolaria:` into Settings.

    `places` maps dotted keys to where they stand ("run.yaml:12"), as far as known. Raises ConfigError with all problems
    of names, types and ranges; relations between values are `settings_rules.check`'s.
    """
    problems: list[Problem] = []
    settings = _read_struct(Settings, document, "", problems)
    if settings is None:
        known = places or {}
        raise ConfigError([msgspec.structs.replace(p, where=_place(p.path, known)) for p in problems])
    return settings


def known_keys() -> list[str]:
    """List every dotted key of the configuration, sections before what they hold."""
    return list(_keys_below(Settings, ""))


@functools.cache
def fields_of(kind: type[Struct]) -> Mapping[str, msgspec.structs.FieldInfo]:
    """Return a section's fields by name; kept, because resolving the annotations takes a millisecond each time."""
    return {field.name: field for field in msgspec.structs.fields(kind)}


def section_of(kind: Any) -> type[Struct] | None:
    """Return the Struct a field's type is, without its annotation; None for a plain value."""
    plain = _bare(kind)
    return plain if isinstance(plain, type) and issubclass(plain, Struct) else None


def items_of(kind: Any) -> type[Struct] | None:
    """Return the Struct that a field's list or mapping holds; None for everything else."""
    plain = _bare(kind)
    arguments = typing.get_args(plain)
    if typing.get_origin(plain) not in {tuple, dict} or not arguments:
        return None
    return section_of(arguments[0] if typing.get_origin(plain) is tuple else arguments[-1])


def choices_of(kind: Any) -> list[str]:
    """Return the words a field may hold, where it is a choice between words."""
    plain = _bare(kind)
    if typing.get_origin(plain) is typing.Literal:
        return [word for word in typing.get_args(plain) if isinstance(word, str)]
    if typing.get_origin(plain) in {typing.Union, UnionType}:
        return [word for part in typing.get_args(plain) for word in choices_of(part)]
    return []


def is_secret(kind: Any) -> bool:
    """Tell whether a field holds a reference to a secret."""
    if typing.get_origin(kind) is Annotated:
        inner, *metas = typing.get_args(kind)
        marked = any(isinstance(meta, msgspec.Meta) and (meta.extra or {}).get("secret") for meta in metas)
        return marked or is_secret(inner)
    return any(is_secret(part) for part in typing.get_args(kind))


def _bare(kind: Any) -> Any:
    while typing.get_origin(kind) is Annotated:
        kind = typing.get_args(kind)[0]
    return kind


def _read_struct(kind: type[S], raw: Any, path: str, problems: list[Problem]) -> S | None:
    if not isinstance(raw, Mapping):
        problems.append(Problem(path=path, what=f"expected a mapping of keys, got {_name_of(raw)}"))
        return None
    before = len(problems)
    fields = fields_of(kind)
    values: dict[str, Any] = {}
    for key, value in raw.items():
        here = f"{path}.{key}" if path else str(key)
        if key in fields:
            values[key] = _read_value(fields[key].type, value, here, problems)
        else:
            problems.append(_unknown(str(key), here, list(fields)))
    problems.extend(
        Problem(path=f"{path}.{name}" if path else name, what="is required")
        for name, field in fields.items()
        if field.required and name not in raw
    )
    return kind(**values) if len(problems) == before else None


def _read_value(kind: Any, raw: Any, path: str, problems: list[Problem]) -> Any:
    section = section_of(kind)
    if section is not None:
        # A heading with nothing under it is what is left when the last line of a section is commented out.
        return _read_struct(section, {} if raw is None else raw, path, problems)
    item = items_of(kind)
    if item is not None and (what := next(filter(None, map(_not_a_name, _texts_of_names(raw))), None)) is not None:
        problems.append(Problem(path=path, what=what))
        return None
    if item is not None and isinstance(raw, list | tuple) and typing.get_origin(_bare(kind)) is tuple:
        return tuple(_read_struct(item, one, f"{path}[{n}]", problems) for n, one in enumerate(raw))
    if item is not None and isinstance(raw, Mapping) and typing.get_origin(_bare(kind)) is dict:
        return {str(name): _read_struct(item, one, f"{path}.{name}", problems) for name, one in raw.items()}
    return _read_leaf(kind, raw, path, problems)


def _read_leaf(kind: Any, raw: Any, path: str, problems: list[Problem]) -> Any:
    numbers = raw.values() if isinstance(raw, Mapping) else (raw,)
    if any(isinstance(number, float) and not math.isfinite(number) for number in numbers):
        problems.append(Problem(path=path, what=f"must be a finite number, got {shown(raw)}"))
        return None
    if (what := next(filter(None, map(_not_unicode, _texts(raw))), None)) is not None:
        problems.append(Problem(path=path, what=what))
        return None
    try:
        return msgspec.convert(raw, kind)
    except (msgspec.ValidationError, ValueError) as error:
        # ValueError: a number of thousands of digits, which msgspec's own sentence cannot hold.
        problems.append(_leaf_problem(kind, raw, path, str(error)))
        return None


def _texts(raw: Any) -> Iterator[str]:
    """The texts of a value, the names in a mapping among them."""
    if isinstance(raw, str):
        yield raw
    elif isinstance(raw, Mapping):
        yield from (text for pair in raw.items() for part in pair for text in _texts(part))
    elif isinstance(raw, list | tuple):
        yield from (text for part in raw for text in _texts(part))


def _texts_of_names(raw: Any) -> Iterator[str]:
    return (str(name) for name in raw) if isinstance(raw, Mapping) else iter(())


def _not_a_name(text: str) -> str | None:
    return text_refusal(text, NAME_CHARACTERS_MAX, "a name")


def _not_unicode(text: str) -> str | None:
    return text_refusal(text, TEXT_CHARACTERS_MAX, "the text")


def _leaf_problem(kind: Any, raw: Any, path: str, message: str) -> Problem:
    if is_secret(kind):
        # The value is not repeated: it may be the secret itself.
        return Problem(path=path, what="a secret is named, not written: env:NAME, file:PATH or credential:NAME")
    choices = choices_of(kind)
    if choices:
        close = difflib.get_close_matches(shown(raw).strip("'"), choices, 1, 0.5)
        what = f"must be one of {', '.join(choices)}, got {shown(raw)}"
        return Problem(path=path, what=what, nearest=close[0] if close else None)
    what, _, inner = message.partition(" - at `$")
    what = f"{what[:1].lower()}{what[1:]}{'' if ', got ' in what else ', got'} {shown(raw)}"
    return Problem(path=path + inner.rstrip("`"), what=what)


def _unknown(key: str, path: str, siblings: list[str]) -> Problem:
    """Name the nearest known key: a sibling first, else the same name in another section."""
    moved = _MOVED.get(_without_indices(path))
    if moved:
        return Problem(path=path, what=f"is not set here; use {moved}")
    close = difflib.get_close_matches(key, siblings, 1, 0.6)
    if not close:
        everywhere = known_keys()
        close = [name for name in everywhere if name.rsplit(".", 1)[-1] == key][:1]
        close = close or difflib.get_close_matches(path, everywhere, 1, 0.75)
    return Problem(path=path, what="unknown key", nearest=close[0] if close else None)


def _keys_below(kind: type[Struct], prefix: str) -> Iterator[str]:
    for field in fields_of(kind).values():
        key = f"{prefix}{field.name}"
        yield key
        section = section_of(field.type)
        if section is not None:
            yield from _keys_below(section, f"{key}.")


def _without_indices(path: str) -> str:
    return "".join("[]" if part.isdigit() else part for part in path.replace("[", "\0").replace("]", "\0").split("\0"))


def _place(path: str, places: Mapping[str, str]) -> str | None:
    """Find the nearest enclosing key whose place is known."""
    while path and path not in places:
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return places.get(path)


def _name_of(raw: Any) -> str:
    return "nothing" if raw is None else f"{type(raw).__name__} {shown(raw)}"
