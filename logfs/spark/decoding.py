"""Implements `logfs.spark.decode`, which decodes a column of values of Confluent's serializers to JSON."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.functions import arrow_udf  # type: ignore[attr-defined]

from logfs.errors import NotDecodable
from logfs.schema.decoder import Decoder, schema_of
from logfs.schema.open_schemas import open_schemas
from logfs.spark.workers import naming_host

if TYPE_CHECKING:
    from pyspark.sql import Column

_TYPE = "schema_id int, json string, error string"
_ARROW_TYPE = pa.struct([("schema_id", pa.int32()), ("json", pa.string()), ("error", pa.string())])


def decode(column: Column | str, schemas: str) -> Column:
    """Return a column of structs with the values of the binary column `column` decoded to JSON.

    The fields are `schema_id` (null if a value does not begin with an id), `json` (null if a value cannot be decoded)
    and `error` (the reason, else null). All three are null for a null value. `schemas` is the URL of a schema
    registry, or the path of a directory of schema files, or of a log directory with the topic `_schemas`. The
    executors read the schemas, so a path must lead to them on each machine.
    """
    place = schemas if "://" in schemas else os.path.abspath(schemas)

    @arrow_udf(_TYPE)  # type: ignore[untyped-decorator]
    def decoded(values: pa.Array) -> pa.Array:
        return _decode_all(values, place)

    found: Column = decoded(column)
    return found


def _decode_all(values: pa.Array, place: str) -> pa.Array:
    decoder = _decoder(place)
    rows: list[tuple[int | None, str | None, str | None]] = []
    for value in values.to_pylist():
        if value is None:
            rows.append((None, None, None))
            continue
        try:
            rows.append((schema_of(value), decoder.decode(value).decode(), None))
        except NotDecodable as error:
            rows.append((schema_of(value), None, str(error)))
    names = [field.name for field in _ARROW_TYPE]
    return pa.array([dict(zip(names, row, strict=True)) for row in rows], _ARROW_TYPE)


@lru_cache(maxsize=16)
def _decoder(place: str) -> Decoder:
    """Return the decoder for the schemas at `place`. Later calls in this process return the same decoder."""
    with naming_host():
        return Decoder(open_schemas(place))
