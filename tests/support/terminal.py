"""A program on a terminal: its output there, and input that is typed."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios

from tests.support.processes import wait_for


class Terminal:
    """A program on a terminal of its own."""

    def __init__(self, *command: object, rows: int = 24, width: int = 100) -> None:
        self.master, slave = pty.openpty()
        self.resize(rows, width)
        self.before = termios.tcgetattr(slave)
        self.slave = slave
        self.process = subprocess.Popen(
            [*map(str, command)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        self.seen = ""

    def resize(self, rows: int, width: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, width, 0, 0))

    def read(self) -> str:
        """Read the new output, and return all output since the last `type`."""
        while select.select([self.master], [], [], 0.02)[0]:
            try:
                self.seen += os.read(self.master, 65536).decode("utf-8", "replace")
            except OSError:
                # EIO: no process has the other end open.
                break
        return self.seen

    def expect(self, what: str) -> None:
        """Wait until the program has shown `what`."""
        wait_for(lambda: what in self.read())

    def type(self, text: str) -> None:
        self.seen = ""
        os.write(self.master, text.encode())

    def end(self) -> int:
        """Wait for the program, and check that it has restored the terminal; return its exit code."""
        wait_for(lambda: self.read() and self.process.poll() is not None)
        assert termios.tcgetattr(self.slave) == self.before
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)
        os.close(self.slave)
