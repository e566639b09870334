"""What an opening makes of files that a crash, a hand or a disk has changed."""

from __future__ import annotations

import itertools
import shutil
import struct
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from logfs.format.base import names
from logfs.format.batches.record import Record
from logfs.log.disk.checked_disk import CheckedDisk
from logfs.log.disk.disk import Disk
from logfs.store.store import Store
from tests.support.requirements import DEEP
from tests.support.stores import errors_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from logfs.log.read.reader import Reader
    from tests.support.stores import Clock

NAME = "orders-0"
# Three sealed segments and the active one.
SEGMENTS = 4
RECORDS = 25
HOUR_MS = 3_600_000


def fill(log_dir: Path, clock: Clock, *, settings: dict[str, str] | None = None) -> None:
    """A log of some segments, closed cleanly; each record is a minute later than the one before."""
    with Store(log_dir, clock=clock) as store:
        for name, value in {"index.interval.bytes": "200", **(settings or {})}.items():
            store.settings.set_topic("orders", name, value)
        orders = store.create(NAME)
        for number in range(SEGMENTS * RECORDS):
            if number and number % RECORDS == 0:
                orders.roll(clock.now_ms)
            orders.append([Record(b"%d" % number + b"x" * 100, key=b"k")])
            clock.now_ms += 60_000


def hold(log: Reader, first: int = 0, end: int = SEGMENTS * RECORDS) -> None:
    """Every record is there, and is found by offset and by time."""
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


@pytest.mark.parametrize("ruin", [zero, leave_room, empty, cut_odd])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("read_only", [False, True])
def test_an_index_that_cannot_be_right_is_made_again(
    ruin: object, suffix: str, number: int, read_only: bool, log_dir: Path, clock: Clock
) -> None:
    """After a clean shutdown, in a segment below the recovery point; nothing is deleted on its word."""
    fill(log_dir, clock)
    assert callable(ruin)
    ruin(segment_file(log_dir, number, suffix))
    with Store(log_dir, clock=clock, read_only=read_only) as store:
        if not read_only:
            store.settings.set_topic("orders", "retention.ms", str(HOUR_MS * 24))
            assert store.retain() == 0
        hold(store[NAME])
    if read_only:
        # What a store that only reads has found wrong, the next one mends.
        with Store(log_dir, clock=clock) as store:
            hold(store[NAME])


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".textindex"])
def test_the_index_of_the_last_segment_is_made_again(
    suffix: str, log_dir: Path, clock: Clock
) -> None:
    """The same for the segment that appends go to."""
    for ruin in (zero, empty, cut_odd, leave_room):
        shutil.rmtree(log_dir, ignore_errors=True)
        fill(log_dir, clock)
        ruin(segment_file(log_dir, SEGMENTS - 1, suffix))
        with Store(log_dir, clock=clock) as store:
            hold(store[NAME])


def test_a_time_index_that_is_too_early_for_the_last_segment(log_dir: Path, clock: Clock) -> None:
    """Its last entry says that an earlier record is no later, and the log says that it is: the log is closed well."""
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
def test_an_entry_that_the_log_denies_is_not_believed(
    suffix: str, width: int, read_only: bool, log_dir: Path, clock: Clock
) -> None:
    """Whatever number an entry of Kafka's indexes holds, no lookup passes over a record."""
    fill(log_dir, clock)
    shutil.copytree(log_dir, log_dir.with_name("copy"))
    index = segment_file(log_dir.with_name("copy"), 1, suffix)
    text = segment_file(log_dir.with_name("copy"), 1, ".textindex")
    data = index.read_bytes()
    assert len(data) > 4 * width
    ends = (*range(0, 2 * width, 4), *range(len(data) - 2 * width, len(data), 4))
    for at in ends:
        for number in (0, 1, 700, 2**31 - 1, -1):
            index.write_bytes(data[:at] + number.to_bytes(4, "big", signed=True) + data[at + 4 :])
            # With it, Kafka's offset index would not be asked.
            text.unlink(missing_ok=True)
            with Store(log_dir.with_name("copy"), clock=clock, read_only=read_only) as store:
                hold(store[NAME])


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".textindex"])
@pytest.mark.parametrize("read_only", [False, True])
def test_exchanged_indexes_are_not_believed(
    suffix: str, read_only: bool, log_dir: Path, clock: Clock
) -> None:
    """Those of two segments in each other's place: no lookup misses a record, and the log goes on."""
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


@pytest.mark.parametrize("ruin", [empty, zero, keep_the_start])
@pytest.mark.parametrize("is_compacted", [False, True])
@pytest.mark.parametrize("empties", [1, 2])
@pytest.mark.parametrize("fills", [False, True])
def test_last_segments_without_a_batch_are_no_evidence_of_loss(
    ruin: Callable[[Path], None],
    is_compacted: bool,
    empties: int,
    fills: bool,
    log_dir: Path,
    clock: Clock,
) -> None:
    """The file before them is short, and nobody was promised what is missing: the log ends there, undamaged.

    Or its end is zeros, as ext4 leaves what was written to a block that has room.
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


def test_offsets_are_not_given_out_again_where_all_files_are_gone(
    log_dir: Path, clock: Clock
) -> None:
    """What was durable is lost, but its offsets are not another record's."""
    fill(log_dir, clock)
    for path in (log_dir / NAME).glob("*.log"):
        path.unlink()
    with Store(log_dir, clock=clock) as store:
        assert store[NAME].append([b"more"]) == SEGMENTS * RECORDS
    assert len(errors_of(log_dir)) == 1
    shutil.rmtree(log_dir)


def test_the_audit_misses_the_oldest_segment(log_dir: Path, clock: Clock) -> None:
    """Whoever removed it, it was not retention; and what retention takes is not missed."""
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
def test_times_are_found_while_segments_below_the_log_start_are_there(
    below: int, read_only: bool, log_dir: Path, clock: Clock
) -> None:
    """Records that were deleted by offset hide none of the others."""
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
    """A disk at which the process is interrupted, as by Ctrl-C, at one of the calls that change something."""

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

    def move(self, *arguments: object) -> None:
        self._count()
        super().move(*arguments)  # type: ignore[arg-type]

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
def test_work_that_is_interrupted_at_any_call_leaves_a_log_that_reads_right(
    work: object, tmp_path: Path, clock: Clock
) -> None:
    """Before anything mends it, and after the same work was begun again and finished."""
    assert callable(work)
    original = tmp_path / "original"
    settings = {"cleanup.policy": "compact"} if work is compact else {}
    fill(original, clock, settings=settings)
    calls = 0
    finished = False
    while not finished:
        calls += 1 if DEEP else 3
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


def test_a_watched_disk_has_all_that_a_disk_has() -> None:
    """A call that it does not pass on would go by the wrong files."""
    own = {name for name in vars(CheckedDisk) if not name.startswith("_")}
    own |= {"hold", "writable", "failure", "read_only"}
    public = {name for name in vars(Disk) if not name.startswith("_")}
    assert public <= own


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("recover", [True, False])
@pytest.mark.parametrize("at", [RECORDS // 2, SEGMENTS * RECORDS - 5])
def test_an_empty_file_within_a_segment_costs_nothing(
    log_dir: Path, clock: Clock, is_clean: bool, recover: bool, at: int
) -> None:
    """It is no segment to append to, nor evidence that the one before ends there: nothing is cut off or damaged."""
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
    """None of its batches can be one of the log there; the new segment does not take the place of its bytes."""
    fill(log_dir, clock)
    if not clean:
        (log_dir / ".kafka_cleanshutdown").unlink()
    path = segment_file(log_dir, SEGMENTS - 1, names.LOG)
    data = path.read_bytes()
    wrong = path.with_name(names.stem(1000) + names.LOG)
    path.rename(wrong)
    with Store(log_dir, clock=clock) as store:
        assert store[NAME].append([b"more"]) == (1000 if clean else SEGMENTS * RECORDS)
    assert data in [found.read_bytes() for found in (log_dir / NAME).iterdir()]
    assert errors_of(log_dir)
    shutil.rmtree(log_dir)


@pytest.mark.parametrize("start", [SEGMENTS * RECORDS + 1, 2**63 - 1])
def test_a_log_start_behind_the_end_takes_nothing(log_dir: Path, clock: Clock, start: int) -> None:
    """After a clean close it cannot be right: a wrong digit in a file without a checksum deletes no record."""
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
def test_a_segment_without_its_bytes_hides_no_time_behind_it(
    log_dir: Path, clock: Clock, read_only: bool
) -> None:
    """The time of the empty file is that of no record."""
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
    """Whatever its index files hold, under a clean marker too: an index full of zeros takes no entry more."""
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
