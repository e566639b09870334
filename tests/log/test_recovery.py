"""Opening a log whose files were changed by a crash, by hand or by a disk."""

from __future__ import annotations

import itertools
import shutil
import struct
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from logfs.errors import Corrupt
from logfs.format.base import names
from logfs.format.batches.record import Record
from logfs.log import recovery
from logfs.log.disk.checked_disk import CheckedDisk
from logfs.log.disk.disk import Disk
from logfs.store.store import Store
from tests.support.examples import drawn, seed_of
from tests.support.requirements import DEEP
from tests.support.stores import assert_clean, errors_of, set_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from logfs.log.read.reader import Reader
    from tests.support.stores import Clock

NAME = "orders-0"
# Three sealed segments and the active one.
SEGMENTS = 4
RECORDS = 25
HOUR_MS = 3_600_000


@pytest.fixture(autouse=True, scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the logs that `fill` has written, to copy them."""
    _filled["root"] = tmp_path_factory.mktemp("filled")
    yield
    _filled.clear()


_filled: dict[str, Path] = {}


def fill(log_dir: Path, clock: Clock, policy: str = "delete") -> None:
    """Make a log of `SEGMENTS` segments, closed cleanly; each record is a minute later than the one before."""
    start_ms = clock.now_ms
    path = _filled["root"] / f"{policy}-{start_ms}"
    if not path.exists():
        with Store(path, clock=clock) as store:
            set_topic(store, "orders", index_interval_bytes=200, cleanup_policy=policy)
            orders = store.create(NAME)
            for number in range(SEGMENTS * RECORDS):
                if number and number % RECORDS == 0:
                    orders.roll(clock.now_ms)
                orders.append([Record(b"%d" % number + b"x" * 100, key=b"k")])
                clock.now_ms += 60_000
        assert_clean(path)
    clock.now_ms = start_ms + SEGMENTS * RECORDS * 60_000
    shutil.copytree(path, log_dir)


def hold(log: Reader, first: int = 0, end: int = SEGMENTS * RECORDS) -> None:
    """Assert that the log has the records [first, end), and that each is found by time."""
    records = list(log.read())
    assert [record.offset for record in records] == list(range(first, end))
    for record in records:
        assert record.timestamp is not None
        found = log.offset_for_time(record.timestamp)
        assert found is not None
        assert found.offset == record.offset, f"looked for the time of offset {record.offset}"
        found = log.offset_for_time(record.timestamp - 59_999)
        assert found is not None
        assert found.offset == record.offset


def segment_file(log_dir: Path, number: int, suffix: str) -> Path:
    return log_dir / NAME / (names.stem(number * RECORDS) + suffix)


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def leave_room(path: Path) -> None:
    path.write_bytes(path.read_bytes() + bytes(1200))


def empty(path: Path) -> None:
    path.write_bytes(b"")


def cut_odd(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


@pytest.mark.drawn(24)
@pytest.mark.parametrize("ruin", [zero, leave_room, empty, cut_odd])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("read_only", [False, True])
def test_an_impossible_index_is_rebuilt(
    ruin: object, suffix: str, number: int, read_only: bool, log_dir: Path, clock: Clock
) -> None:
    """An index below the recovery point is rebuilt even after a clean shutdown, and no segment is deleted by it."""
    fill(log_dir, clock)
    assert callable(ruin)
    ruin(segment_file(log_dir, number, suffix))
    with Store(log_dir, clock=clock, read_only=read_only) as store:
        if not read_only:
            store.settings.set_topic("orders", "retention.ms", str(HOUR_MS * 24))
            assert store.retain() == 0
        hold(store[NAME])
    if read_only:
        # A read-only store changes no file; the next writable store repairs the index.
        with Store(log_dir, clock=clock) as store:
            hold(store[NAME])


@pytest.mark.parametrize("records", [1, RECORDS])
def test_a_clean_start_rebuilds_no_index(
    log_dir: Path, records: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of the last segment are used as they are, with and without entries in its indexes."""
    with Store(log_dir) as store:
        set_topic(store, "orders", index_interval_bytes=200)
        store.create(NAME)
        for _ in range(records):
            store[NAME].append([b"x" * 100] * 3)
    monkeypatch.delattr(recovery, "IndexBuilder")
    for read_only in (True, False):
        with Store(log_dir, read_only=read_only) as store:
            assert store[NAME].log_end_offset == 3 * records
    assert not caplog.records


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".textindex"])
def test_an_impossible_index_of_the_last_segment_is_rebuilt(
    suffix: str, log_dir: Path, clock: Clock
) -> None:
    """An index of the segment that appends go to is rebuilt as well."""
    for ruin in (zero, empty, cut_odd, leave_room):
        shutil.rmtree(log_dir, ignore_errors=True)
        fill(log_dir, clock)
        ruin(segment_file(log_dir, SEGMENTS - 1, suffix))
        with Store(log_dir, clock=clock) as store:
            hold(store[NAME])


def test_a_last_time_entry_that_is_too_early_is_replaced(log_dir: Path, clock: Clock) -> None:
    """A last entry below the time of an earlier record is replaced, and the log can be appended to and closed."""
    with Store(log_dir, clock=clock) as store:
        orders = store.create(NAME)
        for timestamp in (10_000, 5_000):
            orders.append([Record(b"value", timestamp=timestamp)])
    path = log_dir / NAME / f"{0:020}.timeindex"
    assert struct.unpack(">qi", path.read_bytes()) == (10_000, 0)
    path.write_bytes(struct.pack(">qi", 6_000, 1))
    with Store(log_dir, clock=clock) as store:
        found = store[NAME].offset_for_time(10_000)
        assert found is not None
        assert found.offset == 0
        store[NAME].append([Record(b"more", timestamp=7_000)])
    assert struct.unpack(">qi", path.read_bytes()) == (10_000, 0)


@pytest.mark.parametrize(("suffix", "width"), [(".index", 8), (".timeindex", 12)])
@pytest.mark.parametrize("read_only", [False, True])
def test_an_index_entry_that_contradicts_the_log_is_not_used(
    suffix: str, width: int, read_only: bool, log_dir: Path, clock: Clock
) -> None:
    """No lookup misses a record, whatever numbers the entries of Kafka's indexes hold."""
    fill(log_dir, clock)
    shutil.copytree(log_dir, log_dir.with_name("copy"))
    index = segment_file(log_dir.with_name("copy"), 1, suffix)
    text = segment_file(log_dir.with_name("copy"), 1, ".textindex")
    data = index.read_bytes()
    assert len(data) > 4 * width
    ends = (*range(0, 2 * width, 4), *range(len(data) - 2 * width, len(data), 4))
    for at, number in drawn(itertools.product(ends, (0, 1, 700, 2**31 - 1, -1)), 12):
        index.write_bytes(data[:at] + number.to_bytes(4, "big", signed=True) + data[at + 4 :])
        # With a text index, Kafka's offset index would not be used.
        text.unlink(missing_ok=True)
        with Store(log_dir.with_name("copy"), clock=clock, read_only=read_only) as store:
            hold(store[NAME])


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".textindex"])
@pytest.mark.parametrize("read_only", [False, True])
def test_exchanged_indexes_are_not_used(
    suffix: str, read_only: bool, log_dir: Path, clock: Clock
) -> None:
    """If two segments have each other's indexes, no lookup misses a record, and appends continue."""
    fill(log_dir, clock)
    copy = log_dir.with_name("copy")
    for first, second in itertools.combinations(range(SEGMENTS), 2):
        shutil.copytree(log_dir, copy)
        one, other = (segment_file(copy, number, suffix) for number in (first, second))
        data = one.read_bytes()
        one.write_bytes(other.read_bytes())
        other.write_bytes(data)
        with Store(copy, clock=clock, read_only=read_only) as store:
            hold(store[NAME])
            if not read_only:
                store[NAME].append([b"more"])
        shutil.rmtree(copy)


def keep_the_start(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:44])


@pytest.mark.drawn(12)
@pytest.mark.parametrize("ruin", [empty, zero, keep_the_start])
@pytest.mark.parametrize("is_compacted", [False, True])
@pytest.mark.parametrize("empties", [1, 2, SEGMENTS - 1])
@pytest.mark.parametrize("fills", [False, True])
def test_last_segments_without_a_batch_are_no_evidence_of_loss(
    ruin: Callable[[Path], None],
    is_compacted: bool,
    empties: int,
    fills: bool,
    log_dir: Path,
    clock: Clock,
) -> None:
    """If the file before them is short and the missing records were never durable, the log ends there, undamaged.

    The end of that file may also be zeros, as ext4 leaves bytes that were written to a block with free space.
    """
    fill(log_dir, clock)
    for path in (log_dir / ".kafka_cleanshutdown", log_dir / "recovery-point-offset-checkpoint"):
        path.unlink()
    if is_compacted:
        (log_dir / "cleaner-offset-checkpoint").write_text(f"0\n1\norders 0 {RECORDS}\n")
    short = SEGMENTS - 1 - empties
    log = segment_file(log_dir, short, ".log")
    log.write_bytes(log.read_bytes()[:-200] + bytes(200 if fills else 0))
    last = segment_file(log_dir, SEGMENTS - 1, ".log")
    start = last.read_bytes()[:44]
    for number in range(short + 1, SEGMENTS):
        ruin(segment_file(log_dir, number, ".log"))
    left = (short + 1) * RECORDS - 2
    assert errors_of(log_dir) == []
    with Store(log_dir, clock=clock, read_only=True) as store:
        hold(store[NAME], end=left)
    with Store(log_dir, clock=clock) as store:
        hold(store[NAME], end=left)
        assert store[NAME].append([b"more"]) == left
    assert errors_of(log_dir) == []
    kept = [path.read_bytes() for path in (log_dir / NAME).glob(f"{last.stem}.*.torn")]
    assert kept == ([start] if ruin is keep_the_start else [])


def test_offsets_are_not_reused_if_all_files_are_gone(log_dir: Path, clock: Clock) -> None:
    """After the loss of all .log files no new record gets the offset of a record that was durable."""
    fill(log_dir, clock)
    for path in (log_dir / NAME).glob("*.log"):
        path.unlink()
    with Store(log_dir, clock=clock) as store:
        assert store[NAME].append([b"more"]) == SEGMENTS * RECORDS
    assert len(errors_of(log_dir)) == 1
    shutil.rmtree(log_dir)


def test_the_audit_reports_a_missing_oldest_segment(log_dir: Path, clock: Clock) -> None:
    """The audit reports the oldest segment if something other than retention removed it, and only then."""
    fill(log_dir, clock)
    with Store(log_dir, clock=clock) as store:
        store.settings.set_topic("orders", "retention.bytes", "9000")
        assert store.retain() > 0
        first = store[NAME].log_start_offset
    assert errors_of(log_dir) == []
    for path in (log_dir / NAME).glob(names.stem(first) + ".*"):
        path.unlink()
    (error,) = errors_of(log_dir)
    assert f"offsets {first} to {first + RECORDS - 1} are missing" in error
    shutil.rmtree(log_dir)


@pytest.mark.parametrize("below", [RECORDS, RECORDS + 3, 2 * RECORDS + 1])
@pytest.mark.parametrize("read_only", [False, True])
def test_times_are_found_while_segments_below_the_log_start_exist(
    below: int, read_only: bool, log_dir: Path, clock: Clock
) -> None:
    """Records that were deleted by offset hide no other record from time lookups."""
    fill(log_dir, clock)
    begun = clock.now_ms
    with Store(log_dir, clock=clock) as store:
        store.delete_records(NAME, below)
    with Store(log_dir, clock=clock, read_only=read_only) as store:
        hold(store[NAME], first=below)
        first = next(iter(store[NAME].read()))
        found = store[NAME].offset_for_time(0)
        assert found is not None or below % RECORDS
        assert first.timestamp is not None
        assert first.timestamp < begun


class _Stopping(Disk):
    """A disk that raises `KeyboardInterrupt`, as for Ctrl-C, at one of the calls that change something."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.left = calls

    def _count(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt

    def write(self, *arguments: object) -> None:
        self._count()
        super().write(*arguments)  # type: ignore[arg-type]

    def truncate(self, *arguments: object) -> None:
        self._count()
        super().truncate(*arguments)  # type: ignore[arg-type]

    def rename_unsynced(self, *arguments: object) -> None:
        self._count()
        super().rename_unsynced(*arguments)  # type: ignore[arg-type]

    def unlink(self, *arguments: object) -> None:
        self._count()
        super().unlink(*arguments)  # type: ignore[arg-type]

    def sync(self, *arguments: object) -> None:
        self._count()
        super().sync(*arguments)  # type: ignore[arg-type]


def reindex(log_dir: Path, clock: Clock, disk: Disk) -> None:
    with Store(log_dir, clock=clock, disk=disk, recover=True):
        pass


def compact(log_dir: Path, clock: Clock, disk: Disk) -> None:
    with Store(log_dir, clock=clock, disk=disk) as store:
        store.compact(NAME)


@pytest.mark.parametrize("work", [reindex, compact])
def test_a_reindex_or_compaction_interrupted_at_any_call_leaves_a_readable_log(
    work: object, tmp_path: Path, clock: Clock
) -> None:
    """Reads are right after the interruption, and after the same operation has been repeated and finished."""
    assert callable(work)
    original = tmp_path / "original"
    fill(original, clock, "compact" if work is compact else "delete")
    step = 1 if DEEP else 6
    calls = seed_of() % step - step + 1
    finished = False
    while not finished:
        calls += step
        log_dir = tmp_path / f"log-{calls}"
        shutil.copytree(original, log_dir)
        disk = _Stopping(calls)
        with suppress(KeyboardInterrupt):
            work(log_dir, clock, disk)
        finished = disk.left > 0
        for _ in range(2):
            with Store(log_dir, clock=clock, read_only=True) as store:
                last = list(store[NAME].read())[-1]
                assert last.offset == SEGMENTS * RECORDS - 1
                assert store[NAME].newest(b"k") == last
                assert last.timestamp is not None
                found = store[NAME].offset_for_time(last.timestamp)
                assert found is not None
                assert found.offset == last.offset
                if work is reindex:
                    hold(store[NAME])
            assert errors_of(log_dir) == []
            work(log_dir, clock, Disk())
        shutil.rmtree(log_dir)
    assert calls > 10


def test_a_checked_disk_has_all_methods_of_a_disk() -> None:
    """A call that a `CheckedDisk` did not pass on would bypass the wrapped disk."""
    own = {name for name in vars(CheckedDisk) if not name.startswith("_")}
    own |= {"hold", "writable", "is_remote", "failure", "read_only"}
    # These call other methods of the `CheckedDisk`.
    own |= {"replacing", "open_locked", "is_in_place"}
    public = {name for name in vars(Disk) if not name.startswith("_")}
    assert public <= own


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("recover", [True, False])
@pytest.mark.parametrize("at", [RECORDS // 2, SEGMENTS * RECORDS - 5])
def test_an_empty_file_within_a_segment_is_ignored(
    log_dir: Path, clock: Clock, is_clean: bool, recover: bool, at: int
) -> None:
    """The file takes no appends and does not end the segment before it: nothing is cut off or damaged."""
    fill(log_dir, clock)
    (log_dir / NAME / f"{names.stem(at)}.log").touch()
    if not is_clean:
        (log_dir / ".kafka_cleanshutdown").unlink()
    with Store(log_dir, read_only=True, clock=clock) as store:
        hold(store[NAME])
    assert not errors_of(log_dir)
    with Store(log_dir, clock=clock, recover=recover) as store:
        hold(store[NAME])
        assert store[NAME].append([b"more"]) == SEGMENTS * RECORDS
    assert not errors_of(log_dir)
    assert not list((log_dir / NAME).glob("*.torn"))


@pytest.mark.parametrize("clean", [True, False])
def test_a_segment_under_a_wrong_name_keeps_its_bytes(
    log_dir: Path, clock: Clock, clean: bool
) -> None:
    """None of its batches is valid under that name, but they are whole: nothing is cut or written over."""
    fill(log_dir, clock)
    if not clean:
        (log_dir / ".kafka_cleanshutdown").unlink()
    path = segment_file(log_dir, SEGMENTS - 1, names.LOG)
    data = path.read_bytes()
    wrong = path.with_name(names.stem(1000) + names.LOG)
    path.rename(wrong)
    with Store(log_dir, clock=clock) as store:
        assert store[NAME].append([b"more"]) == 1001
    assert wrong.read_bytes() == data
    assert errors_of(log_dir)
    shutil.rmtree(log_dir)


def forget_recovery_point(log_dir: Path) -> None:
    (log_dir / "recovery-point-offset-checkpoint").unlink(missing_ok=True)


@pytest.mark.parametrize("compacted", [True, False])
@pytest.mark.parametrize("point", ["kept", "lost"])
@pytest.mark.parametrize("recover", [True, False])
def test_after_a_clean_close_nothing_is_cut(
    log_dir: Path, clock: Clock, compacted: bool, point: str, recover: bool
) -> None:
    """The marker says that all is durable: bad bytes at the end are damage, whatever the recovery point is.

    The next record gets an offset that no record has had, and `check` reports the damage before and after.
    """
    path = segment_file(log_dir, SEGMENTS - 1, names.LOG)

    def flip_last(data: bytearray) -> None:
        data[-20] ^= 1

    def cut_last(data: bytearray) -> None:
        del data[-30:]

    def add_bytes(data: bytearray) -> None:
        data += b"no batch" * 20

    def begin_with_the_last(data: bytearray) -> None:
        data[:170] = data[-170:]

    for ruin in (flip_last, cut_last, add_bytes, begin_with_the_last):
        shutil.rmtree(log_dir, ignore_errors=True)
        fill(log_dir, clock)
        if compacted:
            (log_dir / "cleaner-offset-checkpoint").write_text("0\n1\norders 0 1\n")
        if point == "lost":
            forget_recovery_point(log_dir)
        data = bytearray(path.read_bytes())
        ruin(data)
        path.write_bytes(data)
        assert errors_of(log_dir), ruin.__name__
        with Store(log_dir, clock=clock, recover=recover) as store:
            assert store[NAME].append([b"more"]) >= SEGMENTS * RECORDS, ruin.__name__
        assert path.read_bytes().startswith(data), ruin.__name__
        assert not list((log_dir / NAME).glob("*.torn"))
        assert errors_of(log_dir)
    shutil.rmtree(log_dir)


@pytest.mark.parametrize("compacted", [True, False])
def test_exchanged_files_lose_no_batch_in_recovery(
    log_dir: Path, clock: Clock, compacted: bool
) -> None:
    """Whole batches under a wrong name are damage, not a torn tail, and never hidden."""
    fill(log_dir, clock)
    (log_dir / ".kafka_cleanshutdown").unlink()
    forget_recovery_point(log_dir)
    if compacted:
        (log_dir / "cleaner-offset-checkpoint").write_text("0\n1\norders 0 1\n")
    files = [segment_file(log_dir, number, names.LOG) for number in (SEGMENTS - 2, SEGMENTS - 1)]
    before = [path.read_bytes() for path in files]
    for path, data in zip(files, reversed(before), strict=True):
        path.write_bytes(data)
    assert errors_of(log_dir)
    with Store(log_dir, clock=clock) as store, pytest.raises(Corrupt):
        list(store[NAME].read())
    assert [path.read_bytes() for path in files] == before[::-1]
    assert errors_of(log_dir)
    shutil.rmtree(log_dir)


@pytest.mark.parametrize("start", [SEGMENTS * RECORDS + 1, 2**63 - 1])
def test_a_log_start_beyond_the_end_deletes_nothing(
    log_dir: Path, clock: Clock, start: int
) -> None:
    """After a clean close that offset must be wrong: a bad digit in a file without a checksum deletes no record."""
    fill(log_dir, clock)
    path = log_dir / "log-start-offset-checkpoint"
    path.write_text(f"0\n1\norders 0 {start}\n")
    (error,) = errors_of(log_dir)
    assert f"should start at offset {start}" in error
    for read_only in (True, False):
        with Store(log_dir, clock=clock, read_only=read_only) as store:
            hold(store[NAME])
            assert store[NAME].log_start_offset == 0
    assert errors_of(log_dir) == []


@pytest.mark.parametrize("read_only", [True, False])
def test_an_emptied_segment_hides_no_later_time(
    log_dir: Path, clock: Clock, read_only: bool
) -> None:
    """The time of an emptied file is not the time of a record, so the lookup continues after it."""
    fill(log_dir, clock)
    empty(segment_file(log_dir, 1, names.LOG))
    with Store(log_dir, clock=clock, read_only=read_only) as store:
        for offset in range(2 * RECORDS, SEGMENTS * RECORDS):
            record = store[NAME].record(offset)
            assert record is not None
            assert record.timestamp is not None
            found = store[NAME].offset_for_time(record.timestamp)
            assert found is not None
            assert found.offset == offset
    shutil.rmtree(log_dir)


def test_an_empty_last_segment_has_no_entries(log_dir: Path, clock: Clock) -> None:
    """Its index files are ignored, even after a clean shutdown: an index full of zeros would take no new entry."""
    fill(log_dir, clock)
    end = SEGMENTS * RECORDS
    stem = log_dir / NAME / f"{end:020}"
    for suffix, size in ((".log", 0), (".index", 1 << 20), (".timeindex", 12 << 10)):
        with stem.with_suffix(suffix).open("wb") as file:
            file.truncate(size)
    with Store(log_dir, clock=clock, read_only=True) as store:
        assert len(list(store[NAME].read())) == end
    with Store(log_dir, clock=clock) as store:
        orders = store[NAME]
        for number in range(3):
            assert orders.append([b"later"]) == end + number
            orders.roll(clock.now_ms)
    assert not errors_of(log_dir)
