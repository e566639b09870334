"""The audit finds what is wrong, and nothing in a sound store (Kafka's tests of leader epochs)."""

from __future__ import annotations

import errno
import os
import struct
from typing import TYPE_CHECKING, Any

import pytest
from crc32c import crc32c

from logfs.errors import InvalidStore
from logfs.format.batches.batch import assign_offset
from logfs.format.batches.record import Record
from logfs.log.audit import audit
from logfs.store.observe.check import Finding, Severity, check
from logfs.store.store import Store
from tests.support.batches import Batches

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from logfs.log.segment.segment import Segment
    from tests.support.stores import Clock

NAME = "orders-0"


@pytest.fixture
def closed(tmp_path: Path, clock: Clock) -> Path:
    """A cleanly closed store with one partition of three segments, and an index entry for each batch."""
    path = tmp_path / "store"
    with Store(path, clock=clock) as store:
        store.settings.set_topic("orders", "index.interval.bytes", "0")
        orders = store.create(NAME)
        for n in range(30):
            orders.append([Record(b"value %d" % n, timestamp=1000 + n)])
            if n in (9, 19):
                orders.roll(clock())
    return path


def errors(path: Path) -> list[Finding]:
    """Return the findings that are errors."""
    return [finding for finding in check(path) if finding.severity is Severity.ERROR]


def edit(path: Path, position: int, data: bytes) -> None:
    """Overwrite bytes of a file."""
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def segment(path: Path, base: int, suffix: str) -> Path:
    """Return the path of a file of a segment."""
    return path / NAME / f"{base:020}{suffix}"


def test_a_sound_store_has_no_findings(closed: Path) -> None:
    """A store that was filled, rolled and closed has no findings at all."""
    assert list(check(closed)) == []
    assert list(check([closed])) == []


def test_an_open_store_has_no_errors(closed: Path, clock: Clock) -> None:
    """The audit may run beside a writer, and reports no error."""
    with Store(closed, clock=clock) as store:
        store[NAME].append([b"more"])
        assert errors(closed) == []


@pytest.mark.parametrize("base", [0, 10, 20])
def test_a_damaged_record_is_an_error(closed: Path, base: int) -> None:
    """A flipped byte in any segment is reported with its file and offsets."""
    path = segment(closed, base, ".log")
    edit(path, path.stat().st_size // 2, b"\xee")
    (found, *_) = errors(closed)
    assert found.path == path
    assert "damaged" in found.text
    assert str(found) == f"error: {path}: {found.text}"


def test_a_shifted_offset_entry_is_an_error(closed: Path) -> None:
    """An entry that does not point at its batch is reported (Kafka's testDumpIndexMismatches)."""
    path = segment(closed, 0, ".index")
    offset, position = struct.unpack(">ii", path.read_bytes()[16:24])
    edit(path, 16, struct.pack(">ii", offset, position + 1))
    assert [found.path for found in errors(closed)] == [path]


def test_a_time_entry_that_hides_records_is_an_error(closed: Path) -> None:
    """An entry whose timestamp is below that of an earlier record is reported (testDumpTimeIndexErrors)."""
    path = segment(closed, 0, ".timeindex")
    last = path.stat().st_size - 12
    timestamp, offset = struct.unpack(">qi", path.read_bytes()[last:])
    edit(path, last, struct.pack(">qi", timestamp - 1, offset))
    assert [found.path for found in errors(closed)] == [path]


def test_a_text_entry_that_miscounts_is_an_error(closed: Path) -> None:
    """A text index that does not agree with its log is reported, with what to do."""
    path = segment(closed, 10, ".textindex")
    data = bytearray(path.read_bytes())
    data[11] += 1
    path.write_bytes(data)
    (found,) = errors(closed)
    assert found.path == path
    assert "reindex" in found.text


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".textindex"])
def test_an_index_of_broken_length_is_an_error(closed: Path, suffix: str) -> None:
    """Bytes that are not a whole entry are reported (kafka-storage 3.8)."""
    path = segment(closed, 10, suffix)
    with path.open("ab") as file:
        file.write(b"abc")
    assert path in [found.path for found in errors(closed)]


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("entries", [1, 5])
def test_entries_of_zeros_are_an_error(closed: Path, suffix: str, entries: int) -> None:
    """Entries of zeros are reported: the index was never trimmed, or a disk has lost it.

    No valid entry is of zeros, not even that of the first batch.
    """
    path = segment(closed, 10, suffix)
    path.write_bytes(bytes(entries * (8 if suffix == ".index" else 12)))
    assert {found.path for found in errors(closed)} == {path}
    data = segment(closed, 0, suffix).read_bytes()
    segment(closed, 0, suffix).write_bytes(data + bytes(entries * 24))
    assert {found.path for found in errors(closed)} == {path, segment(closed, 0, suffix)}


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".textindex"])
def test_a_missing_index_of_a_sealed_segment_is_no_error(closed: Path, suffix: str) -> None:
    """Indexes are caches: a missing index is at most a note (rule 3)."""
    segment(closed, 10, suffix).unlink()
    assert errors(closed) == []


def test_missing_segments_are_an_error(closed: Path) -> None:
    """A gap between segments is reported; Kafka does not see it (kafka-storage 5.3)."""
    for suffix in (".log", ".index", ".timeindex", ".textindex"):
        segment(closed, 10, suffix).unlink()
    (found,) = errors(closed)
    assert "offsets 10 to 19" in found.text


def test_a_missing_end_is_an_error(closed: Path) -> None:
    """A log that ends below its recovery point is reported, because it has lost durable records."""
    for suffix in (".log", ".index", ".timeindex", ".textindex"):
        segment(closed, 20, suffix).unlink()
    assert any("was durable up to offset 30" in found.text for found in errors(closed))


def test_a_wrong_leader_epoch_is_an_error(closed: Path) -> None:
    """The leader epoch of a batch, which its CRC does not cover, is compared with the epoch file."""
    path = segment(closed, 10, ".log")
    data = bytearray(path.read_bytes())
    batch = next(iter(Batches(bytes(data))))
    assign_offset(data, batch.header.base_offset, 7)
    path.write_bytes(data)
    (found,) = errors(closed)
    assert "leader epoch 7" in found.text


@pytest.mark.parametrize(
    "name",
    ["recovery-point-offset-checkpoint", "log-start-offset-checkpoint", "meta.properties"],
)
def test_damaged_small_files_are_errors(closed: Path, name: str) -> None:
    """A checkpoint that cannot be read is tolerated by the store, and reported by the audit."""
    (closed / name).write_bytes(b"\xff\xfe")
    assert closed / name in [found.path for found in errors(closed)]


def test_bad_partition_metadata_is_an_error_and_missing_a_note(closed: Path) -> None:
    """Missing metadata is only noted: a broker treats the partition as a stray one (kafka-storage 1.10)."""
    path = closed / NAME / "partition.metadata"
    path.write_bytes(b"nonsense")
    assert [found.path for found in errors(closed)] == [path]
    path.unlink()
    (found,) = check(closed)
    assert (found.severity, found.path) == (Severity.NOTE, path)


def test_an_offline_partition_is_an_error(closed: Path) -> None:
    """A partition that cannot be loaded is reported with the reason."""
    (closed / NAME / "leader-epoch-checkpoint").write_bytes(b"x")
    (found,) = errors(closed)
    assert found.path == closed / NAME
    assert "cannot be loaded" in found.text


def test_kept_tails_are_a_note(closed: Path, clock: Clock) -> None:
    """A `.torn` file is reported, but is no error."""
    (closed / ".kafka_cleanshutdown").unlink()
    with segment(closed, 20, ".log").open("ab") as file:
        file.write(b"half a batch")
    Store(closed, clock=clock).close()
    (found,) = check(closed)
    assert found.severity is Severity.NOTE
    assert found.path.suffix == ".torn"


def test_the_audit_reports_its_progress_and_changes_nothing(closed: Path) -> None:
    """Every byte of every log is read, and nothing is written."""
    before = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in closed.rglob("*") if p.is_file()}
    total = 0

    def progress(name: str, size: int) -> None:
        nonlocal total
        assert name == NAME
        total += size

    list(check(closed, progress))
    assert total == sum(path.stat().st_size for path in (closed / NAME).glob("*.log"))
    after = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in closed.rglob("*") if p.is_file()}
    assert after == before


def test_a_missing_directory_is_refused(tmp_path: Path) -> None:
    """The audit of a missing directory is `InvalidStore`, and does not create it."""
    with pytest.raises(InvalidStore):
        list(check(tmp_path / "none"))
    assert not (tmp_path / "none").exists()


def test_damage_before_an_unreadable_segment_is_reported(
    closed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment that cannot be read ends the audit of its partition; the damage before it is reported."""
    damaged = segment(closed, 0, ".log")
    edit(damaged, damaged.stat().st_size - 1, b"!")

    def fail_at_the_second(subject: Segment, *arguments: Any, **named: Any) -> Iterator[Any]:
        if subject.base_offset == 10:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        yield from audit(subject, *arguments, **named)

    monkeypatch.setattr("logfs.store.observe.check.audit", fail_at_the_second)
    found = errors(closed)
    assert damaged in [each.path for each in found]
    assert "cannot be audited any further" in found[-1].text


def test_a_control_batch_that_cannot_be_read_is_an_error(closed: Path) -> None:
    """An unreadable control batch is reported, also with a right CRC: readers do not show it, only the audit can."""
    path = segment(closed, 0, ".log")
    data = bytearray(path.read_bytes())
    size = 12 + int.from_bytes(data[8:12], "big")
    data[21:23] = b"\xff\xff"
    data[17:21] = crc32c(bytes(data[21:size])).to_bytes(4, "big")
    path.write_bytes(data)
    with Store(closed, recover=True):
        pass
    (found,) = errors(closed)
    assert "a control batch that cannot be read: " in found.text


def test_an_unreadable_file_of_modes_is_an_error(closed: Path) -> None:
    """An unreadable `logfs.modes` is reported, because a mount answers EIO for such a partition."""
    path = closed / NAME / "logfs.modes"
    path.write_bytes(b"\xff")
    (found,) = errors(closed)
    assert found.path == path
    assert "remove the file to go back to defaults" in found.text
