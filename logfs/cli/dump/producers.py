"""The aborted transactions of a .txnindex file, and the producers of a .snapshot file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logfs.format.base import names
from logfs.format.batches.batch import decrement_sequence
from logfs.format.files import aborted_transactions, producer_snapshot
from logfs.format.files.producer_snapshot import ProducerEntry
from logfs.log.disk.disk import ReadOnlyDisk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logfs.cli.dump.job import DumpJob


def dump_aborted(name: str, job: DumpJob) -> None:
    """Dump every complete entry of the .txnindex file `name`.

    Raises `InvalidName` if the file's name does not begin with an offset, `Corrupt` if an entry has a version above
    0, and `OSError`.
    """
    names.parse_stem(Path(name).name)
    data = _read(name)
    for version, entry in aborted_transactions.parse_entries(data):
        job.lines.add(
            {
                "version": version,
                "producerId": entry.producer_id,
                "firstOffset": entry.first_offset,
                "lastOffset": entry.last_offset,
                "lastStableOffset": entry.last_stable_offset,
            }
        )
        job.lines.end()


def dump_snapshot(name: str, job: DumpJob) -> None:
    """Dump every producer in the .snapshot file `name`. Raises `OSError`.

    If the file is not a valid snapshot, print only the message that kafka-dump-log prints for it, to standard error.
    """
    data = _read(name)
    reason = _why_corrupt(data)
    if reason is not None:
        job.complain(reason)
        return
    for entry in _entries(data):
        job.lines.add(_producer(entry))
        job.lines.end()


def _why_corrupt(data: bytes) -> str | None:
    """Return the message that kafka-dump-log prints for an invalid snapshot, or None for a valid one.

    The checks are in kafka-dump-log's order, so that a file with several faults gets the same message. For a file
    that ends too early, that message gives `null` as the reason.
    """
    schema = "Snapshot failed schema validation: "
    version, crc, count = producer_snapshot.HEADER.unpack(
        data[: producer_snapshot.HEADER.size].ljust(10, b"\0")
    )
    left = len(data) - producer_snapshot.HEADER.size
    if len(data) >= 2 and version != producer_snapshot.VERSION:
        return f"{schema}Snapshot contained an unknown file version {version}"
    if left < 0:
        return f"{schema}null"
    if count < 0:
        return f"{schema}non-nullable field producerEntries was serialized as null"
    if count > left:
        return (
            f"{schema}Tried to allocate a collection of size {count}, "
            f"but there are only {left} bytes remaining."
        )
    if left < count * producer_snapshot.ENTRY.size:
        return f"{schema}null"
    computed = producer_snapshot.checksum(data)
    if computed != crc:
        return (
            "Snapshot is corrupt (CRC is no longer valid). "
            f"Stored crc: {crc}. Computed crc: {computed}"
        )
    return None


def _entries(data: bytes) -> Iterator[ProducerEntry]:
    _, _, count = producer_snapshot.HEADER.unpack_from(data)
    end = producer_snapshot.HEADER.size + count * producer_snapshot.ENTRY.size
    return map(
        ProducerEntry._make,
        producer_snapshot.ENTRY.iter_unpack(data[producer_snapshot.HEADER.size : end]),
    )


def _producer(entry: ProducerEntry) -> dict[str, Any]:
    first = entry.current_txn_first_offset
    fields = {
        "producerId": entry.producer_id,
        "producerEpoch": entry.producer_epoch,
        "coordinatorEpoch": entry.coordinator_epoch,
        "currentTxnFirstOffset": None if first < 0 else first,
        "lastTimestamp": entry.timestamp,
    }
    if entry.last_offset >= 0:
        fields |= {
            "firstSequence": decrement_sequence(entry.last_sequence, entry.offset_delta),
            "lastSequence": entry.last_sequence,
            "lastOffset": entry.last_offset,
            "offsetDelta": entry.offset_delta,
            "timestamp": entry.timestamp,
        }
    return fields


def _read(name: str) -> bytes:
    return ReadOnlyDisk().read_file(Path(os.path.realpath(name)))
