"""Reads schemas from the topic `_schemas` of a log directory, in which Confluent's registry keeps its schemas.

So the values on the disk of a dead broker can be decoded without a registry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from logfs.errors import SchemasUnavailable
from logfs.schema.schemas import AVRO, Schema, parse_references
from logfs.store.directory import recognition
from logfs.store.internal_topic import batches_past_damage
from logfs.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logfs.format.batches.record import Record

PARTITION = "_schemas-0"


class _Entry(NamedTuple):
    """A schema in the log. `references` has the (name, subject, version) of the schemas that it refers to."""

    kind: str
    text: str
    references: Sequence[tuple[str, str, int]]


class SchemaLog:
    """A source of schemas: the topic `_schemas`. Records of the topic that hold no schema are skipped."""

    def __init__(self, log_dir: str) -> None:
        """Open a log directory read-only. The schemas are read later, in `find`.

        Raises `SchemasUnavailable` if the directory lacks the topic, and the errors of opening a store read-only.
        """
        self._name = f"{log_dir}/{PARTITION}"
        self._store = Store(recognition.log_dirs_of([log_dir]), read_only=True, only=PARTITION)
        if PARTITION not in self._store.registry.homes:
            self._store.close()
            raise SchemasUnavailable(
                f"{log_dir}: has no topic _schemas, where a registry keeps its schemas; give the URL of a registry "
                "(http://…), or a directory with files such as 7.avsc"
            )
        self._by_id: dict[int, _Entry] = {}
        self._by_version: dict[tuple[str, int], _Entry] = {}
        self._end = 0

    def __str__(self) -> str:
        return self._name

    def find(self, number: int) -> Schema | None:
        if number not in self._by_id:
            self._catch_up()
        entry = self._by_id.get(number)
        if entry is None:
            return None
        references: dict[str, str] = {}
        self._add_references(entry, references)
        return Schema(entry.kind, entry.text, references)

    def close(self) -> None:
        self._store.close()

    def _add_references(self, entry: _Entry, texts: dict[str, str]) -> None:
        """Add to `texts`, by name, the text of each schema that `entry` refers to, directly or indirectly."""
        for name, subject, version in entry.references:
            referred = self._by_version.get((subject, version))
            if referred is not None and name not in texts:
                texts[name] = referred.text
                self._add_references(referred, texts)

    def _catch_up(self) -> None:
        """Read the records that were appended since the last call."""
        self._store.refresh()
        log = self._store[PARTITION]
        end = log.log_end_offset
        if end < self._end:
            # The partition was truncated, or was deleted and created again: read it from its beginning.
            self._end = 0
        first = max(self._end, log.log_start_offset)
        if first < end:
            for batch in batches_past_damage(log, first, end, "schemas"):
                if not batch.header.is_control:
                    for record in batch.records():
                        self._apply(record)
        self._end = end

    def _apply(self, record: Record) -> None:
        """Keep the schema in a record, even one that is marked as deleted: older values may be written with it."""
        try:
            key, value = orjson.loads(record.key or b""), orjson.loads(record.value or b"")
            if key["keytype"] != "SCHEMA":
                return
            number, where, entry = _parse(value)
        except (ValueError, KeyError, TypeError):
            return
        self._by_id[number] = self._by_version[where] = entry


def _parse(value: dict[str, Any]) -> tuple[int, tuple[str, int], _Entry]:
    """Return (id, (subject, version), schema) from the JSON object that is the value of a record of `_schemas`."""
    kind, references = str(value.get("schemaType") or AVRO), parse_references(value)
    entry = _Entry(kind, str(value["schema"]), references)
    return int(value["id"]), (str(value["subject"]), int(value["version"])), entry
