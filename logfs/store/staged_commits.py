"""Atomic commits of staged batches to several partitions: to all of them or to none, and never twice.

A commit is decided when one rename replaces the commit file `logfs-commits` in one of the log directories. Before
this rename nothing has changed. After it the commit is certain to be done, at the latest by the next process that
opens the directories for writing. Each writer numbers its commits. The commit file also keeps the number (`sequence`)
of each writer's last commit, for `EXPIRATION_MS` after that commit. So a commit that is sent again changes nothing.
"""

from __future__ import annotations

import errno
import logging
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from logfs.errors import (
    CommitPending,
    Corrupt,
    InvalidRecord,
    InvalidStore,
    LogfsError,
    NotWritable,
)
from logfs.format.base.names import INT64_MAX
from logfs.format.files import commit_file
from logfs.format.files.commit_file import (
    NO_PLACE,
    CommitLog,
    CommitPart,
    Pending,
    StagedFile,
    Writer,
)
from logfs.locks import Level, make_rlock
from logfs.log.append.staged_batches import (
    StagedAppend,
    StagedSize,
    assign_place,
    measure_staged,
    reconcile,
)
from logfs.log.disk.disk import EXHAUSTED, Disk
from logfs.log.recovery import FilePosition
from logfs.store.directory.log_dir import FirstError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from logfs.format.base.names import TopicPartition
    from logfs.store.directory.log_dir import LogDir
    from logfs.store.registry import PartitionRegistry

logger = logging.getLogger(__name__)

# How long a writer's last commit is kept: as long as Kafka keeps a transactional id (transactional.id.expiration.ms).
EXPIRATION_MS = 7 * 86_400_000
# The age (ms) at which upkeep removes staged files that no decided commit needs; no writer takes so long to commit.
ORPHAN_MS = 86_400_000
# The interval (ms) at which upkeep searches for staged files to remove.
_LOOK_MS = 3_600_000
# The errnos of failed writes after which a partition still works: exhausted resources, or a missing staged file.
_HARMLESS = EXHAUSTED | {errno.ENOENT}


class Committed(NamedTuple):
    """The outcome of a commit: `offsets` maps each partition to (first offset, offset after the last).

    If `already` is True, the writer had already made this commit or a later one. Then nothing was changed, and
    `offsets` is empty.
    """

    already: bool
    offsets: dict[str, tuple[int, int]]


class Commits:
    """The commits of a store. One commit runs at a time; a read-only store accepts none.

    A commit has a part (`CommitPart`) for each partition. A part has the staged batches and their place in the log:
    the offset and the position (bytes) at which they begin. A part is done when its batches are durable in the log,
    or when its partition was deleted.
    """

    def __init__(self, registry: PartitionRegistry) -> None:
        """Read the commit files, unless the store is read-only. An error is logged, and raised by each `commit`."""
        self._registry = registry
        self._lock = make_rlock(Level.COMMITS)
        self._known: dict[LogDir, CommitLog] = {}
        self._unreadable: LogfsError | OSError | None = None
        self._next_look_ms = registry.opened_ms
        for log_dir in () if registry.read_only else registry.log_dirs:
            try:
                self._known[log_dir] = read_commits(log_dir.disk, log_dir.path)
            except (Corrupt, OSError) as error:
                # Without this file it is unknown which commits were done, so `commit` refuses all new ones.
                logger.error("staged batches are refused until the store is reopened: %s", error)
                self._unreadable = error

    def pending(self) -> dict[LogDir, Pending]:
        """Return the commits that are decided (certain to be done) but not done: at most one per log directory."""
        return {path: log.pending for path, log in self._known.items() if log.pending is not None}

    def partitions(self) -> set[str]:
        """Return the partitions of commits that are decided but not done. These partitions must not be moved."""
        return {part.partition for pending in self.pending().values() for part in pending.parts}

    def commit(self, writer: str, sequence: int, staged: Iterable[StagedFile]) -> Committed:
        """Append staged batches to their partitions, in the order of `staged`: all or none.

        `writer` is the name of the writer, and `sequence` the writer's own number of this commit. If the number is
        not above that of the writer's last commit, the commit was made before: nothing is appended, and the staged
        files are removed.

        These errors are raised before the commit is decided, and leave everything as it was: `UnknownPartition`,
        `RecordTooLarge`, `InvalidRecord`, `InvalidStore`, `Corrupt`, `PartitionFailed`, `NotWritable`, `OSError`, and
        `WouldBlock` in a thread that must not wait for the disk. There is one exception: if the sync of the new
        commit file fails with an `OSError`, the commit may be decided nevertheless. `CommitPending` means that this
        commit or an earlier one is decided but could not be finished; the error names the cause.
        """
        self._registry.disk.check_may_block()
        files = list(staged)
        if self._registry.read_only:
            raise NotWritable(f"{writer}: not committed: the store is open read-only")
        if not commit_file.is_writer(writer) or not 0 <= sequence <= INT64_MAX:
            raise InvalidRecord(
                f"writer {writer!r}, sequence {sequence}: give a writer name in UTF-8 that is not empty, and a "
                f"sequence in 0..{INT64_MAX}"
            )
        with self._lock:
            if self._unreadable is not None:
                raise self._unreadable
            self._check_open(writer)
            self.finish()
            known = [log.writers.get(writer) for log in self._known.values()]
            if any(last is not None and sequence <= last.sequence for last in known):
                logger.info("%s: commit %d was done before; nothing is changed", writer, sequence)
                self._discard(files)
                return Committed(True, {})
            return self._commit(writer, sequence, files)

    def _check_open(self, writer: str) -> None:
        """Raise `InvalidStore` if a log directory in the registry's `missing_log_dirs` has commits of `writer`."""
        for path in self._registry.missing_log_dirs:
            if writer in read_commits(self._registry.disk, path).writers:
                raise InvalidStore(
                    f"{path}: has the commits of {writer}, but is not open; open the log directories together, as in "
                    f"'{self._registry.words} {path}'"
                )

    def _commit(self, writer: str, sequence: int, files: Sequence[StagedFile]) -> Committed:
        registry = self._registry
        by_partition: dict[str, list[StagedFile]] = {}
        for file in files:
            if file.record_count:
                by_partition.setdefault(file.partition, []).append(file)
        for name in sorted(by_partition):
            registry.writable(name).check_appendable()
        _check_names(files)
        home = self._home_of(writer, min(by_partition, default=None))
        sizes = {}
        parts = []
        for name, chosen in sorted(by_partition.items()):
            partition = registry.writable(name)
            sizes[name] = measure_staged(
                partition.disk, partition.directory, chosen, partition.config, registry.clock()
            )
            where = "" if registry.homes[name] is home else str(registry.home(name))
            parts.append(CommitPart(name, tuple(chosen), 0, 0, 0, 0, log_dir=where))
            # Flush now, too: the flush under the locks then has little to write, and delays other threads little.
            partition.flush()
        self._check_space(parts)
        pending = Pending(writer, sequence, registry.clock(), tuple(parts))
        offsets = {}
        for part in self._apply(home, pending, sizes):
            count = sizes[part.partition].record_count
            offsets[part.partition] = part.base_offset, part.base_offset + count
        return Committed(False, offsets)

    def _check_space(self, parts: Sequence[CommitPart]) -> None:
        """Raise `OSError` (ENOSPC) if a log directory has too little free space for the batches of a commit."""
        needed: Counter[LogDir] = Counter()
        for part in parts:
            needed[self._registry.homes[part.partition]] += sum(
                file.size_bytes for file in part.files
            )
        for log_dir, size in needed.items():
            free = log_dir.disk.free_bytes(log_dir.path)
            if free < size:
                what = f"a commit needs {size} bytes, and {free} are free: free some space, and try again"
                raise OSError(errno.ENOSPC, what, str(log_dir.path))

    def _home_of(self, writer: str, name: str | None) -> LogDir:
        """Return the log directory whose commit file is to record a commit of a writer.

        This is the directory that has the writer's last commit, if it works. Otherwise it is the log directory of the
        partition `name` or, if `name` is None, the first log directory that works.
        """
        known = [home for home, log in self._known.items() if writer in log.writers]
        if known and known[0].failure is None:
            return known[0]
        return self._registry.working[0] if name is None else self._registry.homes[name]

    def _apply(
        self, home: LogDir, pending: Pending, sizes: Mapping[str, StagedSize]
    ) -> Sequence[CommitPart]:
        """Make the decision for a commit durable, append the batches, and record that the commit is done.

        Returns the parts of the commit, with the offsets of their batches. If the commit `pending` is decided
        already, only its parts that are not done are appended. `home` is the log directory whose commit file records
        the commit. `sizes` has the size of each part that is not done, by partition. The locks of the partitions are
        held until the batches are durable.
        """
        todo = [part for part in pending.parts if not part.done]
        partitions = {part.partition: self._registry.writable(part.partition) for part in todo}
        with ExitStack() as stack:
            for partition in partitions.values():
                stack.enter_context(partition.flusher.lock)
                stack.enter_context(partition.lock)
            for partition in partitions.values():
                partition.check_appendable()
            placed = {}
            for part in todo:
                partition = partitions[part.partition]
                for file in part.files:
                    # Raise `FileNotFoundError` if the staged file is missing, for example because the partition was
                    # moved since `measure_staged`.
                    partition.disk.stat(partition.directory / file.name)
                # Flush before the decision: a crash must not lose the records before the batches of a decided commit.
                partition.flush()
                now_ms = self._registry.clock()
                placed[part.partition] = assign_place(
                    partition, part, sizes[part.partition], now_ms
                )
            decided = replace(
                pending, parts=tuple(placed.get(part.partition, part) for part in pending.parts)
            )
            if decided != self._known[home].pending:
                self._write(home, replace(self._known[home], pending=decided))
            staged_appends = [
                StagedAppend(partitions[name], part, sizes[name]) for name, part in placed.items()
            ]
            self._land(home, decided, staged_appends)
        self._note(home, decided)
        return decided.parts

    def _land(self, home: LogDir, decided: Pending, staged_appends: Sequence[StagedAppend]) -> None:
        """Write the batches beyond the end of each log, then make them visible to readers, then flush the logs.

        The commit `decided` is recorded in the commit file of `home`. The caller must hold the locks of the
        partitions. Raises `CommitPending` after an error of any step.
        """
        for staged_append in staged_appends:
            try:
                staged_append.write()
            except (LogfsError, OSError) as error:
                for each in staged_appends:
                    try:
                        each.undo()
                    except OSError as undo_error:
                        each.partition.fail("a write failed and could not be undone", undo_error)
                if isinstance(error, OSError) and error.errno not in _HARMLESS:
                    staged_append.partition.fail("a write failed", error)
                raise _pending_error(decided, error) from error
        errors = FirstError()
        done: set[str] = set()
        for staged_append in staged_appends:
            with errors:
                staged_append.publish(self._registry.clock())
        for staged_append in staged_appends:
            with errors:
                # Flush even if another partition has failed: otherwise a crash could lose these batches after later
                # appends have followed them.
                staged_append.partition.flush()
                done.add(staged_append.part.partition)
        if errors.error is not None:
            parts = [replace(p, done=p.done or p.partition in done) for p in decided.parts]
            pending = replace(decided, parts=tuple(parts))
            self._known[home] = replace(self._known[home], pending=pending)
            raise _pending_error(decided, errors.error) from errors.error

    def _note(self, home: LogDir, done: Pending) -> None:
        """Record that a commit is done, and remove its staged files. If recording it fails, upkeep tries again."""
        now_ms = self._registry.clock()
        finished = replace(done, parts=tuple(replace(part, done=True) for part in done.parts))
        known = self._known[home]
        writers = {
            name: writer
            for name, writer in known.writers.items()
            if now_ms - writer.time_ms < EXPIRATION_MS
        }
        writers[done.writer] = Writer(done.sequence, done.time_ms)
        try:
            self._write(home, CommitLog(writers))
        except (LogfsError, OSError) as error:
            # Remember that all parts are done, so that upkeep does not append them again.
            self._known[home] = replace(known, pending=finished)
            logger.warning(
                "%s: commit %d is done, but not recorded yet: %s", done.writer, done.sequence, error
            )
            return
        self._discard(file for part in done.parts for file in part.files)

    def _write(self, home: LogDir, log: CommitLog) -> None:
        home.disk.replace_file(home.path / commit_file.FILE_NAME, commit_file.format_commits(log))
        self._known[home] = log

    def discard(self, files: Iterable[StagedFile]) -> None:
        """Remove staged files, except those of commits that are decided but not done.

        Raises `Corrupt` and `OSError` if a commit file cannot be read; nothing is removed then. A staged file that
        cannot be removed now is removed later by upkeep.
        """
        with self._lock:
            # Read the commit files again: a decision whose fsync failed is not in memory, but may be on the disk.
            wanted = _names_of(read_commits(home.disk, home.path).pending for home in self._known)
            self._discard(file for file in files if file.name not in wanted)

    def _discard(self, files: Iterable[StagedFile]) -> None:
        """Remove staged files. If one cannot be removed now, a warning is logged, and upkeep removes it later."""
        for file in files:
            home = self._registry.homes.get(file.partition)
            if home is None or not commit_file.is_staged_name(file.name):
                continue
            path = home.path / file.partition / file.name
            try:
                home.disk.unlink(path)
            except (LogfsError, OSError) as error:
                logger.warning(
                    "%s: cannot be removed now, upkeep removes it later: %s", path, error
                )

    def finish(self) -> None:
        """Finish the commits that are decided but not done.

        Raises `CommitPending` with the reason if a commit cannot be finished, for example because one of its
        partitions is not loaded. Also raises the error of a partition that takes no appends, `Corrupt` for a staged
        file that is damaged, and `OSError`.
        """
        with self._lock:
            for home, pending in self.pending().items():
                parts = tuple(part for part in pending.parts if self._is_present(home, part))
                sizes = {}
                for part in parts:
                    if not part.done:
                        partition = self._registry[part.partition]
                        sizes[part.partition] = measure_staged(
                            partition.disk, partition.directory, part.files, skip=part.skip
                        )
                logger.info("%s: finishing commit %d", pending.writer, pending.sequence)
                self._apply(home, replace(pending, parts=parts), sizes)

    def _is_present(self, home: LogDir, part: CommitPart) -> bool:
        """Whether the partition to which a decided commit appends `part` still exists. If not, a warning is logged.

        Also False if another program has deleted the partition and created a new one with its name. The partition
        counts as new if all of these hold:

        - `part` is not done;
        - none of the staged files of `part` is in the partition;
        - `part` has no place (`NO_PLACE`), or the log ends below its place.

        Raises `CommitPending` if the partition is not loaded, or if its log directory was not opened.
        """
        name = part.partition
        partition = self._registry.find(name)
        if partition is not None:
            is_there = any(
                partition.disk.exists(partition.directory / file.name) for file in part.files
            )
            has_stood = (
                part.base_offset != NO_PLACE and partition.log_end_offset >= part.base_offset
            )
            if part.done or is_there or has_stood:
                return True
            # `partition` is a new one with the name of a deleted one, created after the decision: return False below.
        elif name in self._registry.homes:
            raise CommitPending(
                f"{home.path}: an unfinished commit needs {name}, which is offline or not loaded"
            )
        else:
            self._check_log_dir_open(home, part)
        logger.warning(
            "%s: the partition was deleted before a commit of staged files was finished; its records are dropped",
            name,
        )
        return False

    def clear_place(self, name: str) -> None:
        """Remove from the commit file the place where a decided commit's batches begin in the partition `name`.

        Call this before each change of the log that is not an append (a compaction, a truncation or a new log start).
        Do not change the log if this raises `LogfsError` or `OSError`. Raises `WouldBlock` in a thread that must not
        wait.

        The next opening of the store uses the place to find out whether the batches were appended: it searches for
        them there. If the log start or the cleaner offset is above the place, they also count as appended. After a
        change that is not an append, this could be wrong. Batches without a place get a new one when they are
        appended.
        """
        if name not in self.partitions():
            return
        self._registry.disk.check_may_block()
        with self._lock:
            # A failed write, which may have left batches of the commit in the log, has marked the partition as
            # failed. In this case `check_changeable` raises the partition's error, so the place is kept.
            self._registry.writable(name).check_changeable()
            self._change_parts(name, lambda part: replace(part, base_offset=NO_PLACE))

    def forget_partition(self, name: str) -> None:
        """Drop what decided commits still have to append to the partition `name`, because it was deleted.

        This must be called before a new partition of that name is created. Raises `OSError`, and `CommitPending` if
        the earlier partition may still exist in a log directory that was not opened.
        """
        if name not in self.partitions():
            return
        with self._lock:
            for home, pending in self.pending().items():
                for part in pending.parts:
                    if part.partition == name and not part.done:
                        self._check_log_dir_open(home, part)
            self._change_parts(name, lambda part: replace(part, done=True))

    def _check_log_dir_open(self, home: LogDir, part: CommitPart) -> None:
        """Raise `CommitPending` if the log directory that had the partition of `part` is not open here.

        This is the log directory in which the partition was when the commit was decided. It also counts as not open
        if the names of its partitions were not read. `home` is the log directory with the commit file that records
        the commit.
        """
        known = [str(log_dir.path) for log_dir in self._registry.log_dirs if log_dir.is_known]
        if part.log_dir and part.log_dir not in known:
            raise CommitPending(
                f"{home.path}: an unfinished commit must still write to {part.partition} in {part.log_dir}, which is "
                "not open; open both log directories together to finish the commit"
            )

    def _change_parts(self, name: str, change: Callable[[CommitPart], CommitPart]) -> None:
        """Apply `change` to each unfinished `CommitPart` for the partition `name`, and record the result durably."""
        for home, pending in self.pending().items():
            parts = tuple(
                change(part) if part.partition == name and not part.done else part
                for part in pending.parts
            )
            if parts != pending.parts:
                pending = replace(pending, parts=parts)
                self._write(home, replace(self._known[home], pending=pending))

    def reconcile(self, log_dir: LogDir, name: TopicPartition, directory: Path) -> bool:
        """Compare a partition's log with the commits that are decided but not done, and make them agree.

        Returns whether files of the partition may have been changed. The caller must do this before it loads the
        partition, whose directory in `log_dir` is `directory`. Each such commit has a part (`CommitPart`) for the
        partition. The place of a part is the offset and the position in the log at which its batches begin. These are
        the cases for each part:

        - The log has all batches of the part: the part is recorded as done.
        - The log start or the cleaner offset is above the part's place, so the log has had the batches: the part is
          recorded as done.
        - A crash has left only some of the batches, at the end of the log: they are cut off.
        - Batches of another writer are at or after the part's place: nothing is cut off, and the part records how
          many of its own batches the log has.
        - The part has no place (`NO_PLACE`): nothing is changed.

        No lock is needed: an opening loads the partitions of decided commits before all others, one by one.
        """
        changed = False
        start = max(log_dir.log_starts.get(name, 0), log_dir.cleaner_offsets.get(name, 0))

        def compare(part: CommitPart) -> CommitPart:
            nonlocal changed
            if part.base_offset == NO_PLACE:
                return part
            if start > part.base_offset:
                # The log was deleted or compacted beyond the place of this part, so the part had been appended.
                return replace(part, done=True)
            try:
                part = reconcile(log_dir.disk, directory, part)[0]
            except (FileNotFoundError, Corrupt) as error:
                what = "the staged files of a decided commit are lost"
                logger.error("%s: %s: %s", directory, what, error)
            changed |= not part.done
            return part

        # Record the result now: retention, compaction or a truncation may later remove the place of the part
        # (`clear_place`). Without the result, batches that the log already has would then be appended again.
        self._change_parts(name.directory, compare)
        return changed

    def place_of_remains(
        self, log_dir: LogDir, name: TopicPartition, directory: Path
    ) -> FilePosition | None:
        """Return the position at which a crash may have left batches of an unfinished commit in a log, or None.

        `directory` is the partition's directory in `log_dir`. A read-only store ends the log at that position. The
        next opening for writing cuts the log off there, and finishes the commit.
        """
        for home in self._registry.log_dirs:
            try:
                log = read_commits(home.disk, home.path)
                for part in log.pending.parts if log.pending else ():
                    is_open = part.partition == name.directory and not part.done
                    has_place = is_open and part.base_offset != NO_PLACE
                    if has_place and reconcile(log_dir.disk, directory, part)[1]:
                        return FilePosition(part.segment, part.position)
            except (OSError, Corrupt) as error:
                logger.warning(
                    "%s: cannot search for batches of an unfinished commit: %s", directory, error
                )
        return None

    def upkeep(self, now_ms: int) -> None:
        """Finish the decided commits and, every hour, remove staged files that no commit needs."""
        if self.pending():
            self.finish()
        if now_ms >= self._next_look_ms:
            self._next_look_ms = now_ms + _LOOK_MS
            self._remove_leftovers(now_ms)

    def _remove_leftovers(self, now_ms: int) -> None:
        """Remove the staged files of finished commits, and those older than a day that no decided commit needs."""
        with self._lock:
            wanted = _names_of(self.pending().values())
            writers = {
                name: writer for log in self._known.values() for name, writer in log.writers.items()
            }
            for partition in self._registry.written().values():
                for entry in list(partition.disk.scan(partition.directory)):
                    if not entry.name.endswith(commit_file.STAGED) or entry.name in wanted:
                        continue
                    path = partition.directory / entry.name
                    age_ms = now_ms - partition.disk.stat(path).mtime_ns // 1_000_000
                    if age_ms > ORPHAN_MS or commit_file.is_over(entry.name, writers):
                        partition.disk.unlink(path)
                        logger.info("%s: removed a staged file that no commit needs", path)


def read_commits(disk: Disk, log_dir: Path) -> CommitLog:
    """Return the content of a log directory's commit file, an empty `CommitLog` if the file is missing.

    Raises `Corrupt` and `OSError`.
    """
    path = log_dir / commit_file.FILE_NAME
    try:
        return commit_file.parse_commits(disk.read_file(path))
    except FileNotFoundError:
        return CommitLog()
    except Corrupt as error:
        raise Corrupt(
            f"{path}: {error}; it is unknown which commits were done: restore the file or, if no writer can still "
            "repeat an earlier commit, remove it"
        ) from None


def _names_of(decided: Iterable[Pending | None]) -> set[str]:
    """Return the names of the staged files of all commits in `decided`."""
    parts = [part for pending in decided if pending is not None for part in pending.parts]
    return {file.name for part in parts for file in part.files}


def _check_names(files: Iterable[StagedFile]) -> None:
    """Raise `InvalidRecord` for a name that no staged file can have, and for a file that is named twice."""
    named = set()
    for file in files:
        if (file.partition, file.name) in named:
            raise InvalidRecord(f"{file.partition}: {file.name} is named twice in one commit")
        named.add((file.partition, file.name))
        if not commit_file.is_staged_name(file.name):
            raise InvalidRecord(
                f"{file.partition}: {file.name!r} is not the name of a staged file, "
                f"which ends in {commit_file.STAGED}"
            )


def _pending_error(decided: Pending, error: BaseException) -> CommitPending:
    return CommitPending(
        f"{decided.writer}: commit {decided.sequence} is decided but not finished: {error}; do not send its records "
        "again: the next commit, or the next opening of the store, finishes it"
    )
