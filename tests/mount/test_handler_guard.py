"""Any error inside a handler is an errno for the caller, and the mount continues to work.

The daemon of these tests has handlers that fail, or that return wrong values, as a control file specifies.
"""

from __future__ import annotations

import errno
import inspect
import os
import select
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.mounts import is_mounted
from tests.support.processes import wait_for
from tests.support.requirements import need_fuse
from tests.support.stores import assert_clean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pyfuse3 = pytest.importorskip("pyfuse3")

# The daemon: that of logfs, with handlers below the guard that fail as the control file specifies.
DAEMON = """
import os, sys
from pathlib import Path
import numpy
from logfs.mount import handler_guard, protocol, session

control = Path(sys.argv[3])
BAD = {
    "none": lambda: None,
    "text": lambda: "a string",
    "strided": lambda: numpy.zeros(10, numpy.uint8)[::2],
    "huge": lambda: 2**80,
    "negative": lambda: -5,
    "objects": lambda: [object()],
    "nested": lambda: (1, 2),
}
RAISED = {
    "ValueError": ValueError("injected"),
    "MemoryError": MemoryError("injected"),
    "OSError": OSError("injected, without an errno"),
    "BadErrno": OSError(-1, "injected, with an errno that is none"),
    "KeyError": KeyError("injected"),
    "Recursion": RecursionError("injected"),
    "StopIteration": StopIteration("injected"),
}

def ruined(name, handler):
    async def bad(self, *arguments):
        try:
            wanted, _, what = control.read_text().partition(" ")
        except FileNotFoundError:
            wanted = ""
        if wanted != name:
            return await handler(self, *arguments)
        control.with_suffix(".seen").touch()
        if what in RAISED:
            raise RAISED[what]
        return BAD[what]()
    return bad

for name in dir(protocol.Operations):
    handler = getattr(protocol.Operations, name)
    if hasattr(handler, "__wrapped__"):
        setattr(protocol.Operations, name, handler_guard._guard(name, ruined(name, handler.__wrapped__)))

options = session.MountOptions(log_dirs=[Path(sys.argv[1])], mountpoint=Path(sys.argv[2]))
session.run(options, ready=lambda: print("ready", flush=True))
"""

RAISED = ("ValueError", "MemoryError", "OSError", "BadErrno", "KeyError", "Recursion")
RAISED += ("StopIteration",)
RETURNED = ("none", "text", "strided", "huge", "negative", "objects", "nested")


class Ruined:
    """A mount whose handlers can be made to fail, with a partition of two records."""

    def __init__(self, directory: Path) -> None:
        self.log = directory / "log"
        self.path = directory / "mnt"
        self.control = directory / "control"
        self.seen = self.control.with_suffix(".seen")
        self.path.mkdir()
        script = directory / "daemon.py"
        script.write_text(DAEMON)
        self.errors = (directory / "mnt.log").read_text
        with (directory / "mnt.log").open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(script), str(self.log), str(self.path), str(self.control)],
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line == b"ready\n", (directory / "mnt.log").read_text()
        self.topic = self.path / "a-0"
        self.topic.mkdir()
        (self.topic / "append").write_bytes(b"first\nsecond\n")

    def ruin(self, handler: str, what: str) -> None:
        """Make a handler raise or return `what`, one of `RAISED` and `RETURNED`, until `mend`."""
        self.seen.unlink(missing_ok=True)
        self.control.write_text(f"{handler} {what}")

    def mend(self) -> None:
        """Let all handlers work again."""
        self.control.unlink(missing_ok=True)

    def stop(self) -> None:
        """Unmount and end the daemon, in whatever state it is."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        if is_mounted(self.path):
            subprocess.run(["umount", "-l", str(self.path)], check=False, capture_output=True)


@pytest.fixture(scope="module")
def ruined(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ruined]:
    """One `Ruined` for the tests of this module; its log directory is audited at the end."""
    need_fuse()
    mount = Ruined(tmp_path_factory.mktemp("guard"))
    yield mount
    mount.stop()
    assert_clean(mount.log)


def _write(path: Path) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, b"")
        os.write(fd, b"a line\n")
    finally:
        os.close(fd)


def _fsync(path: Path, flags: int = os.O_WRONLY) -> None:
    fd = os.open(path, flags)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _close(path: Path) -> None:
    os.close(os.open(path, os.O_RDONLY))


def _read(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.read(fd, 100)
    finally:
        os.close(fd)


def _poll(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        poller = select.poll()
        poller.register(fd, select.POLLIN | select.POLLPRI)
        poller.poll(0)
    finally:
        os.close(fd)


def _mkdir_and_rmdir(mount: Ruined) -> None:
    path = mount.path / "doomed-0"
    mount.control.rename(mount.control.with_suffix(".kept"))
    path.mkdir(exist_ok=True)
    mount.control.with_suffix(".kept").rename(mount.control)
    path.rmdir()


# A call that reaches each handler. A call that reaches one of `UNANSWERED` need not fail, but the mount must survive.
TRIGGERS: dict[str, Callable[[Ruined], object]] = {
    "lookup": lambda m: os.stat(m.topic / "offsets" / "1"),
    "getattr": lambda m: os.stat(m.path),
    "setattr": lambda m: os.chmod(m.topic / "append", 0o200),
    "readlink": lambda m: os.readlink(next(iter(_links(m)))),
    "statfs": lambda m: os.statvfs(m.path),
    "opendir": lambda m: os.listdir(m.path),
    "readdir": lambda m: os.listdir(m.path),
    "releasedir": lambda m: os.listdir(m.path),
    "fsyncdir": lambda m: _fsync(m.path, os.O_RDONLY | os.O_DIRECTORY),
    "mkdir": lambda m: (m.path / "more-0").mkdir(),
    "rmdir": _mkdir_and_rmdir,
    "unlink": lambda m: (m.topic / "append").unlink(),
    "create": lambda m: os.open(m.topic / "new", os.O_CREAT | os.O_EXCL | os.O_WRONLY),
    "mknod": lambda m: os.mkfifo(m.topic / "fifo"),
    "symlink": lambda m: (m.topic / "link").symlink_to("x"),
    "link": lambda m: os.link(m.topic / "append", m.topic / "hard"),
    "rename": lambda m: (m.topic / "append").rename(m.topic / "other"),
    "open": lambda m: _close(m.topic / "append"),
    "read": lambda m: _read(m.topic / "status.json"),
    "write": lambda m: _write(m.topic / "append"),
    "fsync": lambda m: _fsync(m.topic / "append"),
    "release": lambda m: _close(m.topic / "append"),
    "getxattr": lambda m: os.getxattr(m.topic / "append", "user.logfs.x"),
    "listxattr": lambda m: os.listxattr(m.topic / "append"),
    "setxattr": lambda m: os.setxattr(m.topic / "append", "user.x", b"1"),
    "poll": lambda m: _poll(m.topic / "append"),
    "removexattr": lambda m: os.removexattr(m.topic / "append", "user.x"),
}
# No caller sees the errno of these handlers.
UNANSWERED = {"poll", "release", "releasedir"}
# With default_permissions the kernel checks access itself, and it is told to omit flushes. `forget` has its own test.
UNREACHABLE = {"access", "flush", "forget"}
# These handlers return None anyway, so None is not a wrong answer.
NO_ANSWER_TO_SPOIL = {
    "releasedir", "fsyncdir", "rmdir", "unlink", "rename", "flush", "fsync", "release", "setxattr",
    "removexattr", "readdir",
}  # fmt: skip


def _links(mount: Ruined) -> Iterator[Path]:
    for path in (mount.topic / "time", mount.topic, mount.path / ".logfs", mount.path):
        for name in ("latest", "earliest", "1700000000000", *os.listdir(path)):
            if (path / name).is_symlink():
                yield path / name


def handlers() -> list[str]:
    """Return the names of all handlers of pyfuse3."""
    found = inspect.getmembers(pyfuse3.Operations, inspect.iscoroutinefunction)
    return sorted(name for name, _ in found if not name.startswith("_"))


def test_every_handler_is_covered_here() -> None:
    """Every handler of pyfuse3 is in `TRIGGERS` or in `UNREACHABLE`."""
    assert set(handlers()) - set(TRIGGERS) - UNREACHABLE == set()


@pytest.mark.drawn(9)
@pytest.mark.parametrize("handler", TRIGGERS)
def test_a_failing_handler_answers_an_errno_and_the_mount_lives(
    ruined: Ruined, handler: str
) -> None:
    """Any exception and any result of a wrong type becomes EIO or ENOMEM, and the next call works."""
    for what in (*RAISED, *RETURNED):
        if what == "none" and handler in NO_ANSWER_TO_SPOIL:
            continue
        ruined.ruin(handler, what)
        caught: list[BaseException] = []

        def reach(what: str = what, caught: list[BaseException] = caught) -> bool:
            # Within one tick of its clock the kernel may answer from its cache.
            arguments = (TRIGGERS[handler], ruined, caught)
            done = threading.Thread(target=_call, args=arguments, daemon=True)
            done.start()
            done.join(20)
            assert not done.is_alive(), f"{handler} with {what} is never answered"
            return bool(caught) or handler in UNANSWERED

        wait_for(reach)
        if handler in UNANSWERED:
            wait_for(ruined.seen.exists)
        ruined.mend()
        assert ruined.process.poll() is None, f"{handler} with {what}: {ruined.errors()}"
        assert ruined.seen.exists(), f"{handler} was never called"
        if handler not in UNANSWERED:
            assert caught, f"{handler} with {what} told the caller nothing"
            assert isinstance(caught[0], OSError)
            assert caught[0].errno in (errno.EIO, errno.ENOMEM), f"{what}: {caught[0]}"
        assert (ruined.topic / "offsets/0").read_bytes() == b"first"
        assert "append" in os.listdir(ruined.topic)
        with (ruined.topic / "append").open("ab") as file:
            file.write(b"alive\n")


def _call(trigger: Callable[[Ruined], object], mount: Ruined, caught: list[BaseException]) -> None:
    try:
        trigger(mount)
    except Exception as error:
        caught.append(error)


def test_internal_errors_are_listed_with_their_reasons(ruined: Ruined) -> None:
    """`.logfs/errors` lists an internal error with its path and the exception."""
    ruined.ruin("readlink", "ValueError")
    ruined.mend()
    ruined.ruin("read", "ValueError")
    with pytest.raises(OSError, match="Input/output error"):
        _read(ruined.topic / "status.json")
    ruined.mend()
    assert (
        "status.json EIO internal error: ValueError('injected')"
        in (ruined.path / ".logfs/errors").read_text()
    )


def guarded_by(handler: Any) -> bool:
    """Return whether a handler is wrapped by the guard."""
    return "guard" in getattr(handler, "__code__", None).co_filename  # type: ignore[union-attr]


@pytest.mark.parametrize("handler", handlers())
def test_every_handler_of_pyfuse3_is_guarded(handler: str) -> None:
    """Every handler of `Operations`, its own or inherited, is wrapped by the guard."""
    from logfs.mount.protocol import Operations

    found = getattr(Operations, handler)
    assert guarded_by(found)
    assert found.__name__ == handler


def test_a_handler_that_a_later_version_adds_is_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that a later version of pyfuse3 adds is wrapped, and is EIO even if the guard's `failed` raises."""
    import trio

    from logfs.mount.handler_guard import guarded

    async def punch_hole(self: object, fh: int) -> None:
        raise ValueError("from the future")

    monkeypatch.setattr(pyfuse3.Operations, "punch_hole", punch_hole, raising=False)

    @guarded
    class Later(pyfuse3.Operations):  # type: ignore[misc]
        def failed(self, name: str, arguments: tuple[Any, ...], error: Exception) -> int:
            raise RuntimeError("and even the guard's own helper fails")

    with pytest.raises(pyfuse3.FUSEError) as caught:
        trio.run(Later().punch_hole, 1)
    assert caught.value.errno == errno.EIO


def test_unreachable_handlers_are_guarded() -> None:
    """A failing handler of `UNREACHABLE` raises an errno; a failing `forget` returns None, because pyfuse3 does not
    catch even a `FUSEError` from it.
    """
    import trio

    from logfs.mount import handler_guard

    async def bad(self: object, *arguments: object) -> None:
        raise ValueError("injected")

    for handler in UNREACHABLE - {"forget"}:
        with pytest.raises(pyfuse3.FUSEError):
            trio.run(handler_guard._guard(handler, bad), None, 1)
    assert trio.run(handler_guard._guard("forget", bad), None, [(2, 1)]) is None


@pytest.mark.parametrize("what", RAISED + RETURNED)
def test_a_failing_forget_leaves_the_mount_alive(ruined: Ruined, what: str) -> None:
    """A FORGET request has no answer, and a failure of its handler does not end the mount."""
    ruined.ruin("forget", what)
    topic = ruined.topic
    # The kernel forgets removed files.
    (ruined.path / "forgotten-0").mkdir()
    (ruined.path / "forgotten-0").rmdir()
    wait_for(ruined.seen.exists)
    ruined.mend()
    assert (topic / "offsets/0").read_bytes() == b"first"
    assert ruined.process.poll() is None, ruined.errors()
