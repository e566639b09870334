"""Retention: which segments are eligible for deletion and why, and their deletion (kafka-storage 7).

`plan_retention` only finds the segments; `Retainer` deletes them. They are found in three passes over the log: for
segments below the log start offset, for segments in excess of `retention.bytes`, and for segments older than
`retention.ms`. Each pass begins at the oldest segment that is left, and ends at the first segment that it does not
delete. The passes for size and age also end at the segment with the first record that a group of
`logfs.retention.groups` has not read.

In a tiered log these passes go over the remote and the local segments; a segment in both places counts once. Unless
`remote.log.copy.disable` is true, the passes for size and age end at the first segment that is not copied yet. Two
more passes, with `local.retention.bytes` and `local.retention.ms`, then find the segments to delete from the local
disk only. From then on, readers use the copies in the object store (KIP-405).
"""

from __future__ import annotations

import logging
from collections import Counter
from enum import Enum
from functools import partial
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING, NamedTuple

from logfs.errors import LogfsError
from logfs.format.base.quantities import format_time
from logfs.log.segment.batch_iterator import Damage
from logfs.setting import LONG_MAX
from logfs.store.directory.log_dir import FirstError
from logfs.store.maintenance.context import Maintenance, MaintenanceContext

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from logfs.config import LogConfig
    from logfs.log.segment.segment import Segment

    Attempt = Callable[[str, Callable[[], None]], object]

logger = logging.getLogger(__name__)

# Up to this size, reading a segment takes less time than opening its indexes.
_SMALL_BYTES = 64 * 1024


class RetentionCause(Enum):
    """Why a segment is eligible for deletion: the log start offset, or the setting whose limit it exceeds."""

    START = "log-start-offset"
    SIZE = "retention.bytes"
    TIME = "retention.ms"
    LOCAL_SIZE = "local.retention.bytes"
    LOCAL_TIME = "local.retention.ms"


# The causes (size, age) to report: `_TOTAL` for a segment beyond the limits of the whole log, `_LOCAL` for a segment
# beyond the limits of the local segments.
_TOTAL = RetentionCause.SIZE, RetentionCause.TIME
_LOCAL = RetentionCause.LOCAL_SIZE, RetentionCause.LOCAL_TIME


class Expired(NamedTuple):
    """A segment that is eligible for deletion, and why: the cause as an enum, and the reason as text for users."""

    segment: Segment
    cause: RetentionCause
    reason: str


class Unread(NamedTuple):
    """The first offset of a partition that a consumer group has not read, and the name of the group."""

    offset: int
    group: str


class RetentionPlan(NamedTuple):
    """What retention would delete from a log now.

    `expired` are the segments to delete, oldest first, and `log_start_offset` is the log start offset after their
    deletion. `stays` says why the oldest remaining segment is kept; it is "" if no segment remains. `released` are
    the segments to delete only from the local disk.
    """

    expired: Sequence[Expired]
    stays: str
    log_start_offset: int
    released: Sequence[Expired] = ()

    def __bool__(self) -> bool:
        return bool(self.expired or self.released)


def plan_retention(
    segments: Sequence[Segment],
    config: LogConfig | None,
    log_start_offset: int,
    now_ms: int,
    copied_end: int | None = None,
    unread: Unread | None = None,
) -> RetentionPlan:
    """Return which segments of a log to delete. The active segment is deleted only together with all others.

    `config` is None if the topic's settings are unknown; then no segment is deleted by size or age. `now_ms` is in ms
    since the epoch. `copied_end` is the offset after the last segment that was copied to the object store, None if
    the log is not tiered. Records at or above the offset of `unread` are not deleted by size or age.
    """
    # Read these offsets before the timestamps: the new log start must not be above records that are appended later.
    starts = [log_start_offset, *(segment.next_offset for segment in segments)]
    reason = f"it lies below the log start offset {log_start_offset}"
    below = takewhile(lambda pair: pair[1].base_offset <= log_start_offset, pairwise(segments))
    expired = [Expired(segment, RetentionCause.START, reason) for segment, _ in below]
    if config is None or not config.has_delete_policy:
        left = segments[len(expired) :]
        stays = _why_it_stays(left, config, now_ms)
        return RetentionPlan(expired, stays, starts[len(expired)])
    # By size and age, delete only segments that the groups have read and that, if the topic copies segments to the
    # object store, were copied.
    copied = copied_end if copied_end is not None and config.copies_segments else LONG_MAX
    end = copied if unread is None else min(copied, unread.offset)
    limits = config.retention_bytes, config.retention_ms
    found = _beyond_limits(segments[len(expired) :], limits, _TOTAL, now_ms)
    expired += takewhile(lambda each: each.segment.next_offset <= end, found)
    left = segments[len(expired) :]
    released: list[Expired] = []
    if copied_end is not None:
        local = [segment for segment in left if not segment.is_tiered]
        found = _beyond_limits(local, config.local_limits, _LOCAL, now_ms)
        released += takewhile(lambda each: each.segment.next_offset <= copied_end, found)
    stays = _why_it_stays(left, config, now_ms, unread, copied)
    return RetentionPlan(expired, stays, starts[len(expired)], released)


def _beyond_limits(
    segments: Sequence[Segment],
    limits: tuple[int, int],
    causes: tuple[RetentionCause, RetentionCause],
    now_ms: int,
) -> Iterator[Expired]:
    """Yield the segments beyond `limits`, oldest first.

    `limits` are the maximum size of the log (bytes) and the maximum age of a segment (ms), negative for no limit.
    `causes` are the cause to report for a segment beyond the size limit, and that for one beyond the age limit.
    """
    (most_bytes, most_ms), (by_size, by_age) = limits, causes
    excess = sum(segment.size_bytes for segment in segments) - most_bytes if most_bytes >= 0 else -1
    for segment in segments:
        size = segment.size_bytes
        if not size and segment is segments[-1]:
            return
        if excess >= size:
            reason = f"the log exceeds {by_size.value}={most_bytes} by {excess} bytes"
            yield Expired(segment, by_size, reason)
            excess -= size
            continue
        # The deletion of this segment would leave less than `most_bytes`, so only the age matters from here on.
        excess = -1
        is_small = size <= _SMALL_BYTES
        if most_ms < 0 or (not is_small and now_ms - segment.largest_timestamp <= most_ms):
            return
        # Check the newest records, too: after a crash or damage, the time index may end before them.
        newest = _newest_timestamp(segment, whole=is_small)
        if now_ms - newest <= most_ms:
            return
        what = "its newest record" if size else "it is empty, and its last change"
        reason = f"{what}, of {format_time(newest)}, is older than {by_age.value}={most_ms}"
        yield Expired(segment, by_age, reason)


def _newest_timestamp(segment: Segment, *, whole: bool) -> int:
    """Return the greatest timestamp of a record (ms); the .log file's modification time if no record has one.

    With `whole`, all batches are read, otherwise only the last batches and the time index (`largest_timestamp`). The
    records in a damaged range count as if their timestamp were the modification time. A remote segment is not read:
    its timestamp is in its metadata.
    """
    if segment.is_tiered:
        # This timestamp comes from the metadata topic, which is trusted. Reading the segment would cost requests.
        return segment.largest_timestamp
    start, newest = 0, -1
    if not whole:
        start, newest = segment.position_of(segment.next_offset - 1), segment.largest_timestamp
    for found in segment.walk(start):
        if isinstance(found, Damage):
            # Records that cannot be read may be as new as the last change of the file.
            newest = max(newest, segment.mtime_ms())
        else:
            newest = max(newest, found[1].header.max_timestamp)
    return newest if newest >= 0 else segment.mtime_ms()


def _why_it_stays(
    segments: Sequence[Segment],
    config: LogConfig | None,
    now_ms: int,
    unread: Unread | None = None,
    copied_end: int = LONG_MAX,
) -> str:
    """Return why retention keeps the oldest segment, as a text for users; "" if there are no segments.

    `segments` are the segments that retention keeps. `config` is None if the topic's settings are unknown. `unread`
    is the lowest offset that a group of `logfs.retention.groups` has not read, None if there is no such group. Only
    segments that end at or below `copied_end` may be deleted by size or age.
    """
    if not segments:
        return ""
    segment = segments[0]
    if not segment.size_bytes and len(segments) == 1:
        return "the segment is empty"
    if config is None:
        return (
            "the directory is a broker's, so the topic's settings are not stored in it; to have logfs delete by size "
            "or age, set retention.bytes or retention.ms with 'logfs config' or under config/"
        )
    if not config.has_delete_policy:
        return f"cleanup.policy={','.join(sorted(config.cleanup_policy))} deletes nothing by age or size"
    obstacle = ""
    if unread is not None and unread.offset < segment.next_offset:
        obstacle = (
            f"the group {unread.group} of logfs.retention.groups has read it only up to offset {unread.offset}; "
            "'logfs groups' shows what groups have committed"
        )
    elif segment.next_offset > copied_end:
        obstacle = f"it is not in the object store yet, where the copies end at offset {copied_end}"
    if obstacle:
        limits = config.retention_bytes, config.retention_ms
        due = next(_beyond_limits(segments, limits, _TOTAL, now_ms), None)
        if due is not None:
            return f"{due.reason}, but {obstacle}"
    reasons = []
    if config.retention_bytes >= 0:
        total = sum(each.size_bytes for each in segments)
        reasons.append(
            f"the log has {total} bytes, and dropping {segment.size_bytes} bytes would leave less than "
            f"retention.bytes={config.retention_bytes}"
        )
    if config.retention_ms >= 0:
        newest = segment.largest_timestamp
        reasons.append(
            f"its newest record, of {format_time(newest)}, may be deleted after "
            f"{format_time(newest + config.retention_ms)} (retention.ms={config.retention_ms})"
        )
    return "; ".join(reasons) or "retention.ms and retention.bytes set no limit"


class Retained(NamedTuple):
    """The last retention that deleted segments of a partition.

    `when_ms` is its time (ms since the epoch). `segments` and `size_bytes` are the number and the size of the deleted
    segments, without those that were deleted only from the local disk.
    """

    when_ms: int
    segments: int
    size_bytes: int
    log_start_offset: int


class Retainer(Maintenance):
    """Drops the segments eligible for deletion, and counts them. Any thread may call it."""

    def __init__(self, context: MaintenanceContext) -> None:
        super().__init__(context)
        # The number and the size (bytes) of the segments dropped since the store was opened, by cause. Then the last
        # retention of each partition, by name.
        self.segments: Counter[RetentionCause] = Counter()
        self.size_bytes: Counter[RetentionCause] = Counter()
        self.last: dict[str, Retained] = {}

    def plan(self, name: str) -> RetentionPlan:
        """Return what `retain` would do to a partition now, and why, without doing it.

        The caller must not hold the registry's lock. Raises the errors of `Groups.committed` and `TieredLogs.of`.
        """
        return self._plan(name, self._unread(name))

    def _unread(self, name: str) -> Unread | None:
        """Return the lowest `Unread` of the groups in `logfs.retention.groups`; None if there is no group.

        A group without a committed offset for the partition has read nothing: its offset is the log start offset.
        """
        partition = self._registry[name]
        found = []
        for group in partition.config.logfs_retention_groups:
            commit = self._groups.committed(group, name)
            offset = partition.log_start_offset if commit is None else commit.offset
            found.append(Unread(offset, group))
        return min(found, default=None)

    def _plan(self, name: str, unread: Unread | None) -> RetentionPlan:
        registry = self._registry
        partition = registry[name]
        overrides = registry.settings.topic_overrides(partition.topic)
        config = partition.config if overrides or not registry.homes[name].is_brokers else None
        start = partition.log_start_offset
        is_tiered = partition.config.remote_storage_enable
        log = self._tiered.of(partition) if is_tiered else None
        # `copied_end` is 0 if the partition of a tiered topic has no topic id: nothing was copied, so nothing may be
        # deleted.
        copied_end = log.end_offset if log else 0 if is_tiered else None
        plan = plan_retention(
            partition.segments, config, start, registry.clock(), copied_end, unread
        )
        owner = self._tiered.owner
        if plan.released and (owner.refusal or owner.is_copy()):
            # Keep the local segments: another store owns the bucket, and may delete the copies.
            return plan._replace(released=[])
        return plan

    def retain(
        self, names: Iterable[str] | None = None, attempt: Attempt = lambda _, work: work()
    ) -> int:
        """Drop all segments eligible for deletion, and return how many were dropped.

        Without `names`, all partitions are examined, except failed ones and those whose upkeep is paused. The work on
        each partition has two steps: advance the log start, then drop the segments. For each step, the method calls
        `attempt(name, step)`, which may call the function `step`, catch its errors, or leave the step out. The caller
        must not hold the registry's lock.
        """
        registry = self._registry
        unread: dict[str, Unread | None] = {}
        unknown: dict[str, Exception] = {}
        plans: dict[str, RetentionPlan] = {}

        def look(name: str) -> None:
            if name in unknown:
                raise unknown[name]
            found = self._plan(name, unread[name])
            if found:
                self._commits.clear_place(name)
                registry.writable(name).advance_log_start(found.log_start_offset)
                plans[name] = found

        if names is None:
            with registry.lock:
                names = [
                    name
                    for name, each in ((n, registry.find(n)) for n in registry)
                    if each is not None and not each.is_paused and each.failure is None
                ]
        # Do this without the registry's lock: `Groups` takes its own lock before the registry's, so the reverse order
        # could deadlock.
        for name in names:
            try:
                unread[name] = self._unread(name)
            except (LogfsError, OSError) as error:
                unknown[name] = error
        with registry.lock:
            errors = FirstError()
            before = self.segments.total()
            for name in [*unread, *unknown]:
                with errors:
                    attempt(name, partial(look, name))
            if plans:
                # Write the log start offsets before files are renamed: otherwise deleted records could reappear after
                # a crash.
                with errors:
                    self._checkpoints.write()
            for name, found in plans.items() if errors.only_of_log_dirs else ():
                with errors:
                    attempt(name, partial(self._drop, name, found))
            errors.throw()
            return self.segments.total() - before

    def _drop(self, name: str, found: RetentionPlan) -> None:
        if found.expired:
            self._drop_expired(name, found.expired)
        if found.released:
            self._release(name, found.released)

    def _drop_expired(self, name: str, expired: Sequence[Expired]) -> None:
        partition = self._registry.writable(name)
        sizes = {gone.segment.base_offset: gone.segment.size_bytes for gone in expired}
        dropped = {segment.base_offset for segment in partition.drop_oldest(len(expired))}
        expired = [gone for gone in expired if gone.segment.base_offset in dropped]
        if not expired:
            return
        self._note(expired, sizes)
        start = partition.log_start_offset
        total = sum(sizes[gone.segment.base_offset] for gone in expired)
        self.last[name] = Retained(self._registry.clock(), len(expired), total, start)
        logger.info(
            "%s: dropped %d segments of %d bytes by %s; the log starts at offset %d",
            name,
            len(expired),
            total,
            ", ".join(dict.fromkeys(gone.cause.value for gone in expired)),
            start,
        )

    def _release(self, name: str, released: Sequence[Expired]) -> None:
        """Delete segments from the local disk. From then on, readers use the copies in the object store."""
        partition = self._registry.writable(name)
        log = self._tiered.of(partition)
        assert log is not None, "the plan was made with it"
        copies = log.copies_of([gone.segment for gone in released])
        if not copies:
            return
        released = released[: len(copies)]
        sizes = {gone.segment.base_offset: gone.segment.size_bytes for gone in released}
        partition.release_local(copies)
        self._note(released, sizes)
        logger.info(
            "%s: dropped %d local segments of %d bytes, which are in the object store; the local log starts at "
            "offset %d",
            name,
            len(copies),
            sum(sizes.values()),
            partition.local_start_offset,
        )

    def _note(self, gone: Sequence[Expired], sizes: Mapping[int, int]) -> None:
        for each in gone:
            self.segments[each.cause] += 1
            self.size_bytes[each.cause] += sizes[each.segment.base_offset]
            logger.debug("%s: dropped: %s", each.segment.path, each.reason)
