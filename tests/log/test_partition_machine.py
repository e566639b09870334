"""Random operations on a partition, compared with a Python list."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from logfs.errors import OffsetOutOfRange
from logfs.format.base.names import TopicPartition
from logfs.format.batches.record import Record
from logfs.format.text import envelope
from logfs.format.text.rendering import View
from logfs.log.read.text_view import TextView
from logfs.store.store import Store
from tests.support.examples import examples
from tests.support.stores import Clock, assert_clean

if TYPE_CHECKING:
    from logfs.log.append.partition import Partition

NAME = "orders-0"
PREFIX = envelope.prefix(TopicPartition("orders", 0))
VALUES = st.binary(max_size=30) | st.sampled_from([b"", b"\xff", b'"', "ü".encode()])
RECORDS = st.lists(
    st.builds(
        Record,
        st.none() | VALUES,
        st.none() | st.binary(max_size=5),
        st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=5)), max_size=2).map(
            tuple
        ),
        st.integers(0, 5000),
    ),
    min_size=1,
    max_size=12,
)


class LogMachine(RuleBasedStateMachine):
    """Appends, rolls, truncations, restarts and reads, compared with `batches`: the records of each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.number = 0
        self.clock = Clock(10_000)
        self.batches: list[list[Record]] = []
        self.log_start = 0
        self.written_start = 0
        self.views: dict[View, tuple[TextView, int]] = {}
        self.store = Store(self.directory, clock=self.clock)

    @property
    def directory(self) -> Path:
        return self.root / str(self.number)

    @property
    def log(self) -> Partition:
        return self.store[NAME]

    @property
    def model(self) -> list[Record]:
        """All records; the index in the list is the offset."""
        return [record for batch in self.batches for record in batch]

    @property
    def end(self) -> int:
        return sum(map(len, self.batches))

    @initialize(
        segment_bytes=st.sampled_from([400, 1500, 10_000]),
        index_bytes=st.sampled_from([60, 400, 10_000]),
        interval=st.sampled_from([0, 100, 500]),
    )
    def create(self, segment_bytes: int, index_bytes: int, interval: int) -> None:
        self.store.create(NAME)
        for name, value in (
            ("segment.bytes", segment_bytes),
            ("segment.index.bytes", index_bytes),
            ("index.interval.bytes", interval),
        ):
            self.store.settings.set_topic("orders", name, str(value))

    def teardown(self) -> None:
        self.store.close()
        assert_clean(self.directory)
        shutil.rmtree(self.root)

    def took(self, records: list[Record]) -> None:
        """Note appended records, in the batches that the log made of them."""
        before = self.end
        for batch in self.log.batches(before):
            count = batch.header.record_count
            self.batches.append(records[:count])
            records = records[count:]
        assert records == []

    # Writing.

    @rule(records=RECORDS)
    def append(self, records: list[Record]) -> None:
        assert self.log.append(records) == self.end
        self.took(records)

    @rule(lines=st.lists(VALUES.map(lambda v: v.replace(b"\n", b"")), min_size=1, max_size=30))
    def append_lines(self, lines: list[bytes]) -> None:
        data = b"".join(line + b"\n" for line in lines)
        done = self.log.append_lines(data)
        assert (done.first_offset, done.consumed) == (self.end, len(data))
        assert done.refused is None
        self.took([Record(line, timestamp=self.clock.now_ms) for line in lines])
        assert done.last_offset == self.end - 1

    @rule(codec=st.sampled_from(["producer", "gzip", "snappy", "lz4", "zstd"]))
    def change_codec(self, codec: str) -> None:
        self.store.settings.set_topic("orders", "compression.type", codec)

    @rule(ms=st.integers(1, 1000))
    def wait(self, ms: int) -> None:
        self.clock.now_ms += ms

    @rule()
    def roll(self) -> None:
        self.log.roll(self.clock.now_ms)

    @rule()
    def flush(self) -> None:
        assert self.log.flush() == self.end

    @rule()
    def upkeep(self) -> None:
        self.clock.now_ms += 60_000
        self.store.upkeep()
        self.written_start = self.log_start

    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        offset = int(share * self.end)
        changed = offset < self.end
        first = self.log.segments[0].base_offset
        assert self.store.truncate(NAME, offset) == changed
        while self.end > offset:
            last = self.batches.pop()
            if offset < first and self.end < offset:
                # Retention has removed the batch, so it cannot be dropped as a whole: the log ends at the offset.
                self.batches.append(last[: offset - self.end])
        if changed:
            # A batch is dropped as a whole, so the log may end before the offset.
            self.log_start = self.written_start = min(self.log_start, offset, self.end)

    @precondition(lambda self: self.end > self.log_start)
    @rule(share=st.floats(0, 1))
    def advance_log_start(self, share: float) -> None:
        offset = self.log_start + int(share * (self.end - self.log_start))
        self.log.advance_log_start(offset)
        self.log_start = offset

    # Restarts.

    @rule(recover=st.booleans())
    def reopen(self, recover: bool) -> None:
        self.store.close()
        assert_clean(self.directory)
        self.store = Store(self.directory, clock=self.clock, recover=recover)
        self.written_start = self.log_start
        self.views.clear()

    @rule()
    def crash(self) -> None:
        """Simulate the end of the process, not of the machine: everything written is there, flushed or not."""
        shutil.copytree(self.directory, self.root / str(self.number + 1))
        self.store.close()
        shutil.rmtree(self.directory)
        self.number += 1
        self.store = Store(self.directory, clock=self.clock)
        # The log start may move back to the checkpointed one (kafka-storage 10.2).
        self.log_start = self.written_start
        self.views.clear()

    # Reading.

    @invariant()
    def ends_agree(self) -> None:
        if NAME in self.store:
            assert not self.store.offline
            assert self.log.log_end_offset == self.end
            assert self.log.log_start_offset == self.log_start
            assert self.log.recovery_point <= self.end

    @rule(first=st.floats(0, 1), last=st.floats(0, 1))
    def read_range(self, first: float, last: float) -> None:
        model = self.model
        start = self.log_start + int(first * (self.end - self.log_start))
        end = start + int(last * (self.end - start))
        expected = [
            (n, r.value, r.key, list(r.headers), r.timestamp)
            for n, r in enumerate(model[start:end], start)
        ]
        plain = list(self.log.read(start, end))
        for found in (plain, list(self.log.columns(start, end).records())):
            assert [
                (r.offset, r.value, r.key, list(r.headers), r.timestamp) for r in found
            ] == expected

    @rule(share=st.floats(0, 1))
    def read_one(self, share: float) -> None:
        offset = int(share * self.end)
        if self.log_start <= offset < self.end:
            record = self.log.record(offset)
            assert record is not None
            assert (record.offset, record.value) == (offset, self.model[offset].value)
            assert self.log.first_offset_from(offset) == offset
        else:
            with pytest.raises(OffsetOutOfRange):
                self.log.record(offset)
        last = self.log.last_offset()
        assert last == (self.end - 1 if self.end > self.log_start else None)

    @rule(timestamp=st.integers(0, 6000) | st.integers(9_000, 200_000))
    def find_time(self, timestamp: int) -> None:
        model = self.model
        expected = None
        for segment in self.log.segments:
            rows = [
                (n, model[n].timestamp) for n in range(segment.base_offset, segment.next_offset)
            ]
            if segment.next_offset <= self.log_start:
                # The segment is still on the disk, but below the log start.
                continue
            if rows and max(time for _, time in rows) >= timestamp:
                expected = next(
                    (row for row in rows if row[1] >= timestamp and row[0] >= self.log_start), None
                )
                break
        found = self.log.offset_for_time(timestamp)
        assert (found and found[:2]) == expected

    def text(self, view: View, start: int, end: int | None = None) -> bytes:
        rows = list(enumerate(self.model))[start:end]
        if view is View.LINES:
            return b"".join((record.value or b"") + b"\n" for _, record in rows)
        return b"".join(
            envelope.encode(Record(r.value, r.key, r.headers, r.timestamp, n), PREFIX)
            for n, r in rows
        )

    @rule(kind=st.sampled_from(list(View)), at=st.floats(0, 1), size=st.integers(0, 500))
    def read_text(self, kind: View, at: float, size: int) -> None:
        kept = self.views.get(kind)
        if kept is None or kept[0].generation != self.log.generation:
            kept = self.views[kind] = (TextView(self.log, kind), self.log_start)
        view, start = kept
        expected = self.text(kind, start)
        assert view.size == len(expected)
        position = int(at * len(expected))
        assert view.read(position, size) == expected[position : position + size]
        assert view.read(0, len(expected) + 1) == expected

    @rule(kind=st.sampled_from(list(View)), first=st.floats(0, 1), last=st.floats(0, 1))
    def read_text_range(self, kind: View, first: float, last: float) -> None:
        start = self.log_start + int(first * (self.end - self.log_start))
        end = start + int(last * (self.end - start))
        view = TextView(self.log, kind, start, end)
        expected = self.text(kind, start, end)
        assert (view.size, view.read(0, 1 << 20)) == (len(expected), expected)

    @rule(count=st.integers(0, 60))
    def find_last(self, count: int) -> None:
        assert self.log.offset_of_last(count) == max(self.end - count, self.log_start)


LogMachine.TestCase.settings = settings(examples(0.5), stateful_step_count=40)


class TestLogMachine(LogMachine.TestCase):
    """A partition and a list of batches stay equal through any sequence of operations (architecture.md 5)."""
