"""Kafka's cleaner and that of logfs leave the same log of the same directory, and each continues after the other."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from logfs.format.batches.record import Record
from logfs.log.segment.batch_iterator import Damage
from logfs.store.store import Store
from tests.kafka import topics
from tests.support.processes import wait_for
from tests.support.stores import assert_clean

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.kafka.broker import Broker
    from tests.kafka.client import Client

T = topics.T
LONG = 100 * 365 * 86_400_000
# With these settings, nothing is cleaned until a test starts it.
WAITING = {
    "cleanup_policy": "compact",
    "min_cleanable_dirty_ratio": 1.0,
    "delete_retention_ms": LONG,
    **topics.SMALL,
}
TOPICS = ("plain", "packed", "append-time", "idempotent", "transactions")


def shape(partition: Any) -> list[tuple[object, ...]]:
    """Return the records and the header of every batch, without the fields that depend on the time of cleaning.

    An empty transactional batch at the end of the cleaned part is left out: where a round ends with aborted records,
    logfs keeps their empty batch as any other, and Kafka 4.3.1 was observed not to keep it.
    """
    end = partition.active.base_offset
    found = []
    for segment in partition.segments:
        for item in segment.walk():
            assert not isinstance(item, Damage), item
            header = item[1].header
            horizon = header.delete_horizon_ms is not None
            if header.next_offset == end and header.is_transactional and not header.record_count:
                continue
            found.append(
                (
                    header.base_offset,
                    header.last_offset,
                    header.partition_leader_epoch,
                    header.attributes,
                    None if horizon else header.base_timestamp,
                    header.max_timestamp,
                    header.producer_id,
                    header.producer_epoch,
                    header.base_sequence,
                    header.record_count,
                    [(r.offset, r.key, r.value, r.headers, r.timestamp) for r in item[1].records()],
                )
            )
    return found


def write(client: Client, turn: int) -> None:
    """Append batches of all kinds of producers, with tombstones among the records.

    The active segment is not cleaned.
    """
    import random

    rng = random.Random(turn)

    def some() -> list[list[Record]]:
        made = topics.batches(rng, turn, 60)
        return [
            [
                Record(None if rng.random() < 0.1 else r.value, r.key, r.headers, r.timestamp)
                for r in b
            ]
            for b in made
        ]

    client.produce("plain", *some(), enable_idempotence=False)
    client.produce("packed", *some(), compression_type="gzip", enable_idempotence=False)
    client.produce("append-time", *some(), enable_idempotence=False)
    for _ in range(2):
        client.produce("idempotent", *some())
    for number in range(3):
        with client.producer(transactional_id=f"t{number}") as producer:
            for count in range(5):
                producer.begin()
                producer.send("transactions", *some()[:8])
                producer.abort() if (count + number) % 3 == 0 else producer.commit()
        # A new producer with this id waits until the marker of the last transaction is in the log. Otherwise the
        # broker and logfs may each write this marker, at another time.
        client.producer(transactional_id=f"t{number}").close()


@pytest.fixture(scope="module")
def broker(make_broker: Callable[..., Broker]) -> Broker:
    """A broker."""
    return make_broker()


def test_both_cleaners_leave_the_same_log(
    broker: Broker, connect: Callable[[Broker], Client], tmp_path: Path
) -> None:
    """Both leave the same batches: offsets, records, tombstones, delete horizons, headers and markers.

    In the second turn, both clean a log that logfs has cleaned in the first one.
    """
    client = connect(broker)
    for topic in TOPICS:
        kind = {"message_timestamp_type": "LogAppendTime"} if topic == "append-time" else {}
        client.create_topic(topic, **WAITING, **kind)
    for turn in range(2):
        write(client, turn)
        broker.stop()
        ours = shutil.copytree(broker.log_dir, tmp_path / f"ours-{turn}")
        broker.start()
        for topic in TOPICS:
            client.alter_topic(topic, min_cleanable_dirty_ratio=0.0)
        wait_for(lambda: all(topics.is_clean(broker.log_dir, topic) for topic in TOPICS), 60)
        for topic in TOPICS:
            client.alter_topic(topic, min_cleanable_dirty_ratio=1.0)
        broker.stop()
        theirs = shutil.copytree(broker.log_dir, tmp_path / f"theirs-{turn}")
        with Store(ours) as store:
            for topic in TOPICS:
                for name, value in WAITING.items():
                    if not name.startswith("internal"):
                        text = str(value)
                        store.settings.set_topic(topic, name.replace("_", "."), text)
                store.settings.set_topic(topic, "segment.bytes", "5000")
                store.compact(f"{topic}-0")
        with Store(ours) as mine, Store(theirs, read_only=True) as kafka:
            for topic in TOPICS:
                name = f"{topic}-0"
                assert shape(mine[name]) == shape(kafka[name]), name
                bases = [segment.base_offset for segment in kafka[name].segments]
                assert [segment.base_offset for segment in mine[name].segments] == bases
        assert_clean(ours)
        # Kafka continues with the log that logfs has cleaned.
        for topic in TOPICS:
            shutil.rmtree(broker.log_dir / f"{topic}-0")
            shutil.copytree(ours / f"{topic}-0", broker.log_dir / f"{topic}-0")
        shutil.copy(ours / "cleaner-offset-checkpoint", broker.log_dir)
        broker.start()
        for topic in TOPICS:
            with Store(ours, read_only=True) as store:
                expected = list(store[f"{topic}-0"].committed.read())
            assert client.consume(topic, isolation="read_committed") == expected
