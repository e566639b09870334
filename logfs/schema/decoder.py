"""Decodes values of Confluent's serializers: a zero byte, the id of a schema (a big-endian int32), and the data."""

from __future__ import annotations

import subprocess
import time
from typing import TYPE_CHECKING

from logfs.errors import NotDecodable, SchemasUnavailable
from logfs.schema.schemas import AVRO, JSON, PROTOBUF

if TYPE_CHECKING:
    from collections.abc import Callable

    from logfs.schema.schemas import Schema, Schemas

    Decode = Callable[[bytes], bytes]

_HEADER_BYTES = 5
# A missing schema may be registered later, and what an invalid schema refers to may be added. So such a schema is
# looked up again, but not before this time has passed.
_ASK_AGAIN_SECONDS = 1.0
# The most ids of unusable schemas to remember. A limit is needed because invalid data may have any number of ids.
_MOST_UNUSABLE = 10_000


class Decoder:
    """A decoder of values, with the schemas of one source. Not thread-safe."""

    def __init__(self, schemas: Schemas) -> None:
        self._schemas = schemas
        self._known: dict[int, Decode] = {}
        # For the id of each missing or invalid schema, the time (`time.monotonic`) from which it is looked up again,
        # and the reason.
        self._unusable: dict[int, tuple[float, str]] = {}

    def decode(self, data: bytes) -> bytes:
        """Return a value as JSON, in UTF-8, on one line.

        Raises `NotDecodable` if the value does not begin with a zero byte and an id, if its schema is missing or
        invalid, or if the value does not fit its schema. Raises `SchemasUnavailable` if the schemas cannot be read,
        or if a failure of the host, such as a full disk, prevents the use of a schema. Raises `ImportError` if the
        library for the type of schema is not installed.
        """
        number = schema_of(data)
        if number is None:
            raise NotDecodable("the field does not begin with a zero byte and the id of a schema")
        decode = self._known.get(number) or self._find(number)
        try:
            return decode(data[_HEADER_BYTES:])
        except Exception as error:
            # The libraries raise errors of many kinds for data that do not fit.
            raise NotDecodable(
                f"the field does not fit the schema {number} ({_words(error)})"
            ) from None

    def _find(self, number: int) -> Decode:
        until, reason = self._unusable.get(number, (0.0, ""))
        if time.monotonic() < until:
            raise NotDecodable(reason)
        schema = self._schemas.find(number)
        if schema is None:
            raise self._refuse(number, f"the schema {number} is not in {self._schemas}")
        try:
            found = self._known[number] = _compile(schema)
        except ImportError:
            raise
        except (OSError, subprocess.SubprocessError, MemoryError) as error:
            raise SchemasUnavailable(
                f"the schema {number} cannot be used now ({_words(error)})"
            ) from None
        except Exception as error:
            raise self._refuse(
                number, f"the schema {number} cannot be used ({_words(error)})"
            ) from None
        return found

    def _refuse(self, number: int, reason: str) -> NotDecodable:
        """Remember why the schema with the id `number` cannot be used, and return the error to raise."""
        if len(self._unusable) >= _MOST_UNUSABLE:
            self._unusable.clear()
        self._unusable[number] = time.monotonic() + _ASK_AGAIN_SECONDS, reason
        return NotDecodable(reason)


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
