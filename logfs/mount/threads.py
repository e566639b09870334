"""Worker threads of a mount, 24 of which are started before the mount serves requests.

`trio.to_thread` starts a thread when a request needs one. While the machine is out of memory or threads, the start
fails; if the new thread dies before it runs, `threading.Thread.start` waits for it forever and the daemon hangs. In
this module, a request waits in a queue that running threads empty, so it does not depend on a thread that has yet to
start. Calls that may wait for the network are the exception: they have threads of their own, started when needed.
"""

from __future__ import annotations

import _thread
import errno
import time
from contextlib import nullcontext, suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

import trio

from logfs.locks import Level, make_lock

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")

# How many threads `start` starts. Up to eight of them are used by the five loops of upkeep, a mirror, the loading of
# partitions and the warm-up. The others serve requests.
_STARTED_FIRST = 24
# A thread that was started later, for a burst of requests, ends after this time without work. This is also the
# longest time for which `start` waits until its threads run.
_IDLE_SECONDS = 10.0
# The pause before the next attempt to wake a task, if there was no memory for the last attempt.
_RETRY_SECONDS = 0.01


class _ThreadJob:
    """One call that a task waits for."""

    __slots__ = ("arguments", "error", "result", "task", "token", "work")

    def __init__(self, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.work = work
        self.arguments = arguments
        self.token = trio.lowlevel.current_trio_token()
        self.task = trio.lowlevel.current_task()
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        """Do the job in this thread, then wake the task that waits for it."""
        try:
            self.result = self.work(*self.arguments)
        except BaseException as error:
            self.error = error
        while True:
            try:
                self.token.run_sync_soon(trio.lowlevel.reschedule, self.task)
                return
            except trio.RunFinishedError:
                return
            except MemoryError:
                # Try again: if the task is not woken, it waits forever.
                time.sleep(_RETRY_SECONDS)


class _DetachedJob:
    """One call that no task waits for. It must raise no error."""

    __slots__ = ("run",)

    def __init__(self, work: Callable[[], None]) -> None:
        self.run = work


class _Pool:
    """Threads that take jobs from one queue."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[_ThreadJob | _DetachedJob] = SimpleQueue()
        self._lock = make_lock(Level.POOL)
        self._running = 0
        self._idle = 0

    def start(self, count: int) -> None:
        """Start threads until `count` run. Raises `OSError` (EAGAIN) if they cannot be started."""
        for _ in range(count - self._running):
            try:
                _thread.start_new_thread(self._work, (True,))
            except (RuntimeError, MemoryError) as error:
                raise OSError(
                    errno.EAGAIN,
                    f"the mount cannot start its {count} threads ({error}); raise the limit of tasks "
                    "(ulimit -u, TasksMax=)",
                ) from None
        # Wait for all threads together, with a time limit. If the loop above waited for each thread, a thread that
        # dies before it runs would block it forever.
        end = time.monotonic() + _IDLE_SECONDS
        while self._running < count:
            if time.monotonic() > end:
                raise OSError(
                    errno.EAGAIN,
                    f"the mount cannot start its {count} threads in {_IDLE_SECONDS:.0f} s; raise the limit of tasks "
                    "(ulimit -u, TasksMax=)",
                )
            time.sleep(0.001)

    def put(self, job: _ThreadJob | _DetachedJob) -> None:
        """Pass a job to an idle or a new thread; if none can be started, to the next thread that becomes idle.

        Raises `OSError` (EAGAIN) if no thread runs and none can be started.
        """
        with self._lock:
            if self._idle <= self._jobs.qsize():
                try:
                    _thread.start_new_thread(self._work, (False,))
                except (RuntimeError, MemoryError):
                    if not self._running:
                        raise OSError(
                            errno.EAGAIN,
                            "no thread can be started; raise the limit of tasks (ulimit -u, TasksMax=) or of memory",
                        ) from None
            self._jobs.put(job)

    def _work(self, stays: bool) -> None:
        with self._lock:
            self._running += 1
        try:
            while True:
                job = self._next(None if stays else _IDLE_SECONDS)
                if job is None:
                    return
                job.run()
                del job
        finally:
            with self._lock:
                self._running -= 1

    def _next(self, seconds: float | None) -> _ThreadJob | _DetachedJob | None:
        with self._lock:
            self._idle += 1
        job = None
        try:
            job = self._jobs.get(timeout=seconds)
        except Empty:
            pass
        with self._lock:
            self._idle -= 1
            if job is None:
                # A job may have been queued while this thread still counted as idle, so that no thread was started
                # for the job. Take the job, unless another thread has taken it already.
                with suppress(Empty):
                    job = self._jobs.get_nowait()
        return job


_pool = _Pool()
# Calls that may wait for the network have threads of their own, started when they are needed. A call that hangs keeps
# its thread, which must not be one of the threads that serve all other requests.
_fetching_pool = _Pool()


def start() -> None:
    """Start the threads that serve requests. Raises `OSError` (EAGAIN) if they cannot be started."""
    _pool.start(_STARTED_FIRST)


def run_detached(work: Callable[[], None]) -> None:
    """Call `work`, which must raise no error, in a worker thread, and do not wait for it.

    Raises `OSError` (EAGAIN) if no worker thread runs and none can be started.
    """
    _pool.put(_DetachedJob(work))


async def run_in_thread(
    work: Callable[..., _T],
    *arguments: Any,
    limiter: trio.CapacityLimiter | None = None,
    fetches: bool = False,
) -> _T:
    """Call `work` in a worker thread and return its result, or raise its error.

    `limiter` bounds the number of concurrent calls. If `fetches` is true, `work` may wait for the network, and runs
    in a separate pool of threads. A cancellation does not interrupt `work`. Raises `OSError` (EAGAIN) if no worker
    thread runs and none can be started.
    """
    await trio.lowlevel.checkpoint_if_cancelled()
    async with limiter or nullcontext():
        job = _ThreadJob(work, arguments)
        (_fetching_pool if fetches else _pool).put(job)
        await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)
        if job.error is not None:
            try:
                raise job.error
            finally:
                # This breaks the reference cycle of the error, its frames and the job.
                job.error = None
        result: _T = job.result
        return result
