"""Copies of a cluster's topics: the command that mirrors them, and what is in their files."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from logfs.store.store import Store

if TYPE_CHECKING:
    from pathlib import Path

    from logfs.format.batches.record import Record


class MirrorCommand:
    """`logfs mirror` in a process of its own."""

    def __init__(self, servers: str, log_dir: Path, *words: str) -> None:
        self._command = [sys.executable, "-m", "logfs", "mirror", "--from", servers, *words]
        self._command.append(str(log_dir))
        self.process = self.start()

    def start(self) -> subprocess.Popen[str]:
        """Start it, again if it has ended."""
        self.process = subprocess.Popen(self._command, stderr=subprocess.PIPE, text=True)
        return self.process

    def end(self, number: int = signal.SIGINT) -> str:
        """End it by a signal, and return what it has told."""
        self.process.send_signal(number)
        return self.process.communicate(timeout=60)[1]


def log_bytes(directory: Path, start: int = 0) -> bytes:
    """Return the bytes of all segments of a partition that end above an offset."""
    files = sorted(directory.glob("*.log"))
    bases = [int(file.stem) for file in files]
    kept = [f for f, after in zip(files, [*bases[1:], 1 << 62], strict=True) if after > start]
    return b"".join(file.read_bytes() for file in kept)


def values(log_dir: Path, name: str) -> list[bytes | None]:
    """Return the values that a reader beside the mirror finds in a partition; none if it does not exist yet."""
    if not (log_dir / name).exists():
        return []
    with Store(log_dir, read_only=True) as store:
        return [record.value for record in store[name].read()] if name in store else []


def without_epochs(directory: Path) -> list[bytes]:
    """Return the batches of a partition directory, without their leader epochs."""
    with Store(directory.parent, read_only=True) as store:
        found = [bytearray(batch.data) for batch in store[directory.name].batches(0)]
    for data in found:
        data[12:16] = bytes(4)
    return [bytes(data) for data in found]


def contents(records: list[Record]) -> list[tuple[object, ...]]:
    """Return what a producer gives of records: all but their offsets, and what their timestamps mean."""
    return [(each.value, each.key, each.headers, each.timestamp) for each in records]
