"""The state of a log's producers: epochs, sequences, open transactions (Kafka's ProducerStateManager).

The rules are those of kafka-storage 9.1 to 9.4, except that a log has no replicas: a transaction is over when its
marker is in the log, while Kafka waits until the replicas have the marker.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from logfs.errors import (
    CoordinatorFenced,
    Corrupt,
    InvalidProducerEpoch,
    InvalidTransactionState,
    OutOfOrderSequence,
)
from logfs.format.base.batch_rows import ATTRIBUTES, PRODUCER_ID
from logfs.format.base.lazy_numpy import np
from logfs.format.batches.batch import (
    CONTROL_BIT,
    NO_PRODUCER_EPOCH,
    NO_SEQUENCE,
    TRANSACTIONAL_BIT,
    decrement_sequence,
    increment_sequence,
)
from logfs.format.files.aborted_transactions import AbortedTransaction
from logfs.format.files.producer_snapshot import ProducerEntry
from logfs.format.messages.control import ControlType, end_of_transaction

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from logfs.format.batches.batch import Batch, Header
    from logfs.format.messages.control import EndTransactionMarker
    from logfs.log.segment.batch_scanner import ScannedBatches

logger = logging.getLogger(__name__)

# How many batches of a producer are remembered, to recognise a batch that is sent again (kafka-storage 9.1).
KEPT_BATCHES = 5
NO_COORDINATOR_EPOCH = -1
_NONE = -1


class SentBatch(NamedTuple):
    """A batch that a producer appended. `offset_delta` is its last offset minus its first; `timestamp` is in ms."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        """The sequence number of the batch's first record. Sequence numbers wrap to 0 after 2^31 - 1."""
        return decrement_sequence(self.last_sequence, self.offset_delta)

    @property
    def first_offset(self) -> int:
        """The offset of the batch's first record."""
        return self.last_offset - self.offset_delta

    @property
    def offsets(self) -> tuple[int, int]:
        """The offsets of the batch's first and last record."""
        return self.first_offset, self.last_offset


@dataclass(frozen=True, slots=True)
class Producer:
    """One producer of a partition. `batches` are its last batches (at most five) in the current epoch, oldest first.

    `timestamp` (ms) is that of the producer's last batch or marker. `coordinator_epoch` is that of its last marker,
    -1 before the first. `transaction_start` is the first offset of the producer's open transaction, None if no
    transaction is open.
    """

    producer_id: int
    epoch: int = NO_PRODUCER_EPOCH
    batches: tuple[SentBatch, ...] = ()
    timestamp: int = -1
    coordinator_epoch: int = NO_COORDINATOR_EPOCH
    transaction_start: int | None = None

    @property
    def last_sequence(self) -> int:
        """The sequence number of the producer's last record, -1 if no batch is remembered."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def duplicate(self, header: Header) -> SentBatch | None:
        """Return the remembered batch with the same epoch and sequence numbers as `header`; None if there is none.

        A batch that repeats a remembered batch must not be appended again.
        """
        if header.producer_epoch != self.epoch:
            return None
        wanted = (header.base_sequence, header.last_sequence)
        return next(
            (sent for sent in self.batches if (sent.first_sequence, sent.last_sequence) == wanted),
            None,
        )

    def at_epoch(self, epoch: int) -> Producer:
        """Return this producer with the epoch `epoch`, and without its batches if it has another epoch now."""
        return self if epoch == self.epoch else replace(self, epoch=epoch, batches=())

    def entry(self) -> ProducerEntry:
        """Return the producer's entry for a snapshot. Of the remembered batches, the entry has only the last one."""
        last = (
            self.batches[-1] if self.batches else SentBatch(NO_SEQUENCE, _NONE, 0, self.timestamp)
        )
        start = _NONE if self.transaction_start is None else self.transaction_start
        return ProducerEntry(
            self.producer_id,
            self.epoch,
            last.last_sequence,
            last.last_offset,
            last.offset_delta,
            self.timestamp,
            self.coordinator_epoch,
            start,
        )

    @classmethod
    def from_entry(cls, entry: ProducerEntry) -> Producer:
        """Return the producer that a snapshot entry describes."""
        last = SentBatch(
            entry.last_sequence, entry.last_offset, entry.offset_delta, entry.timestamp
        )
        start = entry.current_txn_first_offset
        return cls(
            entry.producer_id,
            entry.producer_epoch,
            () if entry.last_sequence == NO_SEQUENCE else (last,),
            entry.timestamp,
            entry.coordinator_epoch,
            None if start == _NONE else start,
        )


class Producers:
    """The producers of one partition at one offset, usually the log end. Only one thread at a time may change them.

    `first_unstable_offset` is the first offset of the oldest open transaction, None if none is open; any thread may
    read it.
    """

    def __init__(self, entries: Iterable[ProducerEntry] = ()) -> None:
        self._producers = {entry.producer_id: Producer.from_entry(entry) for entry in entries}
        self.first_unstable_offset = self._first_open()

    def __len__(self) -> int:
        return len(self._producers)

    def __getitem__(self, producer_id: int) -> Producer:
        """Return the producer with this id; for an unknown id, a new one with the epoch -1 and no batches."""
        return self._producers.get(producer_id) or Producer(producer_id)

    def entries(self) -> list[ProducerEntry]:
        """Return the snapshot entries of all producers in Kafka's order, so that the files equal Kafka's."""
        buckets = 16
        while len(self._producers) > buckets * 3 // 4:
            buckets *= 2
        ordered = sorted(self._producers, key=lambda producer_id: _spread(producer_id) % buckets)
        return [self._producers[producer_id].entry() for producer_id in ordered]

    def open_transactions(self) -> dict[int, int]:
        """Return the first offset of each open transaction, by producer id."""
        return {
            producer.producer_id: producer.transaction_start
            for producer in list(self._producers.values())
            if producer.transaction_start is not None
        }

    def clear(self) -> None:
        """Forget all producers, with their open transactions."""
        self._producers = {}
        self.first_unstable_offset = None

    def _first_open(self) -> int | None:
        return min(self.open_transactions().values(), default=None)

    # Methods that check what a client sends (kafka-storage 9.2, 9.3).

    def check_batch(self, header: Header, *, trusted: bool = False) -> SentBatch | None:
        """Check a batch before it is appended; if it repeats a remembered batch, return that batch, else None.

        `header` is the header of the batch. `trusted` means that a group coordinator has sent the batch: the batch's
        sequence numbers are not checked, so it never counts as a repeated batch. Raises `InvalidProducerEpoch` for an
        outdated epoch, `OutOfOrderSequence` for a sequence number that does not follow the last one, and
        `InvalidTransactionState` for a non-transactional batch while the producer has an open transaction.
        """
        producer = self[header.producer_id]
        duplicate = None if trusted else producer.duplicate(header)
        if duplicate is not None:
            return duplicate
        self._check_epoch(producer, header.producer_epoch)
        if not trusted:
            self._check_sequence(producer, header)
        if producer.transaction_start is not None and not header.is_transactional:
            raise InvalidTransactionState(
                f"producer {header.producer_id}: a non-transactional batch cannot be appended while a transaction is "
                f"open (since offset {producer.transaction_start}); end the transaction first"
            )
        return None

    @staticmethod
    def _check_sequence(producer: Producer, header: Header) -> None:
        if header.producer_epoch != producer.epoch:
            is_next = header.base_sequence == 0 or producer.epoch == NO_PRODUCER_EPOCH
        else:
            is_next = header.base_sequence == increment_sequence(producer.last_sequence, 1)
        if not is_next:
            raise OutOfOrderSequence(
                f"producer {header.producer_id}: the sequence number {header.base_sequence} (epoch "
                f"{header.producer_epoch}) does not follow the last one, {producer.last_sequence} (epoch "
                f"{producer.epoch}); send the missing batches first"
            )

    def check_marker(self, producer_id: int, producer_epoch: int, coordinator_epoch: int) -> None:
        """Check a transaction marker before it is appended.

        Raises `InvalidProducerEpoch` if the marker's producer epoch is outdated, and `CoordinatorFenced` if its
        coordinator epoch is outdated.
        """
        producer = self[producer_id]
        self._check_epoch(producer, producer_epoch)
        if coordinator_epoch < producer.coordinator_epoch:
            raise CoordinatorFenced(
                f"producer {producer_id}: its marker has coordinator epoch {coordinator_epoch}, which is older than "
                f"the current epoch {producer.coordinator_epoch}"
            )

    @staticmethod
    def _check_epoch(producer: Producer, epoch: int) -> None:
        if epoch < producer.epoch:
            raise InvalidProducerEpoch(
                f"producer {producer.producer_id}: epoch {epoch} is older than the current "
                f"epoch {producer.epoch}; a newer instance of the producer is active"
            )

    # Methods that update the producers with the batches of the log, which must come in the order of their offsets.

    def update(self, batch: Batch) -> AbortedTransaction | None:
        """Update the producers with a batch of the log; return the transaction that the batch aborts, or None.

        The transaction is returned as its entry in the transaction index (kafka-storage 9.5). A batch without a
        producer id changes nothing. No batch is refused, because those in the log have been checked. A malformed
        control record ends no transaction.
        """
        header = batch.header
        if header.producer_id < 0:
            return None
        if not header.is_control:
            self._note_data(header)
            return None
        try:
            marker = end_of_transaction(batch)
        except Corrupt as error:
            logger.warning("marker at offset %d ends no transaction: %s", header.base_offset, error)
            return None
        return None if marker is None else self._note_marker(header, marker)

    def _note_data(self, header: Header) -> None:
        producer = self[header.producer_id].at_epoch(header.producer_epoch)
        start = producer.transaction_start
        if header.is_transactional and start is None:
            start = header.base_offset
            if self.first_unstable_offset is None:
                self.first_unstable_offset = start
        sent = SentBatch(
            header.last_sequence, header.last_offset, header.last_offset_delta, header.max_timestamp
        )
        self._producers[header.producer_id] = replace(
            producer,
            batches=(*producer.batches, sent)[-KEPT_BATCHES:],
            timestamp=header.max_timestamp,
            transaction_start=start,
        )

    def _note_marker(
        self, header: Header, marker: EndTransactionMarker
    ) -> AbortedTransaction | None:
        producer = self[header.producer_id].at_epoch(header.producer_epoch)
        start = producer.transaction_start
        self._producers[header.producer_id] = replace(
            producer,
            timestamp=header.max_timestamp,
            coordinator_epoch=marker.coordinator_epoch,
            transaction_start=None,
        )
        if start is None:
            return None
        self.first_unstable_offset = stable = self._first_open()
        if marker.control_type is not ControlType.ABORT:
            return None
        end = header.base_offset
        return AbortedTransaction(
            header.producer_id, start, end, end + 1 if stable is None else stable
        )

    def abort(self, aborted: AbortedTransaction) -> bool:
        """End the open transaction that `aborted` tells of, because its marker cannot be read.

        Returns False, and changes nothing, if the producer has no such transaction open.
        """
        producer = self[aborted.producer_id]
        if producer.transaction_start != aborted.first_offset:
            return False
        self._producers[aborted.producer_id] = replace(producer, transaction_start=None)
        self.first_unstable_offset = self._first_open()
        return True

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Forget the producers without an open transaction that have been idle for `expiration_ms`."""
        idle = [
            producer.producer_id
            for producer in self._producers.values()
            if producer.transaction_start is None and now_ms - producer.timestamp >= expiration_ms
        ]
        for producer_id in idle:
            del self._producers[producer_id]


def deciding_batches(run: ScannedBatches) -> Iterator[Batch]:
    """Yield, in order, the batches of `run` that determine the state of their producers.

    Leaves out batches without a producer id. Of each producer's batches outside of transactions, yields only the last
    five, because `Producers` does not remember earlier ones.
    """
    rows = run.rows
    is_sent = rows[:, PRODUCER_ID] >= 0
    is_plain = is_sent & (rows[:, ATTRIBUTES] & (TRANSACTIONAL_BIT | CONTROL_BIT) == 0)
    decides = is_sent & ~is_plain
    (plain,) = np.nonzero(is_plain)
    by_producer = plain[np.argsort(rows[plain, PRODUCER_ID], kind="stable")]
    ids = rows[by_producer, PRODUCER_ID]
    is_remembered = np.ones(len(ids), np.bool_)
    is_remembered[:-KEPT_BATCHES] = ids[KEPT_BATCHES:] != ids[:-KEPT_BATCHES]
    decides[by_producer[is_remembered]] = True
    return run.select(decides).batches()


def _spread(producer_id: int) -> int:
    """Return the hash that Java's `HashMap` uses for a producer id: it determines the order in Kafka's snapshots."""
    folded = (producer_id ^ producer_id >> 32) & 0xFFFFFFFF
    return folded ^ folded >> 16
