"""Several log directories: one that fails takes its own partitions offline, at once, and no others."""

from __future__ import annotations

import errno
import os
import subprocess
from functools import partial
from typing import TYPE_CHECKING

import orjson
import pytest

from logfs.cli import main
from logfs.errors import LogDirFailed
from logfs.log.disk.disk import Disk
from logfs.store.directory.log_dir import CLEAN_SHUTDOWN, RECOVERY_POINTS, STORE_DIRS
from logfs.store.observe.metrics import metrics
from logfs.store.observe.status import store_status
from logfs.store.store import Store
from tests.support.command_line import call
from tests.support.mounts import Mount
from tests.support.processes import NOBODY, run, wait_for
from tests.support.requirements import need_fuse, need_root
from tests.support.stores import Clock, assert_clean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from logfs.log.disk.disk import File

pytestmark = pytest.mark.usefixtures("quiet_log")

EVERY_MS = 10**8
COUNT = b"kafka_log_logmanager_offlinelogdirectorycount "


class BrokenDisk(Disk):
    """A disk whose calls of one kind fail below one directory, after `break_down`."""

    def __init__(self) -> None:
        super().__init__()
        self.broken: tuple[str, str, int] | None = None

    def break_down(self, kind: str, below: Path, number: int = errno.EIO) -> None:
        """Let calls of this name fail below a directory from now on."""
        self.broken = (kind, str(below), number)

    def __getattribute__(self, name: str) -> object:
        found = super().__getattribute__(name)
        broken = super().__getattribute__("__dict__").get("broken")
        if broken is None or broken[0] != name:
            return found

        def call(target: Path | File, *arguments: object, **named: object) -> object:
            path = str(getattr(target, "path", target))
            if path.startswith(broken[1]):
                raise OSError(broken[2], os.strerror(broken[2]), path)
            return found(target, *arguments, **named)

        return call


@pytest.fixture
def log_dirs(tmp_path: Path) -> Iterator[list[Path]]:
    """Two log directories, audited at the end."""
    paths = [tmp_path / "one", tmp_path / "two"]
    yield paths
    assert_clean(*paths)


def fill(store: Store) -> None:
    """Create four partitions, two in each log directory, with one flushed record each."""
    for number in range(4):
        partition = store.create(f"a-{number}")
        partition.append([b"durable"])
        partition.flush()


TRIGGERS: dict[str, Callable[[Store, str], object]] = {
    "write": lambda store, name: store[name].append([b"x"]),
    "sync": lambda store, name: (store[name].append([b"x"]), store[name].flush()),
    "read": lambda store, name: store[name].record(0),
    "open": lambda store, name: store[name].roll(0) and store.create("b-0"),
    "replace_file": lambda store, name: store.checkpoints.write(),
    "stat": lambda store, name: store.upkeep(),
}


@pytest.mark.parametrize("kind", TRIGGERS)
def test_a_storage_error_of_any_kind_takes_one_log_dir_offline(
    kind: str, log_dirs: list[Path], clock: Clock
) -> None:
    """After EIO at a call in one of two directories, all of its partitions refuse all calls, and the others go on."""
    disk = BrokenDisk()
    with Store(log_dirs, clock=clock, disk=disk) as store:
        fill(store)
        bad = log_dirs[0]
        mine = {name for name in store if store.registry.home(name) == bad}
        others = set(store) - mine
        assert len(mine) == len(others) == 2
        held = store[min(mine)]
        for name in mine:
            store[name].append([b"one more"])
        disk.break_down(kind, bad)
        if kind == "stat":
            store.upkeep()
        else:
            with pytest.raises(LogDirFailed, match=str(bad)):
                TRIGGERS[kind](store, min(mine))
        disk.broken = None
        assert set(store.offline) == mine
        assert set(store) == others
        with pytest.raises(LogDirFailed, match="offline"):
            held.append([b"no"])
        with pytest.raises(LogDirFailed):
            held.record(0)
        for name in mine:
            with pytest.raises(LogDirFailed):
                store[name]
        for name in others:
            store[name].append([b"goes on"])
            assert store[name].flush() == 2
        clock.now_ms += EVERY_MS
        store.upkeep()
        assert (
            f"{min(others)[:1]} {min(others)[2:]} 2" in (log_dirs[1] / RECOVERY_POINTS).read_text()
        )
        new = {f"c-{number}" for number in range(3)}
        assert {store.create(name).directory.parent for name in new} == {log_dirs[1]}
        assert [*store_status(store)["offline_log_dirs"]] == [str(bad)]
        assert COUNT + b"1\n" in metrics(store)
    assert not (bad / CLEAN_SHUTDOWN).exists()
    assert (log_dirs[1] / CLEAN_SHUTDOWN).exists()
    with Store(log_dirs, clock=clock) as store:
        assert not store.offline
        assert all(store[name].record(0).value == b"durable" for name in mine | others)
        assert store_status(store)["offline_log_dirs"] == {}


@pytest.mark.parametrize("kind", ["write", "sync"])
def test_a_log_dir_that_fails_while_its_store_closes(
    kind: str, log_dirs: list[Path], clock: Clock
) -> None:
    """The partitions of the other directory are closed cleanly, and no flushed record is lost."""
    disk = BrokenDisk()
    with Store(log_dirs, clock=clock, disk=disk) as store:
        for number in range(40):
            partition = store.create(f"a-{number}")
            partition.append([b"durable"])
            partition.flush()
            partition.append([b"not flushed"])
        disk.break_down(kind, log_dirs[0])
    assert not (log_dirs[0] / CLEAN_SHUTDOWN).exists()
    assert (log_dirs[1] / CLEAN_SHUTDOWN).exists()
    with Store(log_dirs, clock=clock) as store:
        assert len(store) == 40
        assert all(store[name].record(0).value == b"durable" for name in store)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_no_failed_log_dir(number: int, log_dirs: list[Path], clock: Clock) -> None:
    """ENOSPC and EDQUOT can pass by themselves, and take nothing offline."""
    disk = BrokenDisk()
    with Store(log_dirs, clock=clock, disk=disk) as store:
        fill(store)
        disk.break_down("write", log_dirs[0], number)
        name = next(name for name in store if store.registry.home(name) == log_dirs[0])
        with pytest.raises(OSError, match=r".") as caught:
            store[name].append([b"x"])
        assert caught.value.errno == number
        disk.broken = None
        store[name].append([b"fits"])
        assert not store.offline
        assert not store.registry.failed


def test_the_full_disk_of_one_log_dir_is_no_error_of_another(
    log_dirs: list[Path], clock: Clock
) -> None:
    """Records of a partition can be deleted and truncated while the disk of the other directory is full."""
    disk = BrokenDisk()
    with Store(log_dirs, clock=clock, disk=disk) as store:
        fill(store)
        name = next(name for name in store if store.registry.home(name) == log_dirs[1])
        for _ in range(5):
            store[name].append([b"x"])
        disk.break_down("replace_file", log_dirs[0], errno.ENOSPC)
        assert store.delete_records(name, 2) == 2
        assert store.truncate(name, 4)
        assert (store[name].log_start_offset, store[name].log_end_offset) == (2, 4)
        disk.broken = None


def test_settings_are_refused_while_a_copy_of_them_cannot_be_written(
    log_dirs: list[Path], clock: Clock
) -> None:
    """A change of settings is refused, because the old copy would decide once its directory is back."""
    disk = BrokenDisk()
    with Store(log_dirs, clock=clock, disk=disk) as store:
        fill(store)
        disk.break_down("replace_file", log_dirs[0])
        with pytest.raises(LogDirFailed):
            store.checkpoints.write()
        disk.broken = None
        with pytest.raises(LogDirFailed):
            store.settings.set_topic("a", "retention.ms", "1")


def test_a_log_dir_that_cannot_be_opened_leaves_the_others(
    log_dirs: list[Path], clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other log directories are opened; if there are none, it is an error.

    A partition that may be in a directory that was not read is not created.
    """
    with Store(log_dirs, clock=clock) as store:
        fill(store)
        good = {name for name in store if store.registry.home(name) == log_dirs[1]}
    disk = BrokenDisk()
    disk.break_down("scan", log_dirs[0])
    with Store(log_dirs, clock=clock, disk=disk) as store:
        assert set(store) == good
        assert str(log_dirs[0]) in str(store.registry.failed[0])
        with pytest.raises(LogDirFailed):
            store.create("a-0")
    disk.break_down("scan", log_dirs[0].parent)
    with pytest.raises(LogDirFailed):
        Store(log_dirs, clock=clock, disk=disk)
    assert main(["describe", "--json", *map(str, log_dirs)]) == 0
    told = orjson.loads(capsys.readouterr().out)["brokers"][0]["logDirs"]
    assert [each["error"] for each in told] == [None, None]


def test_a_log_dir_that_is_replaced_is_not_written_to(log_dirs: list[Path], clock: Clock) -> None:
    """Another directory of the same name is not the one that was opened, and no file is written to it."""
    with Store(log_dirs, clock=clock) as store:
        fill(store)
        mine = {name for name in store if store.registry.home(name) == log_dirs[0]}
        away = log_dirs[0].with_name("away")
        log_dirs[0].rename(away)
        log_dirs[0].mkdir()
        store.upkeep()
        assert set(store.offline) == mine
        clock.now_ms += EVERY_MS
        store.upkeep()
        store.close()
        assert not [*log_dirs[0].iterdir()]
    log_dirs[0].rmdir()
    away.rename(log_dirs[0])


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[list[Path]]:
    """Two small filesystems."""
    need_root()
    paths = [tmp_path / "disk1", tmp_path / "disk2"]
    try:
        for path in paths:
            path.mkdir()
            run("mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", path)
        yield paths
    finally:
        for path in paths:
            subprocess.run(["umount", "-l", str(path)], check=False, capture_output=True)


def test_a_disk_that_is_unmounted_under_the_daemon(disks: list[Path], tmp_path: Path) -> None:
    """Its partitions answer EIO and stay listed, those of the other disk go on, and the status names the failure."""
    need_fuse()
    mount = Mount(tmp_path / "mnt", disks).start()
    try:
        for number in range(4):
            (mount.partition(f"a-{number}") / "append").write_bytes(b"first\n")
        lost = {path.name for path in disks[0].iterdir() if path.is_dir()}
        kept = {path.name for path in disks[1].iterdir() if path.is_dir()}
        assert len(lost) == len(kept) == 2
        run("umount", "-l", disks[0])
        status = mount.path / ".logfs/status.json"
        wait_for(lambda: set(orjson.loads(status.read_bytes())["offline"]) == lost)
        assert [*orjson.loads(status.read_bytes())["offline_log_dirs"]] == [str(disks[0])]
        assert COUNT.decode() + "1\n" in (mount.path / ".logfs/metrics").read_text()
        assert lost | kept <= set(os.listdir(mount.path))
        for name in lost:
            path = mount.path / name
            uses: tuple[Callable[[], object], ...] = (
                (path / "records").read_bytes,
                partial((path / "append").write_bytes, b"no\n"),
                partial(os.listdir, path),
            )
            for use in uses:
                with pytest.raises(OSError, match=r".") as caught:
                    use()
                assert caught.value.errno == errno.EIO
        assert str(disks[0]) in mount.errors()
        for name in kept:
            (mount.path / name / "append").write_bytes(b"second\n")
            assert (mount.path / name / "records").read_bytes() == b"first\nsecond\n"
        mount.partition("b-0")
        assert (disks[1] / "b-0").is_dir()
        assert not [*disks[0].iterdir()], "written under an empty mountpoint"
        assert main(["status", str(mount.path)]) == 1
        for words in (["describe", mount.path], ["cat", mount.path / kept.pop()]):
            assert call(*words).returncode == 0, words
        os.statvfs(mount.path)
    finally:
        mount.stop()
    assert (disks[1] / CLEAN_SHUTDOWN).exists()
    assert_clean(disks[1])


def test_what_root_makes_belongs_to_the_owner_of_the_log_directory(tmp_path: Path) -> None:
    """Otherwise the owner, such as a service, could not open the log after a command of an administrator."""
    need_root()
    path = tmp_path / "log"
    path.mkdir()
    os.chown(path, NOBODY, NOBODY)
    for _ in range(2):
        with Store(path) as store:
            if "orders-0" not in store:
                store.create("orders-0")
            store["orders-0"].append([b"x"])
            store["orders-0"].roll(store.clock())
            store.settings.set_topic("orders", "retention.ms", "-1")
            store.groups.commit("readers", "orders-0", 1)
    made = [*path.rglob("*")]
    assert len(made) > 15
    assert {(each.lstat().st_uid, each.lstat().st_gid) for each in made} == {(NOBODY, NOBODY)}


def test_root_may_be_refused_another_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on NFS, or in a user namespace: what root makes then stays its own, and the log works."""
    need_root()
    path = tmp_path / "log"
    path.mkdir()
    os.chown(path, NOBODY, NOBODY)

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "chown", refuse)
    with Store(path) as store:
        store.create("orders-0").append([b"x"])
    assert (path / "orders-0").stat().st_uid == os.geteuid()


def test_a_directory_with_the_list_of_its_store_alone_opens(tmp_path: Path) -> None:
    """As after the last partition has left it, and a cleanup of the files that a store writes again."""
    one, other = tmp_path / "one", tmp_path / "other"
    with Store([one, other]) as store:
        store.create("orders-0").append([b"kept"])
        has_it = store.registry.home("orders-0")
    empty = other if has_it == one else one
    for path in empty.iterdir():
        if path.name != STORE_DIRS:
            path.unlink()
    assert [path.name for path in empty.iterdir()] == [STORE_DIRS]
    with Store([one, other]) as store:
        assert [record.value for record in store["orders-0"].read()] == [b"kept"]
    with Store(empty, create=False) as store:
        assert list(store) == []
