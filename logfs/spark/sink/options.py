"""What the options and the columns of a write say, checked as Spark's Kafka sink checks them."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
)

from logfs.spark.options import paths_of

if TYPE_CHECKING:
    from collections.abc import Mapping

logger = logging.getLogger(__name__)

_TYPES = {
    "topic": (StringType(),),
    "key": (StringType(), BinaryType()),
    "value": (StringType(), BinaryType()),
    "partition": (IntegerType(),),
    # Our own: Kafka's sink lets the producer take the time.
    "timestamp": (TimestampType(),),
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
    """Raise `ValueError` unless the columns are those of Kafka's sink, and `timestamp`."""
    found = {field.name: field.dataType for field in schema}
    if options.topic is None and "topic" not in found:
        raise ValueError(
            "topic option required when no 'topic' attribute is present. Use the topic option for setting a topic."
        )
    if "value" not in found:
        raise ValueError("Required attribute 'value' not found.")
    for name, types in _TYPES.items():
        if name == "topic" and options.topic is not None:
            continue
        if name in found and found[name] not in types:
            words = " or ".join(kind.simpleString() for kind in types)
            raise ValueError(
                f"{name} attribute type must be a {words}, not {found[name].simpleString()}"
            )
    if "headers" in found and not _are_headers(found["headers"]):
        raise ValueError(
            "headers attribute type must be a array<struct<key:string,value:binary>>, "
            f"not {found['headers'].simpleString()}"
        )


def _are_headers(kind: object) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = [(field.name, field.dataType) for field in kind.elementType]
    return fields == [("key", StringType()), ("value", BinaryType())]
