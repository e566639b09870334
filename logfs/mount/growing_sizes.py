"""Which sizes of a growing file the kernel is told, and for how long it may keep them.

A cached read that reaches the end of a file fills the rest of the last page with zeros. The kernel looks at the
file's size after it has the page, so a size that grows in between would show those zeros as data; and it grows the
size before it drops the page. No order of the daemon's answers can prevent this while several open files share a
kernel inode. So:

- A kernel inode belongs to one open file. A lookup gives a new inode unless nobody has the last one open and its size
  is still the one that the kernel was told; then the pages of the last reader serve the next one. Who opens an inode
  that was opened since the lookup is sent to look it up again (ESTALE, which the kernel answers by another lookup).
- The one thread that has the file open is told a larger size at once: it cannot ask and read at the same time.
- Where other threads or processes may share the descriptor, the pages are dropped first; then it is waited until each
  of them has left the kernel's read path (`logfs.mount.sharers`), and only then the size grows.

With no timeout the kernel asks for attributes before each read, which costs a request for each. With a timeout, an
append has to take the answer back, and that has a price: the kernel then also drops the answers that are under way,
and a reader who waits for one goes by the size before it. So a size may be kept only where the size before it was
as good:

- it was told to the kernel a good while ago, and has not changed since;
- it was told by a GETATTR: an inode that is only being looked up cannot be taken back from;
- the thread that has the file open is alone, so that no other reads without asking;
- only the writers of `append` and `.logfs/commit` make the log grow: the committed offsets of groups come from
  everywhere, and a commit that is decided and not done may be done at any time. Of a segment's files no size is kept.

The files of the active segment are opened with direct_io, but splice and sendfile go through the kernel's pages all
the same.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import pyfuse3
import trio

from logfs.errors import LogfsError
from logfs.mount import sharers
from logfs.mount.threads import run_in_thread
from logfs.store.groups import TOPIC as GROUPS_TOPIC

if TYPE_CHECKING:
    from logfs.log.reader import Reader
    from logfs.mount.nodes.growing import GrowingFile

# How long a size must have been told unchanged before it may be kept; a reply takes microseconds to arrive.
CONFIRMED_SECONDS = 0.1
KEEP_SECONDS = 3600.0
# Each waits for threads of its own, so a slow one must not hold up the others.
_WAITING = 256
# For how long a mount that stops goes on to answer, so that no thread of its own is left waiting.
_STOP_SECONDS = 20.0
_STOP_POLL_SECONDS = 0.01
# Beyond so many, the threads that are gone are forgotten.
_MOST_THREADS = 64


class _Told:
    """What the kernel was told of one inode."""

    def __init__(self, size: int, now: float) -> None:
        self.size = size
        # Since when the size has not changed, by trio's clock.
        self.since = now
        # The threads that may not have taken in what they were told of the inode, or that may be reading it.
        self.threads: set[int] = set()
        # Those that asked since the inode was opened by the first of those who have it open.
        self.since_open: set[int] = set()
        # The thread that was sent back to look the name up, and is to have the inode for itself.
        self.reserved_for: int | None = None
        # Held while the size grows for threads that share the inode.
        self.growing = trio.Lock()

    def note(self, thread: int) -> None:
        """Take note of a thread that asks."""
        self.threads.add(thread)
        self.since_open.add(thread)
        if len(self.threads) > _MOST_THREADS:
            self.threads = {other for other in self.threads if sharers.is_visible(other)}
            self.since_open &= self.threads


class GrowingSizes:
    """The sizes of growing files as the kernel knows them. Lives on the trio thread (rule 6)."""

    def __init__(self) -> None:
        self._told: WeakKeyDictionary[GrowingFile, _Told] = WeakKeyDictionary()
        self._kept: WeakKeyDictionary[Reader, set[int]] = WeakKeyDictionary()
        # The threads that were to look a name up again, until they open it.
        self._sent_back: set[int] = set()
        self._waiting = trio.CapacityLimiter(_WAITING)
        self._is_stopped = False

    async def stop(self) -> None:
        """Grow no size for several threads any more, and return when none grows.

        That waits for pages which readers have locked, so somebody must still answer their requests.
        """
        self._is_stopped = True
        end = trio.current_time() + _STOP_SECONDS
        while self._waiting.borrowed_tokens and trio.current_time() < end:  # noqa: ASYNC110
            await trio.sleep(_STOP_POLL_SECONDS)

    def may_look_up(self, node: GrowingFile, size: int, thread: int) -> bool:
        """Whether a lookup by a thread may lead to a node and tell it a size."""
        if not node.is_growing:
            return True
        told = self._told.get(node)
        wanted = thread if thread in self._sent_back else None
        if told is None:
            told = self._told[node] = _Told(size, trio.current_time())
            told.reserved_for = wanted
        elif told.size != size or node.handles or told.reserved_for != wanted:
            return False
        told.note(thread)
        return True

    def may_open(self, node: GrowingFile, thread: int) -> bool:
        """Whether a thread may open a node, or is to look its name up again first.

        A thread is sent back only once, and then has a node for itself, unless it comes through a name that needs no
        lookup, such as `/dev/stdin`.
        """
        if not node.is_growing or not node.handles or thread in self._sent_back:
            self._sent_back.discard(thread)
            told = self._told.get(node)
            if told is not None and not node.handles:
                told.since_open, told.reserved_for = {thread}, None
            return True
        self._sent_back.add(thread)
        return False

    async def grow(self, node: GrowingFile, size: int, thread: int) -> int:
        """Return when the kernel may be told a size by the answer to a GETATTR of a thread; the size to tell it."""
        if not node.is_growing:
            return size
        told = self._told.get(node)
        if told is None:
            told = self._told[node] = _Told(size, trio.current_time())
        told.note(thread)
        if size > told.size and node.handles and not self._is_alone(node, thread, told.threads):
            async with told.growing:
                if self._is_stopped:
                    return told.size
                if size > told.size:
                    others, told.threads = told.threads - {thread}, {thread}
                    await run_in_thread(_grow_for_all, node, size, others, limiter=self._waiting)
        if size > told.size:
            told.size, told.since = size, trio.current_time()
        return told.size

    @staticmethod
    def _is_alone(node: GrowingFile, thread: int, asked: set[int]) -> bool:
        """Whether a thread has the only open file of an inode, and is alone among those that asked."""
        openers = [handle.opener for handle in node.handles]
        return openers == [thread] and asked == {thread} and sharers.is_alone(thread)

    def timeout(self, node: GrowingFile, end_offset: int, thread: int) -> float:
        """For how many seconds the kernel may keep the size that it is told by the answer to a GETATTR of a thread.

        `end_offset` is the log's end before the size was asked for.
        """
        told = self._told.get(node)
        if told is None:
            return 0.0
        log = node.partition.log
        is_confirmed = (
            trio.current_time() - told.since >= CONFIRMED_SECONDS
            and log.log_end_offset == end_offset
        )
        if (
            not is_confirmed
            or not node.grows_by_appends
            or node.context.store.read_only  # Nobody here takes back what another process writes.
            or node.partition.topic == GROUPS_TOPIC
            or node.context.store.commits.pending()
            or not self._is_alone(node, thread, told.since_open)
        ):
            return 0.0
        self._kept.setdefault(log, set()).add(node.inode)
        return KEEP_SECONDS

    def take_back(self, partition: Reader) -> set[int]:
        """The inodes whose sizes an append to a partition makes old; the kernel has to be told of each."""
        return self._kept.pop(partition, set()) if self._kept else set()


def _grow_for_all(node: GrowingFile, size: int, threads: set[int]) -> None:
    """Have the kernel know a larger size once none of the threads that share an inode holds a page from before it.

    READs that are answered from now on reach to that size at least, so what the kernel has of them may stay.
    """
    with suppress(OSError):
        # ENOENT: the kernel has forgotten the inode. This waits for the READs that are under way.
        pyfuse3.invalidate_inode(pyfuse3.InodeT(node.inode))
    threads = threads | {handle.opener for handle in [*node.handles]}
    sharers.wait_until_outside(sharers.sharers_of(threads))
    # The kernel drops the answer to a GETATTR if it took in another answer meanwhile. A store of the last byte has no
    # such rule.
    with suppress(LogfsError, OSError):
        # LogfsError: the end of a text is damaged. OSError: the kernel has forgotten the inode.
        pyfuse3.notify_store(pyfuse3.InodeT(node.inode), size - 1, node.byte_at(size - 1))
