"""A single record, as an object and as bytes (kafka-storage 2.2). `columns` handles many records at once."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, SupportsIndex, TypeAlias

from logfs.errors import Corrupt
from logfs.format.base import varint

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

# A value or a key to append; a str is encoded in UTF-8.
Value: TypeAlias = bytes | bytearray | memoryview | str

# The headers of a record to append. The value of a header may be None.
Headers: TypeAlias = "Mapping[str, Value | None] | Iterable[tuple[str, Value | None]]"

NO_TIMESTAMP = -1

# The smallest size of a record in bytes: one byte each for the length, attributes, timestamp delta, offset delta, key
# length, value length and header count.
SMALLEST_RECORD = 7
# The largest number of records in a batch. A batch with more records is refused: even if its bytes stay below the
# limit of `compression`, its columns or its text would take gigabytes. No producer sends so many records.
MOST_RECORDS = 4_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# The types that need no conversion: of a value or a key, of a timestamp, and of headers.
_PLAIN = frozenset((bytes, type(None)))
_TIME = frozenset((int, type(None)))
_PAIRS = frozenset((tuple, list))


class TimestampType(enum.IntEnum):
    """The meaning of a record's timestamp: set by the producer, set by the log, or none (messages of magic 0).

    CREATE_TIME and LOG_APPEND_TIME are the values of bit 3 of a batch's attributes.
    """

    NO_TIMESTAMP_TYPE = -1
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1

    @property
    def label(self) -> str:
        """Kafka's name of the type: `CreateTime`, `LogAppendTime` or `NoTimestampType`."""
        return _LABELS[self]


_LABELS = ("CreateTime", "LogAppendTime", "NoTimestampType")


@dataclass(frozen=True, slots=True)
class Record:
    """A record: one to append, or one that was read.

    `value` and `key` are bytes or None (null); a null value is a tombstone. `headers` are ordered pairs of a name and
    bytes or None; a name may occur more than once. `timestamp` is in ms since the epoch, -1 for none; None in a
    record to append requests the time of the append. `offset` is -1 until the log has assigned an offset.

    In a record to append, the fields may also have other types: bytes may be a bytearray, a memoryview or a str,
    which is encoded in UTF-8; `headers` may be a mapping; `timestamp` may be a datetime with a time zone.
    """

    value: bytes | None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp: int | None = None
    offset: int = -1
    timestamp_type: TimestampType = TimestampType.CREATE_TIME

    if TYPE_CHECKING:
        # The types that the fields of a record to append may have. Those above are the types of a record that was
        # read.
        def __init__(
            self,
            value: Value | None,
            key: Value | None = None,
            headers: Headers = (),
            timestamp: int | datetime | None = None,
            offset: int = -1,
            timestamp_type: TimestampType = TimestampType.CREATE_TIME,
        ) -> None: ...


def as_records(items: Iterable[object]) -> list[Record]:
    """Convert the items that a caller wants to append to records whose keys and values are bytes or None.

    An item is a `Record`, or the value of a record without a key. A value, a key or the value of a header may be
    bytes, bytearray, memoryview, or a str, which is encoded in UTF-8. Headers may be a mapping; they become pairs. A
    timestamp may be a datetime with a time zone; it becomes ms since the epoch. Raises `TypeError`, with the name of
    the field, for any other type, and if `items` is a single record or value. Raises `ValueError` for a str that
    UTF-8 cannot encode, and for a datetime before 1970.
    """
    if isinstance(items, (bytes, bytearray, memoryview, str, Record, Mapping)):
        raise TypeError(f"give a list of records, as in [record], not one {_kind(items)}")
    return [
        item if type(item) is Record and _is_plain(item) else _as_record(item) for item in items
    ]


def _is_plain(record: Record) -> bool:
    """Whether every field of a record has the type that `Record` declares, so that none needs conversion.

    This is written for speed: appends call it for each record.
    """
    if not (
        type(record.value) in _PLAIN
        and type(record.key) in _PLAIN
        and type(record.timestamp) in _TIME
        and type(record.headers) in _PAIRS
    ):
        return False
    for header in record.headers:
        if type(header) is not tuple or len(header) != 2 or type(header[0]) is not str:
            return False
        if type(header[1]) not in _PLAIN:
            return False
    return True


def _as_record(item: object) -> Record:
    if isinstance(item, (bytes, bytearray, memoryview, str)):
        return Record(as_bytes("value", item))
    if not isinstance(item, Record):
        raise TypeError(f"a record must be bytes, str or a logfs.Record, not {_kind(item)}")
    return Record(
        as_bytes("value", item.value),
        as_bytes("key", item.key),
        _as_headers(item.headers),
        as_ms(item.timestamp),
        item.offset,
        item.timestamp_type,
    )


def as_bytes(field: str, value: object) -> bytes | None:
    """Return a value, a key or the value of a header as bytes; None stays None.

    Raises `TypeError`, with the name of the field, for another type, and `ValueError` for a str that UTF-8 cannot
    encode.
    """
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"{field}: {error}") from None
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise TypeError(f"{field} must be bytes, str or None, not {_kind(value)}")


def _as_headers(headers: object) -> Sequence[tuple[str, bytes | None]]:
    wrong = TypeError(
        f"headers must be a dict, or pairs of a name and a value, not {_kind(headers)}"
    )
    try:
        pairs = list(headers.items() if isinstance(headers, Mapping) else headers)  # type: ignore[call-overload]
        found = [(name, value) for name, value in pairs]
    except (TypeError, ValueError):
        raise wrong from None
    if not all(isinstance(pair, (tuple, list)) for pair in pairs):
        # Unpacking above also accepts a str of two letters, which is not a pair, and a set, which has no order.
        raise wrong
    for name, _ in found:
        if not isinstance(name, str):
            raise TypeError(f"the name of a header must be a str, not {_kind(name)}")
    return [(name, as_bytes(f"header {name!r}", value)) for name, value in found]


def as_ms(time: object) -> int | None:
    """Return a time as ms since the epoch; None stays None.

    `time` is an integer in ms since the epoch, or a datetime with a time zone. Raises `TypeError` for any other type,
    and `ValueError` for a datetime before 1970.
    """
    if time is None or type(time) is int:
        return time
    if isinstance(time, datetime):
        if time.utcoffset() is None:
            raise TypeError("timestamp must be a datetime with a time zone, or ms since 1970")
        if time < _EPOCH:
            # Times before 1970 would be negative numbers, and -1 stands for no timestamp.
            raise ValueError(f"timestamp {time} is before 1970")
        return (time - _EPOCH) // timedelta(milliseconds=1)
    if isinstance(time, SupportsIndex) and not isinstance(time, bool):
        return time.__index__()
    raise TypeError(
        f"timestamp must be an int (ms since 1970) or a datetime with a time zone, not {_kind(time)}"
    )


def _kind(item: object) -> str:
    return type(item).__name__


def encode_record(record: Record, *, offset_delta: int, timestamp_delta: int) -> bytes:
    """Return the bytes of a record in a batch, beginning with its length (kafka-storage 2.2).

    The deltas are relative to the batch's base offset and base timestamp (ms). The record's own offset and timestamp
    are not used.
    """
    body = bytearray(1)
    body += varint.encode(varint.wrap(timestamp_delta))
    body += varint.encode(offset_delta)
    _put_bytes(body, record.key)
    _put_bytes(body, record.value)
    body += varint.encode(len(record.headers))
    for name, value in record.headers:
        _put_bytes(body, name.encode("utf-8", "surrogateescape"))
        _put_bytes(body, value)
    return varint.encode(len(body)) + bytes(body)


def decode_record(
    data: bytes | memoryview, position: int, *, base_offset: int, base_timestamp: int
) -> tuple[Record, int]:
    """Return the record at `position` of a batch's uncompressed records, and the position after the record.

    `base_offset` and `base_timestamp` (ms) are those of the batch. Raises `Corrupt` if a number in the record is
    malformed, or the length of the record or of a field does not match the bytes that follow (kafka-storage 2.2).
    """
    size, position = varint.decode(data, position)
    end = position + size
    if size < SMALLEST_RECORD - 1 or end > len(data):
        raise Corrupt(f"a record of {size} bytes at byte {position} does not fit its batch")
    body = data[:end]
    timestamp_delta, position = varint.decode(body, position + 1, varint.VARLONG_BYTES)
    offset_delta, position = varint.decode(body, position)
    key, position = _get_bytes(body, position, "key")
    value, position = _get_bytes(body, position, "value")
    headers, position = decode_headers(body, position)
    if position != end:
        raise Corrupt(f"a record of {size} bytes has {end - position} bytes after its last field")
    record = Record(
        value,
        key,
        headers,
        varint.wrap(base_timestamp + timestamp_delta),
        varint.wrap(base_offset + offset_delta),
    )
    return record, position


def find_record(data: bytes | memoryview, count: int, offset_delta: int) -> int | None:
    """Return the position in `data` of the record with the offset delta `offset_delta`; None if there is none.

    `data` has the uncompressed records of a batch, and `count` is their number. The search ends at the first record
    with this or a greater offset delta. Raises `Corrupt` if the length or a delta of a searched record is malformed.
    Also raises `Corrupt` if all offset deltas are smaller, and bytes follow the last record.
    """
    position = 0
    for _ in range(count):
        size, start = varint.decode(data, position)
        if size < SMALLEST_RECORD - 1 or start + size > len(data):
            raise Corrupt(f"a record of {size} bytes at byte {start} does not fit its batch")
        _, at = varint.decode(data, start + 1, varint.VARLONG_BYTES)
        delta, _ = varint.decode(data, at)
        if delta >= offset_delta:
            return position if delta == offset_delta else None
        position = start + size
    _check_end(data, position, count)
    return None


def skip_records(data: bytes | memoryview, count: int) -> int:
    """Return the position in `data` after the first `count` records of a batch. Only their lengths are read.

    Raises `Corrupt` if a length is malformed, or a record does not fit in `data`.
    """
    position = 0
    for _ in range(count):
        size, position = varint.decode(data, position)
        if size < SMALLEST_RECORD - 1 or position + size > len(data):
            raise Corrupt(f"a record of {size} bytes at byte {position} does not fit its batch")
        position += size
    return position


def decode_headers(
    data: bytes | memoryview, position: int
) -> tuple[Sequence[tuple[str, bytes | None]], int]:
    """Return the headers of a record as (name, value) pairs, and the position after them.

    In `data` the headers begin at `position` with their count. Raises `Corrupt` if the headers are malformed.
    """
    count, position = varint.decode(data, position)
    if count == 0:
        return (), position
    if count < 0 or count > len(data) - position:
        raise Corrupt(
            f"a record has a header count of {count}, but its bytes cannot hold so many headers"
        )
    headers = []
    for _ in range(count):
        name, position = _get_bytes(data, position, "header name")
        if name is None:
            raise Corrupt("a record has a header whose name is null (a length of -1)")
        value, position = _get_bytes(data, position, "header value")
        headers.append((name.decode("utf-8", "surrogateescape"), value))
    return headers, position


def decode_records(
    data: bytes | memoryview, count: int, *, base_offset: int, base_timestamp: int
) -> Iterator[Record]:
    """Yield the records of a batch. Raises `Corrupt` unless `data` consists of exactly `count` valid records."""
    position = 0
    for number in range(count):
        record, position = decode_record(
            data, position, base_offset=base_offset, base_timestamp=base_timestamp
        )
        if number == count - 1:
            _check_end(data, position, count)
        yield record
    if count == 0:
        _check_end(data, 0, count)


def _check_end(data: bytes | memoryview, position: int, count: int) -> None:
    if position != len(data):
        raise Corrupt(f"{len(data) - position} bytes follow the last of {count} records")


def _put_bytes(out: bytearray, data: bytes | None) -> None:
    if data is None:
        out += b"\x01"
    else:
        out += varint.encode(len(data))
        out += data


def _get_bytes(data: bytes | memoryview, position: int, what: str) -> tuple[bytes | None, int]:
    size, position = varint.decode(data, position)
    if size == -1:
        return None, position
    end = position + size
    if size < 0 or end > len(data):
        raise Corrupt(f"the size {size} of a {what} does not fit its record")
    return bytes(data[position:end]), end
