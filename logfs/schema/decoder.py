"""Decodes values of Confluent's serializers: a zero byte, the id of a schema (a big-endian int32), and the data."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from logfs.errors import NotDecodable
from logfs.schema.schemas import AVRO, JSON, PROTOBUF

if TYPE_CHECKING:
    from collections.abc import Callable

    from logfs.schema.schemas import Schema, Schemas

    Decode = Callable[[bytes], bytes]

_HEADER_BYTES = 5
# A missing schema may be registered later, so it is looked up again, but not before this time has passed.
_ASK_AGAIN_SECONDS = 1.0
# The most ids of missing schemas to remember. A limit is needed because invalid data may have any number of ids.
_MOST_MISSING = 10_000


class Decoder:
    """A decoder of values, with the schemas of one source. Not thread-safe."""

    def __init__(self, schemas: Schemas) -> None:
        self._schemas = schemas
        self._known: dict[int, Decode | NotDecodable] = {}
        # For the id of each missing schema, the time (`time.monotonic`) from which it is looked up again.
        self._missing: dict[int, float] = {}

    def decode(self, data: bytes) -> bytes:
        """Return a value as JSON, in UTF-8, on one line.

        Raises `NotDecodable` if the value does not begin with a zero byte and an id, if its schema is missing or
        invalid, or if the value does not fit its schema. Raises `SchemasUnavailable` if the schemas cannot be read,
        and `ImportError` if the library for the type of schema is not installed.
        """
        number = schema_of(data)
        if number is None:
            raise NotDecodable("the field does not begin with a zero byte and the id of a schema")
        decode = self._known.get(number) or self._find(number)
        if isinstance(decode, NotDecodable):
            raise decode
        try:
            return decode(data[_HEADER_BYTES:])
        except Exception as error:
            # The libraries raise errors of many kinds for data that do not fit.
            raise NotDecodable(
                f"the field does not fit the schema {number} ({_words(error)})"
            ) from None

    def _find(self, number: int) -> Decode | NotDecodable:
        now = time.monotonic()
        missing = NotDecodable(f"the schema {number} is not in {self._schemas}")
        if now < self._missing.get(number, 0):
            return missing
        schema = self._schemas.find(number)
        if schema is None:
            if len(self._missing) >= _MOST_MISSING:
                self._missing.clear()
            self._missing[number] = now + _ASK_AGAIN_SECONDS
            return missing
        try:
            found: Decode | NotDecodable = _compile(schema)
        except ImportError:
            raise
        except Exception as error:
            found = NotDecodable(f"the schema {number} cannot be used ({_words(error)})")
        self._known[number] = found
        return found


def schema_of(data: bytes) -> int | None:
    """Return the id of a value's schema, an int32 of 0 or more; None if the value does not begin with an id."""
    if len(data) < _HEADER_BYTES or data[0]:
        return None
    number = int.from_bytes(data[1:_HEADER_BYTES], "big", signed=True)
    return number if number >= 0 else None


def _compile(schema: Schema) -> Decode:
    """Return a function that decodes data of a schema. Raises `NotDecodable` for an unknown type of schema."""
    if schema.kind == AVRO:
        from logfs.schema.avro import compile_schema
    elif schema.kind == PROTOBUF:
        from logfs.schema.protobuf import compile_schema
    elif schema.kind == JSON:
        from logfs.schema.json_schema import compile_schema
    else:
        raise NotDecodable(f"the schema type {schema.kind} is not AVRO, PROTOBUF or JSON")
    return compile_schema(schema)


def _words(error: Exception) -> str:
    """Return the message of an error in one line of at most 200 characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else f"{text[:199]}…"
