"""Splits of a log for readers in other processes: which records they give, and how they report damage."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from logfs.format.batches.batch import HEADER_SIZE, assign_offset, seal
from logfs.format.batches.columns import Columns
from logfs.format.batches.record import Record
from logfs.log.disk.disk import Gone
from logfs.log.scan import scan_split
from logfs.log.segment.batch_iterator import DamagedRange
from logfs.store.store import Store
from tests.log.test_partition import NAME
from tests.support.batches import NOW, batch
from tests.support.partitions import by_splits, log, raw_batch, raw_partition
from tests.support.stores import set_topic

if TYPE_CHECKING:
    from pathlib import Path


def test_an_aborted_batch_after_a_gap_is_left_out_of_splits(log_dir: Path) -> None:
    """An aborted batch at the end of a segment, after offsets that compaction removed, is left out like any other."""
    with Store(log_dir, clock=lambda: NOW) as store:
        orders = store.create(NAME)
        for value in (b"a", b"b", b"c"):
            orders.append([value])
        orders.append_batch(batch(1, 0, b"B", transactional=True))
        orders.roll(NOW)
        orders.end_transaction(1, 0, commit=False)
        orders.append([b"d"])
        parts = [bytes(each.data) for each in orders.batches(0)]
        path = orders.segments[0].path
    path.write_bytes(parts[0] + parts[3])
    for suffix in ("index", "timeindex", "textindex"):
        path.with_suffix(f".{suffix}").unlink(missing_ok=True)
    (log_dir / "cleaner-offset-checkpoint").write_text("0\n1\norders 0 3\n")
    with Store(log_dir, read_only=True) as store:
        orders = store[NAME]
        assert [record.value for record in orders.committed.read()] == [b"a", b"d"]
        assert [record.offset for record in by_splits(orders.committed)] == [0, 5]
        assert [record.offset for record in by_splits(orders)] == [0, 3, 5]


@pytest.mark.parametrize("codec", [0, 1])
@pytest.mark.parametrize("gap", [0, 5])
def test_a_batch_with_malformed_records_is_reported_within_a_split(
    tmp_path: Path, codec: int, gap: int
) -> None:
    """A batch with a valid checksum and malformed records is reported as damage, and reading continues after it."""
    malformed = bytearray(HEADER_SIZE) + b"no record"
    seal(
        malformed,
        attributes=codec,
        last_offset_delta=0,
        base_timestamp=NOW,
        max_timestamp=NOW,
        record_count=1,
    )
    assign_offset(malformed, 1 + gap, 0)
    good = [raw_batch([Record(b"a")], 0), raw_batch([Record(b"c")], 2 + gap)]
    raw_partition(tmp_path, {log(0): good[0] + malformed + good[1]})
    if gap:
        (tmp_path / "cleaner-offset-checkpoint").write_text("0\n1\norders 0 1\n")
    with Store(tmp_path, read_only=True) as store:
        orders = store[NAME]
        (piece,) = scan_split.plan(orders, 0, orders.log_end_offset, split_bytes=1 << 20)
        before, error, after = scan_split.read(piece)
        assert isinstance(error, DamagedRange)
        assert (error.first_offset, error.next_offset) == (1 + gap, 2 + gap)
        assert isinstance(before, Columns)
        assert isinstance(after, Columns)
        assert (before.offsets.tolist(), after.offsets.tolist()) == ([0], [2 + gap])


def test_a_split_of_a_segment_that_has_left_the_log_is_gone(log_dir: Path) -> None:
    """Even while its file is kept under another name: its records are in the segment that replaced it."""
    with Store(log_dir, clock=lambda: NOW) as store:
        set_topic(store, "orders", cleanup_policy="compact")
        orders = store.create(NAME)
        for _ in range(2):
            orders.append([Record(b"x", b"key")])
            orders.roll(NOW)
        pieces = [*scan_split.plan(orders, 0, orders.log_end_offset, split_bytes=1 << 20)]
        assert [len(columns) for piece in pieces for columns in scan_split.read(piece)] == [1, 1]
        store.compact(NAME)
        assert list((log_dir / NAME).glob("*.log.deleted"))
        for piece in pieces:
            with pytest.raises(Gone):
                list(scan_split.read(piece))


def test_a_reader_that_has_not_looked_again_learns_that_a_segment_has_left(log_dir: Path) -> None:
    """`has_left` looks at the log as it is now."""
    with Store(log_dir, clock=lambda: NOW) as store:
        orders = store.create(NAME)
        orders.append([b"a"])
        orders.roll(NOW)
        orders.append([b"b"])
        with Store(log_dir, read_only=True) as other:
            reader = other[NAME]
            first, last = scan_split.plan(reader, 0, 2, split_bytes=1 << 20)
            assert [each.segment.has_left(reader) for each in (first, last)] == [False, False]
            store.delete_records(NAME, 1)
            store.retain()
            assert [each.segment.has_left(reader) for each in (first, last)] == [True, False]
            store.truncate(NAME, 1)
            assert last.segment.has_left(reader)
