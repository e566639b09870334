"""Commands that write beside a mount: they go through it, with the answers and errors that they have without one."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from logfs.store.store import Store
from tests.support.command_line import call, fails, ok
from tests.support.mounts import Mount, refuses
from tests.support.processes import run, wait_for
from tests.support.requirements import need_root
from tests.support.stores import assert_clean

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

NOON = 1638100400000
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z|(?<=\"timestamp\":)[0-9]+")

# What is asked of a log directory L, one after another; D is another log directory of the store.
COMMANDS: list[Sequence[str]] = [
    ("create", "L/orders-0"),
    ("create", "L/orders-0"),
    ("create", "L/keyed-0", "-c", "cleanup.policy=compact", "-c", "segment.bytes=1000"),
    ("create", "L/bad name-0"),
    ("create", "L/no"),
    ("append", "L/orders-0", "-f", "LINES"),
    ("append", "L/orders-0", "-f", "EMPTY"),
    ("append", "L/orders-0", "-f", "UNFINISHED", "-f", "LINES"),
    ("append", "L/keyed-0", "--jsonl", "-f", "ENVELOPES"),
    ("append", "L/orders-0", "--jsonl", "-f", "LINES"),
    ("append", "L/keyed-0", "-K", ":", "-H", "from=here", "-H", "x=", "-f", "KEYED"),
    ("append", "L/keyed-0", "-H", "from=here", "-f", "LINES"),
    ("append", "L/orders-0", "-H", "from=here", "-f", "LINES", "-f", "EMPTY"),
    ("append", "L/orders-0", "-H", "wrong", "-f", "LINES"),
    ("append", "L/orders-0", "-H", "a=b", "--jsonl", "-f", "LINES"),
    ("cat", "L/keyed-0", "-F", "%o %k %s %h\\n"),
    ("cat", "L/keyed-0", "-F", "%o %y"),
    ("append", "L/keyed-0", "-f", "LINES"),
    ("append", "L/orders-0", "-f", "LONG"),
    ("append", "L/missing-0", "-f", "LINES"),
    ("cat", "L/orders-0"),
    ("config", "L", "--topic", "orders", "segment.bytes=2000", "retention.ms=-1"),
    ("config", "L", "--topic", "orders", "segment.bytes=-7"),
    ("config", "L", "--topic", "nothing", "segment.bytes=2000"),
    ("config", "L", "log.retention.hours=5"),
    ("config", "L", "log.retention.hours"),
    ("config", "L", "log.retention.hours=", "log.retention.hours"),
    ("append", "L/orders-0", "-f", "LINES", "-f", "LINES"),
    ("groups", "L", "--commit", "g", "orders-0", "7"),
    ("groups", "L", "--commit", "g", "orders-0", "latest"),
    ("groups", "L", "--commit", "g", "orders-0", "soon"),
    ("groups", "L", "--commit", "g", "missing-0", "1"),
    ("groups", "L"),
    ("groups", "L", "--forget", "g", "orders-0"),
    ("groups", "L", "--forget", "g", "orders-0"),
    ("create", "L/wide", "-n", "3"),
    ("groups", "L", "--commit", "g", "wide", "earliest"),
    ("groups", "L", "-p", "wide", "-g", "g"),
    ("groups", "L", "--forget", "g", "wide"),
    ("config", "L", "D", "--topic", "wide", "retention.ms=7", "retention.ms"),
    ("config", "retention.ms"),
    ("config", "L", "retention.m"),
    ("delete", "L/wide"),
    ("delete", "L/wide"),
    ("undelete", "L/wide"),
    ("undelete", "L/wide"),
    ("groups", "L", "-p", "wide", "-g", "g"),
    ("delete", "L/wide"),
    ("compact", "L/keyed-0", "--roll"),
    ("compact", "L/orders-0"),
    ("cat", "L/keyed-0", "--json"),
    ("delete-records", "L/orders-0", "--before", "30"),
    ("delete-records", "L/orders-0", "--before", "30000"),
    ("delete-records", "L/keyed-0", "--before", "1"),
    ("retain", "--dry-run", "L"),
    ("retain", "L"),
    ("tier", "L"),
    ("tier", "L", "-p", "orders-0"),
    ("move", "L/orders-0", "--to", "D"),
    ("move", "D/orders-0", "--to", "D"),
    ("cat", "-o", "-3", "D/orders-0"),
    ("delete", "L/keyed-0"),
    ("delete", "L/keyed-0"),
    ("describe", "L"),
]


def write_inputs(directory: Path) -> dict[str, Path]:
    """Write the files to append, and return their paths."""
    made = {
        "LINES": b"".join(b"line %d\n" % n for n in range(40)),
        "EMPTY": b"",
        "UNFINISHED": b"one\ntwo",
        "ENVELOPES": b"".join(
            b'{"key":"%d","value":"%d","timestamp":%d}\n' % (n % 7, n, NOON + n) for n in range(90)
        ),
        "KEYED": b"k:v\nk:w:x\n\xff:\xfe\n:empty\nlast:unfinished",
        "LONG": b"before\n" + b"x" * 2_000_000 + b"\nafter\n",
    }
    for name, content in made.items():
        (directory / name).write_bytes(content)
    return {name: directory / name for name in made}


def test_the_answers_are_the_same(tmp_path: Path) -> None:
    """Standard output, standard error and exit code of each command are those of a store without a mount."""
    inputs = write_inputs(tmp_path)

    def outcomes(base: Path) -> list[tuple[int, str, str]]:
        places = {"L": base / "log", "D": base / "other", **inputs}
        found = []
        for command in COMMANDS:
            words = [
                re.sub("^([A-Z]+)(?=/|$)", lambda name: str(places[name[1]]), word)
                if not word.startswith("-")
                else word
                for word in command
            ]
            done = call(*words)
            told = [each.decode(errors="surrogateescape") for each in (done.stdout, done.stderr)]
            shown = [_TIME.sub("TIME", text.replace(str(base), "BASE")) for text in told]
            found.append((done.returncode, shown[0], shown[1]))
        return found

    results = []
    for kind in ("mounted", "alone"):
        base = tmp_path / kind
        for name in ("log", "other"):
            (base / name).mkdir(parents=True)
        with Store([base / "log", base / "other"], create=False) as store:
            # The partitions of the commands go where there are fewest.
            for number in range(10):
                store.create(f"filler-{number}")
        _gather(base)
        if kind == "mounted":
            mount = Mount(base / "mnt", [base / "log", base / "other"]).start()
            try:
                # A compaction in the background would leave less to do for the one that is asked for.
                (mount.path / ".logfs/ctl").write_text("pause")
                results.append(outcomes(base))
            finally:
                mount.stop()
        else:
            results.append(outcomes(base))
        assert_clean(base / "log", base / "other")
    for command, mounted, alone in zip(COMMANDS, *results, strict=True):
        assert mounted == alone, command


def _gather(base: Path) -> None:
    """Leave all partitions in one log directory but for the ten that make the other the fuller one."""
    with Store([base / "log", base / "other"], create=False) as store:
        for name in list(store):
            if store.registry.home(name) == base / "log":
                store.move(name, base / "other")


def test_append_beside_other_writers(mount: Mount) -> None:
    """Every line arrives once, in order; the offsets that are printed hold the records that were appended."""
    orders = mount.partition("orders-0")
    real = mount.log_dirs[0] / "orders-0"

    def append(writer: int) -> str:
        lines = b"".join(b"%d %d\n" % (writer, n) for n in range(20_000))
        done = subprocess.run(
            [sys.executable, "-m", "logfs", "append", str(real)],
            input=lines,
            capture_output=True,
            check=True,
        )
        return done.stdout.decode()

    with ThreadPoolExecutor(4) as pool:
        printed = list(pool.map(append, range(4)))
    found = [line.split() for line in (orders / "records").read_bytes().splitlines()]
    for writer, text in enumerate(printed):
        offsets = [n for n, (who, _) in enumerate(found) if int(who) == writer]
        assert [int(found[n][1]) for n in offsets] == list(range(20_000))
        told = re.fullmatch(
            r"orders-0: (\d+)\.\.(\d+)( \(20000 records, among those of other writers\))?\n", text
        )
        assert told is not None, text
        assert (int(told[1]), int(told[2])) == (offsets[0], offsets[-1] + 1)
        assert bool(told[3]) == (offsets[-1] - offsets[0] != 19_999)


@pytest.fixture
def slow(mount: Mount) -> Path:
    """A partition whose compaction takes minutes, and which the mount does not compact by itself."""
    (mount.path / ".logfs/ctl").write_text("pause\n")
    folder = mount.partition("slow-0")
    (folder / "config/cleanup.policy").write_text("compact")
    (folder / "config/segment.bytes").write_text("1000000")
    lines = b"".join(b'{"key":"%d","value":"%s"}\n' % (n % 1000, b"x" * 90) for n in range(60_000))
    with (folder / "append.jsonl").open("wb") as file:
        file.write(lines)
    config = mount.path / ".logfs/config/log.cleaner.io.max.bytes.per.second"
    config.write_text("100000")
    return mount.log_dirs[0] / "slow-0"


def _compacting(mount: Mount) -> bool:
    return bool(json.loads((mount.path / ".logfs/status.json").read_bytes())["background"])


@pytest.mark.parametrize("is_mounted", [True, False], ids=["mounted", "alone"])
@pytest.mark.parametrize("name", ["orders", "orders-0"], ids=["topic", "partition"])
def test_a_full_disk_is_no_line_to_correct(tmp_path: Path, name: str, *, is_mounted: bool) -> None:
    """No line is named: in a topic, lines after the first that failed may be in other partitions already."""
    need_root()
    lines = tmp_path / "lines"
    lines.write_bytes((b"x" * 1000 + b"\n") * 20_000)
    log_dir = tmp_path / "log"
    log_dir.mkdir()
    run("mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", log_dir)
    try:
        ok("create", log_dir / "orders", "-n", "3")
        mount = Mount(tmp_path / "mnt", [log_dir])
        if is_mounted:
            mount.start()
        try:
            done = call("append", log_dir / name, "-f", lines)
        finally:
            mount.stop()
        assert done.returncode == 1
        assert done.stdout.startswith(b"orders")
        assert done.stderr.endswith(b": No space left on device\n")
        assert b", line " not in done.stderr
    finally:
        run("umount", log_dir)


def test_ctrl_c_ends_a_long_request(mount: Mount, slow: Path) -> None:
    """The mount gives it up, too; the log is as it was, and can be compacted afterwards."""
    before = (mount.path / "slow-0/records").read_bytes()
    with subprocess.Popen(
        [sys.executable, "-m", "logfs", "compact", str(slow)], stderr=subprocess.PIPE
    ) as command:
        wait_for(lambda: _compacting(mount))
        command.send_signal(signal.SIGINT)
        assert command.wait(20) in (130, -signal.SIGINT)
    wait_for(lambda: not _compacting(mount))
    assert (mount.path / "slow-0/records").read_bytes() == before
    (mount.path / ".logfs/config/log.cleaner.io.max.bytes.per.second").write_text("\n")
    assert "compacted up to offset" in ok("compact", slow, "--roll")
    assert len((mount.path / "slow-0/records").read_bytes().splitlines()) == 1000


def test_the_mount_ends_during_a_request(mount: Mount, slow: Path) -> None:
    """Both end at once; the command says that the request may have been executed or not."""
    with subprocess.Popen(
        [sys.executable, "-m", "logfs", "compact", str(slow)], stderr=subprocess.PIPE
    ) as command:
        wait_for(lambda: _compacting(mount))
        mount.stop()
        _, told = command.communicate(timeout=20)
    assert command.returncode == 1
    assert told.count(b"\n") == 1
    assert b"Traceback" not in told
    assert_clean(*mount.log_dirs)
    mount.start()


def test_a_killed_mount_is_no_mount(mount: Mount) -> None:
    """The command opens the directories itself, and recovers them."""
    (mount.partition("orders-0") / "append").write_bytes(b"a\nb\n")
    real = mount.log_dirs[0] / "orders-0"
    mount.kill()
    (mount.path.parent / "more").write_bytes(b"c\n")
    assert ok("append", real, "-f", mount.path.parent / "more") == "orders-0: 2..3\n"
    mount.start()
    assert ok("append", real, "-f", mount.path.parent / "more") == "orders-0: 3..4\n"
    assert (mount.path / "orders-0/records").read_bytes() == b"a\nb\nc\nc\n"


def test_hostile_requests(mount: Mount) -> None:
    """What is no request is refused with EINVAL and changes nothing; the mount goes on."""
    mount.partition("orders-0")
    assert (mount.path / ".logfs/admin").stat().st_mode & 0o777 == 0o600
    good = {"operation": "create", "partition": "new-0", "settings": {}}
    chance = random.Random(15)
    hostile: list[bytes] = [b"\n", b"{}\n", b"[]\n", b"null\n", b"[" * 100_000 + b"\n", b"\xff\n"]
    values = [None, 1, -1, 2**70, 1.5, True, "x", "", [], ["a", 1], {}, {"a": 1}, {"a": "b"}]
    hostile += [
        json.dumps({**good, chance.choice([*good, "other"]): chance.choice(values)}).encode()
        + b"\n"
        for _ in range(60)
    ]
    parts = [b'{"operation":', b"\n", json.dumps(good).encode() + b"\n"]
    fd = os.open(mount.path / ".logfs/admin", os.O_RDWR)
    try:
        os.write(fd, parts[0])
        with refuses(errno.EINVAL):
            os.write(fd, parts[1])
        # Nothing of a request that was refused stays.
        os.write(fd, parts[2])
        wait_for(lambda: b"answer" in os.pread(fd, 9999, 0))
    finally:
        os.close(fd)
    for line in hostile:
        fd = os.open(mount.path / ".logfs/admin", os.O_RDWR)
        try:
            try:
                os.write(fd, line)
            except OSError:
                continue
            wait_for(lambda fd=fd: b"answer" in (told := os.pread(fd, 9999, 0)) or b"error" in told)
        finally:
            os.close(fd)
    assert "orders-0" in os.listdir(mount.path)
    assert "internal error" not in mount.errors()
    assert b"Traceback" not in (mount.log.read_bytes() if mount.log else b"")
    assert ok("create", mount.log_dirs[0] / "fine-0")


def test_requests_without_an_end(mount: Mount) -> None:
    """A line that goes on for ever is refused at its limit, and one whose newline never came is told."""
    admin = mount.path / ".logfs/admin"
    fd = os.open(admin, os.O_RDWR)
    try:
        with refuses(errno.EMSGSIZE):
            for _ in range(100):
                os.write(fd, b"x" * 1_000_000)
        # Nothing of it stays.
        os.write(fd, b'{"operation":"create","partition":"new-0"}\n')
        wait_for(lambda: b"answer" in os.pread(fd, 9999, 0))
        os.write(fd, b'{"operation":"create","partition":"half-0"}')
    finally:
        os.close(fd)
    wait_for(lambda: "closed before the newline" in mount.errors())
    # An error that repeats what it was given is kept in part.
    for line in (
        b'{"operation":"%b"}\n' % (b"y" * 900_000),
        b'{"operation":"discard","staged":{}}\n',
    ):
        with refuses(errno.EINVAL):
            admin.write_bytes(line)
    assert max(map(len, mount.errors().splitlines())) < 5_000
    assert "one line of at most" in mount.errors()
    assert {"new-0", "half-0"} & {*os.listdir(mount.path)} == {"new-0"}


def test_a_holder_that_is_no_mount_is_named(log_dir: Path) -> None:
    """Another process that has the directories open is named, and nothing is changed."""
    with Store(log_dir) as store:
        store.create("orders-0")
    hold = "import logfs, sys; s = logfs.open(sys.argv[1]); print('held', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(log_dir)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        for words in (
            ("append", log_dir / "orders-0"),
            ("create", log_dir / "more-0"),
            ("compact", log_dir / "orders-0"),
            ("config", log_dir, "log.retention.hours=5"),
        ):
            assert f"in use by process {other.pid} " in fails(*words)
        other.communicate(b"\n")
