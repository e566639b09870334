"""docs/tools.md: each example with the real tool, on a real mount."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.command_line import ok
from tests.support.processes import wait_for
from tests.support.requirements import need, need_command
from tests.system.test_documented_commands import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.mounts import Mount

PAGE = (Path(__file__).parents[2] / "docs/tools.md").read_text()
JOURNAL_REMOTE = Path("/lib/systemd/systemd-journal-remote")

pytestmark = pytest.mark.usefixtures("mounts_alone")


@pytest.fixture
def mount(make_mount: Callable[..., Mount], tmp_path: Path) -> Iterator[Mount]:
    """The mount of the page, with its partitions; `logfs` is on the PATH."""
    made = make_mount()
    for name in ("app-0", "syslog-0", "programs-0", "journal-0"):
        made.partition(name)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/logfs").write_text(f'#!/bin/sh\nexec {sys.executable} -m logfs "$@"\n')
    (tmp_path / "bin/logfs").chmod(0o755)
    yield made
    assert made.errors() == ""


def blocks(section: str, language: str, mount: Mount, tmp_path: Path) -> list[str]:
    """Return the blocks of a section in a language, with the paths of this test."""
    text = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    found = re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    paths = {
        "/mnt/log": mount.path,
        "/var/lib/logfs": mount.log_dirs[0],
        "/var/log": tmp_path / "var",
    }
    for path, here in paths.items():
        found = [block.replace(path, str(here)) for block in found]
    return found


def environment(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a tool: a home of its own."""
    paths = f"{tmp_path}/bin:/usr/sbin:{os.environ['PATH']}"
    root = Path(__file__).parents[2]
    return {**os.environ, "HOME": str(tmp_path), "PATH": paths, "PYTHONPATH": str(root)}


def start(command: str, tmp_path: Path) -> subprocess.Popen[bytes]:
    """Start a shell command in a process group of its own."""
    return subprocess.Popen(
        ["bash", "-c", command],
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def stop(process: subprocess.Popen[bytes]) -> bytes:
    """End the process group of a command; return what it has printed."""
    os.killpg(process.pid, 15)
    printed, _ = process.communicate(timeout=60)
    return printed


def run(command: str, tmp_path: Path) -> str:
    """Run a shell command, which must succeed; return what it has printed."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        env=environment(tmp_path),
        capture_output=True,
        timeout=120,
        check=False,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_inotify(mount: Mount, tmp_path: Path) -> None:
    """A watch of the directory tells of writes to `append`, and of no other appends; a watch of `records` of none."""
    need_command("inotifywait")
    folder = mount.path / "app-0"
    (command,) = blocks("inotify", "sh", mount, tmp_path)
    told = tmp_path / "told"
    watching = start(f"exec {command.strip()} {folder}/records >{told}", tmp_path)
    # It is ready when it tells of a write.
    wait_for(
        lambda: told.exists() and (folder / "append").write_bytes(b"x\n") and told.read_bytes()
    )
    time.sleep(0.2)
    before = told.read_text()
    ok("append", mount.log_dirs[0] / "app-0", stdin=b"y\n")
    (folder / "append").write_bytes(b"z\n")
    wait_for(lambda: told.read_text() != before)
    stop(watching)
    assert set(told.read_text().splitlines()) == {f"{folder}/ MODIFY append"}


def test_logrotate(mount: Mount, tmp_path: Path) -> None:
    """Each rotated file is appended once; a file that is followed over its rotations is appended as it grows."""
    need_command("logrotate")
    (tmp_path / "var").mkdir()
    file = tmp_path / "var/app.log"
    (rules,) = blocks("logrotate", "", mount, tmp_path)
    (follow,) = blocks("logrotate", "sh", mount, tmp_path)
    (tmp_path / "rules").write_text(rules)
    rotate = f"logrotate --force --state {tmp_path}/state {tmp_path}/rules"
    for text in ("1\n2\n", "3\n"):
        file.write_text(text)
        assert run(rotate, tmp_path).startswith("app-0: ")
    records = mount.path / "app-0/records"
    assert records.read_text() == "1\n2\n3\n"
    file.write_text("4\n")
    following = start(follow, tmp_path)
    wait_for(lambda: records.read_text().endswith("4\n"))
    file.rename(tmp_path / "var/app.log.1")
    file.write_text("5\n")
    wait_for(lambda: records.read_text().endswith("5\n"))
    stop(following)
    assert records.read_text() == "1\n2\n3\n4\n5\n"


def test_rsyslog(mount: Mount, tmp_path: Path) -> None:
    """Messages are lines of one partition, and envelopes with the program as key in another."""
    need_command("rsyslogd")
    need_command("logger")
    (rules,) = blocks("rsyslog", "", mount, tmp_path)
    socket = tmp_path / "socket"
    (tmp_path / "conf").write_text(
        'module(load="imuxsock" SysSock.Use="off")\n'
        f'input(type="imuxsock" Socket="{socket}")\n'
        f"{rules}"
    )
    command = f"exec rsyslogd -n -f {tmp_path}/conf -i {tmp_path}/pid"
    daemon = start(command, tmp_path)
    wait_for(socket.exists)
    for program, text in (("web", "hello world"), ("db", 'it\'s "quoted"')):
        subprocess.run(["logger", "-u", socket, "-t", program, text], check=True)
    lines, envelopes = mount.path / "syslog-0/records", mount.path / "programs-0"
    wait_for(lambda: lines.read_bytes().count(b"\n") == 2)
    wait_for(lambda: (envelopes / "records").read_bytes().count(b"\n") == 2)
    stop(daemon)
    assert [line.split(": ", 1)[1] for line in lines.read_text().splitlines()] == [
        "hello world",
        'it\'s "quoted"',
    ]
    shown = ok("cat", envelopes, "-F", "%k|%s\n").splitlines()
    assert [line.split("|")[0] for line in shown] == ["web", "db"]
    assert shown[1].endswith('db: it\'s "quoted"')


def test_journald(mount: Mount, tmp_path: Path) -> None:
    """Entries of a journal, the unit as key, the time as time; also one whose message is no text."""
    need_command("journalctl")
    need_command("jq")
    need(JOURNAL_REMOTE.exists(), "systemd-journal-remote is not installed")
    entries = b""
    for number, message in enumerate((b"MESSAGE=started", b"MESSAGE\n\2\0\0\0\0\0\0\0\xff\xfe")):
        entries += b"__REALTIME_TIMESTAMP=%d\n" % (1638100400123456 + number)
        entries += b"__MONOTONIC_TIMESTAMP=1\n_BOOT_ID=0123456789abcdef0123456789abcdef\n"
        entries += b"_SYSTEMD_UNIT=web%d.service\n%s\n\n" % (number, message)
    journal = tmp_path / "x.journal"
    subprocess.run(
        [JOURNAL_REMOTE, f"--output={journal}", "-"], input=entries, check=True, capture_output=True
    )
    (command,) = blocks("journald", "sh", mount, tmp_path)
    command = command.replace("journalctl", f"journalctl --file {journal}")
    following = start(command, tmp_path)
    records = mount.path / "journal-0/records"
    wait_for(lambda: records.read_bytes().count(b"\n") == 2)
    stop(following)
    shown = ok("cat", mount.path / "journal-0", "-F", "%T %k %s\n").splitlines()
    assert shown == ["1638100400123 web0.service started", "1638100400123 web1.service [255,254]"]


def test_lnav(mount: Mount, tmp_path: Path) -> None:
    """The format is accepted, and lnav finds keys and values in envelopes."""
    need_command("lnav")
    with (mount.path / "programs-0/append.jsonl").open("ab") as file:
        for n in range(5):
            file.write(b'{"key":"k%d","value":"line %d"}\n' % (n % 2, n))
    (query,) = blocks("lnav", "sh", mount, tmp_path)
    run(f"lnav -i {ROOT}/docs/lnav/logfs_envelopes.json", tmp_path)
    assert [line.split() for line in run(query, tmp_path).splitlines()] == [
        ["key", "lines"],
        ["k0", "3"],
        ["k1", "2"],
    ]
    assert "k0 line 4" in run(f"lnav -n {mount.path}/programs-0/records.jsonl", tmp_path)


def test_duckdb(mount: Mount, tmp_path: Path) -> None:
    """Queries over the envelopes of a partition, and of all topics."""
    need(importlib.util.find_spec("duckdb"), "duckdb is not installed")
    import duckdb

    with (mount.path / "programs-0/append.jsonl").open("ab") as file:
        for n in range(5):
            file.write(b'{"key":"k%d","value":"line %d"}\n' % (n % 2, n))
    (mount.path / "app-0/append").write_bytes(b"x\n")
    (text,) = blocks("DuckDB", "sql", mount, tmp_path)
    first, second = text.split(";\n")[:2]
    assert duckdb.sql(first).fetchall() == [("k0", 3, 4), ("k1", 2, 3)]
    assert duckdb.sql(second).fetchall() == [("app", 1), ("programs", 5)]
