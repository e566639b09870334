"""A read-only mount on a running broker follows appends, rolls, retention and compaction, and changes nothing."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import threading
import time
from typing import TYPE_CHECKING

import orjson
import pytest

from logfs.format.base.names import TopicPartition
from logfs.format.batches.record import Record
from tests.kafka.topics import offsets
from tests.support.command_line import call, fails, ok
from tests.support.processes import stopped, wait_for
from tests.support.requirements import DEEP
from tests.support.stores import fingerprint, locks_below

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.kafka.broker import Broker
    from tests.kafka.client import Client
    from tests.support.mounts import Mount

# The duration of the load in seconds. The promise is about a minute.
SECONDS = float(os.environ.get("LOGFS_LIVE_SECONDS", "8" if DEEP else "3"))
# The least number of reads during the load, also on a slow machine.
READS = 100
PAUSE = 0.03
# Settings that make the broker run all of its background work as often as possible.
RESTLESS = {
    "log_retention_check_interval_ms": 300,
    "log_initial_task_delay_ms": 100,
    "log_flush_start_offset_checkpoint_interval_ms": 500,
    "log_flush_offset_checkpoint_interval_ms": 500,
    "log_cleaner_backoff_ms": 100,
}
SMALL = {"internal_segment_bytes": 20_000, "index_interval_bytes": 500, "file_delete_delay_ms": 700}
# Retention deletes the first records of `feed`, `table` is compacted, `both` is both; `quiet` does not change.
TOPICS: dict[str, dict[str, object]] = {
    "feed": {**SMALL, "retention_bytes": 300_000},
    "table": {**SMALL, "cleanup_policy": "compact", "min_cleanable_dirty_ratio": 0.01},
    "both": {
        **SMALL,
        "cleanup_policy": "compact,delete",
        "min_cleanable_dirty_ratio": 0.01,
        "retention_bytes": 200_000,
    },
    "quiet": {},
}


class Tail:
    """`tail -f` of a partition's records, from the first one."""

    def __init__(self, partition: Path, output: Path) -> None:
        self.output = output
        with output.open("wb") as file:
            self.process = subprocess.Popen(
                ["tail", "-n", "+1", "-s", "0.1", "-f", str(partition / "records")],
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    def lines(self) -> list[bytes]:
        return self.output.read_bytes().split(b"\n")[:-1]

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


class Readers:
    """Threads that read a mount in every way. Only ENOENT is allowed: the file may have left the log."""

    def __init__(self, mountpoint: Path) -> None:
        self.failures: list[BaseException] = []
        self.reads = 0
        self._mountpoint = mountpoint
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(seed,)) for seed in range(2)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _run(self, seed: int) -> None:
        rng = random.Random(seed)
        while not self._ended.is_set():
            partition = self._mountpoint / f"{rng.choice(list(TOPICS))}-0"
            try:
                rng.choice([self._one, self._range, self._time, self._whole, self._real])(
                    rng, partition
                )
                self.reads += 1
            except OSError as error:
                if error.errno != errno.ENOENT:
                    self.failures.append(error)
            except BaseException as error:
                self.failures.append(error)

    def _one(self, rng: random.Random, partition: Path) -> None:
        status = orjson.loads((partition / "status.json").read_bytes())
        offset = rng.randrange(status["log_start_offset"], status["log_end_offset"] + 1)
        envelope = orjson.loads((partition / f"offsets/{offset}.json").read_bytes())
        assert envelope["offset"] == offset

    def _range(self, rng: random.Random, partition: Path) -> None:
        shown = (partition / f"offsets/-{rng.randrange(1, 100)}...jsonl").read_bytes()
        offsets = [orjson.loads(line)["offset"] for line in shown.splitlines()]
        assert offsets == sorted(set(offsets))

    def _time(self, rng: random.Random, partition: Path) -> None:
        now = int(time.time() * 1000)
        wanted = now - rng.randrange(5000)
        envelope = orjson.loads((partition / f"time/{wanted}.json").read_bytes())
        assert envelope["timestamp"] >= wanted

    def _whole(self, rng: random.Random, partition: Path) -> None:
        with (partition / "records").open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            shown = file.read(size)
        assert shown.count(b"\n") * 200 == len(shown) == size

    def _real(self, rng: random.Random, partition: Path) -> None:
        for name in os.listdir(partition / "segments"):
            (partition / "segments" / name).read_bytes()
        for name in os.listdir(partition / "offsets"):
            os.stat(partition / "offsets" / name)


def has_worked(broker: Broker, mount: Mount) -> bool:
    """Whether the broker has deleted records of `feed`, and has compacted the other topics."""
    status = orjson.loads((mount.path / "feed-0/status.json").read_bytes())
    cleaned = offsets(broker.log_dir, "cleaner-offset-checkpoint")
    compacted = (cleaned.get(TopicPartition(name, 0), 0) for name in ("table", "both"))
    return bool(status["log_start_offset"]) and all(compacted)


@pytest.fixture(scope="module")
def busy(make_broker: Callable[..., Broker], connect: Callable[[Broker], Client]) -> Broker:
    """A broker with the topics of `TOPICS`, and with frequent background work."""
    broker = make_broker(**RESTLESS)
    client = connect(broker)
    for name, configs in TOPICS.items():
        client.create_topic(name, **configs)
    client.produce("quiet", [Record(b"%0199d" % 0)])
    return broker


def test_a_mount_on_a_busy_broker(
    busy: Broker,
    connect: Callable[[Broker], Client],
    make_mount: Callable[..., Mount],
    tmp_path: Path,
) -> None:
    """Under load `tail -f` sees every record once, no read fails, and the mount changes no file (issue item 6).

    In compacted topics `tail -f` may miss records that the cleaner removes, and sees no record twice.
    """
    client = connect(busy)
    mount = make_mount("--read-only", log_dirs=[busy.log_dir])
    tails = {name: Tail(mount.path / f"{name}-0", tmp_path / name) for name in TOPICS}
    readers = Readers(mount.path)
    sent: dict[str, list[bytes]] = {name: [] for name in TOPICS}
    sent["quiet"].append(b"%0199d" % 0)
    rng = random.Random(6)
    compressions = ["none", "none", "lz4", "zstd"]
    try:
        producers = [client.producer(compression_type=name) for name in compressions]
        end = time.monotonic() + SECONDS
        while time.monotonic() < end or readers.reads < READS or not has_worked(busy, mount):
            assert time.monotonic() < end + 120, "the broker has not deleted or compacted records"
            for name in ("feed", "table", "both"):
                batch = []
                for _ in range(rng.randrange(1, 60)):
                    value = b"%0199d" % len(sent[name])
                    sent[name].append(value)
                    batch.append(Record(value, key=b"%d" % rng.randrange(30)))
                rng.choice(producers).send(name, batch)
            # Readers that never caught up would only see retention.
            time.sleep(PAUSE)
        for name, tail in tails.items():
            wait_for(lambda name=name, tail=tail: tail.lines()[-1:] == sent[name][-1:])
    finally:
        readers.stop()
        for tail in tails.values():
            tail.stop()
    assert readers.failures == []
    assert mount.errors() == ""
    # Retention deletes records long after they were read; the cleaner may be faster than a reader.
    for name in ("feed", "quiet"):
        assert tails[name].lines() == sent[name]
    for name in ("table", "both"):
        shown = tails[name].lines()
        assert shown == sorted(set(shown))
        assert set(shown) <= set(sent[name])
        # Only what the broker has compacted away before `tail` read it may be missing.
        left = (mount.path / f"{name}-0/records").read_bytes().splitlines()
        assert set(left) <= set(shown)
    with stopped(busy.process.pid):  # type: ignore[union-attr]
        before = fingerprint(busy.log_dir), locks_below(busy.log_dir)
        assert before[1]
        assert_reads_everything(mount.path)
        again = make_mount("--read-only", name="again", log_dirs=[busy.log_dir])
        assert_reads_everything(again.path)
        assert mount.errors() == again.errors() == ""
        again.stop()
        assert (fingerprint(busy.log_dir), locks_below(busy.log_dir)) == before
    # Once the broker is idle, the mount shows what Kafka's own consumer sees.
    for name in TOPICS:
        wait_for(lambda name=name: shown_by(mount, name) == consumed(client, name))


def assert_reads_everything(mountpoint: Path) -> None:
    """Read every view of every partition, and assert that they agree."""

    def count(path: Path) -> int:
        return path.read_bytes().count(b"\n")

    for name in TOPICS:
        partition = mountpoint / f"{name}-0"
        # The mount may notice the broker's last changes between the two reads.
        wait_for(
            lambda partition=partition: (
                count(partition / "records.jsonl") == count(partition / "records") > 0
            )
        )
        for entry in os.listdir(partition / "segments"):
            (partition / "segments" / entry).read_bytes()


def shown_by(mount: Mount, name: str) -> list[tuple[int, bytes]]:
    """Return offset and value of each record of a topic, as the mount shows them."""
    text = (mount.path / f"{name}-0/records.jsonl").read_bytes()
    rows = map(orjson.loads, text.splitlines())
    return [(row["offset"], row["value"].encode()) for row in rows]


def consumed(client: Client, name: str) -> list[tuple[int, bytes]]:
    """Return offset and value of each record of a topic, as Kafka's consumer reads them."""
    return [(record.offset, record.value) for record in client.consume(name)]  # type: ignore[misc]


def test_commands_that_write_name_the_broker(
    busy: Broker, connect: Callable[[Broker], Client]
) -> None:
    """Each command that would change a running broker's directory says that a broker has it, and changes nothing."""
    client = connect(busy)
    client.create_topic("held", 2)
    client.produce("held", [Record(b"one")])
    logs = busy.log_dir
    for words in (
        ("append", logs / "held-0", "-f", "/etc/hostname"),
        ("append", logs / "held", "-f", "/etc/hostname"),
        ("create", logs / "other-0"),
        ("create", logs / "other", "-n", "2"),
        ("delete", logs / "held-0"),
        ("delete", logs / "held"),
        ("delete-records", logs / "held-0", "--before", "1"),
        ("config", logs, "--topic", "held", "retention.ms=1"),
        ("groups", logs, "--commit", "g", "held", "earliest"),
        ("groups", logs, "--forget", "g", "held-0"),
        ("compact", logs / "held-0"),
        ("retain", logs),
        ("tier", logs),
        ("recover", logs),
        ("reindex", logs / "held-0"),
        ("consume", logs / "held", "-g", "g", "--idle-exit", "0", "-F", ""),
    ):
        told = fails(*words) if words[0] != "consume" else call(*words).stderr.decode()
        assert "a Kafka broker" in told, words
    assert ok("cat", logs / "held-0") == "one\n"


def test_topics_come_and_go(
    busy: Broker, connect: Callable[[Broker], Client], make_mount: Callable[..., Mount]
) -> None:
    """A mount shows topics that the broker creates, deletes and creates again, and records that it deletes."""
    client = connect(busy)
    mount = make_mount("--read-only", log_dirs=[busy.log_dir])
    client.create_topic("new", partitions=2)
    client.produce("new", [Record(b"a"), Record(b"b"), Record(b"c")], partition=1)
    # The broker creates the partitions one after the other.
    wait_for(lambda: all((mount.path / f"new-{number}/records").exists() for number in range(2)))
    assert (mount.path / "new-1/records").read_bytes() == b"a\nb\nc\n"
    assert (mount.path / "new-0/records").read_bytes() == b""
    client.delete_records("new", 2, partition=1)
    wait_for(lambda: (mount.path / "new-1/records").read_bytes() == b"c\n")
    assert os.readlink(mount.path / "new-1/offsets/earliest") == "2"
    client.delete_topic("new")
    wait_for(lambda: not (mount.path / "new-1").exists())
    client.create_topic("new")
    client.produce("new", [Record(b"d")])
    wait_for(lambda: (mount.path / "new-0/records").exists())
    wait_for(lambda: (mount.path / "new-0/records").read_bytes() == b"d\n")
    assert mount.errors() == ""


def test_a_broker_that_dies_and_comes_back(
    busy: Broker, connect: Callable[[Broker], Client], make_mount: Callable[..., Mount]
) -> None:
    """While the broker is down the mount shows the existing records, and follows the broker again after its start."""
    client = connect(busy)
    mount = make_mount("--read-only", log_dirs=[busy.log_dir])
    records = mount.path / "quiet-0/records"
    shown = records.read_bytes()
    for turn, end in enumerate([busy.kill, busy.stop]):
        client.produce("quiet", [Record(b"%d" % turn)])
        shown += b"%d\n" % turn
        wait_for(lambda: records.read_bytes() == shown)  # noqa: B023
        end()
        assert records.read_bytes() == shown
        busy.start()
        client.produce("quiet", [Record(b"again")])
        shown += b"again\n"
        wait_for(lambda: records.read_bytes() == shown)  # noqa: B023
    assert mount.errors() == ""


def test_a_read_committed_mount_follows_transactions(
    busy: Broker, connect: Callable[[Broker], Client], make_mount: Callable[..., Mount]
) -> None:
    """A mount with `isolation=read_committed` shows a transaction after its commit, and never an aborted one."""
    client = connect(busy)
    client.create_topic("money")
    committed = make_mount("--read-only", "-oisolation=read_committed", log_dirs=[busy.log_dir])
    everything = make_mount("--read-only", name="all", log_dirs=[busy.log_dir])
    wait_for((committed.path / "money-0").is_dir)
    wait_for((everything.path / "money-0").is_dir)
    wanted, sent = b"", b""
    with client.producer(transactional_id="bank") as producer:
        for turn in range(12):
            producer.begin()
            producer.send("money", [Record(b"%d" % turn)])
            sent += b"%d\n" % turn
            assert (everything.path / "money-0/records").read_bytes() == sent
            assert (committed.path / "money-0/records").read_bytes() == wanted
            if turn % 3:
                producer.commit()
                wanted += b"%d\n" % turn
            else:
                producer.abort()
            # The broker writes the marker after it has answered the client.
            wait_for(lambda: (committed.path / "money-0/records").read_bytes() == wanted)  # noqa: B023
    assert (everything.path / "money-0/records").read_bytes() == sent
    assert committed.errors() == everything.errors() == ""
