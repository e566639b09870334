"""The filter of compaction: which records and batch headers stay, and the bytes of the new .log file.

The rules are those of kafka-storage 8.5 to 8.7. The first round that keeps a tombstone gives its batch a delete
horizon: the time of that round plus `delete.retention.ms`. A round at or after the delete horizon drops the
tombstone. The rules are applied to a whole run of scanned batches (`ScannedBatches`) at once. Batches that do not
change are copied as they are in the file.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from logfs.errors import Corrupt
from logfs.format.base.batch_rows import (
    ATTRIBUTES,
    NEXT_OFFSET,
    POSITION,
    PRODUCER_ID,
    SIZE,
    SPAN_BASE_TIMESTAMP,
    SPAN_COUNT,
)
from logfs.format.batches import compression
from logfs.format.batches.batch import (
    CODEC_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    HEADER_SIZE,
    LOG_APPEND_TIME_BIT,
    TRANSACTIONAL_BIT,
    Batch,
    reseal,
    seal,
)
from logfs.format.kernels import compaction_kernels
from logfs.format.messages.control import ControlType, end_of_transaction

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from logfs.format.files.aborted_transactions import AbortedTransaction
    from logfs.log.compaction.offset_map import OffsetMap
    from logfs.log.segment.batch_scanner import PlainBatches, ScannedBatches

# The attribute bits that a rewritten batch keeps: all that have a meaning (kafka-storage 2.1).
_KEPT_BITS = 0x7F


class CleanedTransactions:
    """The state of the transactions while compaction reads the batches of a log (Kafka's CleanedTransactionMetadata).

    The argument `aborted` has the entries of the transaction indexes of all segments, even of those whose batches are
    not read. `kept` collects the entries for the transaction index of the new segment. When an abort marker is read,
    the entry of its transaction is added, if batches with data of this transaction were read before. The caller must
    clear `kept` before each new segment.
    """

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self.kept: list[AbortedTransaction] = []
        self._aborted = deque(sorted(aborted, key=lambda each: each.first_offset))
        self._open_aborted: dict[int, tuple[AbortedTransaction, bool]] = {}
        self._open_committed: set[int] = set()

    def discarded(self, scanned: ScannedBatches) -> NDArray[np.bool_]:
        """Return bool[rows]: True for batches of aborted data, and for markers whose transaction has no data left.

        Also True for control batches without records. Each batch must be passed exactly once, in ascending order of
        offsets, because the calls advance the state of the transactions.
        """
        data, rows = scanned.data, scanned.rows
        found = np.zeros(len(rows), np.bool_)
        attributes = rows[:, ATTRIBUTES]
        for number in np.flatnonzero(attributes & (TRANSACTIONAL_BIT | CONTROL_BIT)).tolist():
            last_offset = int(rows[number, NEXT_OFFSET]) - 1
            self._begin(last_offset)
            if attributes[number] & CONTROL_BIT:
                found[number] = self._end(Batch.parse(data, int(rows[number, POSITION])))
            else:
                found[number] = self._is_aborted(int(rows[number, PRODUCER_ID]), last_offset)
        return found

    def _begin(self, last_offset: int) -> None:
        while self._aborted and self._aborted[0].first_offset <= last_offset:
            entry = self._aborted.popleft()
            self._open_aborted[entry.producer_id] = entry, False

    def _is_aborted(self, producer_id: int, last_offset: int) -> bool:
        found = self._open_aborted.get(producer_id)
        # The aborted transaction `found` may have ended before this batch: its marker may be in a segment that is not
        # read.
        if found is None or found[0].last_offset <= last_offset:
            self._open_committed.add(producer_id)
            return False
        self._open_aborted[producer_id] = found[0], True
        return True

    def _end(self, batch: Batch) -> bool:
        if not batch.header.record_count:
            return True
        marker = end_of_transaction(batch)
        if marker is None:
            return False
        producer_id = batch.header.producer_id
        if marker.control_type is ControlType.ABORT:
            entry, seen = self._open_aborted.pop(producer_id, (None, False))
            if entry is not None and seen:
                self.kept.append(entry)
            return not seen
        was_seen = producer_id in self._open_committed
        self._open_committed.discard(producer_id)
        return not was_seen


@dataclass(eq=False)
class RecordFilter:
    """The filter of one round of compaction. It takes the batches of a log, many (`ScannedBatches`) at a time.

    `known` has the newest offset of each key. `delete_retention_ms` is the setting `delete.retention.ms`. The round
    changes only the log below `first_uncleanable`. `producers` maps each producer id to the producer's last offset
    (-1 for none) and epoch. Times are in ms.
    """

    known: OffsetMap
    transactions: CleanedTransactions
    now_ms: int
    delete_retention_ms: int
    first_uncleanable: int
    producers: Mapping[int, tuple[int, int]]

    def __post_init__(self) -> None:
        self._scratch = np.empty(compaction_kernels.SCRATCH_SHAPE, np.uint64)
        self._last_offsets = np.array([last for last, _ in self.producers.values()], np.int64)

    def apply(self, scanned: ScannedBatches) -> Iterator[Buffer]:
        """Yield the bytes that the new .log file gets for the batches in `scanned`, in file order.

        The caller must pass all batches of the segments that the round rewrites, each once, in ascending order of
        offsets. Raises `Corrupt` for a batch that cannot be decoded.
        """
        # First, the headers of the batches decide by which rule their records are kept.
        attributes = scanned.rows[:, ATTRIBUTES]
        control = attributes & CONTROL_BIT != 0
        discarded = self.transactions.discarded(scanned)
        has_horizon = attributes & DELETE_HORIZON_BIT != 0
        expired = has_horizon & (scanned.rows[:, SPAN_BASE_TIMESTAMP] <= self.now_ms)
        verdicts = np.where(
            expired, compaction_kernels.SELECT_EXPIRED, compaction_kernels.SELECT
        ).astype(np.uint8)
        verdicts[control] = compaction_kernels.KEEP
        verdicts[discarded & (~control | expired)] = compaction_kernels.DROP
        retained = self._retained(scanned, control)
        # Second, the records decide what becomes of each batch. A batch without a delete horizon gets one if it keeps
        # tombstones, or a marker whose transaction has no data left.
        for part in scanned.plain_batches(verdicts != compaction_kernels.DROP):
            here = slice(part.first, part.end)
            counts = part.spans[:, 2]
            keep = np.empty(int(counts.sum()), np.uint8)
            kept = np.zeros(len(counts), np.int64)
            nulls = np.zeros(len(counts), np.int64)
            done = compaction_kernels.select_records(
                part.data,
                part.spans,
                verdicts[here],
                self.known.latest_offset,
                self.known.secret,
                self.known.slots,
                keep,
                kept,
                nulls,
                self._scratch,
            )
            if done < len(counts):
                raise Corrupt(f"batch at offset {part.spans[done, 3]}: its records are malformed")
            gets_horizon = ((nulls > 0) | (discarded & control)[here]) & ~has_horizon[here]
            gets_horizon &= kept > 0
            actions = np.where(
                kept == 0, compaction_kernels.GONE, compaction_kernels.FILTERED
            ).astype(np.uint8)
            actions[(kept == 0) & retained[here]] = compaction_kernels.EMPTIED
            actions[(kept > 0) & (kept == counts) & ~gets_horizon] = compaction_kernels.COPIED
            yield self._write(scanned, part, actions, gets_horizon, keep, kept)

    def _retained(self, scanned: ScannedBatches, control: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return bool[rows]: True for batches that keep at least their header.

        These are: the batch whose next offset is `first_uncleanable`; the batch that ends with a producer's last
        offset; and, for a producer without a last offset, the transaction markers with its current epoch. `control`
        is bool[rows], True for control batches.
        """
        rows = scanned.rows
        retained: NDArray[np.bool_] = rows[:, NEXT_OFFSET] == self.first_uncleanable
        last = rows[:, NEXT_OFFSET] - 1
        mine = (rows[:, PRODUCER_ID] >= 0) & (np.isin(last, self._last_offsets) | control)
        for number in np.flatnonzero(mine).tolist():
            known = self.producers.get(int(rows[number, PRODUCER_ID]))
            if known is None:
                continue
            offset, epoch = known
            if offset >= 0:
                retained[number] |= offset == last[number]
            elif control[number]:
                header = Batch.parse(scanned.data, int(rows[number, POSITION])).header
                retained[number] |= epoch == header.producer_epoch
        return retained

    def _write(
        self,
        scanned: ScannedBatches,
        part: PlainBatches,
        actions: NDArray[np.uint8],
        gets_horizon: NDArray[np.bool_],
        keep: NDArray[np.uint8],
        kept: NDArray[np.int64],
    ) -> Buffer:
        rows = np.ascontiguousarray(scanned.rows[part.first : part.end])
        rows[:, SPAN_COUNT] = part.spans[:, 2]
        horizon = self.now_ms + self.delete_retention_ms
        bases = np.where(gets_horizon, horizon, rows[:, SPAN_BASE_TIMESTAMP])
        with_base = gets_horizon | (rows[:, ATTRIBUTES] & DELETE_HORIZON_BIT != 0)
        if actions[0] == compaction_kernels.FILTERED and rows[0, ATTRIBUTES] & CODEC_MASK:
            base = int(bases[0]) if with_base[0] else None
            batch = Batch.parse(scanned.data, int(rows[0, POSITION]))
            return _packed(batch, part, base, keep, int(kept[0]))
        copied = actions == compaction_kernels.COPIED
        if copied.all() and len(rows):
            # Copy all bytes at once: scanned batches follow each other in the file without other bytes in between.
            return scanned.data[int(rows[0, POSITION]) : int(rows[-1, POSITION] + rows[-1, SIZE])]
        stays = actions != compaction_kernels.GONE
        size = int(rows[stays, SIZE].sum()) + compaction_kernels.GROWTH * int(kept.sum())
        out = np.empty(size, np.uint8)
        rewritten = np.empty((int((stays & ~copied).sum()), 2), np.int64)
        written, count = compaction_kernels.write_batches(
            np.frombuffer(scanned.data, np.uint8),
            rows,
            actions,
            with_base.astype(np.uint8),
            bases,
            keep,
            kept,
            out,
            rewritten,
        )
        view = out[:written].data
        for start, end in rewritten[:count].tolist():
            reseal(view[start:end])
        return view


def _packed(
    batch: Batch, part: PlainBatches, base: int | None, keep: NDArray[np.uint8], kept: int
) -> bytearray:
    """Return a new batch with the kept records of a compressed batch, compressed at the codec's default level.

    `part` has the decompressed records of `batch`. Record i is kept if keep[i] is set, and `kept` is the number of
    kept records. `base` is the delete horizon of the new batch (ms since the epoch), None if the batch has no delete
    horizon.
    """
    header = batch.header
    attributes = header.attributes & _KEPT_BITS
    late = bool(attributes & LOG_APPEND_TIME_BIT)
    payload = np.empty(len(part.data) + compaction_kernels.GROWTH * kept, np.uint8)
    size, base_timestamp, greatest = compaction_kernels.filter_records(
        part.data,
        part.spans[0],
        header.max_timestamp if late else -1,
        keep,
        0,
        base is not None,
        base or 0,
        payload,
        0,
    )
    data = bytearray(HEADER_SIZE)
    data += compression.compress(header.codec, payload[:size].data, None)
    seal(
        data,
        attributes=attributes | (0 if base is None else DELETE_HORIZON_BIT),
        base_offset=header.base_offset,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=base_timestamp,
        max_timestamp=header.max_timestamp if late else greatest,
        record_count=kept,
        leader_epoch=header.partition_leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
    )
    return data
