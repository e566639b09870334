"""The read-only audit of a store, which reports all errors that can be seen in the files (`Finding`).

`logfs check` prints the findings, and every test ends with the audit. The audit only reads files, so it may run while
a broker or a mount uses them. Records that are written to a log during its audit are not audited.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from logfs.errors import Corrupt, LogfsError, UnknownPartition
from logfs.format.base import names
from logfs.format.files import checkpoint, commit_file
from logfs.format.files.producer_snapshot import parse_snapshot
from logfs.log.audit import Account, Finding, Severity, audit, check_boundaries, error, note
from logfs.log.disk.disk import TRIES, Gone
from logfs.log.read import key_index
from logfs.log.recovery import TORN
from logfs.log.state.leader_epochs import LeaderEpochs
from logfs.store.directory import permissions
from logfs.store.directory.log_dir import (
    CLEAN_SHUTDOWN,
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_STARTS,
    META_PROPERTIES,
    RECOVERY_POINTS,
)
from logfs.store.directory.permissions import PermissionTable
from logfs.store.staged_commits import ORPHAN_MS, read_commits
from logfs.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from pathlib import Path

    from logfs.log.disk.disk import Disk, Status
    from logfs.log.read.log import Log
    from logfs.log.segment.segment import Segment
    from logfs.store.directory.log_dir import LogDir

    Progress = Callable[[str, int], None]
    LogDirs = str | Path | Sequence[str] | Sequence[Path]

__all__ = ["Finding", "Severity", "check"]

# The maximum number of audits of a partition whose files change during each audit.
_AUDITS = 5
# If segments leave the log during an audit, this number of the newest segments is kept open for the next try.
_HELD_OPEN = 64


def check(log_dirs: LogDirs, progress: Progress | None = None) -> Iterator[Finding]:
    """Audit log directories without changing them, and yield the findings: errors and notes (`Severity`).

    `progress` is called with the name of a partition and the number of bytes that were read of its log since the last
    call. Raises the errors of opening a store read-only.
    """
    report = progress or (lambda *_: None)
    with _opened(log_dirs) as store:
        yield from check_log_dir_files(store)
        for name in [*store]:
            yield from _check_until_sure(store, log_dirs, name, report)
        yield from _check_owner(store)


def check_partition(log_dirs: LogDirs, name: str) -> list[Finding]:
    """Audit one partition of log directories as `check` does. Raises the errors of opening a store read-only."""
    with _opened(log_dirs, name) as store:
        return list(_check_until_sure(store, log_dirs, name, lambda *_: None))


def _opened(log_dirs: LogDirs, only: str | None = None) -> Store:
    """Open log directories read-only, and return the store. Reads from a bucket bypass the cache.

    `only` is the name of the only partition that the store lists; None stands for all partitions.
    """
    store = Store(log_dirs, read_only=True, lazy=True, only=only)
    for log_dir in store.log_dirs:
        log_dir.disk.read_afresh()
    return store


def _check_until_sure(
    store: Store, log_dirs: LogDirs, name: str, report: Progress
) -> Iterator[Finding]:
    """Audit a partition, and yield the findings. Repeat the audit, up to four times, while it has doubtful errors.

    An error is doubtful if a process that changed files during the audit may have caused it (`_is_about`). In the
    first audit, each error in a file that belongs to no segment is doubtful, too: it may come from the checkpoints,
    which were read when the store was opened, perhaps long before.

    The findings of the last audit are yielded, except doubtful errors that an earlier audit did not find. If an error
    is left out, a note says so.
    """
    found_always: set[Finding] = set()
    with ExitStack() as opened:
        for left in reversed(range(_AUDITS)):
            before = _files_of(store, name)
            findings = _check_by_name(store, name, report)
            changed = {path for path, _ in before ^ _files_of(store, name)}
            errors = {found for found in findings if found.severity is Severity.ERROR}
            # The checkpoints were read when the store was opened, which may be long before the first audit.
            is_first = left == _AUDITS - 1
            doubtful = {
                found
                for found in errors
                if _is_about(found.path, changed)
                or (is_first and not found.path.name.partition(".")[0].isdigit())
            }
            found_always = errors if is_first else errors & found_always
            if not doubtful or not left:
                break
            with suppress(LogfsError, OSError):
                # Open the store again to read the checkpoints again.
                again = _opened(log_dirs, name)
                opened.close()
                store = opened.enter_context(again)
        unsure = doubtful - found_always
        yield from (found for found in findings if found not in unsure)
        if unsure:
            path = next(iter(unsure)).path
            yield note(path, "was written during the audit: its errors are uncertain; audit again")


def _files_of(store: Store, name: str) -> set[tuple[Path, Status]]:
    """Return the files that an audit of a partition reads, each with its result of `stat`; none in a bucket."""
    home = store.registry.homes.get(name)
    if home is None or home.disk.is_remote:
        return set()
    directory = home.path / name
    paths = [home.path / each for each in (CLEAN_SHUTDOWN, RECOVERY_POINTS, LOG_STARTS)]
    with suppress(LogfsError, OSError):
        paths += [directory / entry.name for entry in home.disk.scan(directory)]
    found = set()
    for path in paths:
        with suppress(LogfsError, OSError):
            found.add((path, home.disk.stat(path)))
    return found


def _is_about(path: Path, changed: Collection[Path]) -> bool:
    """Whether the change of the files `changed` may have caused an error in the file `path`.

    If `path` belongs to a segment, only changes of files of this segment count; otherwise, the change of any file
    counts.
    """
    stem = path.name.partition(".")[0]
    return any(each.name.startswith(stem) for each in changed) if stem.isdigit() else bool(changed)


def _check_by_name(store: Store, name: str, report: Progress) -> list[Finding]:
    try:
        partition = store[name]
    except UnknownPartition:
        # The partition was deleted after it was listed, so there is nothing to audit.
        return []
    except (LogfsError, OSError) as why:
        return [error(store.registry.home(name) / name, f"cannot be loaded: {why}")]
    findings = _check_open_partition(store, partition, report)
    # Close the segments: the files of all partitions may be more than a process may have open.
    for segment in partition.segments:
        segment.close()
    return findings


def _check_open_partition(store: Store, partition: Log, report: Progress) -> list[Finding]:
    """Audit a partition as it is now; repeat the audit if segments leave the log during it."""
    audited: dict[Segment, tuple[list[Finding], list[Account]]] = {}
    for left in reversed(range(TRIES)):
        findings: list[Finding] = []
        try:
            findings += check_small_files(store, partition)
            findings += _check_key_indexes(partition)
            findings += _check_log(store, partition, audited, report)
        except (LogfsError, OSError) as why:
            is_gone = isinstance(why, (Gone, FileNotFoundError))
            if is_gone and left:
                partition.refresh()
                with suppress(Gone, OSError):
                    # An open file stays readable after its removal, so compaction cannot interrupt the next try.
                    for segment in partition.segments[-_HELD_OPEN:]:
                        segment.hold_open()
                continue
            if is_gone and not partition.directory.exists():
                return [note(partition.directory, "was deleted while it was audited")]
            # A file that cannot be opened ends the audit of this partition; the others are still audited.
            findings.append(error(partition.directory, f"cannot be audited any further: {why}"))
        return findings
    raise AssertionError("unreachable: the last attempt always returns its findings")


def check_log_dir_files(store: Store) -> Iterator[Finding]:
    """Audit the files of the log directories themselves (checkpoints and the commit file).

    Also reports the partitions that cannot be loaded.
    """
    for log_dir in store.log_dirs:
        yield from _check_files(store.disk, log_dir.path)
        yield from _check_commits(store, log_dir)
    for name, reason in sorted(store.offline.copy().items()):
        yield error(store.registry.home(name) / name, f"cannot be loaded: {reason}")


def _check_owner(store: Store) -> Iterator[Finding]:
    """Yield a note if the bucket of tiered partitions belongs to another store."""
    if any(partition.is_tiered for partition in store.registry.partitions.copy().values()):
        # Ignore errors of reads of the bucket: the audit of the segments reports them.
        with suppress(LogfsError, OSError):
            refusal = store.tiered.owner.look()
            if refusal:
                yield note(store.log_dirs[0].path, refusal)


def check_small_files(store: Store, partition: Log) -> Iterator[Finding]:
    """Audit the files of a partition that belong to no segment.

    Also compares the log start and log end offsets with the checkpoints and the leader epochs.
    """
    directory = partition.directory
    yield from _check_metadata(store.disk, directory)
    try:
        PermissionTable(partition)
    except Corrupt as why:
        path = directory / permissions.FILE_NAME
        yield error(path, str(why).removeprefix(f"{path}: "))
    for path in sorted(directory.glob("*" + TORN)):
        yield note(
            path, "a torn tail that recovery cut off and kept; remove it if it is not needed"
        )
    for path in sorted(directory.glob("*" + commit_file.STAGED)):
        age_ms = store.clock() - store.disk.stat(path).mtime_ns // 1_000_000
        if age_ms > ORPHAN_MS:
            yield note(path, "staged more than a day ago, but in no commit; upkeep removes it")
    yield from _check_snapshots(partition)
    if partition.disk.is_remote:
        # Only a partition in a bucket can be loaded although its leader epochs are damaged, so check them here.
        try:
            LeaderEpochs(partition.disk, directory)
        except Corrupt as why:
            yield error(directory / names.LEADER_EPOCHS, str(why).removeprefix(f"{directory}/"))
    log_dir = store.registry.homes[partition.name.directory]
    point = log_dir.recovery_points.get(partition.name, 0)
    if point > partition.log_end_offset:
        yield error(
            directory,
            f"was durable up to offset {point}, but ends at {partition.log_end_offset}; restore its newest segments",
        )
    log_start = log_dir.log_starts.get(partition.name, 0)
    if log_start > partition.log_end_offset and not log_dir.live:
        yield error(
            directory,
            f"should start at offset {log_start}, but ends at {partition.log_end_offset}; remove its line from "
            f"{LOG_STARTS}",
        )
    # Retention writes the leader epochs before it deletes segments, so the first epoch must not begin below the first
    # segment.
    begun = partition.epochs.first_offset
    first = partition.segments[0].base_offset
    if begun is not None and begun < first and log_start < first:
        # This is no error in a broker's directory, because a broker deletes segments before it writes the epochs; nor
        # if another process writes to the directory, because it may have deleted segments since the epochs were read.
        report = note if log_dir.is_brokers or log_dir.live else error
        missing = f"offsets {begun} to {first - 1} are missing"
        yield report(
            directory, f"{missing}: the oldest segments are gone, and retention did not delete them"
        )


def _check_log(
    store: Store,
    partition: Log,
    audited: dict[Segment, tuple[list[Finding], list[Account]]],
    report: Progress,
) -> Iterator[Finding]:
    """Audit the segments that are not in `audited`, add them to it, and check the boundaries between all segments.

    The findings for segments in `audited` are yielded again. Raises `Gone` if a segment leaves the log meanwhile.
    """
    segments = partition.segments
    for segment in segments:
        if segment in audited:
            yield from audited[segment][0]
            continue
        segment.disk.read_afresh()
        findings: list[Finding] = []
        accounts: list[Account] = []
        for found in audit(
            segment,
            partition.epochs.entries,
            trusts_indexes=trusts_indexes(store, partition, segment),
            live=store.registry.homes[partition.name.directory].live and not segment.disk.is_remote,
            log_start_offset=partition.log_start_offset,
            report=lambda size: report(partition.name.directory, size),
        ):
            if isinstance(found, Account):
                accounts.append(found)
            else:
                findings.append(found)
                yield found
        if findings:
            partition.refresh()
            if segment not in partition.segments:
                # The segment's files were being removed during the audit, so these findings are no errors.
                raise Gone(f"{segment.path}: was deleted or replaced while it was audited")
        audited[segment] = findings, accounts
    each = [account for segment in segments for account in audited[segment][1]]
    yield from check_boundaries(each, partition.log_start_offset)


def trusts_indexes(store: Store, partition: Log, segment: Segment) -> bool:
    """Whether the indexes of a segment must agree with its .log file, so that a difference is an error.

    False if the indexes may be incomplete, because the segment is being written, or because of a crash.
    """
    log_dir = store.registry.homes[partition.name.directory]
    if segment.disk.is_remote:
        # In a bucket, the indexes are complete. But if the next segment has the last batches, too, they are ignored
        # in this segment, and its indexes have entries beyond the part that is read.
        return not segment.disk.is_cut(segment.file)
    if log_dir.clean:
        return True
    if segment is partition.active:
        return False
    point = log_dir.recovery_points.get(partition.name, 0)
    # The indexes of a segment that ends exactly at the recovery point may still be incomplete.
    return log_dir.live or segment.next_offset < point


def _check_files(disk: Disk, log_dir: Path) -> Iterator[Finding]:
    """Audit the small files of a log directory."""
    empty = "the next opening takes it for empty"
    parsers: dict[str, tuple[Callable[[bytes], object], str]] = {
        RECOVERY_POINTS: (checkpoint.parse_offsets, f"{empty}, and recovers all partitions"),
        LOG_STARTS: (checkpoint.parse_offsets, f"{empty}; deleted records may be shown again"),
        HIGH_WATERMARKS: (checkpoint.parse_offsets, "logfs does not need it; a broker does"),
        CLEANER_OFFSETS: (checkpoint.parse_offsets, f"{empty}, and compacts from the log start"),
        META_PROPERTIES: (checkpoint.parse_properties, "a broker does not start; correct it"),
    }
    for name, (parse, consequence) in parsers.items():
        path = log_dir / name
        try:
            parse(disk.read_file(path))
        except FileNotFoundError:
            continue
        except (Corrupt, OSError) as why:
            yield error(path, f"{why}; {consequence}")


def _check_commits(store: Store, log_dir: LogDir) -> Iterator[Finding]:
    """Audit the commit file. Report a commit that is decided but not finished, and missing files that it needs."""
    path = log_dir.path / commit_file.FILE_NAME
    try:
        pending = read_commits(log_dir.disk, log_dir.path).pending
    except (Corrupt, OSError) as why:
        yield error(path, str(why))
        return
    if pending is None:
        return
    yield note(
        path,
        f"commit {pending.sequence} of {pending.writer} is decided but not finished: the next opening "
        "for writing finishes it ('logfs recover')",
    )
    for part in pending.parts:
        if part.done or part.partition not in store.registry.homes:
            continue
        for file in part.files:
            staged = store.registry.home(part.partition) / part.partition / file.name
            if not store.registry.homes[part.partition].disk.exists(staged):
                yield error(staged, "missing; a decided commit needs it")


def _check_key_indexes(partition: Log) -> Iterator[Finding]:
    """Compare the stored key indexes of a partition, if there are any, with its whole log."""
    for reader in (partition, partition.committed):
        path = key_index.file_path(reader)
        try:
            wrong = key_index.audit(reader)
        except (LogfsError, OSError) as why:
            text = str(why).removeprefix(f"{path}: ")
            yield note(path, f"{text}; the index is rebuilt on demand")
            continue
        if wrong is not None:
            yield error(path, wrong)


def _check_metadata(disk: Disk, directory: Path) -> Iterator[Finding]:
    path = directory / names.PARTITION_METADATA
    try:
        checkpoint.parse_partition_metadata(disk.read_file(path))
    except FileNotFoundError:
        yield note(path, "missing; a broker would treat the partition as stray")
    except (Corrupt, OSError) as why:
        yield error(path, str(why))


def _check_snapshots(partition: Log) -> Iterator[Finding]:
    for offset in partition.snapshots.offsets:
        path = partition.snapshots.path(offset)
        try:
            parse_snapshot(partition.snapshots.read(offset))
        except FileNotFoundError:
            continue
        except Corrupt as why:
            if partition.disk.is_remote:
                yield error(path, str(why))
            else:
                yield note(
                    path, f"{why}; if loading needs the file, it drops it and reads more of the log"
                )
