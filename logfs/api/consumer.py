"""A member of a consumer group, which shares the partitions of topics with other members, also in other processes."""

from __future__ import annotations

import logging
import time
from collections import deque
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from logfs.api.arguments import checked_name, checked_timeout
from logfs.api.chunks import Entry, add_chunk
from logfs.api.records import ConsumerRecord
from logfs.errors import InvalidName, NotWritable, StoreLocked, UnknownPartition
from logfs.format.base import names
from logfs.log.read.read_committed import isolation_level
from logfs.log.segment.batch_iterator import DamagedRange
from logfs.store.admin import client
from logfs.store.admin.requests import CommitOffsets
from logfs.store.group_members import GroupMember, Place
from logfs.store.partition_identity import PartitionIdentity
from logfs.store.reached_offset import ReachedOffset

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Self

    from logfs.api.store import Store
    from logfs.log.read.log import Log
    from logfs.log.read.read_committed import IsolationLevel

logger = logging.getLogger(__name__)

# The time (seconds) between two checks for new records and new members, and that between two automatic commits.
_POLL_SECONDS = 0.1
_COMMIT_SECONDS = 1.0


class Consumer:
    """A member of a consumer group: an iterator over the records of the partitions that are assigned to it now.

    The members of a group on one machine, each a `Consumer` or a process of `logfs consume`, divide the partitions
    among themselves. If a member joins or leaves, the others notice at a later `next`. A member begins to read a
    partition at the group's committed offset. The group gets each record at least once: after a crash, it gets the
    records since the last commit again.

    With `auto_commit`, `next` commits, at most once a second, the records that earlier calls returned. `close` and
    the end of a `with` block commit all returned records. If an error ends the block, there is no commit at its end.
    Without `auto_commit`, only `commit` commits. A commit is durable when it returns.

    If the store is open read-only, a commit is sent to the mount of the log directories. Without a mount, the
    directories are opened for writing during the commit. If another program, such as a broker, has locked them, this
    fails: `next` then tries again later, and `commit` and a `close` that commits raise `StoreLocked`.

    If a partition was truncated below the offset that this member has reached, a warning is logged. If this process
    has truncated the log, or if the new records have a new leader epoch, the member continues where the new records
    begin. Otherwise this place is unknown. The member then continues at the offset that it has reached, or at the log
    end if that is lower. It does not return new records below this offset.

    Only one thread may use a consumer. It is a context manager; `close` leaves the group.
    """

    group: str

    def __init__(
        self,
        store: Store,
        topics: str | Iterable[str],
        group: str,
        *,
        begin: Literal["earliest", "latest"] | int | datetime,
        timeout: float | None,
        isolation: IsolationLevel,
        auto_commit: bool,
    ) -> None:
        engine = store._engine
        if engine.disk.is_remote:
            raise NotWritable(f"{store._path}: nothing can be committed in a bucket; use 'follow'")
        if not checked_name("group", group):
            raise InvalidName("the name of the group is empty; give a name")
        if begin not in ("earliest", "latest") and not isinstance(begin, (int, datetime)):
            raise InvalidName(
                f"begin {begin!r}: give 'earliest', 'latest', an offset or a datetime"
            )
        isolation_level(isolation)
        self.group = group
        self._store = store
        self._names = [topics] if isinstance(topics, str) else [*topics]
        if not self._names:
            raise InvalidName("topics is empty; give the name of a topic or a partition")
        self._begin = begin
        self._timeout = checked_timeout(timeout)
        self._isolation = isolation
        self._auto_commit = auto_commit
        # The entries that were read, but not returned yet.
        self._read: deque[Entry[ConsumerRecord]] = deque()
        # The partition whose last read failed when `_read` had entries already. The next fetch reads this partition
        # first, to raise the error. "" if there is none.
        self._unread = ""
        # The partition of the record that was returned last, and the offset after this record. None once the record
        # counts as consumed.
        self._in_hand: tuple[str, int] | None = None
        self._is_closed = False
        # By name, the identity of each partition that this member reads. It tells whether the partition was deleted
        # and created again.
        self._ids: dict[str, PartitionIdentity] = {}
        # How far this member has read in each partition, including the records in `_read`.
        self._reached: dict[str, ReachedOffset] = {}
        self._join_at = 0.0
        self._committed = -_COMMIT_SECONDS
        self._find()
        self._log_dirs = [
            *(each.path for each in engine.log_dirs),
            *engine.registry.missing_log_dirs,
        ]
        # All members must lock the same file, even if they were given the log directories in another order.
        self._member = GroupMember(min(self._log_dirs), group, self._place, self._commit)
        store._consumers.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if self._is_closed:
            return
        try:
            # After `Store.close` there may be nothing to commit, and otherwise it is an error.
            if error is None and self._auto_commit and (self._in_hand or not self._store.closed):
                self.commit()
        finally:
            self._is_closed = True
            self._read.clear()
            self._member.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ConsumerRecord:
        """Return the next record.

        The record that the previous call returned counts as consumed from now on, so automatic commits include it.
        Raises `StopIteration` if no record comes within the timeout. The call waits longer if another member must
        first release a partition to this member. Raises `ValueError` if the consumer is closed, `UnknownPartition` if
        a topic no longer exists, and `DamagedRange` once for each damaged range: the next call goes on after it.
        """
        try:
            return self._next()
        except (KeyError, ValueError):
            # Another thread may have closed the store, and so have taken this member from its group, meanwhile.
            self._check_open()
            raise

    def _next(self) -> ConsumerRecord:
        since = time.monotonic()
        while True:
            self._check_open()
            self._consume_in_hand()
            self._join_if_due()
            if self._auto_commit:
                self._commit_if_due()
            while self._read:
                name, after, record = self._read.popleft()
                if record is not None:
                    self._in_hand = name, after
                    return record
                self._member.advance(name, after)
            if self._fetch():
                continue
            is_over = self._timeout is not None and time.monotonic() - since >= self._timeout
            # Do not end yet if another member has still to release a partition to this member.
            if is_over and self._member.has_all(self._find()):
                raise StopIteration
            self._store._stopped.wait(_POLL_SECONDS)

    @property
    def partitions(self) -> list[str]:
        """The names of the partitions that this member reads now."""
        _ = self._store._engine
        return [*self._member.places]

    def commit(self) -> None:
        """Commit all records that were returned, including the last one. The commit is durable when this returns.

        Raises `StoreLocked` if another process holds the log directories, and the errors of `ConsumerGroups.commit`.
        """
        self._check_open()
        self._consume_in_hand()
        self._member.commit({name: place.taken for name, place in self._member.places.items()})

    def close(self) -> None:
        """With `auto_commit`, commit all records that were returned, including the last one; then leave the group.

        Closing twice is harmless. `next` and `commit` of a closed consumer raise `ValueError`.
        """
        self.__exit__(None, None, None)

    def _abandon(self) -> None:
        """Leave the group without a commit, because the store is being closed."""
        self._read.clear()
        self._member.close()

    def _check_open(self) -> None:
        """Raise `ValueError` if the consumer is closed, and `StoreClosed` if the store is."""
        if self._is_closed:
            raise ValueError(f"the consumer of the group {self.group} is closed; make another")
        _ = self._store._engine

    def _consume_in_hand(self) -> None:
        """Mark the record that was returned last as consumed, so that the next commit includes it."""
        if self._in_hand is not None:
            self._member.advance(*self._in_hand)
            self._in_hand = None

    def _find(self) -> list[str]:
        """Return the names of all partitions that the group reads, offline ones included.

        Raises `UnknownPartition` if the store lacks one of the topics or partitions that this consumer was given.
        """
        engine = self._store._refreshed()
        known = [*engine, *engine.offline]
        found: dict[str, None] = {}
        for wanted in self._names:
            partitions = [each for each in names.partitions_named(wanted, known) if each in known]
            if not partitions:
                raise UnknownPartition(f"{wanted}: the store has no such topic or partition")
            found |= dict.fromkeys(partitions)
        return [*found]

    def _join_if_due(self) -> None:
        """Release the partitions now assigned to other members, and start to read those assigned to this member.

        This is called a join. Before it, this member releases each partition that was deleted and created again, to
        begin anew with the new one. A call does nothing if the last join ended less than 0.1 seconds ago, or less
        than ten times its own duration ago.
        """
        now = time.monotonic()
        if now < self._join_at:
            return
        found = self._find()
        for name in found:
            if name in self._member.places and not self._is_same(name):
                # The partition was deleted and created again: begin anew.
                self._forget(name)
        self._member.join(found, self._release)
        # Wait ten times as long as this join took, so that joins take at most a tenth of the time, even for thousands
        # of partitions.
        end = time.monotonic()
        self._join_at = end + max(_POLL_SECONDS, 10 * (end - now))

    def _is_same(self, name: str) -> bool:
        """Whether a partition is still the one that this member began to read; True if it is offline or deleted."""
        log = self._store._engine.find(name)
        return log is None or self._ids[name].is_of(log)

    def _is_kept(self, name: str, offset: int) -> bool:
        """Whether a partition is still the one that this member began to read, and was not truncated below `offset`.

        True if it is offline or deleted.
        """
        log = self._store._engine.find(name)
        if log is None:
            return True
        log.refresh()
        return self._is_same(name) and self._reached[name].is_kept(log, offset)

    def _place(self, name: str) -> Place:
        """Return the offset at which this member begins to read a partition, and the committed offset (-1 if none).

        The member begins at the committed offset. If there is none, it begins at the `begin` that was passed to
        `Store.consumer`. An offset beyond the log end is replaced by the log end.
        """
        log, begin = self._store._log(name), self._begin
        self._ids[name] = PartitionIdentity(log)
        start, end = log.log_start_offset, log.log_end_offset
        committed = self._store.groups._refreshed().committed(self.group, name)
        if committed is not None:
            place = Place(min(committed.offset, end), committed.offset)
        elif isinstance(begin, datetime):
            found = self._store[name].offset_for_time(begin)
            place = Place(end if found is None else found.offset, -1)
        else:
            offset = {"earliest": start, "latest": end}[begin] if isinstance(begin, str) else begin
            place = Place(min(max(offset, start), end), -1)
        self._reached[name] = ReachedOffset(log, place.taken)
        return place

    def _release(self, name: str) -> bool:
        self._drop_read(name)
        # Without `auto_commit`, the member that gets the partition reads again what the program has not committed.
        return not self._auto_commit or self._try_to_commit({name: self._member.places[name].taken})

    def _forget(self, name: str) -> None:
        self._drop_read(name)
        self._member.forget(name)

    def _drop_read(self, name: str) -> None:
        self._read = deque(each for each in self._read if each[0] != name)

    def _fetch(self) -> bool:
        """Read up to 1000 offsets of each partition, and append the records to the queue `_read`.

        `next` takes records from this queue. Returns whether the queue has entries now. If the records of a partition
        cannot be read while `_read` is empty, this raises the error. If `_read` has entries, the next call raises it.
        The error of an offline partition is raised in any case.
        """
        # Clear `_unread`: if the partition cannot be read again, this call raises the error, and the next call must
        # read the other partitions.
        first, self._unread = self._unread, ""
        places = sorted(self._member.places.items(), key=lambda item: item[0] != first)
        for name, place in places:
            try:
                partition = self._store[name]
            except UnknownPartition:
                # The partition was deleted.
                self._forget(name)
                continue
            reader = partition._reader(self._isolation)
            if not self._ids[name].is_of(reader.log):
                # The partition was deleted and created again: the next join begins anew.
                self._forget(name)
                continue
            place = self._go_back(name, place, reader.log)
            start = max(place.taken, reader.log_start_offset)
            if start > place.taken:
                logger.warning(
                    "%s: offsets %d to %d have left the log before group %s read them",
                    name,
                    place.taken,
                    start - 1,
                    self.group,
                )
                self._member.advance(name, start)
            try:
                is_read = add_chunk(
                    self._read, partition, reader, start, ConsumerRecord.of_partition
                )
            except DamagedRange as error:
                # A consumer cannot seek: the next call goes on after the damaged range.
                self._member.advance(name, error.next_offset)
                self._reached[name].advance(reader.log, error.next_offset)
                raise
            if not is_read:
                self._unread = name
                break
            if self._read and self._read[-1][0] == name:
                self._reached[name].advance(reader.log, self._read[-1][1])
        return bool(self._read)

    def _go_back(self, name: str, place: Place, log: Log) -> Place:
        """Return the place at which to go on in a partition, after a check for a truncation.

        `place` has the next offset to read, and `log` is the partition's log. If, as far as known, `log` was not
        truncated below this offset, returns `place`. Otherwise logs a warning, and goes on at the offset at which the
        new records begin. If that is unknown, goes on at the log end, or at the offset in `place` if this is lower.
        """
        cut = self._reached[name].truncation_below(log, place.taken)
        if cut is None:
            return place
        logger.warning(
            "%s: the log was truncated below %d, which group %s has reached: it continues at %d%s",
            name,
            place.taken,
            self.group,
            cut.continuation,
            "; new records below that offset are left out" if cut.leaves_out else "",
        )
        self._member.advance(name, cut.continuation)
        self._reached[name] = ReachedOffset(log, cut.continuation)
        return self._member.places[name]

    def _commit_if_due(self) -> None:
        now = time.monotonic()
        if now - self._committed >= _COMMIT_SECONDS:
            self._committed = now
            self._try_to_commit({name: each.taken for name, each in self._member.places.items()})

    def _try_to_commit(self, offsets: dict[str, int]) -> bool:
        """Commit `offsets`, by partition name. Return False if another process has locked the log directories."""
        try:
            self._member.commit(offsets)
        except StoreLocked as error:
            logger.warning("group %s: nothing is committed: %s", self.group, error)
            return False
        return True

    def _commit(self, offsets: dict[str, int]) -> None:
        # Leave out partitions that were truncated, or deleted and perhaps created again: they must not keep the group
        # from committing in the others.
        engine = self._store._refreshed()
        same = {name: offset for name, offset in offsets.items() if self._is_kept(name, offset)}
        if not same:
            return
        if engine.read_only:
            texts = {name: str(offset) for name, offset in same.items()}
            client.call(self._log_dirs, CommitOffsets(self.group, texts, skips_missing=True))
            return
        known = {}
        for name, log in ((name, engine.find(name)) for name in same):
            offset = None if log is None else log.committable(same[name])
            if offset is not None:
                known[name] = offset
        if known:
            self._store.groups.commit(self.group, known)
