"""Who may produce and who may consume: mode bits and owners of a partition's virtual files, kept with it."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING, NamedTuple

import orjson

from logfs.errors import Corrupt

if TYPE_CHECKING:
    from pathlib import Path

    from logfs.log.reader import Reader

# A plain file in the partition directory: Kafka ignores what ends in none of its suffixes (kafka-storage 1.1).
FILE_NAME = "logfs.modes"


class Access(NamedTuple):
    """Permission bits and owner of one file."""

    mode: int
    uid: int
    gid: int


class Modes:
    """The access of a partition directory ("") and of the files in it, by name.

    What was never set follows the directory: files that read give what the directory's bits allow of 0444, files
    that write of 0666, subdirectories of 0555. The directory itself begins with the mode and owner it has on the
    disk.
    """

    def __init__(self, partition: Reader) -> None:
        """`Corrupt` if the file is damaged."""
        # Not its directory: the partition may move to another.
        self._partition = partition
        disk = partition.disk
        found = disk.stat(partition.directory)
        self._default = Access(stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid)
        self._set: dict[str, Access] = {}
        if disk.exists(self._path):
            try:
                content = orjson.loads(disk.read_file(self._path))
                self._set = {name: Access(*map(int, access)) for name, access in content.items()}
            except (ValueError, TypeError, AttributeError) as error:
                raise Corrupt(
                    f"{self._path}: {error}; remove the file to go back to defaults"
                ) from None

    @property
    def _path(self) -> Path:
        return self._partition.directory / FILE_NAME

    def check_available(self) -> None:
        """Raise `LogDirFailed` where the partition's log directory has failed."""
        if self._partition.disk.failure is not None:
            raise self._partition.disk.failure

    def get(self, name: str, allowed: int = 0o777) -> Access:
        """The access of a file; `allowed` are the bits that its kind can have at the most by default."""
        found = self._set.get(name)
        if found is not None:
            return found
        directory = self._set.get("", self._default)
        return directory._replace(mode=directory.mode & allowed) if name else directory

    def set(self, name: str, access: Access) -> None:
        """Keep the access of a file, durably."""
        changed = {**self._set, name: access}
        content = {name: list(access) for name, access in changed.items()}
        self._partition.disk.replace_file(
            self._path, orjson.dumps(content, option=orjson.OPT_INDENT_2)
        )
        self._set = changed
