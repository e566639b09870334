"""The file that maps the local offsets of records to their offsets in a cluster.

Each line describes a run of records, whose offsets are consecutive both in the store and in the cluster:

```
# cluster Qm7v2tVfRk2r8C1nJ4x9eA
topic,partition,offset,records,to_partition,to_offset,check
# topic orders 8NbM3dZBRPmN3L0yUxq5Aw
orders,0,5,100,0,0,0acae0b6
```

In this example, the 100 records of orders-0 at the local offsets 5 to 104 have the offsets 0 to 99 of partition 0 in
the cluster. The topic id is that of the local topic. `check` is the CRC-32C, as eight hex digits, of three texts: the
previous run's `check` (empty for the first run), the topic lines after the previous run, and the line itself before
its last comma. So changed lines, and missing lines before another run, are found by `check`. Missing lines at the end
of the file are found by the log end offsets in the cluster.

A line is durable in the file before its records are sent. After a crash, the log end offsets in the cluster show for
which of the last lines the records were sent. So no record is sent twice.
"""

from __future__ import annotations

import errno
import fcntl
import os
from bisect import bisect_right
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from logfs.errors import ClusterError
from logfs.format.base import names
from logfs.format.base.crc import crc32c
from logfs.log.disk.disk import USUAL_MODE, Disk

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

_HEADING = "topic,partition,offset,records,to_partition,to_offset,check"
_TOPIC = "# topic "
# The most digits of a 64-bit offset.
_MOST_DIGITS = 19


class Run(NamedTuple):
    """A run of `records` records with consecutive offsets: from `offset` in the store, `to_offset` in the cluster."""

    topic: str
    partition: int
    offset: int
    records: int
    to_partition: int
    to_offset: int

    @property
    def end(self) -> int:
        """The local offset after the last record of the run."""
        return self.offset + self.records

    @property
    def to_end(self) -> int:
        """The offset in the cluster after the last record of the run."""
        return self.to_offset + self.records


class TranslationMap:
    """A map of offsets in a file, locked until `close`, so that only one push at a time uses it. Not thread-safe.

    The lock is on a file beside the map: a lock on the map itself would be lost when a rename replaces the map.
    """

    def __init__(self, path: Path, cluster_id: str) -> None:
        """Read the file, which need not exist yet.

        Raises `OSError`, and `ClusterError` if the file is malformed, was changed, is in use by another push, or is
        not for the cluster with the id `cluster_id`.
        """
        self._path = path
        self._disk = Disk(USUAL_MODE)
        self._first_line = f"# cluster {cluster_id}"
        # The runs by (topic, local partition, partition in the cluster), each list in the order of the offsets.
        self._runs: dict[tuple[str, int, int], list[Run]] = {}
        self._topic_ids: dict[str, str] = {}
        # The `check` (a checksum) of the last line that this object has written.
        self._check = ""
        if not path.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, "no such directory", str(path.parent))
        try:
            self._lock = self._disk.open_locked(path.with_name(f"{path.name}.lock"), _lock)
        except BlockingIOError:
            raise ClusterError(f"{path}: another push uses this map; wait for its end") from None
        try:
            if path.exists():
                self._read()
        except BaseException:
            self.close()
            raise
        # Whether the file is known to have exactly the runs of this object. If not, it must be rewritten before lines
        # are appended.
        self._is_whole = False

    def close(self) -> None:
        """Release the lock, so that another push can use the map."""
        self._disk.unlink(self._lock.path)
        self._lock.close()

    def _read(self) -> None:
        if not self._path.is_file():
            raise ClusterError(
                f"{self._path}: is no map of offsets, but a directory or a device; give a file"
            )
        # A crash may have left a part of the last line. Its records were not sent, so ignore it.
        *lines, _ = self._path.read_bytes().decode("utf-8", "replace").split("\n")
        if lines[:2] != [self._first_line, _HEADING]:
            raise ClusterError(
                f"{self._path}: is no map of offsets for this cluster: it does not begin with the lines "
                f"{self._first_line!r} and {_HEADING!r}. Give the path of the last push's map or, for the first "
                "push, of a file that does not exist"
            )
        text, check = "", ""
        for number, line in enumerate(lines[2:], 3):
            if line.startswith(_TOPIC):
                text += f"{line}\n"
                topic, _, topic_id = line.removeprefix(_TOPIC).partition(" ")
                self._topic_ids[topic] = topic_id
                continue
            row, _, told = line.rpartition(",")
            run = self._parsed(number, row)
            check = _check(check, text + row)
            if check != told or run.topic not in self._topic_ids:
                raise ClusterError(
                    f"{self._path}: line {number} was changed, or lines before it are missing: the file no longer "
                    "tells what was sent. Restore it from a copy, or delete the topic in the cluster and the map"
                )
            text = ""
            self._add(run)

    def _parsed(self, number: int, row: str) -> Run:
        try:
            topic, *numbers = row.split(",")
            if not all(each.isascii() and each.isdecimal() for each in numbers):
                raise ValueError(row)
            if max(map(len, numbers)) > _MOST_DIGITS:
                raise ValueError(row)
            run = Run(topic, *map(int, numbers))
            names.check_topic(topic)
        except (ValueError, TypeError):
            raise ClusterError(
                f"{self._path}: line {number} does not have the fields {_HEADING}. Restore the file from a copy"
            ) from None
        return run

    def _add(self, run: Run) -> None:
        self._runs.setdefault((run.topic, run.partition, run.to_partition), []).append(run)

    def _lines(self, runs: Iterable[Run], known: set[str]) -> Iterator[str]:
        """Yield the lines for `runs`, with a topic line before the first run of each topic that is not in `known`."""
        for run in runs:
            head = ""
            if run.topic not in known:
                known.add(run.topic)
                head = f"{_TOPIC}{run.topic} {self._topic_ids[run.topic]}\n"
            row = ",".join(map(str, run))
            self._check = _check(self._check, head + row)
            yield f"{head}{row},{self._check}\n"

    def _write_all(self) -> None:
        """Replace the file by a new one with all runs of this object, durably. Raises `OSError`."""
        runs = sorted((run for some in self._runs.values() for run in some), key=_place_there)
        self._check = ""
        content = [f"{self._first_line}\n", f"{_HEADING}\n", *self._lines(runs, set())]
        with self._naming_path():
            self._disk.replace_file(self._path, "".join(content).encode())
        self._is_whole = True

    @contextmanager
    def _naming_path(self) -> Iterator[None]:
        """Set the file name of each `OSError` raised in the context to the path of the map.

        Python sets no file name in the error of a write, such as ENOSPC.
        """
        try:
            yield
        except OSError as error:
            error.filename = str(self._path)
            raise

    def __contains__(self, topic: str) -> bool:
        """Whether the map has lines for a topic, or had lines that `keep_sent` has removed."""
        return any(each == topic for each, _, _ in self._runs)

    def begin(self, topic: str, topic_id: str) -> None:
        """Set the id of a topic. The caller must call this before it adds the first run of the topic.

        Also rewrites the file if its lines may differ from the runs in this object. This is so after the file was
        read, because a crash may have cut its last line, and after `keep_sent`, which removes runs from this object
        only. Raises `OSError`.
        """
        self._topic_ids[topic] = topic_id
        if not self._is_whole:
            self._write_all()

    def add(self, runs: Sequence[Run]) -> None:
        """Add runs, and make them durable. Raises `OSError`.

        The caller must have called `begin` for their topics. It must not send their records before this call returns.
        """
        if not self._is_whole:
            self._write_all()
        written = {place[0] for place, some in self._runs.items() if some}
        with self._naming_path(), self._path.open("a") as file:
            file.writelines(self._lines(runs, written))
            file.flush()
            os.fsync(file.fileno())
        for run in runs:
            self._add(run)

    def check_source(self, topic: str, topic_id: str, ends: Mapping[int, int]) -> None:
        """Check that the map was written for this local topic.

        Raises `ClusterError` if the topic id in the map is not `topic_id`, or if the map has local offsets past the
        log end. `ends` maps each local partition to its log end offset.
        """
        known = self._topic_ids.get(topic, topic_id)
        if known != topic_id:
            raise ClusterError(
                f"{self._path}: is about another topic {topic}, with the id {known}; the local topic has the id "
                f"{topic_id}. Name the map of this log directory's pushes"
            )
        for (name, number, _), runs in self._runs.items():
            end = ends.get(number, 0)
            if name == topic and runs and runs[-1].end > end:
                raise ClusterError(
                    f"{self._path}: has records of {topic}-{number} up to offset {runs[-1].end}, but the local "
                    f"log ends at {end}: it has lost records, or the map is of another log. Name the map of this "
                    "log's pushes, or delete the topic in the cluster and the map, and push again"
                )

    def keep_sent(self, topic: str, ends: Mapping[int, int]) -> None:
        """Remove a topic's lines for records that were not sent. The next write of the file leaves them out.

        `ends` maps each partition in the cluster to its log end offset. Raises `ClusterError` if the lines kept for
        a partition do not end at this offset: another program has written records, or lines are missing.
        """
        self._check_whole(topic, ends)
        last: dict[int, int] = {}
        changed = False
        for place, runs in self._runs.items():
            if place[0] != topic or not runs:
                continue
            kept = [run for run in runs if run.to_offset < ends[place[2]]]
            changed |= len(kept) < len(runs)
            begin = min(run.to_offset for run in runs)
            last[place[2]] = max([last.get(place[2], begin), *(run.to_end for run in kept)])
            runs[:] = kept
        for number, end in last.items():
            if end != ends[number]:
                raise ClusterError(
                    f"{topic}-{number}: ends at offset {ends[number]} in the cluster, but at {end} in the map "
                    f"{self._path}: another program writes to the topic, or the last lines of the map are missing. "
                    "Restore the map from a copy; or delete both this file and the topic in the cluster. Then push "
                    "again"
                )
        # If lines were removed here, the file still has them: the next write must replace the file, not append to it.
        self._is_whole &= not changed

    def _check_whole(self, topic: str, ends: Mapping[int, int]) -> None:
        """Raise `ClusterError` if lines of a topic are missing or out of order.

        For each pair of a local partition and a partition in the cluster, the local offsets must ascend from line to
        line. Together, the lines for a partition in the cluster must describe contiguous offsets in it, and this
        partition must be a key of `ends`.
        """
        there: dict[int, list[Run]] = {}
        for (name, _, number), runs in self._runs.items():
            if name == topic:
                there.setdefault(number, []).extend(runs)
                if any(later.offset < run.end for run, later in pairwise(runs)):
                    raise self._malformed(topic, number)
        for number, runs in there.items():
            runs.sort(key=_place_there)
            if number not in ends or any(a.to_end != b.to_offset for a, b in pairwise(runs)):
                raise self._malformed(topic, number)

    def _malformed(self, topic: str, number: int) -> ClusterError:
        return ClusterError(
            f"{self._path}: lines for partition {number} of {topic} are missing, doubled or changed. Restore the "
            "file from a copy, or delete the topic in the cluster and the map, and push again"
        )

    def partitions_of(self, topic: str) -> set[int]:
        """Return the partitions in the cluster that the runs of a topic go to."""
        return {there for (name, _, there), runs in self._runs.items() if name == topic and runs}

    def sent(self, topic: str, partition: int) -> Mapping[int, Sequence[Run]]:
        """Return the runs of a local partition, by partition in the cluster, each list in the order of offsets."""
        return {
            there: runs
            for (name, number, there), runs in self._runs.items()
            if (name, number) == (topic, partition) and runs
        }

    def translated(
        self, topic: str, committed: Mapping[int, int], ends: Mapping[int, int]
    ) -> dict[int, int]:
        """Convert the committed offsets of a consumer group to offsets in the cluster, by partition in the cluster.

        `committed` maps local partitions to the group's offsets, and `ends` maps partitions in the cluster to their
        log end offsets. The result has each partition in the cluster to which records of a local partition in
        `committed` were sent. Its value is the offset there of the first record that the group has not read, or the
        log end offset if the group has read all. Records of local partitions that are not in `committed` count as
        unread. The group may read records again if a partition in the cluster has records of several local
        partitions.
        """
        runs_of_topic = [
            (place[1:], runs) for place, runs in self._runs.items() if place[0] == topic
        ]
        found = {
            there: ends[there] for (partition, there), _ in runs_of_topic if partition in committed
        }
        for (partition, there), runs in runs_of_topic:
            next_there = _first_from(runs, committed.get(partition, 0))
            if there in found and next_there is not None:
                found[there] = min(found[there], next_there)
        return found


def _first_from(runs: Sequence[Run], offset: int) -> int | None:
    """Return the offset in the cluster of the first record at or after the local `offset`; None if there is none."""
    at = bisect_right(runs, offset, key=lambda run: run.end)
    if at == len(runs):
        return None
    run = runs[at]
    return run.to_offset + max(offset - run.offset, 0)


def holds(runs: Sequence[Run], offset: int) -> bool:
    """Whether one of the runs contains the local offset.

    The runs must be of one local partition, in the order of their offsets.
    """
    at = bisect_right(runs, offset, key=lambda run: run.end)
    return at < len(runs) and runs[at].offset <= offset


def runs_of(topic: str, places: Iterable[tuple[int, int]], there: int, to_offset: int) -> list[Run]:
    """Return the runs of one batch, sent to the partition `there` of the cluster at the offsets from `to_offset` on.

    `places` are the local (partition, offset) of each record of the batch, in order.
    """
    found: list[Run] = []
    for partition, offset in places:
        last = found[-1] if found else None
        if last is not None and (partition, offset) == (last.partition, last.end):
            found[-1] = last._replace(records=last.records + 1)
        else:
            found.append(Run(topic, partition, offset, 1, there, to_offset))
        to_offset += 1
    return found


def _check(before: str, text: str) -> str:
    """Return the checksum of a line: the CRC-32C, in hex, of the previous line's checksum `before` and of `text`."""
    return f"{crc32c((before + text).encode()):08x}"


def _lock(fd: int) -> None:
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _place_there(run: Run) -> tuple[str, int, int]:
    return run.topic, run.to_partition, run.to_offset
