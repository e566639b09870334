"""A push into a real broker: equal batches at equal offsets, groups that go on, refusals before anything is sent."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from logfs.format.base.murmur2 import partition_of
from logfs.format.batches.record import Record
from logfs.store.store import Store
from tests.kafka import impatient, topics
from tests.kafka.copies import contents, without_epochs

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from logfs.push.plan import TopicPlan
    from tests.kafka.broker import Broker
    from tests.kafka.client import Client


def push(
    log_dir: Path, servers: str, pattern: str = ".*", map_path: Path | None = None
) -> dict[str, TopicPlan]:
    """Push topics unless one is refused; return the plans by topic."""
    from logfs.push.push import Push

    with (
        Store(log_dir, read_only=True) as store,
        Push(store, servers, re.compile(pattern), {}, map_path=map_path) as pushed,
    ):
        plans = pushed.plan(lambda progress: None)
        if not any(plan.is_refused for plan in plans):
            pushed.run(plans, lambda progress: None)
    return {plan.name: plan for plan in plans}


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """No push of these tests is killed, so none has to wait for requests of an earlier one."""
    monkeypatch.setattr("logfs.push.sender._QUIET_SECONDS", 0.2)
    monkeypatch.setattr("logfs.push.sender._PAUSE_SECONDS", 0.05)


# The kinds of topics whose batches a producer may send.
EXACT = [
    *(f"codec-{codec}" for codec in topics.CODECS),
    "empty",
    "idempotent",
    "odd",
    "recompressed",
    "segments",
    "unordered",
]


@pytest.fixture(scope="module")
def copy(source: Broker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log directory with topics of every kind, and groups."""
    from logfs.mirror.mirror import Mirror

    log_dir = tmp_path_factory.mktemp("copy")
    with Store(log_dir) as store, Mirror(store, source.servers, re.compile(".*"), {}) as mirror:
        mirror.run_once(lambda progress: None)
        store.create("untouched-0").append([b"could go"])
    return log_dir


@pytest.fixture(scope="module")
def target(make_broker: Callable[..., Broker]) -> Broker:
    """Another cluster."""
    return make_broker(log_message_timestamp_after_max_ms=1)


def test_a_push_has_the_same_batches(
    copy: Path, target: Broker, connect: Callable[[Broker], Client]
) -> None:
    """All codecs, producers, sizes and times: equal bytes at equal offsets, settings, and groups; twice is once."""
    there = connect(target)
    for turn in range(2):
        plans = push(copy, target.servers, "|".join(EXACT))
        assert not any(plan.obstacles for plan in plans.values())
        assert all(
            (plan.left == 0) == (turn == 1 or plan.name == "empty") for plan in plans.values()
        )
        with Store(copy, read_only=True) as store:
            for topic in EXACT:
                ours, theirs = copy / f"{topic}-0", target.partition(f"{topic}-0")
                assert without_epochs(ours) == without_epochs(theirs), topic
                assert there.consume(topic) == list(store[ours.name].read())
                settings = there.topic_settings(topic)
                overrides = store.settings.topic_overrides(topic)
                assert settings == {n: t for n, t in overrides.items() if "logfs" not in n}, topic
            for group in ("billing", "shipping", "audit", "members-classic", "members-consumer"):
                wanted = {w.topic: c[:2] for g, w, c in store.groups if g == group}
                found = {
                    each.topic: (each.offset, each.metadata) for each in there.committed(group)
                }
                assert {t: (o, m) for t, (o, m) in wanted.items() if t in EXACT} == found


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        ("transactions", "of transactions or their markers, .* the first at offset 0"),
        ("compacted", "places where offsets are missing, after compaction"),
        ("append-time", "LogAppendTime"),
        ("trimmed", "begins at offset [0-9]+ here, but its log in the cluster ends at 0"),
    ],
)
def test_what_brokers_would_change_is_refused(
    copy: Path, target: Broker, connect: Callable[[Broker], Client], topic: str, reason: str
) -> None:
    """The reason is said before anything is sent: other topics that could go are not even created."""
    done = run_push(copy, target, "--topics", f"{topic}|compacted-away|untouched")
    assert done.returncode == 1
    assert re.search(reason, done.stderr), done.stderr
    assert "--translate MAP" in done.stderr
    assert not {topic, "untouched"} & connect(target).topic_ids().keys()
    assert not done.stdout


def run_push(log_dir: Path, broker: Broker, *words: object) -> subprocess.CompletedProcess[str]:
    """Run `logfs push`."""
    return impatient.run("push", broker.servers, *words, log_dir)


TRANSLATED = [
    "transactions",
    "compacted-transactions",
    "append-time",
    "trimmed",
    "compacted",
    "segments",
]


def test_records_with_new_offsets(
    copy: Path,
    make_broker: Callable[..., Broker],
    connect: Callable[[Broker], Client],
    tmp_path: Path,
) -> None:
    """What cannot go as it is has the same committed records; each group goes on at the record that it was at."""
    broker = make_broker()
    there = connect(broker)
    map_path = tmp_path / "offsets.csv"
    with Store(copy, read_only=True) as store:
        wanted = {topic: list(store[f"{topic}-0"].committed.read()) for topic in TRANSLATED}
        for turn in range(2):
            done = run_push(copy, broker, "--topics", "|".join(TRANSLATED), "--translate", map_path)
            assert done.returncode == 0, done.stderr
            for topic, ours in wanted.items():
                theirs = there.consume(topic)
                assert contents(theirs) == contents(ours), (topic, turn)
        lines = map_path.read_text().splitlines()
        assert lines[1] == "topic,partition,offset,records,to_partition,to_offset,check"
        moved = {}
        runs = [line.split(",") for line in lines[2:] if not line.startswith("#")]
        for topic, _, offset, count, _, to_offset, _ in runs:
            for n in range(int(count)):
                moved[topic, int(offset) + n] = int(to_offset) + n
        for topic in TRANSLATED[:-1]:
            assert [moved[topic, each.offset] for each in wanted[topic]] == list(
                range(len(wanted[topic]))
            )
        assert not any(topic == "segments" for topic, _ in moved)
        committed = {w.topic: c.offset for g, w, c in store.groups if g == "within"}
        found = {each.topic: each.offset for each in there.committed("within")}
        assert found.keys() == {"transactions", "compacted-transactions"}
        for topic, offset in found.items():
            assert offset == sum(each.offset < committed[topic] for each in wanted[topic])


def test_a_wrong_map_sends_nothing(
    target: Broker, connect: Callable[[Broker], Client], tmp_path: Path
) -> None:
    """A map that was edited, that has lost lines, or that is of another log directory: the topic stays as it is."""
    there = connect(target)
    map_path = tmp_path / "map"
    log_dirs = [tmp_path / "log", tmp_path / "other"]
    for log_dir, count in zip(log_dirs, (30, 40), strict=True):
        with Store(log_dir) as store:
            mapped = store.create("mapped-0")
            for n in range(count):
                mapped.append([Record(b"%d" % n, timestamp=topics.T)])
            store.delete_records("mapped-0", 3)
            store.create("mapped-1").append([Record(b"other", timestamp=topics.T)])
    words = ["--topics", "mapped", "--translate", map_path]
    assert run_push(log_dirs[0], target, *words).returncode == 0
    whole = map_path.read_text()
    before = contents(there.consume("mapped"))
    assert len(before) == 27
    with Store(log_dirs[0]) as store:
        store["mapped-0"].append([Record(b"new", timestamp=topics.T)])
    *head, run, last = whole.splitlines()
    assert last.startswith("mapped,1,0,1,1,0,")
    wrong = {
        whole.replace("mapped,0,3,", "mapped,7,3,"): "was changed, or lines before it are missing",
        whole.replace("mapped,0,3,", "mapped,0,1000,"): "was changed",
        "\n".join([*head, run.replace(",27,", ",26,"), last, ""]): "was changed",
        "\n".join([*head, ""]): "mapped-0: has records in the cluster that the map does not know",
        "\n".join(
            [*head, run, ""]
        ): "mapped-1: has records in the cluster that the map does not know",
    }
    for text, said in wrong.items():
        map_path.write_text(text)
        done = run_push(log_dirs[0], target, *words)
        assert (done.returncode, said in done.stderr) == (1, True), done.stderr
        assert map_path.read_text() == text
    map_path.write_text(whole)
    done = run_push(log_dirs[1], target, *words)
    assert (done.returncode, "is about another topic mapped" in done.stderr) == (1, True)
    assert contents(there.consume("mapped")) == before
    assert run_push(log_dirs[0], target, *words).returncode == 0
    assert len(there.consume("mapped")) == 28


def test_another_number_of_partitions(
    target: Broker, connect: Callable[[Broker], Client], tmp_path: Path
) -> None:
    """Keys go to the partitions of Kafka's own producer, in their order; a group misses nothing; more may come."""
    there = connect(target)
    there.create_topic("spread", 3)
    log_dir, map_path = tmp_path / "log", tmp_path / "map"
    sent: list[Record] = []
    with Store(log_dir) as store:
        topic = store.topic("spread")
        topic.create(2)
    for turn in range(3):
        with Store(log_dir) as store:
            records = [
                Record(
                    b"%d" % (turn * 500 + n),
                    b"key %d" % (n % 37),
                    timestamp=topics.T + turn * 500 + n,
                )
                for n in range(500)
            ]
            store.topic("spread").append(records)
            sent += records
            if turn == 0:
                store.groups.commit_all("halfway", {"spread-0": 100, "spread-1": 90})
        said = run_push(log_dir, target).stderr
        assert "has 2 partitions here, but 3 in the cluster" in said
        plans = push(log_dir, target.servers, "spread", map_path)
        assert plans["spread"].is_translated
    with Store(log_dir, read_only=True) as store:
        read = {
            r.value for n, end in ((0, 100), (1, 90)) for r in store[f"spread-{n}"].read(0, end)
        }
    offsets = {each.partition: each.offset for each in there.committed("halfway")}
    found: list[Record] = []
    for number in range(3):
        records = there.consume("spread", number)
        found += records
        for each in records:
            assert each.key is not None
            assert partition_of(each.key, 3) == number
        assert [each.value for each in records] == [
            each.value
            for each in sent
            if each.key is not None and partition_of(each.key, 3) == number
        ]
        assert {each.value for each in records[: offsets[number]]} <= read
    assert sorted(contents(found)) == sorted(contents(sent))


def test_a_topic_that_lacks_a_partition(
    target: Broker, connect: Callable[[Broker], Client], tmp_path: Path
) -> None:
    """Partitions keep their numbers, and the missing one is empty; what comes later is pushed later."""
    there = connect(target)
    log_dir = tmp_path / "log"
    for turn in range(1, 3):
        with Store(log_dir) as store:
            for name in ("holed-0", "holed-2"):
                partition = store[name] if name in store else store.create(name)
                partition.append([Record(b"%d" % turn)] * 3)
        for _ in range(2):
            done = run_push(log_dir, target, "--topics", "holed")
            assert done.returncode == 0, done.stderr
        assert [len(there.consume("holed", number)) for number in range(3)] == [
            3 * turn,
            0,
            3 * turn,
        ]


def test_what_is_there_already(
    target: Broker, connect: Callable[[Broker], Client], tmp_path: Path
) -> None:
    """A log goes on where it ends there; other records at the same offsets, and damage, are refused."""
    there = connect(target)
    for topic in ("goes-on", "differs", "longer"):
        there.create_topic(topic)
        there.produce(
            topic,
            [Record(b"first", timestamp=1)],
            [Record(b"second", timestamp=2)],
            enable_idempotence=False,
        )
    there.produce("longer", [Record(b"third")] * 5)
    log_dir = tmp_path / "log"
    with Store(log_dir) as store:
        for topic in ("goes-on", "differs", "longer", "damaged"):
            partition = store.create(f"{topic}-0")
            partition.append([Record(b"first", timestamp=1)])
            partition.append([Record(b"second" if topic == "goes-on" else b"other", timestamp=2)])
            partition.append([Record(b"third", timestamp=3)])
    (file,) = (log_dir / "damaged-0").glob("*.log")
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)
    done = run_push(log_dir, target, "--topics", "longer", "--translate", tmp_path / "map")
    assert "has records in the cluster that the map does not know" in done.stderr
    done = run_push(log_dir, target, "--topics", "goes-on|damaged", "--replication-factor", "5")
    assert "topic damaged cannot be created: " in done.stderr
    assert done.stderr.count("\n") < 8
    for topic, reason in (
        ("differs", "its log in the cluster has other records before offset 2"),
        ("longer", "ends at offset 3 here, but at 7 in the cluster"),
        ("damaged", "'logfs check' shows the damage"),
        ("none", "no topic in the log directories matches 'none'"),
    ):
        done = run_push(log_dir, target, "--topics", topic)
        assert (done.returncode, reason in done.stderr) == (1, True), done.stderr
    done = run_push(log_dir, target, "--topics", "goes-on", "--dry-run")
    assert done.stdout == "goes-on: 1 offsets of 1 partition as they are\n"
    assert len(there.consume("goes-on")) == 2
    assert run_push(log_dir, target, "--topics", "goes-on").returncode == 0
    assert [each.value for each in there.consume("goes-on")] == [b"first", b"second", b"third"]
