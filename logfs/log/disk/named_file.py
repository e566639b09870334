"""A base class for objects with a path, which stores the path as two strings to save memory."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from logfs.log.disk.bucket_path import as_path

if TYPE_CHECKING:
    from pathlib import Path


class NamedFile:
    """The base class of objects with a `path`, such as segments and indexes.

    The path is kept as two strings, which take less memory than a `Path`: a store may have 100,000 segments, with
    five files each. Each access to `path` makes a new `Path`. All files in a directory share one string for the
    directory.
    """

    _place: tuple[str, str]

    @property
    def path(self) -> Path:
        """The path of the file; it changes when the file or its directory is renamed."""
        directory, name = self._place
        return as_path(directory) / name

    @path.setter
    def path(self, path: Path) -> None:
        self.put(path.parent, path.name)

    def put(self, directory: Path, name: str) -> None:
        """Set the path to `directory / name`."""
        # Use one assignment, so that other threads see either the old path or the new one.
        self._place = (sys.intern(str(directory)), name)
