"""Finds the threads that may share an open file, and waits until they have left the kernel's read path.

In a cached read, the kernel first takes a page of the file, and then reads the file's size. Between these two steps,
the size that the kernel knows must not grow (`logfs.mount.growing_sizes`). FUSE does not report when a read has
ended, but `/proc` shows whether a thread is runnable. The kernel never sleeps between the two steps, so a thread that
is not runnable is not between them.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# The first and the longest pause before the next check of the threads. Most threads are outside of the kernel's read
# path at the first check. A thread that computes all the time needs many checks.
_FIRST_PAUSE_SECONDS = 0.0005
_LONGEST_PAUSE_SECONDS = 0.004
# The kernel updates the CPU time of a thread at timer ticks, which are at most 10 ms apart. So CPU time that is added
# after the first check may be from before it. If more than 30 ms are added, the thread has run since the first check.
_ACCOUNTING_NS = 30_000_000
_STATUS = re.compile(
    rb"State:\t(?P<state>.).*^Threads:\t(?P<threads>\d+).*^voluntary_ctxt_switches:\t(?P<switches>\d+)",
    re.DOTALL | re.MULTILINE,
)


def is_visible(thread: int) -> bool:
    """Whether `/proc` shows a thread. FUSE reports the id 0 for a thread that this process cannot see."""
    return thread > 0 and os.path.exists(f"/proc/{thread}/status")


def is_alone(thread: int) -> bool:
    """Whether a thread is the only one of its process, and the process has no child that could share its files.

    False if the thread has ended.
    """
    try:
        found = _STATUS.search(_read(f"/proc/{thread}/status"))
        return found is not None and found["threads"] == b"1" and not any(_children(thread))
    except OSError:
        return False


def sharers_of(threads: Iterable[int]) -> set[int]:
    """Return all threads of the processes that `threads` belong to, and of the descendants of these processes."""
    found: set[int] = set()
    left = set(threads)
    while left:
        thread = left.pop()
        if thread in found:
            continue
        with suppress(OSError):
            siblings = set(map(int, os.listdir(f"/proc/{thread}/task")))
            found |= siblings
            for sibling in siblings:
                left.update(_children(sibling))
    return found


def wait_until_outside(threads: Iterable[int]) -> None:
    """Wait until each thread has left the kernel code that it may have been running at the time of the call.

    A thread has left this code if it has ended, is not runnable, or has slept or received more than 30 ms of CPU time
    since the call. There is no timeout: while a runnable thread gets no CPU time, the wait goes on.
    """
    waiting = {
        thread: first
        for thread in threads
        if (first := _sample(thread)) is not None and first.is_runnable
    }
    pause = _FIRST_PAUSE_SECONDS
    while waiting:
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        waiting = {
            thread: first
            for thread, first in waiting.items()
            if (now := _sample(thread)) is not None and now.may_still_be_where(first)
        }


class _ThreadSample(NamedTuple):
    is_runnable: bool
    switches: int
    cpu_ns: int

    def may_still_be_where(self, first: _ThreadSample) -> bool:
        """Whether the thread may still be in the code that it ran at the sample `first`."""
        slept = self.switches != first.switches
        return self.is_runnable and not slept and self.cpu_ns - first.cpu_ns <= _ACCOUNTING_NS


def _sample(thread: int) -> _ThreadSample | None:
    """Return the present state of a thread, or None if the thread has ended."""
    try:
        found = _STATUS.search(_read(f"/proc/{thread}/status"))
        cpu_ns = int(_read(f"/proc/{thread}/schedstat").split()[0])
    except OSError:
        return None
    if found is None:
        # The status of an ending thread no longer has these lines.
        return None
    return _ThreadSample(found["state"] == b"R", int(found["switches"]), cpu_ns)


def _children(thread: int) -> Iterator[int]:
    """Yield the child processes that a thread has started; none if the kernel does not list them."""
    with suppress(FileNotFoundError):
        yield from map(int, _read(f"/proc/{thread}/task/{thread}/children").split())


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 65536)
    finally:
        os.close(fd)
