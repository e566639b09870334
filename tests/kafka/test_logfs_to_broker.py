"""A broker opens what was written through a mount: without recovery after a clean end, with it after kill -9."""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson
import pytest

from logfs.format.batches.record import Record
from logfs.format.files import checkpoint
from logfs.log.read.reader import EARLIEST, LATEST, MAX_TIMESTAMP
from logfs.store.store import Store
from tests.kafka.topics import CODECS, T
from tests.support.examples import drawn
from tests.support.mounts import Mount
from tests.support.requirements import need_fuse
from tests.support.stores import assert_clean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.kafka.broker import Broker
    from tests.kafka.client import Client
    from tests.kafka.tools import Tools

TIMES = 1000
# Written in the broker's empty partitions, or in a separate store, from which the partitions are moved to the broker.
WAYS = ("inside", "moved")
KINDS = (*CODECS, "append-time")
TOPICS = [f"{way}-{kind}" for way in WAYS for kind in KINDS]


@dataclass
class Adopted:
    """A broker that runs on a directory that logfs wrote, and a copy of the directory from before its start."""

    how: str
    broker: Broker
    ids: dict[str, str]
    copy: Path


def fill(directory: Path, rng: random.Random) -> None:
    """Write several segments of lines and of envelopes, with all kinds of records, to a partition."""
    kind = directory.name.split("-", 1)[1].removesuffix("-0")
    if kind == "append-time":
        (directory / "config/message.timestamp.type").write_text("LogAppendTime")
    else:
        (directory / "config/compression.type").write_text(kind.replace("none", "uncompressed"))
    # Few enough segments that their fsyncs take little time.
    plain = kind in ("none", "append-time")
    (directory / "config/segment.bytes").write_text("70000" if plain else "12000")
    (directory / "config/index.interval.bytes").write_text("500")
    with (directory / "append").open("wb") as append:
        append.write(b"".join(b"line %d %s\n" % (n, b"." * (n % 70)) for n in range(1000)))
    for _ in range(60):
        records = [envelope(rng) for _ in range(rng.choice([1, 3, 30]))]
        (directory / "append.jsonl").write_bytes(b"".join(records))
        (directory / "append").write_bytes(b"\n" + rng.randbytes(300).replace(b"\n", b"") + b"\n")
    assert len(list((directory / "segments").glob("*.log"))) > 2


def envelope(rng: random.Random) -> bytes:
    """Return a random envelope with or without key, value and headers, whose timestamp is in the day after T."""
    contents = [None, "", "text\nof lines", {"base64": "AP/+gA=="}]
    record = {
        "timestamp": T + rng.randrange(86_400_000),
        "key": rng.choice(contents),
        "value": rng.choice([*contents, "x" * rng.randrange(2000)]),
        "headers": [["n", rng.choice(contents)], ["ü", ""]][: rng.randrange(3)],
    }
    return orjson.dumps(record) + b"\n"


def adopt(broker: Broker, own: Path) -> None:
    """Replace the broker's empty partitions by those of the separate store, as docs/kafka.md describes."""
    for partition in sorted(own.glob("moved-*-0")):
        empty = broker.partition(partition.name)
        shutil.copy(empty / "partition.metadata", partition)
        shutil.rmtree(empty)
        shutil.move(partition, empty)


@pytest.fixture(scope="module", params=drawn(["clean", "killed"], 1))
def adopted(
    request: pytest.FixtureRequest,
    make_broker: Callable[..., Broker],
    connect: Callable[[Broker], Client],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Adopted]:
    """Topics that a broker created and that logfs wrote, by a daemon that was unmounted or killed."""
    need_fuse()
    base = tmp_path_factory.mktemp("adopted")
    broker = make_broker()
    client = connect(broker)
    ids = {topic: client.create_topic(topic) for topic in TOPICS}
    broker.stop()
    mounts = [Mount(base / "mnt", [broker.log_dir]), Mount(base / "own-mnt", [base / "own"])]
    try:
        inside, own = (mount.start() for mount in mounts)
        for topic in TOPICS:
            directory = f"{topic}-0"
            path = inside.path / directory
            fill(
                own.partition(directory) if topic.startswith("moved") else path,
                random.Random(topic),
            )
        if request.param == "killed":
            inside.kill()
            own.kill()
    finally:
        for mount in mounts:
            mount.stop()
    adopt(broker, base / "own")
    copy = shutil.copytree(broker.log_dir, base / "copy")
    yield Adopted(request.param, broker.start(), ids, copy)
    broker.stop()
    assert_clean(broker.log_dir)


@pytest.fixture(scope="module")
def client(adopted: Adopted, connect: Callable[[Broker], Client]) -> Client:
    """Kafka's clients for the broker of `adopted`."""
    return connect(adopted.broker)


@pytest.fixture(scope="module")
def store(adopted: Adopted) -> Iterator[Store]:
    """A read-only store on the copy."""
    with Store(adopted.copy, read_only=True) as store:
        assert not store.offline
        yield store


def test_the_topics_keep_their_ids(adopted: Adopted, client: Client) -> None:
    """The broker finds the topic id in each partition.metadata, and treats no directory as stray."""
    assert {topic: client.topic_ids()[topic] for topic in TOPICS} == adopted.ids
    for topic, topic_id in adopted.ids.items():
        metadata = (adopted.broker.partition(f"{topic}-0") / "partition.metadata").read_bytes()
        assert checkpoint.uuid_to_text(checkpoint.parse_partition_metadata(metadata)) == topic_id
    assert not list(adopted.broker.log_dir.glob("*-stray"))


def test_the_broker_recovers_only_after_a_kill(adopted: Adopted) -> None:
    """The broker's log output shows that it skips recovery after a clean end, and recovers all logs after kill -9."""
    said = adopted.broker.log()
    clean = adopted.how == "clean"
    assert (f"Skipping recovery of {len(TOPICS)} logs" in said) == clean
    assert (f"Recovering {len(TOPICS)} logs" in said) == (not clean)
    # After a clean end the controller does not treat the start as one after an unclean shutdown.
    assert ("handleBrokerUncleanShutdown" in said) == (not clean)
    for topic in TOPICS:
        assert ("Recovering unflushed segment" in adopted.broker.log_of(f"{topic}-0")) == (
            not clean
        )


@pytest.mark.parametrize("topic", TOPICS)
def test_consumers_read_every_record(client: Client, store: Store, topic: str) -> None:
    """Kafka's consumer reads the same offset, timestamp and its type, key, value and headers as logfs."""
    ours = list(store[f"{topic}-0"].read())
    assert len(ours) > 1500
    assert client.consume(topic) == ours


@pytest.mark.parametrize("topic", drawn(TOPICS, 8))
def test_lookups_by_time_are_equal(client: Client, store: Store, topic: str) -> None:
    """Lookups of 1,000 timestamps by the consumer, and of earliest, latest and greatest timestamp, are equal."""
    partition = store[f"{topic}-0"]
    known = partition.columns().timestamps.tolist()
    rng = random.Random(topic)
    times = [rng.choice(known) + rng.choice([-1, 0, 1]) for _ in range(TIMES // 2)]
    times += [rng.randint(min(known) - 1000, max(known) + 1000) for _ in range(TIMES // 2)]
    assert client.offsets_for_times(topic, times) == [partition.offset_for_time(t) for t in times]
    edges = client.list_offsets(topic, ["earliest", "latest", "max"])
    ours = [partition.offset_for_time(edge) for edge in (EARLIEST, LATEST, MAX_TIMESTAMP)]
    assert [edge and edge[:2] for edge in edges] == [edge and edge[:2] for edge in ours]


@pytest.mark.parametrize("topic", TOPICS)
def test_kafka_dump_log_finds_no_error(adopted: Adopted, tools: Tools, topic: str) -> None:
    """kafka-dump-log finds every batch valid, and each index sane and consistent with its log.

    After a kill of the daemon, only the indexes that the broker has rebuilt are checked.
    """
    before = adopted.copy / f"{topic}-0"
    logs = sorted(before.glob("*.log"))
    dumped = tools.dump(*logs)
    batches = [line for line in dumped.out.splitlines() if line.startswith("baseOffset:")]
    assert dumped.err == ""
    assert "invalid bytes" not in dumped.out
    assert len(batches) > 60
    assert all(batch.endswith("isvalid: true") for batch in batches)
    if adopted.how == "clean":
        check_indexes(tools, before, logs)
    # The indexes of a running broker's last segment have free space, which the tool treats as entries.
    check_indexes(tools, adopted.broker.partition(f"{topic}-0"), logs[:-1])


def check_indexes(tools: Tools, directory: Path, logs: list[Path]) -> None:
    """Assert that both indexes of each segment pass both checks of the tool."""
    stems = [directory / log.stem for log in logs]
    indexes = [stem.with_suffix(suffix) for stem in stems for suffix in (".index", ".timeindex")]
    sane = tools.dump(*indexes, options="--index-sanity-check")
    assert (sane.code, sane.err) == (0, "")
    assert all(
        f"{index} passed sanity check." in sane.out or f"{index} is empty." in sane.out
        for index in indexes
    )
    assert "passed sanity check" in sane.out
    verified = tools.dump(*indexes, options="--verify-index-only")
    assert (verified.code, verified.err) == (0, "")


@pytest.mark.parametrize("topic", TOPICS)
def test_the_broker_appends_at_the_log_end(client: Client, store: Store, topic: str) -> None:
    """The next record that the broker appends gets the next offset, and can be consumed."""
    end = store[f"{topic}-0"].log_end_offset
    assert client.produce(topic, [Record(b"the broker's", timestamp=T)])[0].offset == end
    assert [record.value for record in client.consume(topic, offset=end)] == [b"the broker's"]
