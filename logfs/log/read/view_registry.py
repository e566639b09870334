"""The text views of a log that are in use."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakSet

from logfs.locks import Level, make_lock

if TYPE_CHECKING:
    from collections.abc import Mapping

    from logfs.log.read.text_view import TextView
    from logfs.log.segment.segment import Segment


class ViewRegistry:
    """The text views of a log: `pin` makes them keep its segments before some leave it. Any thread may use it."""

    def __init__(self) -> None:
        self._views: WeakSet[TextView] = WeakSet()
        self._lock = make_lock(Level.VIEWS)

    def add(self, view: TextView) -> None:
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

    def _all(self) -> list[TextView]:
        with self._lock:
            return list(self._views)
