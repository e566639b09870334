"""Times, durations, sizes and counts as text, for people and for file names."""

from __future__ import annotations

import re
from datetime import UTC, datetime

_MILLISECONDS = re.compile(r"0|[1-9][0-9]{0,18}")
_DATE = re.compile(r"[0-9]{4}-?[0-9]{2}-?[0-9]{2}.*|[0-9]{4}-W.*")
_MOST_MS = (1 << 63) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SIZE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_TIME_UNITS_MS = {"d": 86_400_000, "h": 3_600_000, "min": 60_000}


def parse_time(text: str) -> int | None:
    """Return a time in ms since the epoch, or None if `text` is not a time.

    `text` is decimal milliseconds since the epoch, below 2^63, or a date or time in ISO 8601, in UTC if it names no
    time zone. For a time before 1970, return 0, because no record is older.
    """
    if _MILLISECONDS.fullmatch(text):
        return found if (found := int(text)) <= _MOST_MS else None
    if not _DATE.fullmatch(text):
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    # Use integers: a float of seconds, times 1000, may be truncated to one millisecond too few.
    since = moment - _EPOCH
    return max((since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000, 0)


def format_time(timestamp: int) -> str:
    """Return a time in ms since the epoch as ISO 8601 in UTC with milliseconds, or `-` if it is negative.

    A time that is too late for `datetime` is returned as its decimal number.
    """
    if timestamp < 0:
        return "-"
    seconds, ms = divmod(timestamp, 1000)
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{ms:03d}Z"
    except (OverflowError, ValueError, OSError):
        return str(timestamp)


def format_duration(ms: float) -> str:
    """Return a duration in ms as text in the largest unit that fits, such as "1.5 h", or `-` if it is negative."""
    if ms < 0:
        return "-"
    unit, unit_ms = next(
        ((unit, size) for unit, size in _TIME_UNITS_MS.items() if ms >= size), ("s", 1000)
    )
    count = ms / unit_ms
    return f"{count:.3g} {unit}" if count < 999.5 else f"{count:,.0f} {unit}"


def format_size(size: float) -> str:
    """Return a number of bytes as text, such as "1.5 MiB"; each unit is 1024 times the one before."""
    unit = 0
    while size >= 1000 and unit < len(_SIZE_UNITS) - 1:
        size /= 1024
        unit += 1
    return (
        f"{size:.1f} {_SIZE_UNITS[unit]}"
        if unit and size < 100
        else f"{size:.0f} {_SIZE_UNITS[unit]}"
    )


def format_count(count: int) -> str:
    """Return a number with a comma before each group of three digits."""
    return f"{count:,}"
