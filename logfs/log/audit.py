"""The audit of a segment: its log and its indexes are compared in one pass, in compiled loops.

Offsets and transactions continue from one segment to the next, but segments can be audited in any order and by
several processes: the audit of a segment yields an `Account` of its offsets and transactions. From all accounts,
`check_boundaries` reports what is wrong between segments.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from logfs.errors import Corrupt, LogfsError
from logfs.format.base.batch_rows import (
    ATTRIBUTES,
    LEADER_EPOCH,
    MAX_TIMESTAMP,
    NEXT_OFFSET,
    POSITION,
    SPAN_BASE_OFFSET,
    SPAN_COUNT,
)
from logfs.format.batches.batch import CONTROL_BIT, TRANSACTIONAL_BIT
from logfs.format.files.aborted_transactions import AbortedTransaction
from logfs.format.messages.control import ControlType, end_of_transaction
from logfs.format.text.rendering import NO_TEXT
from logfs.log.disk.disk import Gone
from logfs.log.segment.batch_iterator import Damage
from logfs.log.segment.batch_scanner import scan_ahead, text_size
from logfs.log.segment.txn_index import aborted_in

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from logfs.format.batches.batch import Batch
    from logfs.format.text.rendering import TextSize
    from logfs.log.segment.batch_scanner import ScannedBatches
    from logfs.log.segment.segment import Segment

    Epochs = Sequence[tuple[int, int]]

# The entries of the index files (kafka-storage 3.1, 3.2, and `TextIndex`).
_OFFSETS = np.dtype([("offset", ">i4"), ("position", ">i4")])
_TIMES = np.dtype([("timestamp", ">i8"), ("offset", ">i4")])
_TEXTS = np.dtype(
    [
        *(("offset", ">i4"), ("position", ">i4"), ("records", ">i4"), ("lines", ">i8")),
        *(("json", ">i8"), ("crc", ">u4")),
    ]
)
_ADVICE = "; run 'logfs reindex'"
# Stands for the leader epoch of an offset that no entry of the epoch file covers.
_NO_EPOCH = -1


class Severity(enum.IntEnum):
    """The severity of a finding: NOTE is worth knowing, ERROR means that something is lost or wrong."""

    NOTE = 0
    ERROR = 1


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem in the file at `path`; `text` says what it is."""

    severity: Severity
    path: Path
    text: str

    def __str__(self) -> str:
        return f"{self.severity.name.lower()}: {self.path}: {self.text}"


def error(path: Path, text: str) -> Finding:
    """Return a finding that something in the file at `path` is lost or wrong; `text` says what."""
    return Finding(Severity.ERROR, path, text)


def note(path: Path, text: str) -> Finding:
    """Return a finding about the file at `path` that is worth knowing but no loss; `text` says what it is."""
    return Finding(Severity.NOTE, path, text)


def _index_error(segment: Segment, path: Path, text: str) -> Finding:
    """Return a finding that an index of a segment is wrong. Its text ends with what to do about the index."""
    # No command can rebuild an index in a bucket.
    advice = "; lookups check it, and read the log instead" if segment.disk.is_remote else _ADVICE
    return error(path, text.removesuffix(_ADVICE) + advice)


@dataclass
class Account:
    """Facts about a segment that `check_boundaries` needs: its end, and the transactions that cross its boundaries.

    - `gaps`: whether missing offsets are normal in the segment, because its log is compacted.
    - `began`: for each producer id with a transaction open at the segment's end, the base offset of the transaction's
      first batch in the segment.
    - `over`: for each producer id with commit or abort markers in the segment, the offsets of these markers.
    - `missing`: the transactions with an abort marker in the segment, but without an entry in its transaction index.
      Their `first_offset` is the base offset of the transaction's first batch in the segment, or -1 if the segment
      has no such batch. Their `last_stable_offset` is always -1.
    """

    path: Path
    txn_index: Path
    base_offset: int
    gaps: bool
    end_offset: int
    records: int = 0
    began: dict[int, int] = field(default_factory=dict)
    over: dict[int, list[int]] = field(default_factory=dict)
    missing: list[AbortedTransaction] = field(default_factory=list)


def audit(
    segment: Segment,
    epochs: Epochs,
    *,
    trusts_indexes: bool = True,
    live: bool = False,
    log_start_offset: int = 0,
    report: Callable[[int], object] = lambda _: None,
) -> Iterator[Finding | Account]:
    """Read a segment and its indexes. Yield the problems that are found, and last the segment's `Account`.

    Checks every batch: its CRC, its records, its offsets, and its leader epoch against `epochs`, the pairs (epoch,
    start offset) in ascending order. The indexes are checked only with `trusts_indexes`, and only if recovery found
    no damage in the segment. `trusts_indexes` must be False if they may be incomplete, as after a crash. `live` means
    that another process writes the log: it is then no problem if the last entry of an index is missing or the index
    ends in preallocated space.

    Damage, such as missing offsets, yields only a note if it lies wholly below `log_start_offset`, because its
    records were deleted anyway. `report` is called with the size in bytes of each part that was read: some batches,
    or a damaged range. Raises `OSError`, and `Gone` if another process removes or cuts files meanwhile.
    """
    # Offsets must not be missing between remote segments: a topic is not compacted while it is tiered.
    gaps = segment.gaps and not segment.disk.is_remote
    account = Account(
        segment.path, segment.txn_index.path, segment.base_offset, gaps, segment.base_offset
    )
    transactions = _TransactionAudit(segment, account)
    indexes: list[_IndexAudit] = []
    if trusts_indexes and not segment.damaged:
        indexes = yield from _sound_indexes(segment, live=live)
    text = NO_TEXT
    for found in scan_ahead(
        segment, 0, segment.base_offset, lambda scanned: _check_batches(segment, scanned)
    ):
        if isinstance(found, Damage):
            if found.end == segment.size_bytes:
                # The offset at which damage ends is known only at the segment's end: it is `next_offset`.
                found = found._replace(next_offset=max(found.next_offset, segment.next_offset))
            is_below = found.first_offset < log_start_offset >= found.next_offset
            yield (note if is_below else error)(segment.path, str(found))
            transactions.pass_damage(found)
            for index in indexes:
                index.pass_damage(found)
            text = text.plus(text_size(found))
            account.end_offset = found.next_offset
            report(found.end - found.start)
            continue
        batches, findings = found
        yield from findings
        if batches.legacy is None:
            # Batches of old formats have no leader epoch.
            yield from _check_epochs(segment, batches, epochs)
        of_transactions = batches.rows[:, ATTRIBUTES] & (TRANSACTIONAL_BIT | CONTROL_BIT) != 0
        for batch in batches.select(of_transactions).batches():
            yield from transactions.note(batch)
        for index in indexes:
            yield from index.hold_against(batches, text)
        text = text.plus(batches.text)
        account.end_offset = batches.next_offset
        report(batches.end - int(batches.positions[0]))
    for index in indexes:
        yield from index.finish(segment.size_bytes, text)
    if trusts_indexes and not segment.damaged:
        yield from transactions.look_up()
    account.records = text.records
    if segment.is_tiered:
        # Use the end that the metadata has: if the log was compacted before it was tiered, the segment's last offsets
        # may be missing.
        account.end_offset = max(account.end_offset, segment.next_offset)
    yield account


def check_boundaries(accounts: Iterable[Account], log_start_offset: int) -> Iterator[Finding]:
    """Yield the problems that show only between segments, from the accounts of all segments of a partition.

    These are missing or repeated offsets, and aborted transactions without an entry in the transaction index.
    `accounts` must be in ascending order of offsets. Transactions that began below `log_start_offset` are not
    reported.
    """
    expected: int | None = None
    open_since: dict[int, int] = {}
    for account in accounts:
        if expected is not None and account.base_offset != expected and not account.gaps:
            what = "are missing" if account.base_offset > expected else "appear twice"
            low, high = sorted((expected, account.base_offset))
            yield error(account.path, f"offsets {low} to {high - 1} {what}")
        expected = None if account.gaps else account.end_offset
        for producer_id, first_offset, last_offset, _ in account.missing:
            if last_offset == account.over[producer_id][0]:
                # Of a producer's transactions that end in a segment, only the first can begin in an earlier segment.
                first_offset = open_since.get(producer_id, first_offset)
            # Do not report a transaction that began below the log start: recovery may have seen only a part of it.
            if first_offset >= log_start_offset:
                yield error(
                    account.txn_index,
                    f"the index entry of producer {producer_id}'s transaction that was aborted at offset "
                    f"{last_offset} is missing{_ADVICE}",
                )
        for producer_id in account.over:
            open_since.pop(producer_id, None)
        open_since = account.began | open_since


# The audit of batches.


def _check_batches(
    segment: Segment, scanned: ScannedBatches
) -> tuple[ScannedBatches, list[Finding]]:
    """Return scanned batches with their text sizes, and an error for each batch with wrong records.

    Any thread may call this.
    """
    start, rows = scanned.position, scanned.rows
    measured = scanned.measure_plainly()
    if measured is not None:
        texts, edges = measured
        findings = list(_outside(segment, start, rows[texts[:, 0] > 0], edges[texts[:, 0] > 0]))
    else:
        texts = np.zeros((len(rows), 3), np.int64)
        findings = list(_check_columns(segment, scanned, texts))
    return scanned._replace(sizes=texts), findings


def _check_columns(
    segment: Segment, scanned: ScannedBatches, texts: NDArray[np.int64]
) -> Iterator[Finding]:
    """Write the text size of each batch to its row in `texts`, and yield an error for each batch with wrong records.

    `texts` is int64[batches, 3]: the number of records, and the bytes of their text as lines and as envelopes.
    """
    rows, start = scanned.rows, scanned.position
    done = 0
    for columns, group, sizes in scanned.measure():
        first = done + int(np.searchsorted(rows[done:, POSITION], group[0, POSITION]))
        done = first + len(group)
        texts[first:done] = sizes
        if isinstance(columns, Corrupt):
            yield _odd_batch(segment, start, group[0], str(columns))
            continue
        counts = group[:, SPAN_COUNT]
        ends = np.cumsum(counts)
        filled = counts > 0
        firsts, lasts = (ends - counts)[filled], ends[filled] - 1
        edges = np.column_stack((columns.offsets[firsts], columns.offsets[lasts]))
        yield from _outside(segment, start, group[filled], edges)
        # Records whose successor has no higher offset. The last record of a batch is left out below, because its
        # successor is in another batch.
        fails = np.flatnonzero(columns.offsets[1:] <= columns.offsets[:-1])
        batches = np.searchsorted(ends, fails, side="right")
        for number in np.unique(batches[ends[batches] - 1 > fails]).tolist():
            yield _odd_batch(
                segment, start, group[number], "the offsets of its records do not rise"
            )


def _outside(
    segment: Segment, start: int, rows: NDArray[np.int64], edges: NDArray[np.int64]
) -> Iterator[Finding]:
    """Yield an error for each batch whose first or last record has an offset outside the range in the batch header.

    `rows` describes the batches, and `edges`, int64[batches, 2], has the offsets of these two records. The positions
    in `rows` count from the byte `start` of the .log file. The caller must leave out batches without records.
    """
    inside = (edges[:, 0] >= rows[:, SPAN_BASE_OFFSET]) & (edges[:, 1] < rows[:, NEXT_OFFSET])
    for row in rows[~inside]:
        yield _odd_batch(segment, start, row, "its records lie outside its offsets")


def _odd_batch(segment: Segment, start: int, row: NDArray[np.int64], text: str) -> Finding:
    position = start + int(row[POSITION])
    return error(segment.path, f"batch {row[SPAN_BASE_OFFSET]} at byte {position}: {text}")


def _check_epochs(segment: Segment, batches: ScannedBatches, epochs: Epochs) -> Iterator[Finding]:
    """Yield an error for each batch whose leader epoch differs from the one in `epochs` (kafka-storage 10.1)."""
    if not epochs:
        return
    table, rows = np.array(epochs, np.int64), batches.rows
    numbers = np.searchsorted(table[:, 1], rows[:, SPAN_BASE_OFFSET], side="right") - 1
    expected = np.where(numbers >= 0, table[numbers, 0], _NO_EPOCH)
    found = rows[:, LEADER_EPOCH]
    wrong = (expected != _NO_EPOCH) & (found != expected)
    for number in np.flatnonzero(wrong).tolist():
        text = f"leader epoch {found[number]}, but the epoch file has {expected[number]}"
        yield _odd_batch(segment, batches.position, rows[number], text)


# The audit of indexes.


class _IndexAudit:
    """The audit of one index while the log is read. The entries after a wrong entry are not checked.

    `rising` has the names of the fields whose values rise from entry to entry, each with a value that the first entry
    must exceed. The first of these fields is the position or the offset in the log to which an entry points.
    """

    dtype: np.dtype[np.void]
    # The fields whose values rise from entry to entry, each with a value that the first entry must exceed. For a
    # position this is 0, because the first batch never has an entry (kafka-storage 3.3). `_take` selects entries by
    # the first of these fields.
    rising: Sequence[tuple[str, int]]
    # Whether entries at the end of the index were left out.
    _is_cut_short = False

    def __init__(self, segment: Segment, path: Path, data: bytes, *, live: bool) -> None:
        self.path = path
        self.entries = np.frombuffer(data, self.dtype)
        self.base_offset = segment.base_offset
        self.live = live
        self._segment = segment
        self._keys = self.entries[self.rising[0][0]].astype(np.int64)
        self._done = 0

    def leave_out_room(self) -> None:
        """Ignore entries of zeros at the end, which are preallocated space."""
        width = self.dtype.itemsize
        used = np.flatnonzero(self.entries.view(np.uint8).reshape(-1, width).any(axis=1))
        self._keep(int(used[-1]) + 1 if len(used) else 0)

    def check_order(self) -> Iterator[Finding]:
        """Check that the values of each field in `rising` rise; yield an error for the first entry where they do not.

        This entry and all later entries are dropped.
        """
        for name, least in self.rising:
            back = np.flatnonzero(np.diff(self.entries[name].astype(np.int64), prepend=least) <= 0)
            if len(back):
                yield self._wrong(f"entry {back[0]} is out of order")
                self._keep(int(back[0]))

    def hold_against(self, batches: ScannedBatches, text: TextSize) -> Iterator[Finding]:
        """Check the entries that point into `batches`; yield the first error.

        `text` is the size, as text, of the segment's records before `batches`.
        """
        raise NotImplementedError

    def pass_damage(self, damage: Damage) -> None:
        """Skip bytes that are not batches. The entries for these bytes and all later entries are not checked."""
        self._keep(self._done)

    def finish(self, size: int, text: TextSize) -> Iterator[Finding]:
        """Check the entries that remain after the last batch; yield the errors.

        `size` is the size of the segment in bytes, and `text` the size of all its records as text.
        """
        raise NotImplementedError

    def _take(self, limit: int) -> NDArray[np.void]:
        """Return the entries below `limit` that no earlier call has returned.

        An entry is below `limit` if its value of the first field in `rising` is.
        """
        first, self._done = self._done, max(int(np.searchsorted(self._keys, limit)), self._done)
        return self.entries[first : self._done]

    def _keep(self, count: int) -> None:
        self.entries, self._keys = self.entries[:count], self._keys[:count]
        self._is_cut_short = True

    def _wrong(self, text: str) -> Finding:
        return _index_error(self._segment, self.path, text)


class _OffsetIndexAudit(_IndexAudit):
    """The audit of an offset index. An entry has the position and the last offset of a batch.

    If a follower has appended several batches at once, an entry has the position of the first of these batches and
    the last offset of the last one (kafka-storage 3.3).
    """

    dtype, rising = _OFFSETS, (("position", 0), ("offset", -1))
    # The (offset, position) of an entry whose offset must be the last offset of a batch that was not read yet.
    _awaited: tuple[int, int] | None = None

    def pass_damage(self, damage: Damage) -> None:
        """Skip the entries for the damaged bytes. Later entries are checked."""
        self._take(damage.end)

    def hold_against(self, batches: ScannedBatches, text: TextSize) -> Iterator[Finding]:
        entries = self._take(batches.end)
        positions = entries["position"].astype(np.int64)
        offsets = entries["offset"].astype(np.int64) + self.base_offset
        starts, last_offsets = batches.positions, batches.rows[:, NEXT_OFFSET] - 1
        at = np.maximum(np.searchsorted(starts, positions, side="right") - 1, 0)
        ends = np.searchsorted(last_offsets, offsets)
        is_later = ends == len(last_offsets)
        is_end = last_offsets[np.minimum(ends, len(last_offsets) - 1)] == offsets
        right = (starts[at] == positions) & (ends >= at) & (is_end | is_later)
        if self._awaited is not None and self._awaited[0] <= int(last_offsets[-1]):
            awaited, self._awaited = self._awaited, None
            if awaited[0] not in last_offsets:
                yield self._without_batch(*awaited)
                return
        if is_later.any():
            self._awaited = int(offsets[is_later][0]), int(positions[is_later][0])
        for number in np.flatnonzero(~right)[:1]:
            yield self._without_batch(int(offsets[number]), int(positions[number]))

    def finish(self, size: int, text: TextSize) -> Iterator[Finding]:
        if self._awaited is not None:
            yield self._without_batch(*self._awaited)
        for offset, position in self.entries[self._done :][:1].tolist():
            yield self._without_batch(self.base_offset + offset, position)

    def _without_batch(self, offset: int, position: int) -> Finding:
        self._keep(self._done)
        return self._wrong(f"no batch with last offset {offset} at byte {position}")


class _TimeIndexAudit(_IndexAudit):
    """The audit of a time index.

    An entry has an offset, and the greatest timestamp of the records up to this offset (kafka-storage 3.2).
    """

    dtype, rising = _TIMES, (("offset", -1),)
    _largest = -1

    def hold_against(self, batches: ScannedBatches, text: TextSize) -> Iterator[Finding]:
        rows = batches.rows
        latest = np.maximum(np.maximum.accumulate(rows[:, MAX_TIMESTAMP]), self._largest)
        entries = self._take(batches.next_offset - self.base_offset)
        offsets = entries["offset"].astype(np.int64) + self.base_offset
        expected = latest[np.searchsorted(rows[:, NEXT_OFFSET] - 1, offsets)]
        yield from self._check(entries, expected)
        self._largest = int(latest[-1])

    def finish(self, size: int, text: TextSize) -> Iterator[Finding]:
        rest = self.entries[self._done :]
        yield from self._check(rest, np.full(len(rest), self._largest))
        if len(rest) and not self.live and not self._is_cut_short:
            beyond = self.base_offset + int(rest["offset"][0])
            yield self._wrong(f"offset {beyond} is after the last batch")
        # A closed segment has an entry with its greatest timestamp (kafka-storage 3.5). If the segment is `live`, the
        # writer may not have written this entry yet.
        told = int(self.entries["timestamp"][-1]) if len(self.entries) else -1
        if not self._is_cut_short and not self.live and told < self._largest:
            yield self._wrong(
                f"its last timestamp is {told}, but the latest in the log is {self._largest}"
            )

    def _check(self, entries: NDArray[np.void], expected: NDArray[np.int64]) -> Iterator[Finding]:
        for number in np.flatnonzero(entries["timestamp"] != expected)[:1]:
            offset, timestamp = entries[number]["offset"], entries[number]["timestamp"]
            yield self._wrong(
                f"the latest timestamp up to offset {self.base_offset + int(offset)} is {expected[number]}, not "
                f"{timestamp}"
            )
            self._keep(self._done)


class _TextIndexAudit(_IndexAudit):
    dtype, rising = _TEXTS, (("position", 0),)

    def hold_against(self, batches: ScannedBatches, text: TextSize) -> Iterator[Finding]:
        entries = self._take(batches.end)
        if not len(entries):
            return
        assert batches.sizes is not None
        before = np.cumsum(batches.sizes, axis=0) - batches.sizes + np.array(text)
        starts = batches.positions
        at = np.searchsorted(starts, entries["position"].astype(np.int64), side="right")
        yield from self._check(entries, starts[np.maximum(at - 1, 0)], before[at - 1])

    def finish(self, size: int, text: TextSize) -> Iterator[Finding]:
        rest = self.entries[self._done :]
        yield from self._check(
            rest, np.full(len(rest), size), np.tile(np.array(text), (len(rest), 1))
        )

    def _check(
        self, entries: NDArray[np.void], positions: NDArray[np.int64], texts: NDArray[np.int64]
    ) -> Iterator[Finding]:
        wrong = entries["position"] != positions
        for number, name in enumerate(("records", "lines", "json")):
            wrong |= entries[name] != texts[:, number]
        for first in np.flatnonzero(wrong)[:1]:
            position = entries[first]["position"]
            yield self._wrong(f"the entry for byte {position} of the log is wrong")
            self._keep(self._done)


def _sound_indexes(segment: Segment, *, live: bool) -> Generator[Finding, None, list[_IndexAudit]]:
    """Return the audits of the indexes that can be compared with the log.

    Yields an error for an index that is damaged or out of order, and a note for one that is missing. `live` means
    that another process writes the log, so that every index may end in preallocated space.
    """
    found: list[_IndexAudit] = []
    kinds = (_OffsetIndexAudit, _TimeIndexAudit, _TextIndexAudit)
    for index, kind in zip(segment.indexes, kinds, strict=True):
        try:
            index.check_sane()
        except Gone:
            raise
        except LogfsError as why:
            yield _index_error(segment, index.path, str(why).removeprefix(f"{index.path}: "))
            continue
        if not index.exists():
            yield note(index.path, "missing; it is rebuilt when it is needed")
            continue
        held = kind(segment, index.path, index.file_bytes(), live=live)
        if live or isinstance(held, _TextIndexAudit):
            # A live writer has not trimmed its indexes yet. A text index may have preallocated space even later: a
            # crash may leave it, and a broker that seals the segment afterwards does not remove it.
            held.leave_out_room()
        if isinstance(held, _TextIndexAudit):
            damaged = segment.text_index.check_entries(held.entries.tobytes())
            if damaged is not None:
                yield _index_error(segment, index.path, f"entry {damaged} is damaged")
                continue
        yield from held.check_order()
        found.append(held)
    return found


# The audit of transactions.


class _TransactionAudit:
    """The check that a segment's transaction index has the aborted transactions of its log (kafka-storage 9.5)."""

    def __init__(self, segment: Segment, account: Account) -> None:
        self._segment = segment
        self._account = account
        # For each abort marker, by (producer id, offset): the offset of the producer's previous marker, and the first
        # offset of the transaction. Each of the two is -1 if it is not in the segment.
        self._aborts: dict[tuple[int, int], tuple[int, int]] = {}
        self._unread: list[Damage] = []

    def note(self, batch: Batch) -> Iterator[Finding]:
        """Note the next transactional or control batch; yield an error for a control batch that cannot be read."""
        header, account = batch.header, self._account
        producer_id, offset = header.producer_id, header.base_offset
        if not header.is_control:
            account.began.setdefault(producer_id, offset)
            return
        try:
            marker = end_of_transaction(batch)
        except Corrupt as why:
            offsets = f"offsets {offset} to {header.last_offset}"
            yield error(
                self._segment.path, f"{offsets}: a control batch that cannot be read: {why}"
            )
            return
        if marker is None or not header.is_transactional:
            return
        markers = account.over.setdefault(producer_id, [])
        before = markers[-1] if markers else -1
        markers.append(offset)
        first = account.began.pop(producer_id, -1)
        if marker.control_type is ControlType.ABORT:
            self._aborts[producer_id, offset] = before, first

    def pass_damage(self, damage: Damage) -> None:
        """Expect no markers for the entries whose markers are damaged."""
        self._unread.append(damage)

    def look_up(self) -> Iterator[Finding]:
        """Compare the transaction index with the abort markers in the log, after the last call of `note`.

        Adds the aborted transactions that the index lacks to `Account.missing`. Yields at most two errors: one for
        the first entry that matches no aborted transaction in the log, and one for the first entry whose last stable
        offset is beyond its marker. If the index is malformed, yields only an error that says so.
        """
        index, account = self._segment.txn_index, self._account
        try:
            firsts = {
                (each.producer_id, each.last_offset): each.first_offset for each in index.entries
            }
        except Corrupt as why:
            yield error(index.path, str(why))
            return
        unread = {
            (each.producer_id, each.last_offset)
            for damage in self._unread
            for each in aborted_in(index.entries, damage)
        }
        wrong = {
            key
            for key, (before, first) in self._aborts.items()
            if first >= 0 and key in firsts and not before < firsts[key] <= first
        }
        if not self._segment.gaps:
            # An entry without a marker is wrong only in a log that is not compacted: compaction may remove markers.
            wrong |= firsts.keys() - self._aborts.keys() - unread
        for producer_id, offset in sorted(wrong)[:1]:
            text = f"the entry of producer {producer_id} that ends at offset {offset} matches no abort in the log"
            yield _index_error(self._segment, index.path, text)
        for each in index.entries:
            if each.last_stable_offset > each.last_offset + 1:
                text = f"the entry that ends at offset {each.last_offset} has the later last stable offset "
                yield _index_error(self._segment, index.path, f"{text}{each.last_stable_offset}")
                break
        # A marker that follows another marker of the producer, with no data between them, ends no transaction.
        account.missing += [
            AbortedTransaction(producer_id, first, offset, -1)
            for (producer_id, offset), (before, first) in self._aborts.items()
            if (producer_id, offset) not in firsts and (first >= 0 or before < 0)
        ]
