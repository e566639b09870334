"""Real mounts, each with a daemon of its own."""

from __future__ import annotations

import fcntl
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from logfs.store.directory.mount_table import mounts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

START_SECONDS = 60


@contextmanager
def alone_with_mounts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Hold a lock that only one test at a time has.

    A process with its own mount namespace has a copy of every existing mount, including those of tests that run
    meanwhile. Until the process ends, `logfs umount` finds these mounts mounted elsewhere.
    """
    with (tmp_path_factory.getbasetemp().parent / "mounts.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@dataclass
class Mount:
    """A mount with a daemon of its own, run as `logfs mount -f`; `module` is the Python module that is run.

    The locks of the daemon check their order, and the end of the daemon fails if one was broken.
    """

    path: Path
    log_dirs: list[Path]
    options: list[str] = field(default_factory=list)
    uid: int | None = None
    module: Sequence[str] = ("tests.support.daemon",)
    process: subprocess.Popen[bytes] | None = None
    log: Path | None = None

    def start(self) -> Mount:
        """Mount, and wait until the daemon reports that it is ready."""
        try:
            self.path.mkdir()
        except FileExistsError:
            # It may be a dead mount, which the daemon must remove.
            pass
        self.log = self.path.with_name(self.path.name + ".log")
        command = [sys.executable, "-m", *self.module, "mount", "-f", *self.options]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *map(str, self.log_dirs), str(self.path)],
                stdout=subprocess.PIPE,
                stderr=log,
                user=self.uid,
                group=self.uid,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.endswith(b"ready\n"), f"no mount: {self.log.read_text()}"
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
            self._clear()
            return
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self._reap()
        self._clear()

    def remount(self) -> None:
        """Stop the mount if it is running, and start it again on the same directories."""
        self.stop()
        self.start()

    def _reap(self) -> None:
        assert self.process is not None
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            pytest.fail("the daemon did not end within 30 s")
        finally:
            if self.process.stdout is not None:
                self.process.stdout.close()
            self.process = None
        assert self.log is not None
        assert "WrongOrder" not in (found := self.log.read_text(errors="replace")), found

    def _clear(self) -> None:
        if is_mounted(self.path):
            subprocess.run(["umount", "-l", str(self.path)], check=False, capture_output=True)


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
