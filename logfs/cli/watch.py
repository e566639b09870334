"""Reads the state that `status` and `top` show: that of a mount, from its files, or of a log directory, read-only."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from logfs.errors import InvalidStore
from logfs.log.disk.disk import TRIES, Gone

if TYPE_CHECKING:
    from collections.abc import Mapping

# A line of `.logfs/metrics`, `name{labels} value`. Only comment lines have another form.
_SAMPLE = re.compile(r"^([a-z_]+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")


class StoreSnapshot(NamedTuple):
    """The state of a store at one moment.

    `status` is the parsed `.logfs/status.json` of a mount. For a log directory it has the same keys, except those
    about the mount's daemon, such as `pid`. A write-behind mount has keys of its own, and no metrics. `metrics` has
    the samples as metric name -> labels -> value; labels are (name, value) pairs.
    """

    status: Mapping[str, Any]
    metrics: Mapping[str, Mapping[tuple[tuple[str, str], ...], float]]


class Source(Protocol):
    """A mount or a log directory that `status` and `top` read; `name` is its path."""

    name: str

    def look(self) -> StoreSnapshot:
        """Return the present status and metrics of the store."""

    def close(self) -> None:
        """Release the resources of the source. The caller must not use the source afterwards."""


def parse_metrics(text: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Return the samples of Prometheus text as name -> labels -> value; labels are (name, value) pairs."""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for name, labels, value in _SAMPLE.findall(text):
        pairs = tuple((key, _unescape(raw)) for key, raw in _LABEL.findall(labels))
        found.setdefault(name, {})[pairs] = float(value)
    return found


def _unescape(text: str) -> str:
    return _ESCAPED.sub(lambda match: "\n" if match[1] == "n" else match[1], text)


class MountSource:
    """A mount, read through its files `.logfs/status.json` and `.logfs/metrics`."""

    def __init__(self, path: str) -> None:
        self.name = path

    def look(self) -> StoreSnapshot:
        """Return the present status and metrics of the store.

        Raises `TimeoutError` if the daemon is stopped or waits for its disk, and `OSError` if it is dead or a file
        cannot be read.
        """
        from logfs.deadline import within
        from logfs.store.directory.mount_table import DEAD_ERRORS, PATIENCE_SECONDS

        try:
            return within(PATIENCE_SECONDS, self._look)
        except TimeoutError:
            words = "does not respond; its daemon is stopped or waiting for its disk"
            raise TimeoutError(errno.ETIMEDOUT, words, self.name) from None
        except OSError as error:
            if error.errno not in DEAD_ERRORS:
                raise
            words = f"its daemon is dead ({error.strerror}); 'logfs umount {self.name}' removes the mount"
            raise OSError(error.errno, words, self.name) from None

    def _look(self) -> StoreSnapshot:
        import json

        own = Path(self.name) / ".logfs"
        status = json.loads((own / "status.json").read_bytes())
        if "write_behind" in status:
            return StoreSnapshot(status, {})
        if "upkeep" not in status:
            # The daemon may be of an older release, whose status lacks these entries.
            status |= {"upkeep": None, "background": []}
        return StoreSnapshot(status, parse_metrics((own / "metrics").read_text()))

    def close(self) -> None:
        pass


class LogDirSource:
    """A log directory, opened read-only. Another process may write it at the same time."""

    def __init__(self, path: Path) -> None:
        from logfs.cli.common import recovery_progress
        from logfs.store.store import Store

        self.name = str(path)
        self._store = Store(path, read_only=True, progress=recovery_progress())

    def look(self) -> StoreSnapshot:
        from logfs.store.observe.metrics import metrics
        from logfs.store.observe.status import store_status

        for left in reversed(range(TRIES)):
            self._store.refresh()
            try:
                return StoreSnapshot(
                    store_status(self._store), parse_metrics(metrics(self._store).decode())
                )
            except Gone:
                if not left:
                    raise
        raise AssertionError("unreachable: the last attempt returns or raises")

    def close(self) -> None:
        self._store.close()


def mounts(*, write_behind: bool = False) -> list[str]:
    """Return the mountpoints of all mounts of stores, with `write_behind` also those of write-behind mounts.

    Bind mounts of a directory inside such a mount are left out.
    """
    from logfs.store.directory.mount_table import FILESYSTEM_TYPE, logfs_mounts

    return [
        path
        for path, mount in logfs_mounts().items()
        if mount.root == "/" and (write_behind or mount.kind == FILESYSTEM_TYPE)
    ]


def source(path: Path | None, *, write_behind: bool = False) -> Source:
    """Return a source for the mount, log directory or bucket at `path`; without a path, for the only mount.

    With `write_behind`, `path` may also be a write-behind mount.

    Raises `InvalidStore` if `path` is none of these. Without a path, raises `InvalidStore` if there is no mount or
    more than one.
    """
    from logfs.store.directory.recognition import PathKind, recognise

    if path is None:
        found = mounts()
        if len(found) != 1:
            which = ", ".join(found) or "none"
            raise InvalidStore(
                f"give a mount or a log directory; it may be left out only if one logfs is mounted (mounted: {which})"
            )
        return MountSource(found[0])
    # Compare the path before its symlinks are resolved: to resolve a mountpoint, the kernel asks the mount's daemon,
    # which may be stopped.
    for resolve in (os.path.abspath, os.path.realpath):
        absolute = resolve(path)
        if absolute in mounts(write_behind=write_behind):
            return MountSource(absolute)
    found_kind = recognise(path)
    if found_kind.kind is PathKind.EMPTY:
        # An empty directory may be a mountpoint on which nothing is mounted.
        raise found_kind.error(
            "; no logfs is mounted on this directory; mount a store on it, or give a log directory"
        )
    if found_kind.kind not in (PathKind.LOG_DIR, PathKind.BUCKET, PathKind.UNKNOWN):
        raise found_kind.error()
    return LogDirSource(path.absolute())
