"""Errors about numbers."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from numbers import Real
from typing import Any

from ..errors import ShapeError

__all__ = [
    "counts",
    "divisor",
    "is_whole",
    "plain_number",
    "positive_numbers",
    "real_numbers",
    "true_or_false",
    "whole_numbers",
]


def plain_number(value: Any) -> Any:
    """Turn an integer of any library, such as NumPy's, into an int; return the rest unchanged."""
    if isinstance(value, bool):
        return value
    try:
        return operator.index(value)
    except TypeError:
        return value


def is_whole(value: object) -> bool:
    """Whether ``value`` is an integer of any library; True and False do not count."""
    number = plain_number(value)
    return isinstance(number, int) and not isinstance(number, bool)


def whole_numbers(where: str, **values: object) -> None:
    """Raise unless each value is a whole number of at least one."""
    _at_least(1, where, values)


def counts(where: str, **values: object) -> None:
    """Raise unless each value is a whole number of at least zero."""
    _at_least(0, where, values)


def real_numbers(where: str, **values: object) -> None:
    """Raise unless each value is a number."""
    for what, value in values.items():
        if not isinstance(value, Real) or isinstance(value, bool):
            raise ShapeError(f"{where}: expected {what} to be a number, got {value!r}.")


def positive_numbers(where: str, **values: object) -> None:
    """Raise unless each value is a number above zero."""
    real_numbers(where, **values)
    for what, value in values.items():
        if not value > 0:  # type: ignore[operator]
            raise ShapeError(f"{where}: expected {what} to be a number above 0, got {value!r}.")


def true_or_false(where: str, **values: object) -> None:
    """Raise unless each value is True or False: any text, such as "no", would count as true."""
    for what, value in values.items():
        if not isinstance(value, bool):
            raise ShapeError(f"{where}: expected {what} to be true or false, got {value!r}.")


def divisor(where: str, what: str, value: object, total: int, of: str) -> None:
    """Raise unless ``value`` is a whole number that divides ``total``."""
    whole_numbers(where, **{what: value})
    if total % plain_number(value):
        raise ShapeError(
            f"{where}: expected {what} to divide the {total} {of}, got {value}. All groups of "
            f"channels have the same size."
        )


def _at_least(least: int, where: str, values: Mapping[str, object]) -> None:
    for what, value in values.items():
        number = plain_number(value)
        if not is_whole(number) or number < least:
            raise ShapeError(
                f"{where}: expected {what} to be a whole number of at least {least}, got {value!r}."
            )
