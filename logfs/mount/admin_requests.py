"""The administrative requests that a mount executes, each in a worker thread, while their callers wait for answers.

A request, such as a compaction, may take minutes. Therefore no handler of the mount waits for its end.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from logfs.errors import RequestInterrupted
from logfs.locks import Level, make_lock
from logfs.mount.threads import run_detached
from logfs.store.admin.requests import describe_error, to_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from logfs.store.admin.requests import Request
    from logfs.store.store import Store

# The shortest time between two lines of progress.
_PROGRESS_SECONDS = 0.2


class RunningRequest:
    """A request in progress. `answer` has lines of JSON: the progress so far, and at the end the result or the error.

    `error` is the exception that has ended the request, None if there is none. A worker thread replaces `answer` and
    `error`; other threads only read them.
    """

    def __init__(self) -> None:
        self.answer = b""
        self.error: Exception | None = None
        self._is_cancelled = False
        self._next_progress = 0.0

    def cancel(self) -> None:
        """Make the next call of `report` raise `RequestInterrupted`, which ends the request."""
        self._is_cancelled = True

    def report(self, done: int, total: int) -> None:
        """Add a line with the progress, `done` of `total` bytes, unless one was added less than 0.2 s ago.

        Raises `RequestInterrupted` after `cancel`.
        """
        if self._is_cancelled:
            raise RequestInterrupted(
                "interrupted: the file was closed or got another request, or the mount is being stopped"
            )
        now = time.monotonic()
        if now >= self._next_progress:
            self._next_progress = now + _PROGRESS_SECONDS
            self.answer += to_line({"progress": [done, total]})


class AdminRequests:
    """The requests in progress. Any thread may call any method."""

    def __init__(self) -> None:
        self._changed = threading.Condition(make_lock(Level.REQUESTS))
        self._running: set[RunningRequest] = set()
        self._is_stopped = False

    def start(
        self, store: Store, request: Request, done: Callable[[], None] = lambda: None
    ) -> RunningRequest:
        """Start a request in a worker thread, and return its `RunningRequest`.

        If the request succeeds, the worker thread calls `done`, and then adds the result to the answer. Raises
        `OSError` (EAGAIN) if no worker thread runs and none can be started.
        """
        running = RunningRequest()

        def work() -> dict[str, Any]:
            try:
                if self._is_stopped:
                    running.cancel()
                running.report(0, 0)
                answer = request.run(store, running.report)
                done()
                return {"answer": answer}
            except Exception as error:
                running.error = error
                return describe_error(error)

        def run() -> None:
            try:
                line = to_line(work())
                running.answer += line
            finally:
                with self._changed:
                    self._running.discard(running)
                    self._changed.notify_all()

        with self._changed:
            run_detached(run)
            self._running.add(running)
        return running

    def stop(self) -> None:
        """Cancel all requests, and wait until they have ended. Requests that start later are cancelled, too."""
        with self._changed:
            self._is_stopped = True
            for running in self._running:
                running.cancel()
            while self._running:
                self._changed.wait()
