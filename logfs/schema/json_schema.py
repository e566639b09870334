"""JSON Schema: the data are JSON already. The code checks that they are JSON, but not that they fit the schema."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

if TYPE_CHECKING:
    from collections.abc import Callable

    from logfs.schema.schemas import Schema

# JSON allows line breaks only between tokens, where a space means the same. In strings they are escaped.
_ONE_LINE = bytes.maketrans(b"\r\n", b"  ")


def compile_schema(schema: Schema) -> Callable[[bytes], bytes]:
    """Return the function that puts JSON data on one line. It raises `ValueError` for data that are not JSON."""
    return _decode


def _decode(data: bytes) -> bytes:
    orjson.loads(data)
    return data.translate(_ONE_LINE)
