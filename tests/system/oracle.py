"""The checks that hold for logs at any moment, whatever happened to their directories. They repair nothing."""

from __future__ import annotations

import os
from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from logfs.errors import LogfsError
from logfs.format.text.rendering import View
from logfs.log.read.text_view import TextView
from logfs.store.observe.check import Severity, check
from logfs.store.store import Store
from tests.support.requirements import DEEP

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from logfs.log.append.partition import Partition
    from tests.system.scenes import Content, Ledger

# Logs of killed commands are shorter, so a campaign looks up each of their records; of the logs of mounts, a sample.
_MOST_LOOKUPS = 600 if DEEP else 60


class Wrong(AssertionError):
    """A log shows something that it must not show."""


@dataclass(frozen=True)
class Log:
    """What a reader sees of one partition."""

    start: int
    end: int
    records: dict[int, Content]


def listing(log_dirs: Sequence[Path]) -> dict[str, tuple[int, int, int]]:
    """Return every file and directory below the log directories, with size, modification time and inode."""
    found = {}
    for log_dir in log_dirs:
        for top, names, files in os.walk(log_dir):
            for name in [*names, *files]:
                path = os.path.join(top, name)
                status = os.lstat(path)
                found[path] = status.st_size, status.st_mtime_ns, status.st_ino
    return found


def look(log_dirs: Sequence[Path], *, is_checked: bool = True) -> dict[str, Log]:
    """Open the store read-only, and read every partition in every way; no file may change. Raises `Wrong`.

    A log directory that is empty was never used and is left out.
    """
    before = listing(log_dirs)
    log_dirs = [path for path in log_dirs if any(path.iterdir())]
    if not log_dirs:
        return {}
    try:
        with Store(log_dirs, read_only=True) as store:
            for name, error in store.offline.items():
                raise Wrong(f"offline: {name}: {type(error).__name__}: {error}")
            found = {name: read(store[name]) for name in store}
    except (LogfsError, OSError, ValueError, KeyError) as error:
        raise Wrong(f"cannot be read: {type(error).__name__}: {error}") from error
    if is_checked:
        findings = [str(f) for f in check(log_dirs) if f.severity is Severity.ERROR]
        if findings:
            raise Wrong("check: " + "; ".join(findings[:3]))
    after = listing(log_dirs)
    if before != after:
        changed = {path for path in {*before, *after} if before.get(path) != after.get(path)}
        raise Wrong(f"a read-only opening changed {sorted(changed)[:3]}")
    return found


def read(partition: Partition) -> Log:
    """Return all records of a partition. Every lookup must agree with the scan."""
    name = partition.name.directory
    records: dict[int, Content] = {}
    last = -1
    for record in partition.read():
        if record.offset <= last:
            raise Wrong(f"{name}: offset {record.offset} after {last}")
        last = record.offset
        assert record.timestamp is not None
        records[last] = record.timestamp, record.key, record.value
    _check_times(partition, records)
    for offset in sorted(records)[:: len(records) // _MOST_LOOKUPS + 1]:
        content = records[offset]
        found = partition.record(offset)
        if found is None or (found.timestamp, found.key, found.value) != content:
            raise Wrong(f"{name}: offset {offset} is found as {found!r}, and read as {content!r}")
    text = TextView(partition, View.LINES)
    lines = b"".join((value or b"") + b"\n" for _, _, value in records.values())
    if text.read(0, text.size + 1) != lines:
        raise Wrong(f"{name}: the text view differs from the records")
    _check_keys(partition, records)
    return Log(partition.log_start_offset, partition.log_end_offset, records)


def _check_times(partition: Partition, records: dict[int, Content]) -> None:
    """Check that the lookup of each record's timestamp returns the first record at or after it."""
    offsets = list(records)
    highest = list(accumulate((content[0] for content in records.values()), max))
    timestamps = sorted({content[0] for content in records.values()})
    if len(timestamps) > _MOST_LOOKUPS:
        # A sample of a long log, and its end.
        timestamps = timestamps[:: len(timestamps) // _MOST_LOOKUPS + 1] + timestamps[-50:]
    # Also some times between records, and one after all of them.
    for timestamp in [*timestamps, *(each + 1 for each in timestamps[::-8])]:
        place = bisect_left(highest, timestamp)
        right = offsets[place] if place < len(offsets) else None
        found = partition.offset_for_time(timestamp, shown=True)
        if (found and found.offset) != right:
            raise Wrong(
                f"time lookup: {partition.name.directory}: {timestamp} is found at offset "
                f"{found and found.offset}, and lies at {right}"
            )


def _check_keys(partition: Partition, records: dict[int, Content]) -> None:
    newest = {content[1]: offset for offset, content in records.items() if content[1] is not None}
    for key, offset in list(newest.items())[:5]:
        assert key is not None
        found = partition.newest(key)
        right = None if records[offset][2] is None else offset
        if (found and found.offset) != right:
            raise Wrong(
                f"key lookup: {partition.name.directory}: {key!r} is found at "
                f"{found and found.offset}, and lies at {right}"
            )


def compare(
    found: dict[str, Log], before: dict[str, Log], after: dict[str, Log], *, is_done: bool
) -> None:
    """Compare the logs with those before a command, and with those after it.

    Until the command is done, a record that is in both must be there, and one that is in neither must not. Raises
    `Wrong`.
    """
    for name in sorted({*found, *before, *after}):
        if is_done:
            before = after
        if name not in found:
            if name in before and name in after:
                raise Wrong(f"{name}: the partition is gone")
            continue
        if name not in before and name not in after:
            raise Wrong(f"{name}: a partition that nobody made")
        first = before.get(name, after.get(name))
        last = after.get(name, before.get(name))
        assert first is not None
        assert last is not None
        _compare(name, found[name], first, last)


def _compare(name: str, found: Log, before: Log, after: Log) -> None:
    if not before.start <= found.start <= after.start:
        raise Wrong(
            f"{name}: starts at {found.start}; it started at {before.start}, and is to at {after.start}"
        )
    if not before.end <= found.end <= after.end:
        raise Wrong(
            f"{name}: ends at {found.end}; it ended at {before.end}, and is to at {after.end}"
        )
    for offset in sorted({*before.records, *after.records}):
        known = {
            log.records.get(offset) if offset >= found.start else None for log in (before, after)
        }
        content = found.records.get(offset)
        if content not in known:
            raise Wrong(f"{name}: offset {offset} is {content!r}; it was one of {known!r}")
    invented = found.records.keys() - before.records.keys() - after.records.keys()
    if invented:
        raise Wrong(f"{name}: nobody appended offsets {sorted(invented)[:5]}")


def check_ledger(found: dict[str, Log], ledger: Ledger) -> None:
    """Check that a scene shows the acknowledged records, of a compacted log the newest per key. Raises `Wrong`."""
    for name, records in ledger.records.items():
        log = found[name]
        if log.end != ledger.ends[name]:
            raise Wrong(f"{name}: ends at {log.end}; offsets up to {ledger.ends[name]} were given")
        wanted = set(records)
        if name == "keys-0":
            wanted = set({content[1]: offset for offset, content in records.items()}.values())
        for offset in sorted(wanted | set(log.records)):
            if log.records.get(offset) != records.get(offset):
                raise Wrong(
                    f"{name}: offset {offset} is {log.records.get(offset)!r}; "
                    f"{records.get(offset)!r} was acknowledged"
                )
