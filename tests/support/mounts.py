"""Real mounts, each by a daemon of its own."""

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
    """Only one test at a time is in here.

    A process with a mount namespace of its own has a copy of every mount that there is, also of those of the tests
    beside it. Until it ends, `logfs umount` finds them mounted elsewhere.
    """
    with (tmp_path_factory.getbasetemp().parent / "mounts.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@dataclass
class Mount:
    """A mount by a daemon of its own, run as `logfs mount -f`; `module` is another one to run in its place."""

    path: Path
    log_dirs: list[Path]
    options: list[str] = field(default_factory=list)
    uid: int | None = None
    module: Sequence[str] = ("logfs",)
    process: subprocess.Popen[bytes] | None = None
    log: Path | None = None

    def start(self) -> Mount:
        """Mount, and wait until it answers."""
        try:
            self.path.mkdir()
        except FileExistsError:
            # Perhaps a dead mount, which the daemon is to clear away.
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
        """Make a partition and give its directory."""
        path = self.path / name
        path.mkdir()
        return path

    def errors(self) -> str:
        """What `.logfs/errors` says."""
        return (self.path / ".logfs/errors").read_text()

    def kill(self) -> None:
        """kill -9 of the daemon; the dead mount stays, as after a crash."""
        assert self.process is not None
        self.process.kill()
        self._reap()

    def stop(self) -> None:
        """Unmount and wait for the daemon; a mount that is dead already is cleared away."""
        if self.process is None:
            self._clear()
            return
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self._reap()
        self._clear()

    def remount(self) -> None:
        """Stop, if it lives, and start again on the same directories."""
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

    def _clear(self) -> None:
        if is_mounted(self.path):
            subprocess.run(["umount", "-l", str(self.path)], check=False, capture_output=True)


def is_mounted(path: Path) -> bool:
    """Whether something is mounted exactly here."""
    return any(mount.mountpoint == str(path) for mount in mounts())


def clear(path: Path) -> None:
    """Take a dead mount out of the mount table."""
    if is_mounted(path):
        subprocess.run(["umount", "-l", str(path)], check=False, capture_output=True)


def refuses(number: int) -> pytest.RaisesExc[OSError]:
    """The call inside must fail with this errno."""
    return pytest.raises(OSError, match=rf"^\[Errno {number}\]")
