"""Standard Unix tools over a real mount: each must do the same with a log as with a plain file."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.mounts import Mount
from tests.support.processes import run, wait_for
from tests.support.requirements import need_command, need_fuse
from tests.support.stores import assert_clean

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LINES = 20_000


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    """One mount for all tests of this module."""
    need_fuse()
    base = tmp_path_factory.mktemp("tools")
    mount = Mount(base / "mnt", [base / "log"]).start()
    yield mount
    mount.stop()
    assert_clean(*mount.log_dirs)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plain file of lines. The output of a tool for the log must equal its output for this file."""
    path = tmp_path_factory.mktemp("plain") / "records"
    lines = (
        f"line {n} {'error' if n % 97 == 5 else 'info'} {'ü' * (n % 61)}\n" for n in range(LINES)
    )
    path.write_text("".join(lines), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def log(shared: Mount, plain: Path) -> Path:
    """A partition with the lines of `plain`, in several compressed segments."""
    path = shared.partition("orders-0")
    (path / "config/segment.bytes").write_text("100000")
    (path / "config/compression.type").write_text("lz4")
    run("sh", "-c", f"cat {plain} >> {path}/append")
    assert len(list((path / "segments").glob("*.log"))) > 2
    return path


@pytest.mark.parametrize(
    "command",
    [
        "cat {}",
        "cat -n {}",
        "tac {}",
        "head {}",
        "head -n 3 {}",
        "head -c 1000 {}",
        "head -n -19990 {}",
        "tail {}",
        "tail -n 5 {}",
        "tail -n 15000 {}",
        "tail -n +19000 {}",
        "tail -c 1234 {}",
        "tail -c +1000000 {}",
        "wc < {}",
        "wc -l < {}",
        "wc -c < {}",
        "wc -m < {}",
        "grep -c error {}",
        "grep -n 'line 123[0-9][0-9] error' {}",
        "grep -m 3 error {}",
        "grep -b info {} | tail -n 1",
        "grep -A 2 -B 2 'line 19999 ' {}",
        "sed -n '10000,10005p;10005q' {}",
        "awk 'END {{ print NR, $2 }}' {}",
        "sort -R --random-source=/dev/zero {} | sort -n -k 2 | md5sum",
        "cut -d ' ' -f 2 {} | tail -n 2",
        "md5sum < {}",
        "dd if={} bs=1000 skip=100 count=3 status=none",
        "dd if={} bs=1 skip=123456 count=10 status=none",
        "dd if={} bs=4096 skip=1000 iflag=skip_bytes status=none | md5sum",
        "dd if={} bs=1M iflag=fullblock status=none | md5sum",
        "od -A d -j 500000 -N 64 {}",
        "stat -c '%s %F' {}",
        "less -F {} | md5sum",
        "less +G {} | md5sum",
        "diff {} {} && echo same",
        "xargs -a {} -n 1000 echo | wc",
        "busybox cat {} | md5sum",
        "busybox tail -n 5 {}",
        "busybox tail -n +19990 {}",
        "busybox tail -c 100 {}",
        "busybox head -n 2 {}",
        "busybox wc -l < {}",
        "busybox grep -c error {}",
        "busybox dd if={} bs=1000 skip=7 count=1 2>/dev/null",
        "busybox md5sum < {}",
    ],
)
def test_reads_as_a_plain_file(log: Path, plain: Path, command: str) -> None:
    """The output of a tool is the same for `records` and for a plain file with the same lines."""
    need_command(command.split()[0])
    printed = [
        subprocess.run(
            ["sh", "-c", command.format(path, path)],
            stdout=subprocess.PIPE,
            check=True,
            timeout=120,
        ).stdout
        for path in (plain, log / "records")
    ]
    assert printed[0] == printed[1]
    assert printed[0]


def test_copies(log: Path, plain: Path, tmp_path: Path) -> None:
    """cp, cp -a, rsync, split, install and tar copy the whole log; cmp finds no difference."""
    records = log / "records"
    run("cp", records, tmp_path / "cp")
    run("cp", "-a", records, tmp_path / "cp-a")
    run("cp", "--sparse=always", records, tmp_path / "sparse")
    run("install", "-m", "600", records, tmp_path / "install")
    run("rsync", "-a", records, tmp_path / "rsync")
    run("rsync", "-a", "--checksum", records, tmp_path / "rsync")
    for name in ("cp", "cp-a", "sparse", "install", "rsync"):
        run("cmp", plain, tmp_path / name)
        run("cmp", records, tmp_path / name)
    assert (tmp_path / "cp-a").stat().st_mtime_ns // 1000 == records.stat().st_mtime_ns // 1000
    run("split", "-n", "l/7", records, tmp_path / "part-")
    run("split", "-b", "300000", records, tmp_path / "bytes-")
    for pattern in ("part-*", "bytes-*"):
        parts = sorted(tmp_path.glob(pattern))
        assert b"".join(part.read_bytes() for part in parts) == plain.read_bytes()
    run("tar", "-C", log, "-cf", tmp_path / "tar", "records", "offsets")
    assert run("tar", "-xOf", tmp_path / "tar", "records").encode() == plain.read_bytes()


def test_rsync_appends_new_records_to_a_copy(shared: Mount, tmp_path: Path) -> None:
    """`rsync --append-verify` adds the new records of a log to an older copy."""
    topic = shared.partition("rsync-0")
    run("sh", "-c", f"seq 1000 >> {topic}/append")
    run("rsync", "-a", topic / "records", tmp_path / "copy")
    run("sh", "-c", f"seq 1001 2000 >> {topic}/append")
    run("rsync", "-a", "--append-verify", topic / "records", tmp_path / "copy")
    assert (tmp_path / "copy").read_text() == "".join(f"{n}\n" for n in range(1, 2001))


def test_segments_with_rsync_and_dump(shared: Mount, log: Path, tmp_path: Path) -> None:
    """rsync of `segments/` copies the real files, and `logfs dump` reads them in the mount."""
    run("rsync", "-a", f"{log}/segments/", tmp_path / "copy")
    real = shared.log_dirs[0] / "orders-0"
    sealed = sorted((log / "segments").glob("*.log"))[:-1]
    for path in sealed:
        run("cmp", real / path.name, tmp_path / "copy" / path.name)
        run("cmp", real / path.name, path)
        index = path.with_suffix(".index")
        run("cmp", real / index.name, index)
    printed = run(sys.executable, "-m", "logfs", "dump", "--deep-iteration", sealed[0])
    assert printed.startswith(f"Dumping {sealed[0]}\nLog starting offset: 0\nbaseOffset: 0 ")


def test_envelopes_with_line_tools(log: Path) -> None:
    """`records.jsonl` has one JSON object per line, so that grep, tail and wc work on it."""
    records = log / "records.jsonl"
    assert run("tail", "-n", "1", records).startswith(
        '{"topic":"orders","partition":0,"offset":19999,'
    )
    assert run("grep", "-c", "error", records).strip() == str(len(range(5, LINES, 97)))
    assert run("sh", "-c", f"wc -l < {records}").strip() == str(LINES)


def test_find_newermt(log: Path) -> None:
    """`find -newermt` uses the timestamps of the records."""
    assert run("find", log / "records", "-newermt", "2021-01-01").strip() == str(log / "records")
    assert run("find", log / "records", "-newermt", "tomorrow") == ""
    found = run("find", log / "offsets", "-newermt", "2021-01-01", "-type", "f").split()
    assert str(log / "offsets/0") in found


def read_until(fd: int, pattern: bytes) -> bytes:
    """Read from a terminal until the data matches a pattern, and return the data."""
    data = b""
    terminal = select.poll()
    terminal.register(fd, select.POLLIN)

    def seen() -> object:
        nonlocal data
        while terminal.poll(0):
            data += os.read(fd, 65536)
        return re.search(pattern, data)

    wait_for(seen)
    return data


def test_less_on_a_terminal(log: Path) -> None:
    """less can go to the end, search backwards, and go to a percentage and to a line, as in any file."""
    need_command("less")
    pid, fd = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm"
        os.environ["LC_ALL"] = "C.UTF-8"
        os.execvp("less", ["less", "-S", "+G", str(log / "records")])
    try:
        read_until(fd, rb"line 19999 info")
        os.write(fd, b"?line 12345 \r")
        read_until(fd, rb"line 12345 ")
        os.write(fd, b"50%")
        read_until(fd, rb"line 10[0-9]{3} ")
        os.write(fd, b"5g")
        read_until(fd, rb"line 4 ")
    finally:
        os.write(fd, b"q")
        os.close(fd)
        os.waitpid(pid, 0)


class Follower:
    """A program that follows a file. A context manager, which kills the program at its end."""

    def __init__(self, *command: str | Path) -> None:
        self.process = subprocess.Popen(
            list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        self.data = b""

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def expect(self, data: bytes) -> None:
        """Wait until the program has printed exactly `data` since its start."""
        wait_for(lambda: self._printed() == data)

    def _printed(self) -> bytes:
        assert self.process.stdout is not None
        self.data += self.process.stdout.read() or b""
        return self.data


@pytest.mark.parametrize(
    "command",
    [
        "tail -n 2 -f",
        "tail -n 2 -F",
        "tail -c 6 -f",
        "busybox tail -n 2 -f",
        "busybox tail -n 2 -F",
    ],
)
def test_following(shared: Mount, command: str) -> None:
    """`tail -f` shows each new record once and in order, while segments roll."""
    need_command(command.split()[0])
    topic = shared.partition(re.sub(r"[^a-zA-Z]", "_", command) + f"{os.urandom(4).hex()}-0")
    (topic / "config/segment.bytes").write_text("300")
    (topic / "append").write_text("a0\nb0\nc0\n")
    with Follower(*command.split(), topic / "records") as tail:
        expected = b"b0\nc0\n"
        tail.expect(expected)
        for number in range(1, 3):
            (topic / "append").write_text(f"new {number}\n" * number * 10)
            expected += f"new {number}\n".encode() * number * 10
            tail.expect(expected)
    assert len(list((topic / "segments").glob("*.log"))) > 1


def test_following_envelopes_and_ranges(shared: Mount) -> None:
    """`tail -f` works on `records.jsonl` and on ranges without an end."""
    topic = shared.partition("follow-0")
    (topic / "append").write_text("a\nb\n")
    names = ("records.jsonl", "offsets/1..", "offsets/-1..", "time/0..")
    followers = [Follower("tail", "-n", "+1", "-s", "0.1", "-f", topic / name) for name in names]
    try:
        lines = run("cat", topic / "records.jsonl").encode()
        for follower, expected in zip(followers, (lines, b"b\n", b"b\n", b"a\nb\n"), strict=True):
            follower.expect(expected)
        (topic / "append").write_text("c\n")
        lines = run("cat", topic / "records.jsonl").encode()
        expectations = (lines, b"b\nc\n", b"b\nc\n", b"a\nb\nc\n")
        for follower, expected in zip(followers, expectations, strict=True):
            follower.expect(expected)
    finally:
        for follower in followers:
            follower.__exit__()


def test_logger_in_a_loop(shared: Mount) -> None:
    """A shell loop that appends lines reads each one as the last of `records`, as `latest`, and by its offset."""
    topic = shared.partition("loop-0")
    script = f"""
        cd {topic}
        for i in $(seq 100); do
            echo "line $i" >> append
            [ "$(tail -n 1 records)" = "line $i" ] || exit 3
            [ "$(cat offsets/latest)" = "line $i" ] || exit 4
            [ "$(cat offsets/$((i - 1)))" = "line $i" ] || exit 5
        done
        [ "$(wc -l < records)" = 100 ]
    """
    run("sh", "-c", script)


def test_tools_that_modify_files_are_refused(log: Path) -> None:
    """Tools that modify, remove, rename or link a file are refused with EPERM, and the log is unchanged."""
    before = (log / "records").stat()
    for command in (
        "truncate -s 0 {}",
        "sed -i s/a/b/ {}",
        "rm -f {}",
        "mv {} {}.old",
        "ln {} {}.link",
        "cp /etc/passwd {}",
        "sh -c 'echo x >> {}'",
        "dd if=/dev/zero of={} count=1 status=none",
        "shred {}",
    ):
        done = subprocess.run(
            ["sh", "-c", command.replace("{}", str(log / "records"))],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode != 0, command
        assert "not permitted" in done.stderr, done.stderr
    after = (log / "records").stat()
    assert (after.st_ino, after.st_size, after.st_mtime_ns) == (
        before.st_ino,
        before.st_size,
        before.st_mtime_ns,
    )
