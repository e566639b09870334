"""Use strace to make a system call of a process fail, or to kill the process when it enters the call.

`when=N` counts the calls of each thread separately: strace keeps one count per syscall and thread.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.support.requirements import need, need_command

if TYPE_CHECKING:
    from pathlib import Path

_LINE = re.compile(r"(\d+) +(\w+)\((.*)")


@dataclass(frozen=True)
class Fault:
    """The effect on the Nth call of a syscall in a thread, or with `persistent` on that call and each later one.

    `effect` is the name of an errno, or `KILL`, `TERM` or `INT` for a signal on entering the call, which is then not
    made.
    """

    syscall: str
    effect: str
    when: int
    persistent: bool = False

    @property
    def expression(self) -> str:
        """The argument of strace's --inject."""
        is_signal = self.effect in ("KILL", "TERM", "INT")
        what = f"signal={self.effect}" if is_signal else f"error={self.effect}"
        return f"{self.syscall}:{what}:when={self.when}{'+' if self.persistent else ''}"

    def __str__(self) -> str:
        return self.expression


@dataclass(frozen=True)
class Call:
    """A system call as strace recorded it."""

    thread: int
    name: str
    text: str

    @property
    def is_injected(self) -> bool:
        """Whether strace made the call fail."""
        return "(INJECTED)" in self.text


class Strace:
    """strace attached to a process with all its threads. Threads and processes that start later are traced too."""

    def __init__(self, pid: int, output: Path, syscalls: list[str], fault: Fault | None) -> None:
        """Attach, and return when every thread is traced. `syscalls` are written to `output`."""
        self._output = output
        traced = sorted({*syscalls, *([fault.syscall] if fault else [])})
        command = ["strace", "-f", "-y", "-o", str(output), "-e", f"trace={','.join(traced)}"]
        command += ["-e", "signal=none"]
        if fault is not None:
            command += ["-e", f"inject={fault.expression}"]
        self._process = subprocess.Popen(
            [*command, "-p", str(pid)], stderr=subprocess.PIPE, text=True
        )
        assert self._process.stderr is not None
        line = self._process.stderr.readline()
        if "attached" not in line:
            self.detach()
            raise RuntimeError(f"strace cannot attach: {line.strip()}")

    def wait(self, seconds: float = 30) -> None:
        """Wait until the process and strace have ended."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.terminate()
        self.detach()

    def detach(self) -> None:
        """Detach strace, so that the process continues without faults."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()

    def calls(self) -> list[Call]:
        """Return the traced calls, in order."""
        found = []
        for line in self._output.read_text(errors="replace").splitlines():
            match = _LINE.match(line)
            if match is not None:
                found.append(Call(int(match[1]), match[2], match[3]))
        return found


def need_strace() -> None:
    """Require an strace that may attach to processes."""
    need_command("strace")
    process = subprocess.Popen(["sleep", "30"])
    try:
        command = ["strace", "-o", "/dev/null", "-e", "trace=none", "-p", str(process.pid)]
        attached = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert attached.stderr is not None
        line = attached.stderr.readline()
        attached.terminate()
        attached.wait()
        attached.stderr.close()
    finally:
        process.kill()
        process.wait()
    need("attached" in line, f"strace may not attach to processes: {line.strip()}")
