"""Decodes Avro's binary encoding to JSON.

This JSON differs from Avro's own JSON encoding: a value of a union is written without its type. Values of the types
bytes and fixed are base64. Decimals are strings, times and dates are strings in ISO 8601, and UUIDs are strings of
hex digits with hyphens.
"""

from __future__ import annotations

import base64
import io
import math
from datetime import date, datetime, time
from decimal import MAX_PREC, Decimal
from typing import TYPE_CHECKING, Any

import fastavro
import orjson
from fastavro import _read_py
from fastavro.schema import UnknownType

from logfs.schema.avro_forms import forms, has_items_without_bytes, is_recursive

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from logfs.schema.schemas import Schema

_RECORD, _FIELD = "logfs_wrapped_value", "value"


def compile_schema(schema: Schema) -> Callable[[bytes], bytes]:
    """Return a function that decodes data of a schema to JSON.

    Raises the errors of `fastavro` for an invalid schema. Raises `ValueError` for a schema with an array whose items
    take no bytes, because a few bytes of data could then fill the memory.

    The returned function raises the errors of `fastavro` for data that do not fit the schema, and `ValueError` for
    extra bytes after the data.
    """
    named: dict[str, Any] = {}
    # fastavro keeps the types that a schema refers to only if the schema is a record. So wrap the schema in a record
    # whose only field has this schema. The encoding of such a record is the encoding of its field.
    field = {"name": _FIELD, "type": orjson.loads(schema.text)}
    record = {"type": "record", "name": _RECORD, "fields": [field]}
    parsed = _parse(record, schema.references, named, ())
    if has_items_without_bytes(parsed, named):
        raise ValueError(
            "the schema is not supported: it has an array whose items take no bytes, such as an array of null, so "
            "that a few bytes could claim any number of items"
        )
    for form in forms(parsed, named):
        if (
            isinstance(form, dict)
            and form.get("logicalType") == "decimal"
            and form.get("precision")
        ):
            # fastavro rounds decimals to the precision, but a writer need not keep to it.
            form["precision"] = MAX_PREC
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
            raise ValueError(f"{len(data) - stream.tell()} extra bytes follow the Avro value")
        text = orjson.dumps(value, default=_plain, option=orjson.OPT_PASSTHROUGH_DATETIME)
        if has_floats and b"null" in text:
            # orjson has written null for NaN and the infinities, if there were any. Write strings for them instead.
            text = orjson.dumps(
                _with_infinities(value), default=_plain, option=orjson.OPT_PASSTHROUGH_DATETIME
            )
        return text

    return decode


def _parse(
    schema: Any, references: Mapping[str, str], named: dict[str, Any], pending: tuple[str, ...]
) -> Any:
    """Parse a schema, after the schemas that it refers to, and return it as fastavro's parsed schema.

    `references` has the texts of the other schemas by name. `named` collects the parsed types by name. `pending` has
    the names of the schemas that are being parsed, to detect circular references.
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
    """Return bytes, a decimal, a date or a time as text. `orjson.dumps` calls this for such values.

    Raises `TypeError` for other types.
    """
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, date | time):
        # Do not let orjson write dates and times: orjson 3.13 loses the leading zeros of a fraction of a second.
        return value.isoformat()
    raise TypeError(f"JSON has no form for a value of type {type(value).__name__}")


def _with_infinities(value: Any) -> Any:
    """Return a copy of a value in which NaN and infinities are "NaN", "Infinity" and "-Infinity"."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {name: _with_infinities(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_with_infinities(each) for each in value]
    return value
