"""Appends lines to a partition or topic: through the mount of its store or, without a mount, by opening the store."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from logfs.errors import LogfsError, UnknownPartition
from logfs.log.append.line_framer import EnvelopeFramer, LineFramer
from logfs.log.append.partition import writable
from logfs.log.append.topic_framer import (
    Partitioner,
    TopicEnvelopeFramer,
    TopicLineFramer,
    check_partitions,
)
from logfs.store.admin.client import NO_MOUNT, NoAnswer, call_with_retries
from logfs.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Any, Self, TypeAlias

    from logfs.log.append.result import AppendResult
    from logfs.store.loading import Progress

    Appender: TypeAlias = "DirectAppender | MountedAppender"

_NEWLINE = b"\n"
_LAST_OFFSET = "user.logfs.last_offset"
_ERRORS = ".logfs/errors"
# The errnos that mean that the mount has refused a line. At any other errno, no line is at fault.
_REFUSALS = frozenset({errno.EINVAL, errno.EMSGSIZE, errno.EROFS})


class Appended:
    """The offsets that the records of an appender got: `count` records, with offsets in [first, next_offset)."""

    def __init__(self) -> None:
        self.first = 0
        self.next_offset = 0
        self.count = 0

    def add(self, last_offset: int, count: int) -> None:
        """Count `count` more records. The last of them has the offset `last_offset`."""
        if count and not self.count:
            self.first = last_offset + 1 - count
        if count:
            self.next_offset = last_offset + 1
            self.count += count

    @property
    def is_contiguous(self) -> bool:
        """Whether the offsets are consecutive: no other writer's record is between the first and the last record."""
        return self.next_offset - self.first == self.count


def open_appender(
    log_dirs: Sequence[Path],
    name: str,
    *,
    envelopes: bool,
    is_topic: bool = False,
    recovery: Progress | None = None,
) -> Appender:
    """Return an object that appends to the partition or, if `is_topic` is true, to the topic `name`.

    Each line becomes the value of a record. If `envelopes` is true, each line is instead an envelope: a JSON object
    for a whole record. For a topic, only `count` of the object's `appended` is valid, because the records get offsets
    in several logs. If the log directories are not mounted, this process opens the store. If it recovers partitions,
    `recovery` is called with (partition, bytes read, total bytes), perhaps by several threads at the same time. If
    another process holds the directories, waits up to a second, and then raises `StoreLocked`, which names the
    process. Raises `UnknownPartition` if there is no partition or topic `name`, `InvalidStore` for a path that is not
    a log directory, and other kinds of `LogfsError` or `OSError` if the store or the partition cannot be opened.
    """

    def directly(paths: Sequence[Path]) -> Appender:
        store = Store(paths, only=None if is_topic else name, progress=recovery, create=False)
        try:
            return DirectAppender(store, _framer(store, name, envelopes, is_topic))
        except BaseException:
            store.close()
            raise

    def through(mounted: Path) -> Appender:
        file = "append.jsonl" if envelopes else "append"
        return MountedAppender(mounted, f"/{'topics/' if is_topic else ''}{name}/{file}", is_topic)

    return call_with_retries(log_dirs, directly, through, seconds=1.0)


def _framer(store: Store, name: str, envelopes: bool, is_topic: bool) -> LineFramer:
    if not is_topic:
        return (EnvelopeFramer if envelopes else LineFramer)(store.writable(name))
    partitions = [writable(each) for each in store.topic(name).partitions]
    check_partitions(name, partitions)
    partitioner = Partitioner(len(partitions))
    return (TopicEnvelopeFramer if envelopes else TopicLineFramer)(partitions, partitioner)


class DirectAppender:
    """Appends lines to a partition or topic of a store. A context manager, which closes the store at the end."""

    def __init__(self, store: Store, framer: LineFramer) -> None:
        self.appended = Appended()
        self._store = store
        self._framer = framer

    def __enter__(self) -> Self:
        self._store.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._store.__exit__(*error)

    def write(self, data: bytes) -> None:
        """Append the complete lines in `data`, and keep an unfinished last line for the next call.

        If a line is refused, raises the error that says why.
        """
        rest = data
        while rest:
            done = self._framer.write(rest)
            self._add(done)
            if done.refused is not None and not done.consumed:
                raise done.refused
            rest = rest[done.consumed :]
        for partition in self._framer.partitions:
            partition.flush_if_due()

    def finish(self) -> None:
        """Append the unfinished last line, if there is one. If it is refused, raises the error that says why."""
        done = self._framer.finish()
        if done.refused is not None:
            raise done.refused
        self._add(done)

    def _add(self, done: AppendResult) -> None:
        self.appended.add(done.last_offset, done.last_offset + 1 - done.first_offset)

    def flush(self) -> None:
        """Make all appended records durable."""
        for partition in self._framer.partitions:
            partition.flush()


class MountedAppender:
    """Appends lines by writes to the file `append` or `append.jsonl` of a mount.

    It has the same methods as `DirectAppender`.
    """

    def __init__(self, mounted: Path, name: str, is_topic: bool) -> None:
        self.appended = Appended()
        self._mounted = mounted
        self._name = name
        self._is_topic = is_topic
        self._is_unfinished = False
        try:
            self._fd = os.open(f"{mounted}{self._name}", os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in NO_MOUNT and not (mounted / ".logfs").exists():
                raise NoAnswer(error) from None
            if error.errno == errno.ENOENT:
                partition = name.split("/")[-2]
                raise UnknownPartition(
                    f"{mounted}: no such partition or topic: {partition}; 'logfs create' creates it"
                ) from None
            raise self._reason(error) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            # Ignore the error of a mount that has ended: `flush` has reported whether the records are durable.
            os.close(self._fd)

    def write(self, data: bytes) -> None:
        if not data:
            return
        rest = memoryview(data)
        try:
            while rest:
                taken = os.write(self._fd, rest)
                count = bytes(rest[:taken]).count(_NEWLINE)
                if count:
                    self.appended.add(self._last_offset(count), count)
                rest = rest[taken:]
        except OSError as error:
            raise self._reason(error) from None
        self._is_unfinished = not data.endswith(_NEWLINE)

    def _last_offset(self, count: int) -> int:
        if self._is_topic:
            return self.appended.count + count - 1
        return int(os.getxattr(self._fd, _LAST_OFFSET))

    def finish(self) -> None:
        # Add the missing newline now. Otherwise the mount appends the line when the file is closed, and then the
        # line's offset can no longer be read.
        if self._is_unfinished:
            self.write(_NEWLINE)

    def flush(self) -> None:
        try:
            os.fsync(self._fd)
        except OSError as error:
            raise self._reason(error) from None

    def _reason(self, error: OSError) -> LogfsError | OSError:
        """Return the error to raise in place of `error`, with the reason in the mount's file `.logfs/errors`.

        The result is a `LogfsError` if the mount has refused a line. Otherwise it is an `OSError` with the errno of
        `error` and the path of the append file. If the file has no reason, the text of `error` is kept.
        """
        text = error.strerror
        try:
            lines = (self._mounted / _ERRORS).read_text().split("\n")
        except (OSError, UnicodeError):
            lines = []
        for line in reversed(lines):
            _, path, number, reason, *_ = [*line.split(" ", 3), "", "", ""]
            if path == self._name:
                if reason and number == errno.errorcode.get(error.errno or 0):
                    if error.errno in _REFUSALS:
                        return LogfsError(reason)
                    text = reason
                break
        return OSError(error.errno, text, f"{self._mounted}{self._name}")
