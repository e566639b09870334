"""The remote segments of each tiered partition, as `Segment` objects that its log can read."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from logfs.errors import Corrupt, InvalidStore
from logfs.format.tiered import custom_metadata
from logfs.format.tiered.metadata_record import TOPIC
from logfs.format.tiered.remote_segment import RemotePartition, SegmentState
from logfs.locks import Level, make_lock
from logfs.log.disk.bucket_path import BucketPath, as_path
from logfs.log.follow.live_partition import LivePartition
from logfs.store.directory.topic_id import read_topic_id
from logfs.store.tiering.bucket_owner import BucketOwner
from logfs.store.tiering.metadata import RemoteLogMetadata

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Sequence

    from logfs.config import BrokerConfig
    from logfs.format.tiered.remote_segment import RemoteSegment
    from logfs.log.append.partition import Partition
    from logfs.log.follow.tiered_segment import MissingSegment, TieredSegment
    from logfs.log.read.log import Log
    from logfs.log.remote.tiered_disk import TieredDisk
    from logfs.log.segment.segment import Segment
    from logfs.store.registry import PartitionRegistry

logger = logging.getLogger(__name__)


class TieredLog:
    """The remote segments of one partition. Any thread may call any method.

    Each method first reads the new records of the metadata topic, and raises the errors of
    `RemoteLogMetadata.segments`.
    """

    def __init__(
        self, partition: RemotePartition, metadata: RemoteLogMetadata, disk: TieredDisk
    ) -> None:
        self.partition = partition
        self.disk = disk
        self._metadata = metadata
        self._directory = disk.root / f"{partition.topic}-{partition.partition}"
        self._lock = make_lock(Level.TIERED)
        # The segment objects that the log or a reader still uses, by segment id.
        self.known: WeakValueDictionary[uuid.UUID, TieredSegment] = WeakValueDictionary()
        # The first offset of the log, remote segments included; None if it is unknown, or if another process may
        # advance it.
        self.begin: int | None = None
        self._missing: WeakValueDictionary[tuple[int, int], MissingSegment] = WeakValueDictionary()

    def finished(self) -> list[RemoteSegment]:
        """Return the segments whose copies are finished, in the order of their offsets, without overlaps.

        Of several copies that begin at the same offset, the newest is returned.
        """
        copies = self._metadata.finished(self.partition)
        copies.sort(key=lambda each: (each.start_offset, each.event_timestamp))
        found: list[RemoteSegment] = []
        for each in {each.start_offset: each for each in copies}.values():
            if not found or each.start_offset > found[-1].end_offset:
                found.append(each)
        return found

    @property
    def end_offset(self) -> int:
        """The offset after the last copied offset; 0 if nothing is copied."""
        copied = self.finished()
        return copied[-1].end_offset + 1 if copied else 0

    def segments_between(self, log_start_offset: int, offset: int) -> list[Segment]:
        """Return the remote segments that overlap [`log_start_offset`, `offset`), and a `MissingSegment` per gap.

        Reads of a `MissingSegment` raise an error. A gap lies between two remote segments, or between the last one
        and `offset`. If the log's first offset is known (the attribute `begin` is not None), there may also be a gap
        before the first remote segment: it begins at `begin` or `log_start_offset`, whichever is higher. For example,
        if `begin` is 0, `offset` is 30, and the remote segments have [0, 10) and [20, 30), a `MissingSegment` fills
        [10, 20).
        """
        found: list[Segment] = []
        end = None if self.begin is None else max(self.begin, log_start_offset)
        for each in self.finished():
            if each.end_offset >= log_start_offset and each.start_offset < offset:
                if end is not None and end < each.start_offset:
                    found.append(self._missing_between(end, each.start_offset))
                found.append(self._segment(each))
                end = each.end_offset + 1
        if end is not None and end < offset:
            found.append(self._missing_between(end, offset))
        return found

    def _missing_between(self, first: int, end: int) -> MissingSegment:
        from logfs.log.follow.tiered_segment import MissingSegment

        with self._lock:
            missing = self._missing.get((first, end))
            if missing is None:
                missing = MissingSegment(self.disk, self._directory, first, end)
                self._missing[first, end] = missing
                logger.error("%s: offsets %d to %d are missing", self._directory, first, end - 1)
            return missing

    def copies_of(self, segments: Sequence[Segment]) -> list[Segment]:
        """Return the remote copies of `segments`, in order, up to the first segment that has no copy."""
        copied = {each.start_offset: each for each in self.finished()}
        found: list[Segment] = []
        for segment in segments:
            copy = copied.get(segment.base_offset)
            if copy is None or copy.end_offset + 1 != segment.next_offset:
                break
            found.append(self._segment(copy))
        return found

    def _segment(self, remote: RemoteSegment) -> TieredSegment:
        from logfs.log.follow.tiered_segment import TieredSegment

        with self._lock:
            segment = self.known.get(remote.segment_id)
            if segment is None:
                try:
                    stored = custom_metadata.parse(remote.custom)
                except Corrupt as error:
                    what = f"the remote segment from offset {remote.start_offset} on"
                    raise Corrupt(f"{self._directory}: {what}: {error}") from None
                segment = TieredSegment(self.disk, self._directory, remote, stored)
                self.known[remote.segment_id] = segment
            return segment


class TieredLogs:
    """The tiered partitions of a store, available as `store.tiered`."""

    def __init__(self, registry: PartitionRegistry, create: Callable[[str], Partition]) -> None:
        """Make the object without reading anything. `create` creates the named partition, and returns it."""
        self._registry = registry
        self.metadata = RemoteLogMetadata(registry, create)
        self.owner = BucketOwner(registry, self.disk)
        self._lock = make_lock(Level.TIERED)
        self._disk: TieredDisk | None = None
        # The settings that the disk was last compared with.
        self._followed: BrokerConfig | None = None
        self._logs: dict[RemotePartition, TieredLog] = {}

    def identify(self, partition: Log) -> RemotePartition | None:
        """Return the topic id, topic and number of a partition; None if `partition.metadata` has no topic id."""
        topic_id = read_topic_id(partition.disk, partition.directory)
        if topic_id is None:
            return None
        return RemotePartition(topic_id, partition.topic, partition.partition)

    def of(self, partition: Log) -> TieredLog | None:
        """Return the remote segments of a partition as a `TieredLog`; None if it is not tiered or has no topic id.

        In a read-only store, which may not know the topic's settings, a partition also counts as tiered if it has
        remote segments. Raises `InvalidStore` if `remote.storage.url` is not set, and the errors of
        `RemoteLogMetadata.segments`.
        """
        if partition.topic == TOPIC or partition.disk.is_remote:
            return None
        registry = self._registry
        is_enabled = partition.config.remote_storage_enable
        has_bucket = bool(registry.settings.broker_config.remote_storage_url)
        if not is_enabled and not (registry.read_only and has_bucket):
            return None
        named = self.identify(partition)
        if named is None:
            return None
        self._follow_settings()
        known = self._logs.get(named)
        if known is not None:
            return known
        if not is_enabled and not self.metadata.segments(named):
            return None
        disk = self.disk()
        with self._lock:
            return self._logs.setdefault(named, TieredLog(named, self.metadata, disk))

    def is_read(self, segment: RemoteSegment) -> bool:
        """Whether a remote segment must be kept, because the log still has it or a reader still holds it."""
        log = self._logs.get(segment.partition)
        return log is not None and segment.segment_id in log.known

    def _follow_settings(self) -> None:
        """Forget the disk of the bucket if the settings name another bucket or prefix by now, unless it has copies.

        If it has, the change takes effect at the next opening of the store. Raises the errors of
        `RemoteLogMetadata.segments`.
        """
        config, before = self._registry.settings.broker_config, self._disk
        if config is self._followed or before is None or not config.remote_storage_url:
            return
        named = f"{as_path(config.remote_storage_url)}/{config.remote_storage_prefix}"
        if f"{before.home}/{before.prefix}" != named and not self.metadata.has_copies():
            with self._lock:
                # Another thread may have made the new disk already.
                if self._disk is before:
                    self._disk = None
                    self._logs.clear()
            before.release()
            self.owner.is_claimed, self.owner.refusal = False, ""
        self._followed = config

    def disk(self) -> TieredDisk:
        """Return the disk of the bucket. Raises `InvalidStore` if `remote.storage.url` names no bucket.

        Raises the errors of `RemoteLogMetadata.segments`, too, if the settings have changed.
        """
        self._follow_settings()
        with self._lock:
            if self._disk is None:
                from logfs.log.remote.tiered_disk import TieredDisk

                config = self._registry.settings.broker_config
                url = as_path(config.remote_storage_url)
                if not isinstance(url, BucketPath):
                    raise InvalidStore(
                        "remote.storage.url is not set; set it to the bucket of the tiered topics, as in "
                        "'logfs config LOGDIR remote.storage.url=s3://bucket/prefix'"
                    )
                self._disk = TieredDisk(
                    url,
                    config.remote_storage_prefix,
                    self._is_finished,
                    config.remote_storage_cache_bytes,
                )
                self._registry.disk.share_blocking(self._disk)
            return self._disk

    def _is_finished(self, remote: RemoteSegment) -> bool:
        found = self.metadata.segments(remote.partition).get(remote.segment_id)
        return found is not None and found.state is SegmentState.COPY_SEGMENT_FINISHED

    def fetched(self) -> tuple[int, int]:
        """Return the number and total bytes of the chunks (parts of objects) fetched since the store was opened."""
        disk = self._disk
        return (0, 0) if disk is None else (disk.chunks.requests, disk.chunks.fetched_bytes)

    def attach(
        self, partition: Log, log_start_offset: int, *, is_brokers: bool, is_live: bool
    ) -> None:
        """Put the remote segments of a partition, if it has any, in front of its log, which was just loaded.

        The log then begins at `log_start_offset` (from the checkpoint) or at the offset of its first leader epoch,
        whichever is higher. From there on, an offset that is in no segment is missing: reads of it raise an error.
        In three cases the first leader epoch is not used. The log then begins at `log_start_offset` or at its first
        segment, whichever is higher, so no offset before this segment is missing:

        - if the log has no leader epoch;
        - in a broker's directory (`is_brokers`), because a broker deletes segments before it writes the epochs;
        - in a directory to which another process writes (`is_live`), if the partition of the metadata topic exists,
          because segments may have been deleted since the checkpoint was read.

        Raises the errors of `of`. In a writable store, raises `Corrupt` if the local log ends at a lower offset than
        the remote segments: appends would assign the offsets of copied records again.
        """
        log = self.of(partition)
        if isinstance(partition, LivePartition) and partition.topic != TOPIC:
            partition.remote_between = partial(self._between, partition)
        if log is None:
            return
        end = log.end_offset
        if end > partition.log_end_offset and not self._registry.read_only:
            raise Corrupt(
                f"{partition.directory}: the log ends at offset {partition.log_end_offset}, but its copy in the "
                f"object store at {end}; restore its newest segments, or delete the partition"
            )
        knows_begin = not is_brokers and not (is_live and self.metadata.has(log.partition))
        if knows_begin and partition.epochs.first_offset is not None:
            log.begin = max(log_start_offset, partition.epochs.first_offset)
        remote = log.segments_between(log_start_offset, partition.local_start_offset)
        partition.attach_remote(remote, log_start_offset)

    def _between(self, partition: Log, log_start_offset: int, offset: int) -> Sequence[Segment]:
        """Return the remote segments from the log start up to `offset`; an empty list if the topic is not tiered.

        `LivePartition` calls this whenever it has listed the local segments, because another process may have changed
        the log. If the topic is not tiered, its settings are read again: tiering may be enabled by now. The log start
        is read again from the checkpoint: it may be above `log_start_offset` by now, and the deleted segments below
        it must not count as missing.
        """
        log = self.of(partition)
        if log is None:
            self._registry.settings.reread([partition.topic])
            log = self.of(partition)
        if log is None:
            return []
        home = self._registry.homes.get(partition.name.directory)
        start = 0 if home is None else home.read_log_start(partition.name)
        return log.segments_between(max(log_start_offset, start), offset)

    def forget_from(self, partition: Log, offset: int) -> None:
        """Record that the remote segments with records at or above `offset` are to be deleted.

        This must be called before the log is truncated at `offset`, even if tiering is switched off: if tiering is
        switched on again while the remote segments still exist, the truncated records would be in the log again.
        """
        # If the metadata topic has no partition, there are no remote segments.
        if partition.topic == TOPIC or not self._registry.partitions_of(TOPIC):
            return
        named = self.identify(partition)
        copies = [] if named is None else self.metadata.finished(named)
        gone = [each for each in copies if each.end_offset >= offset]
        self.metadata.update(*gone, state=SegmentState.DELETE_SEGMENT_STARTED)

    def forget_partition(self, topic_id: uuid.UUID | None, directory: str) -> None:
        """Record durably that the remote segments of a deleted partition are to be deleted, if it has any.

        `directory` is the name of the partition. `topic_id` is the id that its topic had, None if it had no id;
        nothing is recorded then.
        """
        # If the metadata topic has no partition, there are no remote segments.
        if topic_id is not None and self._registry.partitions_of(TOPIC):
            topic, _, number = directory.rpartition("-")
            self.metadata.mark_deleted(RemotePartition(topic_id, topic, int(number)))

    def release(self) -> None:
        """Close the files that the bucket's disk keeps open. Called when the store is closed."""
        if self._disk is not None:
            self._disk.release()
