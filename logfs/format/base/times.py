"""Times as text, for people and for file names."""

from __future__ import annotations

import re
from datetime import UTC, datetime

_MILLISECONDS = re.compile(r"0|[1-9][0-9]{0,18}")
_DATE = re.compile(r"[0-9]{4}-?[0-9]{2}-?[0-9]{2}.*|[0-9]{4}-W.*")
_MOST_MS = (1 << 63) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


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
