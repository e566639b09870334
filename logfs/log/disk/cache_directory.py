"""The user's cache directory, `$XDG_CACHE_HOME/logfs` (by default below `~/.cache`), which processes share."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logfs.log.disk.disk import Disk


def cache_directory(kind: str) -> Path | None:
    """Return the directory for one kind of cache, such as "text"; None if the user has no home directory."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(home):
        home = os.path.expanduser("~/.cache")
    return Path(home, "logfs", kind) if os.path.isabs(home) else None


def private_name(path: Path) -> Path:
    """Return the path of a temporary file beside `path`. No other thread or process gets the same path."""
    return path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")


def remove_oldest(disk: Disk, home: Path, limit_bytes: int) -> None:
    """Remove the files with the oldest mtimes from the directory `home`, until at most `limit_bytes` are left."""
    found = []
    for entry in disk.scan(home):
        # Another process may have removed the file meanwhile.
        with suppress(FileNotFoundError):
            status = disk.stat(home / entry.name)
            if entry.is_file:
                found.append((status.mtime_ns, status.size_bytes, entry.name))
    size = sum(size for _, size, _ in found)
    for _, length, name in sorted(found):
        if size <= limit_bytes:
            break
        disk.unlink(home / name)
        size -= length
