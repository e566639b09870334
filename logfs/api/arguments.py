"""Checks of arguments. Their errors name the argument. A bool does not count as a number."""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, SupportsIndex

if TYPE_CHECKING:
    from collections.abc import Mapping


def checked_name(what: str, name: object) -> str:
    """Return `name`. Raises `TypeError` if it is not a str; the message begins with `what`, such as "group"."""
    if not isinstance(name, str):
        raise TypeError(f"{what} must be a str, not {type(name).__name__}")
    return name


def checked_number(what: str, number: object) -> int:
    """Return the integer `number` as an int. Raises `TypeError` for other types; the message begins with `what`."""
    if isinstance(number, bool) or not isinstance(number, SupportsIndex):
        raise TypeError(f"{what} must be an int, not {type(number).__name__}")
    return index(number)


def checked_offset(what: str, offset: object) -> int | None:
    """Return an offset as an int; None stays None. Raises `TypeError` for other types, as `checked_number` does."""
    return None if offset is None else checked_number(what, offset)


def checked_timeout(timeout: object) -> float | None:
    """Return a timeout in seconds. None means that there is no timeout.

    Raises `TypeError` unless `timeout` is None or a number, and `ValueError` if it is negative or NaN.
    """
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise TypeError(f"timeout must be a number of seconds, not {type(timeout).__name__}")
    if not timeout >= 0:
        raise ValueError(f"timeout must be 0 or more, not {timeout}")
    return float(timeout)


def checked_offsets(offsets: Mapping[str, int]) -> dict[str, int]:
    """Return `offsets`, by partition name, as a dict. Raises `TypeError` unless names are str and offsets are int."""
    return {
        checked_name("the name of a partition", name): checked_number("an offset", offset)
        for name, offset in dict(offsets).items()
    }
