"""The leader epochs of a partition, and the offset at which each began (kafka-storage 10.1)."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from logfs.errors import Corrupt
from logfs.format.base import names
from logfs.format.base.batch_rows import LEADER_EPOCH, SPAN_BASE_OFFSET
from logfs.format.files import checkpoint

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from logfs.log.disk.disk import Disk


class LeaderEpochs:
    """An ordered map of leader epochs to start offsets, kept in the file `leader-epoch-checkpoint`.

    Both epochs and start offsets increase. The file is written at each change. Only one thread at a time may change
    the map.
    """

    def __init__(
        self, disk: Disk, directory: Path, entries: Sequence[tuple[int, int]] | None = None
    ) -> None:
        """Load the file; if it is missing, create it empty on a writable disk. Raises `Corrupt` if it is malformed.

        If `entries` are given, as pairs (epoch, start offset), they become the content of the map. The file is then
        neither read nor written.
        """
        self._disk = disk
        self._path = directory / names.LEADER_EPOCHS
        self._entries = list(entries or ())
        if entries is not None:
            return
        if disk.exists(self._path):
            try:
                self._entries = checkpoint.parse_epochs(disk.read_file(self._path))
            except Corrupt as error:
                advice = "" if disk.is_remote else "; move it away, and run 'logfs reindex'"
                raise Corrupt(f"{self._path}: {error}{advice}") from None
        elif disk.writable:
            disk.open(self._path, write=True, create=True).close()

    def rebind(self, disk: Disk, directory: Path) -> None:
        """Write the file in `directory` on `disk` from now on, because the partition has moved there.

        The file there is not read: it must have the same entries.
        """
        self._disk, self._path = disk, directory / names.LEADER_EPOCHS

    @property
    def first_offset(self) -> int | None:
        """The start offset of the first epoch, which is usually the log start; None if there is no epoch.

        An increase of the log start raises this offset at once, before the segments below it are removed.
        """
        return min((start for _, start in self._entries), default=None)

    @property
    def entries(self) -> list[tuple[int, int]]:
        """The pairs (epoch, start offset) in ascending order."""
        return list(self._entries)

    @property
    def latest(self) -> int:
        """The newest epoch; -1 if there is none."""
        return self._entries[-1][0] if self._entries else -1

    def assign(self, epoch: int, offset: int) -> None:
        """Note that the records from `offset` on have the leader epoch `epoch`.

        Removes the entries with an epoch >= `epoch` or a start offset >= `offset`. Changes nothing if `epoch`
        is the latest already and starts at or below `offset`.
        """
        if self._entries and epoch == self.latest and offset >= self._entries[-1][1]:
            return
        kept = [entry for entry in self._entries if entry[0] < epoch and entry[1] < offset]
        self._replace([*kept, (epoch, offset)])

    def note_batches(self, rows: NDArray[np.int64]) -> None:
        """Add each leader epoch above `latest` that a batch has, with the base offset of the first batch that has it.

        `rows` has a row of integers for each batch, in the order of offsets. The module
        `logfs.format.base.batch_rows` has the numbers of the columns.
        """
        newer = rows[rows[:, LEADER_EPOCH] > self.latest]
        for epoch, base_offset in newer[:, (LEADER_EPOCH, SPAN_BASE_OFFSET)].tolist():
            if epoch > self.latest:
                self.assign(epoch, base_offset)

    def epoch_for(self, offset: int) -> int:
        """Return the leader epoch of the record at `offset`; -1 if it is unknown."""
        number = bisect_right(self._entries, offset, key=lambda entry: entry[1])
        return self._entries[number - 1][0] if number else -1

    def end_of(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Return (epoch, end offset) of the newest epoch at or below `epoch`, in a log that ends at `log_end_offset`.

        If all known epochs are above `epoch`, returns `epoch` itself, with the start offset of the first. Returns
        (-1, -1) if no epoch is as high as `epoch` (kafka-storage 10.5).
        """
        entries = self._entries
        if epoch < 0 or not entries or epoch > entries[-1][0]:
            return -1, -1
        number = bisect_right(entries, epoch, key=lambda entry: entry[0])
        end = log_end_offset if number == len(entries) else entries[number][1]
        return (entries[number - 1][0] if number else epoch), end

    def truncate_from_end(self, offset: int) -> None:
        """Drop the epochs that start at or after `offset`."""
        self._replace([entry for entry in self._entries if entry[1] < offset])

    def truncate_from_start(self, offset: int) -> None:
        """Drop the epochs that end at or below `offset`. The epoch in force at `offset` now starts at `offset`."""
        below = [entry for entry in self._entries if entry[1] <= offset]
        above = [entry for entry in self._entries if entry[1] > offset]
        self._replace([(below[-1][0], offset), *above] if below else above)

    def _replace(self, entries: list[tuple[int, int]]) -> None:
        if entries == self._entries:
            return
        if self._disk.writable:
            self._disk.replace_file(self._path, checkpoint.format_epochs(entries))
        self._entries = entries
