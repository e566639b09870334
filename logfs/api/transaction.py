"""A transaction over several partitions and committed offsets."""

from __future__ import annotations

import warnings
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from logfs.api.arguments import checked_name, checked_offsets
from logfs.api.records import as_record
from logfs.errors import (
    InvalidProducerEpoch,
    InvalidTransactionState,
    UnknownPartition,
    did_you_mean,
)
from logfs.format.base import names
from logfs.format.batches.record import as_records

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from datetime import datetime
    from typing import Self

    from logfs.api.store import Store
    from logfs.format.batches.record import Headers, Record, Value
    from logfs.store.topic import Topic as Partitions


class Transaction:
    """A transaction: its appends to partitions, and its commits of offsets, become visible together or not at all.

    The transaction begins when the object is made. The end of a `with` block commits it durably; an error in the
    block aborts it. Readers with "read_committed" see its records only after the commit, other readers at once. If
    another transaction with the same id begins, this one is aborted, and its methods raise `InvalidProducerEpoch`: a
    program that was replaced because it seemed dead can thus write no more. The states of transactions are in Kafka's
    topic `__transaction_state`. After a crash, the next opening of the store aborts the transactions whose commit was
    not decided. Only one thread may use the object.
    """

    def __init__(self, store: Store, transactional_id: str) -> None:
        self._store = store
        name = checked_name("transactional_id", transactional_id)
        self._engine = store._for_writing(f"transactional id {name}").transactions.begin(name)
        self._topics: dict[str, Partitions] = {}

    def __enter__(self) -> Self:
        return self

    def __del__(self) -> None:
        engine = getattr(self, "_engine", None)
        if engine is not None and engine.is_open and not self._store.closed:
            warnings.warn(
                f"the transaction {engine.state.transactional_id!r} was neither committed nor aborted",
                ResourceWarning,
                source=self,
                stacklevel=2,
            )

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if self._engine.is_ended:
            return
        if error is None:
            try:
                self.commit()
            except InvalidTransactionState:
                # An append has failed, and the block has caught the error.
                self._engine.abort()
                raise
            return
        # A later transaction may have aborted this one already.
        with suppress(InvalidProducerEpoch):
            self.abort()

    def append(
        self,
        target: str,
        value: Value | Record | None,
        *,
        key: Value | None = None,
        headers: Headers = (),
        timestamp: int | datetime | None = None,
    ) -> tuple[int, int]:
        """Append one record to the partition or the topic `target`; return the partition number and the offset.

        For a topic, Kafka's default partitioner chooses the partition, as in `Topic.append`. A value or a key is
        bytes, bytearray, memoryview, a str (UTF-8), or None: a record without a value is a tombstone. `headers` is a
        mapping, or pairs of a name and a value. Without a `timestamp` the record has the time of the append. A whole
        `Record` may be given as the value.

        Raises the errors of `Partition.append`, and `UnknownPartition` if the store lacks `target`. After an append
        has failed, the transaction can only be aborted, as with Kafka's producer: all later calls but `abort` raise
        `InvalidTransactionState`.
        """
        with self._must_succeed():
            return self._append(target, [as_record(value, key, headers, timestamp)])[0]

    def append_many(self, target: str, records: Iterable[Value | Record]) -> list[tuple[int, int]]:
        """Append records to the partition or the topic `target`; return the partition number and the offset of each.

        An item of `records` is a value, as in `append`, or a `Record`. Raises the errors of `append`.
        """
        with self._must_succeed():
            return self._append(target, records)

    @contextmanager
    def _must_succeed(self) -> Iterator[None]:
        """A call of a transaction. After an error, only an abort is possible."""
        _ = self._store._engine
        self._engine.check_whole()
        try:
            yield
        except InvalidProducerEpoch:
            # It has ended already.
            raise
        except Exception:
            self._engine.spoil()
            raise

    def _append(self, target: str, records: Iterable[Value | Record]) -> list[tuple[int, int]]:
        engine = self._store._engine
        checked_name("target", target)
        if target in engine:
            wanted = as_records(records)
            first = self._engine.append(target, wanted)
            number = names.parse_directory(target).partition
            return [(number, offset) for offset in range(first, first + len(wanted))]
        if target not in self._topics and not engine.registry.partitions_of(target):
            hint = did_you_mean(target, [*engine, *self._store.topics])
            raise UnknownPartition(f"{target}: no such partition or topic{hint}")
        topic = self._topics.setdefault(target, engine.topic(target))
        return topic.append_by(records, lambda log, chosen: self._engine.append(log, chosen))

    def commit_offsets(self, group: str, offsets: Mapping[str, int]) -> None:
        """Commit offsets of a group with the transaction. Raises the errors of `ConsumerGroups.commit`.

        `offsets` maps partition names to the next offset that the group will read. After an error, the transaction
        can only be aborted, as after a failed `append`.
        """
        with self._must_succeed():
            self._engine.commit_offsets(checked_name("group", group), checked_offsets(offsets))

    def commit(self) -> None:
        """Commit the transaction durably, so that readers of "read_committed" see it.

        The transaction is committed as soon as the decision to commit is durable. If a marker cannot be written to a
        partition after that, this method raises the error, but the transaction stays committed, and the store writes
        the missing markers later.
        """
        _ = self._store._engine
        self._engine.commit()

    def abort(self) -> None:
        """Abort the transaction: no reader of "read_committed" will ever see it."""
        _ = self._store._engine
        self._engine.abort()
