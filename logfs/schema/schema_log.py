"""Reads schemas from the topic `_schemas` of a log directory, in which Confluent's registry keeps its schemas.

So the values on the disk of a dead broker can be decoded without a registry.
"""

from __future__ import annotations

import re
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
_DEFAULT_CONTEXT = "."
# The beginning of the name of a subject that is in another context, such as ":.staging:users-value".
_CONTEXT = re.compile(r":(\.[^:]*):")


class _Entry(NamedTuple):
    """A schema in the log. `references` has the (name, subject, version) of the schemas that it refers to.

    `context` is the context of the schema's subject. Each context of a registry has its own ids and subjects.
    """

    context: str
    kind: str
    text: str
    references: Sequence[tuple[str, str, int]]


class _Schemas(Replay):
    """The schemas in the records of the topic `_schemas`, which has one partition.

    `by_id` maps each id to the schemas that have it, by context. `by_version` maps (context, subject without the
    context, version) to the schema.
    """

    def __init__(self, log: Log, what: str) -> None:
        super().__init__(log, what)
        self.by_id: dict[int, dict[str, _Entry]] = {}
        self.by_version: dict[tuple[str, str, int], _Entry] = {}

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
            number, subject, version, entry = _parse(value)
        except (ValueError, KeyError, TypeError, AttributeError):
            return
        self.by_id.setdefault(number, {})[entry.context] = entry
        self.by_version[entry.context, subject, version] = entry

    def has_default(self, number: int) -> bool:
        """Whether the default context has a schema with the id `number`."""
        return _DEFAULT_CONTEXT in self.by_id.get(number, {})

    def find(self, number: int) -> _Entry | None:
        """Return the schema with the id `number`: that of the default context, or of the only context with the id.

        None if no context has the id, or if the default context lacks it and several others have it.
        """
        found = self.by_id.get(number, {})
        if len(found) == 1:
            return next(iter(found.values()))
        return found.get(_DEFAULT_CONTEXT)

    def references(self, entry: _Entry) -> dict[str, str]:
        """Return, by name, the text of each schema that `entry` refers to, directly or indirectly.

        A subject without a context is in the context of the schema that refers to it, or, if it is missing there, in
        the default context. A reference to a schema that is not in the log is left out.
        """
        texts: dict[str, str] = {}
        pending = [entry]
        while pending:
            referring = pending.pop()
            for name, subject, version in referring.references:
                context, rest = _split(subject)
                contexts = (referring.context, _DEFAULT_CONTEXT) if context is None else (context,)
                found = (self.by_version.get((each, rest, version)) for each in contexts)
                referred = next(filter(None, found), None)
                if referred is not None and name not in texts:
                    texts[name] = referred.text
                    pending.append(referred)
        return texts


class SchemaLog:
    """A source of schemas: the topic `_schemas`. Records of the topic that hold no schema are skipped.

    An id names the schema with this id in the registry's default context. If the default context has none, the id
    names the schema of the only other context that has it; if several have it, the id names no schema.
    """

    def __init__(self, log_dir: str) -> None:
        """Open a log directory, mountpoint or bucket read-only. The schemas are read later, in `find`.

        Raises `SchemasUnavailable` if it lacks the topic, and the errors of `logfs.open` if it cannot be opened.
        """
        self._log_dir = log_dir
        self._store = Store(recognition.log_dirs_of([log_dir]), read_only=True, only=PARTITION)
        try:
            self._replay = _Schemas(self._log(), "schemas")
        except BaseException:
            self._store.close()
            raise

    def __str__(self) -> str:
        return f"{self._log_dir}/{PARTITION}"

    def find(self, number: int) -> Schema | None:
        if not self._replay.has_default(number):
            self._store.refresh()
            log = self._log()
            if log is not self._replay.log:
                # The partition was deleted and created again.
                self._replay = _Schemas(log, "schemas")
            self._replay.catch_up()
        entry = self._replay.find(number)
        if entry is None:
            return None
        return Schema(entry.kind, entry.text, self._replay.references(entry))

    def close(self) -> None:
        self._store.close()

    def _log(self) -> Log:
        if PARTITION not in self._store.registry.homes:
            raise SchemasUnavailable(
                f"{self._log_dir}: has no topic _schemas, where a registry keeps its schemas; give the URL of a "
                "registry (http://…), or a directory with files such as 7.avsc"
            )
        return self._store[PARTITION]


def _parse(value: dict[str, Any]) -> tuple[int, str, int, _Entry]:
    """Return (id, subject without its context, version, schema) from the JSON value of a record of `_schemas`."""
    kind, references = str(value.get("schemaType") or AVRO), parse_references(value)
    context, subject = _split(str(value["subject"]))
    entry = _Entry(context or _DEFAULT_CONTEXT, kind, str(value["schema"]), references)
    return int(value["id"]), subject, int(value["version"]), entry


def _split(subject: str) -> tuple[str | None, str]:
    """Return (context, rest) of the name of a subject. The context is None if the name does not begin with one."""
    found = _CONTEXT.match(subject)
    return (None, subject) if found is None else (found[1], subject[found.end() :])
