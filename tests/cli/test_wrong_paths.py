"""A wrong path in place of a log directory is refused in one line, and nothing in it or beside it is changed.

Every command and every interface of Python that takes a log directory is given every kind of wrong path. The error
says what the path is and what was probably meant; all names, times, modes and contents are the same afterwards.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING

import pytest

from logfs.cli import COMMANDS, main
from logfs.errors import InvalidStore
from logfs.store.admin import commit_client
from logfs.store.directory.recognition import PathKind, check_log_dirs, recognise
from logfs.store.observe.check import check
from logfs.store.store import Store
from tests.support.command_line import call, fails
from tests.support.mounts import is_mounted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.mounts import Mount

# Commands that take log directories; LOGDIR stands for the path, MNT for an empty directory.
ON_LOG_DIRS = (
    "check LOGDIR",
    "config LOGDIR",
    "config LOGDIR log.segment.bytes=2000000",
    "config LOGDIR --topic orders retention.ms=1",
    "describe LOGDIR",
    "groups LOGDIR",
    "groups LOGDIR --commit billing orders-0 1",
    "mirror --from 127.0.0.1:1 LOGDIR",
    "promote LOGDIR orders",
    "push --to 127.0.0.1:1 LOGDIR",
    "recover LOGDIR",
    "report LOGDIR",
    "retain LOGDIR",
    "retain --dry-run LOGDIR",
    "serve --listen 0 LOGDIR",
    "status LOGDIR",
    "tier LOGDIR",
    "tier --dry-run LOGDIR",
    "top --once LOGDIR",
)
# Commands that take a partition of a log directory.
ON_PARTITIONS = (
    "append LOGDIR/orders-0",
    "cat LOGDIR/orders-0",
    "cat LOGDIR orders-0",
    "compact LOGDIR/orders-0",
    "create LOGDIR/new-0",
    "create LOGDIR new-0",
    "delete LOGDIR/orders-0",
    "delete-records --before 1 LOGDIR/orders-0",
    "undelete LOGDIR/orders-0",
    "move LOGDIR/orders-0 --to MNT",
    "move RIGHT/orders-0 --to LOGDIR",
    "reindex LOGDIR/orders-0",
    "tail LOGDIR/orders-0",
    "consume -g g --idle-exit 0 LOGDIR/orders-0",
)
# Commands that take no log directory or are tested otherwise: `dump` takes files, jobs of `spark` open a `Store`.
ELSEWHERE = {"completion", "mount", "umount", "dump", "spark", "volume-plugin"}

# Kinds of wrong paths: the path below the directory of the test, and the text of the error.
WRONG = {
    "partition": ("data/orders-0", "is a partition, not a log directory; did you mean {}/data?"),
    "empty partition": ("data/new-0", "is a partition, not a log directory; did you mean {}/data?"),
    "renamed partition": ("copy", "holds the files of a partition, so it is not a log directory"),
    "file": (f"data/orders-0/{0:020}.log", "is a file, not a log directory; did you mean"),
    "unrelated": ("home", "is not a log directory: it has files, but no partitions"),
    "versions": ("programs", "is not a log directory: it has files, but no partitions"),
    "one level too high": (
        "disk",
        "but no partitions; did you mean {0}/disk/kafka {0}/disk/spare?",
    ),
    "inside": (
        "data/lost+found",
        "is inside a log directory, but is not one itself; did you mean {}/data?",
    ),
    "missing": ("nowhere", "does not exist"),
    "misspelt": ("dtaa", "does not exist; did you mean {}/data?"),
    "missing parent": ("no/where", "does not exist, nor does {}/no"),
    "missing partition": ("data/none-0", "; did you mean {}/data?"),
    "below a file": ("home/notes/x", "does not exist"),
    "dangling link": ("dangling", "is a link to nowhere, which is missing"),
}


def tree(root: Path) -> dict[str, tuple[object, ...]]:
    """Return the mode, owner, inode, times, size and content of everything below a directory, by path."""
    found: dict[str, tuple[object, ...]] = {}
    for path in [root, *sorted(root.rglob("*"))]:
        seen = path.lstat()
        content: object = None
        if stat.S_ISREG(seen.st_mode):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        elif stat.S_ISLNK(seen.st_mode):
            content = os.readlink(path)
        times = seen.st_mtime_ns, seen.st_ctime_ns
        found[str(path)] = (seen.st_mode, seen.st_uid, seen.st_ino, *times, seen.st_size, content)
    return found


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a log directory `data`, and all kinds of paths that are not log directories."""
    root = tmp_path_factory.mktemp("places")
    with Store(root / "data") as store:
        store.create("orders-0").append([b"one", b"two"])
    (root / "data/new-0").mkdir()
    (root / "data/lost+found").mkdir()
    shutil.copytree(root / "data", root / "right")
    shutil.copytree(root / "data/orders-0", root / "copy")
    (root / "home").mkdir()
    (root / "home/notes").write_text("not a log\n")
    (root / "home/.lock").touch()
    (root / "programs/firefox-128").mkdir(parents=True)
    (root / "programs/firefox-128/firefox").touch()
    (root / "programs/jdk-17").mkdir()
    for name in ("kafka", "spare"):
        shutil.copytree(root / "data", root / "disk" / name)
    (root / "disk/readme").touch()
    (root / "dangling").symlink_to("nowhere")
    (root / "mnt").mkdir()
    return root


@pytest.fixture
def untouched(places: Path) -> Iterator[None]:
    """Check that the test changes nothing."""
    before = tree(places)
    yield
    assert tree(places) == before


def words_of(command: str, path: Path, places: Path) -> list[str]:
    """Return the words of a command, with its paths filled in."""
    text = command.replace("LOGDIR", str(path))
    return text.replace("MNT", f"{places}/mnt").replace("RIGHT", f"{places}/right").split()


def test_every_command_is_tested() -> None:
    """A new command that takes a log directory has to be added to the lists above."""
    asked = {command.split()[0] for command in (*ON_LOG_DIRS, *ON_PARTITIONS)}
    assert asked | ELSEWHERE == set(COMMANDS)
    assert not asked & ELSEWHERE


@pytest.mark.drawn(200)
@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize(
    ("command", "kind"),
    [
        (command, kind)
        for command in (*ON_LOG_DIRS, *ON_PARTITIONS)
        for kind in WRONG
        # It describes the partition alone.
        if not (
            command == "describe LOGDIR" and kind.endswith("partition") and "missing" not in kind
        )
    ],
)
def test_a_command_refuses_a_wrong_path(
    command: str, kind: str, places: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code is 1, and one line names the path, says what it is, and what was meant."""
    name, said = WRONG[kind]
    path = places / name
    assert main(words_of(command, path, places)) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert printed.err.startswith(f"logfs: {path} ")
    assert said.format(places) in printed.err


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize(
    "command",
    [
        each
        for each in (*ON_LOG_DIRS, *ON_PARTITIONS)
        if not each.startswith(("create", "config LOGDIR log", "mirror", "move RIGHT"))
    ],
)
def test_a_command_refuses_an_empty_directory(
    command: str, places: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Commands that read, or change what exists, fail; another test covers those that create a store."""
    assert main(words_of(command, places / "mnt", places)) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(
        f"logfs: {places}/mnt holds no partitions: the directory is empty;"
    )


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize(
    "command",
    [
        *(command for command in ON_PARTITIONS if "LOGDIR/orders-0" in command),
        "groups LOGDIR --commit billing orders-0 0",
        "config LOGDIR --topic orders retention.ms=1",
    ],
)
def test_a_command_refuses_a_missing_partition(
    command: str, places: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line names the log directory and the partition; the clean-shutdown marker stays as it is."""
    words = words_of(command.replace("orders", "order"), places / "data", places)
    assert main(words) == 1
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert f"{places}/data" in printed.err
    assert ("'order'" if "--topic" in command else "order-0") in printed.err


@pytest.mark.parametrize("command", [*ON_LOG_DIRS, *ON_PARTITIONS])
def test_a_command_refuses_an_empty_path(
    command: str, places: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An empty path, as of a variable that is not set, is wrong usage.

    It does not stand for the working directory, which is a partition or its log directory here.
    """
    monkeypatch.chdir(places / ("data/orders-0" if command in ON_PARTITIONS else "data"))
    before = tree(places)
    words = ["" if "LOGDIR" in each else each for each in command.split()]
    with pytest.raises(SystemExit) as ended:
        main([each.replace("MNT", f"{places}/mnt") for each in words])
    assert ended.value.code == 2
    assert "the value is empty; is a variable unset" in capsys.readouterr().err
    assert tree(places) == before


@pytest.mark.usefixtures("untouched")
def test_an_error_is_one_line_whatever_the_path(
    places: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A newline in a name is printed as backslash and n."""
    assert main(["check", f"{places}/a\nb"]) == 1
    assert capsys.readouterr().err.startswith(f"logfs: {places}/a\\nb does not exist")


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("kind", WRONG)
def test_python_refuses_a_wrong_path(kind: str, places: Path) -> None:
    """`logfs.open`, `Store`, the audit and the commit client refuse it, to read or to write, one path or several."""
    name, said = WRONG[kind]
    path = places / name
    ways: list[Callable[[], object]] = [
        lambda: Store(path, create=False),
        lambda: Store(str(path), read_only=True),
        lambda: Store([places / "right", path], create=False),
        lambda: Store(path, create=False),
        lambda: Store(path, read_only=True, only="orders-0"),
        lambda: list(check(path)),
        lambda: commit_client.create(path, ["a-0"]),
        lambda: commit_client.commit(path, "writer", 1, []),
    ]
    if kind != "missing" and kind != "misspelt":
        ways += [lambda: Store(path), lambda: Store(path)]
    for way in ways:
        with pytest.raises(InvalidStore, match=re.escape(said.format(places))):
            way()


@pytest.mark.drawn(5)
@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize(
    "kind",
    [
        # Where the log directory is missing or misspelt, `logfs mount` creates a new store.
        *(kind for kind in WRONG if kind not in ("missing", "misspelt")),
        "mountpoint",
        "swapped",
        "files",
        "partition below",
    ],
)
def test_mount_refuses_a_wrong_path(kind: str, places: Path) -> None:
    """A wrong log directory is refused, and a mountpoint with content that the mount would hide.

    The mountpoint is refused even where the log directory would be created.
    """
    log_dir, mountpoint, said = {
        "mountpoint": ("new", "data", "is a log directory, and a mount would hide it"),
        "swapped": ("mnt", "data", "is a log directory, and a mount would hide it"),
        "files": (
            "data",
            "home",
            "is not empty, and a mount would hide its content; mount on an empty directory, or",
        ),
        "partition below": ("new", "data/orders-0", "is a partition, and a mount would hide it"),
    }.get(kind) or (WRONG[kind][0], "mnt", WRONG[kind][1])
    done = subprocess.run(
        [sys.executable, "-m", "logfs", "mount", places / log_dir, places / mountpoint],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert said.format(places) in done.stderr


def test_a_mount_over_files_needs_an_option(
    make_mount: Callable[..., Mount], tmp_path: Path
) -> None:
    """`-o nonempty` covers files, which are back after the unmount, but never a log directory."""
    (tmp_path / "mnt").mkdir()
    (tmp_path / "mnt/file").write_text("hidden")
    mount = make_mount("-o", "nonempty")
    assert [path.name for path in mount.path.iterdir()] == [".logfs", "topics"]
    mount.stop()
    assert (tmp_path / "mnt/file").read_text() == "hidden"
    with Store(tmp_path / "other") as store:
        store.create("a-0")
    with pytest.raises(AssertionError, match="is a log directory, and a mount would hide it"):
        make_mount("-o", "nonempty", name="other")


def test_paths_in_a_mount(mount: Mount, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A path in a mount is not a log directory: the error names the mountpoint, or what is mounted there."""
    folder = mount.partition("orders-0")
    (folder / "append").write_bytes(b"a\n")
    (log_dir,) = mount.log_dirs
    shutil.copytree(mount.path, tmp_path / "copied", symlinks=True)
    link = tmp_path / "link"
    link.symlink_to(mount.path)
    for path in (folder, folder / "segments", mount.path / ".logfs", mount.path / "typo-0"):
        for command in ("check", "recover", "describe", "status"):
            if (path, command) == (folder, "describe"):
                # It describes the partition alone.
                continue
            assert main([command, str(path)]) == 1
            said = capsys.readouterr().err
            assert "lies in a mount of logfs" in said
            assert f"did you mean {mount.path}?" in said
        with pytest.raises(InvalidStore, match="lies in a mount of logfs"):
            Store(path)
    for path in (mount.path, link):
        assert main(["check", str(path)]) == 0
        assert main(["cat", str(path / "orders-0")]) == 0
        assert capsys.readouterr().out == "clean\na\n"
        with pytest.raises(InvalidStore, match=f"is where logfs is mounted, .* {log_dir}"):
            Store(path)
    # A copy of a mount's files is no mountpoint: otherwise the command would change the original.
    assert main(["recover", str(tmp_path / "copied")]) == 1
    assert "is not a log directory" in capsys.readouterr().err
    # A mountpoint cannot be the log directory of another mount.
    other = subprocess.run(
        [sys.executable, "-m", "logfs", "mount", mount.path, tmp_path / "new"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert other.returncode == 1
    mount.kill()
    for command in ("check", "recover", "describe"):
        assert main([command, str(mount.path)]) == 1
        assert f"daemon has died; 'logfs umount {mount.path}'" in capsys.readouterr().err


def test_an_empty_directory_becomes_a_store_where_that_is_meant(tmp_path: Path) -> None:
    """`create`, `config`, `move --to` and Python begin a store in it; a filesystem's `lost+found` does not matter."""
    for number, command in enumerate(
        ("create LOGDIR/a-0", "config LOGDIR log.segment.bytes=2000000")
    ):
        path = tmp_path / str(number)
        (path / "lost+found").mkdir(parents=True)
        assert recognise(path).kind is PathKind.EMPTY
        assert main(words_of(command, path, tmp_path)) == 0
        assert recognise(path).kind is PathKind.LOG_DIR
    (tmp_path / "to").mkdir()
    assert main(["move", str(tmp_path / "0/a-0"), "--to", str(tmp_path / "to")]) == 0
    assert recognise(tmp_path / "to").kind is PathKind.LOG_DIR
    (tmp_path / "python").mkdir()
    Store(tmp_path / "python", create=False).close()
    assert recognise(tmp_path / "python").kind is PathKind.LOG_DIR


def test_check_does_not_report_an_empty_store_as_clean(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A log directory without partitions is reported as such, not as clean."""
    with Store(tmp_path / "log") as store:
        assert main(["check", str(tmp_path / "log")]) == 0
        assert capsys.readouterr().out == "nothing to check: there are no partitions yet\n"
        store.create("a-0")
    assert main(["check", str(tmp_path / "log")]) == 0
    assert capsys.readouterr().out == "clean\n"


@pytest.mark.parametrize(
    "names",
    [
        ["meta.properties"],
        [
            "recovery-point-offset-checkpoint",
            "replication-offset-checkpoint",
            "cleaner-offset-checkpoint",
        ],
        ["meta.properties", "bootstrap.checkpoint", "lost+found/", "x.tmp"],
        [".kafka_cleanshutdown"],
        ["log-start-offset-checkpoint.tmp", ".lock"],
        ["logfs.properties"],
        ["orders@p"],
        [".lock"],
        [".lock", "orders-0/", "orders-1/partition.metadata.tmp"],
        ["orders-0/"],
        ["orders-0/00000000000000000000.log"],
        ["notes", "orders-0/00000000000000000000.log", "firefox-128/firefox"],
        ["orders-0.d1b1a1ec5c3c4c0b8a5d7a6d2e8b3c1f-delete/00000000000000000000.log.deleted"],
        ["__cluster_metadata-0/00000000000000000000.log", "meta.properties"],
    ],
)
def test_log_directories_are_recognised(names: list[str], tmp_path: Path) -> None:
    """Log directories are a broker's, those of logfs, those that a crash left, and those with copied partitions."""
    path = tmp_path / "data-0"
    for name in names:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).mkdir() if name.endswith("/") else (path / name).touch()
    before = tree(tmp_path)
    assert recognise(path).kind is PathKind.LOG_DIR
    check_log_dirs([path])
    assert tree(tmp_path) == before


def test_a_missing_disk_of_a_store_is_not_begun_anew(tmp_path: Path) -> None:
    """The empty directory below the disk's mountpoint, or a missing one, does not take the place of the disk."""
    one, two = tmp_path / "one", tmp_path / "two"
    for path in (one, two):
        path.mkdir()
    with Store([one, two]) as store:
        store.create("orders-0").append([b"x"])
        store.create("orders-1").append([b"x"])
    two.rename(tmp_path / "disk")
    for _ in range(2):
        for open_again in (Store, partial(Store, read_only=True), partial(Store, create=True)):
            with pytest.raises(InvalidStore, match="is a log directory of the store of"):
                open_again([one, two])
        assert not two.exists() or not any(two.iterdir())
        two.mkdir(exist_ok=True)
    (one / "logfs.dirs").unlink()
    with Store([one, two]) as store:
        assert len(store) == 1


def files(log_dir: Path) -> dict[Path, tuple[int, int]]:
    """Return the size and the mtime of everything in a log directory."""
    found = {path: path.stat() for path in log_dir.rglob("*")}
    return {path: (status.st_size, status.st_mtime_ns) for path, status in found.items()}


def test_a_read_only_mount_is_not_changed_by_its_mountpoint(
    make_mount: Callable[..., Mount],
) -> None:
    """A command that changes a log is refused there, and the reason names the log directory."""
    mount = make_mount()
    (mount.partition("orders-0") / "append").write_text("one\n")
    mount.stop()
    reading = make_mount("--read-only")
    before = files(mount.log_dirs[0])
    orders = reading.path / "orders-0"
    for words in (
        ("append", orders),
        ("create", reading.path / "new-0"),
        ("delete", orders),
        ("undelete", orders),
        ("delete-records", orders, "--before", "1"),
        ("compact", orders),
        ("reindex", orders),
        ("recover", reading.path),
        ("retain", reading.path),
        ("tier", reading.path),
        ("config", reading.path, "--topic", "orders", "retention.ms=1"),
        ("groups", reading.path, "--commit", "g", "orders-0", "1"),
        ("consume", "--group", "g", "--idle-exit", "1", orders),
    ):
        assert f"{reading.path}: is mounted read-only" in fails(*words), words
    for words in (("cat", orders), ("retain", "-n", reading.path), ("describe", reading.path)):
        assert call(*words).returncode == 0, words
    assert files(mount.log_dirs[0]) == before


def test_a_new_store_is_not_created_inside_another(tmp_path: Path) -> None:
    """No store is created in a log directory or a partition; beside a copy of a partition one may be."""
    with Store(tmp_path / "data") as store:
        store.create("orders-0")
    for name in ("more", "orders-1", "orders-0/more"):
        with pytest.raises(InvalidStore, match=f"did you mean {tmp_path}/data"):
            Store(tmp_path / "data" / name)
        assert not (tmp_path / "data" / name).exists()
    shutil.copytree(tmp_path / "data/orders-0", tmp_path / "home/orders-0")
    Store(tmp_path / "home/log").close()
    with pytest.raises(InvalidStore, match=f"did you mean {tmp_path}/home"):
        Store(tmp_path / "home/orders-1")


def test_recognition_lists_one_directory_and_few_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names in a log directory with many partitions are read once.

    At most one partition is listed, and none if there is a checkpoint.
    """
    (tmp_path / "log").mkdir()
    for number in range(1000):
        (tmp_path / f"log/orders-{number}").mkdir()
    (tmp_path / "log/recovery-point-offset-checkpoint").touch()
    listed: list[object] = []
    real = os.listdir

    def counted(path: Path) -> list[str]:
        listed.append(path)
        return real(path)

    monkeypatch.setattr(os, "listdir", counted)
    assert recognise(tmp_path / "log").kind is PathKind.LOG_DIR
    assert listed == [tmp_path / "log"]
    (tmp_path / "log/recovery-point-offset-checkpoint").unlink()
    for number in range(1000):
        (tmp_path / f"log/orders-{number}/{0:020}.log").touch()
    listed.clear()
    assert recognise(tmp_path / "log").kind is PathKind.LOG_DIR
    assert len(listed) == 2


def test_a_dead_mount_stays_if_the_log_directory_is_wrong(
    make_mount: Callable[..., Mount], tmp_path: Path
) -> None:
    """The log directories are checked before a dead mount is removed from the mountpoint."""
    mount = make_mount()
    mount.kill()
    command = [sys.executable, "-m", "logfs", "mount", "-f"]
    (tmp_path / "home").mkdir()
    (tmp_path / "home/file").touch()
    done = subprocess.run(
        [*command, tmp_path / "home", mount.path], capture_output=True, check=False
    )
    assert b"is not a log directory" in done.stderr
    assert is_mounted(mount.path)
