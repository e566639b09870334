"""Programs, threads, and waiting for them."""

from __future__ import annotations

import subprocess
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def wait_for(what: Callable[[], object], seconds: float = 20) -> None:
    """Wait for something that another process is about to do; fail if it never does."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def run(*command: str | Path, **options: object) -> str:
    """Run a program that must succeed; what it printed."""
    done = subprocess.run(
        list(map(str, command)),
        check=False,
        capture_output=True,
        timeout=120,
        **options,  # type: ignore[call-overload]
    )
    assert done.returncode == 0, done.stderr.decode()
    return str(done.stdout.decode())


class Threads:
    """Work that goes on at once in threads; the first error of any ends them all, and is raised."""

    def __init__(self, errors: list[BaseException]) -> None:
        self.errors = errors
        self._started: list[threading.Thread] = []

    def start(self, work: Callable[[], None]) -> None:
        """Begin some work."""

        def guarded() -> None:
            try:
                work()
            except BaseException as error:
                self.errors.append(error)

        thread = threading.Thread(target=guarded)
        thread.start()
        self._started.append(thread)

    def join(self) -> None:
        """Wait for all of it."""
        for thread in self._started:
            thread.join()
        self._started = []
