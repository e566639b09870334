"""Shared fixtures and hooks: stores and mounts that are audited after each test, and a summary of skipped tests."""

from __future__ import annotations

import gc
import logging
import os
import re
import signal
from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING

import pytest
from hypothesis import is_hypothesis_test, seed, settings

from logfs.log.disk.bucket_path import BucketPath
from logfs.store.store import Store
from tests.support import examples, fault_sites, lock_order
from tests.support.mounts import Mount, alone_with_mounts, make_mounts_private
from tests.support.requirements import DEEP, need_command, need_fuse
from tests.support.stores import Clock, assert_clean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from playwright.sync_api import Browser


settings.register_profile("default", deadline=None, max_examples=25)
settings.register_profile("short", deadline=None, max_examples=10)
settings.register_profile("deep", deadline=None, max_examples=5000)
settings.load_profile(os.environ.get("LOGFS_HYPOTHESIS", "default"))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that runs the tests in the background ignores SIGINT. The programs that tests start must react to it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    # The same holds for `nohup`. The tests themselves go on.
    signal.signal(signal.SIGHUP, lambda *_: None)

# The most characters or bytes of a parameter that are part of a test's name.
LONGEST_PARAMETER = 80

_skipped: Counter[str] = Counter()
# The terminal reporter of this process; None in a worker.
_terminal: pytest.TerminalReporter | None = None


def pytest_make_parametrize_id(val: object) -> str | None:
    """Shorten the name of a case with a long parameter, because each worker sends the names of all tests."""
    if isinstance(val, str | bytes) and len(val) > LONGEST_PARAMETER:
        return f"{val[:LONGEST_PARAMETER]!a} of {len(val)}"
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Draw the cases of tests marked `drawn` and the modules marked `campaign`, seed Hypothesis, and group tests.

    The tests of a group share a JVM. One worker runs all tests against Kafka, and one all tests that share a Spark
    session: to start and warm up these JVMs in each worker would take minutes of processor time. Other tests of Spark
    are grouped by module. This hook runs before xdist reads the marks.
    """
    cases: dict[tuple[str, int], list[pytest.Item]] = {}
    for item in items:
        if mark := item.get_closest_marker("drawn"):
            cases.setdefault((item.nodeid.partition("[")[0], mark.args[0]), []).append(item)
    left_out: set[pytest.Item] = set()
    # A case or a module that is named on the command line runs.
    if not any("[" in word for word in config.args):
        left_out |= {*chain(*cases.values())}
        left_out.difference_update(
            *(examples.drawn(each, count) for (_, count), each in cases.items())
        )
    if not any(".py" in word for word in config.args):
        campaigns: dict[Path, set[Path]] = {}
        for item in items:
            if item.get_closest_marker("campaign"):
                campaigns.setdefault(item.path.parent, set()).add(item.path)
        for found in campaigns.values():
            resting = found.difference(examples.drawn(sorted(found), -(-len(found) // 2)))
            left_out |= {item for item in items if item.path in resting}
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)
    is_seeded = DEEP or config.getoption("hypothesis_seed") is not None
    sharing = {item.path for item in items if "spark" in getattr(item, "fixturenames", ())}
    for item in items:
        if not is_seeded and is_hypothesis_test(function := getattr(item, "obj", None)):
            seed(examples.seed_of())(getattr(function, "__func__", function))
        if (folder := item.path.parent.name) in ("kafka", "spark"):
            is_shared = folder == "kafka" or item.path in sharing
            group = folder if is_shared else f"{folder} {item.path.stem}"
            item.add_marker(pytest.mark.xdist_group(group))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fail at once if the marks have no effect, as with pytest 9.2: each worker would start brokers for a module."""
    # The garbage collector then leaves alone what stays to the end: the modules, and some ten thousand tests. It runs
    # less often than by default, where it takes an eighth of the processor time.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    if session.config.getoption("loadgroup", default=False):
        marked = [item for item in session.items if item.get_closest_marker("xdist_group")]
        assert all("@" in item.nodeid for item in marked), (
            "the groups of tests are not kept together"
        )


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Remember the terminal reporter, and note fault sites if wanted; in a worker, see the mounts of no other one."""
    global _terminal
    if hasattr(config, "workerinput"):
        make_mounts_private()
    _terminal = config.pluginmanager.get_plugin("terminalreporter")
    if folder := os.environ.get(fault_sites.FOLDER):
        fault_sites.install(folder)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Print each failure when it happens, because the run may be cut short, and count the reasons of skips."""
    if report.failed and _terminal is not None:
        crash = getattr(report.longrepr, "reprcrash", None)
        reason = crash.message.partition("\n")[0] if crash else ""
        _terminal.write_line(f"\n{report.nodeid}: {report.when} failed: {reason}")
    if report.skipped and isinstance(report.longrepr, tuple):
        _skipped[report.longrepr[2].removeprefix("Skipped: ")] += 1


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """After failures, print the seeds that draw the same cases."""
    if terminalreporter.stats.get("failed"):
        seeds = {examples.SEED: str(examples.seed_of())}
        seeds |= {name: os.environ[name] for name in os.environ if re.match("LOGFS_.*_SEED$", name)}
        words = " ".join(f"{name}={seed}" for name, seed in seeds.items())
        terminalreporter.write_line(f"{words} repeats the random cases")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Print the shares of fault sites, if wanted, and last how many tests were skipped and why."""
    folder = os.environ.get(fault_sites.FOLDER)
    if folder and not hasattr(config, "workerinput"):
        print("\n".join(fault_sites.summary(folder)))
    if _skipped and not hasattr(config, "workerinput"):
        reasons = "; ".join(f"{count} because {reason}" for reason, count in _skipped.items())
        print(f"{_skipped.total()} skipped: {reasons}")


@pytest.fixture(scope="session", autouse=True)
def user_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Replace the user's cache directory by a temporary one, also in the programs that tests start."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True)
def lock_order_kept(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test of the engine, a store or a mount during which a thread has broken a rule of `logfs/locks.py`."""
    # Not the fixture `monkeypatch`: what a test patches by that must be undone before the audit of its log.
    with pytest.MonkeyPatch.context() as environment:
        if {"log", "store", "mount", "test_locks.py"} & set(request.node.path.parts):
            environment.setenv(lock_order.STRICT, "1")
        yield
    found = lock_order.found.copy()
    lock_order.found.clear()
    # A test may leave a disk whose calls must not wait in this thread.
    lock_order.loops.clear()
    assert not found, found[0]


@pytest.fixture
def mounts_alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """For tests that create a mount namespace, or that check whether an unmounted mount is in another one.

    Only one of these tests runs at a time.
    """
    with alone_with_mounts(tmp_path_factory):
        yield


@pytest.fixture
def quiet_log() -> Iterator[None]:
    """Disable log lines: a test with thousands of faults or recoveries would print thousands."""
    logger = logging.getLogger("logfs")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    yield
    logger.setLevel(level)


@pytest.fixture
def clock() -> Clock:
    """The clock of the `store` fixture."""
    return Clock()


@pytest.fixture
def log_dir(tmp_path: Path) -> Iterator[Path]:
    """A log directory. If the test has created it, the audit must find no error in it after the test."""
    path = tmp_path / "log"
    yield path
    if path.is_dir() and any(path.iterdir()):
        assert_clean(path)


@pytest.fixture
def store(log_dir: Path, clock: Clock) -> Iterator[Store]:
    """An empty store, audited after the test."""
    with Store(log_dir, clock=clock) as store:
        yield store


@pytest.fixture
def make_mount(tmp_path: Path) -> Iterator[Callable[..., Mount]]:
    """Return a function that mounts. The mounts are always unmounted, and their log directories are then audited."""
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
        # A log directory on a disk of its own is empty here: the test has audited and unmounted it.
        # A bucket has no files that could be listed.
        local = [path for path in log_dirs if not isinstance(path, BucketPath)]
        if local and all(any(path.iterdir()) for path in local):
            assert_clean(*log_dirs)


@pytest.fixture
def mount(make_mount: Callable[..., Mount]) -> Mount:
    """A new mount of a new store."""
    return make_mount()


@pytest.fixture
def orders(mount: Mount) -> Path:
    """The directory of an empty partition `orders-0` on a new mount."""
    return mount.partition("orders-0")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium without a window."""
    from playwright.sync_api import sync_playwright

    path = need_command("chromium")
    with sync_playwright() as playwright:
        # The sandbox of Chromium does not start for root, and the pages are ours.
        browser = playwright.chromium.launch(executable_path=path, chromium_sandbox=False)
        yield browser
        browser.close()
