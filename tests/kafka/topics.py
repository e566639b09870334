"""Topics that Kafka's own clients write, in every way that makes a difference in a log."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from logfs.format.base.names import TopicPartition
from logfs.format.batches.record import Record
from logfs.format.files import checkpoint
from tests.support.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.kafka.client import Client

T = 1_700_000_000_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
# `segment.bytes` is refused below 1 MiB since Kafka 4.0; the internal setting is not.
SMALL = {"internal_segment_bytes": 5000, "index_interval_bytes": 200}
COMPACTED = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": 0.01, **SMALL}
# The partition whose first records are deleted in each turn.
TRIMMED = TopicPartition("trimmed", 0)
# A transaction that stays open must not be aborted by a timeout.
PATIENT = {"transaction_timeout_ms": 900_000}

CONFIGS: dict[str, dict[str, object]] = {
    **{f"codec-{codec}": {} for codec in CODECS},
    "append-time": {"message_timestamp_type": "LogAppendTime", **SMALL},
    "compacted": COMPACTED,
    "compacted-away": {**COMPACTED, "delete_retention_ms": 0},
    "compacted-transactions": COMPACTED,
    "empty": {},
    "idempotent": {},
    "odd": {},
    "recompressed": {"compression_type": "lz4"},
    "segments": {"internal_segment_bytes": 3000, "index_interval_bytes": 1},
    "transactions": SMALL,
    "trimmed": SMALL,
    "unordered": SMALL,
}


def create(client: Client) -> None:
    """Create all topics."""
    for name, configs in CONFIGS.items():
        client.create_topic(name, **configs)


def append(client: Client, log_dir: Path, turn: int) -> None:
    """Append the records of a turn to all topics, and wait for the work that the broker does later.

    That is the compaction, and the checkpoint of the log start offset.
    """
    rng = random.Random(turn)
    for write in WRITERS:
        write(client, rng, turn)
    for topic in CONFIGS:
        if topic.startswith("compacted"):
            wait_for(lambda topic=topic: is_clean(log_dir, topic))
    (start,) = client.list_offsets("trimmed", ["earliest"])
    wait_for(lambda: offsets(log_dir, "log-start-offset-checkpoint").get(TRIMMED) == start.offset)


def is_clean(log_dir: Path, topic: str) -> bool:
    """Return whether the cleaner has cleaned all segments of partition 0 but the active one."""
    active = max(int(log.stem) for log in (log_dir / f"{topic}-0").glob("*.log"))
    return offsets(log_dir, "cleaner-offset-checkpoint").get(TopicPartition(topic, 0)) == active


def offsets(log_dir: Path, name: str) -> dict[TopicPartition, int]:
    """Return the offsets in a checkpoint file of a log directory; none if the file does not exist yet."""
    path = log_dir / name
    return checkpoint.parse_offsets(path.read_bytes()) if path.exists() else {}


def batches(
    rng: random.Random, turn: int, count: int = 12, keys: int = 20, span: int = 20
) -> list[list[Record]]:
    """Return batches of 1 to 20 records in the order of their timestamps.

    Each turn begins a day after the previous one, each batch a second, and 20 records of a batch take `span` ms.
    """
    return [
        [
            Record(
                rng.choice([rng.randbytes(rng.randrange(60)), b"text %d " % n * rng.randrange(9)]),
                b"key %d" % rng.randrange(keys),
                [("n", b"%d" % n)] * rng.randrange(3),
                T + turn * 86_400_000 + number * 1000 + n * span // 20,
            )
            for n in range(rng.choice([1, 2, 5, 20]))
        ]
        for number in range(count)
    ]


def _write_codecs(client: Client, rng: random.Random, turn: int) -> None:
    for codec in CODECS:
        with client.producer(compression_type=codec, enable_idempotence=False) as producer:
            producer.send(f"codec-{codec}", *batches(rng, turn))
    client.produce("recompressed", *batches(rng, turn), compression_type="gzip")


def _write_times(client: Client, rng: random.Random, turn: int) -> None:
    client.produce("append-time", *batches(rng, turn), compression_type="gzip")
    client.produce("append-time", *batches(rng, turn))
    client.produce("segments", *batches(rng, turn, 150))
    shuffled = batches(rng, turn, 60)
    rng.shuffle(shuffled)
    for batch in shuffled:
        rng.shuffle(batch)
    client.produce("unordered", *shuffled)
    # All records have the same timestamp, but for one with a later timestamp among them.
    same = [[Record(b"same", timestamp=T)] * 5 for _ in range(20)]
    same[7][2] = Record(b"later", timestamp=T + 10**10)
    client.produce("unordered", *same)


def _write_trimmed(client: Client, rng: random.Random, turn: int) -> None:
    appended = client.produce("trimmed", *batches(rng, turn, 30))
    # The new log start offset is inside a batch, and not in the first segment.
    client.delete_records("trimmed", appended[len(appended) // 3].offset)


def _write_odd(client: Client, rng: random.Random, turn: int) -> None:
    contents = [None, b"", b"\n", b"a\nb", bytes(range(256)), "üñï".encode()]
    headers = [[], [("", None)], [("n", b""), ("n", None)], [("ü" * 200, bytes(1000))]]
    records = [Record(v, k, h, T + turn) for v in contents for k in contents for h in headers]
    client.produce("odd", records[:50], records[50:], *[[record] for record in records[::7]])
    client.produce("odd", records, [Record(rng.randbytes(900_000), None, [], T)])


def _write_by_producers(client: Client, rng: random.Random, turn: int) -> None:
    producers = [client.producer() for _ in range(3)]
    for batch in batches(rng, turn, 30):
        rng.choice(producers).send("idempotent", batch)
    for producer in producers:
        producer.close()


def _write_transactions(client: Client, rng: random.Random, turn: int) -> None:
    ids = ("one", "two", "three")
    producers = [client.producer(transactional_id=name, **PATIENT) for name in ids]
    plain = client.producer()
    for topic in ("transactions", "compacted-transactions"):
        for group in range(6):
            for producer in producers:
                producer.begin()
            for batch in batches(rng, turn, 8):
                rng.choice([plain, *producers]).send(topic, batch)
            producers[0].send_offsets("within", (topic, 0, group))
            for number, producer in enumerate(producers):
                if (group + number) % 3:
                    producer.commit()
                else:
                    producer.abort()
    producers[0].begin()
    producers[0].send("transactions", *batches(rng, turn, 2))
    plain.send("transactions", *batches(rng, turn, 3))
    for producer in producers:
        producer.close(abandon=producer is producers[0])
    plain.close()


def _write_compacted(client: Client, rng: random.Random, turn: int) -> None:
    producers = [client.producer(compression_type=codec) for codec in CODECS]
    for topic in ("compacted", "compacted-away"):
        for batch in batches(rng, turn, 80, keys=200):
            batch[0] = Record(None, batch[0].key, [], batch[0].timestamp)
            rng.choice(producers).send(topic, batch)
    for producer in producers:
        producer.close()


def _write_groups(client: Client, rng: random.Random, turn: int) -> None:
    for group in ("billing", "shipping", "audit"):
        client.commit(
            group, ("odd", 0, rng.randrange(20)), ("segments", 0, turn), ("idempotent", 0, 1, "why")
        )
    for protocol in ("classic", "consumer"):
        client.join(f"members-{protocol}", ["odd", "idempotent"], 10, protocol)


WRITERS: list[Callable[[Client, random.Random, int], None]] = [
    _write_codecs,
    _write_times,
    _write_trimmed,
    _write_odd,
    _write_by_producers,
    _write_transactions,
    _write_compacted,
    _write_groups,
]
