"""The owner of a bucket: the only store that may change the objects below the bucket's prefix.

A copy of a log directory, a restored backup or a cloned machine has metadata for the same objects. Two such stores
under one prefix would delete each other's segments. So the object `logfs.owner` lists the log directories of the
owner, each with a token, and each log directory has its token in a file `logfs.owner`. The file also contains its own
inode number, which is wrong in a copy of the file. The tokens are replaced before each copy or deletion (`claim`).
So a store that continues from an older state of its disk, such as a restored snapshot, has an outdated token.
"""

from __future__ import annotations

import json
import os
import zlib
from typing import TYPE_CHECKING, Any

from logfs.errors import NotWritable, RemoteStorageError
from logfs.locks import Level, make_lock
from logfs.store.directory.lease import LeasedLogDir
from logfs.store.directory.mark import Mark, parse_object, read_mark, write_mark

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from logfs.log.remote.tiered_disk import TieredDisk
    from logfs.store.directory.log_dir import LogDir
    from logfs.store.registry import PartitionRegistry

FILE_NAME = "logfs.owner"
"""The name of the file in a log directory, and the key of the object below the prefix of the bucket."""

_VERSION = 1
_MOST_BYTES = 1 << 20


class BucketOwner:
    """Finds out whether a store owns its bucket, and claims the bucket. Any thread may use it.

    Methods that read the bucket raise `InvalidStore`, `RemoteStorageError` and `OSError`.
    """

    def __init__(self, registry: PartitionRegistry, disk: Callable[[], TieredDisk]) -> None:
        """Make the object; nothing is read yet. `disk` returns the disk of the bucket, or raises `InvalidStore`."""
        self._registry = registry
        self._disk = disk
        # Held while the tokens in the log directories and in the bucket are read and replaced.
        self._claiming = make_lock(Level.OWNER)
        # Whether the last `claim` or `take_over` succeeded; and why it was refused, if another store is or may be the
        # owner, otherwise "".
        self.is_claimed = False
        self.refusal = ""

    def claim(self) -> None:
        """Make sure that this store owns the bucket: become the owner if there is none.

        Then replaces the tokens, which the owner has in its log directories and in the bucket. This must be called
        before objects are stored or deleted. Also raises `NotWritable` if another store is the owner, or if a log
        directory of this store is a copy of one of the owner's.
        """
        with self._claiming:
            for _ in range(2):
                members = self._members()
                self.refusal = self._why_not(members)
                self.is_claimed = not self.refusal
                if self.refusal:
                    raise NotWritable(self.refusal)
                if self._put(members):
                    return
            self.is_claimed = False
        raise RemoteStorageError(
            f"{self._disk().root}: the object {FILE_NAME}, which names the store that owns the bucket, exists but "
            "cannot be read; give the credentials that logfs uses the permission to read it"
        )

    def take_over(self) -> None:
        """Become the owner of the bucket in place of another store, which then no longer changes the bucket."""
        with self._claiming:
            self._put({})
            self.is_claimed, self.refusal = True, ""

    def look(self) -> str:
        """Return why this store must not change the bucket; "" if it is the owner, or if no owner is known."""
        return self._why_not(self._members())

    def is_copy(self) -> bool:
        """Whether at least one log directory of this store is a copy, as its file `logfs.owner` shows.

        This does not read the bucket. Raises `OSError`.
        """
        return any(mark.is_copy for mark in self._marks().values())

    def _why_not(self, members: Mapping[str, Any] | None) -> str:
        if members is None:
            return ""
        marks = self._marks()
        copies, known = [], False
        for log_dir, mark in marks.items():
            number, tokens = _of(mark, "id"), (_of(mark, "token"), _of(mark, "previous"))
            token = _of(members.get(number), "token")
            is_known = token != "" and token in tokens
            known |= is_known
            if mark.is_copy or (number in members and not is_known):
                copies.append(str(log_dir.path))
        if known and not copies:
            return ""
        owners = ", ".join(_of(each, "log_dir") for each in members.values())
        here = " ".join(str(each.path) for each in self._log_dirs())
        why = ""
        if copies:
            why = f"{', '.join(copies)} is a copy, was restored, or was moved to another disk, "
        return (
            f"{self._disk().root}: belongs to the log directory {owners}; {why}so nothing in the bucket is changed "
            f"from {here}. Set another remote.storage.prefix or, if the other log directory is not used any more, "
            f"run 'logfs tier --take-over {here}'"
        )

    def _log_dirs(self) -> list[LogDir]:
        return [each for each in self._registry.working if not isinstance(each, LeasedLogDir)]

    def _marks(self) -> dict[LogDir, Mark]:
        """Return the content of the file `logfs.owner` of each log directory that has this file.

        The file has the `id` of the log directory in the bucket, its `token`, and its `previous` token. A log
        directory with a damaged file counts as a copy of another log directory.
        """
        marks = {each: read_mark(each.disk, each.path / FILE_NAME) for each in self._log_dirs()}
        return {log_dir: mark for log_dir, mark in marks.items() if mark is not None}

    def _members(self) -> dict[str, Any] | None:
        """Return the entries in the object `logfs.owner` by log directory id.

        Returns None if the object is missing, or if the credentials do not permit to read it.
        """
        from logfs.log.remote.object_store import AccessDenied

        disk = self._disk()
        try:
            data = bytes(disk.objects.get(disk.place + FILE_NAME, 0, _MOST_BYTES))
        except (FileNotFoundError, AccessDenied):
            # S3 also answers AccessDenied for a missing object, if the credentials do not permit listing the bucket.
            return None
        lines, _, crc = data.rstrip(b"\n").rpartition(b"\n")
        members = parse_object(lines).get("members")
        if crc != _crc_of(lines) or not isinstance(members, dict):
            # Raise an error after which callers retry: perhaps only the answer was damaged, on its way here.
            raise RemoteStorageError(
                f"{disk.objects.url(disk.place + FILE_NAME)}: is damaged, so the owner of the bucket is unknown; if "
                "this persists, replace it with 'logfs tier --take-over'"
            )
        return members

    def _put(self, members: Mapping[str, Any] | None) -> bool:
        """Give each log directory of this store a new token, and write `members` with these tokens to the bucket.

        `members` are the entries in the object `logfs.owner`. Returns True if this object was written. A log
        directory gets the new token before the bucket does, and keeps the previous one: after a crash, the bucket has
        one of the two.

        `members` is None if the object is missing or cannot be read. Then it may exist and have the present tokens,
        so a log directory that has a token keeps it, unless the directory is a copy. The object is written only if
        it is missing; otherwise False is returned.
        """
        disk, marks = self._disk(), self._marks()
        listed = dict(members or {})
        for log_dir in self._log_dirs():
            mark = marks.get(log_dir)
            if members is None and mark is not None and not mark.is_copy:
                # Keep this token: perhaps the object exists and has this token, but cannot be read.
                number, token = _of(mark, "id"), _of(mark, "token")
            else:
                number = _of(mark, "id") or os.urandom(8).hex()
                token = os.urandom(16).hex()
                told = {
                    "version": _VERSION,
                    "id": number,
                    "token": token,
                    "previous": _of(listed.get(number), "token"),
                }
                write_mark(log_dir.disk, log_dir.path / FILE_NAME, told)
            listed[number] = {"token": token, "log_dir": f"{os.uname().nodename}:{log_dir.path}"}
        key = disk.place + FILE_NAME
        lines = json.dumps({"version": _VERSION, "members": listed}, indent=1).encode()
        data = b"%s\n%s\n" % (lines, _crc_of(lines))
        return disk.objects.put(key, lambda: [data], if_absent=members is None)


def _crc_of(lines: bytes) -> bytes:
    return b"%08x" % zlib.crc32(lines)


def _of(known: object, name: str) -> str:
    """Return the string field `name` of a mark, or of an entry in the object `logfs.owner`; "" if it is missing."""
    told = known.told if isinstance(known, Mark) else known
    found = told.get(name) if isinstance(told, dict) else None
    return found if isinstance(found, str) else ""
