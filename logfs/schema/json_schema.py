"""Puts data of Confluent's JSON Schema serializer, which are JSON, on one line.

The data are checked to be JSON. They are not checked against the schema.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

if TYPE_CHECKING:
    from collections.abc import Callable

    from logfs.schema.schemas import Schema

# JSON allows plain line breaks only between tokens, where spaces can take their place. In strings they are escaped.
_ONE_LINE = bytes.maketrans(b"\r\n", b"  ")


def compile_schema(schema: Schema) -> Callable[[bytes], bytes]:
    """Return a function that puts JSON data on one line, and that raises `ValueError` for data that are not JSON."""
    return _decode


def _decode(data: bytes) -> bytes:
    orjson.loads(data)
    return data.translate(_ONE_LINE)
