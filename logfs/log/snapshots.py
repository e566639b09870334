"""The .snapshot files of a partition: its producers at some offsets, so that not all of the log is read again.

Which of them are kept is told in kafka-storage 9.8. A snapshot that cannot be read is dropped, and an older one or
the log itself tells the same.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from logfs.errors import Corrupt
from logfs.format import names
from logfs.format.snapshot import format_snapshot, parse_snapshot
from logfs.log import spans
from logfs.log.producers import Producers

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from logfs.log.files import Disk
    from logfs.log.segment import Segment

logger = logging.getLogger(__name__)


class Snapshots:
    """The snapshots of one partition directory, by offset: each holds what the batches below it say."""

    def __init__(self, disk: Disk, directory: Path, expiration_ms: int) -> None:
        """`expiration_ms` is how long an idle producer is remembered."""
        self._disk = disk
        self._directory = directory
        self._expiration_ms = expiration_ms
        # Those that a power cut might take.
        self._unsynced: set[int] = set()
        # Nothing is taken at or below it while there is no snapshot: what lies below the log's start is forgotten.
        self.floor = 0
        self.offsets = sorted(
            names.parse_stem(entry.name)
            for entry in disk.scan(directory)
            if entry.name.endswith(names.SNAPSHOT)
        )

    def move(self, disk: Disk, directory: Path, offsets: list[int]) -> None:
        """Go on with the files in another directory."""
        self._disk, self._directory, self.offsets = disk, directory, offsets
        self._unsynced.clear()

    @property
    def latest(self) -> int:
        """The offset of the newest snapshot, or what stands for one where there is none."""
        return self.offsets[-1] if self.offsets else self.floor

    def path(self, offset: int) -> Path:
        """The file of the snapshot at an offset."""
        return self._directory / (names.stem(offset) + names.SNAPSHOT)

    def read(self, offset: int) -> bytes:
        """The bytes of the snapshot at an offset."""
        return self._disk.read_file(self.path(offset))

    def take(self, offset: int, producers: Producers) -> None:
        """Write down the producers as they are at an offset, unless there is a snapshot at or beyond it.

        A read-only store takes none. The file survives a power cut after the next `flush`.
        """
        if offset <= self.latest or not self._disk.writable:
            return
        self._disk.put_file(self.path(offset), format_snapshot(producers.entries()), sync=False)
        self.offsets.append(offset)
        self._unsynced.add(offset)

    def flush(self) -> None:
        """Return when the snapshots will survive a power cut, once their directory is synced."""
        while self._unsynced:
            offset = next(iter(self._unsynced))
            # One that has been dropped since needs no sync.
            with suppress(FileNotFoundError):
                file = self._disk.open(self.path(offset), write=True)
                try:
                    self._disk.sync(file)
                finally:
                    file.close()
            self._unsynced.discard(offset)

    def newest(self, now_ms: int) -> tuple[int, Producers]:
        """The newest snapshot that can be read, without those that have been idle for too long, and its offset.

        Without one there are no producers, as of the floor.
        """
        for offset in reversed(self.offsets):
            try:
                producers = Producers(parse_snapshot(self.read(offset)))
                producers.expire(now_ms, self._expiration_ms)
                return offset, producers
            except FileNotFoundError:
                self.offsets.remove(offset)
            except Corrupt as error:
                logger.warning(
                    "%s: %s; an older one, or the log, will do", self.path(offset), error
                )
                self.drop(offset)
        return self.floor, Producers()

    def restore(
        self, segments: Sequence[Segment], log_start_offset: int, end: int, now_ms: int
    ) -> Producers:
        """The producers as they are at an offset: the newest snapshot below it, and the log from there on.

        Drops the snapshots that are beyond either end of the log, and takes those that are missing at the last two
        segments' bases and at `end` (kafka-storage 9.8).
        """
        self.drop_outside(log_start_offset, end)
        self.floor = log_start_offset
        start, producers = self.newest(now_ms)
        wanted = {segment.base_offset for segment in segments[-2:]}
        for segment in segments:
            if segment.base_offset >= end or segment.next_offset <= start:
                continue
            first = max(start, segment.base_offset)
            if segment.base_offset in wanted:
                self.take(first, producers)
            replay(producers, segment, first, end)
        self.take(end, producers)
        return producers

    def drop(self, offset: int) -> None:
        """Remove the snapshot at an offset, if there is one."""
        if offset in self.offsets:
            self.offsets.remove(offset)
            if self._disk.writable:
                self._disk.unlink(self.path(offset))

    def move_away(self, offset: int) -> list[Path]:
        """Give the snapshot at an offset a name that ends in `.deleted`; the new name, if there is one."""
        if offset not in self.offsets:
            return []
        self.offsets.remove(offset)
        path = self.path(offset)
        moved = path.with_name(path.name + names.DELETED)
        self._disk.move(path, moved)
        return [moved]

    def drop_strays(self, base_offsets: Collection[int]) -> None:
        """Keep those at the base of a segment, and the one of a clean shutdown: the newest, above all bases."""
        strays = [offset for offset in self.offsets if offset not in base_offsets]
        if strays and strays[-1] > max(base_offsets, default=-1):
            strays.pop()
        for offset in strays:
            self.drop(offset)

    def drop_outside(self, log_start_offset: int, log_end_offset: int) -> None:
        """Remove what lies beyond the log end, or at or below the log start."""
        for offset in [*self.offsets]:
            if not log_start_offset < offset <= log_end_offset:
                self.drop(offset)


def replay(producers: Producers, segment: Segment, start: int, end: int) -> None:
    """Take a segment's batches with offsets in [start, end) into account; what is damaged tells nothing."""
    for batch in spans.producers_batches(segment):
        if start <= batch.header.last_offset and batch.header.base_offset < end:
            producers.note(batch)
