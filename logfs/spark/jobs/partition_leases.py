"""Lets tasks change partitions while the driver holds the locks of the log directories.

The driver gives each task a lease for each of the task's partitions: the permission to change this partition.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar, cast

from pyspark import TaskContext

from logfs.errors import InvalidStore, LogfsError
from logfs.format.base import names
from logfs.spark import workers
from logfs.spark.jobs.job_runner import WorkItem, run
from logfs.spark.jobs.selection import check_topics, log_dirs, of_topics
from logfs.store.directory.lease import Lease
from logfs.store.directory.recognition import check_log_dirs
from logfs.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from logfs.spark.jobs.job_runner import Progress
    from logfs.spark.jobs.selection import Paths
    from logfs.store.directory.lease import LeasedLogDir

_Result = TypeVar("_Result")


class Visited(NamedTuple, Generic[_Result]):
    """The outcome of the work on the partition `name`.

    If the work succeeded, `result` is the return value of the task's function, and `reason` is None. If the work
    failed, `reason` is the text of the error, and `result` is None.
    """

    name: str
    result: _Result | None
    reason: str | None


@dataclass(frozen=True)
class _PlannedLease:
    """A lease of a partition, with data by which a task checks that its machine has the same partition directory.

    `inode` is the inode number of the directory. `files` has (name, inode number, size in bytes) of each .log file.
    """

    lease: Lease
    inode: int
    files: tuple[tuple[str, int, int], ...]

    @classmethod
    def of(cls, lease: Lease) -> _PlannedLease:
        """In the driver: return `lease` with the inode number and .log files of its directory. Raises `OSError`."""
        directory = cls._directory(lease)
        files = []
        for path in sorted(directory.glob("*" + names.LOG)):
            found = path.stat()
            files.append((path.name, found.st_ino, found.st_size))
        return cls(lease, directory.stat().st_ino, tuple(files))

    @staticmethod
    def _directory(lease: Lease) -> Path:
        return Path(lease.log_dir, lease.partition.directory)

    def check_here(self, *, is_first: bool) -> None:
        """In a task: raise `NotOnHost` unless this machine has the leased directory and its .log files.

        Without this check, a directory without .log files would be opened as an empty log. The files are checked only
        if `is_first` is true (in the first attempt of a task), because a failed attempt may have changed them.
        """
        directory = self._directory(self.lease)
        self._check(directory, self.inode)
        for name, inode, size in self.files if is_first else ():
            found = self._check(directory / name, inode)
            if found.st_size < size:
                raise workers.NotOnHost.because(
                    f"{directory / name}: has {found.st_size} bytes, but should have at least {size}"
                )

    def _check(self, path: Path, inode: int) -> os.stat_result:
        try:
            found = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            raise workers.NotOnHost.because(f"{path}: does not exist") from None
        if found.st_ino != inode:
            raise workers.NotOnHost.because(f"{path}: has the inode {found.st_ino}, not {inode}")
        return found


class LeasedPartitions:
    """Log directories that this process has locked, and their partitions, which tasks can change.

    While tasks run, or if one has failed, the directories count as not cleanly shut down. So if the driver is killed,
    the next process that opens them recovers them, as after any crash.
    """

    def __init__(self, store: Store, topics: Iterable[str] | None) -> None:
        """Select the partitions of `topics`, or all partitions if `topics` is None.

        `store` must have locked the log directories, but must not have loaded any partition. Raises
        `UnknownPartition` for a topic that does not exist.
        """
        chosen = None if topics is None else list(topics)
        wanted = of_topics(chosen)
        self.store = store
        self.names = [name for name in sorted(store.registry.homes) if wanted(name)]
        check_topics(chosen, self.names, store)

    def visit(
        self,
        spark: SparkSession,
        title: str,
        wanted: Sequence[str],
        do: Callable[[Store, str], _Result],
        *,
        recover: bool = False,
        progress: Progress | None = None,
    ) -> list[Visited[_Result]]:
        """Call `do(store, name)` in tasks for each partition name in `wanted`, and return the results in this order.

        The `store` that `do` gets has only the partition `name`. If `recover` is true, the partition is recovered
        from its beginning when this store is opened. `title` is the name of the job in Spark's UI. `do` must be
        picklable. `progress` is called with (bytes of logs done, total bytes). Blocks until the job has ended. After
        an error for one partition, the others are still processed.
        """
        works = []
        for name in wanted:
            home = self.store.registry.homes[name]
            loan = _PlannedLease.of(Lease.of(home, names.parse_directory(name)))
            works.append(WorkItem(loan, sum(size for _, _, size in loan.files)))
        was_clean = {log_dir: log_dir.clean for log_dir in self.store.log_dirs}
        for log_dir in was_clean:
            log_dir.clean = False
        visits = run(spark, title, works, _LeasedTask(do, recover), progress)
        for log_dir, clean in was_clean.items():
            here = [
                returned
                for name, _, _, returned in visits
                if self.store.registry.homes[name] is log_dir
            ]
            log_dir.clean = clean and all(each is not None and each.clean for each in here)
        for name, _, _, returned in visits:
            if returned is not None:
                self._note(name, returned)
        return [Visited(name, result, reason) for name, result, reason, _ in visits]

    def allow_gaps(self, wanted: Iterable[str]) -> None:
        """Record in the cleaner checkpoints that the offsets of the partitions `wanted` may have gaps.

        The caller must do this before it compacts any of these partitions. Otherwise, the next load of a compacted
        partition would take the missing offsets for damage.
        """
        for log_dir in self.store.log_dirs:
            here = [
                names.parse_directory(name)
                for name in wanted
                if self.store.registry.homes[name] is log_dir
            ]
            known = log_dir.cleaner_offsets
            if not known.keys() >= set(here):
                log_dir.set_cleaner_offsets({**dict.fromkeys(here, 0), **known})

    def _note(self, name: str, returned: Lease) -> None:
        log_dir, partition = self.store.registry.homes[name], names.parse_directory(name)
        for known, value in (
            (log_dir.recovery_points, returned.recovery_point),
            (log_dir.log_starts, returned.log_start),
        ):
            known.pop(partition, None)
            if value is not None:
                known[partition] = value
        if returned.cleaner_offset is not None:
            log_dir.set_cleaner_offset(partition, returned.cleaner_offset)


@contextmanager
def lease_partitions(paths: Paths, topics: Iterable[str] | None) -> Iterator[LeasedPartitions]:
    """Lock log directories during the context, and yield their partitions of `topics` as a `LeasedPartitions`.

    None stands for all topics. Raises the errors of opening a store, such as `StoreLocked` if a mount
    or a broker holds the directories. Raises `UnknownPartition` for a topic that does not exist, and `InvalidStore`
    if an earlier commit of staged batches must be completed but cannot be.
    """
    directories = [Path(path) for path in log_dirs(paths, for_writing=True)]
    check_log_dirs(directories)
    with Store(directories, only="") as store:
        if store.commits.pending():
            where = ", ".join(map(str, directories))
            raise InvalidStore(
                f"{where}: an unfinished commit cannot be completed; 'logfs recover' shows why"
            )
        yield LeasedPartitions(store, topics)


@dataclass(frozen=True)
class _LeasedTask(Generic[_Result]):
    """The function that a task calls for each partition that is leased to it.

    It calls `do` with a store that has only this partition. If `recover` is true, the partition is recovered from its
    beginning first. It returns (name of the partition, result of `do`, text of the error, lease). The lease has the
    values that the driver must write to the checkpoint files. After an error, the result and the lease are None;
    otherwise the text is None.
    """

    do: Callable[[Store, str], _Result]
    recover: bool

    def __call__(self, loan: _PlannedLease) -> tuple[str, _Result | None, str | None, Lease | None]:
        lease, context = loan.lease, TaskContext.get()
        name = lease.partition.directory
        try:
            loan.check_here(is_first=context is None or context.attemptNumber() == 0)
            with Store(lease, only=name, recover=self.recover) as store:
                home = cast("LeasedLogDir", store.registry.homes[name])
                result = self.do(store, name)
        except LogfsError as error:
            return name, None, str(error), None
        except OSError as error:
            return name, None, str(workers.located(error)), None
        return name, result, None, home.returned()
