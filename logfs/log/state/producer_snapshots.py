"""The .snapshot files of a partition: its producers at some offsets, so that an opening need not read the whole log.

kafka-storage 9.8 describes which snapshots are kept. A damaged snapshot is deleted, or ignored in a read-only store:
the same state can be computed from an older snapshot and the log.
"""

from __future__ import annotations

import errno
import logging
from contextlib import closing, suppress
from typing import TYPE_CHECKING

from logfs.errors import Corrupt
from logfs.format.base import names
from logfs.format.base.batch_rows import NEXT_OFFSET, SPAN_BASE_OFFSET
from logfs.format.files.producer_snapshot import format_snapshot, parse_snapshot
from logfs.log.segment.batch_iterator import Damage
from logfs.log.segment.batch_scanner import scan_from
from logfs.log.segment.txn_index import aborted_in
from logfs.log.state.producers import Producers, deciding_batches

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from logfs.log.disk.disk import Disk
    from logfs.log.segment.segment import Segment

logger = logging.getLogger(__name__)


class ProducerSnapshots:
    """The snapshots of a partition directory. Each has the producers' state after all batches below its offset.

    `offsets` are the offsets of the snapshots, ascending. New snapshots are written only above the newest one. If
    there is none, they are written only above `minimum_offset`, the log start offset.
    """

    def __init__(self, disk: Disk, directory: Path, expiration_ms: int) -> None:
        """List the snapshots in `directory`. `expiration_ms` is how long an idle producer is remembered."""
        self._disk = disk
        self._directory = directory
        self._expiration_ms = expiration_ms
        # The offsets of the snapshots that are not synced yet: a power cut could lose them.
        self._unsynced: set[int] = set()
        # The offsets of the snapshots that `set_aside` has taken out of use, and whose files are not removed yet.
        self._aside: set[int] = set()
        # The log start offset. As long as there are no snapshots, `write` writes none at or below this offset,
        # because the producers of deleted records are forgotten.
        self.minimum_offset = 0
        self.offsets: list[int] = []
        self.list_files()

    def list_files(self) -> None:
        """List the snapshots in the directory again: another process may have written or removed some."""
        self.offsets = sorted(
            names.parse_stem(entry.name)
            for entry in self._disk.scan(self._directory)
            if entry.name.endswith(names.SNAPSHOT)
        )

    def rebind(self, disk: Disk, directory: Path, offsets: list[int]) -> None:
        """Use the snapshots in `directory` on `disk` from now on, because the partition has moved there.

        These snapshots must be durable. `offsets` are their offsets, ascending.
        """
        self._disk, self._directory, self.offsets = disk, directory, offsets
        self._unsynced.clear()

    @property
    def latest(self) -> int:
        """The offset of the newest snapshot, or `minimum_offset` if there is none."""
        return self.offsets[-1] if self.offsets else self.minimum_offset

    def path(self, offset: int) -> Path:
        """Return the path of the snapshot at an offset."""
        return self._directory / (names.stem(offset) + names.SNAPSHOT)

    def read(self, offset: int) -> bytes:
        """Return the bytes of the snapshot at an offset."""
        return self._disk.read_file(self.path(offset))

    def write(self, offset: int, producers: Producers) -> None:
        """Write a snapshot of `producers`, the state at `offset`, if `offset` is above `latest`.

        A read-only store writes no snapshot. The next `flush` makes the file durable.
        """
        if offset <= self.latest or not self._disk.writable:
            return
        self._disk.ensure_file(self.path(offset), format_snapshot(producers.entries()), sync=False)
        self.offsets.append(offset)
        self._unsynced.add(offset)
        self._aside.discard(offset)

    def write_if_room(self, offset: int, producers: Producers) -> None:
        """Write a snapshot of `producers`, the state at `offset`, if `offset` is above `latest`.

        If the disk is full, only log a warning: the next opening then reads more of the log.
        """
        try:
            self.write(offset, producers)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            logger.warning(
                "%s: not written; opening will read more of the log: %s", self.path(offset), error
            )

    def flush(self) -> None:
        """Sync the snapshots that a power cut could lose. The caller must sync their directory."""
        while self._unsynced:
            offset = next(iter(self._unsynced))
            # The file is missing if the snapshot was removed after it was written: it then needs no sync.
            with (
                suppress(FileNotFoundError),
                closing(self._disk.open(self.path(offset), write=True)) as file,
            ):
                self._disk.sync(file)
            self._unsynced.discard(offset)

    def newest(self, now_ms: int, most: int | None = None) -> tuple[int, Producers]:
        """Return the offset and the producers of the newest snapshot that can be read, without expired producers.

        `most`, if given, is the greatest permitted offset of the snapshot. Removes damaged snapshots (`drop`). If no
        snapshot can be read, returns `minimum_offset` and no producers.
        """
        for offset in reversed(self.offsets):
            if most is not None and offset > most:
                continue
            try:
                producers = Producers(parse_snapshot(self.read(offset)))
                producers.expire(now_ms, self._expiration_ms)
                return offset, producers
            except FileNotFoundError:
                self.offsets.remove(offset)
            except Corrupt as error:
                logger.warning(
                    "%s: %s; an older snapshot or the log is used", self.path(offset), error
                )
                self.drop(offset)
        return self.minimum_offset, Producers()

    def restore(
        self,
        segments: Sequence[Segment],
        log_start_offset: int,
        end: int,
        now_ms: int,
        *,
        begin: int | None = None,
    ) -> Producers:
        """Return the producers at the offset `end`: those of the newest snapshot, updated by the batches after it.

        If there is no snapshot, all batches from `begin` on are read. A `begin` below the log start offset finds
        transactions that began there, too, as readers in other processes do. If `begin` is None, the log start offset
        is used, as in Kafka.

        Removes the snapshots above `end`, and those at or below the log start. Writes snapshots at `end` and at the
        base offsets of the last two segments, but none at or below the newest snapshot (kafka-storage 9.8).
        """
        for offset in [*self.offsets]:
            if not log_start_offset < offset <= end:
                self.drop(offset)
        self.minimum_offset = log_start_offset
        start, producers = self.newest(now_ms)
        if begin is not None and not self.offsets:
            start = begin
        wanted = {segment.base_offset for segment in segments[-2:] if segment.base_offset < end}
        for segment in segments:
            if segment.base_offset in wanted:
                self.write_if_room(segment.base_offset, producers)
            replay(producers, segment, start, end)
        self.write_if_room(end, producers)
        return producers

    def producers_at(self, offset: int, segments: Sequence[Segment], now_ms: int) -> Producers:
        """Return the producers at `offset`: those of a snapshot at or below it, updated by the batches in between."""
        start, producers = self.newest(now_ms, offset)
        for segment in segments:
            replay(producers, segment, start, offset)
        return producers

    def drop(self, offset: int) -> None:
        """Remove the snapshot at an offset, if there is one. In a read-only store, its file stays and is ignored."""
        if offset in self.offsets:
            self.offsets.remove(offset)
            if self._disk.writable:
                self._disk.unlink(self.path(offset))

    def set_aside(self, offset: int) -> None:
        """Stop using the snapshots above `offset`, the offset at which recovery of the log begins.

        Recovery writes most of them again, with the same content. Their files therefore stay until `drop_aside`
        removes those that were not written again.
        """
        self._aside.update(found for found in self.offsets if found > offset)
        self.offsets = [found for found in self.offsets if found <= offset]

    def drop_aside(self) -> None:
        """Remove the files of the snapshots that `set_aside` took out of use and `write` has not written since."""
        while self._aside:
            offset = self._aside.pop()
            if self._disk.writable:
                self._disk.unlink(self.path(offset))

    def move_away(self, offset: int) -> list[Path]:
        """Rename the snapshot at an offset to end in `.deleted`; return the new path, or [] if there is none."""
        if offset not in self.offsets:
            return []
        self.offsets.remove(offset)
        path = self.path(offset)
        moved = path.with_name(path.name + names.DELETED)
        self._disk.rename_unsynced(path, moved)
        return [moved]

    def drop_strays(self, base_offsets: Collection[int]) -> None:
        """Remove the snapshots that are not at the base offset of a segment.

        The newest of these stays if it is above all `base_offsets`: it was written at a clean shutdown.
        """
        strays = [offset for offset in self.offsets if offset not in base_offsets]
        if strays and strays[-1] > max(base_offsets, default=-1):
            strays.pop()
        for offset in strays:
            self.drop(offset)


def replay(producers: Producers, segment: Segment, start: int, end: int) -> None:
    """Update `producers` with the batches of a segment that have offsets in [start, end).

    Where a marker is damaged, the segment's transaction index may tell that it was an abort marker. The index may
    lack transactions that these batches abort, if a broker writes the log. They are added to the index in memory
    (`TransactionIndex.supplement`).
    """
    if segment.base_offset >= end or segment.next_offset <= start:
        return
    for found in scan_from(segment, start):
        if isinstance(found, Damage):
            for entry in aborted_in(segment.txn_index.entries, found):
                producers.abort(entry)
            continue
        rows = found.rows
        is_inside = (rows[:, NEXT_OFFSET] > start) & (rows[:, SPAN_BASE_OFFSET] < end)
        for batch in deciding_batches(found.select(is_inside)):
            aborted = producers.update(batch)
            if aborted is not None:
                segment.txn_index.supplement(aborted)
        if found.next_offset >= end:
            return
