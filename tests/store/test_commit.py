"""Commits of staged batches into several partitions: all or none, once, and in one piece for every reader."""

from __future__ import annotations

import errno
import json
import os
from typing import TYPE_CHECKING

import orjson
import pytest
from crc32c import crc32c

from logfs.errors import (
    CommitPending,
    Corrupt,
    InvalidRecord,
    RecordTooLarge,
    UnknownPartition,
)
from logfs.format.batches.batch import HEADER_SIZE
from logfs.format.batches.record import Record, TimestampType
from logfs.format.files import commit_file
from logfs.format.files.commit_file import StagedFile
from logfs.format.text.rendering import View
from logfs.log.disk.disk import Disk, File
from logfs.log.read.text_view import TextView
from logfs.store.commits.commit import ORPHAN_MS, read_commits
from logfs.store.observe.check import check
from logfs.store.store import Store
from tests.support.staging import stage
from tests.support.stores import abandon

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from typing_extensions import Buffer

    from tests.support.stores import Clock


def records(values: Sequence[bytes]) -> list[Record]:
    return [
        Record(value, b"key of " + value, [("h", value)], 1_700_000_000_000) for value in values
    ]


def staging(
    store: Store, writer: str, sequence: int, wanted: dict[str, list[bytes]], **more: int
) -> list[StagedFile]:
    """One staged file for each partition."""
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
    """What is in a partition, read in two ways that must agree."""
    partition = store[name]
    found = list(partition.read())
    assert [record.offset for record in found] == list(range(partition.log_end_offset))
    text = TextView(partition, View.LINES)
    assert text.read(0, text.size) == b"".join((record.value or b"") + b"\n" for record in found)
    return [record.value for record in found]


def leftovers(log_dir: Path) -> list[Path]:
    return sorted(log_dir.rglob("*" + commit_file.STAGED))


@pytest.fixture
def two(store: Store) -> Store:
    """A store with partitions a-0 and b-0, where something is already."""
    for name in ("a-0", "b-0"):
        store.create(name).append([b"before"])
    return store


def test_a_commit_is_in_all_its_partitions(two: Store, log_dir: Path) -> None:
    """Key, value, headers and timestamp arrive; offsets follow without a gap; nothing is left over."""
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


def test_a_commit_that_is_sent_again_changes_nothing(two: Store, log_dir: Path) -> None:
    """With other files, of the same or an earlier sequence; what was staged for it goes."""
    for sequence in (3, 4):
        assert not two.commit("q", sequence, staging(two, "q", sequence, {"a-0": [b"x"]})).already
    for sequence in (4, 3, 0):
        again = staging(two, "q", sequence, {"a-0": [b"y"], "b-0": [b"z"]})
        assert two.commit("q", sequence, again).already
    assert not two.commit("other", 0, staging(two, "other", 0, {"b-0": [b"w"]})).already
    assert values(two, "a-0") == [b"before", b"x", b"x"]
    assert values(two, "b-0") == [b"before", b"w"]
    assert not leftovers(log_dir)


def test_it_is_remembered_over_a_restart(log_dir: Path, clock: Clock) -> None:
    """A replay after a clean end, or a week less a second later, finds its commit made."""
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
def test_what_does_not_fit_goes_into_new_segments(two: Store, before: int) -> None:
    """As many as it takes, with indexes that lead to every record, by offset and by time."""
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


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches(two: Store, codec: str) -> None:
    """They stay as they are; one with another codec than the topic's is refused before anything is done."""
    plain = staging(two, "q", 0, {"b-0": [b"p"], "a-0": [b"q"]})
    two.settings.set_topic("a", "compression.type", codec)
    with pytest.raises(InvalidRecord, match="stage the batch again"):
        two.commit("q", 0, plain)
    assert values(two, "b-0") == [b"before"]
    two.commit("q", 0, staging(two, "q", 0, {"a-0": [b"x" * 900, b"y" * 900]}))
    assert values(two, "a-0") == [b"before", b"x" * 900, b"y" * 900]


def test_log_append_time_is_the_commits(two: Store, clock: Clock) -> None:
    """Every record of a commit has the one time at which it was decided."""
    two.settings.set_topic("a", "message.timestamp.type", "LogAppendTime")
    staged = staging(two, "q", 0, {"a-0": [b"x", b"y", b"z"]})
    clock.now_ms += 5000
    two.commit("q", 0, staged)
    found = list(two["a-0"].read(1))
    assert [record.timestamp for record in found] == [clock.now_ms] * 3
    assert {record.timestamp_type for record in found} == {TimestampType.LOG_APPEND_TIME}
    view = TextView(two["a-0"], View.ENVELOPES)
    assert len(view.read(0, view.size)) == view.size


def test_what_a_topic_does_not_take_is_refused_before_the_decision(
    two: Store, log_dir: Path
) -> None:
    """Too large, without a key, out of time, damaged, of no partition: nothing is done anywhere, and files stay."""
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


def test_readers_see_all_of_a_partition_or_nothing(log_dir: Path, clock: Clock) -> None:
    """At every write of a commit, this process and one that follows the files see it whole or not at all."""
    seen: list[tuple[int, int]] = []

    class Looker(Disk):
        """Looks at the log at every write."""

        def write(self, file: File, position: int, data: Buffer) -> None:
            super().write(file, position, data)
            if file.path.suffix == ".log" and looking:
                with Store(log_dir, read_only=True, clock=clock) as follower:
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
    """Has, while `full`, no room for one more write to the .log of b-0."""

    full = False

    def write(self, file: File, position: int, data: Buffer) -> None:
        if self.full and file.path.parent.name == "b-0" and file.path.suffix == ".log":
            super().write(file, position, bytes(data)[:20])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write(file, position, data)


def test_a_full_disk_after_the_decision_loses_nothing(log_dir: Path, clock: Clock) -> None:
    """The commit waits, others go on, and upkeep makes it as soon as there is room, behind what came meanwhile."""
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
def test_a_commit_that_waits_outlives_what_is_done_to_its_log(
    log_dir: Path, clock: Clock, change: str
) -> None:
    """What lies where it was to begin leaves the log, and the process dies: the commit is made all the same, once."""
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


def test_what_was_shown_beside_a_partition_that_failed_is_not_made_again(
    log_dir: Path, clock: Clock
) -> None:
    """One partition's part is there and durable; the other's fails, and its partition is deleted."""

    class Broken(Disk):
        """Cannot write the header of a batch in b-0."""

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
        store.upkeep()
        assert not store.commits.pending()
        assert values(store, "a-0") == [b"1", b"after"]
        assert store.commit("q", 0, []).already


def test_a_commit_over_two_directories_waits_for_both(tmp_path: Path, clock: Clock) -> None:
    """A store with one of them serves what it has, and says what is missing; with both, it is finished."""
    dirs = [tmp_path / "one", tmp_path / "two"]

    class Full(Disk):
        """No room in b-0."""

        def write(self, file: File, position: int, data: Buffer) -> None:
            if file.path.suffix == ".log" and file.path.parent.name == "b-0":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            super().write(file, position, data)

    with Store(dirs, clock=clock, disk=Full()) as store:
        store.create("a-0")
        store.create("b-0")
        assert store.home("a-0") != store.home("b-0")
        staged = staging(store, "q", 0, {"a-0": [b"1"], "b-0": [b"2"]})
        with pytest.raises(CommitPending):
            store.commit("q", 0, staged)
    with Store(dirs[0], clock=clock) as store:
        assert values(store, "a-0") == []
        store["a-0"].append([b"meanwhile"])
        with pytest.raises(CommitPending, match="is not open"):
            store.commit("q", 1, [])
    with Store(dirs[1], clock=clock) as store:
        assert values(store, "b-0") == []
    with Store(dirs, clock=clock) as store:
        assert values(store, "a-0") == [b"meanwhile", b"1"]
        assert values(store, "b-0") == [b"2"]
        assert store.commit("q", 0, []).already
    assert not leftovers(tmp_path)
    assert not [str(f) for f in check(dirs) if "error" in str(f)]


def test_what_is_left_over_goes(two: Store, log_dir: Path, clock: Clock) -> None:
    """Staged files of a commit that was made, and those that nobody has asked for in a day; never others."""
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


# Where an integer may begin: those of a writer may be any.
_LEAST = {"sequence": -(2**63), "time_ms": -(2**63), 0: -(2**63), 1: -(2**63)} | dict.fromkeys(
    ("base_offset", "leader_epoch", "append_time"), -1
)


@pytest.mark.parametrize(
    "value",
    [None, True, 1, 0, -1, -2, -(2**63), -(2**63) - 1, 2**64 - 1, 2**31, 1.5, "text", [], {}],
)
def test_a_file_of_commits_is_of_the_types_that_it_should_be(value: object) -> None:
    """Its checksum may be right, and what it says of another kind, or out of range: it is damaged then."""
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
    """A file of commits with a right checksum, whatever it says."""
    body = json.dumps(told).encode()
    return b"%b\ncrc32c %08x\n" % (body, crc32c(body))


def test_a_file_of_commits_that_is_damaged_stops_commits_alone(log_dir: Path, clock: Clock) -> None:
    """The logs are served; the audit names the file; a commit says what to do."""
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
