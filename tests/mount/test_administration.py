"""The administration of a real mount: names, modes, settings, status, mounting, unmounting and read-only mounts."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import pytest

import logfs
from logfs.store.admin.client import ask
from logfs.store.admin.requests import Create, Delete
from logfs.store.directory.mount_table import logfs_mounts, mounts
from logfs.store.store import Store
from tests.support import command_line
from tests.support.command_line import ok
from tests.support.mounts import Mount, refuses
from tests.support.processes import NOBODY, Threads, as_nobody, run, wait_for
from tests.support.requirements import need, need_command, need_fuse, need_root
from tests.support.stores import assert_clean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    MakeMount = Callable[..., Mount]


_numbers = count()

# The contents of a partition directory (docs/filesystem.md).
FILES = {
    "append",
    "append.jsonl",
    "records",
    "records.jsonl",
    "offsets",
    "time",
    "segments",
    "config",
    "groups",
    "keys",
    "log-start-offset",
    "ctl",
    "status.json",
}


@pytest.fixture(scope="module")
def shared(public: Path) -> Iterator[Mount]:
    """A mount with allow_other, for all tests of this module that need no mount of their own."""
    need_fuse()
    need_root()
    # Directories that logfs creates are closed to other users, so the log directory is created here, with mode 0755.
    (public / "log").mkdir()
    (public / "log").chmod(0o755)
    mount = (
        Mount(public / "mnt", [public / "log"], ["-o", "allow_other"]).start().keep_old_records()
    )
    yield mount
    mount.stop()
    assert_clean(*mount.log_dirs)


def empty(topic: Path) -> None:
    """Delete all records of a partition, which then can be removed by rmdir."""
    end = orjson.loads((topic / "status.json").read_bytes())["log_end_offset"]
    (topic / "log-start-offset").write_text(str(end))


def call(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command of `logfs` that may fail."""
    done = command_line.call(*words)
    printed = (os.fsdecode(each) for each in (done.stdout, done.stderr))
    return subprocess.CompletedProcess(done.args, done.returncode, *printed)


def texts_in(value: object) -> set[str]:
    """Return all strings in a JSON value, without the names of fields."""
    if isinstance(value, str):
        return {value}
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return {text for part in parts for text in texts_in(part)}


def mounted(path: Path) -> int:
    """Return the number of filesystems that are mounted on a path."""
    return sum(each.mountpoint == str(path) for each in mounts())


# Partitions.


@pytest.mark.parametrize(
    "name",
    [
        "orders",
        "orders-",
        "orders-x",
        "orders-01",
        "orders--x",
        "-0",
        ".-0",
        "..-0",
        "or ders-0",
        "orders/-0".replace("/", ":"),
        "örders-0",
        "orders-2147483648",
        "orders-99999999999999999999",
        "x" * 250 + "-0",
        "orders-0.tmp",
        "or\nders-0",
        b"\xff-0",
    ],
)
def test_mkdir_of_a_bad_name(shared: Mount, name: str | bytes) -> None:
    """mkdir fails with EINVAL for a name that Kafka does not allow, and leaves nothing in the log directory."""
    before = sorted(os.listdir(shared.log_dirs[0]))
    with refuses(errno.EINVAL):
        os.mkdir(os.fsencode(shared.path) + b"/" + os.fsencode(name))
    assert sorted(os.listdir(shared.log_dirs[0])) == before


@pytest.mark.parametrize(
    "name", ["a-0", "orders.v2_x-Y-17", "x" * 249 + "-0", "0-0", "a--1", "t-2147483647"]
)
def test_mkdir_of_a_good_name(shared: Mount, name: str) -> None:
    """mkdir creates a partition with every documented file, and with Kafka's files in the log directory."""
    directory = shared.partition(name)
    assert set(os.listdir(directory)) == FILES
    below = set(os.listdir(shared.log_dirs[0] / name))
    assert {"00000000000000000000.log", "partition.metadata"} <= below
    assert name in os.listdir(shared.path)
    with refuses(errno.EEXIST):
        os.mkdir(directory)
    directory.rmdir()
    assert name not in os.listdir(shared.path)


def test_mkdir_elsewhere(shared: Mount, topic: Path) -> None:
    """Directories can be created only in the root of the mount: elsewhere mkdir fails with EPERM."""
    for parent in (
        topic,
        topic / "offsets",
        topic / "time",
        topic / "config",
        shared.path / ".logfs",
    ):
        with refuses(errno.EPERM):
            (parent / "orders-0").mkdir()
    with refuses(errno.EEXIST):
        (shared.path / ".logfs").mkdir()


def test_rmdir(shared: Mount, topic: Path) -> None:
    """rmdir deletes a partition without records, as Kafka does: it is renamed to `*-delete`, and removed after
    `file.delete.delay.ms`. The name can then be used again, with default settings.
    """
    log_dir = shared.log_dirs[0]
    (topic / "append").write_bytes(b"a\nb\n")
    empty(topic)
    (topic / "config/file.delete.delay.ms").write_text("0")
    topic.rmdir()
    assert not topic.exists()
    assert not (log_dir / topic.name).exists()
    wait_for(lambda: not list(log_dir.glob(f"{topic.name}.*-delete")))
    again = shared.partition(topic.name)
    assert (again / "records").read_bytes() == b""
    assert (again / "config/file.delete.delay.ms").read_text() == "60000\n"
    (again / "append").write_bytes(b"c\n")
    assert (again / "offsets/0").read_bytes() == b"c"


def test_rmdir_waits_for_the_delay(shared: Mount, topic: Path) -> None:
    """Until `file.delete.delay.ms` has passed, a deleted partition's files exist under Kafka's name `*-delete`."""
    (topic / "append").write_bytes(b"a\n")
    empty(topic)
    topic.rmdir()
    (doomed,) = shared.log_dirs[0].glob(f"{topic.name}.*-delete")
    assert (doomed / "00000000000000000000.log").stat().st_size > 0


def test_rmdir_and_rm_destroy_no_records(shared: Mount, topic: Path) -> None:
    """A partition or topic with records is ENOTEMPTY, with the command that deletes it; `rm -rf` changes nothing."""
    name, number = topic.name.rsplit("-", 1)
    (topic / "append").write_bytes(b"a\nb\n")
    (topic / "groups/billing").write_text("1")
    (topic / "config/retention.ms").write_text("7200000")
    whole_topic = shared.path / "topics" / name
    for path in (topic, whole_topic):
        with refuses(errno.ENOTEMPTY):
            path.rmdir()
        log_dir = shared.log_dirs[0]
        assert (
            f"has 2 records; to delete them too, run 'logfs delete {log_dir}/{name}-{number}'"
            in shared.errors()
        )

    def look() -> object:
        files = ("records.jsonl", "groups/billing", "config/retention.ms")
        return sorted(os.listdir(shared.path)), [(topic / each).read_bytes() for each in files]

    before = look()
    for path in (topic, whole_topic, topic / "groups", shared.path / ".logfs", shared.path):
        done = subprocess.run(["rm", "-rf", path], capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert look() == before
    assert f"'logfs groups {shared.log_dirs[0]} --forget billing {topic.name}'" in shared.errors()
    assert call("delete", shared.log_dirs[0] / topic.name).returncode == 0
    # The kernel may answer from its cache for a second.
    wait_for(lambda: not topic.exists())


def test_rmdir_refuses_everything_but_partitions(shared: Mount, topic: Path) -> None:
    """rmdir of a directory in a partition or in `.logfs` is EPERM, of a missing one ENOENT, and of a file ENOTDIR."""
    for path in (
        shared.path / ".logfs",
        topic / "offsets",
        topic / "config",
        shared.path / ".logfs/config",
    ):
        with refuses(errno.EPERM):
            path.rmdir()
    with refuses(errno.ENOENT):
        (shared.path / "nothing-0").rmdir()
    with refuses(errno.ENOTDIR):
        (topic / "records").rmdir()


def test_deleted_under_open_handles(shared: Mount, topic: Path) -> None:
    """When a partition is deleted while it is open, writes fail with ENOENT, reads continue, and its name is free."""
    (topic / "append").write_bytes(b"a\n")
    with (topic / "records").open("rb") as reader, (topic / "append").open("ab", 0) as writer:
        assert call("delete", shared.log_dirs[0] / topic.name).returncode == 0
        with refuses(errno.ENOENT):
            writer.write(b"b\n")
        assert reader.read() == b"a\n"
        again = shared.partition(topic.name)
        (again / "append").write_bytes(b"c\n")
        assert (again / "records").read_bytes() == b"c\n"


def test_open_files_of_a_deleted_partition_change_nothing(shared: Mount, topic: Path) -> None:
    """Writes to them fail with ENOENT, whether or not a new partition has the name, which stays as it is."""
    whole_topic = shared.path / "topics" / topic.name.removesuffix("-0")
    (topic / "append").write_bytes(b"a\n")
    (topic / "groups/billing").write_text("1")
    writes = {
        topic / "log-start-offset": b"-1",
        topic / "ctl": b"pause",
        topic / "config/retention.ms": b"1000",
        topic / "groups/billing": b"2",
        whole_topic / "config/retention.ms": b"1000",
        whole_topic / "groups/billing": b"0 2",
    }
    opened = {path: os.open(path, os.O_WRONLY) for path in writes}
    try:
        ask(shared.path, Delete(topic.name))
        for is_created_again in (False, True):
            if is_created_again:
                ask(shared.path, Create(topic.name))
                (topic / "append").write_bytes(b"b\nc\n")
                (topic / "groups/billing").write_text("1")
            for path, data in writes.items():
                with refuses(errno.ENOENT):
                    os.write(opened[path], data)
            assert not list(shared.log_dirs[0].glob(f"{whole_topic.name}@p"))
    finally:
        for fd in opened.values():
            os.close(fd)
    assert (topic / "records").read_bytes() == b"b\nc\n"
    assert (topic / "groups/billing").read_text() == "1\n"
    assert "paused" not in (topic / "ctl").read_text()


def test_a_path_leads_to_the_new_partition_at_once(shared: Mount, topic: Path) -> None:
    """Once commands have deleted and created a partition, no name leads to the deleted one."""

    def used() -> list[object]:
        """Return what each name shows. The kernel then has the names and the attributes of the directories."""
        return [
            (topic / "records").read_bytes(),
            (topic / "offsets/0").read_bytes(),
            os.readlink(topic / "keys/k"),
            len(os.listdir(topic / "offsets")),
        ]

    for number in range(3):
        line = b'{"key":"k","value":"%d"}\n' % number
        (topic / "append.jsonl").write_bytes(line)
        assert used() == [b"%d\n" % number, b"%d" % number, "../offsets/0", 3]
        # As `logfs delete` and `logfs create` do, within the second for which the kernel keeps names.
        ask(shared.path, Delete(topic.name))
        ask(shared.path, Create(topic.name))
        assert (topic / "records").read_bytes() == b""
        for name in ("offsets/0", "keys/k"):
            with refuses(errno.ENOENT):
                (topic / name).open()
        assert os.listdir(topic / "offsets") == []


def test_append_only(shared: Mount, topic: Path) -> None:
    """truncate, rm, mv, ln, symlinks, new files and open for writing are EPERM, with a reason in `.logfs/errors`."""
    (topic / "append").write_bytes(b"a\n")
    records, other = topic / "records", topic / "other"
    attempts: list[Callable[[], object]] = [
        lambda: os.truncate(records, 0),
        lambda: records.unlink(),
        lambda: records.rename(other),
        lambda: records.rename(topic / "append"),
        lambda: topic.rename(shared.path / "moved-0"),
        lambda: other.hardlink_to(records),
        lambda: other.symlink_to(records),
        lambda: other.touch(),
        lambda: os.mkfifo(other),
        lambda: records.open("ab"),
        lambda: records.open("r+b"),
        lambda: (topic / "offsets/0").open("wb"),
        lambda: (topic / "offsets/0").unlink(),
        lambda: (topic / "offsets/latest").unlink(),
        lambda: (topic / "append").unlink(),
        lambda: (topic / "status.json").open("wb"),
        lambda: (shared.path / "file").touch(),
        lambda: (shared.path / ".logfs/errors").open("wb"),
        lambda: (topic / "config/retention.ms").unlink(),
        lambda: os.setxattr(records, "user.mine", b"1"),
        lambda: (topic / "offsets/0").chmod(0o600),
    ]
    for number, attempt in enumerate(attempts):
        with pytest.raises(PermissionError, match=rf"\[Errno {errno.EPERM}\]"):
            print(number, attempt())
        last = shared.errors().splitlines()[-1]
        assert " EPERM " in last
        assert "[Errno" not in last
    assert records.read_bytes() == b"a\n"


def test_touch_is_accepted(topic: Path) -> None:
    """The modification time comes from the records: setting it succeeds and has no effect."""
    (topic / "append").write_bytes(b"a\n")
    before = (topic / "records").stat().st_mtime_ns
    os.utime(topic / "records", (0, 0))
    assert (topic / "records").stat().st_mtime_ns == before


# Modes and owners.


def test_modes_persist(make_mount: MakeMount) -> None:
    """chmod and chown on a partition directory or its files persist across a remount."""
    need_root()
    mount = make_mount()
    orders = mount.partition("orders-0")
    orders.chmod(0o750)
    os.chown(orders, 12, 34)
    (orders / "append").chmod(0o220)
    os.chown(orders / "append", 56, -1)
    (orders / "offsets").chmod(0o500)

    def modes() -> list[tuple[int, int, int]]:
        names = ("", "append", "append.jsonl", "records", "offsets", "time", "status.json")
        found = [(orders / name).stat() for name in names]
        return [(stat.S_IMODE(each.st_mode), each.st_uid, each.st_gid) for each in found]

    expected = [
        (0o750, 12, 34),
        (0o220, 56, 34),
        (0o640, 12, 34),
        (0o440, 12, 34),
        (0o500, 12, 34),
        (0o550, 12, 34),
        (0o440, 12, 34),
    ]
    assert modes() == expected
    mount.remount()
    assert modes() == expected


def test_mode_of_mkdir(shared: Mount) -> None:
    """A new partition has the mode that mkdir requests, less the umask, and belongs to the caller."""
    for mode, umask, expected in ((0o777, 0o027, 0o750), (0o700, 0, 0o700)):
        path = shared.path / f"mode{next(_numbers)}-0"
        old = os.umask(umask)
        path.mkdir(mode)
        os.umask(old)
        assert stat.S_IMODE(path.stat().st_mode) == expected
        assert (path.stat().st_uid, path.stat().st_gid) == (os.getuid(), os.getgid())


def test_modes_are_enforced(topic: Path) -> None:
    """Mode bits hold for other users: write on `append` permits to produce, read on `records` permits to consume."""
    (topic / "append").write_bytes(b"secret\n")
    topic.chmod(0o755)
    (topic / "append").chmod(0o600)
    done = as_nobody(f"cat {topic}/records && echo no >> {topic}/append")
    assert done.stdout == "secret\n"
    assert "Permission denied" in done.stderr
    (topic / "append").chmod(0o222)
    for name in ("records", "records.jsonl", "offsets", "time"):
        (topic / name).chmod(0o700)
    done = as_nobody(f"echo yes >> {topic}/append && echo done")
    assert done.stdout == "done\n"
    for name in ("records", "records.jsonl", "offsets/0", "offsets/0..", "time/0"):
        done = as_nobody(f"cat {topic}/{name}")
        assert "Permission denied" in done.stderr, name
        assert done.stdout == ""
    assert (topic / "records").read_bytes() == b"secret\nyes\n"
    topic.chmod(0o700)
    assert "Permission denied" in as_nobody(f"echo no >> {topic}/append").stderr
    assert "Permission denied" in as_nobody(f"mkdir {topic.parent}/mine-0").stderr


def test_a_change_of_mode_is_seen_at_once(topic: Path) -> None:
    """Removing permissions from a partition or from a directory in it takes effect at once for all files in it."""
    (topic / "append").write_bytes(b"secret\n")
    names = ["records", "records.jsonl", "offsets/0", "offsets/0..", "status.json"]
    read = " && ".join(f"cat {topic}/{name} > /dev/null" for name in names)
    topic.chmod(0o755)
    assert as_nobody(read).returncode == 0
    topic.chmod(0o711)
    for name in names:
        assert "Permission denied" in as_nobody(f"cat {topic}/{name}").stderr, name
    assert "Permission denied" in as_nobody(f"echo no >> {topic}/append").stderr
    topic.chmod(0o755)
    assert as_nobody(read).returncode == 0
    (topic / "offsets").chmod(0o711)
    for name in ("offsets/0", "offsets/0.."):
        assert "Permission denied" in as_nobody(f"cat {topic}/{name}").stderr, name
    os.chown(topic / "offsets", NOBODY, -1)
    for name in ("offsets/0", "offsets/0.."):
        assert (topic / name).stat().st_uid == NOBODY
    assert as_nobody(read).returncode == 0


def test_only_the_owner_may_change_a_partition(topic: Path) -> None:
    """A user who does not own a partition cannot chmod, chown, configure or delete it, nor change broker settings."""
    for command in (
        f"chmod 777 {topic}",
        f"chmod 777 {topic}/append",
        f"chown {NOBODY} {topic}",
        f"echo zstd > {topic}/config/compression.type",
        f"rmdir {topic}",
        f"echo 5 > {topic.parent}/.logfs/config/log.segment.bytes",
    ):
        done = as_nobody(command)
        assert done.returncode != 0, command
        assert "ermi" in done.stderr, done.stderr
    assert topic.is_dir()


def test_an_owner_other_than_root_has_every_permission(topic: Path) -> None:
    """An owner who is not root may produce, consume, configure and chmod, and can read the last offset of a write."""
    os.chown(topic, NOBODY, NOBODY)
    need(shutil.which("getfattr"), "getfattr is not installed")
    script = f"""
        cd {topic} &&
        echo a >> append && echo '{{"value":"b"}}' >> append.jsonl && cat records &&
        echo zstd > config/compression.type && cat config/compression.type &&
        chmod 700 records && stat -c %a records &&
        exec >> append && echo c && exec getfattr --only-values -n user.logfs.last_offset append >&2
    """
    done = as_nobody(script)
    assert (done.stdout, done.stderr, done.returncode) == ("a\nb\nzstd\n700\n", "2", 0)


def test_without_allow_other(make_mount: MakeMount, public: Path) -> None:
    """Without allow_other no other user has access, whatever the mode bits are; default_permissions is always on."""
    need_root()
    mount = Mount(public / "closed", [public / "closed-log"]).start()
    try:
        mount.partition("orders-0").chmod(0o777)
        assert "Permission denied" in as_nobody(f"cat {mount.path}/orders-0/records").stderr
        (line,) = [each for each in mounts() if each.mountpoint == str(mount.path)]
        assert "default_permissions" in line.options
        assert "allow_other" not in line.options
        assert "nosuid" in line.flags
        assert "nodev" in line.flags
        assert (line.kind, line.source) == ("fuse.logfs", str(mount.log_dirs[0]))
    finally:
        mount.stop()
        assert_clean(*mount.log_dirs)


def test_created_files_are_closed_to_other_users(make_mount: MakeMount, tmp_path: Path) -> None:
    """Created directories have mode 0750 and files 0640. The root of the mount has the mode of the log directory."""
    mount = make_mount()
    topic = mount.partition("orders-0")
    (topic / "append").write_bytes(b"a\n")
    (topic / "config/retention.ms").write_text("1000000000")
    os.close(os.open(topic / "groups/billing", os.O_CREAT | os.O_WRONLY))
    log = tmp_path / "log"
    assert stat.S_IMODE(mount.path.stat().st_mode) == 0o750
    # In the mount, a partition has the mode that mkdir requested.
    assert stat.S_IMODE(topic.stat().st_mode) == 0o755
    log.chmod(0o755)
    wait_for(lambda: stat.S_IMODE(mount.path.stat().st_mode) == 0o755)
    mount.stop()
    below = sorted(log.rglob("*"))
    assert len(below) > 8
    for path in below:
        wanted = 0o750 if path.is_dir() else 0o640
        assert stat.S_IMODE(path.stat().st_mode) == wanted, path


def test_chmod_of_generated_files(make_mount: MakeMount) -> None:
    """`ctl`, `status.json` and `log-start-offset` keep mode and owner across a remount, as other files do."""
    mount = make_mount()
    topic = mount.partition("orders-0")
    modes = {"ctl": 0o620, "status.json": 0o400, "log-start-offset": 0o664}
    for name, mode in modes.items():
        (topic / name).chmod(mode)
        if os.geteuid() == 0:
            os.chown(topic / name, NOBODY, -1)
    for _ in range(2):
        for name, mode in modes.items():
            found = (topic / name).stat()
            assert stat.S_IMODE(found.st_mode) == mode
            assert found.st_uid == (NOBODY if os.geteuid() == 0 else os.geteuid())
        mount.remount()
    assert (topic / "log-start-offset").read_text() == "0\n"
    (topic / "ctl").write_text("roll")


def test_settings_keep_their_modification_times(make_mount: MakeMount) -> None:
    """The mtime of `config/*` and `.logfs/README` changes only with the content, as `tar` and `find -newer` need."""
    mount = make_mount()
    topic = mount.partition("orders-0")
    files = [*(topic / "config").iterdir(), *(mount.path / ".logfs/config").iterdir()]
    files.append(mount.path / ".logfs/README")
    before = {path: path.stat().st_mtime_ns for path in files}
    assert {path: path.stat().st_mtime_ns for path in files} == before
    mount.remount()
    assert {path: path.stat().st_mtime_ns for path in files} == before
    setting = topic / "config/retention.ms"
    last = before[setting]
    for text in ("1000000000", "2000000000", ""):
        setting.write_text(f"{text}\n")
        assert setting.stat().st_mtime_ns > last
        last = setting.stat().st_mtime_ns
    for path in (mount.path / ".logfs/README", mount.path / ".logfs/config/log.segment.bytes"):
        assert path.stat().st_mtime_ns == before[path]


def test_a_partition_that_is_offline_is_eio(make_mount: MakeMount, tmp_path: Path) -> None:
    """A partition that cannot be loaded, because its segment is a link or a FIFO, is EIO, with the reason."""
    with Store(tmp_path / "log") as store:
        store.create("good-0")
    link = tmp_path / "log/link-0/00000000000000000000.log"
    fifo = tmp_path / "log/fifo-0/00000000000000000000.log"
    for path in (link, fifo):
        path.parent.mkdir()
    link.symlink_to("/etc/passwd")
    os.mkfifo(fifo)
    mount = make_mount()
    try:
        for name in ("link-0", "fifo-0"):
            for path in (mount.path / name, mount.path / name / "records"):
                with refuses(errno.EIO):
                    os.listdir(path)
            assert f"/{name} EIO the partition is offline: " in mount.errors()
    finally:
        mount.stop()
        shutil.rmtree(link.parent)
        shutil.rmtree(fifo.parent)


# Loading.


def test_a_killed_mount_serves_while_it_recovers(make_mount: MakeMount) -> None:
    """After a kill the next mount lists all partitions at once, serves each, and recovers the rest by itself.

    A shell that has gone into a directory before its partition was loaded can use what is in it. The log has one line
    for the whole recovery.
    """
    mount = make_mount()
    names = [f"t-{number}" for number in range(40)]
    for name in names:
        (mount.partition(name) / "append").write_bytes(b"one\ntwo\n")
    mount.kill()
    mount.log.write_bytes(b"")
    mount.start()
    assert set(os.listdir(mount.path)) == {*names, ".logfs", "topics"}
    assert all(entry.is_dir() for entry in os.scandir(mount.path))
    line = run("sh", "-c", f"cd {mount.path}/t-39 && ls -d . && cat records offsets/1")
    assert line.split() == [".", "one", "two", "two"]
    for name in reversed(names):
        (mount.path / name / "append").write_bytes(b"three\n")
        assert (mount.path / name / "records").read_bytes() == b"one\ntwo\nthree\n"
    status = mount.path / ".logfs/status.json"
    wait_for(lambda: orjson.loads(status.read_bytes())["unloaded"] == 0)
    found = orjson.loads(status.read_bytes())
    assert (found["partitions"], found["background"]) == (40, [])
    assert found["recovered_bytes"] > 0
    wait_for(lambda: b"recovered 40 partitions" in mount.log.read_bytes())
    assert mount.log.read_bytes().count(b"recover") == 1
    assert "logfs_partitions_unloaded 0\n" in (mount.path / ".logfs/metrics").read_text()


def test_a_listing_does_not_change_when_partitions_are_loaded(make_mount: MakeMount) -> None:
    """Mode, owner and inode of a partition's directory are the same before and after it is loaded."""
    mount = make_mount()
    for number in range(20):
        path = mount.partition(f"t-{number}")
        (path / "append").write_bytes(b"line\n")
        path.chmod(0o700 + number % 8)
    mount.remount()
    before = {each.name: os.stat(each) for each in os.scandir(mount.path)}
    for number in range(20):
        assert (mount.path / f"t-{number}/records").read_bytes() == b"line\n"
    for name, found in before.items():
        now = os.stat(mount.path / name)
        assert (now.st_mode, now.st_ino, now.st_uid) == (found.st_mode, found.st_ino, found.st_uid)
        assert abs(now.st_mtime - found.st_mtime) < 5 or name in (".logfs", "topics")


# Settings.


def test_settings_are_read(shared: Mount, topic: Path) -> None:
    """Every file of `config/` contains the value in force and a newline."""
    for directory in (topic / "config", shared.path / ".logfs/config"):
        names = os.listdir(directory)
        assert len(names) > 30
        for name in names:
            text = (directory / name).read_text()
            assert text.endswith("\n")
            assert text.count("\n") == 1
    assert (topic / "config/segment.bytes").read_text() == "1073741824\n"
    assert (topic / "config/compression.type").read_text() == "producer\n"


def test_settings_are_written(shared: Mount, topic: Path) -> None:
    """A write changes a setting at once, for all partitions of the topic; an empty line restores the default."""
    path = topic / "config/retention.ms"
    default = path.read_text()
    for text, expected in (("1000", "1000\n"), ("2000\n", "2000\n"), (" 3000 \n", "3000\n")):
        path.write_text(text)
        assert path.read_text() == expected
        assert path.stat().st_size == len(expected)
    sibling = shared.partition(topic.name.removesuffix("0") + "1")
    assert (sibling / "config/retention.ms").read_text() == "3000\n"
    run("sh", "-c", f"echo > {path}")
    assert path.read_text() == default
    run("sh", "-c", f"echo 77 >> {path}")
    assert (sibling / "config/retention.ms").read_text() == "77\n"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("segment.bytes", "5"),
        ("segment.bytes", "many"),
        ("compression.type", "rar"),
        ("cleanup.policy", "burn"),
        ("retention.ms", "1.5"),
        ("retention.ms", "-2"),
        ("retention.ms", "99999999999999999999"),
        ("preallocate", "maybe"),
        ("message.timestamp.type", "Never"),
    ],
)
def test_settings_are_refused(shared: Mount, topic: Path, name: str, value: str) -> None:
    """A value that Kafka refuses is EINVAL with a reason, and the old value stays."""
    path = topic / "config" / name
    before = path.read_bytes()
    with refuses(errno.EINVAL):
        path.write_text(value)
    assert path.read_bytes() == before
    last = shared.errors().splitlines()[-1]
    assert f" /{topic.name}/config/{name} EINVAL {name}: " in last
    with refuses(errno.EINVAL):
        path.write_bytes(b"\xff\xfe")
    with refuses(errno.ENOENT):
        (topic / "config/no.such.setting").read_bytes()


def test_broker_settings(shared: Mount, topic: Path) -> None:
    """A broker-level setting is in force for topics that do not set a value of their own."""
    broker = shared.path / ".logfs/config/log.index.interval.bytes"
    assert (topic / "config/index.interval.bytes").read_text() == "4096\n"
    broker.write_text("1234")
    try:
        assert (topic / "config/index.interval.bytes").read_text() == "1234\n"
        (topic / "config/index.interval.bytes").write_text("99")
        assert (topic / "config/index.interval.bytes").read_text() == "99\n"
        with refuses(errno.EINVAL):
            broker.write_text("-1")
    finally:
        broker.write_text("\n")
    assert broker.read_text() == "4096\n"


def test_settings_persist(make_mount: MakeMount) -> None:
    """Settings of topics and of the broker persist across a remount and a crash."""
    mount = make_mount()
    orders = mount.partition("orders-0")
    (orders / "config/compression.type").write_text("zstd")
    (mount.path / ".logfs/config/log.retention.ms").write_text("12345")
    mount.remount()
    assert (orders / "config/compression.type").read_text() == "zstd\n"
    assert (orders / "config/retention.ms").read_text() == "12345\n"
    (orders / "config/compression.type").write_text("\n")
    mount.kill()
    mount.start()
    assert (orders / "config/compression.type").read_text() == "producer\n"


# Status.


def test_status_of_a_partition(topic: Path) -> None:
    """`status.json` of a partition contains offsets, sizes, segments, timestamps and the cleanup policy."""
    (topic / "config/segment.bytes").write_text("100")
    for number in range(3):
        (topic / "append.jsonl").write_text(
            f'{{"value":"v","timestamp":{1638100400000 + number}}}\n'
        )
    status = orjson.loads((topic / "status.json").read_bytes())
    logs = list((topic / "segments").glob("*.log"))
    expected = {
        "topic": topic.name.removesuffix("-0"),
        "partition": 0,
        "log_start_offset": 0,
        "log_end_offset": 3,
        "size_bytes": sum(log.stat().st_size for log in logs),
        "segments": len(logs),
        "first_timestamp": 1638100400000,
        "last_timestamp": 1638100400002,
        "cleanup_policy": "delete",
        "damaged_ranges": [],
        "failure": None,
    }
    assert {name: status[name] for name in expected} == expected
    assert len(logs) > 1


def test_contents_of_the_logfs_directory(shared: Mount, topic: Path) -> None:
    """`.logfs/` contains README, admin, status.json, metrics, errors, config and ctl."""
    own = shared.path / ".logfs"
    assert set(os.listdir(own)) == {
        "README",
        "admin",
        "status.json",
        "metrics",
        "errors",
        "config",
        "ctl",
    }
    readme = (own / "README").read_text()
    assert 20 <= len(readme.splitlines()) <= 40
    for name in FILES:
        assert name in readme
    status = orjson.loads((own / "status.json").read_bytes())
    assert status["version"] == logfs.__version__
    assert shared.process is not None
    assert status["pid"] == shared.process.pid
    assert status["log_dirs"] == [str(path) for path in shared.log_dirs]
    assert status["partitions"] == len(os.listdir(shared.path)) - 2
    assert status["uptime_ms"] >= 0
    assert status["background"] == []
    (topic / "append").write_bytes(b"a\nb\n")
    metrics = (own / "metrics").read_text()
    label = f'{{topic="{topic.name.removesuffix("-0")}",partition="0"}}'
    assert f"kafka_log_log_logendoffset{label} 2\n" in metrics
    for line in metrics.splitlines():
        assert line.startswith("# ") or len(line.rsplit(" ", 1)) == 2
        assert line.startswith("# ") or float(line.rsplit(" ", 1)[1]) >= 0


def test_errors(shared: Mount, topic: Path) -> None:
    """`.logfs/errors` has one line per error, newest last: time, path, errno and reason; ENOENT is not listed."""
    for name, data in (("append.jsonl", b"oops\n"), ("config/segment.bytes", b"oops\n")):
        with refuses(errno.EINVAL):
            (topic / name).write_bytes(data)
        moment, path, number, reason = shared.errors().splitlines()[-1].split(" ", 3)
        assert moment.endswith("Z")
        assert path == f"/{topic.name}/{name}"
        assert number == "EINVAL"
        assert " " in reason
    before = shared.errors()
    assert not (topic / "nothing").exists()
    assert shared.errors() == before, "what is not there is an everyday answer"


def test_statfs(shared: Mount) -> None:
    """statfs returns the numbers of the disk of the log directory."""
    mine, below = os.statvfs(shared.path), os.statvfs(shared.log_dirs[0])
    assert (mine.f_blocks, mine.f_frsize, mine.f_files) == (
        below.f_blocks,
        below.f_frsize,
        below.f_files,
    )
    assert mine.f_namemax == 255
    assert run("df", shared.path).splitlines()[1].startswith(f"{shared.log_dirs[0]} ")


# Mounting and unmounting.


def test_second_daemon(shared: Mount, tmp_path: Path) -> None:
    """A second daemon on the same log directory is refused, and the error names the holder's pid."""
    (tmp_path / "other").mkdir()
    assert shared.process is not None
    for words in ((), ("-f",)):
        done = call("mount", *words, shared.log_dirs[0], tmp_path / "other")
        assert done.returncode == 1
        assert f"process {shared.process.pid} " in done.stderr
        assert str(shared.log_dirs[0]) in done.stderr
    assert not mounted(tmp_path / "other")


def test_mount_over_a_live_mount(shared: Mount, tmp_path: Path) -> None:
    """A mount on the mount point of a live mount is refused."""
    for words in ((), ("-f",)):
        done = call("mount", *words, tmp_path / "log", shared.path)
        assert done.returncode == 1
        assert "is already mounted here" in done.stderr
    assert mounted(shared.path) == 1
    assert (shared.path / ".logfs").is_dir()


def test_dead_mount(make_mount: MakeMount) -> None:
    """After the daemon's death every call is ENOTCONN. The next mount replaces the dead one and has all records."""
    mount = make_mount()
    orders = mount.partition("orders-0")
    (orders / "append").write_bytes(b"a\n")
    held = os.open(orders / "append", os.O_WRONLY)
    mount.kill()
    for attempt in (
        lambda: os.statvfs(orders),
        lambda: os.listdir(mount.path),
        lambda: os.write(held, b"b\n"),
        lambda: (orders / "records").read_bytes(),
    ):
        with refuses(errno.ENOTCONN):
            attempt()
    os.close(held)

    def is_gone() -> bool:
        try:
            os.stat(orders)
        except OSError as error:
            return error.errno == errno.ENOTCONN
        return False

    # The kernel may answer a stat of a directory from its cache for a second.
    wait_for(is_gone)
    assert mounted(mount.path) == 1
    done = call("status", mount.path)
    assert done.returncode == 1
    assert "dead" in done.stdout
    mount.start()
    assert mounted(mount.path) == 1
    assert (orders / "records").read_bytes() == b"a\n"
    (orders / "append").write_bytes(b"b\n")
    assert (orders / "records").read_bytes() == b"a\nb\n"


@pytest.mark.usefixtures("mounts_alone")
def test_umount_of_a_dead_mount(make_mount: MakeMount) -> None:
    """`logfs umount` removes a dead mount."""
    mount = make_mount()
    mount.kill()
    assert call("umount", mount.path).returncode == 0
    assert not mounted(mount.path)
    assert os.listdir(mount.path) == []


@pytest.mark.usefixtures("mounts_alone")
def test_mount_in_the_background(tmp_path: Path) -> None:
    """`logfs mount` returns when the mount is ready, and `logfs umount` when the store is closed."""
    need_fuse()
    mnt, log = tmp_path / "mnt", tmp_path / "new/log"
    mnt.mkdir()
    assert "does not exist, nor does" in call("mount", log, mnt).stderr
    log.parent.mkdir()
    done = call("mount", log, mnt)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    try:
        assert mounted(mnt) == 1
        (mnt / "orders-0").mkdir()
        (mnt / "orders-0/append").write_bytes(b"a\nunfinished")
        done = call("status", mnt)
        assert done.returncode == 0
        assert str(log) in done.stdout
        assert str(mnt) in call("status").stdout
        assert orjson.loads(call("status", "--json", mnt).stdout)["partitions"] == 1
        assert call("umount", mnt).returncode == 0
        assert not mounted(mnt)
        assert (log / ".kafka_cleanshutdown").exists()
        assert not (log / ".lock").exists()
        assert call("mount", log, mnt).returncode == 0
        assert (mnt / "orders-0/records").read_bytes() == b"a\nunfinished\n"
        run("umount", mnt)
        wait_for(lambda: not (log / ".lock").exists())
        assert_clean(log)
    finally:
        if mounted(mnt):
            run("umount", "-l", mnt)


def test_umount_of_a_busy_mount(shared: Mount, topic: Path) -> None:
    """A busy mount is not unmounted and continues to work; the error is one line."""
    with (topic / "records").open("rb"):
        done = call("umount", shared.path)
    assert done.returncode == 1
    assert f"it is busy; 'fuser -vm {shared.path}' lists the processes" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert (topic / "records").exists()


def test_the_word_busy_in_a_path_does_not_change_the_error(tmp_path: Path) -> None:
    """Another failure to unmount is not reported as a busy mount, even if the path contains the word `busy`."""
    pytest.importorskip("pyfuse3")
    from logfs.mount.mounting import unmount

    with pytest.raises(OSError, match="cannot unmount") as failed:
        unmount(tmp_path / "busy")
    assert "fuser" not in str(failed.value)


@pytest.mark.drawn(4)
@pytest.mark.parametrize("tenths", range(1, 13))
def test_an_interrupted_mount_is_mounted_or_ends(tmp_path: Path, tenths: int) -> None:
    """At Ctrl-C the command has mounted, or it leaves neither a mount nor a locked log directory."""
    need_fuse()
    path, mountpoint = tmp_path / "log", tmp_path / "mnt"
    with Store(path, create=True) as store:
        store.create("orders-0").append([b"x"])
    mountpoint.mkdir()
    mount = [sys.executable, "-m", "logfs", "mount", path, mountpoint]
    with subprocess.Popen(mount, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as command:
        time.sleep(tenths / 10)
        command.send_signal(signal.SIGINT)
        output = command.communicate(timeout=60)
    try:
        assert output == (b"", b"")
        if command.returncode == 0:
            assert (mountpoint / "orders-0/records").read_bytes() == b"x\n"
        else:
            assert command.returncode in (130, -signal.SIGINT)
            assert str(mountpoint) not in logfs_mounts()
            with Store(path) as store:
                store["orders-0"].append([b"y"])
    finally:
        if str(mountpoint) in logfs_mounts():
            # On a busy machine, the command may say on standard error what it waits for.
            done = call("umount", mountpoint)
            assert done.returncode == 0, done
    assert_clean(path)


def test_bad_mountpoints(tmp_path: Path) -> None:
    """A mount point that is missing, a file, or a parent of the log directory is refused with one line, and so are
    missing arguments, an unknown option, and a log directory that is a file.
    """
    (tmp_path / "file").touch()
    (tmp_path / "mnt").mkdir()
    (tmp_path / "full/log").mkdir(parents=True)
    for words, expected in (
        ((tmp_path / "log", tmp_path / "missing"), "the mountpoint does not exist"),
        ((tmp_path / "log", tmp_path / "file"), "not a directory"),
        ((tmp_path / "full/log", tmp_path / "full"), "and the mount would hide it"),
        ((tmp_path / "mnt",), "LOGDIR"),
        (("-o", "colour=blue", tmp_path / "log", tmp_path / "mnt"), "colour=blue"),
        ((tmp_path / "file", tmp_path / "mnt"), "is a file, not a log directory"),
    ):
        done = call("mount", *words)
        assert done.returncode == (2 if expected in ("LOGDIR", "colour=blue") else 1), words
        assert expected in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "log").exists()


def test_log_dir_with_other_things(make_mount: MakeMount, tmp_path: Path) -> None:
    """Files and directories in a log directory that are not partitions are neither shown nor changed."""
    (tmp_path / "log/lost+found").mkdir(parents=True)
    make_mount().stop()
    (tmp_path / "log/notes.txt").write_text("mine")
    mount = make_mount()
    assert os.listdir(mount.path) == [".logfs", "topics"]
    mount.partition("orders-0")
    mount.stop()
    assert (tmp_path / "log/notes.txt").read_text() == "mine"
    assert (tmp_path / "log/lost+found").is_dir()


def test_several_log_dirs(make_mount: MakeMount, tmp_path: Path) -> None:
    """Several LOGDIRs are Kafka's `log.dirs`: a new partition goes to the one with the fewest partitions."""
    log_dirs = [tmp_path / "one", tmp_path / "two"]
    mount = make_mount(log_dirs=log_dirs)
    for number in range(4):
        mount.partition(f"orders-{number}")
        (mount.path / f"orders-{number}/append").write_text(f"{number}\n")
    homes = [sorted(path.name for path in log_dir.glob("orders-*")) for log_dir in log_dirs]
    assert [len(home) for home in homes] == [2, 2]
    mount.remount()
    assert [(mount.path / f"orders-{n}/records").read_text() for n in range(4)] == [
        f"{n}\n" for n in range(4)
    ]
    assert run("cat", mount.path / "orders-2/offsets/latest") == "2"


@pytest.mark.usefixtures("mounts_alone")
def test_mount_helper(tmp_path: Path) -> None:
    """`mount.logfs` accepts log directories separated by commas, and ignores the options that mount(8) handles."""
    need_fuse()
    helper = Path(sys.executable).with_name("mount.logfs")
    need(helper.exists(), "mount.logfs is not installed")
    mnt = tmp_path / "mnt"
    mnt.mkdir()
    logs = f"{tmp_path}/one,{tmp_path}/two"
    run(helper, logs, mnt, "-o", "rw,noexec,nofail,_netdev")
    try:
        (mnt / "orders-0").mkdir()
        status = orjson.loads((mnt / ".logfs/status.json").read_bytes())
        assert status["log_dirs"] == logs.split(",")
    finally:
        ok("umount", mnt)
    run(helper, logs, mnt, "-o", "ro")
    try:
        with refuses(errno.EROFS):
            (mnt / "orders-1").mkdir()
    finally:
        ok("umount", mnt)


# Read-only.


def tree(path: Path) -> dict[str, tuple[int, int, int, str]]:
    """Return mode, inode, modification time and content hash of a directory and of everything below it."""
    found = {}
    for entry in sorted([path, *path.rglob("*")]):
        status = entry.lstat()
        data = entry.read_bytes() if entry.is_file() else b""
        digest = hashlib.sha256(data).hexdigest()
        found[str(entry)] = (status.st_mode, status.st_ino, status.st_mtime_ns, digest)
    return found


@pytest.mark.parametrize("crashed", [False, True])
@pytest.mark.parametrize("option", ["--read-only", "-oro"])
def test_read_only(make_mount: MakeMount, tmp_path: Path, crashed: bool, option: str) -> None:
    """A read-only mount writes, locks and repairs nothing in the log directory; appends and changes are EROFS."""
    mount = make_mount()
    orders = mount.partition("orders-0")
    (orders / "append").write_bytes(b"a\nb\n")
    if crashed:
        mount.kill()
        log = tmp_path / "log/orders-0/00000000000000000000.log"
        with log.open("ab") as file:
            file.write(b"half a batch")
    else:
        mount.stop()
    before = tree(tmp_path / "log")
    reader = make_mount(option, name="ro")
    orders = reader.path / "orders-0"
    assert (orders / "records").read_bytes() == b"a\nb\n"
    assert (orders / "offsets/latest").read_bytes() == b"b"
    assert len(os.listdir(orders / "segments")) >= 4
    for attempt in (
        lambda: (orders / "append").write_bytes(b"c\n"),
        lambda: (orders / "append.jsonl").open("ab"),
        lambda: (reader.path / "orders-1").mkdir(),
        lambda: orders.rmdir(),
        lambda: orders.chmod(0o777),
        lambda: os.chown(orders / "append", 1, 1),
        lambda: (orders / "config/retention.ms").write_text("1"),
        lambda: (reader.path / ".logfs/config/log.retention.ms").write_text("1"),
        lambda: (orders / "records").unlink(),
    ):
        with refuses(errno.EROFS):
            attempt()
    assert orjson.loads((reader.path / ".logfs/status.json").read_bytes())["read_only"] is True
    reader.stop()
    assert tree(tmp_path / "log") == before
    if crashed:
        mount.start()


def test_read_only_beside_a_writer(make_mount: MakeMount) -> None:
    """A read-only mount works on a log directory that another daemon uses, and does not disturb the daemon."""
    mount = make_mount()
    orders = mount.partition("orders-0")
    (orders / "append").write_bytes(b"a\n")
    reader = make_mount("--read-only", name="ro")
    assert (reader.path / "orders-0/records").read_bytes() == b"a\n"
    (orders / "append").write_bytes(b"b\n")
    # At once, and not only after the next refresh of the reader's upkeep.
    assert orjson.loads((reader.path / "orders-0/status.json").read_bytes())["log_end_offset"] == 2
    assert (orders / "records").read_bytes() == b"a\nb\n"
    setting = reader.path / "orders-0/config/retention.ms"
    assert setting.read_text() == "604800000\n"
    (orders / "config/retention.ms").write_text("1d")
    wait_for(lambda: setting.read_text() == "86400000\n")
    reader.stop()
    (orders / "append").write_bytes(b"c\n")
    assert (orders / "records").read_bytes() == b"a\nb\nc\n"


# An ordinary user.


@pytest.mark.usefixtures("mounts_alone")
def test_ordinary_user(python_for_all: tuple[str, str], public: Path) -> None:
    """An ordinary user without a home directory mounts with fusermount3, uses the log and unmounts.

    /dev/fuse may be closed to ordinary users, so the test creates an open one in a mount namespace of its own.
    """
    need_fuse()
    for command in ("unshare", "setpriv", "fusermount3"):
        need_command(command)
    need(
        os.stat(shutil.which("fusermount3") or "/").st_mode & stat.S_ISUID,
        "fusermount3 is not setuid",
    )
    python, path = python_for_all
    home = public / "user"
    home.mkdir()
    os.chown(home, NOBODY, NOBODY)
    (public / "dev").mkdir()
    user = f"""
        set -e
        cd {home}
        export HOME=/nonexistent PYTHONPATH={path} PYTHONDONTWRITEBYTECODE=1 TMPDIR={home}/tmp
        mkdir mnt tmp
        {python} -m logfs mount log mnt
        trap "fusermount3 -u -z {home}/mnt 2> /dev/null || true" EXIT
        mkdir mnt/orders-0
        echo hello >> mnt/orders-0/append
        seq 1000 >> mnt/orders-0/append
        tail -n 1 mnt/orders-0/records
        cat mnt/orders-0/time/0; echo
        stat -c "%U %a" mnt/orders-0/append
        echo gzip > mnt/orders-0/config/compression.type
        cat mnt/orders-0/config/compression.type
        {python} -m logfs umount mnt
        ls mnt | wc -l
        {python} -m logfs check log
        stat -c %a tmp/logfs-kernels-*
    """
    script = f"""
        set -e
        mount -t tmpfs tmpfs {public}/dev
        mknod -m 666 {public}/dev/fuse c 10 229
        mount --bind {public}/dev/fuse /dev/fuse
        exec setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups sh -c '{user}'
    """
    done = subprocess.run(
        ["unshare", "-m", "--propagation", "private", "sh", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    name = run("id", "-un", str(NOBODY)).strip()
    # The compiled kernels, which have no other place, are kept for the next process.
    expected = f"1000\nhello\n{name} 644\ngzip\n0\nclean\n700\n"
    assert (done.stdout, done.returncode) == (expected, 0), done.stderr


@pytest.mark.usefixtures("mounts_alone")
@pytest.mark.parametrize("name", ["Né 日本, b\\c", os.fsdecode(b"\xff\xfe")])
def test_any_path_can_be_a_log_directory(tmp_path: Path, name: str) -> None:
    """The mount table, `logfs status` and `logfs describe` show the path of any log directory unchanged."""
    need_fuse()
    mnt = tmp_path / f"mnt {name}"
    mnt.mkdir()
    log_dir = tmp_path / name
    assert call("mount", log_dir, mnt).returncode == 0
    try:
        (mnt / "a-0").mkdir()
        (mnt / "a-0/append").write_bytes(b"line\n")
        assert str(log_dir) in call("status", mnt).stdout
        for words in (("status", "--json", mnt), ("describe", "--json", log_dir)):
            done = call(*words)
            assert (done.returncode, done.stderr) == (0, "")
            assert str(log_dir) in texts_in(json.loads(done.stdout))
        sources = [mount.source for mount in logfs_mounts().values()]
        assert str(log_dir) in sources
        assert str(mnt) in call("reindex", log_dir / "a-0").stderr
    finally:
        done = call("umount", mnt)
    assert (done.returncode, done.stderr) == (0, "")
    assert_clean(log_dir)


@pytest.mark.parametrize(
    "text", ["\u0663", "\uff11", "+1", "1_0", "01", "- 1", "-2", "1.0", "0x1", "9" * 20]
)
def test_an_offset_is_written_in_plain_digits(topic: Path, text: str) -> None:
    """Other digits and signs are refused, wherever a number is written: none is taken for another one."""
    (topic / "append").write_bytes(b"line\n" * 20)
    before = (topic / "config/retention.ms").read_text()
    for name in ("log-start-offset", "groups/billing", "config/retention.ms"):
        if text in ("-2", "01", "+1") and name.startswith("config"):
            # Settings are parsed as Java does.
            continue
        with refuses(errno.EINVAL):
            (topic / name).write_text(text)
    assert (topic / "log-start-offset").read_text() == "0\n"
    assert (topic / "config/retention.ms").read_text() == before
    assert not (topic / "groups/billing").exists()


@pytest.mark.parametrize("name", [".logfs/admin", "{}/append.jsonl"])
def test_deeply_nested_json_is_refused(topic: Path, shared: Mount, name: str) -> None:
    """With EINVAL and one line in `.logfs/errors`, as any other line that is not a request."""
    with (shared.path / name.format(topic.name)).open("wb", buffering=0) as file:
        with refuses(errno.EINVAL):
            file.write(b"[" * 100_000 + b"\n")
        with refuses(errno.EINVAL):
            file.write(b'{"value":' * 100_000 + b"\n")
    assert "internal error" not in shared.errors()


def test_a_mount_reserves_few_addresses(mount: Mount) -> None:
    """Whatever the number of threads that serve requests, so that it works with a limit of the address space."""
    (mount.partition("orders-0") / "append").write_bytes(b"line\n")
    threads = Threads([])
    for _ in range(16):
        threads.start(lambda: [os.listdir(mount.path / "orders-0/offsets") for _ in range(20)])
    threads.join()
    assert threads.errors == []
    assert mount.process is not None
    reserved = 0
    for line in Path(f"/proc/{mount.process.pid}/maps").read_text().splitlines():
        addresses, rights, *_ = line.split()
        start, end = (int(address, 16) for address in addresses.split("-"))
        reserved += end - start if rights == "---p" else 0
    assert reserved < 512 << 20
