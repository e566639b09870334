"""Programs and threads, and waiting for their effects."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# The uid and the gid of an ordinary user.
NOBODY = 65534


def wait_for(what: Callable[[], object], seconds: float = 20) -> None:
    """Wait until `what` returns a true value; fail after `seconds`."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def run(*command: str | Path, **options: object) -> str:
    """Run a program that must succeed; return what it printed."""
    done = subprocess.run(
        list(map(str, command)),
        check=False,
        capture_output=True,
        timeout=120,
        **options,  # type: ignore[call-overload]
    )
    assert done.returncode == 0, done.stderr.decode()
    return str(done.stdout.decode())


def as_nobody(script: str) -> subprocess.CompletedProcess[str]:
    """Run a shell script as an ordinary user."""
    return subprocess.run(
        ["sh", "-c", script],
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
    )


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop a process while the block runs. A system call that one of its threads is in has ended before."""

    def states() -> set[str]:
        # The state follows the name of the program, which is in parentheses.
        tasks = Path(f"/proc/{pid}/task").iterdir()
        return {(task / "stat").read_text().rpartition(") ")[2][0] for task in tasks}

    os.kill(pid, signal.SIGSTOP)
    try:
        wait_for(lambda: states() == {"T"})
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


class Threads:
    """Functions that run in threads at the same time; an error of any of them is added to `errors`."""

    def __init__(self, errors: list[BaseException]) -> None:
        self.errors = errors
        self._started: list[threading.Thread] = []

    def start(self, work: Callable[[], None]) -> None:
        """Start a thread that calls `work`."""

        def guarded() -> None:
            try:
                work()
            except BaseException as error:
                self.errors.append(error)

        thread = threading.Thread(target=guarded)
        thread.start()
        self._started.append(thread)

    def join(self) -> None:
        """Wait for all threads."""
        for thread in self._started:
            thread.join()
        self._started = []
