"""Parses and checks the options of a write, and checks its columns, in the same way as Spark's Kafka sink."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from logfs.spark.known_names import check_options, unknown_column, warn_of_ignored
from logfs.spark.options import paths_of, positive_number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.types import StructType

# The allowed types of each column, in the order in which Spark's Kafka sink checks them.
_TYPES = {
    "topic": ("string",),
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "partition": ("int",),
    # Kafka's sink does not have this column: its producer sets the timestamp.
    "timestamp": ("timestamp",),
}
# Columns of the source that a write ignores, because their values are set when the records are appended.
_IGNORED = ("offset", "timestampType")


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """The options of a write. `topic` is the topic of all records; None if the column `topic` has the topics.

    `transaction` has the options txnAppId and txnVersion, or is None if they are not given. A write has no effect if
    a write with the same txnAppId and the same or a higher txnVersion was done before. `create_partitions` is the
    number of partitions with which `topic` is created if it is missing; None if a missing topic is an error.
    """

    paths: tuple[str, ...]
    topic: str | None
    transaction: tuple[str, int] | None
    create_partitions: int | None


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Parse the options that Spark passes to a write. Raises `ValueError` for a wrong or missing option."""
    check_options(options)
    warn_of_ignored(options)
    topic, partitions = options.get("topic"), positive_number(options, "createPartitions")
    if partitions is not None and topic is None:
        raise ValueError(
            "createPartitions needs the option topic: tasks cannot create the topics that a column names"
        )
    return WriteOptions(
        paths=paths_of(options),
        topic=topic,
        transaction=_transaction(options),
        create_partitions=partitions,
    )


def _transaction(options: Mapping[str, str]) -> tuple[str, int] | None:
    writer, version = options.get("txnAppId"), options.get("txnVersion")
    if writer is None and version is None:
        return None
    if not writer or version is None or not version.isdecimal():
        raise ValueError(
            "options txnAppId and txnVersion go together: give the id of the writer, and a number that increases "
            f"with each of its writes, such as the batch id of foreachBatch; not {writer!r} and {version!r}"
        )
    return writer, int(version)


def check_write_schema(schema: StructType, options: WriteOptions) -> None:
    """Raise `ValueError` if a required column is missing, or a column is unknown or has a wrong type.

    The column `value` is required, and without the option topic also the column `topic`. The known columns are those
    of Kafka's sink, and `timestamp`. The columns `offset` and `timestampType` of the source are allowed, too, and are
    ignored, so that rows of the source can be written.
    """
    # As in Kafka's sink, it does not matter whether a column may contain nulls.
    found = {field.name: field.dataType.simpleString() for field in schema}
    if options.topic is not None:
        # The option takes precedence over the column, so the column's type does not matter.
        found.pop("topic", None)
    elif "topic" not in found:
        raise ValueError(
            "topic option required when no 'topic' attribute is present. Use the topic option for setting a topic."
        )
    for name in found:
        if name not in (*_TYPES, *_IGNORED):
            raise unknown_column(name, _TYPES, "logfs sink")
    for name, types in _TYPES.items():
        if name == "value" and name not in found:
            raise ValueError("Required attribute 'value' not found")
        if name in found and found[name] not in types:
            raise ValueError(
                f"{name} attribute unsupported type {found[name]}. {name} must be a(n) {' or '.join(types)}"
            )
