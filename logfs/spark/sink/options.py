"""What the options and the columns of a write say, checked as Spark's Kafka sink checks them."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from logfs.spark.options import paths_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.types import StructType

logger = logging.getLogger(__name__)

# In the order in which Spark's own sink checks them.
_TYPES = {
    "topic": ("string",),
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "partition": ("int",),
    # Our own: Kafka's sink lets the producer take the time.
    "timestamp": ("timestamp",),
}


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """What the options of a write say. `topic` is that of all records; None for that of the column.

    `transaction` is the id and the version of a write that is to be made once, however often it is sent.
    """

    paths: tuple[str, ...]
    topic: str | None
    transaction: tuple[str, int] | None


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """The options of a write. Raises `ValueError`."""
    for name in options:
        if name.startswith("kafka."):
            logger.warning(
                "option %s has no meaning for logfs, which asks no broker: ignored", name
            )
    return WriteOptions(
        paths=paths_of(options), topic=options.get("topic"), transaction=_transaction(options)
    )


def _transaction(options: Mapping[str, str]) -> tuple[str, int] | None:
    writer, version = options.get("txnAppId"), options.get("txnVersion")
    if writer is None and version is None:
        return None
    if not writer or version is None or not version.isdecimal():
        raise ValueError(
            "options txnAppId and txnVersion go together: the id of whoever writes, and a number that grows with "
            f"each of its writes, as the batch id of foreachBatch does; not {writer!r} and {version!r}"
        )
    return writer, int(version)


def check_write_schema(schema: StructType, options: WriteOptions) -> None:
    """Raise `ValueError` unless the columns are those of Kafka's sink, and `timestamp`; it ignores all others."""
    # What Spark's own sink compares too: whether a column may be null says nothing.
    found = {field.name: field.dataType.simpleString() for field in schema}
    if options.topic is not None:
        # Goes before the column, whatever that is.
        found.pop("topic", None)
    elif "topic" not in found:
        raise ValueError(
            "topic option required when no 'topic' attribute is present. Use the topic option for setting a topic."
        )
    for name, types in _TYPES.items():
        if name == "value" and name not in found:
            raise ValueError("Required attribute 'value' not found")
        if name in found and found[name] not in types:
            raise ValueError(
                f"{name} attribute unsupported type {found[name]}. {name} must be a(n) {' or '.join(types)}"
            )
