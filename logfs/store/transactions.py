"""Transactions over several partitions, by transactional id (Kafka's TransactionCoordinator).

The state of each transactional id is a record in `__transaction_state`, as a broker writes it. For example, a
transaction appends to the partitions a-0 and b-0, and commits:

1. The status ONGOING with a-0 is made durable, then records are appended to a-0; the same for b-0.
2. a-0 and b-0 are made durable, then the status PREPARE_COMMIT. From here on the transaction is committed.
3. A marker is appended to a-0 and to b-0 and made durable, and readers of committed records see the transaction.
4. The status COMPLETE_COMMIT is written.

After a crash, `finish` aborts a transaction whose status is ONGOING, and does steps 3 and 4 for one whose status is
PREPARE_COMMIT. It finds every partition with records of an open transaction, because the status ONGOING that names a
partition is durable before records are appended to it.

A transaction is hanging in a partition if it has ended, but its marker is not in the log: the log was truncated, or
the marker is damaged. `end_hanging` appends another marker.
"""

from __future__ import annotations

import logging
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from logfs.errors import (
    Corrupt,
    InvalidName,
    InvalidProducerEpoch,
    InvalidStore,
    InvalidTransactionState,
    LogfsError,
    NotWritable,
    UnknownPartition,
    Unsupported,
)
from logfs.format.batches.record import Record
from logfs.format.messages.group_record import coordinator_partition
from logfs.format.messages.transaction_record import (
    TransactionState,
    TransactionStatus,
    parse_state,
    parse_transactional_id,
)
from logfs.locks import Level, make_rlock
from logfs.store.internal_topic import InternalTopic, Replay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from logfs.format.batches.batch import Batch
    from logfs.format.batches.record import Value
    from logfs.log.append.partition import Partition
    from logfs.log.read.log import Log
    from logfs.store.groups import Groups
    from logfs.store.registry import PartitionRegistry

logger = logging.getLogger(__name__)

TOPIC = "__transaction_state"
# The default timeout of a transaction, as in Kafka's producers. Kafka's maximum is 15 minutes
# (transaction.max.timeout.ms).
TIMEOUT_MS = 60_000
# The least producer id that logfs assigns. Brokers count producer ids up from 0, so they never reach those of logfs.
_FIRST_PRODUCER_ID = 1 << 62
# The last producer epoch with which a transaction begins: the greatest int16 is left for fencing this transaction.
# The next transaction of the transactional id gets a new producer id.
_LAST_EPOCH = 2**15 - 2
_PREPARED = {
    TransactionStatus.PREPARE_COMMIT: TransactionStatus.COMPLETE_COMMIT,
    TransactionStatus.PREPARE_ABORT: TransactionStatus.COMPLETE_ABORT,
}


class Transactions:
    """The transactions of a store. Any thread may call its methods."""

    def __init__(
        self, registry: PartitionRegistry, create: Callable[[str], Partition], groups: Groups
    ) -> None:
        """Make the object without reading anything. `create` creates the named partition, and returns it."""
        self._registry = registry
        self._groups = groups
        self._topic = InternalTopic(
            registry,
            create,
            TOPIC,
            "transaction.state.log.num.partitions",
            # Kafka gives the topic these settings.
            lambda: {
                "cleanup.policy": "compact",
                "compression.type": "uncompressed",
                "segment.bytes": str(
                    registry.settings.broker_config.transaction_state_log_segment_bytes
                ),
            },
            "the states of transactions",
        )
        self._lock = make_rlock(Level.TRANSACTIONS)
        self._replays: list[_Replay] = []
        # When `upkeep` last called `finish` (ms since the epoch).
        self._finished_ms = -1
        # The transactions that this object has begun and that have not ended, by transactional id.
        self._running: dict[str, Transaction] = {}

    def begin(self, transactional_id: str, timeout_ms: int = TIMEOUT_MS) -> Transaction:
        """Begin a transaction. An open transaction with the same id is aborted; its object then refuses all calls.

        `timeout_ms` is only for a broker that takes over the log directory: the broker aborts the transaction when it
        has been open for this time. Raises `InvalidName` for an empty or too long id, `NotWritable` in a read-only
        store, and other kinds of `LogfsError` or `OSError` if an earlier transaction with this id cannot be ended.
        """
        if not transactional_id or len(transactional_id.encode()) > 2**15 - 1:
            raise InvalidName(
                f"transactional id {transactional_id[:20]!r}: give a text of 1 to 32767 bytes"
            )
        if self._registry.read_only:
            raise NotWritable(f"transactional id {transactional_id}: the store is open read-only")
        with self._registry.disk.hold(self._lock):
            before = self._states().get(transactional_id)
            running = self._running.get(transactional_id)
            if running is not None and (before is None or before.producer_epoch < running.epoch):
                # The running transaction has written no state yet, so its producer epoch is in no record.
                before = running.state
            if before is not None:
                before = self._ended(before)
            if before is None or before.producer_epoch >= _LAST_EPOCH:
                producer_id, epoch = self.new_producer_id(), 0
            else:
                producer_id, epoch = before.producer_id, before.producer_epoch + 1
            state = TransactionState(transactional_id, producer_id, epoch, timeout_ms)
            found = self._running[transactional_id] = Transaction(self, state)
            return found

    @staticmethod
    def new_producer_id() -> int:
        """Return a new producer id, one of 2^61 at random, so that none is assigned twice though none is recorded."""
        return _FIRST_PRODUCER_ID | int.from_bytes(os.urandom(8), "big") >> 3

    def upkeep(self, now_ms: int) -> None:
        """Call `finish` if the interval of this task has passed since the last call.

        The interval is `transaction.abort.timed.out.transaction.cleanup.interval.ms`. `now_ms` is the time now, in ms
        since the epoch.
        """
        broker = self._registry.settings.broker_config
        wait_ms = broker.transaction_abort_timed_out_transaction_cleanup_interval_ms
        if not self._finished_ms <= now_ms < self._finished_ms + wait_ms:
            self._finished_ms = now_ms
            self.finish()

    def finish(self) -> None:
        """Write the missing markers of decided transactions, and abort open transactions that were left behind.

        A transaction is decided if its status is `PREPARE_COMMIT` or `PREPARE_ABORT`. An open transaction was left
        behind if an earlier process of logfs began it, or if a broker's producer began it and its timeout has passed.
        Transactions that this object has begun are left alone. Then hanging transactions are ended in the loaded
        partitions. If a transaction cannot be ended, the error is logged, and the next call tries again. Raises
        `OSError` if `__transaction_state` cannot be read.
        """
        with self._registry.disk.hold(self._lock):
            for state in self._states().values():
                if state.transactional_id in self._running or not state.partitions:
                    continue
                is_of_broker = state.producer_id < _FIRST_PRODUCER_ID
                end_ms = state.started_ms + state.timeout_ms
                if (
                    state.status is TransactionStatus.ONGOING
                    and is_of_broker
                    and self._registry.clock() < end_ms
                ):
                    continue
                try:
                    self._ended(state)
                except (LogfsError, OSError) as error:
                    logger.error(
                        "transactional id %s: is not ended yet: %s", state.transactional_id, error
                    )
            for name, log in self._registry.written().items():
                try:
                    self.end_hanging(log)
                except (LogfsError, OSError) as error:
                    logger.error("%s: a transaction is not ended yet: %s", name, error)

    def _states(self) -> dict[str, TransactionState]:
        """Return the state of each transactional id, by id. The caller must hold `_lock`.

        After a change of the number of partitions of `__transaction_state`, several of them may have a state of the
        same id. Then the newest state is returned.
        """
        known = {replay.log: replay for replay in self._replays}
        self._replays = [known.get(log) or _Replay(log) for log in self._topic.logs()]
        found: dict[str, TransactionState] = {}
        for replay in self._replays:
            replay.catch_up()
            for name, state in replay.states.items():
                found[name] = max(found.get(name, state), state, key=_age)
        return found

    def _ended(self, state: TransactionState) -> TransactionState:
        """Abort an open transaction, or write the markers of a decided one, and return the new state.

        A decided transaction has the status `PREPARE_COMMIT` or `PREPARE_ABORT`. The state of a transaction that is
        neither open nor decided is returned unchanged. The caller must hold `_lock`.
        """
        if state.status is TransactionStatus.ONGOING:
            # A higher epoch fences the producer of the transaction in every partition.
            epoch = min(state.producer_epoch + 1, _LAST_EPOCH + 1)
            state = state._replace(producer_epoch=epoch)
            state = self._write(state, TransactionStatus.PREPARE_ABORT, durable=True)
        if state.status in _PREPARED:
            state = self._carry_out(state)
        return state

    def _carry_out(self, state: TransactionState) -> TransactionState:
        commit = state.status is TransactionStatus.PREPARE_COMMIT
        logs = self._logs(state)
        for log in logs:
            _write_marker(log, state.producer_id, state.producer_epoch, commit=commit)
        for log in logs:
            log.flush()
        return self._write(state._replace(partitions=()), _PREPARED[state.status], durable=False)

    def _logs(self, state: TransactionState) -> list[Partition]:
        """Return the partitions of a transaction that were not deleted.

        Raises the error of one that is offline, and `InvalidStore` if one may be in a log directory that is not open.
        """
        found = []
        for name in state.partitions:
            self._registry.include(name.directory)
            try:
                found.append(self._registry.writable(name.directory))
            except UnknownPartition:
                if not self._registry.is_whole:
                    raise InvalidStore(
                        f"transactional id {state.transactional_id!r}: its transaction has records in "
                        f"{name.directory}, which may be in a log directory that is not open; open all log "
                        "directories together"
                    ) from None
        return found

    def end_hanging(self, log: Partition, *, restored: bool = False) -> None:
        """End the hanging transactions in a partition, durably.

        If the transaction is the last one of its transactional id, its marker tells how it has ended. It aborts an
        earlier one, because nothing tells how that has ended. Transactions of brokers' producers stay open.

        `restored` means that the partition was deleted, and is restored: its records of transactions that have ended
        meanwhile were never committed, so all of these are aborted, those of brokers' producers included.

        Does nothing in a partition of a mirrored topic, which gets its markers from the other cluster, and while the
        states of some transactions are not known. Raises `LogfsError` or `OSError` if a marker cannot be appended and
        flushed.
        """
        with self._registry.disk.hold(self._lock):
            hanging = log.producers.open_transactions()
            if not hanging or log.config.logfs_mirror_source:
                return
            by_producer = {state.producer_id: state for state in self._states().values()}
            if not self._topic.is_whole:
                return
            ended = False
            for producer_id in hanging:
                state, epoch = by_producer.get(producer_id), log.producers[producer_id].epoch
                if state is None or log.name in state.partitions or epoch > state.producer_epoch:
                    # The transaction is open, or its state is lost.
                    continue
                if restored or producer_id >= _FIRST_PRODUCER_ID:
                    is_last = epoch == state.producer_epoch and not restored
                    commit = is_last and state.status is TransactionStatus.COMPLETE_COMMIT
                    _end_hanging(log, producer_id, commit=commit)
                    ended = True
            if ended:
                log.flush()

    @contextmanager
    def truncating(self, log: Partition, offset: int) -> Iterator[None]:
        """Have the transactions that have ended keep their ends, while the caller truncates a partition to `offset`.

        Of a transaction whose marker is removed, but not its first records, appends a marker of the same kind, and
        flushes it. If a crash comes before the flush, `end_hanging` ends the transaction. Does nothing for brokers'
        producers, whose transactions are open again, as in Kafka. A transaction of this object that runs, and loses
        records, can only be aborted. Raises the errors of `end_hanging`.
        """
        with self._registry.disk.hold(self._lock):
            before = log.producers.open_transactions()
            # The last batch of each transaction that runs.
            sent = {
                transaction: log.producers[transaction.state.producer_id].batches[-1:]
                for transaction in self._running.values()
                if log.name in transaction.state.partitions
            }
            aborted = {
                (entry.producer_id, entry.first_offset)
                for segment in log.state.segments_from(offset)
                if not segment.is_tiered
                for entry in segment.txn_index.entries
            }
            yield
            for transaction, last in sent.items():
                if log.producers[transaction.state.producer_id].batches[-1:] != last:
                    transaction.spoil()
            hanging = {
                producer_id: first
                for producer_id, first in log.producers.open_transactions().items()
                if producer_id >= _FIRST_PRODUCER_ID and before.get(producer_id) != first
            }
            for producer_id, first in hanging.items():
                _end_hanging(log, producer_id, commit=(producer_id, first) not in aborted)
            if hanging:
                log.flush()

    def _write(
        self, state: TransactionState, status: TransactionStatus, *, durable: bool
    ) -> TransactionState:
        """Append a record with `state` and its new `status`; return the new state. The caller must hold `_lock`.

        With `durable`, return only when the record is durable.
        """
        now_ms = self._registry.clock()
        started_ms = now_ms if state.started_ms < 0 else state.started_ms
        state = state._replace(status=status, updated_ms=now_ms, started_ms=started_ms)
        number = coordinator_partition(state.transactional_id, self._topic.partition_count())
        log = self._topic.log(number)
        log.append([Record(state.value(), state.key())])
        if durable:
            log.flush()
        return state

    # The methods that `Transaction` calls.

    @contextmanager
    def running(self, transaction: Transaction) -> Iterator[None]:
        """Hold `_lock` while the caller uses `transaction`, which must be running.

        Raises `InvalidTransactionState` if `transaction` has ended, and `InvalidProducerEpoch` if a later transaction
        with its id has aborted it.
        """
        with self._registry.disk.hold(self._lock):
            name = transaction.state.transactional_id
            if self._running.get(name) is not transaction:
                if transaction.is_ended:
                    raise InvalidTransactionState(
                        f"transactional id {name!r}: this transaction has ended; begin another"
                    )
                raise InvalidProducerEpoch(
                    f"transactional id {name!r}: a later transaction with this id has aborted this one"
                )
            yield

    def is_running(self, transaction: Transaction) -> bool:
        """Whether a transaction has not ended, and no later transaction has the same id."""
        return self._running.get(transaction.state.transactional_id) is transaction

    def add(self, transaction: Transaction, log: Partition) -> None:
        """Record durably that a transaction appends to a partition. The caller must hold `_lock`."""
        state = transaction.state
        if log.name not in state.partitions:
            if log.producers[state.producer_id].transaction_start is not None:
                # An earlier transaction of this id hangs: this one would end it, too.
                self.end_hanging(log)
            state = state._replace(partitions=(*state.partitions, log.name))
            transaction.state = self._write(state, TransactionStatus.ONGOING, durable=True)

    def end(self, transaction: Transaction, *, commit: bool) -> None:
        """Commit or abort a transaction durably. The caller must hold `_lock`."""
        state = transaction.state
        if state.partitions:
            if commit:
                for log in self._logs(state):
                    log.flush()
            decided = (
                TransactionStatus.PREPARE_COMMIT if commit else TransactionStatus.PREPARE_ABORT
            )
            state = transaction.state = self._write(state, decided, durable=True)
        # The transaction has ended, even if a marker cannot be written below: `finish` then writes the missing ones.
        del self._running[state.transactional_id]
        transaction.is_ended = True
        if state.partitions:
            self._carry_out(state)

    def writable(self, name: str) -> Partition:
        """Return a partition for appends.

        Raises `UnknownPartition`, `NotWritable` in a read-only store, or the error that keeps the partition offline.
        """
        return self._registry.writable(name)

    def offsets_of(self, group: str, offsets: Mapping[str, int]) -> tuple[Partition, list[Record]]:
        """Return the partition of `__consumer_offsets` for a group, and the records that commit `offsets`.

        `offsets` maps the name of each partition to the next offset that the group will read.
        """
        return self._groups.log_of(group), self._groups.records_of(group, offsets)


class Transaction:
    """A transaction that was begun by `Transactions.begin`. Only one thread may use it."""

    def __init__(self, transactions: Transactions, state: TransactionState) -> None:
        self.state = state
        self.is_ended = False
        self._transactions = transactions
        self._sequences: dict[Log, int] = {}
        # Whether an append has failed, or a truncation has removed records. Only an abort is then possible, because
        # a part of the records may be in the log.
        self._is_broken = False

    @property
    def is_open(self) -> bool:
        """Whether the transaction has not ended, and no later transaction has aborted it."""
        return self._transactions.is_running(self)

    @property
    def epoch(self) -> int:
        """The epoch of the transaction's producer."""
        return self.state.producer_epoch

    def append(self, name: str, records: Iterable[Value | Record]) -> int:
        """Append records to a partition, and return the offset of the first.

        Raises `InvalidProducerEpoch` if a later transaction has aborted this one, and `InvalidTransactionState` if
        this one has ended, or if an earlier append of it has failed.

        If the partition takes no appends at all, raises `UnknownPartition`, `NotWritable` or the error that keeps the
        partition offline. The transaction can then go on. If the records are refused, raises `RecordTooLarge`,
        `InvalidRecord`, `TypeError` or `ValueError`; if a write of them fails, `PartitionFailed` or `OSError`. After
        these errors, only `abort` is possible.
        """
        with self._transactions.running(self):
            return self._append(self._transactions.writable(name), records, coordinator=False)

    def commit_offsets(self, group: str, offsets: Mapping[str, int]) -> None:
        """Commit the next offsets that a group will read, by partition, as part of the transaction.

        Raises `UnknownPartition`, `OffsetOutOfRange` for an offset outside of the log, `InvalidName` for an invalid
        group name, and the same errors as `append`.
        """
        with self._transactions.running(self):
            log, records = self._transactions.offsets_of(group, offsets)
            self._append(log, records, coordinator=True)

    def _append(
        self, log: Partition, records: Iterable[Value | Record], *, coordinator: bool
    ) -> int:
        # Check this before the partition becomes part of the transaction: if it refuses appends, it would also refuse
        # the marker.
        log.check_appendable()
        self.check_whole()
        self._transactions.add(self, log)
        self._is_broken = True
        first, self._sequences[log] = log.append_transactional(
            records,
            self.state.producer_id,
            self.state.producer_epoch,
            self._sequences.get(log, 0),
            coordinator=coordinator,
        )
        self._is_broken = False
        return first

    def spoil(self) -> None:
        """Allow nothing but `abort` from now on."""
        self._is_broken = True

    def check_whole(self) -> None:
        """Raise `InvalidTransactionState` if only `abort` is possible."""
        if self._is_broken:
            raise InvalidTransactionState(
                f"transactional id {self.state.transactional_id!r}: a call of this transaction has failed, or "
                "some of its records were truncated, so it can only be aborted; abort it, and begin another"
            )

    def commit(self) -> None:
        """Make the transaction visible to readers of committed records; it is durable when this returns.

        If a marker cannot be written, the error is raised, but the transaction is committed and has ended. Upkeep,
        the next `begin` with its id, or the next opening of the store writes the missing markers. Raises
        `InvalidProducerEpoch` if a later transaction has aborted this one, `InvalidTransactionState` if this one has
        ended or an append of it has failed, and `LogfsError` or `OSError` if a write or a flush fails.
        """
        with self._transactions.running(self):
            self.check_whole()
            self._transactions.end(self, commit=True)

    def abort(self) -> None:
        """End the transaction so that no reader of committed records ever sees it.

        Raises `InvalidProducerEpoch` if a later transaction has aborted this one, `InvalidTransactionState` if this
        one has ended, and `LogfsError` or `OSError` if a write fails.
        """
        with self._transactions.running(self):
            self._transactions.end(self, commit=False)


class _Replay(Replay):
    """The states of the transactional ids in one partition of `__transaction_state`, read up to the offset `end`."""

    def __init__(self, log: Log) -> None:
        super().__init__(log, "transactions")
        self.states: dict[str, TransactionState] = {}

    def forget(self) -> None:
        self.states = {}

    def apply(self, batch: Batch) -> None:
        if batch.header.is_control:
            return
        for record in batch.records():
            if record.offset >= self.end and record.key is not None:
                try:
                    self._apply_record(record.key, record.value)
                except (Corrupt, Unsupported) as error:
                    self.leave_out(record.offset, error)

    def _apply_record(self, key: bytes, value: bytes | None) -> None:
        name = parse_transactional_id(key)
        if name is None:
            return
        if value is None:
            self.states.pop(name, None)
        else:
            self.states[name] = parse_state(name, value)


def _write_marker(log: Partition, producer_id: int, producer_epoch: int, *, commit: bool) -> None:
    """Append the marker that commits or aborts a producer's open transaction.

    Its coordinator epoch is that of the producer's previous marker, or 0 if there is none.
    """
    coordinator_epoch = max(log.producers[producer_id].coordinator_epoch, 0)
    log.end_transaction(
        producer_id, producer_epoch, commit=commit, coordinator_epoch=coordinator_epoch
    )


def _end_hanging(log: Partition, producer_id: int, *, commit: bool) -> None:
    """Append the marker that ends the hanging transaction of a producer."""
    _write_marker(log, producer_id, log.producers[producer_id].epoch, commit=commit)


def _age(state: TransactionState) -> tuple[int, int]:
    """Return a value that is greater for a later state of the same transactional id."""
    return state.updated_ms, state.producer_epoch
