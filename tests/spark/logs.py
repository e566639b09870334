"""Helpers of the tests of the jobs: create a log with records of every kind, and read the records of a log."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from logfs.format.batches.record import Record
from logfs.store.store import Store

if TYPE_CHECKING:
    from pathlib import Path

# 2021-11-28T23:53:20Z, shortly before midnight.
T = 1_638_143_600_000
DAY_MS = 86_400_000
CODECS = ("uncompressed", "gzip", "snappy", "lz4", "zstd")

# Offset, key, value, headers, timestamp.
Row = tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], int | None]


def any_record(chosen: random.Random, number: int, days: int) -> Record:
    """Return a record with or without each of its fields. Its timestamp is on one of `days` days, or missing."""
    stamp = T + chosen.randrange(days) * DAY_MS + number * 1000
    headers = [("h", b"%d" % number), ("null", None), ("empty", b""), ("h", b"\xfe")]
    return Record(
        chosen.choice([None, b"", b"value %d" % number, b"\xff\x00\n", "ключ\n".encode() * 20]),
        chosen.choice([None, b"", b"key %d" % (number % 7), b"\xff%d" % number]),
        chosen.choice([[], headers, [("only", None)]]),
        timestamp=chosen.choice([stamp, stamp, stamp, -1]),
    )


def make_log(
    path: Path, *, days: int = 3, records: int = 400, partitions: int | None = None
) -> None:
    """Create five topics, one per codec, in several segments, with one to three partitions or with `partitions`.

    Their dates go back and forth. Those of the first topic are `days` days.
    """
    chosen = random.Random(days)
    with Store(path) as store:
        for number, codec in enumerate(CODECS):
            topic = f"{codec}.log"
            store.settings.set_topic(topic, "compression.type", codec)
            store.settings.set_topic(topic, "segment.bytes", "9000")
            store.settings.set_topic(topic, "index.interval.bytes", "500")
            for partition in range(partitions or 1 + number % 3):
                log = store.create(f"{topic}-{partition}")
                for first in range(0, records, 50):
                    log.append(
                        [any_record(chosen, first + n, 3 if number else days) for n in range(50)]
                    )


def contents(path: Path) -> dict[str, list[Row]]:
    """Return all records of all partitions that have any."""
    with Store(path, read_only=True) as store:
        found = {
            name: [
                (record.offset, record.key, record.value, tuple(record.headers), record.timestamp)
                for record in store[name].read()
            ]
            for name in store
        }
    return {name: rows for name, rows in found.items() if rows}
