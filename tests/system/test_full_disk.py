"""A full disk refuses writers only, and needs no repair once it has space again."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import pytest

from logfs.store.observe.check import Severity, check
from logfs.store.store import Store
from tests.support.command_line import call, ok
from tests.support.mounts import Mount
from tests.support.processes import run, wait_for
from tests.support.requirements import need_fuse, need_root
from tests.support.stores import assert_clean

if TYPE_CHECKING:
    from collections.abc import Iterator

CYCLES = int(os.environ.get("LOGFS_FILL_CYCLES", "2"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    need_root()
    path = tmp_path / "disk"
    path.mkdir()
    run("mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", path)
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def fill(path: Path, leave: int = 0) -> Path:
    """Fill the disk until `leave` bytes are free, and return the file that fills it."""
    filler = path / "filler"
    with filler.open("ab", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
        os.ftruncate(file.fileno(), max(os.fstat(file.fileno()).st_size - leave, 0))
    return filler


@pytest.fixture
def mount(small_disk: Path) -> Iterator[Mount]:
    """A mount of a log directory on the small disk."""
    need_fuse()
    log = small_disk / "log"
    mount = Mount(small_disk.parent / "mnt", [log]).start()
    try:
        yield mount
    finally:
        mount.stop()
    assert_clean(log)


def test_a_writer_on_a_full_disk_gets_enospc_until_there_is_space(
    small_disk: Path, mount: Mount
) -> None:
    """A full disk returns ENOSPC to the writer and leaves no partial batch, while readers go on.

    Writes succeed again as soon as there is space.
    """
    topic = mount.partition("a-0")
    written = []
    number = 0
    for _ in range(CYCLES):
        filler = fill(small_disk, leave=64 * 1024)
        refused = 0
        fd = os.open(topic / "append", os.O_WRONLY)
        try:
            while refused < 5:
                line = b"line %d " % number + b"z" * 3000
                number += 1
                try:
                    taken = os.write(fd, line + b"\n")
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    refused += 1
                    continue
                assert taken == len(line) + 1
                written.append(line)
            lines = (topic / "records").read_bytes().split(b"\n")[:-1]
            assert lines == written
            assert (topic / "offsets/0").read_bytes() == written[0]
            errors = [f for f in check([small_disk / "log"]) if f.severity is Severity.ERROR]
            assert not errors, errors
            filler.unlink()
            os.write(fd, b"room again\n")
            written.append(b"room again")
            os.fsync(fd)
        finally:
            os.close(fd)
        assert (topic / "records").read_bytes().split(b"\n")[:-1] == written
    assert "ENOSPC" in mount.errors()


def test_an_append_that_fits_succeeds_on_a_full_disk(small_disk: Path) -> None:
    """Exit code 0 if the records are durable, although the checkpoints could not be written; else an error."""
    target = small_disk / "log/a-0"
    ok("create", "-p", target)
    ok("append", target, stdin=b"first\n")
    fill(small_disk)
    done = call("append", target, stdin=b"second\n")
    assert (done.returncode, done.stdout) == (0, b"a-0: 1..2\n")
    assert b"the records are durable, but the log directory could not be closed" in done.stderr
    done = call("append", target, stdin=b"x" * 10_000 + b"\n")
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"No space left" in done.stderr
    (small_disk / "filler").unlink()
    assert ok("cat", target) == "first\nsecond\n"
    ok("append", target, stdin=b"third\n")
    assert ok("cat", target) == "first\nsecond\nthird\n"
    assert_clean(small_disk / "log")


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["", "PYTHONUNBUFFERED"])
@pytest.mark.parametrize("command", ["cat", "dump"])
def test_output_that_does_not_fit_is_an_error(
    small_disk: Path, tmp_path: Path, command: str, unbuffered: str
) -> None:
    """Also where the environment asks Python for no buffer, as images of containers do."""
    target = tmp_path / "log/a-0"
    ok("create", "-p", target)
    ok("append", target, stdin=b"line\n" * 40_000)
    source = [target] if command == "cat" else ["--print-data-log", target / f"{0:020}.log"]
    fill(small_disk, leave=16_384)
    with (small_disk / "output").open("wb") as output:
        done = subprocess.run(
            [sys.executable, "-m", "logfs", command, *source],
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            stdout=output,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert done.returncode == 1
    (message,) = done.stderr.splitlines()
    assert message.endswith(b"No space left on device")


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["", "PYTHONUNBUFFERED"])
def test_an_error_that_cannot_be_printed_has_its_exit_code(tmp_path: Path, unbuffered: str) -> None:
    for words, code in (["cat", tmp_path / "none-0"], 1), (["nonsense"], 2):
        with Path("/dev/full").open("wb") as full:
            done = subprocess.run(
                [sys.executable, "-m", "logfs", *words],
                env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
                stderr=full,
                check=False,
            )
        assert done.returncode == code


def test_a_partition_can_be_deleted_on_a_full_disk(small_disk: Path, mount: Mount) -> None:
    """`logfs delete` succeeds on a full disk. A new partition of that name has nothing of the old one."""
    topic = mount.partition("a-0")
    (topic / "append").write_bytes(b"line\n" * 9)
    (topic / "groups/g").write_text("5")
    (topic / "config/segment.bytes").write_text("12345")
    filler = fill(small_disk)
    ok("delete", mount.log_dirs[0] / "a-0")
    assert "a-0" not in os.listdir(mount.path)
    filler.unlink()
    topic.mkdir()
    assert (topic / "records").read_bytes() == b""
    assert os.listdir(topic / "groups") == []
    assert (topic / "config/segment.bytes").read_text() != "12345\n"
    assert (topic / "log-start-offset").read_text() == "0\n"


@pytest.mark.usefixtures("mounts_alone")
def test_umount_reports_a_full_disk(small_disk: Path, mount: Mount) -> None:
    """`logfs umount` fails in one line if the store could not be closed, and the next mount names the file."""
    log = small_disk / "log"
    topic = mount.partition("a-0")
    (topic / "append").write_bytes(b"line\n")
    filler = fill(small_disk)
    done = logfs("umount", mount.path)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"logfs: {log}: ")
    assert mount.process is not None
    mount.process.wait(20)
    done = logfs("mount", log, mount.path)
    assert done.returncode == 0
    assert str(log) in done.stderr
    assert "No space left on device" in done.stderr
    filler.unlink()
    logfs("umount", mount.path)
    mount.stop()
    mount.start()
    assert (topic / "records").read_bytes() == b"line\n"


def test_a_full_disk_after_a_kill_affects_no_other_log_directory(
    small_disk: Path, tmp_path: Path
) -> None:
    """After a kill, a partition on a full disk is offline until there is space. Other log directories are served."""
    need_fuse()
    log_dirs = [small_disk / "log", tmp_path / "log"]
    mount = Mount(tmp_path / "mnt", log_dirs).start()
    try:
        for name in ("a-0", "b-0"):
            (mount.partition(name) / "append").write_bytes(b"a line\n" * 100)
        full, other = sorted(("a-0", "b-0"), key=lambda name: not (log_dirs[0] / name).is_dir())
        mount.kill()
        filler = fill(small_disk)
        mount.start()
        assert (mount.path / other / "records").read_bytes() == b"a line\n" * 100
        (mount.path / other / "append").write_bytes(b"a line\n")
        status = orjson.loads((mount.path / ".logfs/status.json").read_bytes())
        assert "No space left on device" in status["offline"][full]
        mount.kill()
        filler.unlink()
        mount.start()
        for name, count in ((full, 100), (other, 101)):
            assert (mount.path / name / "records").read_bytes() == b"a line\n" * count
    finally:
        mount.stop()
    assert_clean(*log_dirs)


def test_the_last_error_of_a_daemon_is_written_to_no_file_of_the_log(tmp_path: Path) -> None:
    """The last error of a daemon is written to no file of the log.

    By then no process waits for the error, and the descriptor that reported the start may belong to another file.
    """
    need_fuse()
    file, mountpoint = tmp_path / "segment", tmp_path / "mnt"
    mountpoint.mkdir()
    file.write_bytes(b"of the log")
    command = [sys.executable, "-c", FAILS_AT_THE_END, file, tmp_path / "log", mountpoint]
    assert subprocess.run(command, check=False, timeout=60).returncode == 0
    pid = tmp_path / "pid"
    wait_for(lambda: not Path("/proc", pid.read_text()).exists())
    assert file.read_bytes() == b"of the log"


FAILS_AT_THE_END = """
import os, sys
from pathlib import Path
from logfs.cli import main
from logfs.mount import session

def run(options, ready):
    path = Path(sys.argv[1])
    path.with_name("pid").write_text(str(os.getpid()))
    ready()
    files = [path.open("r+b") for _ in range(9)]
    raise OSError(28, "No space left on device", "a checkpoint")

session.run = run
sys.exit(main(["mount", *sys.argv[2:]]))
"""


def logfs(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command and return its result, whatever the exit code."""
    return subprocess.run(
        [sys.executable, "-m", "logfs", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_many_small_segments_on_a_full_disk_lose_nothing(small_disk: Path) -> None:
    """Wherever the space runs out, at a roll or in an index, accepted records stay and later appends succeed."""
    log = small_disk / "log"
    script = small_disk.parent / "script.py"
    script.write_text(FILLER)
    room = range(16 if CYCLES <= 3 else 64)
    for pages in room:
        filler = fill(small_disk, leave=pages * 4096)
        command = [sys.executable, str(script), str(log), str(filler)]
        done = subprocess.run(command, capture_output=True, timeout=60, check=False)
        signalled = signal.Signals(-done.returncode).name if done.returncode < 0 else ""
        assert done.returncode == 0, (
            f"with {pages} pages left: {signalled} {done.stderr.decode()[-2000:]}"
        )
        filler.unlink(missing_ok=True)
        assert_clean(log)
        subprocess.run(["rm", "-rf", str(log)], check=True)


# A separate process: a store to a mapped page of a file without blocks for it raises SIGBUS, not an error.
FILLER = """
import os, sys
from pathlib import Path
from logfs.errors import LogfsError
from logfs.store.store import Store

log, filler = Path(sys.argv[1]), Path(sys.argv[2])
now = 1_700_000_000_000
room = os.path.getsize(filler) if filler.exists() else 0
os.truncate(filler, max(room - 64 * 1024, 0))
with Store(log, clock=lambda: now) as store:
    for key, value in {"segment.bytes": "30000", "segment.index.bytes": "65536", "index.interval.bytes": "0"}.items():
        store.settings.set_topic("a", key, value)
    partition = store.create("a-0")
    with filler.open("ab", buffering=0) as file:
        try:
            for _ in range(16):
                file.write(bytes(4096))
        except OSError:
            pass
    written = []
    refused = 0
    for number in range(4000):
        now += 1
        value = b"value %d" % number
        try:
            offset = partition.append([value])
        except OSError as error:
            refused += 1
            if refused == 40:
                break
            continue
        assert offset == len(written), (offset, len(written))
        written.append(value)
    assert [record.value for record in partition.read()] == written
    assert refused, "the disk never was full"
    filler.unlink()
    for number in range(600):
        now += 1
        written.append(b"after %d" % number)
        partition.append(written[-1:])
    partition.flush()
    assert [record.value for record in partition.read()] == written
    for offset in range(0, len(written), 37):
        assert partition.record(offset).value == written[offset]
with Store(log, clock=lambda: now) as store:
    assert [record.value for record in store["a-0"].read()] == written
"""


def test_a_limit_on_file_size_acts_like_a_full_disk(tmp_path: Path) -> None:
    """RLIMIT_FSIZE refuses an append with EFBIG and leaves the log undamaged."""
    log = tmp_path / "log"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with Store(log) as store:
            store.settings.set_topic("a", "segment.index.bytes", "8192")
            partition = store.create("a-0")
            partition.append([b"fits"])
            resource.setrlimit(resource.RLIMIT_FSIZE, (16384, before[1]))
            with pytest.raises(OSError, match="File too large"):
                partition.append([b"x" * 3001 for _ in range(20)])
            count = partition.log_end_offset
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            assert partition.append([b"and on"]) == count
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert_clean(log)
    with Store(log, read_only=True) as store:
        assert store["a-0"].record(count).value == b"and on"
