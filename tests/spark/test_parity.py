"""`format("logfs")` of a log directory is equal to `format("kafka")` of its broker: rows, offsets, errors."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

import pytest

from logfs.format.batches.record import Record
from tests.kafka import topics
from tests.kafka.topics import T
from tests.support.examples import drawn

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamReader

    from tests.kafka.broker import Broker
    from tests.kafka.client import Client

FORMATS = ("kafka", "logfs")
PARTITIONS = 3
# The records of each partition of `orders`. With unequal backlogs the shares of a trigger differ.
COUNTS = (60, 25, 3)
DAY_MS = 86_400_000


class Sources(NamedTuple):
    """Both sources of the same topics."""

    spark: SparkSession
    broker: Broker

    def options(self, source: str, options: dict[str, object]) -> dict[str, str]:
        """Return the options of a source, with the place of the topics. Without a selection, `orders` is selected."""
        place = {"kafka.bootstrap.servers": self.broker.servers}
        if source == "logfs":
            place = {"path": str(self.broker.log_dir)}
        if not {"assign", "subscribe", "subscribePattern"} & options.keys():
            place["subscribe"] = "orders"
        return place | {name: str(value) for name, value in options.items()}

    def batch(self, source: str, **options: object) -> DataFrame:
        """Return a batch read."""
        return self.spark.read.format(source).options(**self.options(source, options)).load()

    def stream(self, source: str, **options: object) -> DataFrame:
        """Return a streaming read."""
        reader: DataStreamReader = self.spark.readStream.format(source)
        return reader.options(**self.options(source, options)).load()


@pytest.fixture(scope="module")
def sources(
    kafka_source: SparkSession, source: Broker, connect: Callable[[Broker], Client]
) -> Sources:
    """All topics of `tests.kafka.topics`, and `orders` with three partitions, as Kafka's clients wrote them."""
    client = connect(source)
    client.create_topic("orders", PARTITIONS)
    for partition, count in enumerate(COUNTS):
        records = [Record(b"%d" % n, timestamp=T + n * 1000) for n in range(count)]
        client.produce(
            "orders", *(records[n : n + 10] for n in range(0, count, 10)), partition=partition
        )
    return Sources(kafka_source, source)


def rows(frame: DataFrame) -> list[tuple[object, ...]]:
    """Return the rows in the order of the log."""
    found = [tuple(row) for row in frame.collect()]
    return sorted(found, key=lambda row: row[2:5])


def assert_equal(frames: list[DataFrame]) -> list[tuple[object, ...]]:
    """Check that both frames have the same schema and rows, and return the rows."""
    kafka, logfs = frames
    assert logfs.schema == kafka.schema
    expected = rows(kafka)
    assert rows(logfs) == expected
    return expected


@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    ("headers", "isolation"), [("true", "read_committed"), ("false", "read_uncommitted")]
)
def test_every_topic(sources: Sources, headers: str, isolation: str) -> None:
    """All codecs, headers, null keys and values, transactions, compacted and trimmed topics give the same rows."""
    options = {
        "subscribe": ",".join(topics.CONFIGS),
        "kafka.isolation.level": isolation,
        "includeHeaders": headers,
    }
    found = assert_equal([sources.batch(source, **options) for source in FORMATS])
    assert {row[2] for row in found} == topics.CONFIGS.keys() - {"empty"}


def each(offset: object, *others: object) -> str:
    """Return JSON for the partitions of `orders`."""
    found = [offset, *others] if others else [offset] * PARTITIONS
    return json.dumps({"orders": {str(n): value for n, value in enumerate(found)}})


def with_id(offsets: str) -> str:
    """Return the same offsets with a topic id, as a checkpoint of logfs has them."""
    return json.dumps({**json.loads(offsets), "orders#ABEiM0RVZneImaq7zN3u_w": {}})


def without_ids(offsets: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """Return the offsets of a logfs checkpoint as Kafka's source has them."""
    return {topic: each for topic, each in offsets.items() if each}


LIMITS: list[dict[str, object]] = [
    {},
    {"startingOffsets": with_id(each(3, 20, -2)), "endingOffsets": with_id(each(50, 22, -1))},
    {"startingOffsets": "earliest", "endingOffsets": "latest"},
    {"startingOffsets": each(3, 20, -2), "endingOffsets": each(50, 22, -1)},
    {"startingTimestamp": T + 1500, "endingTimestamp": T + 20_000},
    {"endingTimestamp": T + DAY_MS},
    {"startingOffsetsByTimestamp": each(T, T + 500, T + 2000)},
    {"endingOffsetsByTimestamp": each(T, T + 500, T + DAY_MS)},
    {
        "startingTimestamp": T + 40_000,
        "startingOffsetsByTimestampStrategy": "latest",
    },
    {
        "startingTimestamp": T + 1000,
        "startingOffsetsByTimestamp": each(T + 2000),
        "startingOffsets": each(0),
        "endingOffsetsByTimestamp": each(T + 2000),
        "endingOffsets": each(1),
    },
    {"startingOffsetsByTimestamp": each(T + 2000), "startingOffsets": "latest"},
    {"assign": '{"orders":[2,0]}', "minPartitions": 5},
    {"subscribePattern": "ord.*", "maxRecordsPerPartition": 7},
]


@pytest.mark.drawn(2)
@pytest.mark.parametrize("options", drawn(LIMITS, 5), ids=str)
def test_where_a_batch_starts_and_ends(sources: Sources, options: dict[str, object]) -> None:
    """Every option for the start and the end of a batch gives the same rows, with the same precedence."""
    assert_equal([sources.batch(source, **options) for source in FORMATS])


def run(sources: Sources, source: str, checkpoint: Path, **options: object) -> tuple[object, ...]:
    """Run a stream up to the log end. Return its schema, its rows, and its batches' offsets in the checkpoint."""
    stream = sources.stream(source, **options)
    name = f"of_{source}"
    writer = stream.writeStream.format("memory").queryName(name)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    batches = sorted((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    offsets = [path.read_text().splitlines()[-1] for path in batches]
    plain = [without_ids(json.loads(each)) for each in offsets]
    return stream.schema, rows(sources.spark.table(name)), plain


STREAMS: list[dict[str, object]] = [
    {"startingOffsets": "earliest"},
    {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 20},
    {"startingOffsets": each(10, -1, -2), "maxOffsetsPerTrigger": 13},
    {"startingTimestamp": T + 1500, "maxOffsetsPerTrigger": 40},
    # The first batch does not wait for more records, and a last batch that is too small is left for the next run.
    {"startingOffsets": "earliest", "minOffsetsPerTrigger": 1000},
    {"startingOffsets": "earliest", "minOffsetsPerTrigger": 15, "maxOffsetsPerTrigger": 20},
    {
        "startingOffsets": "earliest",
        "minOffsetsPerTrigger": 15,
        "maxOffsetsPerTrigger": 20,
        "maxTriggerDelay": "0ms",
    },
    {
        "startingOffsetsByTimestamp": each(T + 40_000),
        "startingOffsetsByTimestampStrategy": "latest",
    },
    {
        "subscribe": "transactions,compacted,compacted-transactions,trimmed",
        "startingOffsets": "earliest",
        "kafka.isolation.level": "read_committed",
        "includeHeaders": "true",
        "maxOffsetsPerTrigger": 500,
    },
]


@pytest.mark.drawn(1)
@pytest.mark.parametrize("options", drawn(STREAMS, 3), ids=str)
def test_streams(sources: Sources, tmp_path: Path, options: dict[str, object]) -> None:
    """Streams give the same rows in the same batches, by the offsets of each batch in the checkpoint."""
    kafka, logfs = (run(sources, source, tmp_path / source, **options) for source in FORMATS)
    assert logfs == kafka


def test_partitions_that_appear_during_a_query(
    sources: Sources, connect: Callable[[Broker], Client], tmp_path: Path
) -> None:
    """Partitions that appear during a query are read from their beginning, in the same batches."""
    client = connect(sources.broker)
    client.create_topic("growing", 1)
    client.produce("growing", [Record(b"first", timestamp=T)])
    queries = {}
    for source in FORMATS:
        stream = sources.stream(source, subscribe="growing", startingOffsets="earliest")
        writer = stream.writeStream.format("memory").queryName(f"growing_{source}")
        queries[source] = writer.option("checkpointLocation", str(tmp_path / source)).start()
    try:
        for partitions in (1, 2, 4):
            if partitions > 1:
                for query in queries.values():
                    query.processAllAvailable()
                client.grow_topic("growing", partitions)
            for number in range(partitions):
                client.produce("growing", [Record(b"next", timestamp=T)] * 3, partition=number)
        for query in queries.values():
            query.processAllAvailable()
        ends = {
            source: json.loads(query.lastProgress.json)["sources"][0]["endOffset"]
            for source, query in queries.items()
        }
    finally:
        for query in queries.values():
            query.stop()
    kafka, logfs = (rows(sources.spark.table(f"growing_{source}")) for source in FORMATS)
    assert logfs == kafka
    assert len(logfs) == 1 + 3 * (1 + 2 + 4)
    assert without_ids(ends["logfs"]) == ends["kafka"]


ERRORS: list[tuple[dict[str, object], str]] = [
    ({"startingOffsets": "latest"}, "starting offset can't be latest for batch queries on Kafka"),
    (
        {"startingOffsets": each(-1)},
        "startingOffsets for orders-0 can't be latest for batch queries on Kafka",
    ),
    ({"endingOffsets": "earliest"}, "ending offset can't be earliest for batch queries on Kafka"),
    (
        {"endingOffsets": each(-2)},
        "ending offset for orders-0 can't be earliest for batch queries on Kafka",
    ),
    (
        {"startingOffsets": '{"orders":{"0":5}}'},
        "Partitions specified for Kafka start offsets don't match what are assigned",
    ),
    (
        {"endingOffsets": '{"orders":{"0":5}}'},
        "Partitions specified for Kafka start offsets don't match what are assigned",
    ),
    (
        {"startingOffsetsByTimestamp": '{"orders":{"0":5}}'},
        "Partitions specified for Kafka timestamp based start offsets don't match what are assigned",
    ),
    (
        {"startingOffsets": "nonsense"},
        'Expected e.g. {"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}, got nonsense',
    ),
    (
        {"startingOffsetsByTimestamp": "nonsense"},
        '"topicB": {"0": 123456789, "1": 123456789}}, got nonsense',
    ),
    ({"startingTimestamp": "nonsense"}, "Expected a single long value, got nonsense"),
    (
        {"startingTimestamp": T + DAY_MS},
        f"No offset matched from request of topic-partition orders-0 and timestamp {T + DAY_MS}",
    ),
    (
        {"startingOffsets": each(30, 0, 0), "endingOffsets": each(20, 1, 1)},
        "The specified start offset 30 is greater than the end offset 20 for topic orders partition 0",
    ),
    ({"minPartitions": "0"}, "minPartitions must be positive"),
    ({"subscribePattern": " "}, "attern to subscribe is empty as specified value"),
    (
        {"subscribe": " , "},
        "No topics to subscribe to as specified value for option 'subscribe' is",
    ),
    (
        {"assign": "orders"},
        "No topicpartitions to assign as specified value for option 'assign' is 'orders'",
    ),
    (
        {"subscribe": "orders", "assign": '{"orders":[1]}'},
        "Only one of the following options can be specified",
    ),
    ({"kafka.enable.auto.commit": "true"}, "Kafka option 'enable.auto.commit' is not supported"),
    ({"kafka.key.deserializer": "x"}, "Kafka option 'key.deserializer' is not supported"),
    ({"kafka.auto.offset.reset": "earliest"}, "Kafka option 'auto.offset.reset' is not supported"),
]


@pytest.mark.parametrize(("options", "sentence"), drawn(ERRORS, 6), ids=str)
def test_errors_have_the_same_text(
    sources: Sources, options: dict[str, object], sentence: str
) -> None:
    """Both sources give an error with the same sentence, which users search for."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    for source in FORMATS:
        with pytest.raises((PySparkException, Py4JError)) as caught:
            sources.batch(source, **options).collect()
        assert sentence in str(caught.value), source


HEADERS = "array<struct<key:string,value:binary>>"
WRITE_ERRORS: list[tuple[str, dict[str, str], str]] = [
    (
        "value binary",
        {},
        "topic option required when no 'topic' attribute is present. Use the topic option for setting a topic.",
    ),
    ("key binary", {"topic": "orders"}, "Required attribute 'value' not found"),
    (
        "value int",
        {"topic": "orders"},
        "value attribute unsupported type int. value must be a(n) string or binary",
    ),
    (
        "key int, partition bigint",
        {"topic": "orders"},
        "key attribute unsupported type int. key must be a(n) string or binary",
    ),
    (
        "key int, topic binary",
        {},
        "topic attribute unsupported type binary. topic must be a(n) string",
    ),
    (
        "value string, partition bigint",
        {"topic": "orders"},
        "partition attribute unsupported type bigint. partition must be a(n) int",
    ),
    (
        "partition string, value string, headers array<struct<key:string,value:string>>",
        {"topic": "orders"},
        "headers attribute unsupported type array<struct<key:string,value:string>>. "
        f"headers must be a(n) {HEADERS}",
    ),
    (
        "value string, topic string",
        {},
        "contains a null topic. Use the `topic` option for setting a default topic.",
    ),
]


@pytest.mark.parametrize(("schema", "options", "sentence"), drawn(WRITE_ERRORS, 3), ids=str)
def test_errors_of_a_write_have_the_same_text(
    sources: Sources, schema: str, options: dict[str, str], sentence: str
) -> None:
    """Both sinks give the same error for columns that are missing or of another type, and for a null topic."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    row = [None] * len(schema.split(", "))
    frame = sources.spark.createDataFrame([row], schema)
    for source in FORMATS:
        writer = frame.write.format(source).options(**sources.options(source, dict(options)))
        with pytest.raises((PySparkException, Py4JError)) as caught:
            writer.mode("append").save()
        assert sentence in str(caught.value), source
