"""Mounts of a forked daemon."""

from __future__ import annotations

import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.support.mounts import clear

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tests.system.spawner import Child, Spawner

READY_SECONDS = 60
END_SECONDS = 30


class Daemon:
    """A mount by a forked daemon, in the foreground of a process that nobody waits for."""

    def __init__(self, spawner: Spawner, path: Path, log_dirs: Sequence[Path]) -> None:
        """Begin to mount; `wait_until_ready` tells when it answers."""
        path.mkdir(exist_ok=True)
        self.path = path
        self._words = ["mount", "-f", *log_dirs, path]
        self._spawner = spawner
        self.child: Child
        self.is_started = False

    def start(self, *, hold: bool = False) -> Daemon:
        """Start the daemon; with `hold` it begins at `child.go()`."""
        self.child = self._spawner.command(*self._words, hold=hold)
        self.is_started = True
        return self

    def wait_until_ready(self) -> bool:
        """Wait until the mount answers; False if the daemon ends before. Raises `TimeoutError`."""
        end = time.monotonic() + READY_SECONDS
        while f"{self.path}: ready\n" not in self.child.output:
            if self.child.poll() is not None:
                return False
            if time.monotonic() > end:
                raise TimeoutError(f"the mount is not ready after {READY_SECONDS} s")
            time.sleep(0.005)
        return True

    def stop(self) -> int:
        """SIGTERM, and the exit code. Raises `TimeoutError`."""
        self.child.kill(signal.SIGTERM)
        return self.child.wait(END_SECONDS)

    def close(self) -> None:
        """Kill what is left of it, and clear the mount away."""
        self.child.close()
        clear(self.path)


@contextmanager
def mounted_view(
    spawner: Spawner, path: Path, log_dirs: Sequence[Path]
) -> Iterator[Callable[[str], bytes]]:
    """Mount, and give what reads all lines of a partition; unmounted by SIGTERM at the end."""
    daemon = Daemon(spawner, path, log_dirs).start()
    try:
        assert daemon.wait_until_ready(), f"no mount: {daemon.child.output[-1000:]}"
        yield lambda name: (path / name / "records").read_bytes()
        code = daemon.stop()
        assert code == 0, f"the daemon ended with {code}: {daemon.child.output[-1000:]}"
    finally:
        daemon.close()
