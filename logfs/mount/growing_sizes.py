"""Which size of a growing file the kernel is told, when it is told, and for how long the kernel may keep the size.

A size that is told at a wrong time makes readers see zeros that are not in the file. A cached read that reaches the
end of a file fills the rest of the last page with zeros. The kernel first takes the page, and then reads the file's
size. When the size grows, the kernel first sets the larger size, and then drops the page. For example, a reader has
taken the page of a file of 4,000 bytes, with 96 zeros at its end. A line of 50 bytes is appended, and the kernel is
told the size 4,050. The reader then sees 50 zeros as data. While several open files share a kernel inode, no order of
the daemon's answers can prevent this. Therefore:

- A kernel inode belongs to one open file. A lookup returns the last inode of the name if this inode belongs to no
  open file and is not reserved for another thread, and the file still has the size that the kernel was told. The
  kernel's pages of this inode then serve the next reader. Otherwise, the lookup returns a new inode. An open of an
  inode that belongs to an open file fails with ESTALE, and the kernel repeats the lookup. This lookup returns a new
  inode, which is reserved for the thread until the thread opens it.
- If only one thread can use the open file, as with `tail -f`, the answer to the thread's GETATTR has the larger size
  at once (`grow`): the thread cannot ask for the size and read at the same time. This happens on the trio thread.
- If other threads or processes may share the descriptor, a worker thread first drops the kernel's pages. Then it
  waits until each of these threads has left the kernel's read path (`logfs.mount.sharers`), and tells the kernel the
  larger size (`_grow_for_all`).

With an attribute timeout of 0, the kernel asks for attributes before each read, which costs one request per read.
With a longer timeout, the kernel keeps the size, and an append has to invalidate the attributes before the writer
gets its answer (`pop_stale`, which `Operations._grown` calls on the trio thread). The kernel then also drops answers
that are in flight, and a reader that waits for such an answer uses the previous size. The kernel may therefore keep a
size only if a reader that uses the previous size cannot be wrong, that is, if all of the following hold:

- The kernel was told the size at least `CONFIRMED_SECONDS` ago, and the size has not changed since.
- The size is in the answer to a GETATTR: attributes in the answer to a LOOKUP cannot be invalidated while the LOOKUP
  is in progress.
- The thread that has the file open is alone, so no other thread reads without asking for the size.
- Only writers of `append` and `.logfs/admin` make the log grow. This excludes the logs of committed offsets and of
  remote segments, which have many sources of appends, the logs that mirror a cluster, and all logs while a commit of
  staged files is decided but not done, because its appends may happen at any time.

The kernel never keeps the sizes of segment files, of the text of a topic, of ranges that are complete when they are
looked up, and of files in a read-only store. Files of the active segment, and texts opened by a thread that this
process cannot watch, use direct_io. The rules above hold for these files, too, because splice and sendfile use the
kernel's page cache even with direct_io. The mount does not implement FUSE's POLL, so poll(2) does
not wait for growth.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import pyfuse3
import trio

from logfs.errors import LogfsError
from logfs.format.tiered.metadata_record import TOPIC as METADATA_TOPIC
from logfs.mount import sharers
from logfs.mount.threads import run_in_thread
from logfs.store.groups import TOPIC as GROUPS_TOPIC

if TYPE_CHECKING:
    from logfs.log.read.reader import Reader
    from logfs.mount.nodes.growing import GrowingFile

# A size is confirmed if the kernel was told it at least this long ago, and it has not changed since. The answer with
# the size has then reached the kernel, which takes microseconds, so the kernel may keep the size.
CONFIRMED_SECONDS = 0.1
# For how long the kernel may keep a confirmed size, unless an append invalidates it.
KEEP_SECONDS = 3600.0
# For how many files `_grow_for_all` may run at the same time. The limit is high: a call that waits for the threads of
# one file must not delay other files.
_WAITING = 256
# When a mount stops, it answers requests for at most this long, so that calls of `_grow_for_all` can end.
_STOP_SECONDS = 20.0
# The pause (seconds) between two checks of whether a call of `_grow_for_all` is in progress.
_STOP_POLL_SECONDS = 0.01
# If more threads than this have asked about an inode, threads that `/proc` does not show are forgotten.
_MOST_THREADS = 64


class _KnownSize:
    """The size that the kernel was told for one inode, and the threads that use the inode."""

    def __init__(self, size: int, now: float) -> None:
        self.size = size
        # The time of the last change of the size, by trio's clock (seconds).
        self.since = now
        # The threads that have looked up the inode or asked for its attributes since the last `_grow_for_all`. Each
        # may still be processing an answer about the inode, or be reading the file.
        self.threads: set[int] = set()
        # The thread that opened the file when no handle was open, and the threads that have asked about it since.
        self.since_open: set[int] = set()
        # The thread that was told to repeat its lookup, and for which the inode is reserved; None if there is none.
        self.reserved_for: int | None = None
        # Held while the size grows for threads that share the inode.
        self.growing = trio.Lock()

    def note(self, thread: int) -> None:
        """Record a thread that looks up the inode or asks for its attributes."""
        self.threads.add(thread)
        self.since_open.add(thread)
        if len(self.threads) > _MOST_THREADS:
            self.threads = {other for other in self.threads if sharers.is_visible(other)}
            self.since_open &= self.threads


class GrowingSizes:
    """The sizes of growing files that the kernel was told. Used on the trio thread only (architecture.md, rule 6)."""

    def __init__(self) -> None:
        self._told: WeakKeyDictionary[GrowingFile, _KnownSize] = WeakKeyDictionary()
        self._kept: WeakKeyDictionary[Reader, set[int]] = WeakKeyDictionary()
        # The threads that were told to repeat a lookup and have not opened the file yet.
        self._sent_back: set[int] = set()
        self._waiting = trio.CapacityLimiter(_WAITING)
        self._is_stopped = False

    async def stop(self) -> None:
        """Stop telling the kernel larger sizes of shared files. Wait for calls of `_grow_for_all` in progress.

        Such a call waits for locked pages, which the kernel unlocks when the mount answers READ requests. So the
        mount must answer requests during `stop`. `stop` waits for 20 s at most.
        """
        self._is_stopped = True
        end = trio.current_time() + _STOP_SECONDS
        while self._waiting.borrowed_tokens and trio.current_time() < end:  # noqa: ASYNC110
            await trio.sleep(_STOP_POLL_SECONDS)

    def may_look_up(self, node: GrowingFile, size: int, thread: int) -> bool:
        """Return whether a lookup by `thread` may be answered with `node` and `size` (bytes).

        The result is True for a file whose size cannot change. For any other file, True also means that this method
        has recorded that the kernel is told this size. After False, the caller must make another node, with a new
        inode, for the same name, and call this method for that node.
        """
        if not node.is_growing:
            return True
        told = self._told.get(node)
        wanted = thread if thread in self._sent_back else None
        if told is None:
            told = self._told[node] = _KnownSize(size, trio.current_time())
            told.reserved_for = wanted
        elif told.size != size or node.handles or told.reserved_for != wanted:
            return False
        told.note(thread)
        return True

    def may_open(self, node: GrowingFile, thread: int) -> bool:
        """Return whether `thread` may open `node`. It may not if `node` can grow and belongs to an open file.

        After False, the caller must make the kernel repeat the lookup, which makes a node for this thread alone. Some
        names are not looked up again: `/dev/stdin`, for example, always leads to the same node. After a False, the
        next open by the same thread is therefore permitted for any node.
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
        """Return the size to tell the kernel in the answer to a GETATTR by `thread`, once it is safe to tell.

        `size` is the present size of the file in bytes. If it is larger than the size that the kernel was told, and
        other threads can share the file, this waits until these threads have left the kernel's read path. If `stop`
        was called, this does not wait for the threads, but returns the size that the kernel was told before.
        """
        if not node.is_growing:
            return size
        told = self._told.get(node)
        if told is None:
            told = self._told[node] = _KnownSize(size, trio.current_time())
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
        """Whether no thread but `thread` can use `node`; `asked` are the threads that have asked about the node.

        This holds if `thread` has the only handle, is the only thread in `asked`, and shares no descriptors.
        """
        openers = [handle.opener for handle in node.handles]
        return openers == [thread] and asked == {thread} and sharers.is_alone(thread)

    def timeout(self, node: GrowingFile, end_offset: int, thread: int) -> float:
        """Return for how many seconds the kernel may keep the size in the answer to a GETATTR by `thread`.

        The result is 0 if the kernel may not keep the size. `end_offset` is the log end offset that was read before
        the size was determined: if the log has grown since, the kernel may not keep the size.
        """
        told = self._told.get(node)
        if told is None or node.context.store.read_only:
            # A read-only store follows another process, whose appends do not invalidate sizes in this mount.
            return 0.0
        log = node.partition.log
        is_confirmed = (
            trio.current_time() - told.since >= CONFIRMED_SECONDS
            and log.state.log_end_offset == end_offset
        )
        if (
            not is_confirmed
            or not node.grows_by_appends
            or node.partition.topic in (GROUPS_TOPIC, METADATA_TOPIC)
            or log.config.logfs_mirror_source
            or node.context.store.commits.pending()
            or not self._is_alone(node, thread, told.since_open)
        ):
            return 0.0
        self._kept.setdefault(log, set()).add(node.inode)
        return KEEP_SECONDS

    def pop_stale(self, partition: Reader) -> set[int]:
        """Return the inodes of those files of `partition` whose sizes the kernel may still keep.

        Call this when the partition has grown. The caller must invalidate the attributes of each inode, because the
        next call does not return the inode again.
        """
        return self._kept.pop(partition, set()) if self._kept else set()


def _grow_for_all(node: GrowingFile, size: int, threads: set[int]) -> None:
    """Tell the kernel a larger size, after the threads that share the inode have stopped using its old pages.

    The kernel's pages are dropped first. A page that the kernel reads afterwards is valid, because READs are answered
    up to the new size already. Call this in a worker thread: it waits for the threads, which may take long.
    """
    with suppress(OSError):
        # `invalidate_inode` waits for the READs in progress. ENOENT: the kernel has forgotten the inode.
        pyfuse3.invalidate_inode(pyfuse3.InodeT(node.inode))
    threads = threads | {handle.opener for handle in [*node.handles]}
    sharers.wait_until_outside(sharers.sharers_of(threads))
    # An answer to a GETATTR would not be enough: the kernel ignores the size in it if another answer about the inode
    # has arrived since the request. A byte stored in the page cache beyond the kernel's size always raises this size.
    with suppress(LogfsError, OSError):
        # LogfsError: the end of a text view is damaged. OSError: the kernel has forgotten the inode.
        pyfuse3.notify_store(pyfuse3.InodeT(node.inode), size - 1, node.byte_at(size - 1))
