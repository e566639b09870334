"""`spark.readStream.format("logfs")`: every record once, in bounded batches, whatever the log does meanwhile."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from logfs.format.base.names import TopicPartition
from logfs.format.batches.record import Record
from logfs.store.store import Store
from tests.support.batches import Producer
from tests.support.examples import drawn
from tests.support.requirements import need_fuse
from tests.support.stores import assert_clean

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyspark.sql.streaming import StreamingQueryListener

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from logfs.spark.progress import OffsetsBehindLatest
    from logfs.spark.stream import StreamReader
    from tests.support.mounts import Mount


def read(spark: SparkSession, log_dir: Path, **options: object) -> DataFrame:
    """Return a stream of `orders` from the beginning."""
    wanted = {"subscribe": "orders", "startingOffsets": "earliest", **options}
    texts = {name: str(value) for name, value in wanted.items()}
    return spark.readStream.format("logfs").options(**texts).load(str(log_dir))


def drain(frame: DataFrame, tmp_path: Path, name: str = "sink") -> list[dict[str, Any]]:
    """Run the stream into Parquet files until it has all records, and return the progress of its batches."""
    writer = frame.writeStream.format("parquet").option("path", str(tmp_path / name))
    query = (
        writer.option("checkpointLocation", str(tmp_path / f"{name}-checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    return [json.loads(progress.json) for progress in query.recentProgress]


def sunk(spark: SparkSession, tmp_path: Path, name: str = "sink") -> list[tuple[int, int]]:
    """Return what has arrived, as sorted pairs (partition, offset), including duplicates."""
    rows = spark.read.parquet(str(tmp_path / name)).select("partition", "offset").collect()
    return sorted((row.partition, row.offset) for row in rows)


def fill(store: Store, count: int, partitions: int = 2) -> None:
    """Append `count` records to each partition."""
    for number in range(partitions):
        name = f"orders-{number}"
        partition = store[name] if name in store else store.create(name)
        partition.append([Record(b"v" * 20, b"k%d" % n) for n in range(count)])


def everything(counts: dict[int, int]) -> list[tuple[int, int]]:
    """Return each offset of each partition once."""
    return [(number, offset) for number, count in counts.items() for offset in range(count)]


def plain(offsets: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """Return the offsets without the topic ids, which have the form of topics without partitions."""
    return {topic: each for topic, each in offsets.items() if each}


def topic_id(log_dir: Path, partition: str = "orders-0") -> str:
    """Return the id of a topic from the file of a partition."""
    return (log_dir / partition / "partition.metadata").read_text().rpartition(" ")[2]


def test_offsets_are_in_the_shape_of_the_kafka_source(spark: SparkSession, tmp_path: Path) -> None:
    """A checkpoint has {"orders":{"0":…}} and the topic's id, and the progress shows how far the query is behind."""
    with Store(tmp_path / "logs") as store:
        fill(store, 50)
        progress = drain(read(spark, tmp_path / "logs"), tmp_path)
    (source,) = progress[0]["sources"]
    expected = {"orders": {"0": 50, "1": 50}, f"orders#{topic_id(tmp_path / 'logs')}": {}}
    assert source["endOffset"] == source["latestOffset"] == expected
    written = (tmp_path / "sink-checkpoint/offsets/0").read_text().splitlines()
    assert json.loads(written[-1]) == expected
    assert sunk(spark, tmp_path) == everything({0: 50, 1: 50})


def test_a_query_resumes_where_it_stopped(spark: SparkSession, tmp_path: Path) -> None:
    """Five runs from one checkpoint read each record once, while the log grows, rolls, expires, gains a partition."""
    logs = tmp_path / "logs"
    counts = {0: 0, 1: 0, 2: 0}
    with Store(logs) as store:
        store.settings.set_topic("orders", "segment.bytes", "2000")
        for turn in range(5):
            partitions = 2 if turn < 3 else 3
            fill(store, 30, partitions)
            for number in range(partitions):
                counts[number] += 30
            drain(read(spark, logs, maxOffsetsPerTrigger=50), tmp_path)
            # All records have been read, so the log may delete them.
            if turn % 2:
                store.delete_records("orders-0", counts[0] - 10)
                store.retain(["orders-0"])
    assert sunk(spark, tmp_path) == everything(counts)


def test_compaction_during_a_query(spark: SparkSession, tmp_path: Path) -> None:
    """Records that compaction removes before they are read are no loss, and no record comes twice."""
    logs = tmp_path / "logs"
    with Store(logs) as store:
        store.settings.set_topic("orders", "cleanup.policy", "compact")
        fill(store, 40, 1)
        drain(read(spark, logs), tmp_path)
        fill(store, 40, 1)
        fill(store, 40, 1)
        store.compact("orders-0", roll=True)
        drain(read(spark, logs), tmp_path)
    assert sunk(spark, tmp_path) == [(0, offset) for offset in (*range(40), *range(80, 120))]


def test_unread_records_that_retention_deleted_are_a_loss(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Unread records that retention deleted fail the query with their offsets. failOnDataLoss=false skips them."""
    from pyspark.errors import StreamingQueryException

    logs = tmp_path / "logs"
    with Store(logs) as store:
        fill(store, 40, 1)
        drain(read(spark, logs), tmp_path)
        fill(store, 40, 1)
        store.delete_records("orders-0", 60)
        with pytest.raises(StreamingQueryException, match="offsets 40 to 59 of orders-0"):
            drain(read(spark, logs), tmp_path)
        drain(read(spark, logs, failOnDataLoss="false"), tmp_path)
    assert sunk(spark, tmp_path) == [(0, offset) for offset in (*range(40), *range(60, 80))]


# Topics and partitions that are deleted during a query.


def recreate(store: Store, count: int, partitions: int = 1) -> None:
    """Delete the topic, and create one of the same name with `count` records in each partition."""
    for name in list(store):
        store.delete(name)
    fill(store, count, partitions)


def run(frame: DataFrame, tmp_path: Path) -> StreamingQuery:
    """Start a query that does not end by itself."""
    writer = frame.writeStream.format("parquet").option("path", str(tmp_path / "sink"))
    writer = writer.option("checkpointLocation", str(tmp_path / "sink-checkpoint"))
    return writer.trigger(processingTime="100 milliseconds").start()


@pytest.mark.parametrize("count", drawn([20, 300], 1))
def test_a_recreated_topic_is_a_loss(spark: SparkSession, tmp_path: Path, count: int) -> None:
    """The next run detects a recreated topic by its id, even if it has more records than before.

    With failOnDataLoss=false all its records are read.
    """
    from pyspark.errors import StreamingQueryException

    logs = tmp_path / "logs"
    with Store(logs) as store:
        fill(store, 50, 1)
        drain(read(spark, logs), tmp_path)
        before = topic_id(logs)
        recreate(store, count, 2)
        with pytest.raises(StreamingQueryException) as failed:
            drain(read(spark, logs), tmp_path)
        said = str(failed.value)
        assert "topic orders was deleted and recreated" in said
        assert before in said
        assert topic_id(logs) in said
        assert "failOnDataLoss to false to begin at the earliest offset of the new topic" in said
        assert sunk(spark, tmp_path) == everything({0: 50})
        drain(read(spark, logs, failOnDataLoss="false", maxOffsetsPerTrigger=100), tmp_path)
        # From now on the checkpoint belongs to the new topic.
        fill(store, 10, 2)
        drain(read(spark, logs), tmp_path)
    expected = everything({0: count + 10, 1: count + 10}) + everything({0: 50})
    assert sunk(spark, tmp_path) == sorted(expected)


def test_a_checkpoint_without_topic_ids_can_be_continued(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A checkpoint as logfs 0.1 wrote it is continued without duplicates or gaps, and gets the ids."""
    logs = tmp_path / "logs"
    with Store(logs) as store:
        fill(store, 50)
        drain(read(spark, logs), tmp_path)
        for path in (tmp_path / "sink-checkpoint/offsets").glob("[0-9]*"):
            lines = path.read_text().splitlines()
            lines[-1] = json.dumps(plain(json.loads(lines[-1])))
            path.write_text("\n".join(lines))
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        drain(read(spark, logs), tmp_path)
        fill(store, 10)
        progress = drain(read(spark, logs), tmp_path)
    assert sunk(spark, tmp_path) == everything({0: 60, 1: 60})
    assert f"orders#{topic_id(logs)}" in progress[-1]["sources"][0]["endOffset"]


@pytest.mark.parametrize("whole", drawn([False, True], 1))
def test_a_partition_that_is_deleted_during_an_idle_query(
    spark: SparkSession, tmp_path: Path, whole: bool
) -> None:
    """A query fails and names the deleted partition, even if no new records come."""
    from pyspark.errors import StreamingQueryException

    logs = tmp_path / "logs"
    with Store(logs) as store:
        fill(store, 10)
        query = run(read(spark, logs, maxOffsetsPerTrigger=100), tmp_path)
        try:
            query.processAllAvailable()
            for name in ("orders-0", "orders-1") if whole else ("orders-1",):
                store.delete(name)
            with pytest.raises(
                StreamingQueryException, match=r"orders-. is no longer in the log directories"
            ):
                query.awaitTermination(60)
            assert not query.isActive
        finally:
            query.stop()
    assert sunk(spark, tmp_path) == everything({0: 10, 1: 10})


def test_a_query_that_allows_losses_continues(spark: SparkSession, tmp_path: Path) -> None:
    """With failOnDataLoss=false a query continues without a deleted partition or topic.

    A recreated one is read from its beginning.
    """
    logs = tmp_path / "logs"
    with Store(logs) as store:
        fill(store, 10)
        query = run(read(spark, logs, failOnDataLoss="false"), tmp_path)
        try:
            query.processAllAvailable()
            store.delete("orders-1")
            query.processAllAvailable()
            fill(store, 5, 1)
            query.processAllAvailable()
            assert query.lastProgress is not None
            fill(store, 30, 2)
            query.processAllAvailable()
            assert sunk(spark, tmp_path) == sorted(everything({0: 45, 1: 10}) + everything({1: 30}))
            recreate(store, 7, 0)
            query.processAllAvailable()
            fill(store, 100, 1)
            query.processAllAvailable()
        finally:
            query.stop()
        # The checkpoint has the new topic, so a query that allows no losses continues.
        fill(store, 5, 1)
        drain(read(spark, logs), tmp_path)
    assert sunk(spark, tmp_path) == sorted(
        everything({0: 45, 1: 10}) + everything({1: 30}) + everything({0: 105})
    )


def test_a_partition_that_moves_is_no_loss(spark: SparkSession, tmp_path: Path) -> None:
    """A partition may move to another log directory and back during a query."""
    logs = [tmp_path / "a", tmp_path / "b"]
    with Store(logs) as store:
        fill(store, 10)
        frame = (
            spark.readStream.format("logfs")
            .option("subscribe", "orders")
            .option("startingOffsets", "earliest")
            .option("paths", json.dumps(list(map(str, logs))))
            .load()
        )
        query = run(frame, tmp_path)
        try:
            for _ in range(2):
                query.processAllAvailable()
                store.move("orders-0", logs[store.registry.home("orders-0") == logs[0]])
                fill(store, 10)
            query.processAllAvailable()
        finally:
            query.stop()
    assert sunk(spark, tmp_path) == everything({0: 30, 1: 30})


def test_max_offsets_per_trigger_is_shared_by_backlog(spark: SparkSession, tmp_path: Path) -> None:
    """No micro-batch exceeds a limit above the number of partitions; a larger backlog gets a larger share."""
    with Store(tmp_path / "logs") as store:
        store.create("orders-0").append([b"x"] * 900)
        store.create("orders-1").append([b"x"] * 100)
        progress = drain(read(spark, tmp_path / "logs", maxOffsetsPerTrigger=200), tmp_path)
    sizes = [each["numInputRows"] for each in progress if each["numInputRows"]]
    assert sizes == [200] * 5
    assert plain(progress[0]["sources"][0]["endOffset"]) == {"orders": {"0": 180, "1": 20}}
    assert sunk(spark, tmp_path) == everything({0: 900, 1: 100})


def test_max_bytes_per_trigger(spark: SparkSession, tmp_path: Path) -> None:
    """A trigger takes about `maxBytesPerTrigger` bytes of the log, at least one batch, and reaches the log end."""
    with Store(tmp_path / "logs") as store:
        store.settings.set_topic("orders", "index.interval.bytes", "0")
        partition = store.create("orders-0")
        for _ in range(20):
            partition.append([b"x" * 100] * 10)
        whole = partition.size_bytes
        progress = drain(read(spark, tmp_path / "logs", maxBytesPerTrigger=whole // 5), tmp_path)
    sizes = [each["numInputRows"] for each in progress if each["numInputRows"]]
    assert 5 <= len(sizes) <= 10
    assert sum(sizes) == 200
    assert sunk(spark, tmp_path) == everything({0: 200})


# Calls that Spark makes on the reader, made directly, for states that a query is in only briefly.


def reader(log_dir: Path, **options: str) -> StreamReader:
    """Return the reader that Spark creates for these options."""
    from pyspark.sql.datasource import CaseInsensitiveDict

    from logfs.spark.source import LogfsDataSource

    wanted = {"subscribe": "orders", "path": str(log_dir), **options}
    source = LogfsDataSource(CaseInsensitiveDict(wanted))
    return source.streamReader(source.schema())


@pytest.mark.usefixtures("spark")
def test_a_first_latest_can_be_made_stable(tmp_path: Path) -> None:
    """With `initialOffsetsPath` the first offsets stay the same after the log has grown. Without it they move."""
    with Store(tmp_path / "logs") as store:
        fill(store, 10, 1)
        kept = str(tmp_path / "initial.json")
        assert plain(reader(tmp_path / "logs").initialOffset()) == {"orders": {"0": 10}}
        first = reader(tmp_path / "logs", initialOffsetsPath=kept).initialOffset()
        fill(store, 10, 1)
        again = reader(tmp_path / "logs", initialOffsetsPath=kept).initialOffset()
        assert first == again
        assert plain(first) == {"orders": {"0": 10}}
        assert plain(reader(tmp_path / "logs").initialOffset()) == {"orders": {"0": 20}}


@pytest.mark.usefixtures("spark")
def test_a_batch_that_begins_after_its_end_is_an_error(tmp_path: Path) -> None:
    """A batch that begins after its end, as after a truncation, is an error: nothing is read twice without one."""
    from logfs.spark.splits import DataLoss

    with Store(tmp_path / "logs") as store:
        fill(store, 10, 1)
        stream = reader(tmp_path / "logs")
        with pytest.raises(DataLoss, match="begins at offset 9, after its end 5"):
            stream.partitions({"orders": {"0": 9}}, {"orders": {"0": 5}})
        with pytest.raises(DataLoss, match="orders-7 is no longer in the log directories"):
            stream.partitions({"orders": {"7": 0, "0": 10}}, {"orders": {"7": 0, "0": 10}})
        stream.stop()


@pytest.mark.usefixtures("spark")
def test_a_new_partition_without_its_beginning_is_a_loss(tmp_path: Path) -> None:
    """As in Kafka's source, a new partition whose first records were deleted before they were read is a loss."""
    from logfs.spark.splits import DataLoss

    with Store(tmp_path / "logs") as store:
        fill(store, 10, 2)
        start, end = {"orders": {"0": 5}}, {"orders": {"0": 10, "1": 10}}
        stream = reader(tmp_path / "logs")
        assert stream.partitions(start, end)
        stream.stop()
        store.delete_records("orders-1", 4)
        stream = reader(tmp_path / "logs")
        with pytest.raises(DataLoss, match="orders-1 is new to the query, but its offsets 0 to 3"):
            stream.partitions(start, end)
        stream.stop()
        stream = reader(tmp_path / "logs", failOnDataLoss="false")
        (partition,) = stream.partitions(start, end)
        assert [split.first_offset for split in partition.value] == [5, 4]
        stream.stop()


@pytest.mark.usefixtures("spark")
def test_a_log_directory_that_is_replaced_is_an_error(tmp_path: Path) -> None:
    """A replaced log directory, for example one unmounted during a query, is an error even if losses are allowed."""
    from logfs.errors import InvalidStore

    logs = tmp_path / "logs"
    with Store(logs) as store:
        fill(store, 10)
    stream = reader(logs, failOnDataLoss="false")
    start = stream.initialOffset()
    logs.rename(tmp_path / "elsewhere")
    with pytest.raises(InvalidStore, match="the log directory no longer exists; was it unmounted"):
        stream.latestOffset(start)
    logs.mkdir()
    with pytest.raises(InvalidStore, match="another directory is in the place"):
        stream.latestOffset(start)
    logs.rmdir()
    (tmp_path / "elsewhere").rename(logs)
    assert plain(stream.latestOffset(start)) == {"orders": {"0": 10, "1": 10}}
    stream.stop()


@pytest.mark.usefixtures("spark")
def test_a_query_that_reads_committed_records_from_now_on_does_not_go_back(tmp_path: Path) -> None:
    """Its checkpoint of before may lie beyond the last stable offset: the next micro-batch is empty there."""
    logs = tmp_path / "logs"
    with Store(logs) as store:
        fill(store, 10)
        Producer(store["orders-0"], 1).send(*"abcde")
        start = reader(logs).latestOffset({})
        assert plain(start) == {"orders": {"0": 15, "1": 10}}
        for strict in ("true", "false"):
            stream = reader(logs, isolationLevel="read_committed", failOnDataLoss=strict)
            assert stream.latestOffset(start) == start
            assert [partition.value for partition in stream.partitions(start, start)] == [[]]
            stream.stop()


@pytest.mark.usefixtures("spark")
def test_a_topic_recreated_after_its_batch_was_planned(tmp_path: Path) -> None:
    """The offsets of a batch planned before its topic was recreated are lost. The next batch has the new topic."""
    from logfs.spark.splits import DataLoss

    logs = tmp_path / "logs"
    with Store(logs) as store:
        fill(store, 50, 1)
        start = {"orders": {"0": 10}, f"orders#{topic_id(logs)}": {}}
        end = {"orders": {"0": 50}, f"orders#{topic_id(logs)}": {}}
        recreate(store, 100)
        strict = reader(logs)
        with pytest.raises(DataLoss, match="topic orders was deleted and recreated"):
            strict.partitions(start, end)
        strict.stop()
        stream = reader(logs, failOnDataLoss="false")
        assert [partition.value for partition in stream.partitions(start, end)] == [[]]
        found = stream.latestOffset(end)
        assert found == {"orders": {"0": 100}, f"orders#{topic_id(logs)}": {}}
        (partition,) = stream.partitions(end, found)
        assert [(split.first_offset, split.end_offset) for split in partition.value] == [(0, 100)]
        stream.stop()


@pytest.mark.usefixtures("spark")
def test_a_single_partition_recreated_between_two_triggers(tmp_path: Path) -> None:
    """A recreated partition beside others keeps the topic's id, but a running query detects the new directory."""
    from logfs.spark.splits import DataLoss

    logs = tmp_path / "logs"
    with Store(logs) as store:
        fill(store, 10)
        strict, stream = reader(logs), reader(logs, failOnDataLoss="false")
        start = strict.initialOffset() and strict.latestOffset({})
        assert stream.latestOffset({}) == start
        store.delete("orders-1")
        store.create("orders-1").append([Record(b"other")] * 30)
        with pytest.raises(DataLoss, match=r"orders-1 .* it was deleted and recreated"):
            strict.latestOffset(start)
        strict.stop()
        first = stream.latestOffset(start)
        assert plain(first) == {"orders": {"0": 10}}
        assert [partition.value for partition in stream.partitions(start, first)] == [[]]
        second = stream.latestOffset(first)
        assert plain(second) == {"orders": {"0": 10, "1": 30}}
        (partition,) = stream.partitions(first, second)
        assert [(split.segment.partition, split.first_offset) for split in partition.value] == [
            ("orders-1", 0)
        ]
        stream.stop()


@pytest.mark.usefixtures("spark")
def test_min_offsets_per_trigger_waits(tmp_path: Path) -> None:
    """After the first batch, too few records make no batch before maxTriggerDelay, unless all are asked for."""
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMinRows

    with Store(tmp_path / "logs") as store:
        fill(store, 10, 1)
        known = {f"orders#{topic_id(tmp_path / 'logs')}": {}}
        start, end = {"orders": {"0": 4}, **known}, {"orders": {"0": 10}, **known}
        options = {"minOffsetsPerTrigger": "100", "maxTriggerDelay": "10h"}
        stream = reader(tmp_path / "logs", **options)
        assert stream.getDefaultReadLimit() == ReadMinRows(100)
        assert stream.latestOffset(start, ReadMinRows(100)) == end
        assert stream.latestOffset(start, ReadMinRows(100)) == start
        assert stream.latestOffset(start, ReadAllAvailable()) == end
        stream.prepareForTriggerAvailableNow()
        assert stream.latestOffset(start, ReadMinRows(100)) == start
        stream.stop()
        stream = reader(tmp_path / "logs", **{**options, "maxTriggerDelay": "0ms"})
        for _ in range(2):
            assert stream.latestOffset(start, ReadMinRows(100)) == end
        stream.stop()


@pytest.mark.usefixtures("spark")
def test_ending_options_have_no_meaning_in_a_stream(tmp_path: Path) -> None:
    """As in Kafka's source, ending options are an error in a stream, which its first call raises."""
    Store(tmp_path / "logs").close()
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    refused = reader(tmp_path / "logs", endingOffsets="latest")
    for call in (refused.initialOffset, lambda: refused.latestOffset({}, ReadAllAvailable())):
        with pytest.raises(ValueError, match="ending offset not valid in streaming queries"):
            call()


@pytest.mark.usefixtures("spark")
def test_shares_are_in_proportion() -> None:
    """Each partition with a backlog gets a share, and none gets more than its backlog."""
    from logfs.spark.stream import share

    names = [TopicPartition("orders", number) for number in range(3)]
    assert share(dict(zip(names, (90, 10, 0), strict=True)), 1000) == dict(
        zip(names, (90, 10, 0), strict=True)
    )
    assert share(dict(zip(names, (10**6, 1, 0), strict=True)), 100) == dict(
        zip(names, (99, 1, 0), strict=True)
    )


# The position of a query, for others to see.


def committed(log_dir: Path, group: str) -> dict[str, int]:
    """Return the offsets that a group has committed, by partition."""
    with Store(log_dir, read_only=True) as store:
        return {
            each.partition.directory: each.commit.offset
            for each in store.groups
            if each.group == group
        }


def test_the_position_of_a_query_is_that_of_a_group(spark: SparkSession, tmp_path: Path) -> None:
    """With groupId, `groups` show how far a query has come: at its end all of it, and never more than it has done."""
    with Store(tmp_path / "logs") as store:
        fill(store, 50)
    frame = read(spark, tmp_path / "logs", groupId="lake", maxOffsetsPerTrigger=30)
    drain(frame, tmp_path)
    assert committed(tmp_path / "logs", "lake") == {"orders-0": 50, "orders-1": 50}
    with Store(tmp_path / "logs") as store:
        fill(store, 10)
    assert committed(tmp_path / "logs", "lake") == {"orders-0": 50, "orders-1": 50}
    drain(frame, tmp_path)
    assert committed(tmp_path / "logs", "lake") == {"orders-0": 60, "orders-1": 60}
    assert sunk(spark, tmp_path) == everything({0: 60, 1: 60})
    assert_clean(tmp_path / "logs")


def test_the_position_is_committed_through_a_mount(
    spark: SparkSession, make_mount: Callable[..., Mount], tmp_path: Path
) -> None:
    """The mount that holds the directories commits the position; without it, nobody could."""
    need_fuse()
    mount = make_mount()
    for number in range(2):
        (mount.partition(f"orders-{number}") / "append").write_bytes(b"line\n" * 5)
    drain(read(spark, mount.path, groupId="lake"), tmp_path)
    assert (mount.path / "orders-0/groups/lake").read_text() == "5\n"


def test_a_position_that_cannot_be_committed_is_no_error(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Beside another process that has the log directory, the query goes on, and only its position stays behind."""
    with Store(tmp_path / "logs") as store:
        fill(store, 5)
        drain(read(spark, tmp_path / "logs", groupId="lake", maxOffsetsPerTrigger=2), tmp_path)
        assert sunk(spark, tmp_path) == everything({0: 5, 1: 5})
    assert committed(tmp_path / "logs", "lake") == {}
    # So it is where the log directory itself is gone, as after an unmount.
    from logfs.spark.group_position import GroupPosition

    position = GroupPosition("lake", [str(tmp_path / "gone")])
    position.note({TopicPartition("orders", 0): 5}, is_last=True)


def test_how_far_a_query_is_behind(spark: SparkSession, tmp_path: Path) -> None:
    """The lag is that of Kafka's source: the least, the greatest and the average number of offsets to the end."""
    import logfs.spark

    with Store(tmp_path / "logs") as store:
        fill(store, 50)
        store["orders-0"].append([b"x"] * 40)
    seen: list[OffsetsBehindLatest] = []

    class Listener(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None: ...

        def onQueryProgress(self, event: Any) -> None:
            seen.extend(each for each in logfs.spark.offsets_behind_latest(event.progress) if each)

        def onQueryIdle(self, event: Any) -> None: ...

        def onQueryTerminated(self, event: Any) -> None: ...

    listener = Listener()
    spark.streams.addListener(listener)
    try:
        drain(read(spark, tmp_path / "logs", maxOffsetsPerTrigger=70), tmp_path)
    finally:
        # Events come in their own thread.
        deadline = time.monotonic() + 30
        while (not seen or seen[-1].max) and time.monotonic() < deadline:
            time.sleep(0.1)
        spark.streams.removeListener(listener)
    # The shares of 70 offsets in proportion to 90 and 50.
    assert (seen[0].min, seen[0].max, seen[0].avg) == (25, 45, 35.0)
    assert seen[-1] == (0, 0, 0.0)
    rate = spark.readStream.format("rate").load().writeStream.format("noop").start()
    try:
        while rate.lastProgress is None:
            time.sleep(0.1)
        assert logfs.spark.offsets_behind_latest(rate.lastProgress) == [None]
    finally:
        rate.stop()
