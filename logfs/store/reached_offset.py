"""The offset that a reader has reached in a log, by which a later truncation of the log is noticed."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from logfs.log.follow.live_partition import LivePartition
from logfs.store.partition_identity import last_below

if TYPE_CHECKING:
    from typing import Self

    from logfs.format.files.key_table_format import Anchor
    from logfs.log.read.log import Log
    from logfs.log.state.leader_epochs import LeaderEpochs
    from logfs.log.state.log_state import LogState


class Truncation(NamedTuple):
    """A truncation of a log below an offset that a reader has reached.

    `continuation` is the offset at which the reader goes on. If `leaves_out` is True, the log has since grown to the
    reached offset or beyond, and it is unknown which records below this offset are new. The reader then goes on at
    the reached offset, and does not get the new records below it.
    """

    continuation: int
    leaves_out: bool


class _Noted(NamedTuple):
    """An offset that a reader has reached, and what was known of the log then.

    The log is later compared with this, to notice a truncation below the offset. `log` is the log object, and `state`
    and `epochs` are its state and its leader epochs when the offset was reached. `cuts` is the number of entries that
    `Log.cuts` had then. `last` identifies the last batch below the offset, None if it is unknown.
    """

    log: Log
    state: LogState
    cuts: int
    offset: int
    epochs: LeaderEpochs
    last: Anchor | None

    @classmethod
    def of(cls, log: Log, state: LogState, cuts: int, offset: int) -> Self:
        return cls(log, state, cuts, offset, log.epochs, last_below(log, offset))


class ReachedOffset:
    """An offset up to which a reader has read a log. It notices if the log is truncated below this offset later.

    A process knows exactly where it has truncated a log itself. Each of these signs shows a truncation by another
    process: the log ends at a lower offset; an offset now has another leader epoch; or another batch now lies before
    the reached offset.
    """

    def __init__(self, log: Log, offset: int) -> None:
        # This is only replaced as a whole: the thread of a cancelled read may still run beside that of the next read.
        self._noted = _Noted.of(log, log.state, len(log.cuts), offset)

    def advance(self, log: Log, offset: int) -> None:
        """Note that the reader has read the log up to `offset`, and what the log looks like now.

        The earlier note is kept if the log was truncated since then, or if `log` is another object than then. The
        next `truncation_below` needs it to tell whether the reader has read what was cut off.
        """
        noted, state, cuts = self._noted, log.state, len(log.cuts)
        is_looked_at = (
            log is noted.log and cuts == noted.cuts and state.truncations is noted.state.truncations
        )
        if is_looked_at and offset != noted.offset:
            self._noted = _Noted.of(log, state, cuts, offset)

    def truncation_below(self, log: Log, offset: int) -> Truncation | None:
        """Return the truncation that has removed records below `offset` since the reader read them; None if none has.

        `offset` is the offset that the reader reads next, and `log` the partition's log now, which may be another
        object than before. For example, a reader has reached offset 10, another process truncates the log to 6, and
        two records are appended. If these have a new leader epoch, the reader goes on at 6, otherwise at the log end,
        which is 8.
        """
        noted, state, cuts = self._noted, log.state, len(log.cuts)
        found = _truncation(noted, log, offset)
        if found is None and state is not noted.state:
            # What was cut off, if anything, lies at or above `offset`, so the reader has read none of it.
            self._noted = _Noted.of(log, state, cuts, offset)
        return found

    def is_kept(self, log: Log, offset: int) -> bool:
        """Whether, as far as known, the log was not truncated below `offset` since the reader read it.

        `offset` may be below the offset that the reader has reached.
        """
        return _truncation(self._noted, log, offset) is None


def _truncation(noted: _Noted, log: Log, offset: int) -> Truncation | None:
    if log.state is noted.state:
        return None
    if not isinstance(log, LivePartition):
        known = len(noted.state.truncations) if log is noted.log else 0
        exact = log.state.truncations[known:]
        at = min([offset, *exact])
        return Truncation(at, leaves_out=False) if at < offset else None
    differing = [
        start
        for epoch, start in log.epochs.entries
        if noted.epochs.epoch_for(start) not in (epoch, -1)
    ]
    at = min([offset, log.state.log_end_offset, *differing])
    leaves_out = at == offset and _is_replaced(noted, log, offset)
    return Truncation(at, leaves_out) if at < offset or leaves_out else None


def _is_replaced(noted: _Noted, log: Log, offset: int) -> bool:
    """Whether another process has truncated the log below `offset` and appended other records, as far as known.

    Compares the last batch below the reached offset with the one that the log had when this offset was reached.
    Compaction may have changed this batch. So in a compacted topic a difference counts only if it is also known that
    another process has truncated a segment that begins below `offset`.
    """
    cuts = log.cuts[noted.cuts if log is noted.log else 0 :]
    if log.config.is_compacted and not any(cut < offset for cut in cuts):
        return False
    now = last_below(log, noted.offset)
    return None not in (now, noted.last) and now != noted.last
