"""Permissions to produce and consume: mode bits and owners of a partition's virtual files, kept in `logfs.modes`."""

from __future__ import annotations

import stat
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, Protocol

import orjson

from logfs.errors import Corrupt
from logfs.locks import Level, make_lock

if TYPE_CHECKING:
    from pathlib import Path

    from logfs.log.disk.disk import Disk

# A broker ignores this file in a partition directory: its name has none of Kafka's suffixes (kafka-storage 1.1).
FILE_NAME = "logfs.modes"


class Access(NamedTuple):
    """Permission bits and owner of one file."""

    mode: int
    uid: int
    gid: int


class _Partition(Protocol):
    """What `PermissionTable` needs of a partition. Both loaded and unloaded partitions have these attributes."""

    @property
    def disk(self) -> Disk: ...

    @property
    def directory(self) -> Path: ...


class PermissionTable:
    """The `Access` of the virtual files in a partition's directory, by name; "" is the name of the directory itself.

    A virtual file or subdirectory whose access was never set has the owner and the mode bits of the partition's
    directory. The mode bits are limited to those that this kind of file may have, such as 0444 for a file that cannot
    be written. If the access of the directory itself was never set, its owner and mode bits are those of the
    directory on the disk. A read-only store reads the table again whenever another process has changed it.
    """

    def __init__(self, partition: _Partition) -> None:
        """Read the file `logfs.modes` of the partition, if there is one. Raises `Corrupt` if it is damaged."""
        # Keep the partition, not its directory, which changes when the partition is moved.
        self._partition = partition
        disk = partition.disk
        found = disk.stat(partition.directory)
        self._default = Access(stat.S_IMODE(found.mode), found.uid, found.gid)
        self._set: dict[str, Access] = {}
        # Held while the file is replaced: otherwise, of two simultaneous changes, one could be lost.
        self._changing = make_lock(Level.PERMISSIONS)
        self._seen = self._state_of_file()
        self._read()

    def _state_of_file(self) -> tuple[int, int]:
        """Return the inode number and mtime (ns) of `logfs.modes`, or (0, 0) without this file.

        Each change of the permissions replaces the file, so the result shows whether they have changed.
        """
        try:
            found = self._partition.disk.stat(self._path)
        except FileNotFoundError:
            return 0, 0
        return found.identity, found.mtime_ns

    def _read(self) -> None:
        try:
            content = orjson.loads(self._partition.disk.read_file(self._path))
            self._set = {name: Access(*map(int, access)) for name, access in content.items()}
        except FileNotFoundError:
            self._set = {}
        except (ValueError, TypeError, AttributeError) as error:
            raise Corrupt(
                f"{self._path}: is not a table of permissions: {error}; remove the file to go back to defaults"
            ) from None

    def _follow(self) -> None:
        """Read the file again if another process has replaced it. If the new file is damaged, keep the old table."""
        state = self._state_of_file()
        if state != self._seen:
            with suppress(Corrupt):
                self._read()
            self._seen = state

    @property
    def directory(self) -> Path:
        """The partition directory."""
        return self._partition.directory

    @property
    def _path(self) -> Path:
        return self.directory / FILE_NAME

    def check_available(self) -> None:
        """Raise `LogDirFailed` if the partition's log directory has failed."""
        if self._partition.disk.failure is not None:
            raise self._partition.disk.failure

    def get(self, name: str, allowed: int = 0o777) -> Access:
        """Return the access of the file `name`.

        If the file's access was never set, return that of the directory, with the mode bits limited to `allowed`.
        """
        disk = self._partition.disk
        if not disk.writable and not disk.is_remote:
            self._follow()
        found = self._set.get(name)
        if found is not None:
            return found
        directory = self._set.get("", self._default)
        return directory._replace(mode=directory.mode & allowed) if name else directory

    def set(self, name: str, access: Access) -> None:
        """Set the access of the file `name`, durably; the name "" stands for the directory itself."""
        with self._changing:
            changed = {**self._set, name: access}
            content = {name: list(access) for name, access in changed.items()}
            self._partition.disk.replace_file(
                self._path, orjson.dumps(content, option=orjson.OPT_INDENT_2)
            )
            self._set = changed
