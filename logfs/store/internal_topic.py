"""Topics that the store itself reads and writes, such as `__consumer_offsets` and `__transaction_state`.

logfs creates each partition of such a topic on demand, and stores the number of partitions as a setting. A broker
creates all partitions at once, so in a broker's log directories the existing partitions are counted instead.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from logfs.errors import Corrupt, InvalidSetting, InvalidStore, PartitionExists, PartitionFailed
from logfs.format.base.names import partitions_of
from logfs.log.segment.batch_iterator import DamagedRange
from logfs.store.directory.log_dir import STORE_DIRS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from logfs.errors import Unsupported
    from logfs.format.batches.batch import Batch
    from logfs.log.append.partition import Partition
    from logfs.log.read.log import Log
    from logfs.store.registry import PartitionRegistry
    from logfs.store.settings import BrokerSettings

logger = logging.getLogger(__name__)


def batches_past_damage(log: Log, offset: int, end: int, what: str) -> Iterator[Batch]:
    """Yield the batches of a log with offsets in [`offset`, `end`). A damaged range is skipped with a warning.

    `what` names the kind of records in the warning, such as "groups".
    """
    while True:
        try:
            yield from log.batches(offset, end)
            return
        except DamagedRange as damage:
            logger.warning("%s: a damaged range is skipped: %s", what, damage)
            offset = damage.next_offset


@dataclass(frozen=True)
class InternalTopic:
    """The partitions of an internal topic of a store. Any thread may call its methods.

    `create` creates a partition and returns it. `count_setting` is the broker-level setting with the number of
    partitions. `first_settings` returns the settings, as texts, that the topic gets when its first partition is
    created. `what` names the topic's records in error messages.
    """

    registry: PartitionRegistry
    create: Callable[[str], Partition]
    topic: str
    count_setting: str
    first_settings: Callable[[], Mapping[str, str]]
    what: str

    def partition_count(self, broker: BrokerSettings | None = None) -> int:
        """Return the number of partitions: the setting, or the number that a broker chose.

        If the setting was not changed in this store, and the topic has partitions that are numbered 0, 1, 2, …
        without a gap, offline ones included, then a broker is assumed to have created them, and their number is
        returned. `broker` has the broker-level settings to use, by default those in force.
        """
        settings = self.registry.settings
        overrides, config = broker or (settings.broker_overrides, settings.broker_config)
        if self.count_setting not in overrides:
            here = self.registry.partitions_of(self.topic)
            if here and here[-1] == f"{self.topic}-{len(here) - 1}":
                return len(here)
        return int(getattr(config, self.count_setting.replace(".", "_")))

    def check_count(self, broker: BrokerSettings) -> None:
        """Raise `InvalidSetting` if the topic has partitions, and new settings would change `partition_count`.

        `broker` has the new broker-level settings.
        """
        count = self.partition_count()
        if self.partition_count(broker) != count and self.registry.partitions_of(self.topic):
            raise InvalidSetting(
                f"{self.count_setting}: is fixed at {count}, because {self.topic} has partitions: with another "
                f"number, {self.what} would not be found"
            )

    def logs(self) -> list[Log]:
        """Return the partitions that exist and are not offline."""
        for name in self.registry.partitions_of(self.topic):
            # Load the partition if it is not loaded yet, even if the store's argument `only` excludes it.
            self.registry.include(name)
        # Loop over a copy, because another thread may be creating a partition.
        return [log for log in list(self.registry.partitions.values()) if log.topic == self.topic]

    def log(self, number: int) -> Partition:
        """Return the partition with this number for appends; create it if it is missing.

        Raises the errors of `Store.create`, `check_open`, `Settings.change_topic` and `Settings.set_broker`, and
        `PartitionFailed` if the partition is offline.
        """
        registry = self.registry
        name = f"{self.topic}-{number}"
        settings = registry.settings
        if not settings.topic_overrides(self.topic):
            # The topic has no settings file: it is new, or a broker has its settings in the metadata log. Write one.
            settings.change_topic(self.topic, self.first_settings())
        if registry.include(name) is None and name not in registry.offline:
            self.check_open(name)
            if self.count_setting not in settings.broker_overrides:
                # Store the number of partitions now: without this setting, once the new partition exists,
                # `partition_count` may return the number of existing partitions instead.
                settings.set_broker(self.count_setting, str(self.partition_count()))
            with suppress(PartitionExists):
                # `PartitionExists` means that another thread has created the partition meanwhile.
                self.create(name)
        self.check_online(name)
        return registry.writable(name)

    def check_online(self, *names: str) -> None:
        """Raise `PartitionFailed` if one of the partitions `names` is offline.

        Without `names`, all partitions of the topic are checked.
        """
        offline = self.registry.offline.copy()
        for name in partitions_of(self.topic, offline):
            if not names or name.directory in names:
                reason = offline[name.directory]
                raise PartitionFailed(f"{name.directory}: {self.what} are offline: {reason}")

    @property
    def is_whole(self) -> bool:
        """Whether all partitions of the topic that exist can be read."""
        return self.registry.is_whole and not partitions_of(
            self.topic, self.registry.offline.copy()
        )

    def check_open(self, *names: str, may_be_absent: bool = False) -> None:
        """Raise `InvalidStore` if the topic has a partition in a log directory of the store that is not open.

        `names` are the partitions to look for, by default all. If such a log directory is missing from the disk, it
        may have a partition: then `InvalidStore` is raised, too, unless `may_be_absent` is true. Raises `OSError` for
        a directory that cannot be listed.
        """
        here = self.registry.words
        for path in self.registry.missing_log_dirs:
            if not self.registry.disk.exists(path / STORE_DIRS):
                if may_be_absent:
                    continue
                raise InvalidStore(
                    f"{path}: this log directory is missing, and may hold {self.what}; mount it or, if it is lost "
                    f"for good, remove {STORE_DIRS} in {here}"
                )
            for name in partitions_of(self.topic, os.listdir(path)):
                if not names or name.directory in names:
                    raise InvalidStore(
                        f"{path / name.directory}: holds {self.what} of {here}, too; name the log directories "
                        f"together, as in '{here} {path}'"
                    )


class Replay:
    """The state of one partition of an internal topic, built from its records below the offset `end`.

    Only one thread at a time may use this object.
    """

    def __init__(self, log: Log, what: str) -> None:
        """Begin with an empty state, before the first record. `what` names the kind of records in warnings."""
        self.log = log
        self._what = what
        # The log was read up to the offset `end`. At that time, `end` was in the segment `_segment`, and the log had
        # the generation `_generation`, a number that each truncation changes.
        state = log.state
        self.end, self._segment = state.log_start_offset, state.segments[0]
        self._generation = state.generation

    def catch_up(self) -> None:
        """Apply the records that were appended since the last call, or in two cases all records of the log.

        The first case is a truncation, which changes the log's `generation`. The second case is that the segment that
        was active at the last call is no longer in the log: compaction may then have removed records that were
        appended after that call. As long as that segment is in the log, compaction has removed no such record,
        because it cleans the segments in the order of their offsets. If there is something to apply, raises
        `WouldBlock` in a thread that must not wait for the disk.
        """
        log = self.log
        log.refresh()
        state = log.state
        generation, end = state.generation, state.log_end_offset
        segment = state.segments_from(end)[0]
        same = generation == self._generation and self._segment in state.segments
        if same and end == self.end:
            return
        log.check_may_block()
        if not same or end < self.end:
            self.forget()
            self.end = state.log_start_offset
        first = max(self.end, state.log_start_offset)
        for batch in batches_past_damage(log, first, end, self._what):
            try:
                self.apply(batch)
            except Corrupt as error:
                self.leave_out(batch.header.base_offset, error)
        self._generation, self._segment, self.end = generation, segment, end

    def leave_out(self, offset: int, error: Corrupt | Unsupported) -> None:
        """Log a warning that the record or batch at `offset` is skipped because of `error`."""
        message = "%s: %s: offset %d is skipped: %s"
        logger.warning(message, self._what, self.log.directory, offset, error)

    def forget(self) -> None:
        """Discard the state; afterwards `catch_up` applies all records again from the log start."""
        raise NotImplementedError

    def apply(self, batch: Batch) -> None:
        """Apply to the state those records of `batch` whose offsets are at or above `end`.

        `catch_up` calls this for each batch, in the order of their offsets. Raises `Corrupt` if the batch cannot be
        read.
        """
        raise NotImplementedError
