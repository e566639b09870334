"""`logfs` whose disk and locks are always busy: python -m tests.support.busy_mount mount -f …

Whatever the event loop of the mount reads is not in memory, and every lock that it takes has another owner, so each
call that might have to wait does wait. The compiled code counts as loaded from the beginning.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from logfs.cli import main
from logfs.log.disk.disk import Disk
from logfs.mount.protocol import Operations

if TYPE_CHECKING:
    import threading
    from contextlib import AbstractContextManager

    from logfs.log.disk.disk import File


def be_busy() -> None:
    """Have every `Disk` raise `WouldBlock` in the thread that must not wait."""
    hold, read = Disk.hold, Disk.read

    def busy_hold(
        disk: Disk, lock: threading.Lock | threading.RLock
    ) -> AbstractContextManager[None]:
        disk.check_may_block()
        return hold(disk, lock)

    def busy_read(disk: Disk, file: File, position: int, size: int) -> memoryview:
        disk.check_may_block()
        return read(disk, file, position, size)

    Disk.hold = busy_hold  # type: ignore[method-assign]
    Disk.read = busy_read  # type: ignore[method-assign]
    Operations.is_cold = property(lambda _: False, lambda _, is_cold: None)  # type: ignore[assignment]


if __name__ == "__main__":
    be_busy()
    sys.exit(main(sys.argv[1:]))
