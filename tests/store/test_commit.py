"""Commits of staged batches to several partitions: all or none, once, and atomic for every reader."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from crc32c import crc32c

from logfs.errors import (
    CommitPending,
    Corrupt,
    InvalidRecord,
    InvalidStore,
    RecordTooLarge,
    UnknownPartition,
)
from logfs.format.batches.batch import HEADER_SIZE
from logfs.format.batches.record import Record, TimestampType
from logfs.format.files import commit_file
from logfs.format.files.commit_file import StagedFile
from logfs.format.text.rendering import View
from logfs.log.disk.disk import Disk, File
from logfs.log.read.read_committed import Isolation
from logfs.log.read.text_view import TextView
from logfs.store.observe.check import check
from logfs.store.staged_commits import ORPHAN_MS, read_commits
from logfs.store.store import Store
from tests.support import lock_order
from tests.support.staging import stage
from tests.support.stores import abandon

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from typing_extensions import Buffer

    from logfs.log.read.log import Log
    from tests.support.stores import Clock


def records(values: Sequence[bytes]) -> list[Record]:
    """Return a record with a key, a header and a timestamp for each value."""
    return [
        Record(value, b"key of " + value, [("h", value)], 1_700_000_000_000) for value in values
    ]


def staging(
    store: Store, writer: str, sequence: int, wanted: dict[str, list[bytes]], **more: int
) -> list[StagedFile]:
    """Stage values, and return one staged file for each partition."""
    return [
        stage(
            store[name].directory,
            store[name].config,
            writer,
            sequence,
            records(values),
            now_ms=store.clock(),
            **more,
        )
        for name, values in wanted.items()
    ]


def values(store: Store, name: str) -> list[bytes | None]:
    """Return the values of a partition, read in two ways that must agree."""
    partition = store[name]
    found = list(partition.read())
    assert [record.offset for record in found] == list(range(partition.log_end_offset))
    text = TextView(partition, View.LINES)
    assert text.read(0, text.size) == b"".join((record.value or b"") + b"\n" for record in found)
    return [record.value for record in found]


def leftovers(log_dir: Path) -> list[Path]:
    """Return the staged files that exist."""
    return sorted(log_dir.rglob("*" + commit_file.STAGED))


@pytest.fixture
def two(store: Store) -> Store:
    """A store with the partitions a-0 and b-0, each with a record."""
    for name in ("a-0", "b-0"):
        store.create(name).append([b"before"])
    return store


def test_a_commit_is_in_all_its_partitions(two: Store, log_dir: Path) -> None:
    """Keys, values, headers and timestamps are kept, offsets have no gap, and no staged file is left."""
    staged = staging(two, "query", 0, {"a-0": [b"1", b"2", b"3"], "b-0": [b"4"]})
    done = two.commit("query", 0, staged)
    assert done.offsets == {"a-0": (1, 4), "b-0": (1, 2)}
    assert not done.already
    assert values(two, "a-0") == [b"before", b"1", b"2", b"3"]
    assert values(two, "b-0") == [b"before", b"4"]
    record = two["a-0"].record(2)
    assert record is not None
    assert (record.key, record.headers) == (b"key of 2", [("h", b"2")])
    assert record.timestamp == 1_700_000_000_000
    assert two["a-0"].recovery_point == 4
    assert not leftovers(log_dir)
    two["a-0"].append([b"after"])
    assert values(two, "a-0")[-1] == b"after"


def test_a_commit_to_directories_whose_names_are_not_utf_8(tmp_path: Path, clock: Clock) -> None:
    """A path of Unix is bytes; the commit file keeps it for a commit that is decided and not done."""
    log_dirs = [tmp_path / os.fsdecode(name) for name in (b"one\xff", b"two\xfe")]
    for path in log_dirs:
        path.mkdir()
    disk = Full()
    store = Store(log_dirs, clock=clock, disk=disk)
    for name in ("a-0", "b-0"):
        store.create(name).append([b"before"])
    disk.full = True
    with pytest.raises(CommitPending):
        store.commit("q", 0, staging(store, "q", 0, {"a-0": [b"x"], "b-0": [b"y"]}))
    disk.full = False
    store.close()
    with Store(log_dirs, clock=clock) as store:
        assert values(store, "a-0") == [b"before", b"x"]
        assert values(store, "b-0") == [b"before", b"y"]


def test_a_staged_file_is_named_once(two: Store) -> None:
    """A commit that names a file twice is refused: its records would be there twice."""
    (file,) = staging(two, "q", 0, {"a-0": [b"x"]})
    with pytest.raises(InvalidRecord, match="named twice"):
        two.commit("q", 0, [file, file])
    assert not two.commit("q", 0, [file]).already
    assert values(two, "a-0") == [b"before", b"x"]


@pytest.mark.parametrize("writer", ["", "\ud800", "q\udcff"])
def test_a_writer_needs_a_name_in_utf_8(two: Store, writer: str) -> None:
    """Another name is refused as a record is, and not with an error of the encoding."""
    with pytest.raises(InvalidRecord, match="give a writer name in UTF-8"):
        two.commit(writer, 0, [])


def test_a_commit_that_is_sent_again_changes_nothing(two: Store, log_dir: Path) -> None:
    """The repetition may have other files and the same or an earlier sequence; its staged files are removed."""
    for sequence in (3, 4):
        assert not two.commit("q", sequence, staging(two, "q", sequence, {"a-0": [b"x"]})).already
    for sequence in (4, 3, 0):
        again = staging(two, "q", sequence, {"a-0": [b"y"], "b-0": [b"z"]})
        assert two.commit("q", sequence, again).already
    assert not two.commit("other", 0, staging(two, "other", 0, {"b-0": [b"w"]})).already
    assert values(two, "a-0") == [b"before", b"x", b"x"]
    assert values(two, "b-0") == [b"before", b"w"]
    assert not leftovers(log_dir)


def test_a_commit_is_remembered_over_a_restart(log_dir: Path, clock: Clock) -> None:
    """A commit is known to be made after a restart, up to a week after it was made."""
    with Store(log_dir, clock=clock) as store:
        store.create("a-0")
        store.commit("q", 7, staging(store, "q", 7, {"a-0": [b"x"]}))
    clock.now_ms += 7 * 86_400_000 - 1000
    with Store(log_dir, clock=clock) as store:
        store.commit("other", 0, [])
        assert store.commit("q", 7, staging(store, "q", 7, {"a-0": [b"x"]})).already
        clock.now_ms += 2000
        store.commit("other", 1, [])
        assert "q" not in read_commits(store.disk, log_dir).writers


@pytest.mark.parametrize("before", [0, 1, 9])
def test_a_commit_that_does_not_fit_goes_into_new_segments(two: Store, before: int) -> None:
    """A commit fills as many new segments as it needs; their indexes lead to every record by offset and by time."""
    two.settings.set_topic("a", "segment.bytes", "600")
    two.settings.set_topic("a", "index.interval.bytes", "100")
    two.create("a-1").append([b"m" * 40] * before) if before else two.create("a-1")
    wanted = [b"%03d" % number * 10 for number in range(40)]
    two.commit("q", 0, staging(two, "q", 0, {"a-1": wanted}))
    assert values(two, "a-1") == [b"m" * 40] * before + wanted
    assert len(two["a-1"].segments) > 5
    assert all(segment.size_bytes <= 600 for segment in two["a-1"].segments)
    for offset in range(before, before + 40):
        record = two["a-1"].record(offset)
        assert record is not None
        assert record.value == wanted[offset - before]
    found = two["a-1"].offset_for_time(1_700_000_000_000)
    assert found is not None
    assert found.offset == 0
    two["a-1"].append([b"after"])
    assert values(two, "a-1")[-1] == b"after"


@pytest.mark.parametrize("before", ["", "append", "roll"])
def test_open_texts_go_on_with_a_commit_to_several_segments(
    two: Store, log_dir: Path, clock: Clock, before: str
) -> None:
    """Also texts that have reached an empty segment, whose place the first segment of the commit takes."""
    two.settings.set_topic("a", "segment.bytes", "600")
    writer = two.create("a-1")
    if before:
        writer.append([b"before"])
    if before == "roll":
        writer.roll(clock())
    with Store(log_dir, read_only=True, clock=clock) as beside:
        logs: list[Log] = [writer, beside["a-1"]]
        texts = [(log.isolated(how), view) for log in logs for how in Isolation for view in View]
        opened = [reader.text(view) for reader, view in texts]
        assert all((text.size > 0) == bool(before) for text in opened)
        two.commit("q", 0, staging(two, "q", 0, {"a-1": [b"%03d" % n * 10 for n in range(40)]}))
        assert len(writer.segments) > 5
        writer.append([b"after"])
        beside.refresh()
        for (reader, view), text in zip(texts, opened, strict=True):
            whole = reader.text(view)
            assert whole.size > 1200
            assert text.read(0, text.size) == whole.read(0, whole.size)


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("step_ms", [600_000, 3_000_000, 9_000_000])
def test_a_commit_begins_segments_where_appends_do(two: Store, before: bool, step_ms: int) -> None:
    """By size and by time (`segment.ms`), in an empty log and after older records."""
    two.settings.set_topic("a", "segment.bytes", "3000")
    two.settings.set_topic("a", "segment.ms", "3600000")
    times = [1_600_000_000_000 + step_ms * number for number in range(40)]
    wanted = [Record(b"%03d" % number * 20, timestamp=time) for number, time in enumerate(times)]
    committed, appended = two.create("a-1"), two.create("a-2")
    if before:
        for partition in (committed, appended):
            partition.append([Record(b"before", timestamp=times[0] - 7_200_000)])
    directory, config = committed.directory, committed.config
    staged = stage(directory, config, "q", 0, wanted, now_ms=two.clock())
    two.commit("q", 0, [replace(staged, partition="a-1")])
    for number in range(0, 40, 2):
        appended.append(wanted[number : number + 2])
    bases = [segment.base_offset for segment in appended.segments]
    assert [segment.base_offset for segment in committed.segments] == bases
    assert len(bases) > 2


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches(two: Store, codec: str) -> None:
    """Compressed batches are committed unchanged; one with another codec than the topic's is refused beforehand."""
    plain = staging(two, "q", 0, {"b-0": [b"p"], "a-0": [b"q"]})
    two.settings.set_topic("a", "compression.type", codec)
    with pytest.raises(InvalidRecord, match="stage the batch again"):
        two.commit("q", 0, plain)
    assert values(two, "b-0") == [b"before"]
    two.commit("q", 0, staging(two, "q", 0, {"a-0": [b"x" * 900, b"y" * 900]}))
    assert values(two, "a-0") == [b"before", b"x" * 900, b"y" * 900]


def test_log_append_time_is_the_time_of_the_commit(two: Store, clock: Clock) -> None:
    """Every record of a commit has the time at which the commit was decided."""
    two.settings.set_topic("a", "message.timestamp.type", "LogAppendTime")
    staged = staging(two, "q", 0, {"a-0": [b"x", b"y", b"z"]})
    clock.now_ms += 5000
    two.commit("q", 0, staged)
    found = list(two["a-0"].read(1))
    assert [record.timestamp for record in found] == [clock.now_ms] * 3
    assert {record.timestamp_type for record in found} == {TimestampType.LOG_APPEND_TIME}
    view = TextView(two["a-0"], View.ENVELOPES)
    assert len(view.read(0, view.size)) == view.size


def test_invalid_batches_are_refused_before_the_decision(two: Store, log_dir: Path) -> None:
    """The commit changes no partition, and its staged files stay.

    A batch is too large, has no key, has a timestamp out of range, is damaged or missing, or has an unknown
    partition.
    """
    staged = staging(two, "q", 0, {"b-0": [b"b"], "a-0": [b"x" * 300]})
    two.settings.set_topic("a", "max.message.bytes", "200")
    with pytest.raises(RecordTooLarge):
        two.commit("q", 0, staged)
    two.settings.set_topic("a", "max.message.bytes", None)
    two.settings.set_topic("b", "cleanup.policy", "compact")
    keyless = stage(two["b-0"].directory, two["b-0"].config, "q", 0, [Record(b"v")], now_ms=1)
    with pytest.raises(InvalidRecord, match="key"):
        two.commit("q", 0, [*staged[1:], keyless])
    two.settings.set_topic("a", "message.timestamp.before.max.ms", "1000")
    old = stage(
        two["a-0"].directory, two["a-0"].config, "q", 0, [Record(b"v", timestamp=5)], now_ms=1
    )
    with pytest.raises(InvalidRecord, match="past"):
        two.commit("q", 0, [old])
    path = two["a-0"].directory / staged[1].name
    path.write_bytes(path.read_bytes()[:-3] + b"xyz")
    with pytest.raises(Corrupt):
        two.commit("q", 0, staged[1:])
    path.unlink()
    with pytest.raises(FileNotFoundError):
        two.commit("q", 0, staged[1:])
    with pytest.raises(UnknownPartition, match="logfs create"):
        two.commit("q", 0, [staged[0], commit_file.StagedFile("c-0", "x.staged", 1, 1)])
    assert values(two, "a-0") == values(two, "b-0") == [b"before"]
    assert len(leftovers(log_dir)) == 3
    assert not two.commit("q", 0, staged[:1]).already


def test_readers_see_all_of_a_commit_to_a_partition_or_nothing(log_dir: Path, clock: Clock) -> None:
    """At every write of a commit, this process and a read-only store see all of its records or none."""
    seen: list[tuple[int, int]] = []

    class Looker(Disk):
        """A disk that reads the log at every write."""

        def write(self, file: File, position: int, data: Buffer) -> None:
            super().write(file, position, data)
            if file.path.suffix == ".log" and looking:
                with (
                    lock_order.elsewhere(),
                    Store(log_dir, read_only=True, clock=clock) as follower,
                ):
                    seen.append((store["a-0"].log_end_offset, follower["a-0"].log_end_offset))
                    assert len(list(follower["a-0"].read())) == seen[-1][1]

    looking = False
    with Store(log_dir, clock=clock, disk=Looker()) as store:
        store.create("a-0").append([b"before"])
        staged = staging(store, "q", 0, {"a-0": [b"%d" % n * 30 for n in range(20)]}, per_batch=1)
        looking = True
        store.commit("q", 0, staged)
        looking = False
        assert store["a-0"].log_end_offset == 21
    assert len(seen) == 2
    assert seen == [(1, 1), (1, 21)]


class Full(Disk):
    """A disk that has no room for another write to the .log of b-0 while `full` is set."""

    full = False

    def write(self, file: File, position: int, data: Buffer) -> None:
        if self.full and file.path.parent.name == "b-0" and file.path.suffix == ".log":
            super().write(file, position, bytes(data)[:20])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write(file, position, data)


def test_a_commit_that_does_not_fit_on_the_disk_is_not_decided(log_dir: Path, clock: Clock) -> None:
    """A commit of more bytes than are free changes nothing, and can be made as soon as there is space."""
    disk = Disk()
    disk.free_bytes = lambda path: 100  # type: ignore[method-assign]
    with Store(log_dir, clock=clock, disk=disk) as store:
        store.create("a-0")
        staged = staging(store, "q", 0, {"a-0": [b"x" * 1000]})
        with pytest.raises(OSError, match="and 100 are free") as caught:
            store.commit("q", 0, staged)
        assert caught.value.errno == errno.ENOSPC
        assert values(store, "a-0") == []
        assert not store.commits.pending()
        disk.free_bytes = lambda path: 10_000  # type: ignore[method-assign]
        assert store.commit("q", 0, staged).offsets == {"a-0": (0, 1)}


def test_a_full_disk_after_the_decision_loses_nothing(log_dir: Path, clock: Clock) -> None:
    """The commit is pending, and other appends go on.

    Upkeep makes the commit as soon as there is room, after the records that were appended since.
    """
    with Store(log_dir, clock=clock, disk=(disk := Full())) as store:
        for name in ("a-0", "b-0"):
            store.create(name).append([b"before"])
        disk.full = True
        staged = staging(store, "q", 0, {"a-0": [b"1"], "b-0": [b"2", b"3"]})
        with pytest.raises(CommitPending, match="decided"):
            store.commit("q", 0, staged)
        assert values(store, "a-0") == values(store, "b-0") == [b"before"]
        store["a-0"].append([b"meanwhile"])
        disk.full = False
        store.upkeep()
        assert values(store, "a-0") == [b"before", b"meanwhile", b"1"]
        assert values(store, "b-0") == [b"before", b"2", b"3"]
        assert store.commit("q", 0, staging(store, "q", 0, {"a-0": [b"1"]})).already
    assert not leftovers(log_dir)


def expire(store: Store) -> None:
    store.settings.set_topic("a", "retention.bytes", "1")
    assert store.retain() > 1


CHANGES = {
    "retention": expire,
    "delete-records": lambda store: store.delete_records("a-0", -1),
    "compaction": lambda store: store.compact("a-0", roll=True),
    "truncation": lambda store: store.truncate("a-0", 0),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_pending_commit_survives_changes_to_its_log(
    log_dir: Path, clock: Clock, change: str
) -> None:
    """The commit is made once, although the records at its planned offset leave the log and the process dies."""
    store = Store(log_dir, clock=clock, disk=(disk := Full()))
    store.settings.set_topic("a", "cleanup.policy", "compact,delete")
    store.settings.set_topic("a", "segment.bytes", "300")
    for name in ("a-0", "b-0"):
        store.create(name).append([Record(b"before", b"key")])
    disk.full = True
    with pytest.raises(CommitPending):
        store.commit("q", 0, staging(store, "q", 0, {"a-0": [b"1"], "b-0": [b"2", b"3"]}))
    for number in range(9):
        store["a-0"].append([Record(b"meanwhile %d" % number * 5, b"key")])
    CHANGES[change](store)
    more = [b"more %d" % number * 3 for number in range(7)]
    store["a-0"].append([Record(value, b"key") for value in more])
    abandon(store)
    with Store(log_dir, clock=clock) as store:
        assert [record.value for record in store["a-0"].read()][-8:] == [*more, b"1"]
        assert values(store, "b-0") == [b"before", b"2", b"3"]
        assert store.commit("q", 0, []).already
    assert not leftovers(log_dir)


def test_a_file_of_a_pending_commit_is_not_discarded_by_its_name(
    log_dir: Path, clock: Clock
) -> None:
    """A request to discard the file keeps it, even if it has another size of the file."""
    store = Store(log_dir, clock=clock, disk=(disk := Full()))
    store.create("b-0")
    staged = staging(store, "q", 0, {"b-0": [b"1"]})
    disk.full = True
    with pytest.raises(CommitPending):
        store.commit("q", 0, staged)
    store.commits.discard(staged)
    store.commits.discard([replace(each, size_bytes=1) for each in staged])
    abandon(store)
    with Store(log_dir, clock=clock) as store:
        assert values(store, "b-0") == [b"1"]
    assert not leftovers(log_dir)


@pytest.mark.parametrize("is_reopened", [False, True])
def test_a_pending_commit_passes_over_a_partition_that_was_created_again(
    log_dir: Path, clock: Clock, is_reopened: bool
) -> None:
    """The new partition gets none of its records, and later commits work, although both partitions begin at 0."""
    store = Store(log_dir, clock=clock, disk=(disk := Full()))
    for name in ("a-0", "b-0"):
        store.create(name)
    disk.full = True
    with pytest.raises(CommitPending):
        store.commit("q", 0, staging(store, "q", 0, {"a-0": [b"1"], "b-0": [b"2"]}))
    store.delete("b-0")
    store.create("b-0")
    if is_reopened:
        abandon(store)
        store = Store(log_dir, clock=clock)
    disk.full = False
    with store:
        assert not store.commit("q", 1, staging(store, "q", 1, {"b-0": [b"3"]})).already
        assert (values(store, "a-0"), values(store, "b-0")) == ([b"1"], [b"3"])


@pytest.mark.parametrize("only", ["", "b-0", "c-0"])
def test_every_opening_finishes_a_pending_commit(log_dir: Path, clock: Clock, only: str) -> None:
    """Also an opening for another partition, or for none; it does not list the partitions of the commit."""
    store = Store(log_dir, clock=clock, disk=(disk := Full()))
    for name in ("a-0", "b-0", "c-0"):
        store.create(name)
    disk.full = True
    with pytest.raises(CommitPending):
        store.commit("q", 0, staging(store, "q", 0, {"a-0": [b"1"], "b-0": [b"2", b"3"]}))
    abandon(store)
    with Store(log_dir, clock=clock, only=only) as store:
        assert list(store) == [only][: bool(only)]
        assert not store.commits.pending()
    with Store(log_dir, clock=clock) as store:
        assert (values(store, "a-0"), values(store, "b-0")) == ([b"1"], [b"2", b"3"])
    assert not leftovers(log_dir)


def test_a_visible_part_of_a_pending_commit_is_not_made_again(log_dir: Path, clock: Clock) -> None:
    """The part in one partition is visible and durable; the other part fails, and its partition is deleted."""

    class Broken(Disk):
        """A disk that cannot write the header of a batch in b-0."""

        def write(self, file: File, position: int, data: Buffer) -> None:
            if broken and file.path.parent.name == "b-0" and len(bytes(data)) == HEADER_SIZE:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            super().write(file, position, data)

    broken = False
    with Store(log_dir, clock=clock, disk=Broken()) as store:
        for name in ("a-0", "b-0"):
            store.create(name)
        broken = True
        with pytest.raises(CommitPending):
            store.commit("q", 0, staging(store, "q", 0, {"a-0": [b"1"], "b-0": [b"2"]}))
        assert values(store, "a-0") == [b"1"]
        assert store["a-0"].recovery_point == 1
        store["a-0"].append([b"after"])
        store.upkeep()
        store.delete("b-0")
        # The first try of upkeep has failed; the next one is a second later.
        clock.now_ms += 1000
        store.upkeep()
        assert not store.commits.pending()
        assert values(store, "a-0") == [b"1", b"after"]
        assert store.commit("q", 0, []).already


class Unlisted(Disk):
    """A disk that fails to list one directory."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory

    def scan(self, path: Path) -> Any:
        if path == self._directory:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return super().scan(path)


def test_a_commit_over_two_directories_waits_for_both(tmp_path: Path, clock: Clock) -> None:
    """A store with one of the directories serves its partitions, and refuses commits with the reason.

    A store with both directories completes the commit.
    """
    dirs = [tmp_path / "one", tmp_path / "two"]

    class Full(Disk):
        """A disk that has no room in b-0."""

        def write(self, file: File, position: int, data: Buffer) -> None:
            if file.path.suffix == ".log" and file.path.parent.name == "b-0":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            super().write(file, position, data)

    with Store(dirs, clock=clock, disk=Full()) as store:
        store.create("a-0")
        store.create("b-0")
        assert store.registry.home("a-0") != store.registry.home("b-0")
        staged = staging(store, "q", 0, {"a-0": [b"1"], "b-0": [b"2"]})
        with pytest.raises(CommitPending):
            store.commit("q", 0, staged)
    with Store(dirs[0], clock=clock) as store:
        assert values(store, "a-0") == []
        store["a-0"].append([b"meanwhile"])
        with pytest.raises(CommitPending, match="is not open"):
            store.commit("q", 1, [])
        with pytest.raises(InvalidStore, match="is not open"):
            store.create("b-0")
    with Store(dirs[1], clock=clock) as store:
        assert values(store, "b-0") == []
    for path in dirs:
        # A directory that cannot be listed, because its disk fails, may have its partition.
        Store(dirs, clock=clock, disk=Unlisted(path)).close()
    with Store(dirs, clock=clock) as store:
        assert values(store, "a-0") == [b"meanwhile", b"1"]
        assert values(store, "b-0") == [b"2"]
        assert store.commit("q", 0, []).already
    assert not leftovers(tmp_path)
    assert not [str(f) for f in check(dirs) if "error" in str(f)]


def test_a_commit_is_not_repeated_without_the_log_directory_that_knows_it(
    tmp_path: Path, clock: Clock
) -> None:
    """A writer is known in one log directory of a store; without it, the commit would be made twice."""
    dirs = [tmp_path / "one", tmp_path / "two"]
    with Store(dirs, clock=clock) as store:
        for name in ("a-0", "b-0"):
            store.create(name)
        home = {store.registry.home(name): name for name in ("a-0", "b-0")}
        store.commit("q", 1, staging(store, "q", 1, {"a-0": [b"1"], "b-0": [b"2"]}))
    knows = next(path for path in dirs if "q" in read_commits(Disk(), path).writers)
    other = next(path for path in dirs if path != knows)
    with Store(other, clock=clock) as store:
        again = staging(store, "q", 1, {home[other]: [b"3"]})
        with pytest.raises(InvalidStore, match=f"{knows}: has the commits of q"):
            store.commit("q", 1, again)
        assert not store.commit("r", 0, staging(store, "r", 0, {home[other]: [b"4"]})).already
    with Store(dirs, clock=clock) as store:
        assert store.commit("q", 1, []).already


def test_left_over_staged_files_are_removed(two: Store, log_dir: Path, clock: Clock) -> None:
    """Staged files of commits that were made are removed, and those older than a day; other ones stay."""
    twin = staging(two, "q", 0, {"a-0": [b"twin"]})[0]
    two.commit("q", 0, staging(two, "q", 0, {"a-0": [b"x"]}))
    ahead = staging(two, "q", 1, {"a-0": [b"y"]})[0]
    old = staging(two, "gone", 5, {"b-0": [b"z"]})[0]
    os.utime(two["b-0"].directory / old.name, (0, (clock.now_ms - ORPHAN_MS - 1) / 1000))
    two.upkeep()
    assert [path.name for path in leftovers(log_dir)] == [ahead.name]
    assert twin.name != ahead.name
    two.commit("q", 1, [ahead])
    assert values(two, "a-0") == [b"before", b"x", b"y"]


_PENDING = commit_file.Pending(
    "q",
    1,
    2,
    (
        commit_file.CommitPart(
            "a-0", (StagedFile("a-0", "x.staged", 3, 4),), 5, 0, 6, 7, 8, 9, False, "/log"
        ),
    ),
)


# The least valid value of each integer; those of a writer may have any value.
_LEAST = {"sequence": -(2**63), "time_ms": -(2**63), 0: -(2**63), 1: -(2**63)} | dict.fromkeys(
    ("base_offset", "leader_epoch", "append_time"), -1
)


@pytest.mark.parametrize(
    "value",
    [None, True, 1, 0, -1, -2, -(2**63), -(2**63) - 1, 2**64 - 1, 2**31, 1.5, "text", [], {}],
)
def test_a_commit_file_with_wrong_types_is_corrupt(value: object) -> None:
    """A file with a right checksum is corrupt if a value has a wrong type or is out of range."""
    text = commit_file.format_commits(
        commit_file.CommitLog({"q": commit_file.Writer(0, 1)}, _PENDING)
    )
    told = orjson.loads(text.partition(b"\n")[0])
    assert commit_file.parse_commits(sealed(told)).pending == _PENDING
    (part,) = told["pending"]["parts"]
    objects = (part, part["files"][0], told["pending"])
    fields = [(each, name) for each in objects for name in each if type(each[name]) is not list]
    for each, name in [*fields, (told["writers"]["q"], 0), (told["writers"]["q"], 1)]:
        before, each[name] = each[name], value
        bits = 31 if name == "leader_epoch" else 63
        if type(value) is type(before) and (
            type(value) is not int or _LEAST.get(name, 0) <= value < 1 << bits
        ):
            commit_file.parse_commits(sealed(told))
        else:
            with pytest.raises(Corrupt):
                commit_file.parse_commits(sealed(told))
        each[name] = before


def sealed(told: object) -> bytes:
    """Return a commit file with this content and a right checksum."""
    body = json.dumps(told).encode()
    return b"%b\ncrc32c %08x\n" % (body, crc32c(body))


@pytest.mark.parametrize("number", range(4))
def test_a_commit_file_with_names_that_utf_8_cannot_hold_is_corrupt(number: int) -> None:
    """Only the path of a log directory may be such a text; a name would end every later use in an error of Python."""
    log = commit_file.CommitLog({"q": commit_file.Writer(0, 1)}, _PENDING)
    told = json.loads(commit_file.format_commits(log).partition(b"\n")[0])
    (part,) = told["pending"]["parts"]
    part["log_dir"] = "/data\udcff"

    def seal(told: object) -> bytes:
        body = json.dumps(told).encode()
        return b"%b\ncrc32c %08x\n" % (body, crc32c(body))

    assert commit_file.parse_commits(seal(told)).pending is not None
    place, key = (
        (told["pending"], "writer"),
        (part, "partition"),
        (part["files"][0], "name"),
        (told["writers"], "\udcff"),
    )[number]
    place[key] = [0, 1] if place is told["writers"] else "\udcff"
    with pytest.raises(Corrupt):
        commit_file.parse_commits(seal(told))


def test_a_damaged_commit_file_stops_only_commits(log_dir: Path, clock: Clock) -> None:
    """The logs are served, the audit names the file, and a commit fails with what to do."""
    with Store(log_dir, clock=clock) as store:
        store.create("a-0")
        store.commit("q", 0, staging(store, "q", 0, {"a-0": [b"x"]}))
    path = log_dir / commit_file.FILE_NAME
    good = path.read_bytes()
    path.write_bytes(good.replace(b'"q"', b'"p"'))
    assert any(commit_file.FILE_NAME in str(finding) for finding in check(log_dir))
    with Store(log_dir, clock=clock) as store:
        assert values(store, "a-0") == [b"x"]
        with pytest.raises(Corrupt, match="restore the file"):
            store.commit("q", 1, staging(store, "q", 1, {"a-0": [b"y"]}))
    path.write_bytes(good)
