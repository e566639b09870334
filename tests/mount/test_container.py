"""A partition directory as a container's volume: bubblewrap with its own root, pid, mount and user namespaces."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import pytest

from tests.support.mounts import Mount
from tests.support.processes import wait_for
from tests.support.requirements import need, need_command, need_fuse, need_root
from tests.support.stores import assert_clean

if TYPE_CHECKING:
    from collections.abc import Iterator

# For a moment, a new container has copies of all mounts.
pytestmark = pytest.mark.usefixtures("mounts_alone")

NOBODY = 65534

_numbers = count()


@pytest.fixture(scope="module")
def shared() -> Iterator[Mount]:
    """A mount with allow_other in a directory that every user may enter."""
    need_fuse()
    need_root()
    need_command("bwrap")
    base = Path(tempfile.mkdtemp(prefix="logfs-"))
    base.chmod(0o755)
    # Directories that logfs creates are closed to other users, so the log directory is created here, with mode 0755.
    (base / "log").mkdir()
    (base / "log").chmod(0o755)
    mount = Mount(base / "mnt", [base / "log"], ["-o", "allow_other"]).start().keep_old_records()
    yield mount
    mount.stop()
    assert_clean(*mount.log_dirs)
    shutil.rmtree(base)


@pytest.fixture
def topic(shared: Mount) -> Path:
    """The directory of a new, empty partition with mode 0777."""
    path = shared.partition(f"topic{next(_numbers)}-0")
    path.chmod(0o777)
    return path


class Container:
    """A container: a root that contains only the system's programs and, as /data, the volume.

    `uid` is the user who starts it, `inside` the uid that the user has in it (the same by default).
    """

    def __init__(self, volume: Path, uid: int, *, inside: int | None = None) -> None:
        self.uid = uid
        self.command = [
            "bwrap",
            "--unshare-all",
            "--die-with-parent",
            "--new-session",
            "--clearenv",
        ]
        self.command += ["--setenv", "PATH", "/usr/bin:/bin"]
        for name in ("/usr", "/bin", "/lib", "/lib64", "/sbin"):
            if os.path.islink(name):
                self.command += ["--symlink", os.readlink(name), name]
            elif os.path.isdir(name):
                self.command += ["--ro-bind", name, name]
        self.command += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--dir", "/data"]
        self.command += ["--bind", str(volume), "/data"]
        if inside is not None:
            self.command += ["--uid", str(inside), "--gid", str(inside)]

    def start(self, script: str) -> subprocess.Popen[str]:
        """Start a shell script in the container."""
        return subprocess.Popen(
            [*self.command, "sh", "-c", script],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            user=self.uid,
            group=self.uid,
            extra_groups=[],
            cwd="/",
        )

    def run(self, script: str) -> str:
        """Run a shell script that must succeed in the container, and return its output."""
        process = self.start(script)
        out, err = process.communicate(timeout=60)
        if "Creating new namespace failed" in err or "setting up uid map" in err:
            need(False, f"no user namespaces here: {err.strip()}")
        assert process.returncode == 0, err
        return out


@pytest.fixture(params=["root", "root as 1000", "nobody", "nobody as root"])
def container(request: pytest.FixtureRequest, topic: Path) -> Container:
    """A container of root and of an ordinary user, each under the same and under another uid inside."""
    uid, inside = {
        "root": (0, None),
        "root as 1000": (0, 1000),
        "nobody": (NOBODY, None),
        "nobody as root": (NOBODY, 0),
    }[request.param]
    return Container(topic, uid, inside=inside)


def test_the_container_has_its_own_namespaces(container: Container) -> None:
    """The container of these tests has its own root and its own pid, mount and user namespaces."""
    links = container.run(
        "for n in pid mnt user; do readlink /proc/self/ns/$n; done; ls /; echo $$"
    )
    mine = [os.readlink(f"/proc/self/ns/{name}") for name in ("pid", "mnt", "user")]
    lines = links.split()
    assert not set(lines) & set(mine)
    assert "data" in lines
    assert "work" not in lines
    assert int(lines[-1]) < 10


def test_append_and_read(container: Container, topic: Path) -> None:
    """Appends, envelopes, records, offsets, times, ranges, segments, status and errors work in a container."""
    script = """
        set -e
        cd /data
        echo one >> append
        printf 'two\\nthree\\n' > append
        echo '{"value":"four","key":"k","timestamp":1638100400000}' >> append.jsonl
        seq 5 1000 >> append
        [ "$(head -n 3 records | tr '\\n' ' ')" = "one two three " ]
        [ "$(tail -n 1 records)" = 1000 ]
        [ "$(wc -l < records)" = 1000 ]
        [ "$(cat offsets/3)" = four ]
        [ "$(cat offsets/latest)" = 1000 ]
        [ "$(cat offsets/1..3 | tr '\\n' ' ')" = "two three " ]
        [ "$(cat offsets/-2.. | tr '\\n' ' ')" = "999 1000 " ]
        [ "$(readlink time/0)" = ../offsets/0 ]
        [ "$(cat time/0)" = one ]
        [ "$(cat time/2021-11-28T11:53:20Z)" = one ]
        cat offsets/3.json
        grep -c four records.jsonl
        [ "$(stat -c %Y offsets/3)" = 1638100400 ]
        ls offsets time segments config > /dev/null
        cmp segments/00000000000000000000.log segments/00000000000000000000.log
        grep -q '"log_end_offset": 1000' status.json
        dd if=/dev/zero of=/tmp/x count=1 2> /dev/null && cat /tmp/x | tr '\\0' x >> append
        if echo '}' >> append.jsonl; then exit 7; fi
        if rm records; then exit 8; fi
        if mkdir /data/new-0; then exit 9; fi
    """
    first, second = container.run(script).splitlines()
    assert orjson.loads(first)["key"] == "k"
    assert second == "1"
    assert (topic / "records").read_text().endswith("\n1000\n" + "x" * 512 + "\n")


def test_tail_inside(container: Container, topic: Path) -> None:
    """`tail -f` in a container shows the records that are appended in it and outside of it."""
    (topic / "append").write_text("before\n")
    process = container.start(
        "tail -n 1 -s 0.1 -f /data/records & echo inside >> /data/append; wait"
    )
    assert process.stdout is not None
    seen = [process.stdout.readline()]
    if seen == [""]:
        need("namespace" not in process.communicate()[1], "no user namespaces here")
    try:
        wait_for(lambda: "inside\n" in (topic / "records").read_text())
        (topic / "append").write_text("outside\n")
        while seen[-1] != "outside\n":
            seen.append(process.stdout.readline())
            assert seen[-1]
        # tail may have started before or after the line from inside was appended.
        assert seen in (["before\n", "inside\n", "outside\n"], ["inside\n", "outside\n"])
    finally:
        process.kill()
        process.communicate()


def test_last_offset_inside(container: Container) -> None:
    """A process in another pid namespace can read the offset of its own last record."""
    need_command("getfattr")
    script = """
        cd /data; echo a >> append; echo b >> append; exec >> append; echo c
        exec getfattr --only-values -n user.logfs.last_offset append >&2
    """
    process = container.start(script)
    _, err = process.communicate(timeout=60)
    need("namespace" not in err, "no user namespaces here")
    assert (err, process.returncode) == ("2", 0)


def test_modes_inside(shared: Mount, topic: Path) -> None:
    """Mode bits hold in a container: a user who may only produce cannot consume, whatever his uid in it is."""
    topic.chmod(0o755)
    (topic / "append").chmod(0o222)
    for name in ("records", "records.jsonl", "offsets", "time", "segments"):
        (topic / name).chmod(0o700)
    for inside in (None, 0):
        container = Container(topic, NOBODY, inside=inside)
        container.run("echo line >> /data/append")
        container.run("for f in records offsets/0 time/0; do cat /data/$f && exit 3; done; true")
        container.run("chmod 777 /data/records && exit 3; rmdir /data && exit 4; true")
    assert (topic / "records").read_text() == "line\nline\n"


def test_many_containers_at_once(topic: Path) -> None:
    """When several containers append to one partition, no line is torn or lost, and each writer's order is kept."""
    script = "i=0; while [ $i -lt 200 ]; do echo $NAME $i; i=$((i + 1)); done >> /data/append"
    processes = [
        Container(topic, uid).start(f"NAME={uid}x{number}; {script}")
        for number in range(3)
        for uid in (0, NOBODY)
    ]
    for process in processes:
        _, err = process.communicate(timeout=60)
        need("namespace" not in err, "no user namespaces here")
        assert process.returncode == 0, err
    lines = [line.split() for line in (topic / "records").read_text().splitlines()]
    names = {name for name, _ in lines}
    assert len(names) == 6
    for name in names:
        assert [int(number) for each, number in lines if each == name] == list(range(200))


def test_volume_outlives_the_container(shared: Mount, topic: Path) -> None:
    """The records of a killed container are kept, and its unfinished line becomes a record, as at any last close."""
    container = Container(topic, 0)
    process = container.start("exec >> /data/append; echo whole; printf unfinished; sleep 60")
    wait_for(lambda: (topic / "records").read_text() == "whole\n")
    wait_for(lambda: _children(process.pid))
    process.kill()
    process.communicate()
    wait_for(lambda: (topic / "records").read_text() == "whole\nunfinished\n")


def _children(pid: int) -> bool:
    return bool(Path(f"/proc/{pid}/task/{pid}/children").read_text())
