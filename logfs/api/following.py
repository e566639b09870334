"""Records as they are appended, for `for` loops and, under asyncio, for `async for`."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

from logfs.api.arguments import checked_timeout
from logfs.api.chunks import Entry, add_chunk
from logfs.errors import OffsetOutOfRange
from logfs.store.partition_identity import PartitionIdentity
from logfs.store.reached_offset import ReachedOffset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Self

    from logfs.api.partition import Partition
    from logfs.api.store import Store
    from logfs.format.batches.record import Record
    from logfs.log.read.log import Log
    from logfs.log.read.read_committed import IsolationLevel
    from logfs.log.read.reader import Reader

R = TypeVar("R")

# The pause (seconds) between two checks for new records. It begins at the first value, and doubles up to the second.
_SHORTEST_PAUSE = 0.002
_LONGEST_PAUSE = 0.1


class Following(Generic[R]):
    """An iterator, also for `async for`, over the records of one or several partitions from given offsets on.

    A partition that is deleted and created again is read from its start.

    At the log end the iterator waits for new records. The iteration ends if none comes within the timeout; another
    loop over the object continues with the next record. The iteration raises `OffsetOutOfRange` if retention has
    deleted the next records, or if the log was truncated below the offset that was reached, and `DamagedRange` at
    damage. After these errors, call `seek` with the offset at which to continue. The iteration raises `StoreClosed`
    if another thread closes the store. Only one thread or task may use the object.
    """

    def __init__(
        self,
        store: Store,
        partitions: Callable[[], Iterable[Partition]],
        offsets: Mapping[str, int],
        make: Callable[[Partition, Record], R],
        timeout: float | None,
        isolation: IsolationLevel,
    ) -> None:
        """Follow the partitions that `partitions` returns. Each read calls this function, to find new partitions.

        `offsets` maps partition names to the first offset to read. A partition that is not in `offsets` is read from
        its log start. `make` converts each record to the item that the iterator returns. `timeout` is in seconds;
        with None the iteration never ends. `isolation` is "read_uncommitted" or "read_committed".
        """
        self._store = store
        self._partitions = partitions
        self._offsets = dict(offsets)
        self._ids: dict[str, PartitionIdentity] = {}
        # How far each partition has been read, including the entries in `_read`.
        self._reached: dict[str, ReachedOffset] = {}
        for name, offset in self._offsets.items():
            self._begin(name, store._log(name), offset)
        self._make = make
        self._timeout = checked_timeout(timeout)
        self._isolation = isolation
        # The entries that were read, but not returned yet.
        self._read: deque[Entry[R]] = deque()
        # The error of each partition whose next records have left the log; `seek` removes it.
        self._left: dict[str, OffsetOutOfRange] = {}
        # The partition that could not be read when others had been read already. The next read begins with this
        # partition, to raise the error. "" if there is none.
        self._unread = ""
        self._since: float | None = None
        self._pause = _SHORTEST_PAUSE

    @property
    def offsets(self) -> Mapping[str, int]:
        """The next offset to read in each partition, by partition name."""
        return self._offsets.copy()

    def seek(self, partition: str, offset: int) -> None:
        """Continue the iteration at `offset` in the partition with the name `partition`, such as after an error."""
        self._read.clear()
        self._offsets[partition] = offset
        self._ids.pop(partition, None)
        self._left.pop(partition, None)
        log = self._store._engine.find(partition)
        if log is not None:
            self._begin(partition, log, offset)

    def __iter__(self) -> Self:
        return self

    def __aiter__(self) -> Self:
        return self

    def __next__(self) -> R:
        while (found := self._next_read()) is None:
            if not self._note(self._take()):
                self._store._stopped.wait(self._next_pause(StopIteration))
        return found

    async def __anext__(self) -> R:
        while (found := self._next_read()) is None:
            # If this task is cancelled, the entries that the worker thread reads are dropped, and the next call reads
            # them again.
            if not self._note(await asyncio.to_thread(self._take)):
                await asyncio.sleep(self._next_pause(StopAsyncIteration))
        return found

    def _next_read(self) -> R | None:
        """Return the next item that was read but not returned yet; None if another chunk must be read first."""
        _ = self._store._engine  # raises `StoreClosed`
        while self._read:
            name, after, item = self._read.popleft()
            self._offsets[name] = after
            if item is not None:
                self._since, self._pause = None, _SHORTEST_PAUSE
                return item
        return None

    def _note(self, taken: list[Entry[R]]) -> bool:
        self._read.extend(taken)
        return bool(taken)

    def _take(self) -> list[Entry[R]]:
        """Read up to 1000 offsets of each partition, and return an `Entry` for each record that was read.

        After the records of a partition, an entry without a record has the offset of the next read. If a partition
        cannot be read, the partitions after it are not read. The error is raised if no entry was read before it;
        otherwise the entries are returned, and the next call raises the error. The error of an offline partition is
        raised in any case.
        """
        taken: list[Entry[R]] = []
        # Clear `_unread`: if the partition cannot be read again, this call raises the error, and the next call must
        # read the other partitions.
        first, self._unread = self._unread, ""
        for partition in sorted(self._partitions(), key=lambda each: each.name != first):
            name = partition.name
            reader = partition._reader(self._isolation)
            start = self._start(name, reader)
            try:
                self._check(name, reader, start)
            except OffsetOutOfRange:
                if not taken:
                    raise
                self._unread = name
                break
            if not add_chunk(taken, partition, reader, start, self._make):
                self._unread = name
                break
            if taken and taken[-1][0] == name:
                self._reached[name].advance(reader.log, taken[-1][1])
        return taken

    def _check(self, name: str, reader: Reader, start: int) -> None:
        """Raise `OffsetOutOfRange` if `start` is outside of the log, or if the log was truncated below `start`.

        `start` is the next offset to read in the partition `name`. After an error, each later call for the partition
        raises the same error, until `seek` is called for it.
        """
        if name not in self._left:
            try:
                reader.check_readable(start)
                cut = self._reached[name].truncation_below(reader.log, start)
            except OffsetOutOfRange as error:
                self._left[name] = error
            else:
                if cut is None:
                    return
                self._left[name] = OffsetOutOfRange(
                    f"{name}: the log was truncated below {start}, up to which it was read; go on with "
                    f"seek({name!r}, {cut.continuation})"
                )
        raise self._left[name]

    def _start(self, name: str, reader: Reader) -> int:
        """Return the next offset to read in the partition `name`, whose present log `reader` reads.

        If the partition was deleted and created again, this is the log start. The same holds for a partition for
        which `offsets` has no offset yet.
        """
        if name not in self._ids or not self._ids[name].is_of(reader.log):
            if name in self._ids:
                # The partition was deleted and created again.
                self._offsets.pop(name, None)
                self._left.pop(name, None)
            self._begin(name, reader.log, self._offsets.get(name, reader.log_start_offset))
        return self._offsets.get(name, reader.log_start_offset)

    def _begin(self, name: str, log: Log, offset: int) -> None:
        """Remember that `log` is the log of the partition `name`, and that it is read from `offset` on."""
        self._ids[name] = PartitionIdentity(log)
        self._reached[name] = ReachedOffset(log, offset)

    def _next_pause(self, stop: type[Exception]) -> float:
        """Return the time (seconds) until the next check for new records.

        Raises `stop` if no record has come within the timeout.
        """
        now = time.monotonic()
        if self._since is None:
            self._since = now
        pause = self._pause
        self._pause = min(2 * pause, _LONGEST_PAUSE)
        if self._timeout is not None:
            pause = min(pause, self._since + self._timeout - now)
            if pause <= 0:
                self._since, self._pause = None, _SHORTEST_PAUSE
                raise stop
        return pause
