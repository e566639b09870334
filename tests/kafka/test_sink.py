"""Kafka's consumer and kafka-dump-log read the batches that the Spark sink stages and that a commit appends."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from logfs.format.batches.record import Record
from logfs.log.disk.disk import Disk
from logfs.store.admin import commit_client
from logfs.store.settings import Settings
from logfs.store.store import Store
from tests.kafka.topics import CODECS, T
from tests.support.stores import assert_clean

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pytest.importorskip("pyspark", reason="pyspark is not installed")

from logfs.spark.sink.partitions import planned_partitions  # noqa: E402
from logfs.spark.sink.staging import StagingTask  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

    from logfs.format.files.commit_file import StagedFile
    from tests.kafka.broker import Broker
    from tests.kafka.client import Client
    from tests.kafka.tools import Tools


def rows(topic: str) -> list[dict[str, object]]:
    """Return 2,000 rows with all kinds of keys, values and headers."""
    rng = random.Random(topic)
    contents = [None, b"", b"text", bytes(range(256))]
    return [
        {
            "key": rng.choice(contents),
            "value": rng.choice([*contents, b"%d" % number * rng.randrange(300)]),
            "headers": [{"key": "n", "value": rng.choice(contents)}, {"key": "ü", "value": b""}][
                : rng.randrange(3)
            ],
            "timestamp": (T + number) * 1000,
        }
        for number in range(2000)
    ]


SCHEMA = [
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ("timestamp", pa.timestamp("us", "UTC")),
]


def test_kafka_reads_what_was_committed(
    make_broker: Callable[..., Broker],
    connect: Callable[[Broker], Client],
    tools: Tools,
) -> None:
    """Kafka reads each field of each committed record, with every codec and over several segments, after records of a
    broker, of another commit and of an append.

    A task attempt whose files are in no commit, and a repeated commit, add nothing.
    """
    broker = make_broker()
    client = connect(broker)
    topics = [f"sink-{codec}" for codec in CODECS]
    for topic in topics:
        client.create_topic(topic)
        client.produce(topic, [Record(b"the broker's", timestamp=T)])
    broker.stop()
    log_dir = broker.log_dir
    with Store(log_dir) as store:
        for topic, codec in zip(topics, CODECS, strict=True):
            store.settings.set_topic(
                topic, "compression.type", codec.replace("none", "uncompressed")
            )
            store.settings.set_topic(topic, "segment.bytes", "60000")
    assert Settings([(Disk(), log_dir)]).log_config(topics[0]).segment_bytes == 60000
    batch = {topic: pa.RecordBatch.from_pylist(rows(topic), pa.schema(SCHEMA)) for topic in topics}

    def attempt(writer: str, count: int = 2000) -> list[StagedFile]:
        return [
            file
            for topic in topics
            for file in StagingTask(
                [str(log_dir)], planned_partitions([str(log_dir)], topic), topic, writer, 0, 0
            ).stage([batch[topic][:count]])
        ]

    attempt("query")
    staged = attempt("query")
    commit_client.commit(log_dir, "another", 0, attempt("another", 1))
    with Store(log_dir) as store:
        for topic in topics:
            store[f"{topic}-0"].append([Record(b"appended", timestamp=T)])
    done = commit_client.commit(log_dir, "query", 0, staged)
    assert set(done.offsets.values()) == {(3, 2003)}
    assert commit_client.commit(log_dir, "query", 0, attempt("query")).already
    assert_clean(log_dir)
    for topic in topics:
        for log in sorted(broker.partition(f"{topic}-0").glob("*.log")):
            dumped = tools.dump(log, options="--deep-iteration")
            assert dumped.code == 0, dumped.err
            assert "isvalid: true" in dumped.out
            assert "isvalid: false" not in dumped.out
    broker.start()
    for topic in topics:
        found = connect(broker).consume(topic)
        assert [record.offset for record in found] == list(range(2003))
        assert found[2].value == b"appended"
        for record, row in zip([found[1], *found[3:]], rows(topic)[:1] + rows(topic), strict=True):
            headers = [(header["key"], header["value"]) for header in row["headers"]]
            assert (record.key, record.value) == (row["key"], row["value"])
            assert list(record.headers) == headers
            assert record.timestamp == row["timestamp"] // 1000
