"""Makes the kernel send the bytes that writers have left in its page cache, every `linger_ms`.

The kernel does not tell when a write begins to fill the page cache, and would keep a page for up to 30 s. `syncfs`
makes it send all pages, at a cost that does not depend on the number of open files. One such call is a round.

If nothing was written to a file for some rounds, the kernel is made to forget the file's attributes, and the file
becomes idle. At the next write(2) the kernel asks for the attributes first. This request tells the mount that the
file may have new bytes (`Linger.wake`). While all open files are idle, there is about one round a second; while no
file is open for writing, there is none.
"""

from __future__ import annotations

import ctypes
import logging
import os
from contextlib import suppress
from typing import TYPE_CHECKING

import pyfuse3
import trio

from logfs.mount.mounting import forget_attributes
from logfs.mount.threads import run_in_thread

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger(__name__)

# After `_FORGOTTEN_AFTER` rounds without new bytes in a file, the kernel is made to forget the file's attributes.
# After more than `_QUIET_AFTER` such rounds, the file is idle. The rounds in between send the bytes of a write(2)
# that had got the attributes before the kernel forgot them.
_FORGOTTEN_AFTER = 2
_QUIET_AFTER = 5
# The longest pause between rounds while a file is open for writing, but all files are idle.
_IDLE_SECONDS = 1.0
# The most rounds when the mount stops. A round may have to be repeated, because a write(2) that has begun may still
# add bytes during the round. New calls of write(2) fail.
_MOST_LAST_ROUNDS = 10


class Linger:
    """Makes the kernel send the written bytes in rounds (`sync`), and counts the rounds in `rounds`.

    Only the trio thread may call the public methods.

    `stop` sets `is_stopping`. From then on, the mount answers requests for attributes of open files with an error, so
    that each new write(2) fails.
    """

    def __init__(self, linger_ms: int) -> None:
        self.rounds = 0
        self.is_stopping = False
        self._seconds = linger_ms / 1000
        self._mountpoint: Path | None = None
        self._device = 0
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._lock = trio.Lock()
        # For each open file that is not idle, by inode: the number of rounds since the file's last new bytes.
        self._active: dict[int, int] = {}
        self._open: set[int] = set()
        self._woken = trio.Event()

    def start(self, mountpoint: Path, device: int) -> None:
        """Set the mountpoint and the `st_dev` of the mount. Rounds begin after this call, once a file is open."""
        self._mountpoint = mountpoint
        self._device = device
        self._woken.set()

    def wake(self, inode: int) -> None:
        """Note that an open file has new bytes or can get some soon, so that `run` makes rounds every `linger_ms`."""
        self._open.add(inode)
        self._active[inode] = 0
        self._woken.set()

    def forget(self, inode: int) -> None:
        """Note that a file was closed. While no file is open, `run` makes no rounds."""
        self._open.discard(inode)
        self._active.pop(inode, None)

    async def wait_for_round(self, inode: int) -> None:
        """If no file except `inode` is open, wait for the end of a round that is in progress.

        A round has the root of the mount open for a moment. Without this wait, an `umount` right after the last
        close(2) could fail with EBUSY.
        """
        if self._open <= {inode}:
            async with self._lock:
                pass

    async def run(self) -> None:
        """Make the kernel send the written bytes, by calls of `sync`, until the mount stops.

        While a file is open, `sync` is called every `linger_ms`, or less often while all open files are idle.
        """
        while not self.is_stopping:
            while self._mountpoint is None or not self._open:
                await self._woken.wait()
                self._woken = trio.Event()
            if not self._active:
                self._woken = trio.Event()
                with trio.move_on_after(_IDLE_SECONDS):
                    await self._woken.wait()
            end = trio.current_time() + self._seconds
            await self.sync()
            await trio.sleep_until(end)

    async def stop(self) -> None:
        """Make each further write(2) fail, then make the kernel send all bytes for the last time.

        After `stop` no round begins, because a round would wait for answers that a stopped mount does not give.
        """
        self.is_stopping = True
        for inode in self._open:
            forget_attributes(inode)
        async with self._lock:
            for _ in range(_MOST_LAST_ROUNDS):
                self._active.clear()
                await run_in_thread(self._sync)
                # With FUSE, syncfs returns before the mount has answered. `_invalidate` waits for the answers.
                await run_in_thread(self._invalidate)
                if not self._active:
                    return

    async def sync(self) -> None:
        """Make the kernel send to this mount the bytes that the kernel has in its page cache now.

        `sync` may return before the mount has answered. The bytes are not made durable.
        """
        for inode, rounds in self._active.items():
            if rounds == _FORGOTTEN_AFTER:
                forget_attributes(inode)
        asked = list(self._active)
        async with self._lock:
            if self.is_stopping:
                return
            await run_in_thread(self._sync)
        self.rounds += 1
        for inode in asked:
            # The file may be closed by now.
            if inode in self._active:
                self._active[inode] += 1
                if self._active[inode] > _QUIET_AFTER:
                    del self._active[inode]

    def _sync(self) -> None:
        if self._mountpoint is None:
            return
        try:
            root = os.open(self._mountpoint, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            logger.debug("%s: %s", self._mountpoint, error)
        else:
            try:
                if os.fstat(root).st_dev == self._device:
                    self._libc.syncfs(root)
                    return
            finally:
                os.close(root)
        # The mountpoint was detached, or another filesystem hides it, so `syncfs` cannot reach this mount.
        self._invalidate()

    def _invalidate(self) -> None:
        """Make the kernel drop its cached pages of each open file, one file after another.

        The kernel first sends the dirty pages to this mount, and waits for the answers.
        """
        for inode in list(self._open):
            with suppress(OSError):
                pyfuse3.invalidate_inode(pyfuse3.InodeT(inode))
