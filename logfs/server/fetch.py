"""Fetch: whole batches as they lie in the segments, and the wait for new ones."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from logfs.errors import LogfsError
from logfs.log.read.read_committed import Isolation
from logfs.server.broker import epoch_error
from logfs.server.error_codes import ErrorCode, code_of
from logfs.server.offsets import ISOLATION

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from logfs.log.disk.disk import File
    from logfs.log.read.log import Log
    from logfs.log.read.read_committed import Aborted
    from logfs.log.segment.segment import Segment
    from logfs.server.broker import Broker, Request

# The first version of a request that names topics by their ids.
_TOPIC_IDS = 13
# The most bytes of one answer (Kafka's fetch.max.bytes), and the longest wait, in seconds.
_MOST_BYTES = 55 << 20
_MOST_SECONDS = 300.0
_UNKNOWN = -1
# What a request without a session has as the epoch of its session.
_NO_SESSION = 0
_EMPTY = b""


@dataclass(slots=True)
class FileRange:
    """Bytes of a .log file that are sent from the page cache. The open file stays readable until they are sent."""

    file: File
    position: int
    size_bytes: int

    def __len__(self) -> int:
        return self.size_bytes


@dataclass(slots=True)
class _Wanted:
    """A partition of a request: its topic as the request names it, and its log, or why there is none."""

    topic: Mapping[str, Any]
    asked: Mapping[str, Any]
    log: Log | None = None
    error: ErrorCode = ErrorCode.NONE


@dataclass(slots=True)
class _Found:
    """What a look at the partitions of a request has found: the answer for each, and the bytes of batches in all."""

    answers: list[dict[str, Any]] = field(default_factory=list)
    size_bytes: int = 0
    has_error: bool = False


def fetch(broker: Broker, request: Request) -> Mapping[str, Any]:
    """Answer a Fetch request: batches of each partition, once there are `minBytes`, or the time to wait is over.

    There are no fetch sessions: each request must name all partitions, and each answer has the session id 0.
    """
    fields = request.fields
    if fields["sessionId"] != _NO_SESSION:
        return {"errorCode": ErrorCode.FETCH_SESSION_ID_NOT_FOUND}
    broker.refresh()
    isolation = ISOLATION[fields["isolationLevel"] == 1]
    wanted = [
        _wanted(broker, request.version, topic, asked)
        for topic in fields["topics"]
        for asked in topic["partitions"]
    ]
    most = min(max(fields["maxBytes"], 0), _MOST_BYTES)
    least = min(fields["minBytes"], most)
    until = time.monotonic() + min(max(fields["maxWaitMs"], 0) / 1000, _MOST_SECONDS)
    found = _look(wanted, isolation, most)
    if not (found.has_error or found.size_bytes >= least):
        found = _await(broker, request, wanted, isolation, most, least, until)
    return {"responses": _grouped(wanted, found.answers)}


def _await(
    broker: Broker,
    request: Request,
    wanted: Sequence[_Wanted],
    isolation: Isolation,
    most: int,
    least: int,
    until: float,
) -> _Found:
    """Look again after each change of one of the logs, until there are `least` bytes or the time `until` has come."""
    logs = [each.log for each in wanted if each.log is not None]
    with broker.awaiting(logs) as changed:
        while True:
            changed.clear()
            found = _look(wanted, isolation, most)
            left = until - time.monotonic()
            is_enough = found.has_error or found.size_bytes >= least
            if is_enough or left <= 0 or request.stopping.is_set():
                return found
            changed.wait(left)


def _wanted(
    broker: Broker, version: int, topic: Mapping[str, Any], asked: Mapping[str, Any]
) -> _Wanted:
    found = _Wanted(topic, asked)
    name = broker.named(topic, version, _TOPIC_IDS)
    if name is None:
        found.error = ErrorCode.UNKNOWN_TOPIC_ID
        return found
    try:
        found.log = broker.log(name, asked["partition"])
    except (LogfsError, OSError) as error:
        found.error = code_of(error)
    else:
        found.error = epoch_error(found.log, asked["currentLeaderEpoch"])
    return found


def _look(wanted: Sequence[_Wanted], isolation: Isolation, most: int) -> _Found:
    """Find the batches that there are now for each partition, `most` bytes in all, but at least one batch."""
    found = _Found()
    for each in wanted:
        answer: dict[str, Any] = {
            "partitionIndex": each.asked["partition"],
            "errorCode": each.error,
            "highWatermark": _UNKNOWN,
        }
        log = each.log
        if log is not None and each.error is ErrorCode.NONE:
            size = min(each.asked["partitionMaxBytes"], most - found.size_bytes)
            offset, is_first = each.asked["fetchOffset"], not found.size_bytes
            try:
                answer |= log.until_found(_batches, log, offset, size, is_first, isolation)
            except (LogfsError, OSError) as error:
                answer["errorCode"] = code_of(error)
        found.has_error = found.has_error or answer["errorCode"] is not ErrorCode.NONE
        found.size_bytes += len(answer.get("records", _EMPTY))
        found.answers.append(answer)
    return found


def _batches(
    log: Log, offset: int, size: int, is_first: bool, isolation: Isolation
) -> dict[str, Any]:
    """Return the answer for one partition: its offsets, and up to `size` bytes of batches from `offset` on.

    If `is_first`, the first batch is sent even if it is longer than `size`. A batch may be cut at the end, as in
    Kafka; the client asks for it again. Raises `DamagedRange` if `offset` lies in a damaged range.
    """
    is_committed = isolation is Isolation.READ_COMMITTED
    state = log.stable_state
    if not state.log_start_offset <= offset <= state.log_end_offset:
        # A broker tells no offsets then either: the client asks for them by ListOffsets.
        return {"errorCode": ErrorCode.OFFSET_OUT_OF_RANGE}
    answer: dict[str, Any] = {
        "errorCode": ErrorCode.NONE,
        "highWatermark": state.log_end_offset,
        "lastStableOffset": state.last_stable_offset,
        "logStartOffset": state.log_start_offset,
        "records": _EMPTY,
        "abortedTransactions": [] if is_committed else None,
    }
    end = state.last_stable_offset if is_committed else state.log_end_offset
    for segment in state.segments_from(offset) if offset < end else ():
        batches = segment.batch_range(offset, end)
        if batches is None:
            continue
        start, stop, first = batches
        length = min(size, stop - start)
        if length < first.size_bytes:
            # Only the first batch of the whole answer is sent though it does not fit: a client needs progress.
            length = first.size_bytes if is_first else 0
        if length:
            answer["records"] = _range(segment, start, length)
            if is_committed:
                below = min(end, segment.offset_bound(start + length))
                aborted = log.committed.aborted(state.as_committed())
                answer["abortedTransactions"] = list(_aborted(aborted, offset, below))
        break
    return answer


def _range(segment: Segment, position: int, size: int) -> Any:
    if segment.disk.is_remote or segment.is_tiered:
        return segment.read(position, size)
    return FileRange(segment.file, position, size)


def _aborted(aborted: Aborted, offset: int, end: int) -> Iterator[Mapping[str, int]]:
    """Yield the aborted transactions with records in [offset, end), in the order of their first offsets."""
    inside = (
        (first, producer_id)
        for producer_id, found in aborted.items()
        for first, last in found
        if first < end and last >= offset
    )
    for first, producer_id in sorted(inside):
        yield {"producerId": producer_id, "firstOffset": first}


def _grouped(
    wanted: Sequence[_Wanted], answers: Sequence[Mapping[str, Any]]
) -> Sequence[Mapping[str, Any]]:
    """Return the answers by topic, in the order of the request."""
    topics: list[dict[str, Any]] = []
    before: Mapping[str, Any] | None = None
    for each, answer in zip(wanted, answers, strict=True):
        if each.topic is not before:
            before = each.topic
            named = {name: before[name] for name in ("topic", "topicId")}
            topics.append({**named, "partitions": []})
        topics[-1]["partitions"].append(answer)
    return topics
