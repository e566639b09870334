"""The log directories that the campaign of hostile files starts from, as bytes in memory, and their records.

Each is small, because it is written again for every mutation, and each has files of other kinds: the five codecs, old
formats, transactions, a compacted log, consumer groups, key indexes, a commit that is decided and not done.
"""

from __future__ import annotations

import errno
import random
import uuid
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from unittest.mock import patch

from logfs.format.base.names import DELETED, PARTITION_METADATA
from logfs.format.batches.compression import Codec
from logfs.format.batches.record import Record
from logfs.format.files import checkpoint
from logfs.format.text import envelope
from logfs.log.compaction.cleaner import clean
from logfs.log.compaction.cleaning import Dirty
from logfs.log.segment.batch_iterator import Damage
from logfs.store.directory.log_dir import CLEAN_SHUTDOWN, META_PROPERTIES
from logfs.store.store import Store
from tests.support.batches import batch
from tests.support.legacy_encoder import Old, message, wrapper
from tests.support.staging import stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from logfs.log.append.partition import Partition

NAME = "orders-0"
NOW = 1_700_000_000_000
TOPIC_ID = uuid.UUID(int=0x1234_5678_9ABC_DEF0_1234_5678_9ABC_DEF0)
_CODECS = [codec.kafka_name for codec in Codec if codec is not Codec.NONE]

# What a reader gets of a record.
Seen = tuple[object, ...]


@dataclass
class Template:
    """A log directory: its files by name, and what may be read of each partition.

    `records` has the records of each partition by offset. `sealed` has the bytes under the CRC of each batch: a batch
    with other bytes does not belong to the log, even if its CRC is right. `gaps` is whether offsets may be missing
    between batches.
    """

    name: str
    files: dict[str, bytes]
    gaps: bool = False
    records: dict[str, dict[int, Seen]] = field(default_factory=dict)
    lines: dict[str, set[bytes]] = field(default_factory=dict)
    envelopes: dict[str, set[bytes]] = field(default_factory=dict)
    sealed: dict[str, set[bytes]] = field(default_factory=dict)


def seen(record: Record) -> Seen:
    """Return a record as a tuple that can be compared."""
    headers = tuple((name, value) for name, value in record.headers)
    return record.key, record.value, headers, record.timestamp, record.timestamp_type


def covered(data: bytes | memoryview, magic: int) -> bytes:
    """Return the bytes under the CRC of a batch, without those that may change without it."""
    return bytes(data[21:]) if magic == 2 else bytes(data[:8]) + bytes(data[16:])


def corpus() -> list[Template]:
    """Return all log directories, the same each time."""
    makers: dict[str, Callable[[Store], object]] = {
        "none": _plain,
        "late": _late,
        "transactions": _transactions,
        "compacted": _compacted,
        "groups": _groups,
        "keys": _keys,
        "commit": _commit,
        "magic 0": lambda store: _old(store, 0),
        "magic 1": lambda store: _old(store, 1),
    }
    makers |= {codec: partial(_plain, codec=codec) for codec in _CODECS}
    made = [_make(name, maker) for name, maker in makers.items()]
    return [*made, _broker(made[0])]


def _broker(plain: Template) -> Template:
    """Return the same log directory as a broker has it: with a cluster id, and without the files of logfs."""
    files = {
        name: data for name, data in plain.files.items() if not name.endswith((".textindex", "@p"))
    }
    properties = {"version": "1", "broker.id": "1", "cluster.id": "AAAAAAAAAAAAAAAAAAAAAA"}
    files[META_PROPERTIES] = checkpoint.format_meta_properties(properties)
    return Template(
        "broker", files, False, plain.records, plain.lines, plain.envelopes, plain.sealed
    )


def _make(name: str, maker: Callable[[Store], object]) -> Template:
    with TemporaryDirectory() as directory, ExitStack() as stack:
        # The same bytes each time, so that a mutation can be repeated from its seed.
        chance = random.Random(name)
        for place in ("uuid.uuid4", "logfs.log.append.staged_batches.uuid.uuid4"):
            stack.enter_context(patch(place, lambda: uuid.UUID(int=chance.getrandbits(128))))
        stack.enter_context(patch("logfs.log.read.key_index.os.urandom", chance.randbytes))
        path = Path(directory, "log")
        with Store(path, clock=lambda: NOW) as store:
            # Index entries for nearly every batch.
            store.settings.set_broker("log.index.interval.bytes", "64")
            maker(store)
        files = {
            str(file.relative_to(path)): file.read_bytes()
            for file in sorted(path.rglob("*"))
            if file.is_file() and file.suffix != DELETED
        }
        for each in files:
            if each.endswith(PARTITION_METADATA):
                files[each] = checkpoint.format_partition_metadata(TOPIC_ID)
        template = Template(name, files, name == "compacted")
        with Store(path, clock=lambda: NOW) as store:
            # A commit that was decided is done by now: its records may be seen, too.
            for each in store:
                _look(template, store[each])
        return template


def _look(template: Template, partition: Partition) -> None:
    name = partition.name.directory
    records = list(partition.read())
    prefix = envelope.prefix(partition.name)
    template.records[name] = {record.offset: seen(record) for record in records}
    template.lines[name] = {(record.value or b"") + b"\n" for record in records}
    template.envelopes[name] = {envelope.encode(record, prefix) for record in records}
    template.sealed[name] = {
        covered(found[1].data, found[1].header.magic)
        for segment in partition.segments
        for found in segment.walk()
        if not isinstance(found, Damage)
    }


# The content of the log directories.


def _records(count: int, first: int = 0) -> list[Record]:
    """Return records of every shape. No value has a newline, so that each line is one value."""
    values = [b"plain", "ü€😀".encode(), b"\xff\xfe\x00", None, b"", b'"\\\t', b"x" * 90]
    found = []
    for number in range(first, first + count):
        value = values[number % len(values)]
        found.append(
            Record(
                None if value is None else value + b" %d" % number,
                None if number % 3 == 0 else b"k%d" % (number % 5),
                [("h", b"%d" % number), ("ü", None)][: number % 3],
                NOW - 100_000 + number * 1000,
            )
        )
    return found


def _fill(partition: Partition, segments: int = 3, batches: int = 3, each: int = 4) -> None:
    number = 0
    for _ in range(segments):
        for _ in range(batches):
            partition.append(_records(each, number))
            number += each
        partition.roll(NOW)
    partition.append(_records(2, number))


def _plain(store: Store, codec: str = "uncompressed") -> None:
    store.settings.set_topic("orders", "compression.type", codec)
    _fill(store.create(NAME))
    _fill_large(store[NAME])


def _fill_large(partition: Partition) -> None:
    """Append a batch with more records than a plain loop decodes."""
    partition.append(_records(20, 500))


def _late(store: Store) -> None:
    store.settings.set_topic("orders", "message.timestamp.type", "LogAppendTime")
    _fill(store.create(NAME), 2)


def _transactions(store: Store) -> None:
    orders = store.create(NAME)
    for round_ in range(3):
        orders.append(_records(2, 10 * round_))
        for producer in (1, 2):
            values = (b"t%d %d" % (round_, producer), b"u%d" % round_)
            orders.append_batch(batch(producer, 2 * round_, *values, transactional=True))
        orders.end_transaction(1, 0, commit=round_ != 1)
        orders.end_transaction(2, 0, commit=False)
        orders.roll(NOW)
    orders.append_batch(batch(3, 0, b"open", transactional=True))
    orders.append_batch(batch(4, 0, b"idempotent"))


def _compacted(store: Store) -> None:
    store.settings.set_topic("orders", "cleanup.policy", "compact")
    store.settings.set_topic("orders", "file.delete.delay.ms", "0")
    orders = store.create(NAME)
    store.checkpoints.set_cleaner_offset(orders, 0)
    for round_ in range(4):
        for first in range(0, 9, 3):
            pairs = ((b"k%d" % (n % 5), n) for n in range(first, first + 3))
            orders.append(
                [Record(None if n == 7 else b"%d %d" % (round_, n), key) for key, n in pairs]
            )
        orders.append([Record(b"once %d" % round_, b"only %d" % round_)])
        orders.roll(NOW)
        clean(orders, Dirty(0, orders.active.base_offset), NOW, memory_bytes=1 << 16)
    store.checkpoints.set_cleaner_offset(orders, orders.active.base_offset)
    orders.append([Record(b"last", b"k1")])


def _groups(store: Store) -> None:
    store.settings.set_broker("offsets.topic.num.partitions", "1")
    store.create(NAME).append(_records(6))
    for offset in (1, 4, 2):
        store.groups.commit("billing", NAME, offset, "note")
        store.groups.commit("other", NAME, offset)
    store.groups.forget("other", NAME)


def _keys(store: Store) -> None:
    orders = store.create(NAME)
    _fill(orders, 2)
    for reader in (orders, orders.committed):
        reader.newest(b"k1")
        reader.keys._write()
    orders.append(_records(3, 60))


def _commit(store: Store) -> None:
    """Leave a commit that is decided, but whose batches are not in the logs."""
    parts = []
    for name in (NAME, "pay-0"):
        partition = store.create(name)
        partition.append(_records(3))
        partition.flush()
        config = store.settings.log_config(partition.topic)
        records = _records(5, 200)
        parts.append(stage(partition.directory, config, "writer", 0, records, now_ms=NOW))
    full = OSError(errno.ENOSPC, "the disk is full")
    with patch.object(type(store.commits), "_land", side_effect=full), suppress(OSError):
        store.commit("writer", 0, parts)


def _old(store: Store, magic: int) -> None:
    orders = store.create(NAME)
    directory = orders.directory
    store.close()
    for file in _segment_files(directory):
        file.unlink()
    olds = [
        Old(n, b"old %d" % n if n % 4 else None, b"k%d" % (n % 5) if n % 3 else None, NOW + n)
        for n in range(24)
    ]
    data = b"".join(message(magic, old) for old in olds[:4])
    for number, codec in enumerate((Codec.GZIP, Codec.SNAPPY, Codec.LZ4)):
        data += wrapper(magic, codec, olds[4 + 4 * number : 8 + 4 * number])
    (directory / f"{0:020}.log").write_bytes(data)
    data = b"".join(message(magic, old) for old in olds[16:])
    (directory / f"{16:020}.log").write_bytes(data)
    # Opening the store again builds indexes, and the next batch has the new format.
    (directory.parent / CLEAN_SHUTDOWN).unlink(missing_ok=True)
    with Store(directory.parent, clock=lambda: NOW) as store:
        store[NAME].append(_records(5, 24))


def _segment_files(directory: Path) -> Iterator[Path]:
    for file in directory.iterdir():
        if file.name[0].isdigit():
            yield file
