"""The verification at the end of a chain: compares the log on the image with the acknowledgements outside of it."""

from __future__ import annotations

import json
import re
import shutil
from bisect import bisect_left
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from logfs.errors import Corrupt, LogfsError
from logfs.format.files.producer_snapshot import parse_snapshot
from logfs.log.segment.batch_iterator import DamagedRange
from logfs.store.observe.check import Severity, check
from logfs.store.store import Store
from tests.system.power_load import (
    CONFIGURED,
    GROUP_PARTITION,
    STAGED,
    keyed,
    notes_of,
    staged_values,
    value_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from logfs.format.batches.record import Record
    from logfs.log.append.partition import Partition

_WORKER = re.compile(r"(\d+)-([a-z]+)\d+")
_VALUE = re.compile(rb"(\S+) (\d+) [0-9a-f]*")
_COMMIT = re.compile(r"commit:(.+):(\d+)")
_PARTITIONS = {
    "line": "plain-0",
    "lazy": "plain-0",
    "group": "plain-0",
    "timed": "timed-0",
    "sized": "sized-0",
    "trimmed": "trimmed-0",
    "keyed": "keyed-0",
    "single": "staged-0",
}
# Nothing is ever deleted from these partitions.
_WHOLE = ("plain-0", "timed-0", *STAGED)
# The most that writers of `sized-0` may have in flight. Retention counts these bytes, and a cut may lose them.
_IN_FLIGHT_BYTES = 8192
_MOST_LOOKUPS = 1000
_MOST_PROBLEMS = 50


@dataclass
class Writer:
    """What one worker has written, according to its own notes."""

    name: str
    round: int
    partition: str
    written: int = 0
    # Records with lower numbers are durable.
    durable: int = 0
    offsets: dict[int, int] = field(default_factory=dict)

    def acknowledged(self) -> Iterator[int]:
        """Return the numbers of the durable records."""
        return iter(range(self.durable))


def read_writers(acks: Path, cut_times: dict[int, float]) -> dict[str, Writer]:
    """Return all workers that append lines, by name. Acknowledgements during a cut do not count as durable."""
    found = {}
    for path in sorted(acks.glob("*-*")):
        match = _WORKER.fullmatch(path.name)
        if match is None or match[2] not in _PARTITIONS:
            continue
        writer = Writer(path.name, int(match[1]), _PARTITIONS[match[2]])
        count = 0
        for line in path.read_text().splitlines():
            word, *rest = line.split(" ")
            if word == "w":
                count = int(rest[1])
                writer.written += count
            elif word == "o":
                first = int(rest[0]) - count + 1
                for n in range(count):
                    writer.offsets[writer.written - count + n] = first + n
            elif word == "s" and float(rest[0]) < cut_times.get(writer.round, np.inf):
                writer.durable = writer.written
        found[writer.name] = writer
    return found


def read_cut_times(acks: Path) -> dict[int, float]:
    """Return the time of the cut of each round."""
    found: dict[int, float] = {}
    path = acks / "cuts"
    for line in path.read_text().splitlines() if path.exists() else ():
        when, number, _ = line.split(" ", 2)
        found.setdefault(int(number), float(when))
    return found


class Oracle:
    """Compares a store with the acknowledgements. Errors go into `problems`."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.problems: list[str] = []
        self.counts: Counter[str] = Counter()
        self._log_dirs = [Path(path) for path in spec["log_dirs"]]
        self._acks = Path(spec["acks"])
        self._profile: dict[str, Any] = spec["profile"]
        # An fsync that runs while the file system is shut down may return 0 and mean nothing, on XFS as on ext4:
        # plain files lose what was acknowledged during the ioctl, and nothing that was acknowledged before.
        self._cut_times = read_cut_times(self._acks)
        self._writers = read_writers(self._acks, self._cut_times)
        self._where = ""

    def run(self, copy: str | None) -> None:
        """Verify before recovery, after it, after retention and after a clean close."""
        if copy is not None:
            for path in self._log_dirs:
                shutil.copytree(path, Path(copy) / path.name)
        self._audit("before recovery")
        self._where = "read-only before recovery"
        with Store(self._log_dirs, read_only=True) as store:
            self._verify(store, recovered=False)
        self._where = "after recovery"
        with Store(self._log_dirs) as store:
            self._count_lost(store)
            self._verify(store, recovered=True)
            self._check_lookups(store)
            self._check_snapshots()
            self._where = "after retention"
            self._retain(store)
            self._verify(store, recovered=True)
        self._audit("after a clean close")
        self._where = "after a clean close"
        with Store(self._log_dirs, read_only=True) as store:
            self._verify(store, recovered=True)
            self._check_lookups(store)
        self._count()

    def _problem(self, text: str) -> None:
        if len(self.problems) < _MOST_PROBLEMS:
            text = text.replace(f"{self._log_dirs[0].parent}/", "")
            self.problems.append(f"{self._where}: {text}")

    # The audit.

    def _audit(self, where: str) -> None:
        self._where = f"check {where}"
        for finding in check(self._log_dirs):
            if finding.severity is Severity.ERROR:
                self._problem(str(finding))

    # Records, settings, groups and commits.

    def _verify(self, store: Store, *, recovered: bool) -> None:
        self._check_settings(store)
        for name, reason in store.offline.items():
            self._problem(f"{name} is offline: {reason}")
        records: dict[str, Sequence[Record]] = {}
        for name in sorted({*_PARTITIONS.values(), *STAGED}):
            if name not in store:
                self._problem(f"{name} is not there")
                continue
            try:
                records[name] = list(store[name].read())
            except LogfsError as error:
                lost = self._durable_in(name, error) if isinstance(error, DamagedRange) else 0
                self.counts["lost"] += lost
                self._problem(f"{name} cannot be read, {lost} durable records LOST: {error}")
                continue
            if name == "keyed-0":
                self._check_keyed(records[name])
            else:
                self._check_log(store[name], records[name])
        if "sized-0" in records:
            self._check_sized(store["sized-0"])
        if "trimmed-0" in records:
            self._check_trimmed(store["trimmed-0"])
        self._check_groups(store)
        self._check_commits(records, recovered=recovered)

    def _durable_in(self, name: str, damage: DamagedRange) -> int:
        """Return how many durable records were at the offsets of a damaged range."""
        return sum(
            damage.first_offset <= writer.offsets.get(number, -1) < damage.next_offset
            for writer in self._writers.values()
            if writer.partition == name
            for number in writer.acknowledged()
        )

    def _check_settings(self, store: Store) -> None:
        for topic, settings in self._profile["topics"].items():
            found = store.settings.topic_overrides(topic)
            for name, value in settings.items():
                if found.get(name) != value and "retention" not in name:
                    self._problem(f"{topic}: {name} is {found.get(name)!r}, and was set to {value}")

        tried = [line.split(" ")[1] for line in self._lines("configure") if line.startswith("try")]
        done = [words[2] for words in self._done("configure")]
        topic, _, name = CONFIGURED.partition("-0/config/")
        value = store.settings.topic_overrides(topic).get(name)
        allowed = tried[tried.index(done[-1]) :] if done else [None, *tried]
        if value not in allowed:
            self._problem(f"LOST setting {name} of {topic}: it is {value}, and may be {allowed}")
        for words in self._done("make"):
            if words[2] not in store.registry.homes:
                self._problem(f"LOST partition {words[2]}: mkdir had returned")

    def _lines(self, kind: str) -> list[str]:
        return notes_of(self._acks, kind)

    def _check_log(self, partition: Partition, records: Sequence[Record]) -> None:
        """Check that offsets are contiguous, and that each writer has a prefix of its records with all durable ones.

        The records have the same bytes and offsets as when they were written.
        """
        name = partition.name.directory
        start, end = partition.log_start_offset, partition.log_end_offset
        if name in _WHOLE and start:
            self._problem(f"{name} starts at offset {start}, and nothing may have been deleted")
        for expected, record in enumerate(records, start):
            if record.offset != expected:
                self._problem(f"{name}: offset {record.offset} where {expected} was due")
                break
        if len(records) != end - start:
            self._problem(f"{name}: {len(records)} records in offsets {start} to {end}")
        seen: dict[str, int] = {}
        for record in records:
            self._check_record(name, start, record, seen)
        by_offset = {record.offset: record.value for record in records}
        floor = 0 if name in _WHOLE else start
        for writer in self._writers.values():
            if writer.partition == name:
                self._check_durable(writer, floor, by_offset, seen.get(writer.name, 0))

    def _check_record(self, name: str, start: int, record: Record, seen: dict[str, int]) -> None:
        """Check that a record is the next one of a known writer, with the right bytes, at the reported offset."""
        match = _VALUE.fullmatch(record.value or b"")
        if match is None:
            self._problem(f"{name}: an invented record at {record.offset}: {record.value!r:.100}")
            return
        who, number = match[1].decode(), int(match[2])
        if who.startswith("commit:"):
            return
        writer = self._writers.get(who)
        if writer is None or writer.partition != name:
            self._problem(f"{name}: a record of {who} at {record.offset}, who never wrote here")
            return
        due = seen.get(who)
        if due is None:
            gone = (writer.offsets.get(n, -1) for n in range(number))
            due = number if all(offset < start for offset in gone) and start else 0
        if number != due:
            self._problem(f"{name}: {who} number {number} at {record.offset}, {due} was due")
        if record.value != value_of(who, number).encode():
            self._problem(f"{name}: wrong bytes at {record.offset}: {record.value!r:.100}")
        if writer.offsets.get(number, record.offset) != record.offset:
            told = writer.offsets[number]
            self._problem(f"{name}: {who} number {number} at {record.offset}, was told {told}")
        seen[who] = number + 1

    def _check_durable(
        self, writer: Writer, start: int, by_offset: dict[int, bytes | None], seen: int
    ) -> None:
        """Check that every durable record at or after `start` is at its offset.

        `seen` is the number after the last record of the writer that was found.
        """
        lost = []
        for number in writer.acknowledged():
            offset = writer.offsets.get(number)
            if offset is None:
                if number >= seen and not start:
                    lost.append(number)
            elif (
                offset >= start and by_offset.get(offset) != value_of(writer.name, number).encode()
            ):
                lost.append(number)
        if lost:
            self.counts["lost"] += len(lost)
            self._problem(
                f"{writer.partition}: LOST {len(lost)} durable records of {writer.name}: numbers "
                f"{lost[0]} to {lost[-1]}, offsets from {writer.offsets.get(lost[0])}"
            )

    def _check_sized(self, partition: Partition) -> None:
        """Check that retention by size leaves at least `retention.bytes`."""
        limit = int(self._profile["topics"]["sized"]["retention.bytes"])
        size = partition.size_bytes
        if partition.log_start_offset and size < limit - _IN_FLIGHT_BYTES:
            self._problem(f"sized-0: {size} bytes are left of retention.bytes={limit}")

    def _check_trimmed(self, partition: Partition) -> None:
        """Check that the log starts at the offset of the last request, or of one that was not answered."""
        lines = [line.split(" ") for line in self._lines("delete")]
        tried = max((int(words[1]) for words in lines if words[0] == "try"), default=0)
        done = max((int(words[2]) for words in self._done("delete")), default=0)
        start = partition.log_start_offset
        if not done <= start <= tried:
            self._problem(f"trimmed-0 starts at {start}; {done} was durable, {tried} asked for")

    def _done(self, kind: str) -> list[list[str]]:
        """Return the words of each durable `done` line of the workers of a kind, from before the cut of its round."""
        found = []
        paths = self._acks.glob(f"*-{kind}*")
        for path in sorted(paths, key=lambda path: int(path.name.partition("-")[0])):
            before = self._cut_times.get(int(path.name.partition("-")[0]), np.inf)
            for line in path.read_text().splitlines():
                words = line.split(" ", 3)
                if words[0] == "done" and float(words[1]) < before:
                    found.append(words)
        return found

    def _check_keyed(self, records: Sequence[Record]) -> None:
        """Check that every record was written, in this order, and that no durable version of a key is lost.

        Of each key, the last durable version or a later one must be there.
        """
        latest: dict[str, tuple[int, int]] = {}
        seen: dict[str, int] = {}
        for record in records:
            who, _, digits = (dict(record.headers).get("id") or b"").decode().partition(" ")
            if who not in self._writers or not digits.isdecimal():
                self._problem(f"keyed-0: an invented record at {record.offset}")
                continue
            writer, number = self._writers[who], int(digits)
            key, value = keyed(who, number)
            wanted = (key.encode(), None if value is None else value.encode())
            if (record.key, record.value) != wanted:
                self._problem(f"keyed-0: wrong bytes at {record.offset}: {record.value!r:.100}")
            if writer.offsets.get(number, record.offset) != record.offset:
                self._problem(f"keyed-0: {who} number {number} at {record.offset}")
            if number <= seen.get(who, -1):
                self._problem(f"keyed-0: {who} number {number} after {seen[who]}")
            seen[who] = number
            latest[key] = (writer.round, number)
        lost = 0
        for writer in self._writers.values():
            if writer.partition != "keyed-0":
                continue
            last: dict[str, int] = {}
            for number in writer.acknowledged():
                last[keyed(writer.name, number)[0]] = number
            for key, number in last.items():
                if latest.get(key, (0, 0)) < (writer.round, number):
                    lost += 1
                    self._problem(
                        f"keyed-0: LOST key {key}: number {number} of {writer.name} is durable, "
                        f"there is {latest.get(key)}"
                    )
        self.counts["lost"] += lost

    def _check_groups(self, store: Store) -> None:
        """Check that each group has its last commit, or one that was requested and not answered."""
        tried: dict[str, set[int]] = defaultdict(set)
        done: dict[str, int] = {}
        for line in self._lines("group"):
            words = line.split(" ")
            if words[0] == "try":
                tried[words[1]].add(int(words[2]))
        for words in self._done("group"):
            group, offset = words[2], int(words[3])
            done[group] = max(done.get(group, 0), offset)
        for group, offsets in tried.items():
            found = store.groups.committed(group, GROUP_PARTITION)
            offset = -1 if found is None else found.offset
            if offset < done.get(group, -1):
                self.counts["lost"] += 1
                self._problem(f"LOST commit of {group}: {offset}, durable is {done[group]}")
            if offset not in offsets | {-1}:
                self._problem(f"{group} has committed {offset}, which it never asked for")

    def _check_commits(self, records: dict[str, Sequence[Record]], *, recovered: bool) -> None:
        """Check that all acknowledged commits are there, whole, once, in order, and in both partitions."""
        told = {
            int(words[2]): json.loads(words[3]) if len(words) > 3 else {}
            for words in self._done("commit")
        }
        lines = [line.split(" ") for line in self._lines("commit")]
        tried = max((int(words[1]) for words in lines if words[0] == "try"), default=-1)
        counts = []
        for name in STAGED:
            if name not in records:
                return
            counts.append(self._check_committed(name, records[name], told))
        if recovered and counts[0] != counts[1]:
            self._problem(f"commits up to {counts[0] - 1} and {counts[1] - 1} in {STAGED}")
        if not max(told, default=-1) < min(counts):
            self.counts["lost"] += 1
            self._problem(f"LOST commit {max(told)}: {counts} are there")
        if max(counts) > tried + 1:
            self._problem(f"{max(counts)} commits are there, and {tried + 1} were asked for")

    def _check_committed(
        self, name: str, records: Sequence[Record], told: dict[int, dict[str, list[int]]]
    ) -> int:
        """Check that each commit in a partition is whole and in its place, and return how many there are."""
        found: dict[int, list[Record]] = {}
        for record in records:
            who = (record.value or b"").split(b" ")[0].decode()
            match = _COMMIT.fullmatch(who)
            if match is not None:
                found.setdefault(int(match[2]), []).append(record)
        for expected, (sequence, parts) in enumerate(found.items()):
            values = [value.encode() for value in staged_values(sequence, name)]
            first = parts[0].offset
            if sequence != expected:
                self._problem(f"{name}: commit {sequence} where {expected} was due")
            if [record.value for record in parts] != values:
                self._problem(f"{name}: commit {sequence} is there with {len(parts)} records")
            if [record.offset for record in parts] != [*range(first, first + len(parts))]:
                self._problem(f"{name}: commit {sequence} is torn apart at offset {first}")
            place = told.get(sequence, {}).get(name)
            if place and place != [first, first + len(parts)]:
                self._problem(f"{name}: commit {sequence} is at {first}, was told {place}")
        return len(found)

    # Lookups by time.

    def _check_lookups(self, store: Store) -> None:
        """Look up the time of every record, and compare the results with a scan of the log."""
        for name in _WHOLE:
            if name not in store:
                continue
            partition = store[name]
            try:
                rows = partition.columns()
            except LogfsError as error:
                self._problem(f"{name} cannot be scanned: {error}")
                continue
            if not len(rows):
                continue
            self._check_times(partition, rows.offsets, rows.timestamps)

    def _check_times(
        self, partition: Partition, offsets: np.ndarray[Any, Any], times: np.ndarray[Any, Any]
    ) -> None:
        name = partition.name.directory
        reached = np.maximum.accumulate(times)
        wanted = np.unique(times)
        if len(wanted) > _MOST_LOOKUPS:
            wanted = wanted[:: len(wanted) // _MOST_LOOKUPS + 1]
        wrong = 0
        for timestamp in (0, *wanted.tolist(), int(times.max()) + 1):
            row = bisect_left(reached, timestamp)
            due = (int(offsets[row]), int(times[row])) if row < len(times) else None
            found = partition.offset_for_time(timestamp)
            self.counts["lookups"] += 1
            if (found and (found.offset, found.timestamp)) != due:
                wrong += 1
                if wrong <= 2:
                    self._problem(f"{name}: the time {timestamp} leads to {found}, not {due}")
        if wrong:
            self.counts["wrong lookups"] += wrong
            self._problem(f"{name}: {wrong} of {len(wanted) + 2} time lookups are wrong")
        for segment in partition.segments:
            inside = (offsets >= segment.base_offset) & (offsets < segment.next_offset)
            if inside.any() and segment.largest_timestamp != int(times[inside].max()):
                told = segment.largest_timestamp
                self._problem(
                    f"{segment.path}: largest timestamp {told}, not {times[inside].max()}"
                )

    # Retention.

    def _retain(self, store: Store) -> None:
        """Check that retention whose settings delete nothing removes only what is below the log start offset."""
        store.settings.set_topic("sized", "retention.bytes", str(1 << 50))
        before = {
            name: ([segment.base_offset for segment in each.segments], each.log_start_offset)
            for name, each in store.registry.partitions.items()
        }
        store.retain()
        for name, (bases, start) in before.items():
            partition = store[name]
            ends = [*bases[1:], partition.log_end_offset]
            left = {segment.base_offset for segment in partition.segments}
            # An earlier retention had already decided to drop everything below the log start offset.
            gone = [
                base
                for base, end in zip(bases, ends, strict=True)
                if base not in left and end > start
            ]
            if gone or partition.log_start_offset != start:
                self._problem(
                    f"{name}: retention took {len(gone)} segments of {len(bases)}, and the log "
                    f"starts at {partition.log_start_offset} instead of {start}"
                )

    # Producer snapshots.

    def _check_snapshots(self) -> None:
        paths = [path for home in self._log_dirs for path in home.glob("*/*.snapshot")]
        for path in paths:
            if "." in path.parent.name:
                # The directory is about to be removed.
                continue
            data = path.read_bytes()
            self.counts["snapshots"] += 1
            try:
                parse_snapshot(data)
            except Corrupt as error:
                self._problem(f"{path}: a snapshot of {len(data)} bytes: {error}")

    # Figures.

    def _count_lost(self, store: Store) -> None:
        """Count the records that were written, never synced, and lost: the proof that the cuts lose data."""
        for writer in self._writers.values():
            if writer.partition in store and writer.partition != "keyed-0":
                end = store[writer.partition].log_end_offset
                told = (offset for n, offset in writer.offsets.items() if n >= writer.durable)
                self.counts["unsynced lost"] += sum(offset >= end for offset in told)
        for name, partition in store.registry.partitions.items():
            self.counts["segments"] += len(partition.segments)
            if name == "sized-0":
                self.counts["dropped by size"] += partition.log_start_offset
            if name == "keyed-0":
                with suppress(LogfsError):
                    there = len(list(partition.read()))
                    self.counts["compacted away"] += partition.log_end_offset - there

    def _count(self) -> None:
        self.counts["acknowledged"] += sum(writer.durable for writer in self._writers.values())
        for kind, what in (("group", "group commits"), ("commit", "staged commits")):
            self.counts[what] += len(self._done(kind))
        self.counts["delete-records"] += len(self._done("delete"))
        moved = [line for line in self._lines("move") if line.startswith("moved ")]
        self.counts["moves"] += len(moved)
        retried = [line for line in self._lines("commit") if line.startswith("retry ")]
        self.counts["commits sent again"] += len(retried)


def run(spec: dict[str, Any]) -> int:
    """Verify the store that `spec` describes, and write the problems and counts to its `result`."""
    oracle = Oracle(spec)
    oracle.run(spec["copy"])
    found = {"problems": oracle.problems, "counts": oracle.counts}
    Path(spec["result"]).write_text(json.dumps(found))
    return 0
