"""Real mounts, each with a daemon of its own."""

from __future__ import annotations

import ctypes
import fcntl
import signal
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from logfs.store.directory.mount_table import mounts
from tests.support import spawner

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.support.spawner import Child

START_SECONDS = 60

# From <sched.h> and <sys/mount.h>.
_CLONE_NEWNS = 0x20000
_MS_REC, _MS_PRIVATE = 0x4000, 0x40000


def make_mounts_private() -> None:
    """Give this thread, and the programs that it starts, a mount namespace of their own, if root.

    Otherwise a process of another test with its own mount namespace would have copies of the mounts made here, and
    `logfs umount` would find them mounted elsewhere. What is mounted here is unmounted when the last process ends.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) == 0:
        libc.mount(None, b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None)


@contextmanager
def alone_with_mounts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Hold a lock that only one test at a time has, for tests whose mounts cannot be private (not root).

    A process with its own mount namespace has a copy of every existing mount, including those of tests that run
    meanwhile. Until the process ends, `logfs umount` finds these mounts mounted elsewhere.
    """
    with (tmp_path_factory.getbasetemp().parent / "mounts.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@dataclass
class Mount:
    """A mount with a daemon of its own, run as `logfs mount -f`.

    `program` is a Python module and its first arguments, to run instead of `logfs`. A daemon is forked from a process
    that has loaded logfs (`spawner`); with `is_forked` false it is a new interpreter, which loads what requests need
    when they need it. The locks of a forked daemon check their order, and its end fails if one was broken.
    """

    path: Path
    log_dirs: list[Path]
    options: list[str] = field(default_factory=list)
    uid: int | None = None
    program: Sequence[str] = ("logfs",)
    is_forked: bool = True
    process: Child | None = None

    @property
    def log(self) -> Path:
        """The file of what the daemons of this mount have written to standard error."""
        return self.path.with_name(self.path.name + ".log")

    def start(self) -> Mount:
        """Mount, and wait until the daemon reports that it is ready."""
        try:
            self.path.mkdir()
        except FileExistsError:
            # It may be a dead mount, which the daemon must remove.
            pass
        output = self.path.with_name(self.path.name + ".out")
        output.write_bytes(b"")
        words = [*self.program, "mount", "-f", *self.options, *self.log_dirs, self.path]
        self.process = spawner.shared().program(
            *map(str, words),
            output=output,
            errors=self.log,
            user=self.uid,
            is_forked=self.is_forked,
        )
        end = time.monotonic() + START_SECONDS
        while not output.read_bytes().endswith(b"ready\n"):
            ended = self.process.poll() is not None
            assert not ended, f"no mount: {self.log.read_text()}"
            if time.monotonic() > end:
                self.stop()
                pytest.fail(
                    f"the mount is not ready after {START_SECONDS} s: {self.log.read_text()}"
                )
            time.sleep(0.003)
        return self

    def keep_old_records(self) -> Mount:
        """Turn the default retention off: it deletes records of 2021, five minutes after the start at the latest."""
        (self.path / ".logfs/config/log.retention.ms").write_text("-1")
        return self

    def partition(self, name: str) -> Path:
        """Create a partition and return its directory."""
        path = self.path / name
        path.mkdir()
        return path

    def errors(self) -> str:
        """Return the content of `.logfs/errors`."""
        return (self.path / ".logfs/errors").read_text()

    def kill(self) -> None:
        """Kill the daemon with SIGKILL; the dead mount stays, as after a crash."""
        assert self.process is not None
        self.process.kill()
        self._reap()

    def stop(self) -> None:
        """Unmount and wait for the daemon; a mount whose daemon has already died is removed."""
        if self.process is None:
            clear(self.path)
            return
        self.process.kill(signal.SIGTERM)
        try:
            self._reap()
        finally:
            clear(self.path)

    def remount(self) -> None:
        """Stop the mount if it is running, and start it again on the same directories."""
        self.stop()
        self.start()

    def _reap(self) -> None:
        assert self.process is not None
        try:
            self.process.wait(30)
        except TimeoutError:
            pytest.fail("the daemon did not end within 30 s")
        finally:
            self.process.close()
            self.process = None
        assert "WrongOrder" not in (found := self.log.read_text(errors="replace")), found


def is_mounted(path: Path) -> bool:
    """Whether something is mounted at exactly this path."""
    return any(mount.mountpoint == str(path) for mount in mounts())


def clear(path: Path) -> None:
    """Remove a dead mount from the mount table."""
    if is_mounted(path):
        subprocess.run(["umount", "-l", str(path)], check=False, capture_output=True)


def refuses(number: int) -> pytest.RaisesExc[OSError]:
    """Expect the code inside to fail with this errno."""
    return pytest.raises(OSError, match=rf"^\[Errno {number}\]")
