"""Tables of Spark's catalog: the options of CREATE TABLE, which Spark does not pass to the reads of a Python source.

Spark asks a source for the schema once, at CREATE TABLE, keeps it in the catalog, and gives it to every read of the
table. So the options are kept in the metadata of the first column. Writes do not use them: at INSERT INTO, Spark
gives a sink the columns of the query, whose metadata may be that of another table.
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
# A property of every table. At CREATE TABLE, Spark adds the properties to the options, so options with this name are
# those of a CREATE TABLE.
_OF_A_TABLE = "provider"
# At CREATE TABLE, Spark passes each option under two names: its own, and its own with this prefix.
_OPTION = "option."


def options_to_create(options: Mapping[str, str]) -> CaseInsensitiveDict | None:
    """Return the options that a CREATE TABLE gives to the source; None if `options` are not of a CREATE TABLE.

    Raises `ValueError` for a table without a path.
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
    """Return the options of a read of a table: those in the metadata of `schema`, overridden by `options`.

    If `options` have a path, the read is not of a table, and they are returned unchanged. If `options` have one of
    `SELECTIONS`, it replaces the selection of the table.
    """
    kept = schema.fields[0].metadata.get(_METADATA) if schema.fields else None
    if kept is None or "path" in options or "paths" in options:
        return options
    of_table = json.loads(kept)
    if any(name in options for name in SELECTIONS):
        for name in SELECTIONS:
            of_table.pop(name.lower(), None)
    return CaseInsensitiveDict({**of_table, **options})
