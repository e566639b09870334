"""Programs with their own Spark session, which tests start, and end together with all their processes."""

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
    """Return the command that gives a process its own mounts; without root, by a user namespace."""
    return ["unshare", "--mount", *(["--map-root-user"] if os.geteuid() else [])]


class Program:
    """A module of the tests that runs in its own operating system session, by which its processes are found."""

    def __init__(self, module: str, told: dict[str, object], log: Path) -> None:
        """Start the module with `told` as its JSON argument. Its stderr goes to `log`."""
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
                    # Listen on the loopback interface only.
                    "SPARK_LOCAL_IP": "127.0.0.1",
                },
            )

    def expect(self, word: str) -> None:
        """Wait until the program prints `word`."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line == word.encode() + b"\n", f"{line!r} instead of {word}: {self.errors()}"

    def tell(self) -> None:
        """Make the program continue with its next step."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def errors(self) -> str:
        """Return the end of the program's stderr."""
        return self.log.read_text(errors="replace")[-5000:]

    def processes(self) -> list[int]:
        """Return the live processes of its session: Python, JVMs, worker daemons and workers."""
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
        """Send a signal to all processes."""
        for pid in self.processes():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def kill_driver(self) -> None:
        """Send SIGKILL to Python and the JVM. The workers keep running."""
        for pid in self.processes():
            if pid == self.process.pid or Path(f"/proc/{pid}/comm").read_text() == "java\n":
                os.kill(pid, signal.SIGKILL)
        self.signal(signal.SIGCONT)
        self.process.wait()

    def kill(self) -> None:
        """Send SIGKILL to all processes until none is left."""
        while self.processes():
            self.signal(signal.SIGKILL)
            time.sleep(0.01)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
