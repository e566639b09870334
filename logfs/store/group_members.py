"""The members of a consumer group on one machine, and the assignment of partitions to them.

All members lock bytes of one file in a log directory. The kernel releases the locks of a member when its process
ends, even by a kill, so the other members notice. Each group has a range of 4,096 bytes, called its slots, and each
member locks the lowest free slot. The rank of a member is the number of locked slots below its own. The names of the
partitions are sorted and dealt out by rank: with two members, those at indexes 0, 2, 4 belong to the member of rank
0, and those at 1, 3, 5 to the member of rank 1. Each partition of a group also has a byte. A member locks this byte
before it reads the partition, and releases it after its last commit for the partition.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from typing import TYPE_CHECKING, NamedTuple

from logfs.errors import NotWritable
from logfs.store.directory.lock import FLOCK

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from typing import Self

FILE_NAME = "logfs.members"
"""The file in a log directory whose bytes the members lock. It has no content, and Kafka ignores it."""

_MOST_MEMBERS = 4096


class Place(NamedTuple):
    """The progress of a group in a partition.

    `taken` is the next offset to consume, and `committed` the committed offset, -1 if there is none.
    """

    taken: int
    committed: int


class GroupMember:
    """A member of a group: the partitions that it reads now, its progress in each of them, and its commits.

    `places` has the progress in the partitions that this member has locked. In `join`, a member releases a partition
    only after it has committed its progress in the partition. For example, a second member joins a group whose only
    member reads a-0 and a-1. At its next `join`, the first member commits its progress in a-1, and releases a-1. At
    its own next `join`, the second member locks a-1, and continues from the committed offset.
    """

    def __init__(
        self,
        log_dir: Path,
        group: str,
        begin: Callable[[str], Place],
        commit: Callable[[dict[str, int]], object],
    ) -> None:
        """Join a group. All members must give the same `log_dir`. Raises the errors of `Membership`.

        `begin` returns the `Place` at which this member begins to read a partition. `commit` gets offsets by
        partition, and commits all or none of them.
        """
        self.places: dict[str, Place] = {}
        self._membership = Membership(log_dir, group)
        self._begin = begin
        self._commit = commit

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the group, without a commit, and release all partitions."""
        self.places = {}
        self._membership.close()

    def join(self, partitions: Sequence[str], release: Callable[[str], bool]) -> None:
        """Release the partitions that are now assigned to other members, and lock those assigned to this member.

        `partitions` are all partitions that the group reads. Before a partition is released, `release` is called with
        its name. `release` must commit this member's progress in the partition, and return whether the commit
        succeeded; if not, this member keeps the partition. A partition that its previous owner has not released yet
        is left to the next call. Raises the errors of `begin`; the partition is then released.
        """
        mine = {*self._membership.assigned(partitions)}
        for name in [*self.places]:
            if name not in mine and release(name):
                self.forget(name)
        for name in partitions:
            if name in mine and name not in self.places and self._membership.take(name):
                try:
                    self.places[name] = self._begin(name)
                except BaseException:
                    self._membership.release(name)
                    raise

    def has_all(self, partitions: Sequence[str]) -> bool:
        """Whether this member has locked exactly those of `partitions` that are assigned to it."""
        return {*self.places} == {*self._membership.assigned(partitions)}

    def forget(self, partition: str) -> None:
        """Release a partition without a commit."""
        self.places.pop(partition, None)
        self._membership.release(partition)

    def advance(self, partition: str, taken: int) -> None:
        """Note that the next offset to consume in a partition is `taken`.

        If it is lower than before, the log was truncated. The last commit may then have been skipped, because its
        offset was above the log end. So `committed` becomes -1, and the next `commit` commits any offset.
        """
        place = self.places[partition]
        committed = place.committed if taken >= place.taken else -1
        self.places[partition] = Place(taken, committed)

    def commit(self, offsets: Mapping[str, int]) -> None:
        """Commit offsets by partition, all or none. An offset that equals the committed one is left out."""
        changed = {
            name: offset
            for name, offset in offsets.items()
            if offset != self.places[name].committed
        }
        if changed:
            self._commit(changed)
        for name, offset in changed.items():
            self.places[name] = self.places[name]._replace(committed=offset)


class Membership:
    """The locks of one member of a group. `close`, or the end of the process, releases them."""

    def __init__(self, log_dir: Path, group: str) -> None:
        """Join a group.

        Raises `NotWritable` if the file with the locks cannot be opened for writing, or if the group has 4,096
        members.
        """
        self._group = group
        path = log_dir / FILE_NAME
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o660)
        except OSError as error:
            raise NotWritable(
                f"{path}: cannot be opened for writing ({error.strerror}), but each member of a group must lock a "
                "part of it; give this user the permission to write it"
            ) from None
        # Unlike `fd`, a file object is closed when it is no longer referenced. So a member leaves its group even if
        # nobody calls `close`.
        self._file = open(fd, "r+b", buffering=0)  # noqa: SIM115
        self._slots = self._place("") & ~(_MOST_MEMBERS - 1)
        try:
            self._slot = next(
                (n for n in range(_MOST_MEMBERS) if self._lock(self._slots + n, fcntl.F_WRLCK)), -1
            )
            if self._slot < 0:
                raise NotWritable(
                    f"group {group}: has {_MOST_MEMBERS} members already; end one to start another"
                )
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the group, and release all partitions. Closing twice is harmless."""
        self._file.close()

    def assigned(self, partitions: Sequence[str]) -> Sequence[str]:
        """Return those of `partitions` that belong to this member, given the present members of the group."""
        others = self._other_slots()
        rank = sum(slot < self._slot for slot in others)
        return sorted(partitions)[rank :: len(others) + 1]

    def take(self, partition: str) -> bool:
        """Lock a partition; return False if another member still has it."""
        return self._lock(self._place(partition), fcntl.F_WRLCK)

    def release(self, partition: str) -> None:
        """Unlock a partition, so that another member can read it."""
        self._lock(self._place(partition), fcntl.F_UNLCK)

    def _place(self, name: str) -> int:
        """Return the position in the file of the byte to lock for the partition `name` in this group.

        The position is a hash of both names. With "" as `name`, it determines the group's slots: the range begins at
        this position, rounded down to a multiple of 4,096.
        """
        digest = hashlib.blake2b(f"{self._group}\0{name}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> 2

    def _lock(self, place: int, kind: int) -> bool:
        try:
            fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, FLOCK.pack(kind, os.SEEK_SET, place, 1, 0))
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            return False
        return True

    def _other_slots(self) -> list[int]:
        """Return the numbers of the slots that other members have locked."""
        found: list[int] = []
        ranges = [(self._slots, self._slots + _MOST_MEMBERS)]
        while ranges:
            start, end = ranges.pop()
            if start == end:
                continue
            wanted = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, end - start, 0)
            kind, _, at, length, _ = FLOCK.unpack(
                fcntl.fcntl(self._file, fcntl.F_OFD_GETLK, wanted)
            )
            if kind != fcntl.F_UNLCK:
                # The kernel returns just one of the locks in the range, so search the ranges before and after this
                # lock, too.
                found += [place - self._slots for place in range(at, at + length)]
                ranges += [(start, at), (at + length, end)]
        return found
