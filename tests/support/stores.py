"""Stores in tests: a clock that stands still, the audit, settings, and the contents of log directories."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from logfs.store.observe.check import Severity, check

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logfs.store.store import Store


class Clock:
    """A clock that changes only when a test changes `now_ms`; ms since the epoch."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


def assert_clean(*log_dirs: Path) -> None:
    """Assert that the audit finds no error."""
    findings = [finding for finding in check(log_dirs) if finding.severity is Severity.ERROR]
    assert not findings, "\n".join(map(str, findings))


def locks_below(directory: Path) -> list[str]:
    """Return the kernel's locks on files below a directory, as lines of /proc/locks."""
    inodes = {str(path.stat().st_ino) for path in directory.rglob("*")}
    table = Path("/proc/locks").read_text().splitlines()
    rows = [line.split()[1:] for line in table]
    return [" ".join(row) for row in rows if row[4].split(":")[-1] in inodes]


def fingerprint(path: Path) -> dict[str, object]:
    """Return the content hash, size, mode and mtime of each file below a path, and the entries of each directory."""
    found: dict[str, object] = {}
    for root, directories, files in os.walk(path):
        status = os.stat(root)
        found[root] = (sorted(directories), sorted(files), status.st_mtime_ns, status.st_mode)
        for name in files:
            file = os.path.join(root, name)
            status = os.stat(file)
            with open(file, "rb") as opened:
                digest = hashlib.sha256(opened.read()).hexdigest()
            found[file] = (digest, status.st_mtime_ns, status.st_size, status.st_mode)
    return found


def errors_of(log_dirs: Path | Sequence[Path]) -> list[str]:
    """Return the errors that the audit finds."""
    found = check(log_dirs) if log_dirs else ()
    return [str(each) for each in found if each.severity is Severity.ERROR]


def abandon(store: Store) -> None:
    """Leave a store as if its process had died: close nothing, and release only its locks, as the system does."""
    store.leave()


def set_topic(store: Store, topic: str, **settings: object) -> None:
    for name, value in settings.items():
        store.settings.set_topic(topic, name.replace("_", "."), str(value))
