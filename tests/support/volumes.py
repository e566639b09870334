"""A volume plugin in a process of its own, and requests to it as container engines send them."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from logfs.store.directory.mount_table import logfs_mounts
from tests.support.processes import wait_for

if TYPE_CHECKING:
    from pathlib import Path


class _Connection(http.client.HTTPConnection):
    """A connection to a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class Plugin:
    """`logfs volume-plugin` with its state below `directory`."""

    def __init__(self, directory: Path, path: Path | None = None) -> None:
        """Prepare a plugin that listens on `path`."""
        self.socket = path or directory / "volumes.sock"
        self.state = directory / "state"
        self.logs = directory / "logs"
        self.output = directory / "plugin.log"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def command(self) -> list[str]:
        """The command that runs it."""
        words = [sys.executable, "-m", "logfs", "volume-plugin"]
        places = {"socket": self.socket, "state": self.state, "logs": self.logs}
        return [*words, *(f"--{name}={path}" for name, path in places.items())]

    def start(self) -> Plugin:
        """Start it, and wait until it listens."""
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(self.command, stdout=output, stderr=output)
        wait_for(lambda: self._listens() or self._has_ended(), 60)
        assert not self._has_ended(), self.output.read_text()
        return self

    def _listens(self) -> bool:
        with socket.socket(socket.AF_UNIX) as found:
            return found.connect_ex(str(self.socket)) == 0

    def _has_ended(self) -> bool:
        assert self.process is not None
        return self.process.poll() is not None

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End it by a signal, and return its exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(60)

    def close(self) -> None:
        """End it and its mounts."""
        if self.process is not None and not self._has_ended():
            self.end(signal.SIGKILL)
        for path in logfs_mounts():
            if path.startswith(f"{self.state}/"):
                subprocess.run(["umount", "-l", path], check=False)
        self.socket.unlink(missing_ok=True)

    def ask(self, verb: str, **fields: object) -> dict[str, Any]:
        """Send a request that must succeed; return the answer."""
        status, answer = self.send(f"/VolumeDriver.{verb}", json.dumps(fields).encode())
        assert (status, answer["Err"]) == (200, ""), answer
        return answer

    def refused(self, verb: str, **fields: object) -> str:
        """Send a request that must fail; return the error."""
        status, answer = self.send(f"/VolumeDriver.{verb}", json.dumps(fields).encode())
        assert status == 500
        return str(answer["Err"])

    def send(self, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
        """Send a request; return the status and the answer."""
        connection = _Connection(self.socket)
        try:
            connection.request("POST", path, body)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()
