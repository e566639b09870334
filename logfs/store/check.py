"""The read-only audit of a store: everything that can be told wrong by looking, as findings.

`logfs check` prints them, and every test ends with it. It works on files alone, so it may run beside a broker or a
mount; what those write while it looks is taken for what it was at the beginning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.errors import Corrupt, LogfsError
from logfs.format import checkpoint, commits
from logfs.format.snapshot import parse_snapshot
from logfs.log import key_map
from logfs.log.audit import Account, Finding, Severity, audit, error, note, settle
from logfs.log.recovery import TORN
from logfs.store.commit import ORPHAN_MS, read_commits
from logfs.store.log_dir import (
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_STARTS,
    META_PROPERTIES,
    RECOVERY_POINTS,
)
from logfs.store.store import PARTITION_METADATA, Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from logfs.log.files import Disk
    from logfs.log.partition import Partition
    from logfs.log.segment import Segment
    from logfs.store.log_dir import LogDir

    Progress = Callable[[str, int], None]

__all__ = ["Finding", "Severity", "check"]


def check(log_dirs: Path | Sequence[Path], progress: Progress | None = None) -> Iterator[Finding]:
    """Audit log directories, and change nothing; no finding at all is what everybody wants.

    `progress` is told (partition, bytes of its log that were read). Raises what opening a store read-only raises.
    """
    report = progress or (lambda *_: None)
    with Store(log_dirs, read_only=True) as store:
        yield from check_log_dirs(store)
        for name in store:
            partition = store[name]
            yield from check_small_files(store, partition)
            yield from _check_key_maps(partition)
            yield from _check_log(store, partition, report)


def check_log_dirs(store: Store) -> Iterator[Finding]:
    """Audit what belongs to no partition, and name the partitions that cannot be loaded."""
    for log_dir in store.log_dirs:
        yield from _check_files(store.disk, log_dir.path)
        yield from _check_commits(store, log_dir)
    for name, reason in sorted(store.offline.items()):
        yield error(store.home(name) / name, f"cannot be loaded: {reason}")


def check_small_files(store: Store, partition: Partition) -> Iterator[Finding]:
    """Audit what lies beside the segments of a partition, and whether they reach as far as was promised."""
    directory = partition.directory
    yield from _check_metadata(store.disk, directory)
    for path in sorted(directory.glob("*" + TORN)):
        yield note(
            path, "a torn tail that recovery cut off and kept; remove it if it is not missed"
        )
    for path in sorted(directory.glob("*" + commits.STAGED)):
        age_ms = store.clock() - int(path.stat().st_mtime * 1000)
        if age_ms > ORPHAN_MS:
            yield note(path, "staged a day ago, and of no commit; upkeep removes it")
    yield from _check_snapshots(partition)
    log_dir = store.homes[partition.name.directory]
    point = log_dir.recovery_points.get(partition.name, 0)
    if point > partition.log_end_offset:
        yield error(
            directory, f"was durable up to offset {point}, and ends at {partition.log_end_offset}"
        )


def _check_log(store: Store, partition: Partition, report: Progress) -> Iterator[Finding]:
    accounts: list[Account] = []
    for segment in partition.segments:
        for found in audit(
            segment,
            partition.epochs.entries,
            trusts_indexes=trusts_indexes(store, partition, segment),
            report=lambda size: report(partition.name.directory, size),
        ):
            if isinstance(found, Account):
                accounts.append(found)
            else:
                yield found
    yield from settle(accounts, partition.log_start_offset)


def trusts_indexes(store: Store, partition: Partition, segment: Segment) -> bool:
    """Whether a segment's indexes are as its log says, or a writer or a crash may have left them behind it."""
    log_dir = store.homes[partition.name.directory]
    if log_dir.clean:
        return True
    if segment is partition.active:
        return False
    point = log_dir.recovery_points.get(partition.name, 0)
    return log_dir.live or segment.next_offset <= point


def _check_files(disk: Disk, log_dir: Path) -> Iterator[Finding]:
    """The small files of a log directory."""
    parsers: dict[str, Callable[[bytes], object]] = {
        RECOVERY_POINTS: checkpoint.parse_offsets,
        LOG_STARTS: checkpoint.parse_offsets,
        HIGH_WATERMARKS: checkpoint.parse_offsets,
        CLEANER_OFFSETS: checkpoint.parse_offsets,
        META_PROPERTIES: checkpoint.parse_properties,
    }
    for name, parse in parsers.items():
        path = log_dir / name
        try:
            parse(disk.read_file(path))
        except FileNotFoundError:
            continue
        except (Corrupt, OSError) as why:
            yield error(path, f"{why}; it is ignored, and recovery reads more")


def _check_commits(store: Store, log_dir: LogDir) -> Iterator[Finding]:
    """The file of commits, and the staged files that a commit which is decided still needs."""
    path = log_dir.path / commits.FILE_NAME
    try:
        pending = read_commits(log_dir.disk, log_dir.path).pending
    except (Corrupt, OSError) as why:
        yield error(path, str(why))
        return
    if pending is None:
        return
    yield note(
        path,
        f"commit {pending.sequence} of {pending.writer} is decided and not done: who opens the log "
        "directories for writing next does it ('logfs recover')",
    )
    for part in pending.parts:
        if part.done or part.partition not in store.homes:
            continue
        for file in part.files:
            staged = store.home(part.partition) / part.partition / file.name
            if not log_dir.disk.exists(staged):
                yield error(staged, "missing; a commit that is decided needs it")


def _check_key_maps(partition: Partition) -> Iterator[Finding]:
    """What the maps of `keys/` say is held against the whole log, where there are any."""
    for reader in (partition, partition.committed):
        path = key_map.file_path(reader)
        try:
            wrong = key_map.audit(reader)
        except (LogfsError, OSError) as why:
            text = str(why).removeprefix(f"{path}: ")
            yield note(path, f"{text}; it is made anew when it is needed")
            continue
        if wrong is not None:
            yield error(path, wrong)


def _check_metadata(disk: Disk, directory: Path) -> Iterator[Finding]:
    path = directory / PARTITION_METADATA
    try:
        checkpoint.parse_partition_metadata(disk.read_file(path))
    except FileNotFoundError:
        yield note(path, "missing; a broker would take the partition for a stray one")
    except (Corrupt, OSError) as why:
        yield error(path, str(why))


def _check_snapshots(partition: Partition) -> Iterator[Finding]:
    for offset in partition.snapshots.offsets:
        path = partition.snapshots.path(offset)
        try:
            parse_snapshot(partition.snapshots.read(offset))
        except FileNotFoundError:
            continue
        except Corrupt as why:
            yield note(path, f"{why}; loading drops it, and reads more of the log")
