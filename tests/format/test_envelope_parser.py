"""Envelopes parsed in bulk equal those decoded one by one; text that is not canonical is left to that decoder."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from logfs.errors import InvalidEnvelope
from logfs.format.base.names import TopicPartition
from logfs.format.batches.record import Record
from logfs.format.text import envelope, envelope_parser
from logfs.format.text.envelope import PlacedRecord

NAME = TopicPartition("orders.v2", 7)
PREFIX = envelope.prefix(NAME)

texts = st.one_of(st.binary(max_size=9), st.text(max_size=9).map(str.encode))
fields = st.none() | texts
names = texts.map(lambda data: data.decode("utf-8", "surrogateescape"))
records = st.builds(
    Record,
    fields,
    fields,
    st.lists(st.tuples(names, fields), max_size=3),
    timestamp=st.integers(-1, 10**18 - 1),
    offset=st.integers(0, 10**18 - 1),
)


def placed(found: envelope_parser.Envelopes) -> list[PlacedRecord]:
    """Return the records of the columns as objects."""
    data = found.data.tobytes()

    def field(start: int, length: int) -> bytes | None:
        return None if length < 0 else data[start : start + length]

    keys = map(field, found.key_starts.tolist(), found.key_lengths.tolist())
    values = map(field, found.value_starts.tolist(), found.value_lengths.tolist())
    header_keys = map(field, found.header_key_starts.tolist(), found.header_key_lengths.tolist())
    header_values = map(
        field, found.header_value_starts.tolist(), found.header_value_lengths.tolist()
    )
    headers = [
        ((key or b"").decode("utf-8", "surrogateescape"), value)
        for key, value in zip(header_keys, header_values, strict=True)
    ]
    firsts = found.header_offsets.tolist()
    rows = zip(keys, values, found.timestamps.tolist(), strict=True)
    return [
        PlacedRecord(
            NAME.topic,
            NAME.partition,
            offset,
            Record(value, key, tuple(headers[firsts[row] : firsts[row + 1]]), timestamp),
        )
        for row, (offset, (key, value, timestamp)) in enumerate(
            zip(found.offsets.tolist(), rows, strict=True)
        )
    ]


@given(st.lists(records, min_size=1, max_size=5))
def test_rendered_envelopes_are_parsed(given_records: list[Record]) -> None:
    """Rendered envelopes are parsed as `decode_placed` reads them, with any bytes in any field, null or empty."""
    lines = [envelope.encode(record, PREFIX) for record in given_records]
    found = envelope_parser.parse(b"".join(lines), PREFIX)
    assert found is not None
    assert placed(found) == [envelope.decode_placed(line) for line in lines]


BYTES = b'{}[]",:\\u0a9-=/nbe \n\xc3'
CASES = 20_000


def test_changed_text_is_left_alone_or_parsed_as_decode_placed_does() -> None:
    """Text with a few changed bytes is not parsed in bulk, or is parsed as `decode_placed` reads it."""
    chosen = random.Random(5)
    values = [None, b"", b"abc", b"\xff\x00", 'к\x01\n"\\/'.encode()]
    taken = 0
    for offset in range(CASES):
        headers = [
            (chosen.choice(["h", "", "\udcff"]), chosen.choice(values))
            for _ in range(chosen.randrange(4))
        ]
        record = Record(
            chosen.choice(values),
            chosen.choice(values),
            headers,
            chosen.choice([-1, 0, 5]),
            offset=offset,
        )
        text = bytearray(envelope.encode(record, PREFIX) * 2)
        for _ in range(chosen.randrange(1, 3)):
            at, change = chosen.randrange(len(text)), chosen.choice(["put", "cut", "add"])
            text[at : at + (change != "add")] = (
                b"" if change == "cut" else bytes([chosen.choice(BYTES)])
            )
        if not text.endswith(b"\n"):
            text += b"\n"
        found = envelope_parser.parse(bytes(text), PREFIX)
        if found is None:
            continue
        taken += 1
        try:
            assert placed(found) == [
                envelope.decode_placed(line) for line in text[:-1].split(b"\n")
            ]
        except InvalidEnvelope as error:
            raise AssertionError(bytes(text)) from error
    assert taken > CASES // 50
