"""Reads schemas from the topic `_schemas` of a log directory, in which Confluent's registry keeps its schemas.

So the values on the disk of a dead broker can be decoded without a registry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from logfs.errors import SchemasUnavailable
from logfs.schema.schemas import AVRO, Schema, parse_references
from logfs.store.directory import recognition
from logfs.store.internal_topic import Replay
from logfs.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logfs.format.batches.batch import Batch
    from logfs.format.batches.record import Record
    from logfs.log.read.log import Log

PARTITION = "_schemas-0"


class _Entry(NamedTuple):
    """A schema in the log. `references` has the (name, subject, version) of the schemas that it refers to."""

    kind: str
    text: str
    references: Sequence[tuple[str, str, int]]


class _Schemas(Replay):
    """The schemas in the partition: `by_id`, and `by_version`, whose keys are (subject, version)."""

    def __init__(self, log: Log, what: str) -> None:
        super().__init__(log, what)
        self.by_id: dict[int, _Entry] = {}
        self.by_version: dict[tuple[str, int], _Entry] = {}

    def forget(self) -> None:
        self.by_id.clear()
        self.by_version.clear()

    def apply(self, batch: Batch) -> None:
        if not batch.header.is_control:
            for record in batch.records():
                self._apply_record(record)

    def _apply_record(self, record: Record) -> None:
        """Keep the schema in a record, even if it is marked as deleted: older values can still have its id."""
        try:
            key, value = orjson.loads(record.key or b""), orjson.loads(record.value or b"")
            if key["keytype"] != "SCHEMA":
                return
            number, where, entry = _parse(value)
        except (ValueError, KeyError, TypeError):
            return
        self.by_id[number] = self.by_version[where] = entry

    def references(self, entry: _Entry) -> dict[str, str]:
        """Return, by name, the text of each schema that `entry` refers to, directly or indirectly."""
        texts: dict[str, str] = {}
        pending = [entry]
        while pending:
            for name, subject, version in pending.pop().references:
                referred = self.by_version.get((subject, version))
                if referred is not None and name not in texts:
                    texts[name] = referred.text
                    pending.append(referred)
        return texts


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
        self._replay = _Schemas(self._store[PARTITION], "schemas")

    def __str__(self) -> str:
        return self._name

    def find(self, number: int) -> Schema | None:
        if number not in self._replay.by_id:
            self._store.refresh()
            log = self._store[PARTITION]
            if log is not self._replay.log:
                # The partition was deleted and created again.
                self._replay = _Schemas(log, "schemas")
            self._replay.catch_up()
        entry = self._replay.by_id.get(number)
        if entry is None:
            return None
        return Schema(entry.kind, entry.text, self._replay.references(entry))

    def close(self) -> None:
        self._store.close()


def _parse(value: dict[str, Any]) -> tuple[int, tuple[str, int], _Entry]:
    """Return (id, (subject, version), schema) from the JSON object that is the value of a record of `_schemas`."""
    kind, references = str(value.get("schemaType") or AVRO), parse_references(value)
    entry = _Entry(kind, str(value["schema"]), references)
    return int(value["id"]), (str(value["subject"]), int(value["version"])), entry
