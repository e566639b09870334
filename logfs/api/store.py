"""An open store, as a mapping of the names of its partitions to the partitions."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal
from weakref import WeakSet

from logfs.api.arguments import checked_name, checked_number
from logfs.api.consumer import Consumer
from logfs.api.groups import ConsumerGroups
from logfs.api.partition import Partition
from logfs.api.topic import Topic
from logfs.api.transaction import Transaction
from logfs.errors import InvalidName, NotWritable, StoreClosed, UnknownPartition, did_you_mean
from logfs.format.base import names
from logfs.store.directory.recognition import PathKind, recognise
from logfs.store.store import Store as Engine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime
    from typing import Self

    from logfs.errors import LogfsError
    from logfs.log.read.log import Log
    from logfs.log.read.read_committed import IsolationLevel

Mode = Literal["r", "r+"]
# The time between two rounds of upkeep in the background.
_UPKEEP_SECONDS = 1.0


def open(
    log_dirs: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    mode: Mode = "r+",
    *,
    create: bool = False,
    upkeep: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
) -> Store:
    """Open one or several log directories as a store.

    With the mode "r" nothing is changed or locked: a broker, a mount or another program may use the directories at
    the same time, and each call sees what that program has written. A bucket, such as `s3://bucket/prefix`, can be
    opened only with "r". With "r+" the store can be changed, and no other process can write to it. Partitions that
    were not closed cleanly are recovered. During recovery, `progress` is called with (partition, bytes read, bytes to
    read), perhaps by several threads at the same time.

    With "r+", an empty directory becomes a new store; with `create`, a missing directory does, too. With `upkeep`, a
    thread calls `Store.upkeep` every second. Without it, the program should call `Store.upkeep` regularly.

    Raises `TypeError` for a path that is no str or `Path`. Raises `InvalidName` for a mode other than "r" and "r+",
    or for `create` with "r". Raises `StoreLocked` if another process has locked a directory, `InvalidStore` if a path
    is not a log directory, `InvalidSetting` and `Corrupt` for wrong or damaged settings files, and `OSError`.
    """
    if mode not in ("r", "r+"):
        raise InvalidName(f"mode {mode!r}: give 'r' to read, or 'r+' to read and write")
    if create and mode == "r":
        raise InvalidName("create=True needs the mode 'r+': with 'r' nothing is written")
    if isinstance(log_dirs, bytes) or not isinstance(log_dirs, (str, os.PathLike, Iterable)):
        raise TypeError(
            f"log_dirs must be a path (str or Path) or several, not {type(log_dirs).__name__}"
        )
    paths = [log_dirs] if isinstance(log_dirs, (str, os.PathLike)) else [*log_dirs]
    for path in paths:
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"a log directory must be a str or a Path, not {type(path).__name__}")
    if not create:
        for found in map(recognise, paths):
            if found.kind is PathKind.MISSING:
                raise found.error("; create=True makes a new store" if mode == "r+" else "")
    return Store(Engine(paths, read_only=mode == "r", create=create, progress=progress), upkeep)


class Store(Mapping[str, Partition]):
    """An open store: `store["orders-0"]` is a partition, and `store.topic("orders")` a topic. Made by `logfs.open`.

    A program should close the store, which is a context manager: after a clean close, the next opening needs no
    recovery. Any thread may use the store. A partition that cannot be loaded is not in the mapping but in `offline`.
    After `close`, every call raises `StoreClosed`.
    """

    def __init__(self, engine: Engine, upkeep: bool = False) -> None:
        self._opened: Engine | None = engine
        self._path = repr([str(each.path) for each in engine.log_dirs])
        self._stopped = threading.Event()
        self._consumers: WeakSet[Consumer] = WeakSet()
        self._upkeep: threading.Thread | None = None
        if upkeep:
            # The thread refers to the engine, not to this object. Otherwise the thread would keep a store alive that
            # the program no longer refers to.
            self._upkeep = threading.Thread(
                target=_keep_up, args=(engine, self._stopped), name="logfs-upkeep", daemon=True
            )
            self._upkeep.start()

    @property
    def _engine(self) -> Engine:
        if self._opened is None:
            raise StoreClosed(f"the store {self._path} is closed; open it again")
        return self._opened

    def _log(self, name: str) -> Log:
        """Return the up-to-date log of a partition. Raises `UnknownPartition`, or the error that keeps it offline."""
        engine = self._engine
        engine.refresh(name)
        try:
            return engine[name]
        except UnknownPartition:
            if name in self.topics:
                hint = f"; it is a topic: store.topic({name!r})"
            else:
                where = engine.registry.elsewhere(name)
                hint = f"; {where}" if where else did_you_mean(name, engine)
                hint = hint or f"; store.create({name!r}) creates it"
            raise UnknownPartition(f"{name}: no such partition{hint}") from None

    def _for_writing(self, what: str) -> Engine:
        """Return the engine, which is the `Store` of `logfs.store.store`.

        Raises `NotWritable` if the store is read-only; the message begins with `what`.
        """
        engine = self._engine
        if engine.read_only:
            raise NotWritable(f"{what}: the store is open read-only; open it with the mode 'r+'")
        return engine

    def _refreshed(self) -> Engine:
        engine = self._engine
        engine.refresh("")
        return engine

    def __enter__(self) -> Self:
        _ = self._engine
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        engine = self._stop()
        if engine is not None:
            engine.__exit__(kind, error, traceback)

    def __del__(self) -> None:
        # An error in `__init__` may have left the object without its attributes.
        if getattr(self, "_opened", None) is not None:
            warnings.warn(
                f"the store {self._path} was not closed; use 'with logfs.open(…) as store:'",
                ResourceWarning,
                source=self,
                stacklevel=2,
            )
            # Release the directories without a flush: `close` may take long, or raise an error that nobody would see.
            engine = self._stop(wait=False)
            if engine is not None:
                engine.leave()

    def __repr__(self) -> str:
        state = ", closed" if self._opened is None else ""
        return f"logfs.Store({self._path}{state})"

    def _stop(self, *, wait: bool = True) -> Engine | None:
        """Mark this store as closed, and return its engine, which the caller must close.

        The engine is the `Store` of `logfs.store.store`. Returns None if this store was closed before. Tells the
        upkeep thread to end, and running compactions, moves and copies to end early. With `wait`, waits until the
        thread has ended. If Ctrl-C interrupts this method, the method unlocks the log directories without a flush.
        """
        engine, self._opened = self._opened, None
        try:
            self._stopped.set()
            for consumer in [*self._consumers]:
                consumer._abandon()
            if engine is not None:
                engine.stop_maintenance()
            if wait and self._upkeep is not None:
                self._upkeep.join()
        except BaseException:
            if engine is not None:
                engine.leave()
            raise
        return engine

    # The mapping of partitions.

    def __getitem__(self, name: str) -> Partition:
        """Return a partition. Raises `UnknownPartition` (a `KeyError`), or the error that keeps it offline."""
        self._log(name)
        return Partition(self, name)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the partitions that are not offline, in sorted order."""
        return iter(self._refreshed())

    def __len__(self) -> int:
        return len(self._refreshed())

    def __contains__(self, name: object) -> bool:
        return name in self._refreshed()

    @property
    def offline(self) -> Mapping[str, LogfsError | OSError]:
        """The partitions that cannot be used, by name, each with the error that made it offline."""
        return self._refreshed().offline.copy()

    # Partitions and topics.

    def create(self, name: str) -> Partition:
        """Create the partition `name`, such as "orders-0", and return it when it is durable.

        Raises `InvalidName`, `PartitionExists`, `NotWritable` and `OSError`. Raises `InvalidStore` if the partition
        exists in a log directory that belongs to the store, but was not opened with it.
        """
        self._for_writing(checked_name("the name of a partition", name)).create(name)
        return Partition(self, name)

    def create_topic(self, name: str, partitions: int = 1, **settings: str | float) -> Topic:
        """Create a topic with the partitions 0 to `partitions` - 1, and return it.

        Partitions that exist stay as they are. `settings` are Kafka's topic settings, with underscores for dots:
        `retention_ms="7d"`. Raises `InvalidName`, `InvalidSetting`, `PartitionExists` if all of the partitions exist,
        `NotWritable` and `OSError`.
        """
        engine = self._for_writing(checked_name("the name of a topic", name))
        texts = {each.replace("_", "."): str(to) for each, to in settings.items()}
        engine.topic(name).create(checked_number("partitions", partitions), texts)
        return Topic(self, name)

    def topic(self, name: str) -> Topic:
        """Return the topic `name`. Raises `UnknownPartition` if it has no partitions, or only offline ones."""
        return self.topics[name]

    @property
    def topics(self) -> Mapping[str, Topic]:
        """The topics of the store, by name, those of Kafka itself (`__consumer_offsets`, …) included."""
        found = {names.parse_directory(each).topic for each in self}
        return _Topics({name: Topic(self, name) for name in sorted(found)})

    def undelete(self, name: str) -> None:
        """Restore a partition or a topic that was deleted less than `file.delete.delay.ms` ago.

        The offsets that groups had committed for it are restored, too. Raises `PartitionExists` if the partition
        exists, or if the topic exists and none of its partitions can be restored. Raises `UnknownPartition` if
        neither exists and nothing can be restored, and `InvalidStore` if the deleted partition belongs to an earlier
        topic of the same name.
        """
        self._for_writing(name).undelete_all(name)

    # Groups.

    @property
    def groups(self) -> ConsumerGroups:
        """The offsets that consumer groups have committed, by group."""
        return ConsumerGroups(self)

    def consumer(
        self,
        topics: str | Iterable[str],
        *,
        group: str,
        begin: Literal["earliest", "latest"] | int | datetime = "earliest",
        timeout: float | None = None,
        isolation: IsolationLevel = "read_uncommitted",
        auto_commit: bool = True,
    ) -> Consumer:
        """Return a `Consumer`, which is a new member of a consumer group.

        `topics` has the names of topics or of partitions. In a partition without a committed offset of the group, the
        consumer begins at `begin`: "earliest" (the log start), "latest" (the log end), an offset or a time. The
        iteration ends when no record has come for `timeout` seconds; without a `timeout` it never ends.
        """
        return Consumer(
            self,
            topics,
            group,
            begin=begin,
            timeout=timeout,
            isolation=isolation,
            auto_commit=auto_commit,
        )

    def transaction(self, transactional_id: str) -> Transaction:
        """Begin a transaction over several partitions, and return it. An open one with the same id is aborted.

        Raises `NotWritable` if the store is read-only, `InvalidName` for an empty or too long id, and `OSError`.
        """
        return Transaction(self, transactional_id)

    # Maintenance.

    def upkeep(self) -> None:
        """Run the tasks that are due: flushes, checkpoints, retention, compaction, copies to a bucket.

        This may take minutes. If one of these tasks fails, the error is logged, and a later call tries the task
        again. In a read-only store, this only looks for changes that another process has made.
        """
        self._engine.upkeep()

    def retain(self) -> int:
        """Delete the segments that retention no longer keeps, and return how many were deleted."""
        return self._for_writing(self._path).retain()

    def flush(self) -> None:
        """Make all records of all partitions durable."""
        for name in self:
            self[name].flush()

    @property
    def closed(self) -> bool:
        """Whether the store was closed."""
        return self._opened is None

    def close(self) -> None:
        """Make everything durable, and release the log directories. Closing twice is harmless.

        The consumers of the store leave their groups without a commit.
        """
        engine = self._stop()
        if engine is not None:
            engine.close()


def _keep_up(engine: Engine, stopped: threading.Event) -> None:
    while not stopped.wait(_UPKEEP_SECONDS):
        engine.upkeep()


class _Topics(dict[str, Topic]):
    """Topics by name. An unknown name raises `UnknownPartition`."""

    def __missing__(self, name: str) -> Topic:
        hint = did_you_mean(name, self) or f"; store.create_topic({name!r}) creates it"
        raise UnknownPartition(f"{name}: no such topic{hint}")
