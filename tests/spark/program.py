"""Programs with a Spark session of their own, which tests start, and end with all the processes that belong to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]


def unshare() -> list[str]:
    """The command that gives a process mounts of its own; without root, by a user namespace."""
    return ["unshare", "--mount", *(["--map-root-user"] if os.geteuid() else [])]


class Program:
    """A module of the tests, run in a session of the system: whoever is started by it is known by that."""

    def __init__(self, module: str, told: dict[str, object], log: Path) -> None:
        """Start it with what it is told, as JSON; what it says on stderr goes to `log`."""
        self.log = log
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, json.dumps(told)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                cwd=ROOT,
                env={
                    **os.environ,
                    "PYSPARK_PYTHON": sys.executable,
                    # Nobody but this machine is listened to.
                    "SPARK_LOCAL_IP": "127.0.0.1",
                },
            )

    def expect(self, word: str) -> None:
        """Wait for a word of it."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line == word.encode() + b"\n", f"{line!r} instead of {word}: {self.errors()}"

    def tell(self) -> None:
        """Have it go on to the next thing."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def errors(self) -> str:
        """The last that it said on stderr."""
        return self.log.read_text(errors="replace")[-5000:]

    def processes(self) -> list[int]:
        """Those of its session that live: Python, JVMs, daemons of workers and workers."""
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                state, _, _, session = path.read_bytes().rpartition(b")")[2].split()[:4]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(session) == self.process.pid and state != b"Z":
                found.append(int(path.parent.name))
        return found

    def signal(self, number: int) -> None:
        """Send a signal to all of them."""
        for pid in self.processes():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def kill_driver(self) -> None:
        """kill -9 of Python and the JVM; the workers are left to themselves."""
        for pid in self.processes():
            if pid == self.process.pid or Path(f"/proc/{pid}/comm").read_text() == "java\n":
                os.kill(pid, signal.SIGKILL)
        self.signal(signal.SIGCONT)
        self.process.wait()

    def kill(self) -> None:
        """kill -9 of all of them, until nobody is left."""
        while self.processes():
            self.signal(signal.SIGKILL)
            time.sleep(0.01)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
