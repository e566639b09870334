"""Times as text and back; durations, sizes and counts as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logfs.format.base.quantities import (
    format_count,
    format_duration,
    format_size,
    format_time,
    parse_time,
)

# The last millisecond of the year 9999, beyond which `datetime` has no times.
LAST_MS = 253_402_300_799_999


@given(st.integers(0, LAST_MS))
def test_a_time_is_read_as_it_was_written(time_ms: int) -> None:
    """Every millisecond from 1970 to the year 9999 comes back, also as a decimal number."""
    assert parse_time(format_time(time_ms)) == time_ms
    assert parse_time(str(time_ms)) == time_ms


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("1970-01-01T00:00:00.999999Z", 999),
        ("1969-12-31T23:59:59.999Z", 0),
        ("2021-11-28T12:53:20.001+01:00", 1_638_100_400_001),
        ("20211128T115320", 1_638_100_400_000),
        ("2021-11-28", 1_638_057_600_000),
        (str((1 << 63) - 1), (1 << 63) - 1),
        (str(1 << 63), None),
        ("007", None),
        ("yesterday", None),
        ("2021-13-01", None),
    ],
)
def test_forms_of_a_time(text: str, time_ms: int | None) -> None:
    """Dates and times in ISO 8601, by default in UTC, and milliseconds below 2^63; microseconds are cut off."""
    assert parse_time(text) == time_ms


def test_what_datetime_cannot_hold_is_a_number() -> None:
    """No time is `-`, and a time after the year 9999 its number."""
    assert format_time(-1) == "-"
    assert format_time(1 << 62) == str(1 << 62)


def test_durations_sizes_and_counts() -> None:
    """A quantity has at least two digits where it has them, in the unit that a person would choose."""
    durations = [-1, 0, 40, 1500, 60_000, 5_400_000, 86_400_000, 400_000_000_000]
    assert [format_duration(ms) for ms in durations] == [
        "-",
        "0 s",
        "0.04 s",
        "1.5 s",
        "1 min",
        "1.5 h",
        "1 d",
        "4,630 d",
    ]
    sizes = [0, 999, 1024, 1_536_000, 200 << 20, 3 << 40, 5 << 60]
    assert [format_size(size) for size in sizes] == [
        "0 B",
        "999 B",
        "1.0 KiB",
        "1.5 MiB",
        "200 MiB",
        "3.0 TiB",
        "5120 PiB",
    ]
    assert format_count(1_234_567) == "1,234,567"
