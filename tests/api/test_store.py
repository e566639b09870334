"""An open store: modes, the mapping, closing, topics, groups, upkeep."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

import logfs
from tests.support.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def path(log_dir: Path) -> Path:
    """The path of a log directory that does not exist yet; it is audited after the test."""
    return log_dir


@pytest.fixture
def opened(path: Path) -> Iterator[logfs.Store]:
    """A store with the topic `orders` of two partitions."""
    with logfs.open(path, create=True) as store:
        store.create_topic("orders", 2)
        yield store


def test_modes(path: Path) -> None:
    """A missing directory is made only if asked, and with "r" nothing is changed."""
    with pytest.raises(logfs.InvalidStore, match="create=True"):
        logfs.open(path)
    with pytest.raises(logfs.InvalidName, match="mode"):
        logfs.open(path, "w")  # type: ignore[arg-type]
    with pytest.raises(logfs.InvalidName, match="create=True"):
        logfs.open(path, "r", create=True)
    assert not path.exists()
    with logfs.open(str(path), create=True) as store:
        store.create("a-0").append("x")
    before = sorted((each, each.stat().st_mtime_ns) for each in path.rglob("*"))
    with logfs.open(path, "r") as store:
        assert [record.value for record in store["a-0"].read()] == [b"x"]
        for change in (
            lambda: store["a-0"].append("y"),
            lambda: store["a-0"].flush(),
            lambda: store["a-0"].delete(),
            lambda: store["a-0"].truncate(0),
            lambda: store["a-0"].delete_records(0),
            lambda: store["a-0"].compact(),
            lambda: store.create("b-0"),
            lambda: store.create_topic("b"),
            lambda: store.topic("a").append("y"),
            lambda: store.topic("a").delete(),
            lambda: store.topic("a").settings.update({"retention.ms": "1d"}),
            lambda: store.groups.commit("g", {"a-0": 1}),
            lambda: store.groups.forget("g", "a-0"),
            lambda: store.transaction("id"),
            lambda: store.undelete("a-0"),
        ):
            with pytest.raises(logfs.NotWritable):
                change()
        store.upkeep()
    assert sorted((each, each.stat().st_mtime_ns) for each in path.rglob("*")) == before


def test_several_log_directories(tmp_path: Path) -> None:
    """A list of paths is one store."""
    with logfs.open([tmp_path / "a", str(tmp_path / "b")], create=True) as store:
        store.create_topic("t", 4)
        assert [*store] == [f"t-{n}" for n in range(4)]
    assert [len([*(tmp_path / each).glob("t-*")]) for each in "ab"] == [2, 2]


def test_a_store_is_a_mapping(opened: logfs.Store) -> None:
    """The names of partitions, in order, with their partitions."""
    assert [*opened] == [*opened.keys()] == ["orders-0", "orders-1"]
    assert len(opened) == 2
    assert "orders-0" in opened
    assert "orders-9" not in opened
    assert opened.get("orders-9") is None
    assert [each.name for each in opened.values()] == [*opened]
    assert opened["orders-0"] == opened["orders-0"] != opened["orders-1"]
    assert len({*opened.values(), *opened.values()}) == 2
    assert [*opened.topics] == ["orders"]
    assert opened.offline == {}
    for name, hint in (("order-0", "did you mean 'orders-0'"), ("x-0", r"store.create\('x-0'\)")):
        with pytest.raises(KeyError, match=hint):
            opened[name]
    for get in (opened.topic, opened.topics.__getitem__):
        with pytest.raises(logfs.UnknownPartition, match="did you mean 'orders'"):
            get("order")


def test_a_live_store_sees_what_another_writes(path: Path) -> None:
    """In a store opened with "r", each call sees what a writer has done before it, as does the mapping."""
    with logfs.open(path, create=True) as store, logfs.open(path, "r") as live:
        assert [*live] == []
        store.create("a-0").append("1")
        assert [*live] == ["a-0"]
        seen = live["a-0"]
        store["a-0"].append("2")
        assert seen.log_end_offset == 2
        assert [record.value for record in seen.read()] == [b"1", b"2"]
        store.groups.commit("g", {"a-0": 1})
        assert live.groups["g"] == {"a-0": 1}
        store.topic("a").settings["retention.ms"] = "1d"
        store["a-0"].delete()
        assert "a-0" not in live
        with pytest.raises(logfs.UnknownPartition):
            _ = seen.log_end_offset
        store.create("a-0")
        assert seen.log_end_offset == 0


def test_a_live_store_sees_changed_settings(path: Path) -> None:
    """In a store opened with "r", a setting has the value that a writer has given it, or to the store, before."""
    with logfs.open(path, create=True) as store, logfs.open(path, "r") as live:
        settings = store.create_topic("a", retention_ms="1d").settings
        seen = live.topic("a").settings
        assert seen["retention.ms"] == "86400000"
        settings["retention.ms"] = "2d"
        assert seen["retention.ms"] == "172800000"
        assert live._engine["a-0"].config.retention_ms == 172_800_000
        del settings["retention.ms"]
        store._engine.settings.set_broker("log.retention.ms", "3d")
        assert seen["retention.ms"] == "259200000"
        settings["retention.ms"] = "2d"
        store.topic("a").delete()
        store.create_topic("a", segment_bytes=50_000)
        assert (seen["retention.ms"], seen["segment.bytes"]) == ("259200000", "50000")


def test_settings_are_removed_as_from_any_mapping(path: Path) -> None:
    """`clear` and `popitem` remove what the topic has of its own; the defaults stay."""
    with logfs.open(path, create=True) as store:
        settings = store.create_topic("a", retention_ms="1d", segment_bytes=50_000).settings
        before = len(settings)
        with pytest.raises(logfs.InvalidSetting):
            settings.update({"segment.bytes": "60000"}, **{"retention.ms": "x"})
        with pytest.raises(TypeError, match="use del"):
            settings["retention.ms"] = None  # type: ignore[assignment]
        assert (settings["retention.ms"], settings["segment.bytes"]) == ("86400000", "50000")
        assert settings.popitem() in {("retention.ms", "86400000"), ("segment.bytes", "50000")}
        settings.clear()
        assert (settings["retention.ms"], settings["segment.bytes"]) == ("604800000", "1073741824")
        assert len(settings) == before
        with pytest.raises(KeyError, match="no settings of its own"):
            settings.popitem()
        with pytest.raises(logfs.UnknownPartition, match=r"it is a topic: store.topic\('a'\)"):
            _ = store["a"]


def test_a_live_store_keeps_its_settings_if_new_ones_are_invalid(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file that cannot be read is warned of; the settings of other topics are still followed."""
    with logfs.open(path, create=True) as store, logfs.open(path, "r") as live:
        for name in ("a", "b"):
            store.create_topic(name, retention_ms="1d")
            assert live.topic(name).settings["retention.ms"] == "86400000"
        (path / "new").write_text("retention.ms=never\n")
        (path / "new").rename(path / "a@p")
        store.topic("b").settings["retention.ms"] = "2d"
        assert live.topic("a").settings["retention.ms"] == "86400000"
        assert live.topic("b").settings["retention.ms"] == "172800000"
        assert "a@p: old settings stay" in caplog.text
        store.topic("a").settings["retention.ms"] = "3d"
        assert live.topic("a").settings["retention.ms"] == "259200000"


def test_every_call_on_a_closed_store_is_an_error(path: Path) -> None:
    """After `close`, a call on the store or on what it gave raises `StoreClosed`; closing again is harmless."""
    store = logfs.open(path, create=True)
    topic = store.create_topic("a")
    partition = store["a-0"]
    partition.append_many(["1", "2"])
    reading = partition.read()
    next(reading)
    follower, consumer = partition.follow(0), store.consumer("a", group="g")
    next(follower)
    transaction = store.transaction("id")
    for _ in range(2):
        store.close()
    assert store.closed
    assert "closed" in repr(store)
    calls: list[Callable[[], object]] = [
        lambda: store["a-0"],
        lambda: [*store],
        lambda: len(store),
        lambda: "a-0" in store,
        lambda: store.create("b-0"),
        lambda: store.topics,
        lambda: store.groups["g"],
        store.upkeep,
        store.flush,
        lambda: store.consumer("a", group="g"),
        lambda: store.transaction("id"),
        lambda: partition.append("x"),
        lambda: partition.append_many(["x"]),
        lambda: partition.log_end_offset,
        lambda: partition.last_stable_offset,
        lambda: [*partition.read()],
        lambda: [*reading],
        lambda: [*partition.last(1)],
        lambda: partition.record(0),
        lambda: partition.newest("k"),
        partition.columns,
        partition.flush,
        lambda: partition.offset_for_time(0),
        lambda: next(follower),
        lambda: topic.append("x"),
        lambda: [*topic.read()],
        lambda: topic.partitions,
        lambda: topic.settings["retention.ms"],
        lambda: [*topic.settings],
        lambda: len(topic.settings),
        topic.flush,
        topic.follow,
        lambda: next(consumer),
        lambda: transaction.append("a-0", "x"),
        transaction.commit,
    ]
    for call in calls:
        with pytest.raises(logfs.StoreClosed, match="closed"):
            call()
    consumer.close()
    with logfs.open(path) as store:
        assert [record.value for record in store["a-0"].read()] == [b"1", b"2"]


def test_a_store_that_is_dropped_warns_and_is_free(path: Path) -> None:
    """Without `close` there is a `ResourceWarning`, the directory is unlocked, and no record is lost."""
    store = logfs.open(path, create=True)
    partition = store.create("a-0")
    partition.append("x")
    del partition
    with pytest.warns(ResourceWarning, match="not closed"):
        store = gc.collect()  # type: ignore[assignment]
    with logfs.open(path) as store:
        assert [record.value for record in store["a-0"].read()] == [b"x"]


def test_a_partition_keeps_its_store_open(path: Path) -> None:
    """A partition whose store has no name of its own can be used."""
    partition = logfs.open(path, create=True).create("a-0")
    assert partition.append("x") == 0
    partition._store.close()


def test_upkeep_in_the_background(path: Path) -> None:
    """With `upkeep=True` retention is done by itself, until the store is closed, which ends the thread."""
    threads = threading.active_count()
    with logfs.open(path, create=True, upkeep=True) as store:
        topic = store.create_topic(
            "a", segment_bytes=1000, retention_bytes=0, file_delete_delay_ms=0
        )
        store._engine.settings.set_broker("log.retention.check.interval.ms", "1")
        for _ in range(5):
            topic.append(b"x" * 900)
        wait_for(lambda: store["a-0"].log_start_offset > 0)
    assert threading.active_count() == threads


def test_topics_have_settings_and_units(opened: logfs.Store) -> None:
    """Settings are a mapping with every value in force; units, numbers and several at once are taken."""
    topic = opened.create_topic("t", 3, retention_ms="7d", segment_bytes=2_000_000)
    assert [each.partition for each in topic.partitions] == [0, 1, 2]
    assert (topic.settings["retention.ms"], topic.settings["segment.bytes"]) == (
        "604800000",
        "2000000",
    )
    assert topic.settings["cleanup.policy"] == "delete"
    topic.settings.change({"retention.ms": "1d", "cleanup.policy": "compact"})
    del topic.settings["retention.ms"]
    assert topic.settings["retention.ms"] == "604800000"
    assert "retention.ms" in topic.settings
    assert topic.settings.get("retention.millis") is None
    assert len(dict(topic.settings)) == len(topic.settings)
    with pytest.raises(KeyError, match=r"did you mean 'retention.ms'"):
        topic.settings["retention.m"]
    with pytest.raises(logfs.InvalidSetting):
        topic.settings["retention.ms"] = "soon"
    with pytest.raises(logfs.UnknownSetting):
        opened.create_topic("u", retention_m=1)
    assert "u-0" not in opened
    with pytest.raises(logfs.PartitionExists):
        opened.create_topic("t", 3)
    with pytest.raises(logfs.InvalidName):
        opened.create_topic("t", 20_000, retention_ms="2d")
    assert topic.settings["retention.ms"] == "604800000"
    topic.settings["logfs.mirror.source"] = "cluster"
    with pytest.raises(logfs.NotWritable):
        opened.create_topic("t", 4, retention_ms="2d")
    assert topic.settings["retention.ms"] == "604800000"


def test_deletion_can_be_undone(opened: logfs.Store) -> None:
    """A partition and a topic come back with their records, settings and committed offsets."""
    topic = opened.topic("orders")
    topic.settings["retention.ms"] = "1d"
    opened["orders-0"].append("x")
    opened.groups.commit("g", {"orders-0": 1})
    with pytest.raises(logfs.PartitionNotEmpty):
        topic.delete(only_empty=True)
    topic.delete()
    assert "orders" not in opened.topics
    assert "g" not in opened.groups
    opened.undelete("orders")
    assert [record.value for record in opened["orders-0"].read()] == [b"x"]
    assert topic.settings["retention.ms"] == "86400000"
    assert opened.groups["g"] == {"orders-0": 1}
    opened["orders-0"].delete()
    opened.undelete("orders-0")
    assert opened["orders-0"].log_end_offset == 1
    with pytest.raises(logfs.UnknownPartition):
        opened.undelete("nothing")


def test_groups_are_a_mapping(opened: logfs.Store) -> None:
    """Commits are durable at the return: after a kill they are there."""
    opened["orders-0"].append_many(["1", "2", "3"])
    opened.groups.commit("billing", {"orders-0": 2, "orders-1": 0})
    assert dict(opened.groups) == {"billing": {"orders-0": 2, "orders-1": 0}}
    assert opened.groups.lag("billing") == {"orders-0": 1, "orders-1": 0}
    assert opened.groups.forget("billing", "orders-1")
    assert opened.groups["billing"] == {"orders-0": 2}
    with pytest.raises(logfs.UnknownGroup, match="did you mean 'billing'"):
        opened.groups["biling"]
    with pytest.raises(IndexError):
        opened.groups.commit("billing", {"orders-0": 9})
    with pytest.raises(KeyError):
        opened.groups.commit("billing", {"nothing-0": 0})


def test_a_commit_survives_a_kill(path: Path) -> None:
    """`groups.commit` has fsynced its record when it returns."""
    program = (
        "import logfs, os, sys\n"
        "store = logfs.open(sys.argv[1], create=True)\n"
        "store.create('a-0').append('x')\n"
        "synced = []\n"
        "real = os.fdatasync\n"
        "os.fdatasync = lambda fd: (synced.append(os.readlink(f'/proc/self/fd/{fd}')), real(fd))[1]\n"
        "store.groups.commit('g', {'a-0': 1})\n"
        "assert any('__consumer_offsets' in each for each in synced), synced\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, path], check=False)
    assert done.returncode == -9
    with logfs.open(path) as store:
        assert store.groups["g"] == {"a-0": 1}


def test_an_import_is_quick_and_light() -> None:
    """`import logfs` loads neither numpy nor any of its own folders."""
    code = "import logfs, sys; print(*sorted(m for m in sys.modules if m.startswith(('logfs', 'numpy'))))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["logfs"]


def test_close_waits_for_upkeep(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is closed only when the thread of upkeep has left it."""
    from logfs.api import store as module

    monkeypatch.setattr(module, "_UPKEEP_SECONDS", 0.01)
    store = logfs.open(path, create=True, upkeep=True)
    running = threading.Event()
    begun: list[float] = []
    ended: list[float] = []
    real = store._engine.upkeep

    def slow() -> None:
        begun.append(time.monotonic())
        running.set()
        time.sleep(0.2)
        real()
        ended.append(time.monotonic())

    monkeypatch.setattr(store._engine, "upkeep", slow)
    assert running.wait(10)
    store.close()
    assert len(begun) == len(ended) > 0
    assert ended[-1] <= time.monotonic()


def test_close_ends_a_round_of_maintenance(path: Path) -> None:
    """The end of a store with `upkeep=True` does not wait for the round of compaction that runs: the round ends."""
    with logfs.open(path, create=True, upkeep=True) as store:
        engine = store._engine
        topic = store.create_topic("a", cleanup_policy="compact", segment_bytes=50_000)
        topic.append_many([logfs.Record(b"x" * 1000, key=b"%d" % (n % 7)) for n in range(200)])
        # At this rate, the round takes half a minute.
        engine.settings.set_broker("log.cleaner.io.max.bytes.per.second", "15000")
        engine.compactor.request("a-0")
        wait_for(lambda: [each for each in engine.registry.background if each.done_bytes])
    assert (engine.compactor.aborted, engine.compactor.rounds) == (1, 0)
    with logfs.open(path) as store:
        assert len([*store["a-0"].read()]) == 200


def test_ctrl_c_while_close_waits(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while `close` waits for the upkeep thread releases the log directories."""
    store = logfs.open(path, create=True, upkeep=True)
    store.create("a-0").append("x")
    assert store._upkeep is not None
    thread, real = store._upkeep, store._upkeep.join

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(thread, "join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.close()
    assert store.closed
    with logfs.open(path) as again:
        assert [record.value for record in again["a-0"].read()] == [b"x"]
    real()


WRONG = (5, -1, 1.5, None, True, b"x", [], {}, object(), "", "x", {1: 1}, 2**70)


def test_wrong_arguments_are_named_and_never_an_accident(opened: logfs.Store) -> None:
    """Whatever is given to a public method, it works, or raises an error that is meant for the caller."""
    opened["orders-0"].append("x", key="k")
    partition, topic = opened["orders-0"], opened.topic("orders")
    with opened.transaction("id") as transaction:
        calls: list[Callable[..., object]] = [
            opened.__getitem__,
            opened.__contains__,
            opened.get,
            opened.topic,
            opened.create,
            opened.undelete,
            lambda wrong: opened.transaction(wrong).abort(),
            lambda wrong: opened.create_topic("orders", wrong),
            lambda wrong: opened.create_topic(wrong),
            lambda wrong: opened.create_topic("new", retention_ms=wrong),
            lambda wrong: opened.consumer(wrong, group="g").close(),
            lambda wrong: opened.consumer("orders", group=wrong).close(),
            lambda wrong: opened.consumer("orders", group="g", timeout=wrong).close(),
            opened.groups.get,
            opened.groups.__contains__,
            opened.groups.lag,
            lambda wrong: opened.groups.commit(wrong, {"orders-0": 0}),
            lambda wrong: opened.groups.commit("g", wrong),
            lambda wrong: opened.groups.commit("g", {"orders-0": wrong}),
            lambda wrong: opened.groups.commit("g", {"orders-0": 0}, wrong),
            lambda wrong: opened.groups.forget("g", wrong),
            lambda wrong: opened.groups.forget(wrong, "orders-0"),
            lambda wrong: [*partition.read(wrong)],
            lambda wrong: [*partition.read(0, wrong)],
            lambda wrong: [*partition.read(isolation=wrong)],
            lambda wrong: [*partition.last(wrong)],
            partition.record,
            partition.newest,
            partition.offset_for_time,
            partition.columns,
            partition.follow,
            lambda wrong: partition.follow(timeout=wrong),
            partition.append_many,
            lambda wrong: partition.append("x", key=wrong),
            lambda wrong: partition.append("x", headers=wrong),
            lambda wrong: partition.append("x", timestamp=wrong),
            topic.append_many,
            lambda wrong: topic.follow(begin=wrong),
            topic.settings.__getitem__,
            topic.settings.__contains__,
            topic.settings.change,
            lambda wrong: topic.settings.__setitem__("retention.ms", wrong),
            lambda wrong: transaction.append(wrong, "x"),
            lambda wrong: transaction.append_many("orders", wrong),
            lambda wrong: transaction.commit_offsets(wrong, {"orders-0": 0}),
            lambda wrong: transaction.commit_offsets("g", wrong),
            lambda wrong: logfs.open(wrong).close(),
        ]
        for call in calls:
            for wrong in WRONG:
                with suppress(logfs.LogfsError, TypeError, ValueError, OverflowError):
                    call(wrong)
        if transaction._engine.is_open:
            transaction.abort()


def test_calls_while_another_thread_closes(path: Path) -> None:
    """A call that the close overtakes raises `StoreClosed`, or the error of a directory that takes no more writes."""
    for work in ("create", "append", "commit"):
        store = logfs.open(path, create=True)
        if "a-0" not in store:
            store.create("a-0")
        errors: list[Exception] = []

        def run(work: str, store: logfs.Store, errors: list[Exception]) -> None:
            try:
                for n in range(100_000):
                    if work == "create":
                        store.create(f"{time.monotonic_ns()}-{n}")
                    elif work == "append":
                        store["a-0"].append("x")
                    else:
                        store.groups.commit("g", {"a-0": 0})
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=run, args=(work, store, errors))
        thread.start()
        time.sleep(0.05)
        store.close()
        thread.join()
        assert len(errors) == 1
        # `StoreClosed` is one, too.
        assert isinstance(errors[0], logfs.PartitionFailed)
