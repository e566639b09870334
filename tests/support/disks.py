"""Disks that stop or count the calls of a store."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from logfs.log.disk.disk import Disk

if TYPE_CHECKING:
    from logfs.log.disk.disk import File


class HeldDisk(Disk):
    """A disk whose syncs of .log files wait until they are released; it counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()
        self.released.set()
        self.syncs = 0

    def sync(self, file: File) -> None:
        if file.path.suffix == ".log":
            self.syncs += 1
            assert self.released.wait(60)
        super().sync(file)
