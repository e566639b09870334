"""The entries of .index and .timeindex files, checked against the .log file of the segment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from logfs.cli.dump.batches import LogFile, records
from logfs.cli.dump.job import MISMATCH, NOT_FOUND, OUT_OF_ORDER, TIMESTAMP_MISMATCH
from logfs.errors import Corrupt
from logfs.format.base import names
from logfs.format.batches.record import NO_TIMESTAMP
from logfs.log.disk.disk import ReadOnlyDisk
from logfs.log.segment.index import OffsetIndex, SparseIndex, TimeIndex

if TYPE_CHECKING:
    from logfs.cli.dump.job import DumpJob
    from logfs.format.batches.batch import Batch
    from logfs.log.segment.index import TimeEntry


Index = TypeVar("Index", bound=SparseIndex)


def dump_offset_index(name: str, job: DumpJob) -> None:
    """Dump every entry of the .index file `name`, and compare it with the .log file of the same segment.

    An entry whose offset is not the last offset of the batch at its position is a finding. With
    `--verify-index-only`, no entry is dumped. With `--index-sanity-check`, only the format of the file is checked.
    Raises `Corrupt`, `InvalidName` and `OSError`.
    """
    log = LogFile(_sibling(name, ".log"))
    index = _open(OffsetIndex, name)
    if not len(index):
        job.lines.say(f"{name} is empty.", isEmpty=True)
        return
    if job.sanity_only:
        _check_sane(index, name, job)
        return
    for number, entry in enumerate(index):
        if number and entry.offset == index.base_offset:
            return  # the rest of the file is preallocated space
        found = _batch_at(log, entry.position, job)
        if found != entry.offset:
            job.findings.add(MISMATCH, name, indexOffset=entry.offset, logOffset=found)
        if job.with_entries:
            job.lines.add(entry._asdict())
            job.lines.end()


def _batch_at(log: LogFile, position: int, job: DumpJob) -> int:
    """Return the last offset of the batch at a byte position of the log.

    Raises `Corrupt` if no complete batch of at most `job.max_batch_bytes` bytes begins there.
    """
    for _, batch in log.batches(position, position + job.max_batch_bytes):
        return batch.header.last_offset
    raise Corrupt(f"the log has no batch of at most {job.max_batch_bytes} bytes at byte {position}")


def dump_time_index(name: str, job: DumpJob) -> None:
    """Dump every entry of the .timeindex file `name`, and compare it with the .log file of the same segment.

    Each entry must have the last offset of a batch and the largest timestamp in that batch, and its timestamp must be
    greater than that of the entry before. Any other entry is a finding. With `--verify-index-only`, no entry is
    dumped. With `--index-sanity-check`, only the format of the file is checked. Raises `Corrupt`, `InvalidName` and
    `OSError`.
    """
    log = LogFile(_sibling(name, ".log"))
    offsets = _open(OffsetIndex, _sibling(name, ".index"))
    index = _open(TimeIndex, name)
    if job.sanity_only:
        _check_sane(index, name, job)
        return
    previous = NO_TIMESTAMP
    for number, entry in enumerate(index):
        if number and entry.offset == index.base_offset:
            return
        batch = _batch_of(log, offsets, entry.offset)
        _compare(entry, batch, previous, name, job)
        previous = entry.timestamp
        if job.with_entries:
            job.lines.add(entry._asdict())
            job.lines.end()


def _batch_of(log: LogFile, offsets: OffsetIndex, offset: int) -> Batch | None:
    """Return the first batch whose last offset is at or after `offset`; None if the log has none.

    The search begins at the position that the offset index gives for `offset`.
    """
    walk = log.batches(offsets.lookup(offset).position)
    return next((batch for _, batch in walk if batch.header.last_offset >= offset), None)


def _compare(entry: TimeEntry, batch: Batch | None, previous: int, name: str, job: DumpJob) -> None:
    found = -1 if batch is None else batch.header.last_offset
    if batch is None or found != entry.offset:
        job.findings.add(NOT_FOUND, name, indexOffset=entry.offset, logOffset=found)
        return
    largest = max((shown.timestamp for shown in records(batch)), default=NO_TIMESTAMP)
    if largest != entry.timestamp:
        job.findings.add(
            TIMESTAMP_MISMATCH, name, indexTimestamp=entry.timestamp, logTimestamp=largest
        )
    if entry.timestamp <= previous:
        job.findings.add(
            OUT_OF_ORDER, name, indexTimestamp=entry.timestamp, previousTimestamp=previous
        )


def _sibling(name: str, suffix: str) -> str:
    return os.path.splitext(name)[0] + suffix


def _open(kind: type[Index], name: str) -> Index:
    """Open the index file `name` as an object of the class `kind`, and read all of its entries into memory.

    They are read at once because a broker may truncate the file. Raises `InvalidName` and `OSError`.
    """
    path = Path(os.path.realpath(name))
    path.stat()
    index = kind(ReadOnlyDisk(), path, names.parse_stem(Path(name).name))
    index.collect(keep=True)
    return index


def _check_sane(index: SparseIndex, name: str, job: DumpJob) -> None:
    index.check_sane()
    job.lines.say(f"{name} passed sanity check.", passedSanityCheck=True)
