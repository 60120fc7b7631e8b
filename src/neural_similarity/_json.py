"""Untrusted JSON files: parsed within limits, checked against types.

All JSON that the library reads comes through here. What a file must contain is defined by a
dataclass; :func:`build` makes one from a parsed value, or raises an error of the caller's class
that names the file and the key.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from math import isfinite, isnan
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from ._io import read_regular
from .errors import NeuralSimilarityError

__all__ = [
    "Count",
    "MaybeInfinite",
    "Share",
    "Side",
    "build",
    "parse_json",
    "read_json",
    "read_json_lines",
]


class _Rule(NamedTuple):
    """What a value must be besides its type: in words, and as a test."""

    words: str
    holds: Callable[[Any], bool]


Count = Annotated[int, _Rule("an integer of at least 0", lambda v: v >= 0)]
Side = Annotated[int, _Rule("an integer from 1 to 65536", lambda v: 1 <= v <= 65536)]
"""A number of pixels, channels or features."""
Share = Annotated[float, _Rule("a number from 0 to 1", lambda v: 0 <= v <= 1)]
MaybeInfinite = Annotated[
    Any, _Rule("a number", lambda v: type(v) is int or (type(v) is float and not isnan(v)))
]
"""Such as the lowest error before the first evaluation."""

_LARGEST = 2**28  # bytes of a JSON file
_DEEPEST = 64  # lists and objects inside each other
_PLAIN: dict[Any, _Rule] = {
    int: _Rule("an integer", lambda v: type(v) is int and -(2**63) <= v < 2**63),
    float: _Rule("a finite number", lambda v: _is_finite(v)),
    str: _Rule("text", lambda v: type(v) is str),
    bool: _Rule("true or false", lambda v: type(v) is bool),
    NoneType: _Rule("null", lambda v: v is None),
    list: _Rule("a list", lambda v: type(v) is list),
    tuple: _Rule("a list", lambda v: type(v) in (list, tuple)),
    dict: _Rule("an object", lambda v: type(v) is dict),
    Mapping: _Rule("an object", lambda v: type(v) is dict),
}

_Type = TypeVar("_Type")
_Path = str | os.PathLike[str]
_Error = type[NeuralSimilarityError]


def read_json(path: _Path, kind: type[_Type], error: _Error, advice: str = "") -> _Type:
    """What is in a JSON file, as a value of type ``kind``; see :func:`build`."""
    text = _content(path, error, advice)
    return build(kind, parse_json(text, path, error, advice), path, error, advice)


def read_json_lines(path: _Path, error: _Error, advice: str = "") -> list[dict[str, Any]]:
    """The JSON objects in a file with one per line; an unterminated last line is left out."""
    *lines, _ = _content(path, error, advice).split(b"\n")
    named = ((line, f"{path}, line {number}") for number, line in enumerate(lines, 1))
    return [
        build(dict[str, Any], parse_json(line, where, error, advice), where, error, advice)
        for line, where in named
    ]


def parse_json(text: str | bytes, where: object, error: _Error, advice: str = "") -> Any:
    """The value of a JSON text; ``where`` begins the message if it is damaged."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as cause:  # ValueError: also for text that is not UTF-8
        raise error(_line(where, f"JSON, got damaged text ({cause})", advice)) from cause
    level = [value]
    for _ in range(_DEEPEST):
        inner = [
            v.values() if isinstance(v, dict) else v for v in level if isinstance(v, dict | list)
        ]
        level = [item for items in inner for item in items]
        if not level:
            return value
    what = f"JSON of at most {_DEEPEST} levels, got more nested lists or objects"
    raise error(_line(where, what, advice))


def build(
    kind: type[_Type], value: Any, where: object, error: _Error, advice: str = "", *,
    others: bool = False,
) -> _Type:  # fmt: skip
    """A value of type ``kind`` from what a JSON file contains.

    Args:
        kind: a dataclass, or made of int, float, str, bool, None, list, tuple, dict, Literal,
            unions and the types of this module; anything else is not checked. A field may have
            another key in the file, as its metadata ``key``.
        value: the parsed JSON.
        where: the file; begins the message.
        error: the class of the error.
        advice: a last sentence that says what to do.
        others: whether objects may have keys that their dataclass does not name.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Progress:
        ...     step: Count
        ...     seconds: float = 0.0
        >>> build(Progress, {"step": 3, "seconds": 1}, "last", NeuralSimilarityError)
        Progress(step=3, seconds=1.0)
        >>> try:
        ...     build(Progress, {"step": "three"}, "last", NeuralSimilarityError)
        ... except NeuralSimilarityError as error:
        ...     print(error)
        last: expected 'step' to be an integer, got 'three'.
    """
    try:
        result: _Type = _built(kind, value, "", others)
    except _MismatchError as mismatch:
        raise error(_line(where, str(mismatch), advice)) from mismatch.__cause__
    return result


class _MismatchError(Exception):
    """A value does not have its type; the text follows "expected"."""


def _built(kind: Any, value: Any, key: str, others: bool) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        result = _built(arguments[0], value, key, others)
        return _checked(arguments[1], result, key)
    if origin in (Union, UnionType):
        return _any_of(kind, value, key, others)
    if origin is Literal:
        same = (type(value) is type(choice) and value == choice for choice in arguments)
        return _checked(_Rule(_words(kind), lambda _: any(same)), value, key)
    if is_dataclass(kind):
        return _dataclass(kind, _checked(_PLAIN[dict], value, key), key, others)
    plain = origin or kind
    if plain not in _PLAIN:
        return value
    value = _checked(_PLAIN[plain], value, key)
    if plain in (list, tuple) and arguments:
        fixed = plain is tuple and arguments[-1] is not Ellipsis
        kinds = arguments if fixed else arguments[:1] * len(value)
        rule = _Rule(f"a list of {len(kinds)} values", lambda v: len(v) == len(kinds))
        _checked(rule, value, key)
        items = enumerate(zip(kinds, value, strict=True))
        return plain(_built(k, item, _inside(key, str(n)), others) for n, (k, item) in items)
    if plain in (dict, Mapping) and arguments:
        inner = arguments[1]
        return {name: _built(inner, v, _inside(key, name), others) for name, v in value.items()}
    return float(value) if kind is float else value


def _any_of(kind: Any, value: Any, key: str, others: bool) -> Any:
    choices = [choice for choice in get_args(kind) if choice is not NoneType]
    if value is None and NoneType in get_args(kind):
        return None
    if len(choices) == 1:  # so that the message says what is wrong inside
        return _built(choices[0], value, key, others)
    for choice in choices:
        try:
            return _built(choice, value, key, others)
        except _MismatchError:
            continue
    raise _MismatchError(f"{_what(key)} to be {_words(kind)}, got {_shortened(value)}")


def _dataclass(kind: Any, value: dict[str, Any], key: str, others: bool) -> Any:
    hints = _hints(kind)
    fields_by_name = {f.metadata.get("key", f.name): f for f in fields(kind) if f.init}
    required_names = [
        n for n, f in fields_by_name.items() if f.default is f.default_factory is MISSING
    ]
    if missing := [_inside(key, name) for name in required_names if name not in value]:
        names = ", ".join(map(repr, missing))
        raise _MismatchError(f"{names} to be present, got {_shortened(value)}")
    if (unknown := [name for name in value if name not in fields_by_name]) and not others:
        names = ", ".join(map(repr, fields_by_name))
        raise _MismatchError(
            f"{_what(key)} to have only {names}, got {_shortened(unknown[0])} as well"
        )
    values = {
        f.name: _built(hints[f.name], value[name], _inside(key, name), others)
        for name, f in fields_by_name.items()
        if name in value
    }
    try:
        return kind(**values)
    except (NeuralSimilarityError, TypeError, ValueError) as cause:  # from its own checks
        what = f"{_what(key)} to be valid, got {_shortened(value)} ({cause})"
        raise _MismatchError(what) from cause


@cache
def _hints(kind: type) -> dict[str, Any]:
    """The types of a dataclass's fields; finding them takes longer than checking a value."""
    return get_type_hints(kind, include_extras=True)


def _checked(rule: _Rule, value: Any, key: str) -> Any:
    if rule.holds(value):
        return value
    raise _MismatchError(f"{_what(key)} to be {rule.words}, got {_shortened(value)}")


def _content(path: _Path, error: _Error, advice: str) -> bytes:
    try:
        return read_regular(path, _LARGEST)
    except OSError as cause:
        raise error(_line(path, f"a file, got {cause.strerror or cause}", advice)) from cause


def _is_finite(value: Any) -> bool:
    try:
        return type(value) in (int, float) and isfinite(value)
    except OverflowError:  # an integer too large for a float
        return False


def _words(kind: Any) -> str:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return " or ".join(_words(choice) for choice in arguments)
    if origin is Literal:
        return " or ".join(map(repr, arguments))
    return _PLAIN[dict if is_dataclass(kind) else origin or kind].words


def _what(key: str) -> str:
    return _shortened(key) if key else "the content"


def _inside(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


def _shortened(value: object) -> str:
    """A value for a message, shortened if it is long."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _line(where: object, what: str, advice: str) -> str:
    return f"{where}: expected {what}.{' ' if advice else ''}{advice}"
