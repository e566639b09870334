"""The read-only audit of a store: everything that can be told wrong by looking, as findings.

`logfs check` prints them, and every test ends with it. It works on files alone, so it may run beside a broker or a
mount; what those write while it looks is taken for what it was at the beginning.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from logfs.errors import Corrupt, LogfsError
from logfs.format import checkpoint, commits
from logfs.format.batch import MAGIC
from logfs.format.snapshot import parse_snapshot
from logfs.format.text import NO_TEXT
from logfs.log import key_map
from logfs.log.producers import Producers
from logfs.log.recovery import TORN
from logfs.log.spans import text_size
from logfs.log.walk import Damage
from logfs.store.commit import ORPHAN_MS, read_commits
from logfs.store.log_dir import (
    CLEAN_SHUTDOWN,
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_STARTS,
    META_PROPERTIES,
    RECOVERY_POINTS,
)
from logfs.store.store import PARTITION_METADATA, Store

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from pathlib import Path

    from logfs.format.batch import Batch
    from logfs.log.files import Disk
    from logfs.log.partition import Partition
    from logfs.log.producers import Transaction
    from logfs.log.segment import Segment
    from logfs.store.log_dir import LogDir

    Progress = Callable[[str, int], None]


class Severity(enum.IntEnum):
    """How bad it is: NOTE is worth knowing, ERROR means that something is lost or wrong."""

    NOTE = 0
    ERROR = 1


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be."""

    severity: Severity
    path: Path
    text: str

    def __str__(self) -> str:
        return f"{self.severity.name.lower()}: {self.path}: {self.text}"


def check(log_dirs: Path | Sequence[Path], progress: Progress | None = None) -> Iterator[Finding]:
    """Audit log directories, and change nothing; no finding at all is what everybody wants.

    `progress` is told (partition, bytes of its log that were read). Raises what opening a store read-only raises.
    """
    report = progress or (lambda *_: None)
    with Store(log_dirs, read_only=True) as store:
        for log_dir in store.log_dirs:
            yield from _check_files(store.disk, log_dir.path)
            yield from _check_commits(store, log_dir)
        for name, reason in sorted(store.offline.items()):
            yield Finding(Severity.ERROR, store.home(name) / name, f"cannot be loaded: {reason}")
        for name in store:
            yield from _check_partition(store, store[name], report)


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
        except (Corrupt, OSError) as error:
            yield Finding(Severity.ERROR, path, f"{error}; it is ignored, and recovery reads more")


def _check_commits(store: Store, log_dir: LogDir) -> Iterator[Finding]:
    """The file of commits, and the staged files that a commit which is decided still needs."""
    path = log_dir.path / commits.FILE_NAME
    try:
        pending = read_commits(log_dir.disk, log_dir.path).pending
    except (Corrupt, OSError) as error:
        yield Finding(Severity.ERROR, path, str(error))
        return
    if pending is None:
        return
    yield Finding(
        Severity.NOTE,
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
                yield Finding(Severity.ERROR, staged, "missing; a commit that is decided needs it")


def _check_partition(store: Store, partition: Partition, report: Progress) -> Iterator[Finding]:
    directory = partition.directory
    yield from _check_metadata(store.disk, directory)
    for path in sorted(directory.glob("*" + TORN)):
        yield Finding(
            Severity.NOTE,
            path,
            "a torn tail that recovery cut off and kept; remove it if it is not missed",
        )
    for path in sorted(directory.glob("*" + commits.STAGED)):
        age_ms = store.clock() - int(path.stat().st_mtime * 1000)
        if age_ms > ORPHAN_MS:
            yield Finding(
                Severity.NOTE, path, "staged a day ago, and of no commit; upkeep removes it"
            )
    clean = (store.home(partition.name.directory) / CLEAN_SHUTDOWN).exists()
    yield from _check_snapshots(partition)
    yield from _check_key_maps(partition)
    producers = Producers()
    expected: int | None = None
    for segment in partition.segments:
        if expected is not None and segment.base_offset != expected and not segment.gaps:
            what = "are missing" if segment.base_offset > expected else "are there twice"
            low, high = sorted((expected, segment.base_offset))
            yield Finding(Severity.ERROR, segment.path, f"offsets {low} to {high - 1} {what}")
        is_active = segment is partition.active
        expected = yield from _check_segment(
            partition, segment, producers, report, trusted=clean or not is_active
        )
    home = store.home(partition.name.directory)
    (log_dir,) = (log_dir for log_dir in store.log_dirs if log_dir.path == home)
    point = log_dir.recovery_points.get(partition.name, 0)
    if point > partition.log_end_offset:
        yield Finding(
            Severity.ERROR,
            directory,
            f"was durable up to offset {point}, and ends at {partition.log_end_offset}",
        )


def _check_key_maps(partition: Partition) -> Iterator[Finding]:
    """What the maps of `keys/` say is held against the whole log, where there are any."""
    for reader in (partition, partition.committed):
        path = key_map.file_path(reader)
        try:
            wrong = key_map.audit(reader)
        except (LogfsError, OSError) as error:
            text = str(error).removeprefix(f"{path}: ")
            yield Finding(Severity.NOTE, path, f"{text}; it is made anew when it is needed")
            continue
        if wrong is not None:
            yield Finding(Severity.ERROR, path, wrong)


def _check_metadata(disk: Disk, directory: Path) -> Iterator[Finding]:
    path = directory / PARTITION_METADATA
    try:
        checkpoint.parse_partition_metadata(disk.read_file(path))
    except FileNotFoundError:
        yield Finding(
            Severity.NOTE, path, "missing; a broker would take the partition for a stray one"
        )
    except (Corrupt, OSError) as error:
        yield Finding(Severity.ERROR, path, str(error))


class _Seen:
    """What walking a segment's log tells, to hold the indexes against."""

    def __init__(self, base_offset: int) -> None:
        self.starts: dict[int, tuple[int, int]] = {}
        self.max_until: list[tuple[int, int]] = []
        self.next_offset = base_offset
        self.text = NO_TEXT

    def note(self, position: int, batch: Batch) -> None:
        header = batch.header
        self.starts[position] = (header.last_offset, header.base_offset)
        largest = self.max_until[-1][1] if self.max_until else -1
        self.max_until.append((header.last_offset, max(largest, header.max_timestamp)))
        self.next_offset = header.next_offset


def _check_segment(
    partition: Partition,
    segment: Segment,
    producers: Producers,
    report: Progress,
    *,
    trusted: bool,
) -> Generator[Finding, None, int | None]:
    """Every batch of a segment, and then its indexes; returns the offset behind it."""
    seen = _Seen(segment.base_offset)
    ended: list[Transaction] = []
    texts: dict[int, object] = {}
    for found in segment.walk():
        if isinstance(found, Damage):
            yield Finding(
                Severity.ERROR, segment.path, str(found.error(segment.path)).partition(": ")[2]
            )
            texts[found.start] = seen.text
            seen.text = seen.text.plus(text_size(found))
            seen.next_offset = found.next_offset
            continue
        position, batch = found
        texts[position] = seen.text
        yield from _check_batch(partition, segment, position, batch)
        seen.note(position, batch)
        transaction = producers.note(batch)
        # Of one that began below the log's start, recovery may have seen no more than anybody can read of it.
        is_readable = (
            transaction is not None and transaction.first_offset >= partition.log_start_offset
        )
        if transaction is not None and transaction.is_aborted and is_readable:
            ended.append(transaction)
        seen.text = seen.text.plus(text_size(batch))
        report(partition.name.directory, batch.header.size_bytes)
    texts[segment.size_bytes] = seen.text
    if trusted and not segment.damaged:
        yield from _check_indexes(segment, seen, texts)
        yield from _check_transactions(segment, ended)
    return None if segment.gaps else seen.next_offset


def _check_batch(
    partition: Partition, segment: Segment, position: int, batch: Batch
) -> Iterator[Finding]:
    header = batch.header
    where = f"batch {header.base_offset} at byte {position}"
    try:
        offsets = [record.offset for record in batch.records()]
    except LogfsError as error:
        yield Finding(Severity.ERROR, segment.path, f"{where}: {error}")
        return
    if offsets and not (header.base_offset <= offsets[0] and offsets[-1] <= header.last_offset):
        yield Finding(Severity.ERROR, segment.path, f"{where}: its records lie outside its offsets")
    epoch = partition.epochs.epoch_for(header.base_offset) if header.magic == MAGIC else -1
    if epoch >= 0 and header.partition_leader_epoch != epoch:
        yield Finding(
            Severity.ERROR,
            segment.path,
            f"{where}: leader epoch {header.partition_leader_epoch}, and the epoch file says {epoch}",
        )


def _check_indexes(segment: Segment, seen: _Seen, texts: dict[int, object]) -> Iterator[Finding]:
    for index in segment.indexes:
        try:
            index.check_sane()
        except LogfsError as error:
            yield Finding(Severity.ERROR, index.path, str(error).partition(": ")[2])
            return
        if not index.exists():
            yield Finding(Severity.NOTE, index.path, "missing; it is made anew when it is needed")
    for entry in segment.offset_index:
        if seen.starts.get(entry.position, (None,))[0] != entry.offset:
            yield Finding(
                Severity.ERROR,
                segment.offset_index.path,
                f"no batch with last offset {entry.offset} at byte {entry.position}; run 'logfs reindex'",
            )
            break
    yield from _check_times(segment, seen)
    for text in segment.text_index:
        if not text.position:
            # Room that a crash left, and a broker that then closed the segment knew nothing of.
            break
        if texts.get(text.position) != text.before:
            yield Finding(
                Severity.ERROR,
                segment.text_index.path,
                f"the entry at byte {text.position} does not agree with the log; run 'logfs reindex'",
            )
            break


def _check_transactions(segment: Segment, ended: Sequence[Transaction]) -> Iterator[Finding]:
    """Every aborted transaction that the log tells of is in the index."""
    try:
        indexed = {(entry.producer_id, entry.last_offset) for entry in segment.txn_index.entries}
    except Corrupt as error:
        yield Finding(Severity.ERROR, segment.txn_index.path, str(error))
        return
    for transaction in ended:
        if (transaction.producer_id, transaction.last_offset) not in indexed:
            yield Finding(
                Severity.ERROR,
                segment.txn_index.path,
                f"the transaction of producer {transaction.producer_id} that was aborted at "
                f"{transaction.last_offset} is missing; run 'logfs reindex'",
            )


def _check_snapshots(partition: Partition) -> Iterator[Finding]:
    for offset in partition.snapshots.offsets:
        path = partition.snapshots.path(offset)
        try:
            parse_snapshot(partition.snapshots.read(offset))
        except FileNotFoundError:
            continue
        except Corrupt as error:
            yield Finding(
                Severity.NOTE, path, f"{error}; loading drops it, and reads more of the log"
            )


def _check_times(segment: Segment, seen: _Seen) -> Iterator[Finding]:
    """An entry's timestamp is the latest of the records up to its offset (kafka-storage 3.2)."""
    walked = iter(seen.max_until)
    last_offset, largest = -1, -1
    for entry in segment.time_index:
        while last_offset < entry.offset:
            following = next(walked, None)
            if following is None:
                break
            last_offset, largest = following
        if largest != entry.timestamp:
            yield Finding(
                Severity.ERROR,
                segment.time_index.path,
                f"the latest time up to offset {entry.offset} is {largest}, and not {entry.timestamp}; "
                "run 'logfs reindex'",
            )
            return
