"""The inodes that the kernel knows, with their nodes and lookup counts."""

from __future__ import annotations

import errno
from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from logfs.mount.errnos import refuse

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class NumberedNode(Protocol):
    """The fields that `InodeTable` and `Handlers` need of a node.

    `inode` is 0 until the table assigns a number. The kernel may keep the node's name for `entry_timeout` seconds and
    its attributes for `attr_timeout` seconds. `is_evictable` means that a mount may have very many such nodes, so
    that the kernel may be asked to forget the name of this one.
    """

    inode: int
    entry_timeout: float
    attr_timeout: float
    is_evictable: bool

    @property
    def path(self) -> str: ...


N = TypeVar("N", bound=NumberedNode)

# The kernel remembers a name that was looked up until it needs the memory. If the table has more evictable nodes than
# this, the kernel is asked to forget the names of the oldest, so that a scan of a million offsets does not leave a
# million nodes in the table.
_MOST_EVICTABLE = 20_000
# How many names the kernel is asked to forget at a time. With fewer names at a time, pyfuse3's notification thread
# would be woken more often, and each wake-up takes as long as a lookup.
_EVICTED = 256


class InodeTable(Generic[N]):
    """The nodes by inode number. Only the trio thread uses it (architecture.md, rule 6).

    A node gets its inode number before the kernel gets the first answer about it. The table keeps the node until the
    kernel has forgotten every lookup of the node.
    """

    def __init__(self, root: N, root_inode: int) -> None:
        root.inode = root_inode
        self._root_inode = root_inode
        self._nodes: dict[int, N] = {root_inode: root}
        self._lookups: dict[int, int] = {root_inode: 1}
        self._next_inode = root_inode + 1
        self._evictable: OrderedDict[int, None] = OrderedDict()

    def __iter__(self) -> Iterator[N]:
        return iter(list(self._nodes.values()))

    def get(self, inode: object) -> N | None:
        """Return the node of an inode; None if the kernel knows no such inode."""
        return self._nodes.get(inode) if isinstance(inode, int) else None

    def node(self, inode: int) -> N:
        """Return the node of an inode. Raises `OSError` (ESTALE) if there is none."""
        node = self._nodes.get(inode)
        if node is None:
            raise refuse(
                errno.ESTALE, f"inode {inode} does not exist any more; open its path again"
            )
        return node

    def number(self, node: N) -> None:
        """Assign the next free inode number to a node, unless it has a number."""
        if not node.inode:
            node.inode = self._next_inode
            self._next_inode += 1

    def remember(self, node: N) -> list[N]:
        """Count one more lookup of a node. The caller sends the kernel an answer that contains the node.

        Returns the nodes whose names the caller should ask the kernel to forget: some of the oldest nodes with
        `is_evictable`, if the table has more than 20,000 of these, else none.
        """
        self._nodes[node.inode] = node
        self._lookups[node.inode] = self._lookups.get(node.inode, 0) + 1
        if not node.is_evictable:
            return []
        self._evictable[node.inode] = None
        self._evictable.move_to_end(node.inode)
        if len(self._evictable) <= _MOST_EVICTABLE:
            return []
        oldest = [self._evictable.popitem(last=False)[0] for _ in range(_EVICTED)]
        return [self._nodes[inode] for inode in oldest if inode in self._nodes]

    def forget(self, counts: Iterable[tuple[int, int]]) -> None:
        """Subtract the lookups that the kernel has forgotten, given as (inode, count).

        Drops each node whose lookups are all forgotten, except the root.
        """
        for inode, count in counts:
            left = self._lookups.get(inode, 0) - count
            if left > 0 or inode == self._root_inode:
                self._lookups[inode] = max(left, 1)
                continue
            self._lookups.pop(inode, None)
            self._nodes.pop(inode, None)
            self._evictable.pop(inode, None)
