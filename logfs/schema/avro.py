"""Decoding of Avro's binary encoding to JSON.

The JSON is not that of Avro's own JSON encoding: a value of a union is the value itself. Bytes and fixed are base64,
and decimals are strings. Times and dates are strings in ISO 8601. UUIDs are strings of hex digits with hyphens.
"""

from __future__ import annotations

import base64
import io
import math
from datetime import date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import fastavro
import orjson
from fastavro import _read_py
from fastavro.schema import UnknownType

from logfs.schema.avro_forms import has_items_without_bytes, is_recursive

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from logfs.schema.schemas import Schema

_RECORD, _FIELD = "logfs_wrapped_value", "value"


def compile_schema(schema: Schema) -> Callable[[bytes], bytes]:
    """Return the function that decodes data of a schema. Raises the errors of `fastavro` for an invalid schema.

    Raises `ValueError` for an array whose items take no bytes: a few bytes of data could then fill the memory.

    The returned function raises the errors of `fastavro` for data that do not fit, `ValueError` for bytes after them.
    """
    named: dict[str, Any] = {}
    # fastavro keeps the types that a schema refers to only if the schema is a record. The schema is therefore wrapped
    # as the type of the only field of a record. The encoding of such a record is the encoding of its field.
    field = {"name": _FIELD, "type": orjson.loads(schema.text)}
    record = {"type": "record", "name": _RECORD, "fields": [field]}
    parsed = _parse(record, schema.references, named, ())
    if has_items_without_bytes(parsed, named):
        raise ValueError(
            "the schema has arrays whose items take no bytes, so that their number has no limit"
        )
    # Only data of a recursive schema can be nested deeply. Deep nesting would crash fastavro's compiled reader; its
    # reader in Python raises an error instead.
    read = _read_py.schemaless_reader if is_recursive(parsed, named) else fastavro.schemaless_reader
    texts = (schema.text, *schema.references.values())
    has_floats = any(word in text for text in texts for word in ("float", "double"))

    def decode(data: bytes) -> bytes:
        stream = io.BytesIO(data)
        wrapped: Any = read(stream, parsed, None)
        value = wrapped[_FIELD]
        if stream.tell() != len(data):
            raise ValueError(f"{len(data) - stream.tell()} bytes follow the data")
        text = orjson.dumps(value, default=_plain, option=orjson.OPT_PASSTHROUGH_DATETIME)
        if has_floats and b"null" in text:
            # orjson would write null for NaN and the infinities: `_with_infinities` makes strings of them.
            text = orjson.dumps(
                _with_infinities(value), default=_plain, option=orjson.OPT_PASSTHROUGH_DATETIME
            )
        return text

    return decode


def _parse(
    schema: Any, references: Mapping[str, str], named: dict[str, Any], pending: tuple[str, ...]
) -> Any:
    """Return a parsed schema, after parsing the schemas that it refers to.

    `named` collects the parsed types by name. `pending` has the names whose parsing has begun, to detect a circle.
    """
    while True:
        known = dict(named)
        try:
            parsed = fastavro.parse_schema(schema, known)
        except UnknownType as error:
            if error.name in pending or error.name not in references:
                raise
            referred = orjson.loads(references[error.name])
            _parse(referred, references, named, (*pending, error.name))
            continue
        named.update(known)
        return parsed


def _plain(value: Any) -> Any:
    """Return the text of a value whose type orjson does not write as needed. Raises `TypeError` for other types."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, date | time):
        # orjson can write these itself, but orjson 3.13 loses the leading zeros of a fraction of a second.
        return value.isoformat()
    raise TypeError(f"JSON has no form for a value of type {type(value).__name__}")


def _with_infinities(value: Any) -> Any:
    """Return a value with strings in place of NaN and the infinities."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {name: _with_infinities(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_with_infinities(each) for each in value]
    return value
