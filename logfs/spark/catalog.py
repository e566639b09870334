"""Keeps the options of CREATE TABLE for later reads of the table, because Spark does not pass the options to reads.

At CREATE TABLE, Spark asks the source for its schema and keeps this schema in the catalog. Spark then gives the
schema to every read of the table. So the options are kept in the schema, in the metadata of the first column. A write
to the table cannot use these options: at INSERT INTO, Spark gives the sink the columns of the query, whose metadata
can be that of another table.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructField, StructType

from logfs.spark.known_names import SELECTIONS
from logfs.spark.options import paths_of

if TYPE_CHECKING:
    from collections.abc import Mapping

_METADATA = "logfs.options"
# The name of a property that every table has. Spark passes the properties of a table among the options only at CREATE
# TABLE. So if the options contain this name, they are those of a CREATE TABLE.
_OF_A_TABLE = "provider"
# At CREATE TABLE, Spark passes each option twice: under its own name, and under its name with this prefix.
_OPTION = "option."


def options_to_create(options: Mapping[str, str]) -> CaseInsensitiveDict | None:
    """Return the options in a CREATE TABLE statement, or None if `options` are not from a CREATE TABLE.

    `options` are those that Spark passes to the data source. Raises `ValueError` if the table has no path.
    """
    if _OF_A_TABLE not in options:
        return None
    found = CaseInsensitiveDict(
        {
            name.removeprefix(_OPTION): value
            for name, value in options.items()
            if name.startswith(_OPTION) or name == "path"
        }
    )
    paths_of(found)
    return found


def with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Return the schema with the options of a table in the metadata of its first column."""
    first, *others = schema.fields
    metadata = {**first.metadata, _METADATA: json.dumps(dict(options))}
    return StructType([StructField(first.name, first.dataType, first.nullable, metadata), *others])


def options_of_table(options: Mapping[str, str], schema: StructType) -> Mapping[str, str]:
    """Return the options for a read of a table: those kept in the metadata of `schema`, overridden by `options`.

    If `options` have a path, the read is not of a table, and `options` are returned unchanged. If `options` have one
    of assign, subscribe and subscribePattern, all three of these options of the table are left out.
    """
    kept = schema.fields[0].metadata.get(_METADATA) if schema.fields else None
    if kept is None or "path" in options or "paths" in options:
        return options
    of_table = json.loads(kept)
    if any(name in options for name in SELECTIONS):
        for name in SELECTIONS:
            of_table.pop(name.lower(), None)
    return CaseInsensitiveDict({**of_table, **options})
