"""What the tests share: stores that are audited afterwards, real mounts, and honest skips."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from logfs.store.observe.check import Severity, check
from logfs.store.store import Store
from tests.system.mounts import is_mounted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

REQUIRE_ALL = os.environ.get("LOGFS_REQUIRE_ALL") == "1"
START_SECONDS = 60

# The form of `scripts/crash`.
DEEP = os.environ.get("LOGFS_HYPOTHESIS") == "deep"

settings.register_profile("default", deadline=None, derandomize=True, max_examples=100)
settings.register_profile("deep", deadline=None, max_examples=5000)
settings.load_profile(os.environ.get("LOGFS_HYPOTHESIS", "default"))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Of a shell that runs the tests in the background; the programs that they start are to heed it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

_skipped: Counter[str] = Counter()
# Where this process prints; None in a worker.
_terminal: pytest.TerminalReporter | None = None


def need(condition: object, what: str) -> None:
    """Skip the test where a part is missing; under LOGFS_REQUIRE_ALL=1 fail it."""
    if condition:
        return
    if REQUIRE_ALL:
        pytest.fail(f"{what}, and LOGFS_REQUIRE_ALL=1 asks for it")
    pytest.skip(what)


def need_fuse() -> None:
    """The test mounts."""
    need(os.access("/dev/fuse", os.R_OK | os.W_OK), "/dev/fuse cannot be opened")
    need(shutil.which("fusermount3"), "fusermount3 is not installed")


def need_command(name: str) -> str:
    """The test calls a program; its path."""
    path = shutil.which(name)
    need(path, f"{name} is not installed")
    assert path is not None
    return path


def need_root() -> None:
    """The test does what only root can do."""
    need(os.geteuid() == 0, "not root")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where tests run on several cores, those with Java share one: one broker, one Spark session.

    Before xdist looks at the marks.
    """
    for item in items:
        if {"kafka", "spark"} & set(item.path.parts):
            item.add_marker(pytest.mark.xdist_group("java"))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fail at once if the marks are without effect, as with pytest 9.2: two brokers would run side by side."""
    if session.config.getoption("loadgroup", default=False):
        marked = [item for item in session.items if item.get_closest_marker("xdist_group")]
        assert all("@" in item.nodeid for item in marked), (
            "the groups of tests are not kept together"
        )


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Know where to print."""
    global _terminal
    _terminal = config.pluginmanager.get_plugin("terminalreporter")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Name a failure when it happens, for the run may be cut short; remember why tests were skipped."""
    if report.failed and _terminal is not None:
        crash = getattr(report.longrepr, "reprcrash", None)
        reason = crash.message.partition("\n")[0] if crash else ""
        _terminal.write_line(f"\n{report.nodeid}: {report.when} failed: {reason}")
    if report.skipped and isinstance(report.longrepr, tuple):
        _skipped[report.longrepr[2].removeprefix("Skipped: ")] += 1


def pytest_unconfigure(config: pytest.Config) -> None:
    """The last line tells how many tests were skipped, and why."""
    if _skipped and not hasattr(config, "workerinput"):
        reasons = "; ".join(f"{count} because {reason}" for reason, count in _skipped.items())
        print(f"{_skipped.total()} skipped: {reasons}")


class Clock:
    """A clock that stands still until it is told to go on; ms since the epoch."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture(scope="session", autouse=True)
def user_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What goes to the user's cache directory goes to one of the tests' own, in the programs they start, too."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@contextmanager
def alone_with_mounts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Only one test at a time is in here.

    A process with a mount namespace of its own has a copy of every mount that there is, also of those of the tests
    beside it. Until it ends, `logfs umount` finds them mounted elsewhere.
    """
    with (tmp_path_factory.getbasetemp().parent / "mounts.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture
def mounts_alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The test makes a mount namespace, or unmounts and asks whether the mount is in another one."""
    with alone_with_mounts(tmp_path_factory):
        yield


@pytest.fixture
def clock() -> Clock:
    """The clock of the `store` fixture."""
    return Clock()


def assert_clean(*log_dirs: Path) -> None:
    """The audit finds no error."""
    findings = [finding for finding in check(log_dirs) if finding.severity is Severity.ERROR]
    assert not findings, "\n".join(map(str, findings))


@pytest.fixture
def log_dir(tmp_path: Path) -> Iterator[Path]:
    """A log directory that must be clean when the test is over, if the test began one."""
    path = tmp_path / "log"
    yield path
    if path.is_dir() and any(path.iterdir()):
        assert_clean(path)


@pytest.fixture
def store(log_dir: Path, clock: Clock) -> Iterator[Store]:
    """An empty store, audited when the test is over."""
    with Store(log_dir, clock=clock) as store:
        yield store


@dataclass
class Mount:
    """A mount by a daemon of its own, run as `logfs mount -f`; `module` is another one to run in its place."""

    path: Path
    log_dirs: list[Path]
    options: list[str] = field(default_factory=list)
    uid: int | None = None
    module: Sequence[str] = ("logfs",)
    process: subprocess.Popen[bytes] | None = None
    log: Path | None = None

    def start(self) -> Mount:
        """Mount, and wait until it answers."""
        try:
            self.path.mkdir()
        except FileExistsError:
            # Perhaps a dead mount, which the daemon is to clear away.
            pass
        self.log = self.path.with_name(self.path.name + ".log")
        command = [sys.executable, "-m", *self.module, "mount", "-f", *self.options]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *map(str, self.log_dirs), str(self.path)],
                stdout=subprocess.PIPE,
                stderr=log,
                user=self.uid,
                group=self.uid,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.endswith(b"ready\n"), f"no mount: {self.log.read_text()}"
        return self

    def partition(self, name: str) -> Path:
        """Make a partition and give its directory."""
        path = self.path / name
        path.mkdir()
        return path

    def errors(self) -> str:
        """What `.logfs/errors` says."""
        return (self.path / ".logfs/errors").read_text()

    def kill(self) -> None:
        """kill -9 of the daemon; the dead mount stays, as after a crash."""
        assert self.process is not None
        self.process.kill()
        self._reap()

    def stop(self) -> None:
        """Unmount and wait for the daemon; a mount that is dead already is cleared away."""
        if self.process is None:
            self._clear()
            return
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self._reap()
        self._clear()

    def remount(self) -> None:
        """Stop, if it lives, and start again on the same directories."""
        self.stop()
        self.start()

    def _reap(self) -> None:
        assert self.process is not None
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            pytest.fail("the daemon did not end within 30 s")
        finally:
            if self.process.stdout is not None:
                self.process.stdout.close()
            self.process = None

    def _clear(self) -> None:
        if is_mounted(self.path):
            subprocess.run(["umount", "-l", str(self.path)], check=False, capture_output=True)


@pytest.fixture
def make_mount(tmp_path: Path) -> Iterator[Callable[..., Mount]]:
    """Mounts that are unmounted whatever happens, and whose log directories are audited afterwards."""
    need_fuse()
    mounts: list[Mount] = []

    def make(
        *options: str, name: str = "mnt", log_dirs: list[Path] | None = None, uid: int | None = None
    ) -> Mount:
        mount = Mount(tmp_path / name, log_dirs or [tmp_path / "log"], list(options), uid)
        mounts.append(mount)
        return mount.start()

    yield make
    for mount in mounts:
        mount.stop()
    for log_dirs in {tuple(mount.log_dirs) for mount in mounts}:
        # A disk of its own that the test has unmounted, and looked at before.
        if all(any(path.iterdir()) for path in log_dirs):
            assert_clean(*log_dirs)


@pytest.fixture
def mount(make_mount: Callable[..., Mount]) -> Mount:
    """A fresh mount of a fresh store."""
    return make_mount()


@pytest.fixture
def orders(mount: Mount) -> Path:
    """The directory of an empty partition `orders-0` on a fresh mount."""
    return mount.partition("orders-0")


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
