"""Administrative requests: what each one does to an open store, and how requests and errors are written as JSON.

A request is executed either by the mount that holds the store, or in a store that is opened for the request, with the
same result. The fields of a request and of its answer have JSON values.
"""

from __future__ import annotations

import errno
import json
import logging
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from logfs import errors
from logfs.errors import (
    InvalidRecord,
    InvalidSetting,
    LogfsError,
    PartitionExists,
    UnknownPartition,
    did_you_mean,
)
from logfs.format.base import names
from logfs.format.files.commit_file import StagedFile, checked, typed
from logfs.log.disk.disk import Gone
from logfs.setting import MIRROR_SOURCE
from logfs.store.groups import TOPIC, resolve_offset

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from logfs.store.loading import Only
    from logfs.store.maintenance.retention import Expired
    from logfs.store.store import Store

    Answer = dict[str, Any]
    # A progress callback, called with the bytes processed so far and the total number of bytes.
    Report = Callable[[int, int], None]

logger = logging.getLogger(__name__)

# The subclasses of `Request`, by the `operation` that names them in JSON.
_KINDS: dict[str, type[Request]] = {}


@dataclass(frozen=True)
class Request:
    """A request to a store. A kind of request is a subclass with an `operation`, the name of the kind in JSON."""

    operation: ClassVar[str]
    # Whether the request may be sent again if no answer comes, because a second execution changes nothing.
    is_repeatable: ClassVar[bool] = False

    def __init_subclass__(cls, *, operation: str = "") -> None:
        if operation:
            cls.operation = operation
            _KINDS[operation] = cls

    def loads(self) -> Only | None:
        """Return which partitions to load if a store is opened for the request.

        The value is the argument `only` of `Store`: the name of one partition, a function that selects partitions
        by name, None for all partitions, or "" for none.
        """
        return None

    def grows(self) -> Collection[str]:
        """Return the partitions to which the request appends, without those of internal topics.

        They may grow even after the request has failed: if a `Commit` fails after it was recorded in the log
        directory, upkeep completes it later.
        """
        return ()

    def run(self, store: Store, report: Report) -> Answer:
        """Execute the request, and return the answer.

        During a long request, `report` is called with (bytes done, total bytes). It may raise an error to interrupt
        the request.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class PartitionRequest(Request):
    """A request about one partition. No other partition has to be loaded."""

    partition: str

    def loads(self) -> Only | None:
        return self.partition


@dataclass(frozen=True)
class Create(PartitionRequest, operation="create"):
    """Create a partition, after changing the `settings` of its topic. The answer has the partition's `directory`.

    If the partition cannot be created, the topic has its former settings.
    """

    settings: dict[str, str] = field(default_factory=dict)

    def run(self, store: Store, report: Report) -> Answer:
        # Check the partition before any setting is changed, because the settings apply to the whole topic.
        store.check_creatable(self.partition)
        topic = names.parse_directory(self.partition).topic
        with store.settings.changing(topic, self.settings):
            return {"directory": str(store.create(self.partition).directory)}


@dataclass(frozen=True)
class CreateMissing(Request, operation="create-missing"):
    """Create those of `partitions` that do not exist yet. The answer has the `directories` of those created."""

    is_repeatable = True
    partitions: list[str]

    def loads(self) -> Only | None:
        return frozenset(self.partitions).__contains__

    def run(self, store: Store, report: Report) -> Answer:
        created = []
        for name in self.partitions:
            if name not in store.registry.homes:
                # Another request may create the partition at the same time.
                with suppress(PartitionExists):
                    created.append(str(store.create(name).directory))
        return {"directories": created}


@dataclass(frozen=True)
class CreateTopic(Request, operation="create-topic"):
    """Create a topic with the partitions 0 to `partitions` - 1, or add those that an existing topic lacks.

    The topic's `settings` are changed first. The answer has the `directories` of the partitions that were created.
    """

    topic: str
    partitions: int
    settings: dict[str, str] = field(default_factory=dict)

    def run(self, store: Store, report: Report) -> Answer:
        created = store.topic(self.topic).create(self.partitions, self.settings)
        return {"directories": [str(partition.directory) for partition in created]}


@dataclass(frozen=True)
class Delete(Request, operation="delete"):
    """Delete a partition or all partitions of a topic. All are checked before the first is deleted.

    The answer has the former `directories` of the deleted partitions. Its `until_ms` has, in the same order, the time
    (ms since the epoch) until which each partition can be restored, or null if it cannot be restored. If a store is
    opened for the request, it loads all partitions, among them those of `__consumer_offsets`, from which the
    committed offsets for the deleted partitions are removed.
    """

    partition: str

    def run(self, store: Store, report: Report) -> Answer:
        directories, until_ms = [], []
        found = names.partitions_named(self.partition, store.registry.homes)
        store.deleter.check_deletable(found)
        for name in found:
            directories.append(str(store[name].directory))
            until_ms.append(store.deleter.delete(name))
        return {"directories": directories, "until_ms": until_ms}


@dataclass(frozen=True)
class Undelete(Request, operation="undelete"):
    """Restore a deleted partition, or the partitions of a deleted topic. The answer has their `directories`.

    If one of the partitions cannot be restored or loaded, the others are restored all the same, and then the request
    fails with the first error.
    """

    partition: str

    def run(self, store: Store, report: Report) -> Answer:
        found = store.undelete_all(self.partition)
        return {"directories": [str(partition.directory) for partition in found]}


@dataclass(frozen=True)
class DeleteRecords(PartitionRequest, operation="delete_records"):
    """Advance the log start to the offset `before`, then delete expired segments (Kafka's DeleteRecords).

    The answer has the new `log_start_offset`.
    """

    before: int

    def run(self, store: Store, report: Report) -> Answer:
        store.delete_records(self.partition, self.before)
        # This deletes the segments below `before`, and also those beyond `retention.ms` or `retention.bytes`.
        store.retain([self.partition])
        return {"log_start_offset": store[self.partition].log_start_offset}


@dataclass(frozen=True)
class Compact(PartitionRequest, operation="compact"):
    """Compact a partition. With `roll`, its active segment is sealed first, and compacted, too.

    In the answer, `first_dirty` is the offset below which the log is clean now. `bytes_before` and `bytes_after` are
    the sizes of the clean part's .log files before and after, and `segments_before` and `segments_after` the numbers
    of its segments. `map_share` is how full the map of keys was, from 0 to 1.
    """

    roll: bool = False

    def run(self, store: Store, report: Report) -> Answer:
        plan = store.compactor.plan(self.partition)
        if self.roll:
            rolled_bytes = store[self.partition].segments[-1].size_bytes
            plan = plan._replace(cleanable_bytes=plan.cleanable_bytes + rolled_bytes)
        spend = _adding(report, plan.work_bytes)
        return store.compactor.compact(self.partition, roll=self.roll, progress=spend)._asdict()


@dataclass(frozen=True)
class Move(PartitionRequest, operation="move"):
    """Move a partition to another log directory; the answer has its new `directory`."""

    log_dir: str

    def run(self, store: Store, report: Report) -> Answer:
        spend = _adding(report, store[self.partition].size_bytes)
        store.mover.move(self.partition, self.log_dir, progress=spend)
        return {"directory": str(store[self.partition].directory)}


@dataclass(frozen=True)
class Retain(Request, operation="retain"):
    """Delete the segments that are eligible for deletion in `log_dirs`, which are log directories of the store.

    In the answer, `partitions` has an item for each partition with the segments to delete and the reasons, as planned
    before the deletion. `retention_plans` describes the fields of an item. `failed` is true if a log directory has
    failed.
    """

    log_dirs: list[str]

    def run(self, store: Store, report: Report) -> Answer:
        chosen = _partitions_in(store, self.log_dirs)
        plans = retention_plans(store, chosen)
        store.retain(chosen)
        return {"partitions": plans, "failed": bool(store.registry.failed)}


@dataclass(frozen=True)
class Tier(Request, operation="tier"):
    """Copy segments of tiered partitions into the object store, then apply retention to these partitions.

    Without `partitions`, this is done for all tiered partitions in `log_dirs`. With `take_over`, the store first
    becomes the owner of the bucket, in place of another store. The answer has these fields:

    - `partitions`: for each partition the number of `segments` and `bytes` that were copied, and in `stays` why the
      next segment was not copied;
    - `dropped`: the number of segments that retention deleted, from the log or only from the local disk;
    - `deleted`: the number of segments that retention deleted in the object store;
    - `offline`: the error of each offline partition;
    - `failed`: whether a log directory has failed.
    """

    log_dirs: list[str]
    partitions: list[str] = field(default_factory=list)
    take_over: bool = False

    def run(self, store: Store, report: Report) -> Answer:
        manager = store.remote_log_manager
        chosen = self.partitions or tiered_partitions(store, _partitions_in(store, self.log_dirs))
        plans = {name: manager.plan(name) for name in chosen}
        if self.take_over:
            store.tiered.owner.take_over()
        if chosen:
            store.tiered.owner.claim()
        # Each byte counts twice: it is sent to the object store, and then read back.
        spend = _adding(report, 2 * sum(plan.size_bytes for plan in plans.values()))
        copied = []
        for name, plan in plans.items():
            done = manager.copy(name, progress=spend)
            sizes = {"segments": len(done.segments), "bytes": done.size_bytes}
            copied.append({"name": name, **sizes, "stays": plan.stays})
        deleted_before = manager.deleted_segments
        return {
            "partitions": copied,
            "dropped": store.retain(chosen),
            "deleted": manager.deleted_segments - deleted_before,
            "offline": {name: str(why) for name, why in sorted(store.offline.copy().items())},
            "failed": bool(store.registry.failed),
        }


@dataclass(frozen=True)
class Configure(Request, operation="configure"):
    """Change settings of a topic or, if `topic` is empty, of the broker level: all of them or none.

    The value "" removes an override. A setting of a topic then has the value of the broker level, if there is one;
    otherwise the default applies.
    """

    settings: dict[str, str]
    topic: str = ""

    def loads(self) -> Only | None:
        return ""

    def run(self, store: Store, report: Report) -> Answer:
        if self.topic:
            check_topic(store, self.topic)
            store.settings.change_topic(self.topic, self.settings)
        else:
            store.settings.change_broker(self.settings)
        return {}


@dataclass(frozen=True)
class Promote(Request, operation="promote"):
    """Stop a topic from mirroring another cluster, so that it accepts appends; the answer is empty."""

    topic: str

    def loads(self) -> Only | None:
        return ""

    def run(self, store: Store, report: Report) -> Answer:
        check_mirror(store, self.topic)
        store.settings.set_topic(self.topic, MIRROR_SOURCE, None)
        return {}


@dataclass(frozen=True)
class CommitOffsets(Request, operation="commit_offsets"):
    """Commit offsets of a consumer group for several partitions, all or none.

    `offsets` maps the name of a partition, or of a topic for all of its partitions, to a text: a number, `earliest`,
    `latest`, or a time. A time is ms since the epoch after an `@`, or in ISO 8601. It stands for the first record at
    or after this time, or for the log end if there is none. With `skips_missing`, each name must be that of a
    partition. A partition is then skipped if it does not exist, or if its log ends below the offset. If its log
    starts above the offset, the log start is committed instead. The commits are durable. The answer's `offsets` has
    the committed offset of each partition.
    """

    group: str
    offsets: dict[str, str]
    skips_missing: bool = False

    def loads(self) -> Only | None:
        wanted = {*self.offsets, TOPIC}
        return lambda name: name in wanted or name.rpartition("-")[0] in wanted

    def run(self, store: Store, report: Report) -> Answer:
        homes = store.registry.homes
        found: dict[str, int] = {}
        for wanted, words in self.offsets.items():
            if self.skips_missing:
                meant = [wanted] if wanted in homes else []
            else:
                meant = names.partitions_named(wanted, homes)
            for name in meant:
                asked = resolve_offset(store[name], words)
                offset = store[name].committable(asked) if self.skips_missing else asked
                if offset is not None:
                    found[name] = offset
        if found:
            store.groups.commit_all(self.group, found)
            store.groups.log_of(self.group).flush()
        return {"offsets": found}


@dataclass(frozen=True)
class ForgetOffset(Request, operation="forget_offset"):
    """Delete the offsets that a group has committed for a partition, or for all partitions of a topic.

    The answer has the `partitions` for which the group had committed an offset.
    """

    group: str
    partition: str

    def run(self, store: Store, report: Report) -> Answer:
        found = names.partitions_named(self.partition, store.registry.homes)
        return {"partitions": [name for name in found if store.groups.forget(self.group, name)]}


@dataclass(frozen=True)
class Commit(Request, operation="commit"):
    """Append the batches of staged files to their partitions, all or none (`Commits.commit`).

    `sequence` is the writer's own number of this commit. The answer's `already` is true if the writer had made this
    commit or a later one before; then nothing was appended. Its `offsets` has [first offset, offset after the last]
    by partition.
    """

    is_repeatable = True
    writer: str
    sequence: int
    staged: tuple[StagedFile, ...]

    def loads(self) -> Only | None:
        return frozenset(self.grows()).__contains__

    def grows(self) -> Collection[str]:
        return {file.partition for file in self.staged}

    def run(self, store: Store, report: Report) -> Answer:
        done = store.commit(self.writer, self.sequence, self.staged)
        try:
            store.commits.upkeep(store.clock())
        except (LogfsError, OSError) as error:
            logger.warning("the commit is done, but the cleanup after commits failed: %s", error)
        return done._asdict()


@dataclass(frozen=True)
class Discard(Request, operation="discard"):
    """Remove the files in `staged`, which the client will not commit (`Commits.discard`). The answer is empty."""

    is_repeatable = True
    staged: tuple[StagedFile, ...]

    def loads(self) -> Only | None:
        return ""

    def run(self, store: Store, report: Report) -> Answer:
        store.commits.discard(self.staged)
        return {}


def to_line(told: dict[str, Any]) -> bytes:
    """Return a JSON object as one line."""
    return json.dumps(told, separators=(",", ":")).encode() + b"\n"


def describe_error(error: Exception) -> dict[str, Any]:
    """Return a JSON object from which `raise_described` raises the error again in another process."""
    told: dict[str, Any] = {"error": type(error).__name__, "reason": str(error)}
    if isinstance(error, OSError) and not isinstance(error, LogfsError) and error.errno:
        told |= {"errno": error.errno, "reason": error.strerror or str(error)}
        if error.filename is not None:
            told["file"] = os.fsdecode(error.filename)
    return told


def raise_described(told: dict[str, Any]) -> NoReturn:
    """Raise the error that an object from `describe_error` describes.

    An error whose class is not in `logfs.errors` becomes an `OSError`, with the errno EIO if the object has none.
    """
    kind = getattr(errors, told["error"], None)
    if isinstance(kind, type) and issubclass(kind, LogfsError):
        raise kind(told["reason"])
    raise OSError(told.get("errno", errno.EIO), told["reason"], told.get("file"))


def format_request(request: Request) -> bytes:
    """Return a request as one line of JSON."""
    return to_line({"operation": request.operation, **asdict(request)})


def parse_request(line: bytes | bytearray) -> Request:
    """Return the request in a line of JSON. Raises `InvalidRecord` if the line is not a request."""
    try:
        told = json.loads(line)
        kind = _KINDS[told.pop("operation")]
        types = {each.name: each.type for each in fields(kind)}
        return kind(**{name: _checked(str(types[name]), value) for name, value in told.items()})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        what = f"{type(error).__name__}: {str(error)[:60]}"
        raise InvalidRecord(
            f"not an administrative request: a field is missing, unknown or wrong: {what}"
        ) from None


def _checked(kind: str, value: Any) -> Any:
    """Return the JSON value of a field, converted to the field's type, which `kind` names.

    Raises `TypeError` or `ValueError` if the value does not have that type.
    """
    if kind in ("list[str]", "tuple[StagedFile, ...]") and not isinstance(value, list):
        raise TypeError(f"{value!r} is not a list")
    if kind == "list[str]":
        return [checked("str", each) for each in value]
    if kind == "tuple[StagedFile, ...]":
        return tuple(typed(StagedFile(**each)) for each in value)
    if kind == "dict[str, str]":
        return {checked("str", name): checked("str", each) for name, each in value.items()}
    return checked(kind, value)


def _adding(report: Report, total: int) -> Callable[[int], None]:
    """Return a function that adds up the numbers of bytes it is called with, and calls `report(sum, total)`."""
    done = 0

    def spend(size: int) -> None:
        nonlocal done
        done += size
        report(done, total)

    return spend


def check_mirror(store: Store, topic: str) -> None:
    """Raise `InvalidSetting` if a topic does not mirror one of another cluster. Raises the error of `check_topic`."""
    check_topic(store, topic)
    if MIRROR_SOURCE not in store.settings.topic_overrides(topic):
        raise InvalidSetting(f"topic {topic} is not a mirror: it accepts appends already")


def check_topic(store: Store, topic: str) -> None:
    """Raise `UnknownPartition` if the topic has neither partitions nor changed settings (overrides)."""
    if not store.registry.partitions_of(topic) and not store.settings.topic_overrides(topic):
        where = ", ".join(str(log_dir.path) for log_dir in store.log_dirs)
        topics = {names.parse_directory(name).topic for name in store.registry.homes.copy()}
        hint = did_you_mean(topic, topics)
        raise UnknownPartition(
            f"{where}: has no topic {topic!r}{hint}; 'logfs describe' lists the partitions"
        )


def _partitions_in(store: Store, log_dirs: Sequence[str]) -> list[str]:
    """Return the partitions of the store that are in `log_dirs`. The store may have other log directories, too."""
    wanted = set(map(os.path.realpath, log_dirs))
    return [name for name in store if os.path.realpath(store.registry.home(name)) in wanted]


def tiered_partitions(store: Store, chosen: Iterable[str]) -> list[str]:
    """Return those of `chosen` whose topics are tiered."""
    return [name for name in chosen if store[name].config.remote_storage_enable]


def retention_plans(store: Store, chosen: Iterable[str]) -> list[dict[str, Any]]:
    """Return what retention would do now to each of the partitions `chosen`, as values for JSON.

    An item of the result has the fields `name`, `expired`, `released`, `oldest` and `stays`. `expired` lists the
    segments to delete, `released` those to delete only from the local disk, each as [name of the .log file, base
    offset, next offset, bytes, reason]. `oldest` is the .log file of the oldest segment that remains, and `stays`
    says why this segment remains; both are "" if no segment remains. A partition that another process deletes
    meanwhile is left out. Raises `LogfsError` or `OSError` if a partition does not exist, is offline or cannot be
    read.
    """
    plans = []
    for name in chosen:
        partition = store[name]
        try:
            plans.append(partition.until_settled(partial(_retention, store, name)))
        except (FileNotFoundError, Gone):
            if partition.directory.exists():
                raise
    return plans


def _retention(store: Store, name: str) -> dict[str, Any]:
    plan = store.retention_plan(name)
    segments = store[name].segments[len(plan.expired) :]
    return {
        "name": name,
        "expired": list(map(_row, plan.expired)),
        "released": list(map(_row, plan.released)),
        "oldest": segments[0].path.name if plan.stays else "",
        "stays": plan.stays,
    }


def _row(expired: Expired) -> list[Any]:
    segment, _, reason = expired
    return [segment.path.name, segment.base_offset, segment.next_offset, segment.size_bytes, reason]
