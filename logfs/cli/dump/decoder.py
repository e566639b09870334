"""Decodes records of `__consumer_offsets` as kafka-dump-log does, with its messages for undecodable records.

kafka-storage 12 describes these records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logfs.cli.dump.lines import DELETED, java_text
from logfs.errors import Corrupt
from logfs.format.messages import group_schema
from logfs.format.messages.group_record import key_view, value_view
from logfs.format.messages.message import Malformed, parse_version

if TYPE_CHECKING:
    from logfs.format.batches.record import Record
    from logfs.format.messages.message import Message, MessageSchema


class _Undecodable(Exception):
    """kafka-dump-log cannot decode a record. The message of this error is the reason that kafka-dump-log prints."""


def decode_group_record(record: Record) -> tuple[Any, Any]:
    """Return (key, payload) of a record of `__consumer_offsets` as mappings; for a null value, payload is `DELETED`.

    For a record that kafka-dump-log cannot decode, the key is the message that kafka-dump-log prints, and the payload
    is None. Raises `Corrupt` for a record without a key, on which kafka-dump-log fails with an exception.
    """
    if record.key is None:
        raise Corrupt(
            f"record {record.offset} has no key, so it is not a record of __consumer_offsets"
        )
    try:
        kind = _version(record.key, "key")
        if kind not in group_schema.KEYS:
            return f"Unknown record type {kind} at offset {record.offset}, skipping.", None
        key = _parse(group_schema.KEYS[kind], record.key, "key")
        return _readable(key_view(key)), _payload(kind, record.value)
    except _Undecodable as reason:
        return f"Error at offset {record.offset}, skipping. {reason}", None


def _payload(kind: int, value: bytes | None) -> Any:
    if value is None:
        return DELETED
    schema = group_schema.VALUES[kind]
    version = _version(value, "value")
    if not 0 <= version <= schema.newest:
        raise _Undecodable(f"Found an unknown record version {version} for {kind} type")
    return _readable(value_view(_parse(schema, value, "value")))


def _version(data: bytes, what: str) -> int:
    try:
        return parse_version(data, what)
    except Malformed:
        raise _Undecodable(f"Could not read version from {what}'s buffer.") from None


def _parse(schema: MessageSchema, data: bytes, what: str) -> Message:
    try:
        return schema.parse_leniently(data)
    except Malformed as error:
        version = parse_version(data, what)
        raise _Undecodable(
            f"Could not read record with version {version} from {what}'s buffer due to: {error.reason}."
        ) from None


def _readable(value: Any) -> Any:
    """Return `value` with U+FFFD for the malformed UTF-8 in all of its strings, as Java decodes them."""
    if isinstance(value, str):
        return java_text(value.encode("utf-8", "surrogateescape"))
    if isinstance(value, dict):
        return {name: _readable(field) for name, field in value.items()}
    return [_readable(item) for item in value] if isinstance(value, list) else value
