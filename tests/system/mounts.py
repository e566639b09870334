"""Mounts that a forked daemon serves."""

from __future__ import annotations

import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.support.mounts import clear

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tests.support.spawner import Child, Spawner

READY_SECONDS = 60
END_SECONDS = 30


class Daemon:
    """A mount whose daemon is a forked process in the foreground. No parent process waits for the daemon."""

    def __init__(
        self, spawner: Spawner, path: Path, log_dirs: Sequence[Path], *options: str
    ) -> None:
        """Create the mount point. `start` starts the daemon, and `wait_until_ready` waits until the mount answers."""
        path.mkdir(exist_ok=True)
        self.path = path
        self.options = options
        self._words = ["mount", "-f", *options, *log_dirs, path]
        self._spawner = spawner
        self.child: Child
        self.is_started = False

    def start(self, *, hold: bool = False) -> Daemon:
        """Start the daemon. With `hold`, it begins only after `child.go()`."""
        self.child = self._spawner.command(*self._words, hold=hold)
        self.is_started = True
        return self

    def wait_until_ready(self) -> bool:
        """Wait until the mount answers. Return False if the daemon ends first. Raises `TimeoutError`."""
        end = time.monotonic() + READY_SECONDS
        while f"{self.path}: ready\n" not in self.child.output:
            if self.child.poll() is not None:
                return False
            if time.monotonic() > end:
                raise TimeoutError(
                    f"the mount is not ready after {READY_SECONDS} s\n{self.child.dump_stacks()}"
                )
            time.sleep(0.005)
        return True

    def stop(self) -> int:
        """Send SIGTERM and return the exit code. Raises `TimeoutError`."""
        self.child.kill(signal.SIGTERM)
        return self.child.wait(END_SECONDS)

    def close(self) -> None:
        """Kill the daemon if it still runs, and remove the mount."""
        self.child.close()
        clear(self.path)


@contextmanager
def mounted_view(
    spawner: Spawner, path: Path, log_dirs: Sequence[Path]
) -> Iterator[Callable[[str], bytes]]:
    """Mount the log directories, and yield a function that returns all lines of a partition.

    The mount is removed by SIGTERM at the end.
    """
    daemon = Daemon(spawner, path, log_dirs).start()
    try:
        assert daemon.wait_until_ready(), f"no mount: {daemon.child.output[-1000:]}"
        yield lambda name: (path / name / "records").read_bytes()
        code = daemon.stop()
        assert code == 0, f"the daemon ended with {code}: {daemon.child.output[-1000:]}"
    finally:
        daemon.close()
