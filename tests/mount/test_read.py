"""Reading over a real mount: by offset, by time and by range; sizes, times, attributes and listings."""

from __future__ import annotations

import errno
import mmap
import os
import random
import re
import stat
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import orjson
import pytest

from logfs.mount.admin_requests import AdminRequests
from logfs.mount.errnos import ErrorLog
from logfs.mount.nodes.base import Caller, Context, DirectoryNode, FileNode, SymlinkNode
from logfs.mount.nodes.root import RootDirectory
from logfs.store.store import Store
from tests.support.mounts import Mount, refuses
from tests.support.processes import run, wait_for
from tests.support.requirements import need_fuse
from tests.support.stores import assert_clean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# The time in the example of the README: 2021-11-28T11:53:20Z.
NOON = 1638100400000
RECORDS = 3000


class Model(NamedTuple):
    """A partition of several segments, and its expected values and timestamps by offset."""

    path: Path
    values: list[bytes | None]
    times: list[int]

    def text(self, start: int = 0, end: int | None = None) -> bytes:
        """Return the expected text of a range of offsets, one value per line."""
        return b"".join((value or b"") + b"\n" for value in self.values[start:end])

    def at(self, timestamp: int) -> int | None:
        """Return the earliest offset at or after a timestamp, as offsetsForTimes does, or None."""
        return next((n for n, time in enumerate(self.times) if time >= timestamp), None)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    """One mount for all tests of this module."""
    need_fuse()
    base = tmp_path_factory.mktemp("read")
    mount = Mount(base / "mnt", [base / "log"]).start().keep_old_records()
    yield mount
    mount.stop()
    assert_clean(*mount.log_dirs)


@pytest.fixture(scope="module")
def model(shared: Mount) -> Model:
    """A partition that the tests only read: many batches in many segments, with timestamps that are not in order."""
    path = shared.partition("model-3")
    (path / "config/segment.bytes").write_text("40000")
    chance = random.Random(42)
    values: list[bytes | None] = []
    times = []
    append = os.open(path / "append.jsonl", os.O_WRONLY)
    while len(values) < RECORDS:
        lines = []
        for _ in range(min(chance.choice([1, 1, 2, 10, 100]), RECORDS - len(values))):
            number = len(values)
            value = chance.choice(
                [None, b"", b"short", b"record %d " % number + b"x" * chance.randrange(120)]
            )
            if number % 50 == 17:
                value = b"needle %d" % number
            values.append(value)
            times.append(NOON + (number - 56) * 1000 + chance.choice([0, 0, 0, -300, 2500]))
            if number == 56:
                times[-1] = NOON
            times[number] = min(times[number], NOON - 1) if number < 56 else times[number]
            lines.append(
                orjson.dumps(
                    {
                        "value": None if value is None else value.decode(),
                        "key": f"key {number}",
                        "timestamp": times[-1],
                        "headers": [["n", str(number)]],
                    }
                )
            )
        data = b"\n".join(lines) + b"\n"
        assert os.write(append, data) == len(data)
    os.close(append)
    assert len(list((path / "segments").glob("*.log"))) > 3
    return Model(path, values, times)


def append(directory: Path, *values: str) -> None:
    """Append lines with one write."""
    (directory / "append").write_text("".join(value + "\n" for value in values))


def append_at(directory: Path, *times: int) -> None:
    """Append a record for each timestamp, with the timestamp as its value, too."""
    lines = (b'{"value":"%d","timestamp":%d}\n' % (time, time) for time in times)
    (directory / "append.jsonl").write_bytes(b"".join(lines))


# The whole log.


def test_records(model: Model) -> None:
    """`records` contains the value of every record, one per line, from the log start to the log end."""
    assert (model.path / "records").read_bytes() == model.text()


def test_records_jsonl(model: Model) -> None:
    """`records.jsonl` contains the envelope of every record, one per line."""
    lines = (model.path / "records.jsonl").read_bytes().splitlines()
    assert len(lines) == len(model.values)
    for offset, line in enumerate(lines):
        value = model.values[offset]
        assert orjson.loads(line) == {
            "topic": "model",
            "partition": 3,
            "offset": offset,
            "timestamp": model.times[offset],
            "timestamp_type": "CreateTime",
            "key": f"key {offset}",
            "value": None if value is None else value.decode(),
            "headers": [["n", str(offset)]],
        }


def test_random_access(model: Model) -> None:
    """`records` and `records.jsonl` can be read at any position with any size, in any order."""
    chance = random.Random(1)
    for name in ("records", "records.jsonl"):
        whole = (model.path / name).read_bytes()
        fd = os.open(model.path / name, os.O_RDONLY)
        direct = os.open(model.path / name, os.O_RDONLY)
        os.posix_fadvise(direct, 0, 0, os.POSIX_FADV_DONTNEED)
        for _ in range(100):
            at, size = chance.randrange(len(whole) + 100), chance.randrange(20_000)
            assert os.pread(fd, size, at) == whole[at : at + size]
        os.close(fd)
        os.close(direct)


def test_mmap(model: Model) -> None:
    """`records` and ranges can be mapped into memory."""
    for name, expected in (
        ("records", model.text()),
        ("offsets/100..2000", model.text(100, 2000)),
    ):
        with (
            (model.path / name).open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        ):
            assert len(mapped) == len(expected)
            assert mapped[:] == expected
            assert mapped.find(b"needle 1017") == expected.find(b"needle 1017")


def test_empty_partition(topic: Path) -> None:
    """An empty partition has empty files and listings, and neither `earliest` nor `latest`."""
    for name in ("records", "records.jsonl", "offsets/0..", "offsets/-10..", "offsets/..10"):
        assert (topic / name).read_bytes() == b""
        assert (topic / name).stat().st_size == 0
    assert os.listdir(topic / "offsets") == os.listdir(topic / "time") == []
    for name in ("offsets/0", "offsets/earliest", "offsets/latest", "time/0"):
        assert not os.path.lexists(topic / name) or not (topic / name).exists()
        with refuses(errno.ENOENT):
            (topic / name).read_bytes()


# Files whose content changes by itself.
CHANGING = ("status.json", "metrics", "errors", "ctl")


def test_sizes_are_true(shared: Mount, model: Model) -> None:
    """st_size of every readable file in the tree, and of ranges, is the number of bytes that a read returns."""
    names = [
        "offsets/0..10",
        "offsets/100..200.jsonl",
        "offsets/2990..",
        "offsets/2990...jsonl",
        "offsets/..50",
        "offsets/...jsonl",
        "offsets/..50.jsonl",
        "offsets/-10..",
        "offsets/-10...jsonl",
        "offsets/-100000..",
        "offsets/7..7",
        "offsets/9999..",
        "offsets/2999..99999",
        "offsets/17",
        "offsets/17.json",
        f"time/{NOON}..{NOON + 100_000}",
        f"time/{NOON}..{NOON + 100_000}.jsonl",
        f"time/{NOON}..",
        f"time/..{NOON}",
        f"time/{NOON}",
        f"time/{NOON}.json",
        "time/2021-11-28T11:53:20Z..2021-11-28T11:54:20Z",
    ]
    paths = [model.path / name for name in names if name != "offsets/...jsonl"]
    paths += [
        Path(parent) / name
        for parent, _, files in os.walk(shared.path)
        for name in files
        if not name.startswith("append")
    ]
    assert len(paths) > 150
    nonempty = 0
    for path in paths:
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            data = file.readall()
            assert len(data) == size, path
            assert file.read() == b""
        found = path.stat()
        assert found.st_blocks * 512 >= found.st_size
        assert stat.S_ISREG(found.st_mode)
        if path.name not in CHANGING:
            assert found.st_size == size, path
        nonempty += bool(size)
    assert nonempty > 100


# By offset.


def test_single_records(model: Model) -> None:
    """`offsets/N` contains exactly the value, `offsets/N.json` the envelope; their mtime is the timestamp."""
    lines = (model.path / "records.jsonl").read_bytes().splitlines(keepends=True)
    for offset in [0, 1, 2, 16, 17, 56, 1000, 1717, RECORDS - 1]:
        path = model.path / f"offsets/{offset}"
        assert path.read_bytes() == (model.values[offset] or b"")
        assert path.stat().st_mtime_ns == model.times[offset] * 1_000_000
        envelope = model.path / f"offsets/{offset}.json"
        assert envelope.read_bytes() == lines[offset]
        assert envelope.stat().st_mtime_ns == model.times[offset] * 1_000_000


@pytest.mark.parametrize("size", [1, 4095, 4096, 4097, 131_072, 131_073, 500_000])
def test_a_record_reads_the_same_from_every_cache(topic: Path, size: int) -> None:
    """A record reads the same from the pages that the kernel gets at its first open, by mmap, and after these pages
    are dropped; also where it ends inside a page, or is too large to be sent at the open.
    """
    value = bytes(random.Random(size).choices(b"abcdefgh", k=size))
    (topic / "append").write_bytes(b"x\n" + value + b"\n")
    with (topic / "offsets/1").open("rb") as file:
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            assert mapped[:] == value
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert os.pread(file.fileno(), size + 1, 0) == value
    assert (topic / "offsets/1").read_bytes() == value


# Reads each record repeatedly, and makes the kernel drop its page in between.
_DROPPING_READER = """
import os, sys
for number in range(100):
    for _ in range(6):
        fd = os.open(f"{sys.argv[1]}/{number}", os.O_RDONLY)
        for _ in range(2):
            assert os.pread(fd, 100, 0) == b"value %d" % number
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
"""


def test_readers_of_one_record_never_wait_for_each_other(mount: Mount, orders: Path) -> None:
    """The kernel locks a page while it is read, so the daemon must not access the page at another process's open."""
    (orders / "append").write_bytes(b"".join(b"value %d\n" % n for n in range(100)))
    command = [sys.executable, "-c", _DROPPING_READER, str(orders / "offsets")]
    readers = [subprocess.Popen(command) for _ in range(4)]
    try:
        assert [reader.wait(60) for reader in readers] == [0] * 4
    except subprocess.TimeoutExpired:
        # Only this ends a daemon that waits for itself.
        run("umount", "-f", mount.path)
        raise


def test_names_looked_up_long_ago_are_forgotten(topic: Path) -> None:
    """Above 20,000 names of records the kernel is asked to forget the oldest; their next lookup makes a new inode."""
    (topic / "append").write_bytes(b"a line\n" * 20_300)
    directory = os.open(topic / "offsets", os.O_PATH)
    first = os.stat("0", dir_fd=directory).st_ino
    last = [os.stat(str(number), dir_fd=directory).st_ino for number in range(1, 20_300)][-1]
    wait_for(lambda: os.stat("0", dir_fd=directory).st_ino != first)
    assert os.stat("20299", dir_fd=directory).st_ino == last
    assert (topic / "offsets/0").read_bytes() == b"a line"
    os.close(directory)


def test_earliest_and_latest_are_links(model: Model) -> None:
    """`earliest` and `latest` are links to the first readable record and to the last record."""
    offsets = model.path / "offsets"
    assert os.readlink(offsets / "earliest") == "0"
    assert os.readlink(offsets / "latest") == str(RECORDS - 1)
    assert (offsets / "latest").read_bytes() == (model.values[-1] or b"")
    assert os.lstat(offsets / "latest").st_mtime_ns == model.times[-1] * 1_000_000


@pytest.mark.parametrize(
    ("name", "start", "end"),
    [
        ("100..200", 100, 200),
        ("0..1", 0, 1),
        ("0..3000", 0, 3000),
        ("7..7", 7, 7),
        ("2990..5000", 2990, None),
        ("2900..", 2900, None),
        ("0..", 0, None),
        ("..30", 0, 30),
        ("..99999", 0, None),
        ("-10..", -10, None),
        ("-1..", -1, None),
        ("-2999..", -2999, None),
        ("-100000..", 0, None),
        ("3000..", 3000, None),
        ("9999..", 9999, None),
        ("9223372036854775807..", 9999, None),
    ],
)
def test_ranges(model: Model, name: str, start: int, end: int | None) -> None:
    """A range A..B contains the values of the records A <= offset < B, one per line; with .jsonl their envelopes."""
    assert (model.path / "offsets" / name).read_bytes() == model.text(start, end)
    lines = (model.path / "records.jsonl").read_bytes().splitlines(keepends=True)
    found = (model.path / "offsets" / f"{name}.jsonl").read_bytes()
    assert found == b"".join(lines[start:end])


def test_random_ranges(model: Model) -> None:
    """A range is correct at whatever positions in batches and segments it starts and ends."""
    chance = random.Random(3)
    for _ in range(60):
        start = chance.randrange(RECORDS)
        end = start + chance.choice([1, 5, 100, 2000])
        assert (model.path / f"offsets/{start}..{end}").read_bytes() == model.text(start, end)
        count = chance.randrange(1, RECORDS)
        assert (model.path / f"offsets/-{count}..").read_bytes() == model.text(-count)


def test_range_beyond_the_end(topic: Path) -> None:
    """A range beyond the log end is empty until its records are appended, and contains only its records."""
    append(topic, "0", "1", "2")
    for name in ("5..", "5..7", "2..7"):
        expected = "2\n" if name.startswith("2") else ""
        assert (topic / "offsets" / name).read_text() == expected
    with (topic / "offsets/5..").open("rb", buffering=0) as held:
        assert held.read() == b""
        append(topic, "3", "4", "5")
        append(topic, "6", "7", "8")
        assert held.read() == b"5\n6\n7\n8\n"
    assert (topic / "offsets/5..").read_text() == "5\n6\n7\n8\n"
    assert (topic / "offsets/5..7").read_text() == "5\n6\n"
    assert (topic / "offsets/2..7").read_text() == "2\n3\n4\n5\n6\n"
    assert (topic / "offsets/5..7").stat().st_size == 4


@pytest.mark.parametrize(
    "name",
    [
        "3000",
        "3000.json",
        "99999999999999999999",
        "9223372036854775808",
        "-1",
        "+1",
        "01",
        "1.0",
        "1e3",
        "0x10",
        "1_000",
        "１",  # a full-width digit
        " 1",
        "1\n",
        "1.jsonl",
        "1.txt",
        "1.json.json",
        "...",
        "....jsonl",
        "01..2",
        "1..02",
        "10..5",
        "-10..20",
        "..-10",
        "1...2",
        "a..b",
        "1..2.json",
        "1..2.jsonl.jsonl",
        "1..2..3",
        "first",
        "Latest",
        "latest.json.x",
        "x" * 255,
        b"\xff\xfe",
    ],
)
def test_invalid_names_of_offsets_are_enoent(model: Model, name: str | bytes) -> None:
    """A name in `offsets/` is ENOENT unless it is an existing offset, a range, `earliest` or `latest`."""
    path = os.fsencode(model.path / "offsets") + b"/" + os.fsencode(name)
    with refuses(errno.ENOENT):
        os.stat(path)
    with refuses(errno.ENOENT):
        os.open(path, os.O_RDONLY)


@pytest.mark.parametrize("name", ["nonsense", "record", "records.json", ".hidden", "0", "offsets2"])
def test_unknown_names_are_enoent(shared: Mount, model: Model, name: str) -> None:
    """A name that is not in the tree is ENOENT in every other directory."""
    for directory in (shared.path, shared.path / ".logfs", model.path, model.path / "segments"):
        with refuses(errno.ENOENT):
            os.stat(directory / name)
    for directory in (model.path / "config", shared.path / ".logfs/config"):
        with refuses(errno.ENOENT):
            os.stat(directory / name)


def test_listing_of_offsets(model: Model) -> None:
    """`ls offsets/` lists `earliest`, `latest` and the first record of each segment, and nothing else."""
    segments = [int(path.stem) for path in (model.path / "segments").glob("*.log")]
    names = os.listdir(model.path / "offsets")
    assert sorted(names) == sorted(["earliest", "latest", *map(str, segments)])
    printed = run("ls", "-l", model.path / "offsets")
    assert f"latest -> {RECORDS - 1}" in printed
    assert "earliest -> 0" in printed


# By time.


@pytest.mark.parametrize("suffix", ["", ".json"])
def test_times(model: Model, suffix: str) -> None:
    """`time/T` links to the earliest offset whose timestamp is at or after T, `time/T.json` to its envelope."""
    chance = random.Random(5)
    wanted = [0, 1, NOON - 1, NOON, NOON + 1, max(model.times), min(model.times)]
    wanted += [chance.choice(model.times) + chance.choice([-1, 0, 1, 400]) for _ in range(80)]
    for timestamp in wanted:
        expected = model.at(timestamp)
        path = model.path / f"time/{timestamp}{suffix}"
        if expected is None:
            assert not os.path.lexists(path)
            continue
        assert os.readlink(path) == f"../offsets/{expected}{suffix}"
        assert path.read_bytes() == (model.path / f"offsets/{expected}{suffix}").read_bytes()
        assert os.lstat(path).st_mtime_ns == model.times[expected] * 1_000_000


@pytest.mark.parametrize(
    "name",
    [
        "1638100400000",
        "2021-11-28T11:53:20Z",
        "2021-11-28T11:53:20",
        "2021-11-28T11:53:20.000Z",
        "2021-11-28T12:53:20+01:00",
        "2021-11-28 11:53:20Z",
        "20211128T115320Z",
    ],
)
def test_times_in_iso(model: Model, name: str) -> None:
    """A time is in ms since the epoch or in ISO 8601, in UTC if it has no zone."""
    assert os.readlink(model.path / "time" / name) == "../offsets/56"
    assert os.readlink(model.path / "time" / f"{name}.json") == "../offsets/56.json"


def test_times_have_millisecond_precision(topic: Path) -> None:
    """Times in both forms distinguish milliseconds."""
    append_at(topic, NOON, NOON + 1, NOON + 999, NOON + 1000)
    assert os.readlink(topic / f"time/{NOON + 1}") == "../offsets/1"
    assert os.readlink(topic / "time/2021-11-28T11:53:20.001Z") == "../offsets/1"
    assert os.readlink(topic / "time/2021-11-28T11:53:20.002Z") == "../offsets/2"
    assert os.readlink(topic / "time/2021-11-28T11:53:21Z") == "../offsets/3"
    assert os.readlink(topic / "time/2021-11-28") == "../offsets/0"
    assert not os.path.lexists(topic / "time/2021-11-29")
    assert not os.path.lexists(topic / f"time/{NOON + 1001}")
    append_at(topic, NOON + 5000)
    assert os.readlink(topic / f"time/{NOON + 1001}") == "../offsets/4"


def test_times_before_1970(topic: Path) -> None:
    """A time before 1970 is valid: the first record is at or after it, and no record is before it."""
    append_at(topic, 5, 6)
    for name in ("1969-12-31T23:59:59.999Z", "1960-01-01", "0001-01-01T00:00:00"):
        assert os.readlink(topic / "time" / name) == "../offsets/0"
        assert (topic / f"time/{name}..").read_bytes() == b"5\n6\n"
        assert (topic / f"time/{name}..6").read_bytes() == b"5\n"
        assert (topic / f"time/..{name}").read_bytes() == b""


def test_ranges_of_times(model: Model) -> None:
    """A range of times A..B starts with the first record at or after A, and ends before the first at or after B."""
    chance = random.Random(6)
    for _ in range(30):
        first = chance.choice(model.times) + chance.choice([-1, 0, 1])
        last = first + chance.choice([1, 1000, 100_000, 10**9])
        start = model.at(first)
        expected = b"" if start is None else model.text(start, model.at(last))
        path = model.path / f"time/{first}..{last}"
        assert path.read_bytes() == expected
        assert path.stat().st_size == len(expected)
        envelopes = path.with_name(path.name + ".jsonl").read_bytes().splitlines()
        offsets = [orjson.loads(line)["offset"] for line in envelopes]
        assert offsets == ([] if start is None else list(range(RECORDS))[start : model.at(last)])
    iso = [
        datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        for ms in (NOON, NOON + 60_000)
    ]
    expected = model.text(56, model.at(NOON + 60_000))
    assert (model.path / f"time/{iso[0]}..{iso[1]}").read_bytes() == expected
    assert (model.path / f"time/{NOON}..").read_bytes() == model.text(56)
    assert (model.path / f"time/..{NOON}").read_bytes() == model.text(0, 56)
    assert (model.path / f"time/{NOON * 2}..").read_bytes() == b""


@pytest.mark.parametrize(
    "name",
    [
        "noon",
        "-1",
        "1.5",
        "2021-13-01",
        "2021-11-28T25:00:00Z",
        "2021-11",
        "..",
        "...",
        "a..b",
        "99999999999999999999",
        "1638100400000.txt",
        "1638100400000.jsonl",
        "now",
        b"\xff",
    ],
)
def test_invalid_times_are_enoent(model: Model, name: str | bytes) -> None:
    """A name in `time/` that is neither a time nor a range of times is ENOENT."""
    if name == "..":
        name = "..jsonl"
    with refuses(errno.ENOENT):
        os.lstat(os.fsencode(model.path / "time") + b"/" + os.fsencode(name))


def test_listing_of_times(model: Model) -> None:
    """`ls time/` lists a link for the first record of each segment, and each link resolves."""
    names = os.listdir(model.path / "time")
    segments = sorted(int(path.stem) for path in (model.path / "segments").glob("*.log"))
    assert sorted(map(int, names)) == sorted({model.times[offset] for offset in segments})
    for name in names:
        assert os.readlink(model.path / "time" / name) == f"../offsets/{model.at(int(name))}"


def test_listings_have_no_duplicate_names(topic: Path) -> None:
    """No name is listed twice, even if several segments begin with the same timestamp."""
    (topic / "config/segment.bytes").write_text("200")
    append_at(topic, *[NOON] * 3)
    append_at(topic, *[NOON] * 3)
    append_at(topic, *[NOON] * 3)
    assert len(list((topic / "segments").glob("*.log"))) > 1
    for name in ("offsets", "time", "segments", "config"):
        names = os.listdir(topic / name)
        assert len(names) == len(set(names)), name


# Times, attributes, inodes.


def test_mtimes(model: Model) -> None:
    """The mtime of the partition, of its views, of `offsets` and of `time` is the timestamp of the last record."""
    last = model.times[-1] * 1_000_000
    # The kernel may cache the attributes of a directory for a second.
    wait_for(lambda: model.path.stat().st_mtime_ns == last)
    for name in ("records", "records.jsonl", "offsets", "time"):
        assert (model.path / name).stat().st_mtime_ns == last, name


def test_attributes(model: Model) -> None:
    """The extended attributes of a record are offset, timestamp, timestamp type, key, headers and null; read-only."""
    path = model.path / "offsets/56"
    found = {name: os.getxattr(path, name) for name in os.listxattr(path)}
    assert found == {
        "user.logfs.offset": b"56",
        "user.logfs.timestamp": b"%d" % NOON,
        "user.logfs.timestamp_type": b"CreateTime",
        "user.logfs.key": b"key 56",
        "user.logfs.headers": b'[["n","56"]]',
        "user.logfs.null": b"1" if model.values[56] is None else b"0",
    }
    with refuses(errno.ENODATA):
        os.getxattr(path, "user.logfs.colour")
    with refuses(errno.ENODATA):
        os.getxattr(path, "user.other")
    with refuses(errno.EPERM):
        os.setxattr(path, "user.logfs.key", b"other")
    with refuses(errno.EPERM):
        os.removexattr(path, "user.logfs.key")


def test_inodes_stay(topic: Path) -> None:
    """An append changes no inode, so that tools that follow a file by name continue with it."""
    append(topic, "a")
    names = ("records", "records.jsonl", "append", "offsets", "time")
    before = [(topic / name).stat().st_ino for name in names]
    append(topic, "b")
    assert [(topic / name).stat().st_ino for name in names] == before
    assert len(set(before)) == len(before)


def test_views_only_grow(topic: Path) -> None:
    """While `records` is open it only grows, and bytes that were read before are unchanged."""
    (topic / "config/segment.bytes").write_text("2000")
    expected = b""
    with (topic / "records").open("rb", buffering=0) as held:
        for number in range(100):
            line = f"line {number} of some length, so that segments roll"
            append(topic, line)
            expected += line.encode() + b"\n"
            assert held.read() == line.encode() + b"\n"
            assert os.fstat(held.fileno()).st_size == len(expected)
        assert os.pread(held.fileno(), len(expected) + 1, 0) == expected
    assert len(list((topic / "segments").glob("*.log"))) > 3


@pytest.mark.parametrize(
    "name", ["offsets/0..", "offsets/-1..", "offsets/1..5", "time/1..", "time/1...jsonl"]
)
def test_open_ranges_grow(topic: Path, name: str) -> None:
    """A range that is open grows with the log, also while its name is looked up again."""
    append(topic, "zero")
    with (topic / name).open("rb", buffering=0) as held:
        before = held.read()
        for number in range(1, 4):
            assert (topic / name).stat().st_size >= 0
            append(topic, f"line {number}")
            more = held.read()
            assert f"line {number}" in more.decode()
            before += more
            assert os.fstat(held.fileno()).st_size == len(before)


def test_empty_values_at_the_edges(topic: Path) -> None:
    """Each empty value in `records` and in a range is an empty line."""
    append(topic, "", "", "x", "")
    assert (topic / "records").read_bytes() == b"\n\nx\n\n"
    assert (topic / "offsets/0..2").read_bytes() == b"\n\n"
    assert (topic / "offsets/-1..").read_bytes() == b"\n"
    assert (topic / "offsets/0").stat().st_size == 0


# Segments.


def test_segments_are_the_real_files(shared: Mount, model: Model, tmp_path: Path) -> None:
    """`segments/` shows every real file: those of sealed segments byte for byte, those of the active segment up to
    the bytes that are written.
    """
    real = shared.log_dirs[0] / "model-3"
    shown = model.path / "segments"
    logs = sorted(path.name for path in shown.glob("*.log"))
    assert {path.name for path in real.iterdir()} == set(os.listdir(shown))
    active = logs[-1].removesuffix(".log")
    for name in os.listdir(shown):
        data = (shown / name).read_bytes()
        if name.startswith(active):
            assert (real / name).read_bytes()[: len(data)] == data
        else:
            assert (real / name).read_bytes() == data, name
    suffixes = {Path(name).suffix for name in os.listdir(shown)}
    assert {".log", ".index", ".timeindex", ".textindex"} <= suffixes


def test_copy_of_segments_is_a_log(model: Model, tmp_path: Path) -> None:
    """A copy of `segments/`, made by cp while the log is open, is a complete partition that `logfs cat` reads."""
    run("cp", "-r", model.path / "segments", tmp_path / "model-3")
    printed = run(sys.executable, "-m", "logfs", "cat", tmp_path / "model-3")
    assert printed.encode() == model.text()


def test_segments_are_read_only(model: Model) -> None:
    """The files in `segments/` cannot be opened for writing."""
    name = next((model.path / "segments").glob("*.log"))
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_APPEND):
        with refuses(errno.EPERM):
            os.open(name, flags)


# After the log start has moved. The nodes are called directly, without FUSE.


def node(directory: DirectoryNode, path: str) -> FileNode:
    """Return the file node of a path."""
    *parents, name = path.split("/")
    for parent in parents:
        found = directory.lookup(parent)
        assert isinstance(found, DirectoryNode)
        directory = found
    file = directory.lookup(name)
    assert isinstance(file, FileNode)
    return file


def test_log_start_moves(store: Store) -> None:
    """After a deletion `records` is a new file; an open handle of the old one continues without gap or repetition."""
    store.settings.set_topic("orders", "segment.bytes", "300")
    partition = store.create("orders-0")
    for number in range(50):
        partition.append([b"record %d" % number])
    assert len(partition.segments) > 3
    root = RootDirectory(Context(store, ErrorLog(store.clock), "test", AdminRequests()))
    caller = Caller(0, 0, os.getpid())
    old = node(root, "orders-0/records")
    assert node(root, "orders-0/records") is old
    handle = old.open(os.O_RDONLY, caller)
    text = b"".join(b"record %d\n" % number for number in range(50))
    assert handle.read(0, 1000) == text
    ten = node(root, "orders-0/offsets/0..20").open(os.O_RDONLY, caller)

    partition.advance_log_start(20)

    new = node(root, "orders-0/records")
    assert new is not old
    assert new.open(os.O_RDONLY, caller).read(0, 1000) == text[text.index(b"record 20") :]
    assert new.stat().size == len(text[text.index(b"record 20") :])
    partition.append([b"new"])
    assert handle.read(len(text), 100) == b"new\n"
    assert handle.read(0, 1000) == text + b"new\n"
    assert old.stat().size == len(text) + 4
    assert ten.read(0, 1000) == text[: text.index(b"record 20")]
    assert node(root, "orders-0/offsets/20").stat().size == 9
    for name in ("0", "19", "19.json"):
        with pytest.raises(FileNotFoundError):
            node(root, f"orders-0/offsets/{name}")
    assert node(root, "orders-0/offsets/0..21").stat().size == len(b"record 20\n")
    directory = root.lookup("orders-0")
    assert isinstance(directory, DirectoryNode)
    offsets = directory.lookup("offsets")
    assert isinstance(offsets, DirectoryNode)
    earliest = offsets.lookup("earliest")
    assert isinstance(earliest, SymlinkNode)
    assert earliest.target() == "20"
    names = list(offsets.names())
    assert "20" in names
    assert all(not name.isdigit() or int(name) >= 20 for name in names)


def test_a_record_that_another_process_has_replaced(make_mount: Callable[..., Mount]) -> None:
    """A read-only mount that has shown an offset before a truncation shows the record that is there then."""
    mount = make_mount()
    mount.partition("orders-0")
    mount.stop()
    log_dir = mount.log_dirs[0]
    with Store(log_dir) as store:
        partition = store["orders-0"]
        for value in (b"one", b"old", b"three"):
            partition.append([value])
        shown = make_mount("--read-only", name="ro", log_dirs=[log_dir]).path / "orders-0/offsets"
        for number in range(3):
            before = (shown / "1").read_bytes()
            (shown / "1.json").read_bytes()
            store.truncate("orders-0", 1)
            value = b"new %d" % number
            partition.append([value, b"more"])
            wait_for(lambda: (shown / "1").read_bytes() == value)  # noqa: B023
            wait_for(lambda: value in (shown / "1.json").read_bytes())  # noqa: B023
            assert before != value


def test_a_segment_file_is_found_without_a_listing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log may have very many segments, so a lookup in `segments/` does not list them; it finds what `ls` shows."""
    partition = store.create("orders-0")
    partition.append([b"one"])
    (partition.directory / "link").symlink_to("partition.metadata")
    (partition.directory / "x.tmp").touch()
    (partition.directory / "folder").mkdir()
    root = RootDirectory(Context(store, ErrorLog(store.clock), "test", AdminRequests()))
    orders = root.lookup("orders-0")
    assert isinstance(orders, DirectoryNode)
    segments = orders.lookup("segments")
    assert isinstance(segments, DirectoryNode)
    shown = set(segments.names())
    present = {path.name for path in partition.directory.iterdir()}
    monkeypatch.setattr(type(partition.disk), "scan", None)
    assert {name for name in present if segments.find(name) is not None} == shown
    assert shown >= {f"{0:020}.log", "partition.metadata"}
    assert segments.find("missing.log") is None


# Tools.


def test_find_newermt(model: Model) -> None:
    """`find -newermt` compares the timestamps of records."""
    listed = [int(name) for name in os.listdir(model.path / "offsets") if name.isdigit()]
    moment = model.times[sorted(listed)[1]] - 1
    when = f"@{moment // 1000}.{moment % 1000:03d}"
    found = run("find", model.path / "offsets", "-type", "f", "-newermt", when).split()
    expected = {str(n) for n in listed if model.times[n] > moment}
    assert {Path(name).name for name in found} == expected
    assert 0 < len(expected) < len(listed)


def test_stat_command(model: Model) -> None:
    """stat(1) shows the size and the timestamp of a record, with mode 444 and the owner of the partition."""
    printed = run("stat", "-c", "%s %Y %F %u %g %a", model.path / "offsets/1717").split(" ")
    value = model.values[1717]
    assert value is not None
    assert printed[:2] == [str(len(value)), str(model.times[1717] // 1000)]
    owner = model.path.stat()
    assert printed[-3:-1] == [str(owner.st_uid), str(owner.st_gid)]
    assert printed[-1].strip() == "444"


def test_getfattr(model: Model) -> None:
    """`getfattr -d` prints the extended attributes of a record."""
    printed = run("getfattr", "--absolute-names", "-d", model.path / "offsets/56")
    assert 'user.logfs.key="key 56"' in printed
    assert f'user.logfs.timestamp="{NOON}"' in printed
    assert re.search(r'user\.logfs\.headers="\[\[', printed)


def test_du_and_ls(model: Model) -> None:
    """du reports the size of `records`; ls lists every file of a partition, but in the root not `.logfs`."""
    assert int(run("du", "-s", "--apparent-size", "-B1", model.path / "records").split()[0]) == len(
        model.text()
    )
    assert int(run("du", "-s", "-B1", model.path / "records").split()[0]) >= len(model.text())
    assert run("ls", model.path).split() == sorted(
        [
            "append",
            "append.jsonl",
            "config",
            "ctl",
            "groups",
            "keys",
            "log-start-offset",
            "offsets",
            "records",
            "records.jsonl",
            "segments",
            "status.json",
            "time",
        ]
    )
    done = subprocess.run(["ls", model.path.parent], capture_output=True, text=True, check=True)
    assert ".logfs" not in done.stdout


def test_an_open_after_retention_repeats_the_lookup(mount: Mount) -> None:
    """An open of `records` as it was looked up before retention fails with ESTALE, so that the kernel repeats the
    lookup: the old file would have a size, but could not be read from its beginning.
    """
    folder = mount.partition("orders-0")
    (folder / "config/segment.bytes").write_text("10000")
    line = b"x" * 95 + b"\n"
    reader = found = -1
    try:
        with (folder / "append").open("wb", buffering=0) as writer:
            for number in range(3):
                for _ in range(60):
                    writer.write(line * 60)
                if reader < 0:
                    reader = os.open(folder / "records", os.O_RDONLY)
                    found = os.open(folder / "records", os.O_PATH)
                    (folder / "config/retention.bytes").write_text("20000")
                (folder / "ctl").write_text("retain\n")
                while os.read(reader, 100_000):
                    pass
                if number:
                    (folder / "ctl").write_text("roll\n")
        (folder / "ctl").write_text("retain\n")
        with pytest.raises(OSError, match="Errno 116"):
            os.open(f"/proc/self/fd/{found}", os.O_RDONLY)
        assert (folder / "records").read_bytes().startswith(line)
    finally:
        for descriptor in (reader, found):
            if descriptor >= 0:
                os.close(descriptor)
