"""Partitions in tests: their contents, and partition directories that no store has written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.format.base import names
from logfs.format.batches.batch import assign_offset
from logfs.format.batches.columns import Columns
from logfs.format.encoding.batch_builder import BatchFormat, build_records
from logfs.log.scan import scan_split

if TYPE_CHECKING:
    from pathlib import Path

    from logfs.format.batches.record import Record
    from logfs.log.append.partition import Partition
    from logfs.log.read.reader import Reader

NAME = "orders-0"


def values(partition: Partition, *span: int) -> list[bytes | None]:
    return [record.value for record in partition.read(*span)]


def offsets(partition: Partition) -> list[int]:
    return [record.offset for record in partition.read()]


def bases(partition: Partition) -> list[int]:
    return [segment.base_offset for segment in partition.segments]


def raw_batch(records: list[Record], base: int, epoch: int = 0) -> bytes:
    (new,) = build_records(records, BatchFormat(), 0).batches
    assign_offset(new.data, base, epoch)
    return bytes(new.data)


def raw_partition(log_dir: Path, files: dict[str, bytes], name: str = NAME) -> Path:
    """Make a partition directory with these files, without a store; return it."""
    directory = log_dir / name
    directory.mkdir(parents=True, exist_ok=True)
    for file, data in files.items():
        (directory / file).write_bytes(data)
    return directory


def log(base: int, suffix: str = ".log") -> str:
    return f"{base:020}{suffix}"


def flip(path: Path, at: int) -> None:
    """Flip a bit of the byte at position `at`."""
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << at % 8]))


def snapshots(orders: Partition) -> list[int]:
    found = orders.directory.glob("*" + names.SNAPSHOT)
    return sorted(names.parse_stem(path.name) for path in found)


def by_splits(reader: Reader, split_bytes: int = 1 << 20) -> list[Record]:
    """Return all records of a log, read by splits, as readers in other processes do."""
    found: list[Record] = []
    for piece in scan_split.plan(
        reader, reader.log_start_offset, reader.log_end_offset, split_bytes=split_bytes
    ):
        for columns in scan_split.read(piece):
            assert isinstance(columns, Columns), columns
            found += columns.records()
    return found
