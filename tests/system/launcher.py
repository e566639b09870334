"""A process that has imported and compiled all modules, and starts commands by fork.

`python -m logfs` needs about 2 s of processor time to start, mostly for imports. A campaign starts thousands of
commands, so this server forks them: from `logfs.cli.main` on, the code that runs is the same.

The server reads one JSON object per line from standard input and answers each with one line. The kernel kills all
children when the server ends.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[2]
_PR_SET_PDEATHSIG = 1
_PRELOADED = (
    "logfs.cli.mount",
    "logfs.cli.common",
    "logfs.cli.umount",
    "logfs.cli.recover",
    "logfs.cli.reindex",
    "logfs.cli.compact",
    "logfs.cli.move",
    "logfs.cli.retain",
    "logfs.mount.session",
    "logfs.store.observe.check",
    "logfs.store.admin.commit_client",
    "tests.system.power_load",
    "tests.system.power_oracle",
)


class Process:
    """A process that the campaign started. Its parent may be another process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._fd = os.pidfd_open(pid)
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal, or None while the process runs."""
        return self.wait(0, may_run=True)

    def wait(self, seconds: float, *, may_run: bool = False) -> int | None:
        """Wait until the process ends, and return its exit code. Raises `TimeoutError`, unless `may_run`."""
        if self._code is None:
            if not select.select([self._fd], [], [], seconds)[0]:
                if may_run:
                    return None
                raise TimeoutError(f"process {self.pid} did not end within {seconds} s")
            self._code = self._reap()
            os.close(self._fd)
        return self._code

    def kill(self) -> int:
        """Send SIGKILL, wait until the process ends, and return its exit code."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
        code = self.wait(30)
        assert code is not None
        return code

    def signal(self, number: int) -> None:
        """Send a signal to the process if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def _reap(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class _Forked(Process):
    def __init__(self, pid: int, launcher: Launcher) -> None:
        super().__init__(pid)
        self._launcher = launcher

    def _reap(self) -> int:
        return int(self._launcher.ask({"wait": self.pid})["code"])


class Launcher:
    """The client of the server, used by the campaign."""

    def __init__(self, log: Path, mutant: str = "") -> None:
        """Start the server, with the seeded bug `mutant` if one is named. The server's own messages go to `log`."""
        with log.open("ab") as errors:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "tests.system.launcher", mutant],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        assert self._server.stdout is not None
        if self._server.stdout.readline() != b"ready\n":
            self.close()
            raise RuntimeError(f"the launcher does not start: {log.read_text()}")

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send one request, and return its answer."""
        stdin, stdout = self._server.stdin, self._server.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(request).encode() + b"\n")
        stdin.flush()
        answer: dict[str, Any] = json.loads(stdout.readline())
        return answer

    def start(self, function: str, *arguments: Any, out: Path, errors: Path) -> Process:
        """Run `module:function(*arguments)` in a child. Its exit code is the value that the function returns."""
        request = {"function": function, "arguments": arguments, "out": str(out)}
        return _Forked(int(self.ask({**request, "errors": str(errors)})["pid"]), self)

    def close(self) -> None:
        """End the server, and with it every child that still runs."""
        self._server.kill()
        self._server.wait()
        for pipe in (self._server.stdin, self._server.stdout):
            if pipe is not None:
                pipe.close()


class Executed(Process):
    """`python -m logfs …`, started as a user would start it."""

    def __init__(self, *words: str, out: Path, errors: Path) -> None:
        with out.open("ab") as stdout, errors.open("ab") as stderr:
            # Not waited for by `subprocess`, but through the pidfd.
            self.popen = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", sys.executable, "-m", "logfs", *words],
                cwd=ROOT,
                stdout=stdout,
                stderr=stderr,
            )
        super().__init__(self.popen.pid)

    def _reap(self) -> int:
        return self.popen.wait()


# The server.


def _serve(mutant: str) -> None:
    libc = ctypes.CDLL(None)
    for name in _PRELOADED:
        importlib.import_module(name)
    if mutant:
        importlib.import_module("tests.system.mutants").MUTANTS[mutant]()
    from logfs.mount.session import warm_up

    warm_up()
    print("ready", flush=True)
    for line in iter(sys.stdin.buffer.readline, b""):
        request = json.loads(line)
        if "wait" in request:
            status = os.waitpid(request["wait"], 0)[1]
            answer = {"code": os.waitstatus_to_exitcode(status)}
        else:
            pid = os.fork()
            if not pid:
                libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
                _run(request)
            answer = {"pid": pid}
        print(json.dumps(answer), flush=True)


def _run(request: dict[str, Any]) -> None:
    code = 70
    try:
        os.setsid()
        _redirect(sys.stdin, os.devnull, os.O_RDONLY)
        _redirect(sys.stdout, request["out"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        _redirect(sys.stderr, request["errors"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        module, _, name = request["function"].partition(":")
        function = getattr(importlib.import_module(module), name)
        code = int(function(*request["arguments"]) or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def _redirect(stream: IO[str], path: str, flags: int) -> None:
    fd = os.open(path, flags, 0o644)
    os.dup2(fd, stream.fileno())
    os.close(fd)


def wait_until(condition: Any, seconds: float, what: str) -> None:
    """Poll until `condition` is true. Raises `TimeoutError`, with `what` in its text, after `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {seconds} s for {what}")
        time.sleep(0.002)


if __name__ == "__main__":
    _serve(sys.argv[1])
