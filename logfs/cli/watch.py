"""What `status` and `top` look at: a mount, through its own files, or log directories, which they open to read."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from logfs.errors import InvalidStore
from logfs.log.files import TRIES, Gone

if TYPE_CHECKING:
    from collections.abc import Mapping

# name{labels} value: what `.logfs/metrics` is made of, but for its comments.
_SAMPLE = re.compile(r"^([a-z_]+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")


class Look(NamedTuple):
    """What was seen at one moment: `status.json`, and the metrics as name -> labels -> value."""

    status: Mapping[str, Any]
    metrics: Mapping[str, Mapping[tuple[tuple[str, str], ...], float]]


class Source(Protocol):
    """Something to look at again and again."""

    name: str

    def look(self) -> Look:
        """How it is now."""

    def close(self) -> None:
        """Give back what it holds."""


def parse_metrics(text: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """The samples of Prometheus text."""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for name, labels, value in _SAMPLE.findall(text):
        pairs = tuple((key, _unescape(raw)) for key, raw in _LABEL.findall(labels))
        found.setdefault(name, {})[pairs] = float(value)
    return found


def _unescape(text: str) -> str:
    return _ESCAPED.sub(lambda match: "\n" if match[1] == "n" else match[1], text)


class Mount:
    """A mount."""

    def __init__(self, path: str) -> None:
        self.name = path

    def look(self) -> Look:
        """As `Source.look`; `TimeoutError` from a daemon that is stopped, or waits for its disk."""
        from logfs.store.mount_table import PATIENCE_SECONDS, within

        try:
            return within(PATIENCE_SECONDS, self._look)
        except TimeoutError:
            words = "does not answer; its daemon is stopped, or waits for its disk"
            raise TimeoutError(errno.ETIMEDOUT, words, self.name) from None

    def _look(self) -> Look:
        import json

        own = Path(self.name) / ".logfs"
        status = json.loads((own / "status.json").read_bytes())
        if "upkeep" not in status:
            # A daemon that was started from an older release, and tells less.
            status |= {"upkeep": None, "background": []}
        return Look(status, parse_metrics((own / "metrics").read_text()))

    def close(self) -> None:
        pass


class LogDir:
    """A log directory, opened to read beside whoever writes it."""

    def __init__(self, path: Path) -> None:
        from logfs.cli.common import recovery_progress
        from logfs.store.store import Store

        self.name = str(path)
        self._store = Store(path, read_only=True, progress=recovery_progress())

    def look(self) -> Look:
        from logfs.store.metrics import metrics
        from logfs.store.status import store_status

        for left in reversed(range(TRIES)):
            self._store.refresh()
            try:
                return Look(store_status(self._store), parse_metrics(metrics(self._store).decode()))
            except Gone:
                if not left:
                    raise
        raise AssertionError("the last try returns or raises")

    def close(self) -> None:
        self._store.close()


def mounts() -> list[str]:
    """The mountpoints of all mounts of ours; a bind mount of a directory in one is none."""
    from logfs.store.mount_table import logfs_mounts

    return [path for path, mount in logfs_mounts().items() if mount.root == "/"]


def source(path: Path | None) -> Source:
    """The mount or log directory of that path; without one, the only mount there is."""
    from logfs.store.recognition import Kind, recognise

    if path is None:
        found = mounts()
        if len(found) != 1:
            which = ", ".join(found) or "none is mounted"
            raise InvalidStore(f"which mount? name it, or a log directory ({which})")
        return Mount(found[0])
    # In this order: to resolve a mountpoint is to ask its daemon, which may be stopped.
    for resolve in (os.path.abspath, os.path.realpath):
        absolute = resolve(path)
        if absolute in mounts():
            return Mount(absolute)
    found_kind = recognise(path)
    if found_kind.kind is Kind.EMPTY:
        # It may be a mountpoint that nothing is mounted on.
        raise found_kind.error("; nothing of ours is mounted there")
    if found_kind.kind not in (Kind.LOG_DIR, Kind.UNKNOWN):
        raise found_kind.error()
    return LogDir(Path(path).absolute())
