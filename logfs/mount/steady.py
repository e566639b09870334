"""Which sizes the kernel may keep, so that reading a log that rests costs no requests, and none is ever stale.

With no timeout the kernel asks for the size before each read, which is always right, and a read of a cached file
then costs a request that it would not need. With a timeout, an append has to take the answer back
(`invalidate_inode`), and that has a price: the kernel then also drops the answers that are under way, and a reader
who waits for one goes by the size before it. So an answer may be kept only where the size before it was as good:

- it was told to the kernel already, a good while ago, and has not changed since;
- it was told by a GETATTR: an inode that is only being looked up cannot be taken back from;
- nobody but the writers of `append` and `.logfs/commit` makes the log grow: the committed offsets of groups come from
  everywhere, and a commit that is decided and not done may be done at any time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from logfs.store.groups import TOPIC as GROUPS_TOPIC

if TYPE_CHECKING:
    from logfs.log.reader import Reader
    from logfs.mount.nodes.text import TextFile

# How long a size must have been told unchanged before it may be kept; a reply takes microseconds to arrive.
CONFIRMED_SECONDS = 0.1
KEEP_SECONDS = 3600.0


class SteadySizes:
    """What the kernel was told of the sizes of growing files. Lives on the trio thread (rule 6)."""

    def __init__(self) -> None:
        self._told: WeakKeyDictionary[TextFile, tuple[int, float]] = WeakKeyDictionary()
        self._kept: WeakKeyDictionary[Reader, set[int]] = WeakKeyDictionary()

    def timeout(self, node: TextFile, size: int, end_offset: int, now: float) -> float:
        """For how many seconds the kernel may keep a size; `end_offset` is the log's end before it was asked for."""
        if node.partition.topic == GROUPS_TOPIC or node.context.store.commits.pending():
            return 0.0
        told_size, since = self._told.get(node, (-1, now))
        if told_size != size:
            self._told[node] = (size, now)
            return 0.0
        if now - since < CONFIRMED_SECONDS or node.partition.log.log_end_offset != end_offset:
            return 0.0
        self._kept.setdefault(node.partition.log, set()).add(node.inode)
        return KEEP_SECONDS

    def take_back(self, partition: Reader) -> set[int]:
        """The inodes whose sizes an append to a partition makes old; the kernel has to be told of each."""
        return self._kept.pop(partition, set()) if self._kept else set()
