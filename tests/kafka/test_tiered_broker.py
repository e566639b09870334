"""A real broker with tiered storage: what it has copied reads, without it, as its own consumers read it."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from logfs.format.tiered import metadata_record
from logfs.format.tiered.object_keys import local_directory, parse_local_key
from logfs.format.tiered.remote_segment import RemoteSegment, SegmentState, SegmentUpdate
from logfs.log.read.read_committed import Isolation
from logfs.store.store import Store
from tests.kafka.broker import Broker
from tests.kafka.client import COMMITTED, UNCOMMITTED, Client
from tests.kafka.distribution import Distribution, tiered_class_path
from tests.kafka.topics import CODECS, SMALL, T, batches
from tests.support.processes import wait_for

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from tests.kafka.helper import Helper
    from tests.kafka.tools import Tools

# Everything but the active segment leaves the broker's disk once it is copied.
TIERED = {"remote_storage_enable": "true", "local_retention_ms": 1, **SMALL}
TOPICS = (*(f"codec-{codec}" for codec in CODECS), "append-time", "transactions", "unordered")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the broker and of the bucket."""
    return tmp_path_factory.mktemp("tiered")


def tiered_settings(directory: Path) -> dict[str, object]:
    """Return the settings of a broker with tiered storage, whose bucket is below a directory."""
    return {
        "remote.log.storage.system.enable": "true",
        "remote.log.storage.manager.class.name": "org.apache.kafka.server.log.remote.storage.LocalTieredStorage",
        "remote.log.storage.manager.impl.prefix": "rsm.config.",
        "rsm.config.dir": directory / "bucket",
        "remote.log.metadata.manager.listener.name": "PLAINTEXT",
        "rlmm.config.remote.log.metadata.topic.replication.factor": 1,
        "rlmm.config.remote.log.metadata.topic.num.partitions": 2,
        "remote.log.manager.task.interval.ms": 200,
        "log.retention.check.interval.ms": 200,
    }


@pytest.fixture(scope="module")
def broker(kafka: Distribution, directory: Path) -> Iterator[Broker]:
    """A broker that copies segments into `bucket`."""
    tiered = replace(kafka, broker=tiered_class_path())
    with Broker(tiered, directory / "broker", **tiered_settings(directory)) as broker:
        yield broker.start()


@pytest.fixture(scope="module")
def client(helper: Helper, broker: Broker) -> Client:
    """Clients of the broker, which has written all topics under two leader epochs and copied them."""
    client = Client(helper, broker.servers)
    for topic in TOPICS:
        kind = {"message_timestamp_type": "LogAppendTime"} if topic == "append-time" else {}
        client.create_topic(topic, **TIERED, **kind)
    _write(client, 0, TOPICS)
    broker.restart()
    _write(client, 1, TOPICS)
    for topic in TOPICS:
        wait_for(lambda topic=topic: _is_copied(broker, topic), 60)
    return client


def _write(client: Client, turn: int, topics: Collection[str]) -> None:
    chance = random.Random(turn)
    for codec in CODECS:
        if f"codec-{codec}" in topics:
            client.produce(f"codec-{codec}", *batches(chance, turn, 60), compression_type=codec)
    if "append-time" in topics:
        client.produce("append-time", *batches(chance, turn, 60))
    if "unordered" in topics:
        shuffled = batches(chance, turn, 60)
        chance.shuffle(shuffled)
        client.produce("unordered", *shuffled)
    for number in range(12):
        with client.producer(transactional_id="one") as producer:
            producer.begin()
            producer.send("transactions", *batches(chance, turn, 6))
            if number % 3:
                producer.commit()
            else:
                producer.abort()


def _is_copied(broker: Broker, topic: str) -> bool:
    """Whether only the active segment of a topic is left on the broker's disk."""
    return len(list(broker.partition(f"{topic}-0").glob("*.log"))) == 1


@pytest.fixture
def bucket(
    client: Client, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Store:
    """The bucket, opened with an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return Store(f"file://{directory}/bucket/kafka-tiered-storage", read_only=True)


@pytest.mark.parametrize("topic", TOPICS)
def test_records_are_those_that_consumers_get(bucket: Store, client: Client, topic: str) -> None:
    """All records that were copied, at both isolation levels."""
    partition = bucket[f"{topic}-0"]
    assert len(partition.segments) > 2
    assert partition.log_start_offset == 0
    for isolation in (UNCOMMITTED, COMMITTED):
        expected = client.consume(topic, isolation=isolation)
        reader = partition.isolated(Isolation(isolation))
        end = reader.log_end_offset
        assert list(reader.read()) == [record for record in expected if record.offset < end]
    assert len(list(partition.read())) > 300


@pytest.mark.parametrize("topic", TOPICS)
def test_times_lead_where_the_broker_leads(bucket: Store, client: Client, topic: str) -> None:
    """Lookups by time whose result was copied, and the leader epochs."""
    partition = bucket[f"{topic}-0"]
    records = list(partition.read())
    chosen = random.Random(3).sample(records, 40)
    times = [record.timestamp for record in chosen if record.timestamp is not None]
    times += [time + 1 for time in times] + [T - 1]
    for time, found in zip(times, client.offsets_for_times(topic, times), strict=True):
        if found is not None and found.offset < partition.log_end_offset:
            assert partition.offset_for_time(time) == found, time
    known = [entry for entry in partition.epochs.entries if entry[1] < partition.log_end_offset]
    assert [epoch for epoch, _ in known] == sorted({e for _, e in client.consume_epochs(topic)})


def test_the_metadata_topic_describes_the_bucket(
    bucket: Store, broker: Broker, directory: Path
) -> None:
    """The broker's `__remote_log_metadata` has each segment of the bucket, with the offsets that it has.

    A copy that the broker's restart has cut off stays in the bucket, and its state says so.
    """
    described: dict[uuid.UUID, RemoteSegment] = {}
    with Store(broker.log_dir, read_only=True) as store:
        for name in store:
            if not name.startswith(f"{metadata_record.TOPIC}-"):
                continue
            for record in store[name].read():
                found = metadata_record.parse(record.value or b"")
                if isinstance(found, RemoteSegment):
                    described[found.segment_id] = found
                elif isinstance(found, SegmentUpdate):
                    described[found.segment_id] = described[found.segment_id].updated(found)
    place = directory / "bucket/kafka-tiered-storage"
    stored = {}
    for path in place.rglob("*.log"):
        parsed = parse_local_key(str(path.relative_to(place)))
        assert parsed is not None
        start_offset, segment_id, _ = parsed
        stored[segment_id] = path.parent.name, start_offset, path.stat().st_size
    finished, cut_off = (
        {key for key, each in described.items() if each.state is state}
        for state in (SegmentState.COPY_SEGMENT_FINISHED, SegmentState.COPY_SEGMENT_STARTED)
    )
    assert finished <= stored.keys() <= finished | cut_off
    for segment_id in finished:
        directory_name, start_offset, size = stored[segment_id]
        each = described[segment_id]
        assert (each.start_offset, each.size_bytes) == (start_offset, size)
        assert local_directory(each.partition) == f"{directory_name}/"
        log = bucket[f"{each.partition.topic}-{each.partition.partition}"]
        (segment,) = [s for s in log.segments if s.base_offset == start_offset]
        assert each.end_offset + 1 == segment.next_offset


def test_the_bucket_is_mounted_while_the_broker_runs(
    bucket: Store, directory: Path, make_mount: Callable[..., object]
) -> None:
    """The text of the records is there, and `logfs check` finds no error."""
    from logfs.store.observe.check import Severity, check
    from tests.support.mounts import Mount

    place = bucket.log_dirs[0].path
    mount = make_mount("--read-only", log_dirs=[place])
    assert isinstance(mount, Mount)
    expected = b"".join((r.value or b"") + b"\n" for r in bucket["codec-lz4-0"].read())
    assert (mount.path / "codec-lz4-0/records").read_bytes() == expected
    assert not [each for each in check([place]) if each.severity is Severity.ERROR]


@pytest.mark.parametrize("topic", TOPICS)
def test_a_brokers_disk_and_its_bucket_are_one_log(
    client: Client,
    broker: Broker,
    directory: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    topic: str,
) -> None:
    """With the bucket in the settings, the broker's own descriptions lead to what is not on its disk any more."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    # Kafka ignores this file.
    (broker.log_dir / "logfs.properties").write_text(
        f"remote.storage.url=file://{directory}/bucket\n"
        "remote.storage.prefix=kafka-tiered-storage/\n"
    )
    with Store(broker.log_dir, read_only=True) as store:
        partition = store[f"{topic}-0"]
        assert partition.segments[0].is_tiered
        for isolation in (UNCOMMITTED, COMMITTED):
            reader = partition.isolated(Isolation(isolation))
            assert list(reader.read()) == client.consume(topic, isolation=isolation)
        records = list(partition.read())
        chosen = random.Random(4).sample(records, 20)
        for record in chosen:
            assert partition.record(record.offset) == record
        times = [record.timestamp for record in chosen if record.timestamp is not None]
        assert [partition.offset_for_time(each) for each in times] == client.offsets_for_times(
            topic, times
        )
    (broker.log_dir / "logfs.properties").unlink()


# The other direction.


def test_a_broker_reads_what_logfs_has_copied(
    kafka: Distribution, helper: Helper, tools: Tools, tmp_path: Path
) -> None:
    """Its consumers get the same records and offsets by time, from objects and descriptions that logfs has written.

    Kafka's own tool prints the descriptions.
    """
    settings = tiered_settings(tmp_path)
    settings["remote.log.manager.task.interval.ms"] = 3_600_000
    tiered = replace(kafka, broker=tiered_class_path())
    with Broker(tiered, tmp_path / "broker", **settings) as broker:
        client = Client(helper, broker.start().servers)
        topics = ("codec-zstd", "transactions")
        for topic in topics:
            # The broker copies nothing itself.
            client.create_topic(
                topic, **TIERED | {"remote_log_copy_disable": "true", "local_retention_ms": -2}
            )
        _write(client, 0, topics)
        broker.restart()
        _write(client, 1, topics)
        expected = {
            (topic, isolation): client.consume(topic, isolation=isolation)
            for topic in topics
            for isolation in (UNCOMMITTED, COMMITTED)
        }
        times = [r.timestamp for r in expected["codec-zstd", UNCOMMITTED][::40] if r.timestamp]
        found = client.offsets_for_times("codec-zstd", times)
        broker.stop()
        with Store(broker.log_dir, create=False) as store:
            for name, value in {
                "remote.storage.url": f"file://{tmp_path}/bucket",
                "remote.storage.prefix": "kafka-tiered-storage/",
                "remote.storage.layout": "local",
            }.items():
                store.settings.set_broker(name, value)
            for topic in topics:
                store.settings.set_topic(topic, "remote.storage.enable", "true")
                store.settings.set_topic(topic, "local.retention.bytes", "0")
                store.settings.set_topic(topic, "retention.ms", "-1")
                assert store.tier(f"{topic}-0") > 2
            store.retain([f"{topic}-0" for topic in topics])
            for topic in topics:
                assert len(store[f"{topic}-0"].local_segments) == 1
                assert list(store[f"{topic}-0"].read()) == expected[topic, UNCOMMITTED]
        described = sorted(broker.log_dir.glob("__remote_log_metadata-*/*.log"))
        dumped = tools.dump(*described, options="--remote-log-metadata-decoder").out
        assert dumped.count("COPY_SEGMENT_STARTED") == dumped.count("COPY_SEGMENT_FINISHED") > 4
        broker.start()
        for (topic, isolation), records in expected.items():
            assert client.consume(topic, isolation=isolation) == records
        assert client.offsets_for_times("codec-zstd", times) == found
