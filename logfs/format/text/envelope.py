"""The envelope of a record: a line with a JSON object of all the record's fields, and its partition and offset.

    {"topic":"orders","partition":0,"offset":7,"timestamp":1638100400000,"timestamp_type":"CreateTime",
     "key":null,"value":"hello","headers":[["h","1"]]}

Text is a JSON string, bytes that are not UTF-8 are {"base64":"…"}, and null is null. The text is canonical: the
same record always gives the same bytes, so that the size of its envelope can be computed without writing it.

Other code also depends on this layout: the kernels that write and measure envelopes (`json_kernels`, `text_kernels`,
`batch_kernels`), `encoding/batch_builder` and `envelope_parser`. The `.textindex` files have sums of envelope sizes,
and no version. So a change of the layout would make existing `.textindex` files wrong.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from logfs.errors import InvalidEnvelope, InvalidRecord
from logfs.format.batches.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable

    from logfs.format.base.names import TopicPartition

_INT64 = range(-(2**63), 2**63)
_OFFSETS = range(2**63)
_PARTITIONS = range(2**31)


class JsonText(bytes):
    """A key or a value that is JSON. An envelope contains this JSON unchanged, and not as a string."""


class PlacedRecord(NamedTuple):
    """A record from an envelope, with the topic, partition and offset in the envelope.

    Each of these three is None if the envelope does not have it.
    """

    topic: str | None
    partition: int | None
    offset: int | None
    record: Record


def prefix(partition: TopicPartition) -> bytes:
    """Return the beginning of every envelope of a partition, up to the digits of the offset."""
    return b'{"topic":"%s","partition":%d,"offset":' % (
        partition.topic.encode(),
        partition.partition,
    )


def encode(
    record: Record, prefix: bytes, as_json: Callable[[bytes | None], bytes] | None = None
) -> bytes:
    """Return the envelope line of a record, newline included.

    `prefix` is the beginning that all envelopes of the partition share, as `prefix()` returns it. `as_json` converts
    each key, value, header name and header value to JSON; the default is the function `text`.
    """
    as_json = as_json or text
    headers = b",".join(
        b"[%s,%s]" % (as_json(name.encode("utf-8", "surrogateescape")), as_json(value))
        for name, value in record.headers
    )
    return b'%s%d,"timestamp":%d,"timestamp_type":"%s","key":%s,"value":%s,"headers":[%s]}\n' % (
        prefix,
        record.offset,
        -1 if record.timestamp is None else record.timestamp,
        record.timestamp_type.label.encode(),
        as_json(record.key),
        as_json(record.value),
        headers,
    )


def text(data: bytes | None) -> bytes:
    """Return bytes as JSON: a string if they are UTF-8, {"base64":"…"} if they are not, null for None.

    A `JsonText` is JSON already, and is returned as it is.
    """
    if data is None:
        return b"null"
    if isinstance(data, JsonText):
        return data
    try:
        return orjson.dumps(data.decode())
    except UnicodeDecodeError:
        return only_base64(data)


def only_text(data: bytes | None) -> bytes:
    """Return bytes as a JSON string, null for None. Raises `InvalidRecord` for bytes that are not UTF-8."""
    try:
        return b"null" if data is None else orjson.dumps(data.decode())
    except UnicodeDecodeError as error:
        raise InvalidRecord(f"{data!r:.80} is not UTF-8: {error.reason}") from None


def only_base64(data: bytes | None) -> bytes:
    """Return bytes as the JSON object {"base64":"…"}, null for None."""
    return b"null" if data is None else b'{"base64":"%s"}' % base64.b64encode(data)


def text_size(data: bytes | None) -> int:
    """Return the length in bytes of `data` as JSON, in the form that the function `text` returns."""
    return len(text(data))


def decode(line: bytes | memoryview) -> Record:
    """Return the record in an envelope line, for an append.

    `value` is required; `key`, `headers` and `timestamp` may be missing. `topic`, `partition`, `offset` and
    `timestamp_type` are ignored, because the log assigns them. Raises `InvalidEnvelope` if the line is not a valid
    envelope.
    """
    return _record(_parse(line))


def decode_placed(line: bytes | memoryview) -> PlacedRecord:
    """Return the record in an envelope line, with the topic, partition and offset in the line.

    Raises `InvalidEnvelope` if the line is not a valid envelope.
    """
    envelope = _parse(line)
    topic = envelope.get("topic")
    if topic is not None and not isinstance(topic, str):
        raise InvalidEnvelope(f'"topic" must be a string, not {topic!r}')
    partition = _number(envelope, "partition", _PARTITIONS)
    return PlacedRecord(topic, partition, _number(envelope, "offset", _OFFSETS), _record(envelope))


def _parse(line: bytes | memoryview) -> dict[str, Any]:
    try:
        envelope = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise InvalidEnvelope(f"not JSON: {error}") from None
    if not isinstance(envelope, dict):
        raise InvalidEnvelope("an envelope must be one JSON object on one line")
    if not envelope.keys() <= _FIELDS:
        unknown = envelope.keys() - _FIELDS
        raise InvalidEnvelope(
            f"unknown field {min(unknown)!r}; the fields of an envelope are {', '.join(_ORDER)}"
        )
    if "value" not in envelope:
        raise InvalidEnvelope('"value" is missing; write null for a tombstone')
    return envelope


def _record(envelope: dict[str, Any]) -> Record:
    timestamp = envelope.get("timestamp")
    if timestamp is not None and (type(timestamp) is not int or timestamp not in _INT64):
        raise InvalidEnvelope(
            f'"timestamp" must be ms since the epoch as an integer, not {timestamp!r}'
        )
    return Record(
        _bytes(envelope["value"], "value"),
        _bytes(envelope.get("key"), "key"),
        _headers(envelope.get("headers")),
        timestamp,
    )


def _number(envelope: dict[str, Any], field: str, allowed: range) -> int | None:
    number: Any = envelope.get(field)
    if number is not None and (type(number) is not int or number not in allowed):
        raise InvalidEnvelope(
            f'"{field}" must be an integer from 0 to {allowed[-1]}, not {number!r}'
        )
    return number


_ORDER = ("topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers")
_FIELDS = frozenset(_ORDER)


def _bytes(value: Any, field: str) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and value.keys() == {"base64"} and isinstance(value["base64"], str):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except ValueError as error:  # binascii.Error, or text that is not ASCII
            raise InvalidEnvelope(f'"{field}" has invalid base64: {error}') from None
    raise InvalidEnvelope(f'"{field}" must be a string, null or {{"base64": "…"}}')


def _headers(headers: Any) -> tuple[tuple[str, bytes | None], ...]:
    if headers is None:
        return ()
    if not isinstance(headers, list):
        raise InvalidEnvelope('"headers" must be an array of [name, value] pairs')
    pairs = []
    for header in headers:
        if not isinstance(header, list) or len(header) != 2:
            raise InvalidEnvelope("a header must be a pair: [name, value]")
        name = _bytes(header[0], "header name")
        if name is None:
            raise InvalidEnvelope("a header's name cannot be null")
        pairs.append((name.decode("utf-8", "surrogateescape"), _bytes(header[1], "header value")))
    return tuple(pairs)
