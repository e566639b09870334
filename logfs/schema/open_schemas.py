"""Opens a source of schemas, given as the URL of a registry, a directory of schema files, or a log directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from logfs.errors import SchemasUnavailable
from logfs.store.directory.recognition import PathKind, recognise

if TYPE_CHECKING:
    from logfs.schema.schemas import Schemas


def open_schemas(place: str) -> Schemas:
    """Return the source of schemas that `place` names.

    `place` is the URL of a schema registry (http:// or https://), a directory with files such as `7.avsc` (the schema
    with the id 7), or a log directory, mountpoint or bucket with the topic `_schemas`. Raises `InvalidStore` for any
    other URL, and `SchemasUnavailable` for a path that is none of these or has no schemas. Raises the errors of
    `logfs.open` if a log directory cannot be opened.
    """
    if place.lower().startswith(("http://", "https://")):
        from logfs.schema.registry import Registry

        return Registry(place)
    found = recognise(place)
    if found.kind in (PathKind.LOG_DIR, PathKind.MOUNTPOINT, PathKind.BUCKET):
        from logfs.schema.schema_log import SchemaLog

        return SchemaLog(place)
    if not Path(place).is_dir():
        raise SchemasUnavailable(
            f"{place}: is no source of schemas: give the URL of a registry (http://…), a directory with files such "
            "as 7.avsc, or a log directory with the topic _schemas"
        )
    from logfs.schema.schema_files import SchemaFiles

    return SchemaFiles(Path(place))
