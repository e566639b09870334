"""The names of all options, and the errors for unknown options and columns, which suggest the nearest known name."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from logfs.errors import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

logger = logging.getLogger(__name__)

SELECTIONS = ("assign", "subscribe", "subscribePattern")
_OF_READS = (
    "columns",
    "endingOffsets",
    "endingOffsetsByTimestamp",
    "endingTimestamp",
    "failOnDataLoss",
    "groupId",
    "includeHeaders",
    "initialOffsetsPath",
    "isolationLevel",
    "maxBytesPerTrigger",
    "maxOffsetsPerTrigger",
    "maxRecordsPerPartition",
    "maxTriggerDelay",
    "minOffsetsPerTrigger",
    "minPartitions",
    "pushDownPredicate",
    "splitBytes",
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "startingTimestamp",
)
_OF_WRITES = ("createPartitions", "topic", "txnAppId", "txnVersion")
OPTIONS = (*SELECTIONS, *_OF_READS, *_OF_WRITES)
# Options of Spark's Kafka source that have no meaning without a broker. Most options whose names begin with "kafka."
# have none, either.
_OF_THE_NETWORK = (
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "groupIdPrefix",
)
# The names of Spark's own options, which Spark passes to a source or a sink in addition to the user's options.
_OF_SPARK = ("path", "paths", "checkpointLocation", "queryName")


def check_options(names: Iterable[str]) -> None:
    """Raise `ValueError` for a name that is not the name of an option. Names are not case-sensitive.

    Names that begin with "kafka." are not checked. Options of writes are allowed for reads, and options of reads for
    writes, because a view in Spark SQL has one set of options for both.
    """
    known = [*OPTIONS, *_OF_THE_NETWORK, *_OF_SPARK]
    lower = {name.lower() for name in known}
    for name in names:
        if name.lower() not in lower and not name.lower().startswith("kafka."):
            raise ValueError(
                f"logfs has no option {name!r}{did_you_mean(name, known)}; its options are "
                f"{', '.join(sorted(OPTIONS))}"
            )


def warn_of_ignored(names: Iterable[str], *, used: Collection[str] = ()) -> None:
    """Log a warning for each option that has no meaning without a broker.

    This includes options that begin with "kafka.", except those in `used`. The names in `used` are in lower case.
    """
    of_network = {name.lower() for name in _OF_THE_NETWORK}
    for name in names:
        is_of_kafka = name.lower().startswith("kafka.") and name.lower() not in used
        if is_of_kafka or name.lower() in of_network:
            logger.warning(
                "option %s has no meaning for logfs, which uses no broker; ignored", name
            )


def unknown_column(name: str, known: Collection[str], where: str) -> ValueError:
    """Return the error for an unknown column of `where`, "logfs source" or "logfs sink"; `known` are its columns."""
    return ValueError(
        f"the {where} has no column {name!r}{did_you_mean(name, known)}; its columns are {', '.join(known)}"
    )
