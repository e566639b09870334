"""A log as text views and the key index need it, so that they do not import `Reader`, which imports them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol
from weakref import WeakSet

from logfs.locks import Level, make_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from logfs.format.base.names import TopicPartition
    from logfs.format.batches.batch import Header
    from logfs.format.batches.record import Record
    from logfs.log.disk.disk import Disk
    from logfs.log.segment.segment import Segment
    from logfs.log.state.log_state import LogState


class SegmentHolder(Protocol):
    """A view that keeps segments after they have left the log. The log calls `pin` before segments leave it."""

    def pin(self) -> None:
        """Keep every segment that the log has now; release segments that left it and that readers have passed."""

    def exchange(self, copies: Mapping[Segment, Segment]) -> None:
        """Replace each segment that the view holds by its copy in another log directory, if `copies` has one."""


class ViewRegistry:
    """The text views of a log. They are told before segments leave the log, to keep them. Any thread may use it."""

    def __init__(self) -> None:
        self._views: WeakSet[SegmentHolder] = WeakSet()
        self._lock = make_lock(Level.VIEWS)

    def add(self, view: SegmentHolder) -> None:
        """Register a view, so that it keeps its segments when some of them are about to leave the log."""
        with self._lock:
            self._views.add(view)

    def pin(self) -> None:
        """Make the views keep every segment that the log has now, before some leave it.

        The views also release segments that left the log and that readers have passed.
        """
        for view in self._all():
            view.pin()

    def exchange(self, copies: Mapping[Segment, Segment]) -> None:
        """Make the views continue with copies of segments that have the same text.

        `copies` maps each old segment to its copy. The caller must not hold a lock of the log.
        """
        for view in self._all():
            view.exchange(copies)

    def _all(self) -> list[SegmentHolder]:
        with self._lock:
            return list(self._views)


class ReadableLog(Protocol):
    """What text views and the key index need of a reader. `Reader` implements it, and its docstrings say more."""

    @property
    def directory(self) -> Path:
        """The partition directory."""

    @property
    def name(self) -> TopicPartition:
        """The topic and the number of the partition."""

    @property
    def disk(self) -> Disk:
        """The disk that holds the directory."""

    @property
    def state(self) -> LogState:
        """The log at this moment. Its `log_end_offset` is the end of the records that this reader shows."""

    @property
    def log(self) -> ReadableLog:
        """The log with all of its records, also those that this reader does not show; often this object itself."""

    @property
    def views(self) -> ViewRegistry:
        """The registry of the text views that are in use for the log."""

    def check_may_block(self) -> None:
        """Raise `WouldBlock` in a thread that must not wait for the disk."""

    def refresh(self) -> bool:
        """Bring a partition of a read-only store up to date with its files; return whether anything has changed."""

    def shown(self, state: LogState) -> Callable[[Header], bool]:
        """Return a function that takes the header of a batch and returns whether readers of `state` see the batch."""

    def record(self, offset: int) -> Record | None:
        """Return the record at `offset`; None if readers do not see one there."""
