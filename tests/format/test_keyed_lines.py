"""Lines with keys become envelopes."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logfs.errors import RecordTooLarge
from logfs.format.text import envelope, keyed_lines
from logfs.format.text.keyed_lines import KeyedLines

LINES = st.lists(st.binary(max_size=12).map(lambda data: data.replace(b"\n", b":")), max_size=8)


@given(LINES, st.sampled_from([None, b":", b"::", b"\xff"]), st.integers(1, 9), st.booleans())
def test_lines_in_pieces(
    lines: list[bytes], separator: bytes | None, piece: int, is_ended: bool
) -> None:
    """Each line is one record with its key and the headers, wherever the pieces are cut."""
    headers = [("h", b"1"), ("h", b"\xff")]
    data = b"\n".join(lines) + (b"\n" if is_ended and lines else b"")
    keyed = KeyedLines(separator, headers)
    made = b"".join(keyed.write(data[at : at + piece]) for at in range(0, len(data), piece))
    made += keyed.finish()
    records = [envelope.decode(line) for line in made.splitlines()]
    expected = data.split(b"\n")
    if not expected[-1]:
        expected.pop()
    assert len(records) == len(expected)
    for record, line in zip(records, expected, strict=True):
        key, found, value = line.partition(separator) if separator else (b"", b"", b"")
        assert (record.key, record.value) == ((key, value) if found else (None, line))
        assert list(record.headers) == headers


@given(LINES, st.integers(1, 9), st.booleans(), st.sampled_from([None, b":"]))
def test_records_of_several_lines(
    lines: list[bytes], piece: int, is_ended: bool, separator: bytes | None
) -> None:
    """Each begins with a line that the pattern matches; what comes before the first is a record, too."""
    start = re.compile(rb"[a-z\x80-\xff]")
    data = b"\n".join(lines) + (b"\n" if is_ended and lines else b"")
    keyed = KeyedLines(separator, [], start)
    made = b"".join(keyed.write(data[at : at + piece]) for at in range(0, len(data), piece))
    made += keyed.finish()
    expected: list[bytes] = []
    every = data.split(b"\n")
    if not every[-1]:
        every.pop()
    for line in every:
        if start.match(line) or not expected:
            expected.append(line)
        else:
            expected[-1] += b"\n" + line
    found = [envelope.decode(line) for line in made.splitlines()]
    values = [
        (r.key or b"") + (separator or b"") * (r.key is not None) + (r.value or b"") for r in found
    ]
    assert values == expected


def test_only_a_record_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit counts what a call leaves: not the record that the call ends, but all lines of the next record."""
    monkeypatch.setattr(keyed_lines, "_MOST_BYTES", 100)
    keyed = KeyedLines(None, [], re.compile(rb"[a-z]"))
    keyed.write(b"a" * 90 + b"\nb")
    keyed.write(b"\n" + b"c" * 50)
    with pytest.raises(RecordTooLarge, match="within 100 bytes"):
        keyed.write(b"\n" + b"1\n" * 60)
