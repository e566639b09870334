"""The partitions that a read is about: opened read-only, found by name, and where reading starts and ends in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logfs.errors import InvalidName
from logfs.format import names
from logfs.format.names import TopicPartition
from logfs.spark.options import EARLIEST_OFFSET, LATEST_OFFSET, Kind, check_partitions
from logfs.store.door import log_dirs_of
from logfs.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from logfs.log.reader import Reader
    from logfs.spark.options import Limit, ReadOptions

    # As in Spark's checkpoints: {"orders": {"0": 23}}.
    OffsetsJson = dict[str, dict[str, int]]
    Offsets = dict[TopicPartition, int]


def to_json(offsets: Mapping[TopicPartition, int]) -> OffsetsJson:
    """Offsets as Kafka's source writes them into a checkpoint, in order."""
    found: OffsetsJson = {}
    for name, offset in sorted(offsets.items()):
        found.setdefault(name.topic, {})[str(name.partition)] = offset
    return found


def from_json(offsets: Mapping[str, Mapping[str, Any]]) -> Offsets:
    """The offsets of a checkpoint."""
    return {
        TopicPartition(topic, int(number)): int(offset)
        for topic, each in offsets.items()
        for number, offset in each.items()
    }


def describe(found: Iterable[Any]) -> str:
    """Partitions by name, for messages."""
    return "{" + ", ".join(sorted(name.directory for name in found)) + "}"


class Topics:
    """The partitions that were selected. Close it after use; `refresh` before looking for what has changed."""

    def __init__(self, options: ReadOptions) -> None:
        """Open the log directories read-only. Raises `LogfsError`, `OSError`."""
        self._options = options
        self.store = Store(log_dirs_of(options.paths), read_only=True, only=self._is_selected)

    def close(self) -> None:
        """Give the files back."""
        self.store.close()

    def refresh(self) -> None:
        """Take in what has been written, deleted and made since."""
        self.store.refresh()

    def _is_selected(self, directory: str) -> bool:
        try:
            return names.parse_directory(directory) in self._options.selection
        except InvalidName:
            return False

    def readers(self) -> dict[TopicPartition, Reader]:
        """The selected partitions, as their isolation level shows them, in order.

        Raises `ValueError` for a partition or a topic that was named and is not there, and the error that keeps one
        offline.
        """
        selection = self._options.selection
        found: dict[TopicPartition, Reader] = {}
        for directory in sorted({*self.store.partitions, *self.store.offline}):
            name = names.parse_directory(directory)
            if name in selection:
                found[name] = self.store[directory].isolated(self._options.isolation)
        missing = [name.directory for name in selection.partitions - found.keys()]
        missing += selection.topics - {name.topic for name in found}
        if missing:
            raise ValueError(
                f"no such partition or topic in {', '.join(self._options.paths)}: {', '.join(sorted(missing))}; "
                "'logfs describe' lists what there is"
            )
        return dict(sorted(found.items()))


def resolve(
    limit: Limit, readers: Mapping[TopicPartition, Reader], *, latest_if_no_match: bool
) -> Offsets:
    """The offset that a limit means in each partition.

    Raises `ValueError` for partitions that are missing in the limit or in the log, and for a timestamp that no record
    reaches unless `latest_if_no_match`.
    """
    if limit.kind is Kind.EARLIEST:
        return {name: reader.log_start_offset for name, reader in readers.items()}
    if limit.kind is Kind.LATEST:
        return {name: reader.log_end_offset for name, reader in readers.items()}
    check_partitions(limit, readers, describe)
    if limit.kind is Kind.OFFSETS:
        ends: Mapping[int, Callable[[Reader], int]] = {
            LATEST_OFFSET: lambda reader: reader.log_end_offset,
            EARLIEST_OFFSET: lambda reader: reader.log_start_offset,
        }
        return {
            name: ends[offset](readers[name]) if offset in ends else offset
            for name, offset in limit.each.items()
        }
    return {
        name: _at_time(
            name,
            reader,
            limit.each[name] if limit.timestamp is None else limit.timestamp,
            latest_if_no_match=latest_if_no_match,
        )
        for name, reader in readers.items()
    }


def _at_time(
    name: TopicPartition, reader: Reader, timestamp: int, *, latest_if_no_match: bool
) -> int:
    found = reader.offset_for_time(max(timestamp, 0))
    if found is not None:
        return min(found.offset, reader.log_end_offset)
    if latest_if_no_match:
        return reader.log_end_offset
    raise ValueError(
        f"No offset matched from request of topic-partition {name.directory} and timestamp {timestamp}; "
        "startingOffsetsByTimestampStrategy=latest begins at the end instead"
    )


def ranges(
    start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]
) -> Sequence[tuple[TopicPartition, int, int]]:
    """What lies between two sets of offsets, in order; partitions where that is nothing are left out."""
    return [
        (name, start[name], end[name])
        for name in sorted(end)
        if name in start and start[name] < end[name]
    ]
