"""The offset that a reader has reached in a log, by which a later truncation of the log is noticed."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from logfs.store.partition_identity import last_below

if TYPE_CHECKING:
    from logfs.log.read.log import Log


class Truncation(NamedTuple):
    """A truncation of a log below an offset that a reader has reached.

    `continuation` is the offset at which the reader goes on. `leaves_out` says that the log has grown beyond the
    reached offset since, and that it is not known from where on its records are new: the reader does not get those
    below `continuation`.
    """

    continuation: int
    leaves_out: bool


class ReachedOffset:
    """An offset below which a reader has read a log, and what tells that the log was truncated below it since.

    A process knows exactly where it has truncated a log itself. Of a truncation by another process it knows only
    which segment was cut, so the leader epochs and the batch before the reached offset are noted, too.
    """

    def __init__(self, log: Log, offset: int) -> None:
        self._note(log, offset, len(log.state.truncations), len(log.cuts))

    def advance(self, log: Log, offset: int) -> None:
        """Note that the reader has read the log up to `offset`, unless a truncation has to be looked at first."""
        truncations, cuts = len(log.state.truncations), len(log.cuts)
        is_known = log is self._log and (truncations, cuts) == (self._truncations, self._cuts)
        if is_known and offset != self._offset:
            self._note(log, offset, truncations, cuts)

    def truncation_below(self, log: Log, offset: int) -> Truncation | None:
        """Return the truncation below `offset`, at which the reader is about to read on; None if there was none.

        `log` is the partition's log now, which may be another object than before. For example, a reader has reached
        offset 10, another process truncates the log to 6, and two records are appended. If these have a new leader
        epoch, the reader goes on at 6, otherwise at the log end, which is 8.
        """
        truncations, cuts = len(log.state.truncations), len(log.cuts)
        found = self._find(log, offset)
        is_known = log is self._log and (truncations, cuts) == (self._truncations, self._cuts)
        if found is None and not is_known:
            # All that was cut off lies above `offset`, so the reader has read none of it.
            self._note(log, offset, truncations, cuts)
        return found

    def is_kept(self, log: Log, offset: int) -> bool:
        """Whether the log has not been truncated below `offset`, up to which the reader has used what it has read."""
        return self._find(log, offset) is None

    def _find(self, log: Log, offset: int) -> Truncation | None:
        is_known = log is self._log
        exact = log.state.truncations[self._truncations if is_known else 0 :]
        noticed = log.cuts[self._cuts if is_known else 0 :]
        end = log.state.log_end_offset
        if offset <= end and not any(cut < offset for cut in (*exact, *noticed)):
            return None
        if exact:
            return Truncation(min(exact), leaves_out=False)
        differing = [
            start
            for epoch, start in log.epochs.entries
            if self._epochs.epoch_for(start) not in (epoch, -1)
        ]
        at = min([offset, end, *differing])
        leaves_out = at == offset and last_below(log, self._offset) != self._last
        return Truncation(at, leaves_out) if at < offset or leaves_out else None

    def _note(self, log: Log, offset: int, truncations: int, cuts: int) -> None:
        self._log = log
        self._truncations = truncations
        self._cuts = cuts
        self._epochs = log.epochs
        self._offset = offset
        self._last = last_below(log, offset)
