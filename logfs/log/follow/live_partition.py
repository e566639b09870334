"""A partition that another process writes: a read-only store keeps it up to date with the files on the disk.

A broker does not report what it appends, rolls, deletes, compacts or truncates. `refresh` therefore compares the
mtime of the directory, and the inode, size and mtime of the last .log file, and reads only if one has changed.
Segments that still exist stay the same objects, so their readers are not disturbed. Segments that were replaced or
dropped stay usable, with open files, for the readers that hold them. `refresh` writes no file and locks no file; it
only holds the partition's `lock`, in this process. If files vanish during a refresh, the next one lists the directory
again.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from logfs.errors import Corrupt
from logfs.log.disk.disk import TRIES, Gone
from logfs.log.follow.live_segment import LiveSegment
from logfs.log.read.log import Log
from logfs.log.recovery import Loaded, LoadStart
from logfs.log.segment.segment_end import UNMEASURED, SegmentEnd
from logfs.log.segment.segment_listing import list_segments
from logfs.log.state.leader_epochs import LeaderEpochs
from logfs.log.state.producer_snapshots import ProducerSnapshots, replay

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from logfs.config import LogConfig
    from logfs.format.base.names import TopicPartition
    from logfs.log.disk.disk import Disk
    from logfs.log.segment.segment import Segment
    from logfs.log.segment.segment_listing import Files, Listing
    from logfs.log.state.log_state import LogState
    from logfs.log.state.producers import Producers

logger = logging.getLogger(__name__)

# When segments leave the log, at most this many of them, the newest, are kept open for their readers.
_KEPT_OPEN = 256


def load(disk: Disk, directory: Path, start: LoadStart) -> Loaded:
    """Load a partition that another process is writing, without reading all of its log.

    Reads only the directory, the leader epochs, and the ends of the last segments. `start` has the offsets from the
    checkpoint files. Raises `OSError`; `Gone` if files vanish during each of 100 tries; `Corrupt` for a malformed
    leader epoch file, except in a bucket.
    """
    for _ in range(TRIES - 1):
        with suppress(Gone):
            return _load(disk, directory, start)
    return _load(disk, directory, start)


def _load(disk: Disk, directory: Path, start: LoadStart) -> Loaded:
    """Try once to load the partition. Raises `Gone` if a listed file has been deleted meanwhile."""
    segments = _make_segments(disk, directory, _list(disk, directory), {})
    if not segments:
        # The directory is being created or removed.
        empty = LiveSegment(disk, directory, start.log_start_offset)
        empty.set_end(SegmentEnd(0, empty.base_offset, UNMEASURED))
        segments = [empty]
    last = segments[-1]
    # Close the file, because a store may have very many partitions; the next read opens it again.
    last.close()
    timestamp = last.last_timestamp
    if timestamp < 0 and len(segments) > 1:
        timestamp = segments[-2].max_timestamp.timestamp
    end = last.next_offset
    first = min(max(start.log_start_offset, segments[0].base_offset), end)
    epochs = _load_epochs(disk, directory)
    snapshots = ProducerSnapshots(disk, directory, start.producer_expiration_ms)
    point = min(start.recovery_point, end)
    return Loaded([*segments], first, point, epochs, snapshots, None, timestamp)


def _load_epochs(disk: Disk, directory: Path) -> LeaderEpochs:
    """Return the leader epochs of the partition in `directory`.

    A damaged epoch file in a bucket counts as empty, because each segment there has its own copy of the epochs.
    """
    try:
        return LeaderEpochs(disk, directory)
    except Corrupt as error:
        if not disk.is_remote:
            raise
        logger.warning("%s: its leader epochs are left out: %s", directory, error)
        return LeaderEpochs(disk, directory, ())


def _list(disk: Disk, directory: Path) -> Listing:
    def end_of(base_offset: int, files: Files) -> int:
        return _make_segment(disk, directory, base_offset, files).next_offset

    return list_segments(disk, directory, end_of)


def _make_segment(
    disk: Disk, directory: Path, base_offset: int, files: Files, following: int | None = None
) -> LiveSegment:
    """Return a segment that reads `files`. It ends at the offset `following` or, if that is None, with the .log file.

    `files` has the identity (inode number) of each file, by suffix. The segment's `gaps` stays True: missing offsets
    do not count as damage, because only the cluster knows whether the topic is compacted.
    """
    segment = LiveSegment(disk, directory, base_offset)
    segment.identify(files)
    segment.next_base = following
    if following is None:
        segment.follow_end()
    return segment


def _make_segments(
    disk: Disk, directory: Path, listing: Listing, known: dict[int, LiveSegment]
) -> list[LiveSegment]:
    """Return the segments of a directory listing, in the order of their offsets.

    `known` has the segment objects so far, by base offset. An unchanged segment keeps its object.
    """
    bases = list(listing)
    segments = []
    is_sure = False
    # Go backwards: a truncation drops all later segments. So if a segment was not cut, no segment before it was.
    for base, following in zip(reversed(bases), [None, *reversed(bases[1:])], strict=False):
        segment, files = known.get(base), listing[base]
        if segment is not None and segment.next_base is not None and not is_sure:
            # Check the .log file, too: the segment may have been cut, and sealed again at the same offset.
            is_sure = segment.is_same(files) and segment.is_uncut()
            segment.is_lost |= segment.is_same(files) and not is_sure
        if segment is None or segment.is_lost or not _carry_on(segment, files, following):
            segment = _make_segment(disk, directory, base, files, following)
            if following is not None:
                segment.note_log()
        segments.append(segment)
    return segments[::-1]


def _carry_on(segment: LiveSegment, files: Files, following: int | None) -> bool:
    """Update a known segment from its files as they are listed now (`files`); return whether it can be kept.

    If not, a new segment object must replace it. It cannot be kept if its .log file is another one, if it was sealed
    at another offset than `following`, or if its .log file was cut or deleted before it was sealed. `following` is
    the base offset of the next segment, None for the last one. The segment that was the last one is sealed if it now
    has a next segment.
    """
    if not segment.is_same(files) or segment.next_base not in (None, following):
        return False
    segment.identify(files)
    if segment.next_base is None and following is not None:
        try:
            segment.seal_at(following)
        except Gone:
            segment.is_lost = True
            return False
    return True


class _Look(NamedTuple):
    """The result of one check of a partition directory; `listing` is None if the directory was not listed.

    `number` is how many times the `LivePartition` had been updated before the check. `identity` is the directory's
    inode number. `mtime_ns` is the directory's mtime; it is None if the mtime is so recent that the next change of
    the directory might not alter it. `remote` are the segments that are only in the object store; their offsets are
    below those of the segments in `listing`.
    """

    number: int
    identity: int
    mtime_ns: int | None
    listing: Listing | None
    remote: Sequence[Segment]


class LivePartition(Log):
    """A partition of a read-only store. Every reader sees what was on the disk at the last `refresh`."""

    # For a tiered log: a function that returns the segments in the object store between two offsets, in order.
    remote_between: Callable[[int, int], Sequence[Segment]] | None = None

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        name: TopicPartition,
        config: Callable[[], LogConfig],
        clock: Callable[[], int],
        load: Callable[[], Loaded],
    ) -> None:
        """Make the partition from the result of `load`, which is called once.

        The segments in the result must be of the class `LiveSegment`. Raises the errors of `load`.
        """
        began_ns = time.time_ns()
        before, is_settled = disk.stat_settled(directory)
        loaded = load()
        # The offset up to which the log was read for the state of its producers, and its last segment at that time.
        self._producers_end = 0
        self._producers_last: Segment | None = None
        super().__init__(disk, directory, name, config, clock, loaded)
        if loaded.producers is not None:
            self._producers_end = self.log_end_offset
            self._producers_last = self.segments[-1]
        for segment in self.segments[:-1]:
            assert isinstance(segment, LiveSegment)
            segment.note_log()
        self._recovery_point = loaded.recovery_point
        # The inode number of the directory.
        self.identity = before.identity
        # The log start offset from the checkpoint file, limited to the offsets in the .log files. A broker writes the
        # checkpoint once a minute, so the first .log file may begin at a later offset.
        self._checkpointed_start = loaded.log_start_offset
        # The number of updates so far, by which a thread sees whether another thread has updated the partition.
        self._looks = 0
        # The last known mtime of the directory, and the inode, size and mtime of the last .log file. Each is None if
        # a later change may leave it the same.
        self._seen_directory = before.mtime_ns if is_settled else None
        self._seen_log: tuple[int, int, int] | None = None
        with suppress(FileNotFoundError):
            # Keep the values only if the file did not change after the load began, and if every later change alters
            # the mtime. Otherwise `refresh` might not notice an append that the load has missed.
            log, is_settled = self._stat_log(began_ns)
            self._seen_log = log if is_settled else None

    def attach_remote(self, segments: Sequence[Segment], log_start_offset: int) -> None:
        super().attach_remote(segments, log_start_offset)
        # Loading has raised the log start to the first local segment: use the checkpoint's value again.
        self._checkpointed_start = log_start_offset

    # The producers and the last stable offset. Only readers of committed records need them, and all appended batches
    # must be read to find them. So `state.stable_end` is None until such a reader asks for it.

    def _stable_end(self, end: int) -> int | None:
        return None

    @property
    def stable_state(self) -> LogState:
        state = self.state
        if state.stable_end is not None:
            return state
        return self.until_found(self._follow_producers)

    @property
    def producers(self) -> Producers:
        """The producers at the log end. The first call after the log has grown reads what was appended."""
        _ = self.stable_state
        return super().producers

    @property
    def recovery_point(self) -> int:
        return self._recovery_point

    def _follow_producers(self) -> LogState:
        """Bring producers and transaction indexes up to the log end. Return the state, now with a `stable_end`."""
        self.check_may_block()
        with self.disk.hold(self.lock):
            state = self.state
            if state.stable_end is not None:
                return state
            end, start, first = state.log_end_offset, state.log_start_offset, state.segments[0]
            # Clear `_producers` first, so that an error leaves no half-updated producers.
            known, self._producers = self._producers, None
            # Start over if the last segment was replaced, because the log may have been truncated; and if segments
            # were dropped before they were read, because they may have ended transactions.
            is_same_log = self._producers_last in state.segments
            if known is None or not (
                is_same_log and first.base_offset <= self._producers_end <= end
            ):
                local, now_ms = self.local_segments, self._clock()
                begin = local[0].base_offset
                self.snapshots.list_files()
                known = self.snapshots.restore(local, start, end, now_ms, begin=begin)
            else:
                for segment in state.segments_from(self._producers_end):
                    replay(known, segment, self._producers_end, end)
            self._producers, self._producers_end = known, end
            self._producers_last = state.segments[-1]
            for segment in self.local_segments:
                # Read the transaction index now: its file may be deleted before a reader needs it.
                _ = segment.txn_index.entries
            self.state = state._replace(stable_end=super()._stable_end(end))
            return self.state

    # Following the changes of the files.

    def follow_log_start(self, offset: int) -> None:
        """Set the log start offset to `offset`, the value in the checkpoint of the writing process.

        The log start stays within the offsets of the segments. `refresh` does not read the checkpoint.
        """
        if offset != self._checkpointed_start:
            with self.disk.hold(self.lock):
                self._checkpointed_start = offset
                self._looks += 1
                self._publish_followed(self.segments, self.last_timestamp)

    def refresh(self) -> bool:
        """Bring the partition up to date with its files; return whether anything has changed.

        Costs two calls of `stat` if the files have not changed. If the files have changed, raises `WouldBlock` in a
        thread that must not wait. A partition whose directory was deleted stays as it was.
        """
        if self._is_up_to_date():
            return False
        self.check_may_block()
        try:
            while True:
                look = self._look()
                with self.disk.hold(self.lock):
                    # If the numbers differ, another thread has updated the partition since this check: check again.
                    if look.number == self._looks:
                        self._looks += 1
                        return self._take(look)
        except (FileNotFoundError, Gone) as error:
            logger.debug("%s: changed while it was refreshed: %s", self.directory, error)
            self._seen_directory = self._seen_log = None
            return False

    def is_unchanged(self) -> bool:
        """Whether the files certainly have not changed since `refresh`; always False if some are in a bucket."""
        is_local = not self.disk.is_remote and not self.is_tiered
        return is_local and self._is_up_to_date()

    def _is_up_to_date(self) -> bool:
        try:
            directory = self.disk.stat(self.directory)
            log, _ = self._stat_log()
        except FileNotFoundError:
            return False
        return directory.mtime_ns == self._seen_directory and log == self._seen_log

    def _stat_log(self, since_ns: int | None = None) -> tuple[tuple[int, int, int], bool]:
        """Return (inode, size, mtime in ns) of the last .log file, and whether every later change alters the mtime.

        A later change is one after this call or, with `since_ns` (ns since the epoch), after that time. The second
        value is False if the mtime is very recent at that time: two changes within one step of the filesystem's clock
        have the same mtime. In a bucket the file does not change, and the result is ((0, 0, 0), True).
        """
        if self.disk.is_remote:
            return (0, 0, 0), True
        found, is_settled = self.disk.stat_settled(self.active.path, since_ns)
        return (found.identity, found.size_bytes, found.mtime_ns), is_settled

    def _look(self) -> _Look:
        """Check the directory. If its mtime has changed, list it and get the segments that are only remote."""
        number = self._looks
        found, is_settled = self.disk.stat_settled(self.directory)
        mtime_ns = found.mtime_ns if is_settled else None
        if found.identity != self.identity or found.mtime_ns == self._seen_directory:
            return _Look(number, found.identity, mtime_ns, None, ())
        listing = _list(self.disk, self.directory)
        remote: Sequence[Segment] = ()
        if listing and self.remote_between is not None:
            # Get the remote segments after the listing, to miss none: a writer stores the metadata of a remote copy
            # before it drops the local files.
            remote = self.remote_between(self._checkpointed_start, next(iter(listing)))
        return _Look(number, found.identity, mtime_ns, listing, remote)

    def _take(self, look: _Look) -> bool:
        """Make what a check of the directory (`look`) has found visible to readers. Return whether anything changed.

        The caller must hold `lock`.
        """
        if look.identity != self.identity:
            # The path leads to another partition now. The next refresh of the store replaces this partition.
            return False
        changed = False
        if look.listing is not None:
            changed = self._take_listing(look.listing, look.remote)
            self._seen_directory = look.mtime_ns
        log, is_settled = self._stat_log()
        changed |= self._advance()
        # `_advance` reads after the `stat`, so it has read at least the bytes that were there at the `stat`.
        self._seen_log = log if is_settled else None
        return changed

    def _advance(self) -> bool:
        """Read the appended batches, or replace the last segment if it was cut; return whether anything changed."""
        active = self.active
        assert isinstance(active, LiveSegment)
        try:
            if not active.advance():
                return False
        except Gone:
            fresh = _make_segment(self.disk, self.directory, active.base_offset, active.identities)
            active.is_lost = True
            self._note_cut(active)
            self._publish_followed(
                (*self.segments[:-1], fresh), fresh.last_timestamp, changes_text=True
            )
            return True
        self._publish_followed(self.segments, active.last_timestamp)
        return True

    def _take_listing(self, listing: Listing, remote: Sequence[Segment]) -> bool:
        if not listing:
            # The partition is being created, or removed file by file.
            return False
        known = {s.base_offset: s for s in self.local_segments if isinstance(s, LiveSegment)}
        before = self.active
        assert isinstance(before, LiveSegment)
        local = _make_segments(self.disk, self.directory, listing, known)
        segments = (*remote, *local)
        kept = set(map(id, segments))
        dropped = [segment for segment in known.values() if id(segment) not in kept]
        for segment in dropped[-_KEPT_OPEN:]:
            # Keep the dropped segment open, because text views may still read it. If its .log file is still listed,
            # the segment was not deleted but truncated, and bytes that the views show are lost.
            files = listing.get(segment.base_offset)
            segment.is_lost |= files is not None and segment.is_same(files)
            with suppress(OSError, Gone):
                segment.hold_open(indexes=False)
        following = [each.base_offset for each in local if each.base_offset > before.base_offset]
        if dropped and dropped[-1] is before and following:
            # The writer sealed and dropped `before` between two refreshes. Let readers finish it, and then go on with
            # the next segment.
            with suppress(OSError, Gone):
                before.advance()
                # If compaction has merged segments that this process has never seen, the next segment begins above
                # the end of `before`. Then seal `before` at its own end.
                before.seal_at(min(before.next_offset, following[0]))
        changed = segments != self.segments
        self._reload_epochs()
        cut = next((segment for segment in dropped if segment.is_lost), None)
        if cut is not None:
            self._note_cut(cut)
        last = local[-1].last_timestamp
        self._publish_followed(
            segments, last if last >= 0 else self.last_timestamp, changes_text=bool(dropped)
        )
        return changed

    def _note_cut(self, segment: Segment) -> None:
        """Record in `cuts` that another process has truncated the log within `segment` or to its base offset.

        The key indexes are dropped, because they may have records that the truncation has removed.
        """
        self.forget_keys()
        self.cuts = (*self.cuts, segment.base_offset)

    def _publish_followed(
        self, segments: Sequence[Segment], last_timestamp: int, *, changes_text: bool = False
    ) -> None:
        """Make `segments` visible to readers, with the log start offset from the checkpoint of the writing process.

        The log start is raised to the first offset of `segments` if it is below, and lowered to their end if it is
        above. `last_timestamp` is the timestamp of the last batch (ms). Set `changes_text` if bytes of the text views
        may differ from before; it need not be set for a new log start, which is noticed here.
        """
        start = max(self._checkpointed_start, segments[0].base_offset)
        start = min(start, segments[-1].next_offset)
        self.publish(
            segments=segments,
            log_start_offset=start,
            last_timestamp=last_timestamp,
            changes_text=changes_text or start != self.log_start_offset,
        )

    def _reload_epochs(self) -> None:
        try:
            self.epochs = LeaderEpochs(self.disk, self.directory)
        except (Corrupt, OSError) as error:
            logger.warning(
                "%s: the leader epochs cannot be reloaded; the previous ones are used: %s",
                self.directory,
                error,
            )

    # Reading. A lookup that meets a deleted file refreshes the partition and starts over. A read of a text view does
    # not start over, because dropped segments stay open for the view. If a file was deleted before it was opened for
    # the view, the read raises `Gone`.

    def look_again(self, tries_left: int, gone: Gone) -> None:
        if not tries_left:
            raise gone
        self.check_may_block()
        with self.disk.hold(self.lock):
            self._seen_directory = None
        self.refresh()
