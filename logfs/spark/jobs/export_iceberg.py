"""Publishes an export as Apache Iceberg tables, one for each topic, with an SQLite catalog in the target directory.

    target/catalog.db                the catalog, for pyiceberg's `SqlCatalog`
    target/logfs/orders/data/        the Parquet files of the table `logfs.orders`
    target/logfs/orders/metadata/    its snapshots

A commit changes one table atomically. Its snapshot stores the offsets at which the export ended; the next export
begins at the offsets of the current snapshot, also after a rollback. The properties of the table store the offsets,
too: other programs add snapshots without offsets, and remove the older snapshots.

An export commits its tables one by one. Before the first commit, it stores the offsets at which it begins in the
properties of the namespace. After the last commit, it removes them. If it is killed in between, the next export uses
them for the topics whose tables have no offsets yet.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from logfs.errors import InvalidSetting, LogfsError
from logfs.log.disk.disk import Disk
from logfs.spark.jobs.export_files import NAMESPACE, iceberg_schema
from logfs.spark.jobs.job_runner import JobFailed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from logfs.spark.jobs.export_files import WrittenFile
    from logfs.spark.options import Selection
    from logfs.spark.topics import OffsetsJson

_OFFSETS = "logfs.offsets"
# The property of a table with the sequence number of the snapshot that has the offsets in `_OFFSETS`.
_SEQUENCE_NUMBER = "logfs.offsets.sequence-number"
# The property of the namespace with the offsets at which the last export began. It is removed when the export has
# committed all its tables.
_BEGINS = "logfs.begins"
CATALOG = "catalog.db"
_PARTITION_FIELD = "date"
# The properties of the tables, which select the columns with statistics. Readers skip data files by the statistics.
_PROPERTIES = {
    "write.metadata.metrics.default": "none",
    **{
        f"write.metadata.metrics.column.{name}": "full"
        for name in ("partition", "offset", "timestamp")
    },
}


def check_directory(directory: Path) -> None:
    """Raise `InvalidSetting` if pyiceberg cannot use the path `directory`.

    pyiceberg parses a path as a URI: it drops the text after "?" or "#", and drops tabs and line breaks.
    """
    text = str(directory)
    if not (text.isprintable() and set(text).isdisjoint("?#")):
        raise InvalidSetting(
            f"{text!r}: a target with Iceberg tables must not have '?', '#' or unprintable characters in its path"
        )


class IcebergTables:
    """The Iceberg tables in a directory, one for each topic."""

    def __init__(self, directory: Path) -> None:
        """Open the catalog in `directory`, which must exist. The catalog is created if it is missing.

        `check_directory` must accept the directory. Raises `LogfsError` if pyiceberg is not installed, or if the
        catalog cannot be opened.
        """
        try:
            from pyiceberg.catalog.sql import SqlCatalog
            from sqlalchemy import URL
        except ImportError:
            raise LogfsError(
                "pyiceberg is not installed: install the wheel with its extra, logfs[iceberg]"
            ) from None
        self._directory = directory
        try:
            self._catalog = SqlCatalog(
                NAMESPACE,
                uri=URL.create("sqlite", database=str(directory / CATALOG)).render_as_string(),
                # The path is not percent-encoded, because pyiceberg would not decode it.
                warehouse=f"file://{directory}",
            )
            self._catalog.create_namespace_if_not_exists(NAMESPACE)
        except Exception as error:
            raise LogfsError(
                f"{directory / CATALOG}: the catalog cannot be opened: {error}"
            ) from error

    def close(self) -> None:
        """Close the catalog."""
        self._catalog.close()

    def offsets(self, selected: Selection, *, may_be_damaged: bool = False) -> OffsetsJson:
        """Return the offsets at which the last export into each table ended: {topic: {partition number: offset}}.

        The partition numbers are texts. The id of a topic is in a key "topic#id", whose value is empty. If an export
        was killed between its commits, a topic whose table has no offsets yet has the offsets at which the export
        began.

        Raises `InvalidSetting` if a table of a `selected` topic has snapshots, but no offsets that belong to its
        current snapshot. If `may_be_damaged` is true, or if the topic is not selected, such a table is left out
        instead. If a table cannot be read, the error of pyiceberg is raised in any case.
        """
        begins = _parsed(self._catalog.load_namespace_properties(NAMESPACE).get(_BEGINS, "{}"))
        found: OffsetsJson = {}
        for name in self._catalog.list_tables(NAMESPACE):
            table = self._catalog.load_table(name)
            offsets = _offsets_of(table)
            if offsets == {}:
                continue
            begins = {each: at for each, at in begins.items() if _topic_of(each) != name[-1]}
            if offsets is not None:
                found.update(offsets)
            elif not may_be_damaged and selected.has_topic(name[-1]):
                raise InvalidSetting(
                    f"{self._directory}: the table {'.'.join(name)} does not tell at which offsets the last export "
                    "ended; export all again with mode overwrite"
                )
        return {**begins, **found}

    def publish(
        self,
        written: Sequence[WrittenFile],
        offsets: OffsetsJson | None,
        replaced: Selection | None,
        begins: OffsetsJson | None = None,
    ) -> None:
        """Add the files of the tasks, `written`, to the tables of their topics, with one commit for each table.

        The files are first moved into the directories of the tables. A missing table is created. The tables are
        committed in the order of their names.

        - `offsets`: where this export ended; None stands for no offsets. The snapshot and the properties of a table
          store those of its topic. A topic without files also gets a commit if its table has no offsets yet.
        - `replaced`: the partitions whose records of earlier exports are removed, in the same commits, even from
          tables that get no files; None removes nothing.
        - `begins`: where this export began, stored before the first commit; None stores nothing. After an error, the
          tables committed before it stay committed, and the next export begins at `begins` for the topics whose
          tables have no offsets yet.

        Raises `JobFailed` if another writer has changed a table meanwhile, and the errors of pyiceberg.
        """
        of_topic: dict[str, list[WrittenFile]] = {}
        if replaced is not None:
            for _, topic in self._catalog.list_tables(NAMESPACE):
                if replaced.has_topic(topic):
                    of_topic[topic] = []
        for file in written:
            of_topic.setdefault(file.topic, []).append(file)
        for name, each in (offsets or {}).items():
            # If the options of the first export leave out all records of a topic, the topic has offsets but no files.
            # A commit without files stores the offsets, so that the next export continues at them.
            if name in of_topic or not any(each.values()):
                continue
            place = (NAMESPACE, name)
            if not self._catalog.table_exists(place) or (
                _offsets_of(self._catalog.load_table(place)) == {}
            ):
                of_topic[name] = []
        if of_topic and begins:
            self._catalog.update_namespace_properties(
                NAMESPACE, updates={_BEGINS: json.dumps(begins)}
            )
        for topic, files in sorted(of_topic.items()):
            ends = {
                name: each for name, each in (offsets or {}).items() if _topic_of(name) == topic
            }
            self._commit(topic, files, ends, replaced)
        self._catalog.update_namespace_properties(NAMESPACE, removals={_BEGINS})

    def _commit(
        self,
        topic: str,
        written: Sequence[WrittenFile],
        offsets: OffsetsJson,
        replaced: Selection | None,
    ) -> None:
        from pyiceberg.exceptions import CommitFailedException, ValidationException
        from pyiceberg.expressions import AlwaysTrue

        table = self._table(topic)
        places = [str(self._moved(each)) for each in written]
        properties = {_OFFSETS: json.dumps(offsets)}
        try:
            with table.transaction() as transaction:
                if replaced is not None and table.current_snapshot() is not None:
                    # Only the option `assign` selects single partitions of a topic. With any other option, `chosen`
                    # is empty, and all records of the topic are replaced.
                    chosen = {each.partition for each in replaced.partitions if each.topic == topic}
                    listed = ", ".join(map(str, sorted(chosen)))
                    older = f"partition in ({listed})" if chosen else AlwaysTrue()
                    transaction.delete(older, snapshot_properties=properties)
                if places:
                    # The file names are unique, so the check for duplicates is not needed.
                    transaction.add_files(
                        places, snapshot_properties=properties, check_duplicate_files=False
                    )
                number = transaction.table_metadata.last_sequence_number
                transaction.set_properties({**properties, _SEQUENCE_NUMBER: str(number)})
        except (CommitFailedException, ValidationException) as error:
            raise JobFailed(
                f"{self._directory}: another writer changed the table {NAMESPACE}.{topic}: {error}; export again"
            ) from error

    def _table(self, topic: str) -> Any:
        from pyiceberg.transforms import DayTransform

        name = (NAMESPACE, topic)
        if self._catalog.table_exists(name):
            return self._catalog.load_table(name)
        with (
            self._catalog.create_table_transaction(
                name, schema=iceberg_schema(), properties=_PROPERTIES
            ) as creation,
            creation.update_spec() as spec,
        ):
            spec.add_field("timestamp", DayTransform(), _PARTITION_FIELD)
        return self._catalog.load_table(name)

    def _moved(self, file: WrittenFile) -> Path:
        """Move the file of a task to its final path, durably, and return this path."""
        old, new = self._directory / file.path, self._directory / file.place
        new.parent.mkdir(parents=True, exist_ok=True)
        disk = Disk()
        disk.rename(old, new)
        # `rename` has synced the directory of the date. The directories above it, up to the target, may have new
        # entries, so sync them, too.
        for directory in new.parents[1:5]:
            disk.sync_directory(directory)
        return new


def _offsets_of(table: Any) -> OffsetsJson | None:
    """Return the offsets at which the last export into a table ended, or {} if there was none.

    Return None if the table has snapshots, but no offsets that belong to the current one.
    """
    from pyiceberg.table.snapshots import ancestors_of

    current = table.current_snapshot()
    text = table.properties.get(_OFFSETS)
    if current is None:
        return _parsed(text or "{}")
    oldest = current
    for snapshot in ancestors_of(current, table.metadata):
        summary = snapshot.summary
        if summary is not None and _OFFSETS in summary.additional_properties:
            return _parsed(summary.additional_properties[_OFFSETS])
        oldest = snapshot
    # No ancestor that is left is the snapshot of an export. The properties have the offsets of the last export, but a
    # rollback does not change them. So they count only if the current snapshot descends from that of the last export.
    # In this case, even the oldest ancestor that is left is newer than the last export.
    number = table.properties.get(_SEQUENCE_NUMBER)
    is_newer = number is not None and (oldest.sequence_number or 0) > int(number)
    # Properties without the number are from an older version of logfs, which stored offsets there only while the
    # table was empty. They count if no ancestor was removed: it could have been the snapshot of a later export.
    is_first = number is None and oldest.parent_snapshot_id is None
    return _parsed(text) if text is not None and (is_newer or is_first) else None


def _topic_of(name: str) -> str:
    """Return the topic in `name`, which is a key of an `OffsetsJson`: "topic", or "topic#id" with the topic's id."""
    return name.partition("#")[0]


def _parsed(text: str) -> OffsetsJson:
    found: OffsetsJson = json.loads(text)
    return found
