"""A disk that records the steps of a workload, and every state that a power cut during them could leave.

The model is the weakest that POSIX allows. The content of a file at its last fsync is durable, and so are the names
that a sync of their directory covered. Every later change is uncertain: a write may be whole, torn, zeroed or lost,
alone or with others; a truncation may not have happened; a mapped file may have its content of any time; a name may
be the old or the new one. A plain `Store` opens each such image, and must keep the promises of docs/durability.md.
"""

from __future__ import annotations

import errno
import functools
import os
import random
import re
import shutil
import tempfile
import threading
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

from logfs.errors import CommitPending, LogfsError
from logfs.format.batches.record import Record
from logfs.format.text.rendering import View
from logfs.log.append.fetched_batches import append_fetched
from logfs.log.disk.disk import Disk, File
from logfs.log.read.text_view import TextView
from logfs.log.segment.batch_iterator import DamagedRange
from logfs.store.directory.log_dir import CLEAN_SHUTDOWN
from logfs.store.directory.permissions import Access, PermissionTable
from logfs.store.maintenance.retention import RetentionCause
from logfs.store.staged_commits import read_commits
from logfs.store.store import Store
from tests.support.staging import stage
from tests.support.stores import abandon, errors_of

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Iterator, Sequence

    from typing_extensions import Buffer

    from logfs.format.files.commit_file import StagedFile
    from logfs.log.append.partition import Partition

_T = TypeVar("_T")

LOG = "log"
# The second log directory, in workloads that have one.
OTHER = "other"
SMALL = {"segment.bytes": "600", "segment.index.bytes": "240", "index.interval.bytes": "100"}

# The time at which the state after a crash is examined: some days later, before any writer of commits expires.
LATER_MS = 1_700_400_000_000

# The value and the key of a record that is appended to show that a log still accepts records.
AFTERWARDS = (b"afterwards", b"after")

Image = dict[str, bytes | None]
"""A tree of files: path below the root -> content, None for a directory."""


def fast_directory() -> str | None:
    """Return the directory where thousands of small trees cost least; None for the default one."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@contextmanager
def scratch() -> Iterator[Path]:
    """Make an empty directory, and remove it afterwards."""
    path = Path(tempfile.mkdtemp(prefix="logfs-crash-", dir=fast_directory()))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def write_image(root: Path, image: Image) -> None:
    """Write a tree of files; in sorted order a directory comes before its files."""
    for name in sorted(image):
        content = image[name]
        if content is None:
            (root / name).mkdir()
        else:
            (root / name).write_bytes(content)


def read_image(root: Path) -> Image:
    """Return the tree of files below a directory."""
    found: Image = {}
    for path in root.rglob("*"):
        found[str(path.relative_to(root))] = None if path.is_dir() else path.read_bytes()
    return found


def log_dirs(root: Path) -> list[Path]:
    """Return the log directories of the store below a directory."""
    other = root / OTHER
    return [root / LOG, other] if other.is_dir() else [root / LOG]


# Recording.


class Op(NamedTuple):
    """One step: its `kind`, the inode that it changes, and the arguments of that kind."""

    kind: str
    inode: int
    name: str = ""
    other: str = ""
    position: int = 0
    data: bytes = b""


def _one_at_a_time(method: Callable[..., _T]) -> Callable[..., _T]:
    """Let the threads that close partitions call a method of a `RecordingDisk` one after the other."""

    @functools.wraps(method)
    def called(disk: RecordingDisk, *arguments: Any, **named: Any) -> _T:
        with disk.steps:
            return method(disk, *arguments, **named)

    return called


class RecordingDisk(Disk):
    """A `Disk` below `root` that also records every step that changes something.

    `steps` is held during each step, so that the record has the steps of several threads in the order of the disk.
    """

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.steps = threading.RLock()
        self.root = root
        self.ops: list[Op] = []
        # The kinds of the calls that have failed.
        self.failed: list[str] = []
        self.oracles: list[tuple[int, Oracle]] = []
        self.start = read_image(root)
        self._inodes: dict[Path, int] = {root: 0}
        for name in sorted(self.start):
            self._inodes[root / name] = len(self._inodes)
        self._next = len(self._inodes)
        self._fds: dict[int, int] = {}
        self._mapped: dict[int, tuple[int, bytes]] = {}
        self._maps: list[tuple[mmap.mmap, int]] = []

    def close(self) -> None:
        """Close the descriptors that observe the mapped files."""
        for fd, _ in self._mapped.values():
            os.close(fd)
        self._mapped.clear()
        self._maps.clear()

    @_one_at_a_time
    def note(self, oracle: Oracle) -> None:
        """Record the account that holds for a crash from here on."""
        self._note_stores()
        self.oracles.append((len(self.ops), oracle))

    def _note(self, kind: str, inode: int, **more: object) -> None:
        self._note_stores()
        self.ops.append(Op(kind, inode, **more))  # type: ignore[arg-type]

    def _note_stores(self) -> None:
        """Record the stores through mappings since the last step."""
        for inode, (fd, before) in self._mapped.items():
            now = os.pread(fd, os.fstat(fd).st_size, 0)
            if now != before:
                self.ops.append(Op("store", inode, data=now))
                self._mapped[inode] = fd, now

    def _inode(self, file: File) -> int:
        return self._fds[file.fd]

    def _watch(self, inode: int) -> None:
        """Take the content of a mapped file as known: a recorded call changed it, not a store through the mapping."""
        if inode in self._mapped:
            fd, _ = self._mapped[inode]
            self._mapped[inode] = fd, os.pread(fd, os.fstat(fd).st_size, 0)

    @_one_at_a_time
    def open(self, path: Path, *, write: bool = False, create: bool = False) -> File:
        if create and path not in self._inodes:
            self._inodes[path], self._next = self._next, self._next + 1
            parent = self._inodes[path.parent]
            self._note("create", self._inodes[path], name=path.name, position=parent)
        file = super().open(path, write=write, create=create)
        self._fds[file.fd] = self._inodes[path]
        return file

    @_one_at_a_time
    def write(self, file: File, position: int, data: Buffer) -> None:
        self._note("write", self._inode(file), position=position, data=bytes(data))
        super().write(file, position, data)
        self._watch(self._inode(file))

    @_one_at_a_time
    def truncate(self, file: File, size: int) -> None:
        self._note("truncate", self._inode(file), position=size)
        super().truncate(file, size)
        self._watch(self._inode(file))

    @_one_at_a_time
    def sync(self, file: File) -> None:
        super().sync(file)
        self._note("sync", self._inode(file))

    @_one_at_a_time
    def map(self, file: File, size: int) -> mmap.mmap:
        mapping = super().map(file, size)
        inode = self._inode(file)
        if inode not in self._mapped:
            fd = os.dup(file.fd)
            self._mapped[inode] = fd, os.pread(fd, os.fstat(fd).st_size, 0)
        self._maps.append((mapping, inode))
        return mapping

    @_one_at_a_time
    def sync_map(self, mapping: mmap.mmap) -> None:
        super().sync_map(mapping)
        self._note("sync", next(inode for known, inode in self._maps if known is mapping))

    @_one_at_a_time
    def rename_unsynced(self, old: Path, new: Path) -> None:
        inode = self._inodes.pop(old)
        parent = self._inodes[old.parent]
        self._note("rename", inode, name=old.name, other=new.name, position=parent)
        for path in [path for path in self._inodes if old in path.parents]:
            self._inodes[new / path.relative_to(old)] = self._inodes.pop(path)
        self._inodes[new] = inode
        super().rename_unsynced(old, new)

    @_one_at_a_time
    def unlink(self, path: Path) -> None:
        if path in self._inodes:
            parent = self._inodes[path.parent]
            self._note("unlink", self._inodes.pop(path), name=path.name, position=parent)
        super().unlink(path)

    @_one_at_a_time
    def mkdir(self, path: Path, *, mode: int = 0o755) -> None:
        self._inodes[path], self._next = self._next, self._next + 1
        parent = self._inodes[path.parent]
        self._note("mkdir", self._inodes[path], name=path.name, position=parent)
        super().mkdir(path, mode=mode)

    @_one_at_a_time
    def rmdir(self, path: Path) -> None:
        parent = self._inodes[path.parent]
        self._note("unlink", self._inodes.pop(path), name=path.name, position=parent)
        super().rmdir(path)

    @_one_at_a_time
    def sync_directory(self, path: Path) -> None:
        super().sync_directory(path)
        if path in self._inodes:
            self._note("sync", self._inodes[path])


class FaultDisk(RecordingDisk):
    """A recording disk that fails at call number `at`, or from there on if `persistent`; it counts the calls.

    After a failed sync the kernel regards the pages as clean: no later sync makes them durable.
    """

    KINDS = frozenset(
        {"open", "write", "truncate", "sync", "map", "sync_map", "rename", "unlink", "mkdir"}
        | {"rmdir", "sync_directory", "read", "allocate"}
    )

    def __init__(
        self, root: Path, at: int = -1, number: int = errno.EIO, *, persistent: bool = False
    ) -> None:
        super().__init__(root)
        self.at = at
        self.number = number
        self.persistent = persistent
        self.calls = 0
        self.seen: list[str] = []
        self.armed = True

    def _may_fail(self, kind: str, path: object) -> None:
        if not self.armed:
            return
        number, self.calls = self.calls, self.calls + 1
        self.seen.append(kind)
        if number == self.at or (self.persistent and 0 <= self.at <= number):
            self.inject(kind, path)

    def inject(self, kind: str, path: object) -> NoReturn:
        """Fail in the present call."""
        self.failed.append(kind)
        raise OSError(self.number, f"injected: {os.strerror(self.number)}", str(path))

    @_one_at_a_time
    def open(self, path: Path, *, write: bool = False, create: bool = False) -> File:
        self._may_fail("open", path)
        return super().open(path, write=write, create=create)

    @_one_at_a_time
    def read(self, file: File, position: int, size: int) -> bytes:
        self._may_fail("read", file.path)
        return super().read(file, position, size)

    @_one_at_a_time
    def write(self, file: File, position: int, data: Buffer) -> None:
        try:
            self._may_fail("write", file.path)
        except OSError:
            # Half of the data is written, as on a disk that fills up.
            half = bytes(data)[: len(bytes(data)) // 2]
            super().write(file, position, half)
            raise
        super().write(file, position, data)

    @_one_at_a_time
    def truncate(self, file: File, size: int) -> None:
        self._may_fail("truncate", file.path)
        super().truncate(file, size)

    @_one_at_a_time
    def sync(self, file: File) -> None:
        try:
            self._may_fail("sync", file.path)
        except OSError:
            self._note("badsync", self._inode(file))
            raise
        super().sync(file)

    @_one_at_a_time
    def allocate(self, file: File, position: int, size: int) -> None:
        self._may_fail("allocate", file.path)
        super().allocate(file, position, size)

    @_one_at_a_time
    def map(self, file: File, size: int) -> mmap.mmap:
        self._may_fail("map", file.path)
        return super().map(file, size)

    @_one_at_a_time
    def sync_map(self, mapping: mmap.mmap) -> None:
        try:
            self._may_fail("sync_map", "")
        except OSError:
            self._note("badsync", next(inode for known, inode in self._maps if known is mapping))
            raise
        super().sync_map(mapping)

    @_one_at_a_time
    def rename_unsynced(self, old: Path, new: Path) -> None:
        self._may_fail("rename", old)
        super().rename_unsynced(old, new)

    @_one_at_a_time
    def unlink(self, path: Path) -> None:
        self._may_fail("unlink", path)
        super().unlink(path)

    @_one_at_a_time
    def mkdir(self, path: Path, *, mode: int = 0o755) -> None:
        self._may_fail("mkdir", path)
        super().mkdir(path, mode=mode)

    @_one_at_a_time
    def rmdir(self, path: Path) -> None:
        self._may_fail("rmdir", path)
        super().rmdir(path)

    @_one_at_a_time
    def sync_directory(self, path: Path) -> None:
        self._may_fail("sync_directory", path)
        super().sync_directory(path)


# The state that a crash must leave.


class Sent(NamedTuple):
    """A record that was sent: its value, its timestamp in ms and its key."""

    value: bytes | None
    timestamp: int
    key: bytes | None = None


@dataclass(frozen=True)
class Expected:
    """The records that must and that may be in a partition. If `exists` is None, the partition may exist or not.

    `missing` are offsets in the log that may have no record, because of compaction or a transaction marker. `leaving`
    are offsets that were durable and are being dropped: their records may exist or not, but must not be damaged.
    `hidden` are records of transactions that were aborted or have no end: read_committed must not show them. Unless
    `has_open`, it must show the other durable records.
    """

    exists: bool | None
    durable: dict[int, Sent]
    allowed: dict[int, frozenset[Sent]]
    missing: frozenset[int]
    leaving: frozenset[int]
    hidden: frozenset[tuple[int, Sent]]
    has_open: bool


class SentCommit(NamedTuple):
    """A commit of staged records, by partition; `done` if it is known to have succeeded."""

    writer: str
    sequence: int
    values: dict[str, tuple[bytes, ...]]
    done: bool = False


@dataclass(frozen=True)
class Oracle:
    """The records, settings and commits that must and that may be in a store."""

    partitions: dict[str, Expected]
    configs: dict[str, tuple[dict[str, str], ...]]
    commits: tuple[SentCommit, ...] = ()


class Stopped(Exception):
    """The rest of a workload makes no sense after an injected fault, such as a store that cannot be opened again."""


class Workload:
    """A store in use, and an account of its promises at each step.

    A step that fails stays in the account as one that may have happened. `failures` are the errors.
    """

    def __init__(self, disk: RecordingDisk, *, settings: dict[str, str] | None = None) -> None:
        self.disk = disk
        self.log_dirs = [disk.root / LOG]
        self.now_ms = 1_700_000_000_000
        self.logs: dict[str, list[Sent]] = {}
        self.durable: dict[str, dict[int, Sent]] = {}
        self.allowed: dict[str, dict[int, set[Sent]]] = {}
        self.compacted: set[str] = set()
        # Offsets that are being dropped, and those that are dropped for good.
        self.going: dict[str, set[int]] = {}
        self.gone: dict[str, set[int]] = {}
        # Offsets that are being dropped and were durable.
        self.leaving: dict[str, set[int]] = {}
        # Transactions: the offsets of their markers, and the records that read_committed must not show, by offset.
        self.markers: dict[str, set[int]] = {}
        self.hidden: dict[str, set[tuple[int, Sent]]] = {}
        # The partitions with a transaction that a fault has left without an end.
        self.with_open: set[str] = set()
        self.producers = 0
        self.exists: dict[str, bool | None] = {}
        self.configs: dict[str, list[dict[str, str]]] = {}
        self.commits: list[SentCommit] = []
        # The records of a pending commit.
        self.waiting: dict[str, frozenset[Sent]] = {}
        self.failures: list[Exception] = []
        self.failed: list[Partition] = []
        # Crashes before this step are left out.
        self.since = 0
        self.settings = SMALL if settings is None else settings
        self._note()
        self.store = Store(self.log_dirs, clock=lambda: self.now_ms, disk=disk)
        self.is_open = True

    def _note(self) -> None:
        partitions = {
            name: Expected(
                exists,
                dict(self.durable[name]),
                self._allowed(name),
                self._missing(name),
                frozenset(self.leaving[name]),
                frozenset(self.hidden[name]),
                name in self.with_open,
            )
            for name, exists in self.exists.items()
        }
        configs = {topic: tuple(map(dict, known)) for topic, known in self.configs.items()}
        self.disk.note(Oracle(partitions, configs, tuple(self.commits)))

    def _allowed(self, name: str) -> dict[int, frozenset[Sent]]:
        allowed = {offset: frozenset(sent) for offset, sent in self.allowed[name].items()}
        if name in self.waiting:
            # The records may be at any offset, depending on the log end when the commit completes.
            waiting = self.waiting[name]
            for offset in range(max(allowed, default=-1) + len(waiting) + 1):
                allowed[offset] = allowed.get(offset, frozenset()) | waiting
        return allowed

    def _missing(self, name: str) -> frozenset[int]:
        """Return the offsets of markers and, if the log is compacted, those being dropped, gone, or not flushed."""
        if name not in self.compacted:
            return frozenset(self.markers[name])
        unflushed = set(self.allowed[name]) - set(self.durable[name])
        return frozenset(self.markers[name] | self.going[name] | self.gone[name] | unflushed)

    def step(self, action: Callable[[], object]) -> bool:
        """Call `action`, which may fail if faults are injected; return whether it succeeded."""
        try:
            action()
        except (LogfsError, OSError) as error:
            self.failures.append(error)
            return False
        return True

    def _log(self, name: str) -> Partition | None:
        """Return a partition, or None if it does not exist or, after a fault, cannot be opened."""
        found: list[Partition] = []
        if name in self.store:
            self.step(lambda: found.append(self.store[name]))
        return found[0] if found else None

    def _contents(self, name: str) -> list[Record] | None:
        """Return the records of a partition, or None if they cannot be read after a fault."""
        partition = self._log(name)
        found: list[Record] = []
        if partition and self.step(lambda: found.extend(partition.read())):
            return found
        return None

    def create(self, name: str) -> None:
        """Write the settings, and then create the partition, unless an earlier one could not be deleted."""
        if name in self.store.registry.partitions:
            return
        topic = name.rpartition("-")[0]
        for key, value in self.settings.items():
            if not self.configure(topic, key, value):
                # With the default settings the indexes of the partition would be thousands of times as large.
                return
        self.logs[name] = []
        self.durable[name] = {}
        self.allowed[name] = {}
        self.going[name] = set()
        self.gone[name] = set()
        self.leaving[name] = set()
        self.markers[name] = set()
        self.hidden[name] = set()
        self.exists[name] = None
        self._note()
        if self.step(lambda: self.store.create(name)):
            self.exists[name] = True
            self._note()

    def configure(self, topic: str, key: str, value: str) -> bool:
        """Change a setting; return whether that succeeded."""
        known = self.configs.setdefault(topic, [{}])
        changed = {**known[-1], key: value}
        known.append(changed)
        self._note()
        done = self.step(lambda: self.store.settings.set_topic(topic, key, value))
        if done:
            self.configs[topic] = [changed]
        else:
            known.insert(0, known.pop())
        self._note()
        return done

    def permit(self, name: str, file: str, mode: int) -> None:
        """Change the mode of a virtual file of a partition; nothing is promised about it after a crash."""
        partition = self._log(name)
        if partition is not None:
            access = Access(mode, os.getuid(), os.getgid())
            self.step(lambda: PermissionTable(partition).set(file, access))

    def append(self, name: str, *values: bytes) -> None:
        """Append records with these values, one ms after the last record."""
        self.put(name, *((None, value) for value in values))

    def put(self, name: str, *pairs: tuple[bytes | None, bytes | None]) -> None:
        """Append records with keys, one ms after the last record; a value of None is a tombstone."""
        partition = self._log(name)
        if partition is not None:
            self.now_ms += 1
            sent = [Sent(value, self.now_ms, key) for key, value in pairs]
            records = [Record(value, key) for key, value in pairs]
            self._append(name, partition, sent, lambda: partition.append(records))

    def _append(
        self, name: str, partition: Partition, sent: list[Sent], action: Callable[[], object]
    ) -> bool:
        """Call `action`, which appends these records; return whether it succeeded."""
        first = partition.log_end_offset
        self._allow(name, first, sent)
        self._note()
        is_done = self.step(action)
        # A write of several batches may stop half-way: the log end offset shows how much was written.
        done = partition.log_end_offset - first
        assert done in (0, len(sent)) or len(sent) > 1
        self.logs[name] += sent[:done]
        return is_done

    def _allow(self, name: str, first: int, sent: list[Sent]) -> None:
        """Allow these records from the offset `first` on."""
        for offset, record in enumerate(sent, start=first):
            self.allowed[name].setdefault(offset, set()).add(record)

    def fetch(self, name: str, source: str) -> None:
        """Append the batches of another partition that this one lacks, as a mirror does."""
        partition, other = self._log(name), self._log(source)
        if partition is None or other is None:
            return
        first = partition.log_end_offset
        data: list[bytes] = []
        if self.step(lambda: data.extend(bytes(batch.data) for batch in other.batches(first))):
            sent = self.logs[source][first:]
            self._append(name, partition, sent, lambda: append_fetched(partition, b"".join(data)))

    def transact(self, name: str, *values: bytes, commit: bool) -> None:
        """Append records in a transaction of a new producer, one ms after the last record, and end it a ms later."""
        partition = self._log(name)
        if partition is None:
            return
        self.now_ms += 1
        self.producers += 1
        first, producer = partition.log_end_offset, self.producers
        sent = [Sent(value, self.now_ms) for value in values]
        own = set(enumerate(sent, start=first))
        self.hidden[name] |= own
        if not self._append(
            name,
            partition,
            sent,
            lambda: partition.append_transactional(values, producer, 0, 0),
        ):
            self.with_open.add(name)
            return
        if commit:
            self.hidden[name] -= own
        self.now_ms += 1
        marker = partition.log_end_offset
        self.markers[name].add(marker)
        self._note()
        is_done = self.step(lambda: partition.end_transaction(producer, 0, commit=commit))
        if partition.log_end_offset > marker:
            self.logs[name].append(Sent(None, self.now_ms))
            self.gone[name].add(marker)
        if not is_done:
            self.with_open.add(name)

    def commit(self, writer: str, sequence: int, values: dict[str, tuple[bytes, ...]]) -> None:
        """Stage values for partitions, one ms after the last record, and commit them. Raises `Stopped` if that fails.

        A commit that is pending could be finished by any later step.
        """
        self.now_ms += 1
        staged = self._staged(writer, sequence, values)
        logs = {name: self.store[name] for name in values}
        before = {name: log.log_end_offset for name, log in logs.items()}
        sent = {name: [Sent(value, self.now_ms) for value in values[name]] for name in values}
        self.commits.append(SentCommit(writer, sequence, values))
        for name, first in before.items():
            self._allow(name, first, sent[name])
        self._note()
        done = self.step(lambda: self.store.commit(writer, sequence, staged))
        for name, first in before.items():
            # After a failed fsync readers see the records, but nothing is promised about them.
            count = logs[name].log_end_offset - first
            assert count in (0, len(sent[name]))
            self.logs[name] += sent[name][:count]
        if done:
            self.commits[-1] = self.commits[-1]._replace(done=True)
            for name, log in logs.items():
                # The log object is passed because its log directory may have failed since.
                self._settle(name, log)
        else:
            raise Stopped

    def _staged(
        self, writer: str, sequence: int, values: dict[str, tuple[bytes, ...]]
    ) -> list[StagedFile]:
        """Stage values for the partitions of the store. Raises `Stopped` if that fails."""
        staged: list[StagedFile] = []
        if not self.step(lambda: staged.extend(restage(self.store, writer, sequence, values))):
            raise Stopped
        return staged

    def hold_up(self, writer: str, sequence: int, values: dict[str, tuple[bytes, ...]]) -> None:
        """Commit values on a disk that is full once the commit is decided: it is pending until `make_room`.

        Its timestamps are later than those of all records that are appended until then.
        """
        now_ms, self.now_ms = self.now_ms, self.now_ms + 1000
        staged = self._staged(writer, sequence, values)
        for name in values:
            self.waiting[name] = frozenset(Sent(value, self.now_ms) for value in values[name])
        self.commits.append(SentCommit(writer, sequence, values))
        self._note()
        write = self.disk.write

        def full(file: File, position: int, data: Buffer) -> None:
            if file.path.suffix == ".log":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            write(file, position, data)

        self.disk.write = full  # type: ignore[method-assign]
        try:
            assert not self.step(lambda: self.store.commit(writer, sequence, staged))
        finally:
            del self.disk.write
        if not isinstance(self.failures.pop(), CommitPending):
            assert self.disk.failed
            raise Stopped
        self.now_ms = now_ms

    def make_room(self) -> None:
        """Let upkeep complete the pending commit."""
        self.now_ms += 2000
        self.upkeep(0)
        if self.store.commits.pending():
            assert self.disk.failed
            raise Stopped
        self.commits[-1] = self.commits[-1]._replace(done=True)
        for name in self.waiting:
            there = self._contents(name)
            if there is None:
                raise Stopped
            new = [each for each in there if each.offset >= len(self.logs[name])]
            self.logs[name] += [Sent(r.value, r.timestamp or 0, r.key) for r in new]
        while self.waiting:
            name, _ = self.waiting.popitem()
            self._settle(name, self._log(name))

    def replay(self, number: int) -> None:
        """Send a commit that succeeded again, with new staged files."""
        again = self.commits[number]
        self.now_ms += 1

        def send() -> None:
            staged = restage(self.store, again.writer, again.sequence, again.values)
            assert self.store.commit(again.writer, again.sequence, staged).already

        self.step(send)

    def look(self, name: str, *keys: bytes) -> None:
        """Look up the newest record of each key, which may write a key index file."""
        partition = self._log(name)
        if partition is None or partition.failure is not None:
            return
        newest = {sent.key: sent for sent in self.logs[name]}
        for key in keys:
            expected = newest[key].value if key in newest else None

            def ask(key: bytes = key, expected: bytes | None = expected) -> None:
                found = partition.newest(key)
                assert (found and found.value) == expected, f"{name}: key {key!r}: {found}"

            self.step(ask)

    def flush(self, name: str) -> None:
        """Flush a partition."""
        partition = self._log(name)
        if partition and self.step(partition.flush):
            self._settle(name, partition)

    def _settle(self, name: str, partition: Partition | None) -> None:
        """Take the records below the recovery point as durable, and those in the log as the only ones allowed."""
        if partition is None:
            return
        point = partition.recovery_point
        log = enumerate(self.logs[name])
        there = {offset: sent for offset, sent in log if offset not in self.gone[name]}
        stays = there.keys() - self.going[name]
        self.durable[name] = {o: sent for o, sent in there.items() if o < point and o in stays}
        self.allowed[name] = {offset: {sent} for offset, sent in there.items()}
        self._note()

    def _drop(self, going: dict[str, set[int]], action: Callable[[], object]) -> None:
        """Call `action`, which drops some of the offsets `going` of each partition: the log shows which ones."""
        for name, offsets in going.items():
            self.going[name] |= offsets
            self.leaving[name] |= offsets & self.durable[name].keys()
            for offset in offsets:
                self.durable[name].pop(offset, None)
        self._note()
        if not self.step(action):
            return
        for name, offsets in going.items():
            left = self._contents(name)
            if left is not None:
                self.gone[name] = set(range(len(self.logs[name]))) - {each.offset for each in left}
                assert self.gone[name] & offsets or self.disk.failed, "nothing was dropped"
                self.going[name], self.leaving[name] = set(), set()
                self._settle(name, self._log(name))

    def compact(self, name: str) -> None:
        """Compact a partition: the newest record of each key stays, and tombstones are dropped when they may be."""
        partition = self._log(name)
        if partition is None:
            return
        below = self.logs[name][: partition.active.base_offset]
        newest = {sent.key: offset for offset, sent in enumerate(below)}
        going = {o for o, sent in enumerate(below) if newest[sent.key] > o or sent.value is None}
        self.compacted.add(name)
        self._drop({name: going}, lambda: self.store.compact(name))

    def retain(self, name: str, limit_bytes: int) -> None:
        """Drop the oldest segments above a size limit."""
        if name not in self.store:
            return
        if self.configure(name.rpartition("-")[0], "retention.bytes", str(limit_bytes)):
            # Nothing is promised about unflushed records, which may be dropped or stay; so flush first.
            self.flush(name)
            self._drop(self._expired(), self.store.retain)

    def _expired(self) -> dict[str, set[int]]:
        """Return the offsets of each partition that retention would drop now."""
        found: dict[str, set[int]] = {}

        def plan(name: str) -> None:
            start = self.store.retention_plan(name).log_start_offset
            left = set(range(min(start, len(self.logs[name])))) - self.gone[name]
            if left:
                found[name] = left

        for name in self.logs:
            if name in self.store:
                self.step(functools.partial(plan, name))
        return found

    def tier(self, name: str) -> None:
        """Copy the sealed segments of a partition into the object store, and drop local ones."""
        if name in self.store and self.step(lambda: self.store.tier(name)):
            # Nothing is copied before it is durable.
            self._settle(name, self._log(name))
            self.step(lambda: self.store.retain([name]))

    def upkeep(self, later_ms: int) -> None:
        """Advance the clock, and do the upkeep that is due, except compaction."""
        self.now_ms += later_ms
        self._drop(self._expired(), lambda: self.store.upkeep(compaction=False))

    def roll(self, name: str) -> None:
        """Roll to a new segment."""
        partition = self._log(name)
        if partition:
            self.step(lambda: partition.roll(self.now_ms))

    def truncate(self, name: str, offset: int) -> None:
        """Truncate a partition to `offset`."""
        partition = self._log(name)
        if partition is None:
            return
        log = self.logs[name]
        while 0 < offset < len(log) and log[offset].timestamp == log[offset - 1].timestamp:
            # A batch is dropped as a whole.
            offset -= 1
        for gone in [known for known in self.durable[name] if known >= offset]:
            del self.durable[name][gone]
        self._note()
        if self.step(lambda: self.store.truncate(name, offset)):
            for gone in [known for known in self.allowed[name] if known >= offset]:
                del self.allowed[name][gone]
        if partition.failure is None:
            # The truncation has succeeded, even if the write of the checkpoints after it has failed.
            end = partition.log_end_offset
            del self.logs[name][end:]
            for offsets in (self.gone, self.markers):
                offsets[name] = {offset for offset in offsets[name] if offset < end}
        self._note()

    def delete(self, name: str) -> None:
        """Delete a partition, and let its directory be removed."""
        if name not in self.store:
            return
        self.exists[name] = None
        topic = name.rpartition("-")[0]
        self.configs[topic] = [{}, *self.configs[topic]]
        self.durable[name] = {}
        self._note()
        if self.step(lambda: self.store.delete(name)):
            if not self.disk.failed:
                # After a fault a power cut may undo the deletion, or the settings may stay until the next opening.
                self.exists[name] = False
                self.configs[topic] = [{}]
            self._note()
        self.now_ms += 10_000_000
        self.step(self.store.upkeep)

    def undelete(self, name: str, *, later: bool = False) -> None:
        """Delete a partition, and bring it back, `later` in another store; until that is done it may be missing."""
        if name not in self.store:
            return
        topic = name.rpartition("-")[0]
        durable, configs = self.durable[name], self.configs[topic]
        self.exists[name] = None
        self.configs[topic] = [{}, *configs]
        self.durable[name] = {}
        self._note()
        done = self.step(lambda: self.store.delete(name))
        if later:
            self.close()
            self.reopen()
        if done and self.step(lambda: self.store.undelete(name)):
            self.exists[name] = True
            self.configs[topic] = configs
            self.durable[name] = durable
            self._note()

    def checkpoint(self) -> None:
        """Write the checkpoints."""
        self.step(self.store.checkpoints.write)

    def close(self) -> None:
        """Close the store, if it is open. A partition with a clean-shutdown marker is then durable."""
        if not self.is_open:
            return
        self.is_open = False
        partitions = self.store.registry.partitions.values()
        self.failed = [partition for partition in partitions if partition.failure is not None]
        if not self.step(self.store.close):
            return
        for name in self.store.registry.partitions:
            is_marked = (self.store.registry.home(name) / CLEAN_SHUTDOWN).exists()
            if is_marked and name in self.logs:
                may_be_gone = self.gone[name] | self.going[name]
                log = enumerate(self.logs[name])
                self.durable[name] = {o: sent for o, sent in log if o not in may_be_gone}
        self._note()

    def reopen(self) -> None:
        """Open the store again. Raises `Stopped` if that fails, or after a fault, which may have lost records."""

        def opened() -> None:
            self.store = Store(self.log_dirs, clock=lambda: self.now_ms, disk=self.disk)
            self.is_open = True

        if self.disk.failed or not self.step(opened):
            raise Stopped

    def add_log_dir(self) -> None:
        """Close the store, and open it with a second log directory as well."""
        self.close()
        self.log_dirs.append(self.disk.root / OTHER)
        self.reopen()

    def move(self, name: str, log_dir: str) -> None:
        """Move a partition to another log directory, which makes its records durable."""
        if name in self.store and self.step(
            lambda: self.store.move(name, self.disk.root / log_dir)
        ):
            self._settle(name, self._log(name))


# Crash images.


@dataclass
class _File:
    durable: bytes = b""
    pending: list[Op] = field(default_factory=list)
    doomed: bool = False


@dataclass
class _Directory:
    durable: dict[str, int] = field(default_factory=dict)
    pending: list[Op] = field(default_factory=list)


class _Model:
    """The durable state and the pending changes after some steps."""

    def __init__(self, start: Image) -> None:
        self.nodes: dict[int, _File | _Directory] = {0: _Directory()}
        inodes = {"": 0}
        for name in sorted(start):
            content = start[name]
            inodes[name] = inode = len(inodes)
            self.nodes[inode] = _Directory() if content is None else _File(content)
            above, _, last = name.rpartition("/")
            parent = self.nodes[inodes[above]]
            assert isinstance(parent, _Directory)
            parent.durable[last] = inode

    def apply(self, op: Op) -> None:
        """Apply the next step."""
        if op.kind in ("create", "mkdir"):
            self.nodes[op.inode] = _File() if op.kind == "create" else _Directory()
        if op.kind in ("create", "mkdir", "rename", "unlink"):
            parent = self.nodes[op.position]
            assert isinstance(parent, _Directory)
            parent.pending.append(op)
            return
        node = self.nodes[op.inode]
        if op.kind == "badsync":
            assert isinstance(node, _File)
            node.doomed = True
        elif op.kind != "sync":
            node.pending.append(op)
        elif isinstance(node, _Directory):
            node.durable, node.pending = _names(node.durable, node.pending), []
        elif not node.doomed:
            node.durable, node.pending = _content(node.durable, node.pending), []

    def images(self) -> Iterator[Image]:
        """Yield every image that a crash may leave now; some are yielded more than once."""
        files = {i: n for i, n in self.nodes.items() if isinstance(n, _File) and n.pending}
        directories = {
            i: n for i, n in self.nodes.items() if isinstance(n, _Directory) and n.pending
        }
        whole = {i: _content(n.durable, n.pending) for i, n in files.items()}
        lost = {i: n.durable for i, n in files.items()}
        now = {i: _names(n.durable, n.pending) for i, n in directories.items()}
        before = {i: n.durable for i, n in directories.items()}
        for contents in (whole, lost):
            for entries in self._name_variants(directories, now, before):
                yield self._image(contents, entries)
        for inode, node in files.items():
            for variant in _variants(node):
                for entries in (now, before):
                    yield self._image({**whole, inode: variant}, entries)
                    yield self._image({**lost, inode: variant}, entries)
        # The last writes of all files torn or zeroed together; all mapped files old, zero or missing together.
        for change in (_tear_last, _zero_last):
            changed = {i: change(n) for i, n in files.items()}
            yield self._image(changed, now)
            yield self._image(changed, before)
        mapped = [i for i, n in files.items() if any(op.kind == "store" for op in n.pending)]
        for choice in ("zero", "old", "missing"):
            contents = dict(whole)
            for inode in mapped:
                contents[inode] = (
                    bytes(len(whole[inode])) if choice == "zero" else files[inode].durable
                )
            missing = set(mapped) if choice == "missing" else set()
            yield self._image(contents, now, missing)
        for inode in mapped:
            yield self._image(whole, now, {inode})

    @staticmethod
    def _name_variants(
        directories: dict[int, _Directory],
        now: dict[int, dict[str, int]],
        before: dict[int, dict[str, int]],
    ) -> Iterator[dict[int, dict[str, int]]]:
        yield now
        yield before
        for inode, node in directories.items():
            yield {**now, inode: node.durable}
            for number in range(len(node.pending)):
                without = node.pending[:number] + node.pending[number + 1 :]
                yield {**now, inode: _names(node.durable, without)}
                yield {**now, inode: _names(node.durable, node.pending[:number])}

    def _image(
        self,
        contents: dict[int, bytes],
        entries: dict[int, dict[str, int]],
        missing: set[int] = frozenset(),  # type: ignore[assignment]
    ) -> Image:
        image: Image = {}

        def add(inode: int, prefix: str) -> None:
            node = self.nodes[inode]
            assert isinstance(node, _Directory)
            for name, child in entries.get(inode, node.durable).items():
                below = self.nodes[child]
                if child in missing:
                    continue
                if isinstance(below, _Directory):
                    image[prefix + name] = None
                    add(child, f"{prefix}{name}/")
                else:
                    image[prefix + name] = contents.get(child, below.durable)

        add(0, "")
        return image


def _names(names: dict[str, int], ops: Sequence[Op]) -> dict[str, int]:
    names = dict(names)
    for op in ops:
        if op.kind == "unlink":
            names.pop(op.name, None)
        elif op.kind == "rename":
            names.pop(op.name, None)
            names[op.other] = op.inode
        else:
            names[op.name] = op.inode
    return names


def _content(content: bytes, ops: Sequence[Op]) -> bytes:
    for op in ops:
        if op.kind == "write":
            content = content.ljust(op.position, b"\0")
            content = content[: op.position] + op.data + content[op.position + len(op.data) :]
        elif op.kind == "truncate":
            content = content[: op.position].ljust(op.position, b"\0")
        else:
            content = op.data
    return content


def _zeroed(op: Op) -> Op:
    return op._replace(data=bytes(len(op.data)))


def _torn(op: Op, size: int) -> Op:
    return op._replace(data=op.data[:size])


def _variants(node: _File) -> Iterator[bytes]:
    """Yield the possible contents of a file after a crash: any one pending step lost, torn or zeroed; any prefix."""
    durable, pending = node.durable, node.pending
    for number, op in enumerate(pending):
        before, after = pending[:number], pending[number + 1 :]
        yield _content(durable, before)
        yield _content(durable, before + after)
        if op.kind == "truncate":
            continue
        yield _content(durable, [*before, _zeroed(op), *after])
        yield _content(durable, [*before, _zeroed(op)])
        size = len(op.data)
        if op.kind == "write":
            sectors = range(512 - op.position % 512, size, 512)
            for cut in {*sectors, 1, 12, 61, size // 2 | 1, size - 1}:
                if 0 < cut < size:
                    yield _content(durable, [*before, _torn(op, cut)])
                    yield _content(durable, [*before, _torn(op, cut), *after])
            # The size is durable and the data is not: the end of the write reads as zeros.
            if size > 1:
                half = op.data[: size // 2].ljust(size, b"\0")
                yield _content(durable, [*before, op._replace(data=half), *after])


def _change_last(node: _File, change: Callable[[Op], Op]) -> bytes:
    ops = list(node.pending)
    for number in reversed(range(len(ops))):
        if ops[number].kind == "write":
            ops[number] = change(ops[number])
            break
    return _content(node.durable, ops)


def _tear_last(node: _File) -> bytes:
    return _change_last(node, lambda op: _torn(op, len(op.data) // 2))


def _zero_last(node: _File) -> bytes:
    return _change_last(node, _zeroed)


class State(NamedTuple):
    """An image after `after` steps, and the account that held before the next step."""

    image: Image
    oracle: Oracle
    after: int


def crash_states(
    disk: RecordingDisk, oracle: Oracle | None = None, *, since: int = 0
) -> list[State]:
    """Return the states that a crash after any number of the recorded steps may leave, each once for each account.

    `oracle` is the account until the first recorded one; crashes before step `since` are left out.
    """
    model = _Model(disk.start)
    accounts = list(disk.oracles)
    seen: set[tuple[int, frozenset[tuple[str, object]]]] = set()
    states = []
    number_of_account = 0
    for done in range(len(disk.ops) + 1):
        if done:
            model.apply(disk.ops[done - 1])
        while accounts and accounts[0][0] <= done:
            oracle = accounts.pop(0)[1]
            number_of_account += 1
        if oracle is None or done < since:
            continue
        for image in model.images():
            # Cheap, because successive images share the bytes of most files, and bytes objects cache their hash.
            known = (number_of_account, frozenset(image.items()))
            if known not in seen:
                seen.add(known)
                states.append(State(image, oracle, done))
    return states


def sample(states: list[State], count: int, seed: int = 1) -> list[State]:
    """Return `count` of the states, or all if there are no more, in an order that mixes all steps."""
    return random.Random(seed).sample(states, min(count, len(states)))


# Checking an image against the promises.


class Observed(NamedTuple):
    """The readable records of a partition, its damaged offsets, its log end offset, and offsets without a record.

    `committed` are the offsets of the records that read_committed shows.
    """

    records: dict[int, Sent]
    damaged: frozenset[int]
    end: int
    missing: frozenset[int]
    committed: frozenset[int]


_OFFSETS = re.compile(r"offsets (\d+) to (\d+) are (?:damaged|missing)")


def observe(partition: Partition) -> Observed:
    """Read a partition through every interface; the results must agree."""
    records: dict[int, Sent] = {}
    damaged: set[int] = set()
    missing: set[int] = set()
    start, end = partition.log_start_offset, partition.log_end_offset
    for offset in range(start, end):
        try:
            record = partition.record(offset)
        except DamagedRange as error:
            named = range(error.first_offset, error.next_offset)
            record = None
            if offset in named:
                damaged.add(offset)
                continue
        if record is None:
            missing.add(offset)
            continue
        assert record.offset == offset
        records[offset] = Sent(record.value, record.timestamp, record.key)
    _read_in_order(partition, records, damaged, missing, start, end)
    committed = _read_committed(partition, records)
    _read_as_text(partition, records, damaged)
    _read_by_key(partition, records, damaged)
    # As in Kafka, a lookup by time ends at an empty segment, which counts with the time of its file.
    if not damaged and all(segment.size_bytes for segment in partition.segments[:-1]):
        for offset, sent in records.items():
            found = partition.offset_for_time(sent.timestamp)
            assert found is not None, f"no record at the time of offset {offset}"
            assert found.timestamp == sent.timestamp
            assert records[found.offset].timestamp == sent.timestamp
            assert found.offset <= offset
    return Observed(records, frozenset(damaged), end, frozenset(missing), committed)


def _read_in_order(
    partition: Partition,
    records: dict[int, Sent],
    damaged: set[int],
    missing: set[int],
    start: int,
    end: int,
) -> None:
    read: dict[int, Sent] = {}
    skipped: set[int] = set()
    at = start
    while at < end:
        try:
            for record in partition.read(at):
                passed = set(range(at, record.offset))
                assert passed <= missing, f"reading went from {at} to {record.offset} in silence"
                at = record.offset + 1
                read[record.offset] = Sent(record.value, record.timestamp, record.key)
            break
        except DamagedRange as error:
            skipped.update(range(max(at, error.first_offset), min(error.next_offset, end)))
            at = max(error.next_offset, at)
    assert read == records
    assert skipped == damaged


def _read_committed(partition: Partition, records: dict[int, Sent]) -> frozenset[int]:
    """Return the offsets that read_committed shows; their records must be those that are there."""
    found: set[int] = set()
    reader, at = partition.committed, partition.log_start_offset
    while at < reader.log_end_offset:
        try:
            for record in reader.read(at):
                assert records[record.offset].value == record.value
                found.add(record.offset)
            break
        except DamagedRange as error:
            at = max(error.next_offset, at)
    return frozenset(found)


def _read_as_text(partition: Partition, records: dict[int, Sent], damaged: set[int]) -> None:
    view = TextView(partition, View.LINES)
    size = view.size
    parts = []
    at = 0
    while at < size:
        try:
            part = view.read(at, size - at, up_to_damage=True)
        except DamagedRange:
            at += 1
            continue
        assert part, "the text ends before its size"
        parts.append(part)
        at += len(part)
    assert b"".join(parts) == b"".join((records[o].value or b"") + b"\n" for o in sorted(records))


def _read_by_key(partition: Partition, records: dict[int, Sent], damaged: set[int]) -> None:
    """Check that the newest record of a key is the last one in offset order, unless damage hides a newer one."""
    newest = {sent.key: offset for offset, sent in sorted(records.items()) if sent.key is not None}
    for key, offset in newest.items():
        try:
            found = partition.newest(key)
        except DamagedRange:
            assert damaged
            continue
        expected = None if records[offset].value is None else offset
        assert damaged or (found and found.offset) == expected, f"key {key!r}: {found}"


def observe_store(store: Store) -> dict[str, Observed]:
    """Return what is observed of each partition but those of the store's own topic; none may be offline."""
    assert not store.offline, store.offline
    return {n: observe(store[n]) for n in store if not n.startswith("__remote_log_metadata-")}


def hold(found: dict[str, Observed], oracle: Oracle) -> None:
    """Check that no promised record is missing, and that no record exists that was never sent."""
    for name, expected in oracle.partitions.items():
        if expected.exists is True:
            assert name in found, f"{name} is gone"
        elif expected.exists is False:
            assert name not in found, f"{name} is back"
        if name not in found:
            continue
        shown = found[name]
        unexplained = shown.missing - expected.missing
        assert not unexplained, f"{name}: offsets {sorted(unexplained)} are missing in silence"
        torn = shown.damaged & expected.leaving
        assert not torn, f"{name}: offsets {sorted(torn)} were to be dropped, and are damaged"
        for offset, sent in expected.durable.items():
            assert shown.records.get(offset) == sent, f"{name}: offset {offset} was durable"
        for offset, sent in shown.records.items():
            allowed = expected.allowed.get(offset, frozenset())
            assert sent in allowed, f"{name}: {sent} at offset {offset} was never sent there"
        uncommitted = {(o, shown.records[o]) for o in shown.committed} & expected.hidden
        assert not uncommitted, f"{name}: read_committed shows {sorted(uncommitted)}"
        if not expected.has_open and not shown.damaged:
            held_back = {*expected.durable.items()} - expected.hidden
            held_back = {(o, sent) for o, sent in held_back if o not in shown.committed}
            assert not held_back, f"{name}: read_committed hides {sorted(held_back)}"
        timestamps = [shown.records[offset].timestamp for offset in sorted(shown.records)]
        assert timestamps == sorted(timestamps), f"{name}: records of two histories are mixed"
    assert set(found) <= set(oracle.partitions)


def restage(
    store: Store, writer: str, sequence: int, values: dict[str, tuple[bytes, ...]]
) -> list[StagedFile]:
    """Stage values for the partitions of a store, two in each batch; return the staged files."""
    return [
        stage(
            store[name].directory,
            store[name].config,
            writer,
            sequence,
            [Record(value) for value in values[name]],
            now_ms=store.clock(),
            disk=store.disk,
        )
        for name in values
    ]


def hold_commits(found: dict[str, Observed], oracle: Oracle, *, replayed: bool = False) -> None:
    """Check that each commit is there as a whole or not at all; one that is `done` or was replayed is there once."""
    for commit in oracle.commits:
        counts = set()
        for name, values in commit.values.items():
            there = Counter(sent.value for sent in found[name].records.values())
            counts |= {there[value] for value in values}
        allowed = ({1},) if commit.done or replayed else ({0}, {1})
        assert counts in allowed, f"{commit}: its values are there {counts} times"


def begun(root: Path) -> list[Path]:
    """Return the log directories that hold something; one that is missing or empty after a crash is not one yet."""
    return [path for path in log_dirs(root) if path.is_dir() and any(path.iterdir())]


def held_reported(found: dict[str, Observed], errors: Sequence[str]) -> None:
    """Check that the audit reports every damaged offset, and no other."""
    for name, shown in found.items():
        reported: set[int] = set()
        for error in errors:
            match = _OFFSETS.search(error)
            if match and f"/{name}/" in error:
                reported.update(range(int(match[1]), int(match[2]) + 1))
        assert shown.damaged <= reported, f"damage that the audit is silent about: {errors}"
        assert not {o for o in shown.records if o in reported}, f"good offsets: {errors}"
    if not any(shown.damaged for shown in found.values()):
        assert not errors, errors


def _abandoned(root: Path, now_ms: int, disk: Disk | None = None) -> dict[str, Observed]:
    """Open a store, observe it, and abandon it without closing; return what was observed."""
    store = Store(log_dirs(root), clock=lambda: now_ms, disk=disk)
    try:
        return observe_store(store)
    finally:
        abandon(store)


def _seen_read_only(root: Path, now_ms: int) -> dict[str, Observed]:
    """Open a store read-only and return what is observed; the files must not change."""
    if not begun(root):
        return {}
    before = tree(root)
    with Store(begun(root), clock=lambda: now_ms, read_only=True) as store:
        found = observe_store(store)
    assert tree(root) == before, "a read-only opening has changed something"
    return found


def hold_retention(store: Store) -> None:
    """Check that retention by time expires no segment: no record is older than the default of seven days."""
    for name in store:
        expired = store.retention_plan(name).expired
        by_time = [gone.reason for gone in expired if gone.cause is RetentionCause.TIME]
        assert not by_time, f"{name}: {by_time}"


def tree(root: Path) -> Image:
    """Return the files of a store, except its lock."""
    return {name: data for name, data in read_image(root).items() if not name.endswith("/.lock")}


def verify(root: Path, oracle: Oracle, now_ms: int = LATER_MS) -> Counter[str]:
    """Recover a store twice, check its promises, append to it and audit it; return counts of what was seen.

    Raises `AssertionError` if a promise is broken.
    """
    seen: Counter[str] = Counter()
    if any((log_dir / CLEAN_SHUTDOWN).exists() for log_dir in log_dirs(root)):
        # A clean start trusts the indexes; the start after it is a recovery, which rebuilds them.
        hold(_abandoned(root, now_ms), oracle)
    is_pending = read_commits(Disk(), root / LOG).pending is not None
    read_only = _seen_read_only(root, now_ms)
    found = _abandoned(root, now_ms)
    hold(found, oracle)
    hold_commits(found, oracle)
    if not is_pending:
        assert read_only == found, "a read-only opening shows something else than recovery leaves"
    if is_pending:
        # Completing a commit appends records, and leaves files that the next recovery trims.
        assert _abandoned(root, now_ms) == found
    recovered = tree(root)
    again = _abandoned(root, now_ms)
    assert again == found, "a second recovery shows something else"
    now = tree(root)
    changed = [name for name in {*now, *recovered} if now.get(name) != recovered.get(name)]
    assert not changed, f"a second recovery changes {sorted(changed)}"
    held_reported(found, errors_of(begun(root)))
    with Store(log_dirs(root), clock=lambda: now_ms) as store:
        for topic, known in oracle.configs.items():
            overrides = dict(store.settings.topic_overrides(topic))
            assert overrides in known, f"settings of {topic}: {overrides}"
        hold_retention(store)
        for name in found:
            end = store[name].log_end_offset
            assert store[name].append([Record(*AFTERWARDS)]) == end
            store[name].flush()
        for name, shown in found.items():
            more = observe(store[name])
            value, key = AFTERWARDS
            assert more.records.pop(shown.end) == Sent(value, now_ms, key)
            assert more.records == shown.records
    held_reported(found, errors_of(begun(root)))
    with Store(log_dirs(root), clock=lambda: now_ms) as store:
        for name, shown in found.items():
            last = observe(store[name])
            assert last.records.pop(shown.end).value == AFTERWARDS[0]
            assert last.records == shown.records
    _replay(root, oracle, found, now_ms)
    seen["states"] += 1
    seen["with damage"] += any(shown.damaged for shown in found.values())
    seen["torn tails cut"] += any(name.endswith(".torn") for name in recovered)
    return seen


def _replay(root: Path, oracle: Oracle, found: dict[str, Observed], now_ms: int) -> None:
    """Send every commit again, as a writer does that does not know whether it succeeded."""
    known = [commit for commit in oracle.commits if set(commit.values) <= set(found)]
    if not known:
        return
    with Store(log_dirs(root), clock=lambda: now_ms) as store:
        for commit in known:
            staged = restage(store, commit.writer, commit.sequence, commit.values)
            store.commit(commit.writer, commit.sequence, staged)
        shown = observe_store(store)
        hold_commits(shown, oracle, replayed=True)
        for name, partition in shown.items():
            there = partition.records.keys() | partition.damaged
            assert not set(range(min(there, default=0), partition.end)) - there, f"{name}: gaps"
    held_reported(shown, errors_of(begun(root)))


def verify_state(state: State) -> Counter[str]:
    """Write an image to a directory and `verify` it; the `AssertionError` describes the image."""
    with scratch() as root:
        write_image(root, state.image)
        try:
            return verify(root, state.oracle)
        except Exception as error:
            shape = {n: None if c is None else len(c) for n, c in sorted(state.image.items())}
            raise AssertionError(f"after {state.after} steps: {error!r}\n{shape}") from error


def _recover(root: Path, disk: Disk) -> None:
    abandon(Store(log_dirs(root), clock=lambda: LATER_MS, disk=disk))


def _recover_and_close(root: Path, disk: Disk) -> None:
    Store(log_dirs(root), clock=lambda: LATER_MS, disk=disk).close()


def _reindex(root: Path, disk: Disk) -> None:
    """Recover and close, and then rebuild every index from the log."""
    _recover_and_close(root, disk)
    Store(log_dirs(root), clock=lambda: LATER_MS, disk=disk, recover=True).close()


def _read_and_close(root: Path, disk: Disk) -> None:
    """Recover and close, and then open, read everything and close again."""
    _recover_and_close(root, disk)
    with Store(log_dirs(root), clock=lambda: LATER_MS, disk=disk) as store:
        observe_store(store)


# The actions that may follow a crash, until the next one.
AFTER_A_CRASH: dict[str, Callable[[Path, Disk], None]] = {
    "recovery": _recover,
    "clean close": _recover_and_close,
    "reindex": _reindex,
    "clean start": _read_and_close,
}


def second_states(state: State, action: Callable[[Path, Disk], None]) -> list[State]:
    """Return the states that a second crash may leave, during or after `action`, which follows the first crash."""
    with scratch() as root:
        write_image(root, state.image)
        disk = RecordingDisk(root)
        try:
            action(root, disk)
            return crash_states(disk, state.oracle)
        finally:
            disk.close()
