"""Parses times as people write them, such as `10 minutes ago` or `14:00`; also ms since the epoch and ISO 8601."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from logfs.errors import InvalidUsage
from logfs.format.base.quantities import parse_time

_DIGIT = re.compile(r"[0-9]")
# Texts that begin like ISO 8601, or are numbers. They are never passed to dateparser: it would guess a time even for
# one that `parse_time` refuses, such as 2021-13-01.
_ISO = re.compile(r"[0-9]{4}-?[0-9]{2}|-?[0-9]+$")
# A text is passed to dateparser only if it has three letters in a row, two digits around a separator, or a number
# with a unit: dateparser would accept even a single letter.
_WORD = re.compile(r"[A-Za-z]{3}|[0-9][:/-][0-9]|[0-9]\s*(ms|s|m|h|d|w|am|pm)\b", re.IGNORECASE)


def moment(text: str, now_ms: int) -> int:
    """Return the time that `text` means, in ms since the epoch.

    `text` is ms since the epoch, ISO 8601, or English words, which may be relative to the present time `now_ms`.
    A text without a time zone is in UTC. A day, such as `yesterday` or `monday`, stands for its first moment. Raises
    `InvalidUsage` for any other text.
    """
    known = parse_time(text)
    if known is not None:
        return known
    refusal = InvalidUsage(
        f"{text!r} is not a time: give ms since 1970, ISO 8601, or words such as '10 minutes ago' or 'yesterday'"
    )
    if _ISO.match(text) or not _WORD.search(text):
        raise refusal
    from dateparser.date import DateDataParser

    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    parser = DateDataParser(
        languages=["en"],
        settings={
            "TIMEZONE": "UTC",
            "TO_TIMEZONE": "UTC",
            "RETURN_AS_TIMEZONE_AWARE": True,
            "RETURN_TIME_AS_PERIOD": True,
            "PREFER_DATES_FROM": "past",
            "RELATIVE_BASE": now.replace(tzinfo=None),
        },
    )
    found = parser.get_date_data(text)
    if found.date_obj is None:
        raise refusal
    first = found.date_obj
    if found.period == "day" and not _DIGIT.search(text):
        first = first.replace(hour=0, minute=0, second=0, microsecond=0)
    return max(int(first.timestamp() * 1000), 0)
