"""The JSON envelope of a record: canonical encoding, and checked decoding."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logfs.errors import InvalidEnvelope
from logfs.format.base.names import TopicPartition
from logfs.format.batches.record import Record, TimestampType
from logfs.format.text import envelope

PREFIX = envelope.prefix(TopicPartition("orders", 3))
ANY_BYTES = st.binary(max_size=40) | st.text(max_size=20).map(str.encode)
MAYBE_BYTES = st.none() | ANY_BYTES
NAMES = ANY_BYTES.map(lambda name: name.decode("utf-8", "surrogateescape"))


def test_the_exact_text_of_an_envelope() -> None:
    """The fields of an envelope, their order and their form are a contract."""
    record = Record(b"hello", None, [("h", b"1"), ("n", None)], 1638100400000, 7)
    assert envelope.encode(record, PREFIX) == (
        b'{"topic":"orders","partition":3,"offset":7,"timestamp":1638100400000,'
        b'"timestamp_type":"CreateTime","key":null,"value":"hello","headers":[["h","1"],["n",null]]}\n'
    )
    late = Record(b"\xff", b"k", (), -1, 0, TimestampType.LOG_APPEND_TIME)
    assert envelope.encode(late, PREFIX) == (
        b'{"topic":"orders","partition":3,"offset":0,"timestamp":-1,'
        b'"timestamp_type":"LogAppendTime","key":"k","value":{"base64":"/w=="},"headers":[]}\n'
    )


@given(MAYBE_BYTES)
def test_text_is_json_of_a_known_size(data: bytes | None) -> None:
    """UTF-8 bytes become a string, other bytes base64, and null null; the text is one line of `text_size` bytes."""
    found = envelope.text(data)
    assert envelope.text_size(data) == len(found)
    assert b"\n" not in found
    value = json.loads(found)
    if data is None:
        assert value is None
    elif isinstance(value, str):
        assert value.encode() == data
    else:
        assert value.keys() == {"base64"}
        assert base64.b64decode(value["base64"]) == data
        with pytest.raises(UnicodeDecodeError):
            data.decode()


@given(
    MAYBE_BYTES,
    MAYBE_BYTES,
    st.lists(st.tuples(NAMES, MAYBE_BYTES), max_size=3),
    st.integers(-1, 2**63 - 1),
)
def test_envelopes_round_trip(value, key, headers, timestamp) -> None:
    """A line of `records.jsonl` is accepted by `append.jsonl` and holds the same record."""
    record = Record(value, key, headers, timestamp, 5)
    line = envelope.encode(record, PREFIX)
    assert line.count(b"\n") == 1
    again = envelope.decode(line)
    assert (again.value, again.key, list(again.headers)) == (value, key, headers)
    assert again.timestamp == timestamp
    assert again.offset == -1


@given(st.text(max_size=40))
def test_escaped_and_unescaped_text_is_accepted(text: str) -> None:
    """A JSON string, escaped or not, is decoded to its UTF-8 bytes."""
    text = text.encode("utf-8", "ignore").decode()
    for line in (json.dumps({"value": text}), json.dumps({"value": text}, ensure_ascii=False)):
        assert envelope.decode(line.encode()).value == text.encode()


def test_only_the_value_is_required() -> None:
    """Key, headers and timestamp may be missing or null; a null value is a tombstone, not an empty value."""
    assert envelope.decode(b'{"value":""}') == Record(b"")
    assert envelope.decode(b'{"value":null}') == Record(None)
    line = b'{"value":"v","key":null,"headers":null,"timestamp":null}'
    assert envelope.decode(line) == Record(b"v")


def test_fields_that_the_log_assigns_are_ignored() -> None:
    """The log assigns topic, partition, offset and timestamp type, so those of an envelope are ignored."""
    line = b'{"topic":7,"partition":"x","offset":{},"timestamp_type":[],"value":"v"}'
    assert envelope.decode(line) == Record(b"v")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"", "not JSON"),
        (b"hello", "not JSON"),
        (b'{"value":"v"', "not JSON"),
        (b'{"value":"\xff"}', "not JSON"),
        (b'{"value":"v"}{"value":"v"}', "not JSON"),
        (b'["v"]', "one JSON object"),
        (b'"v"', "one JSON object"),
        (b"null", "one JSON object"),
        (b"{}", '"value" is missing'),
        (b'{"key":"k"}', '"value" is missing'),
        (b'{"value":"v","vlaue":1}', "unknown field 'vlaue'"),
        (b'{"value":1}', '"value" must be a string'),
        (b'{"value":["v"]}', '"value" must be a string'),
        (b'{"value":{"base64":"YQ==","x":1}}', '"value" must be a string'),
        (b'{"value":{"base64":1}}', '"value" must be a string'),
        (b'{"value":{"base64":"Y"}}', "invalid base64"),
        (b'{"value":{"base64":"Y Q=="}}', "invalid base64"),
        ('{"value":{"base64":"é"}}'.encode(), "invalid base64"),
        (b'{"value":"v","key":false}', '"key" must be a string'),
        (b'{"value":"v","timestamp":"1"}', '"timestamp" must be ms'),
        (b'{"value":"v","timestamp":1.5}', '"timestamp" must be ms'),
        (b'{"value":"v","timestamp":true}', '"timestamp" must be ms'),
        (b'{"value":"v","timestamp":9223372036854775808}', '"timestamp" must be ms'),
        (b'{"value":"v","headers":{}}', '"headers" must be an array'),
        (b'{"value":"v","headers":["h"]}', "a header must be a pair"),
        (b'{"value":"v","headers":[["h"]]}', "a header must be a pair"),
        (b'{"value":"v","headers":[["h","v","w"]]}', "a header must be a pair"),
        (b'{"value":"v","headers":[[null,"v"]]}', "name cannot be null"),
        (b'{"value":"v","headers":[[1,"v"]]}', '"header name" must be a string'),
    ],
)
def test_bad_envelopes_are_refused_with_the_reason(line: bytes, words: str) -> None:
    """A line that is no envelope raises `InvalidEnvelope`, and the message has the reason."""
    with pytest.raises(InvalidEnvelope, match=words):
        envelope.decode(line)


@given(st.binary(max_size=60) | st.text(max_size=40).map(str.encode))
def test_any_line_is_an_envelope_or_invalid(line: bytes) -> None:
    """Random lines raise no error but `InvalidEnvelope`."""
    try:
        envelope.decode(line)
    except InvalidEnvelope:
        pass


def test_deep_nesting_is_refused_and_not_followed() -> None:
    """A line of a million brackets raises `InvalidEnvelope`, and the process goes on."""
    with pytest.raises(InvalidEnvelope):
        envelope.decode(b'{"value":' + b"[" * 1_000_000)
