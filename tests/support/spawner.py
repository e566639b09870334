"""Start many short logfs processes quickly: a server imports logfs once and forks a child for each request.

A child is a separate process, as `python -m logfs` would be, but starts without the second that the imports take. The
server has one thread, so its children start from a clean state. They die with the server.

As a program (`python -m tests.support.spawner`) this module is the server: requests and answers are lines of JSON on
standard input and output.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import gc
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
# The signal that starts a held child.
_GO = signal.SIGUSR1
# Makes a child write the Python stacks of all its threads to its output.
_DUMP = signal.SIGUSR2


class Child:
    """A process that the server has forked."""

    def __init__(self, spawner: Spawner, number: int, pid: int, output: Path) -> None:
        self.pid = pid
        self.output_path = output
        self._spawner = spawner
        self._number = number
        try:
            self._pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            # It has ended, and the server knows how.
            self._pidfd = -1

    @property
    def output(self) -> str:
        """The text that the child has written to standard output and standard error."""
        return self.output_path.read_text(errors="replace")

    def kill(self, number: int = signal.SIGKILL) -> bool:
        """Send a signal, and return whether the process still existed."""
        if self._pidfd < 0:
            return False
        try:
            signal.pidfd_send_signal(self._pidfd, number)
        except ProcessLookupError:
            return False
        return True

    def go(self) -> None:
        """Start a held child."""
        self.kill(_GO)

    def dump_stacks(self) -> str:
        """Return the Python stacks of all threads (they go to the output), and where each waits in the kernel."""
        before = len(self.output)
        self.kill(_DUMP)
        time.sleep(0.5)
        lines = [self.output[before:]]
        for task in sorted(Path(f"/proc/{self.pid}/task").glob("*")):
            with suppress(OSError):
                lines.append(f"{task.name} {(task / 'wchan').read_text()}")
        return "\n".join(lines)

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal, or None while the child runs."""
        return self._spawner.status(self._number, 0)

    def wait(self, seconds: float) -> int:
        """Wait until the child ends, and return the exit code, negative for a signal. Raises `TimeoutError`."""
        code = self._spawner.status(self._number, seconds)
        if code is None:
            raise TimeoutError(f"process {self.pid} still runs after {seconds} s")
        return code

    def close(self) -> None:
        """Kill the child if it runs, and release its resources."""
        if self._pidfd < 0:
            return
        self.kill()
        try:
            # If the server has ended, so have its children.
            with suppress(TimeoutError, RuntimeError):
                self.wait(30)
        finally:
            os.close(self._pidfd)
            self._pidfd = -1


class Spawner:
    """The client of one server. Not for several threads at once."""

    def __init__(self, directory: Path) -> None:
        """Start the server. The outputs of its children go to `directory`."""
        self._directory = directory
        self._next = 0
        self._statuses: dict[int, int] = {}
        self._pids: dict[int, int] = {}
        self._rest = b""
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.support.spawner"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        assert self._server.stdout is not None
        assert self._server.stdout.readline() == b"ready\n"

    @property
    def is_running(self) -> bool:
        """Whether the server has not ended."""
        return self._server.poll() is None

    def command(self, *argv: object, hold: bool = False) -> Child:
        """Start `logfs ARGV`. With `hold`, it begins at `go`."""
        return self._spawn({"argv": list(map(str, argv))}, hold=hold)

    def run(
        self, *argv: object, stdin: bytes = b"", cwd: Path | None = None, seconds: float = 60
    ) -> subprocess.CompletedProcess[bytes]:
        """Run `logfs ARGV` to its end, with the present environment of this process. Raises `TimeoutError`."""
        given, errors = self._directory / "stdin", self._directory / "stderr"
        given.write_bytes(stdin)
        errors.write_bytes(b"")
        words = list(map(str, argv))
        request = {
            "argv": words,
            "stdin": str(given),
            "errors": str(errors),
            "cwd": str(cwd or Path.cwd()),
            "environ": dict(os.environ),
        }
        child = self._spawn(request, hold=False)
        try:
            code = child.wait(seconds)
            printed = child.output_path.read_bytes()
            return subprocess.CompletedProcess(words, code, printed, errors.read_bytes())
        finally:
            child.close()
            child.output_path.unlink()

    def call(self, function: str, *arguments: object, hold: bool = False) -> Child:
        """Call `module:function` in a child. Integers are passed as they are, other arguments as text."""
        told = [each if isinstance(each, int) else str(each) for each in arguments]
        return self._spawn({"call": function, "arguments": told}, hold=hold)

    def program(
        self,
        module: str,
        *argv: object,
        output: Path,
        errors: Path,
        user: int | None = None,
        is_forked: bool = True,
    ) -> Child:
        """Start `python -m MODULE ARGV` with the present environment of this process.

        What it prints is appended to the files `output` and `errors`. With `user`, it has this uid, and gid. A forked
        child runs the module in the state that the server has prepared: logfs is imported, its compiled code loaded.
        With `is_forked` false, it is a new interpreter.
        """
        errors.touch()
        request = {
            "module": module,
            "is_forked": is_forked,
            "argv": list(map(str, argv)),
            "errors": str(errors),
            "cwd": str(Path.cwd()),
            "environ": dict(os.environ),
            "user": user,
        }
        return self._spawn(request, hold=False, output=output)

    def _spawn(self, request: dict[str, Any], *, hold: bool, output: Path | None = None) -> Child:
        self._next += 1
        number = self._next
        output = output or self._directory / f"output-{number}"
        output.touch()
        request |= {"id": number, "hold": hold, "output": str(output)}
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(request).encode() + b"\n")
        self._server.stdin.flush()
        while number not in self._pids:
            if not self._receive(30):
                raise TimeoutError("the server of child processes does not answer")
        return Child(self, number, self._pids.pop(number), output)

    def status(self, number: int, seconds: float) -> int | None:
        """Return the exit code of a child, or None if it has not ended after `seconds`."""
        end = time.monotonic() + seconds
        while number not in self._statuses:
            left = end - time.monotonic()
            if not self._receive(max(left, 0)) and left <= 0:
                return None
        return self._statuses[number]

    def _receive(self, seconds: float) -> bool:
        assert self._server.stdout is not None
        pipe = self._server.stdout.fileno()
        # Not `select.select`, which takes no descriptor above 1,023.
        ready = select.poll()
        ready.register(pipe, select.POLLIN | select.POLLHUP)
        if not ready.poll(seconds * 1000):
            return False
        data = os.read(pipe, 65536)
        if not data:
            raise RuntimeError("the server of child processes has died")
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            answer = json.loads(line)
            if "pid" in answer:
                self._pids[answer["id"]] = answer["pid"]
            else:
                self._statuses[answer["id"]] = answer["status"]
        return True

    def close(self) -> None:
        """End the server and all its children."""
        for pipe in (self._server.stdin, self._server.stdout):
            assert pipe is not None
            pipe.close()
        try:
            self._server.wait(30)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()


def shared() -> Spawner:
    """Return a server that lives as long as this process. If it has ended before, return another one."""
    if not _shared or not _shared[-1].is_running:
        directory = Path(tempfile.mkdtemp(prefix="logfs-spawner-"))
        atexit.register(shutil.rmtree, directory, ignore_errors=True)
        _shared.append(Spawner(directory))
        atexit.register(_shared[-1].close)
    return _shared[-1]


_shared: list[Spawner] = []


# The server.


def _serve() -> int:
    """Answer requests until standard input ends. In a child, return the exit code of the request."""
    waking, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    # Ctrl-C is for the tests and the children, which clear up: the server ends when the tests close its input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.pthread_sigmask(signal.SIG_BLOCK, {_GO})
    numbers: dict[int, int] = {}
    rest = b""
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        readable = select.select([0, waking], [], [])[0]
        if waking in readable:
            with suppress(BlockingIOError):
                os.read(waking, 4096)
            with suppress(ChildProcessError):
                while (found := os.waitpid(-1, os.WNOHANG))[0]:
                    pid, status = found
                    _answer(id=numbers.pop(pid), status=os.waitstatus_to_exitcode(status))
        if 0 not in readable:
            continue
        data = os.read(0, 65536)
        if not data:
            for pid in numbers:
                os.kill(pid, signal.SIGKILL)
            return 0
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            request = json.loads(line)
            pid = os.fork()
            if not pid:
                os.close(waking)
                os.close(wake)
                try:
                    code = _child(request)
                except SystemExit as ended:
                    if not isinstance(ended.code, int):
                        raise
                    code = ended.code
                _end_early(code)
                return code
            numbers[pid] = request["id"]
            _answer(id=request["id"], pid=pid)


def _answer(**answer: int) -> None:
    os.write(1, json.dumps(answer).encode() + b"\n")


def _child(request: dict[str, Any]) -> int:
    _end_with_server()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if "cwd" in request:
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["environ"])
    given = os.open(request.get("stdin", os.devnull), os.O_RDONLY)
    output = os.open(request["output"], os.O_WRONLY | os.O_APPEND)
    errors = os.open(request.get("errors", request["output"]), os.O_WRONLY | os.O_APPEND)
    for standard, descriptor in enumerate((given, output, errors)):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    if request.get("user") is not None:
        os.setgid(request["user"])
        os.setuid(request["user"])
        # A change of the user has canceled it.
        _end_with_server()
    faulthandler.enable()
    faulthandler.register(_DUMP, all_threads=True)
    if request["hold"]:
        signal.sigwait({_GO})
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {_GO})
    if not request.get("is_forked", True):
        words = [sys.executable, "-m", request["module"], *request["argv"]]
        os.execve(sys.executable, words, os.environ)
    if "module" in request:
        sys.argv[1:] = request["argv"]
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
        return 0
    if "argv" in request:
        from logfs.cli import main

        return main(request["argv"])
    module, _, name = request["call"].partition(":")
    getattr(importlib.import_module(module), name)(*request["arguments"])
    return 0


def _end_early(code: int) -> None:
    """End as Python ends a program, but free no object: that would copy most of the memory shared with the server.

    Return if what was printed cannot be written, so that Python itself reports that.
    """
    threading._shutdown()
    atexit._run_exitfuncs()
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _end_with_server() -> None:
    """Have the kernel kill this child when the server ends, or end at once if it has ended."""
    server = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server or server == 1:
        os._exit(1)


def _prepare() -> None:
    """Import the modules that children need, before any child is forked."""
    from logfs.cli import COMMANDS
    from logfs.format.kernel_warmup import warm_up

    for name in COMMANDS:
        with suppress(ImportError):
            importlib.import_module(f"logfs.cli.{name.replace('-', '_')}")
    for name in ("logfs.mount.session", "tests.system.scenes", "tests.system.load"):
        with suppress(ImportError):
            importlib.import_module(name)
    warm_up()
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    _prepare()
    sys.exit(_serve())
