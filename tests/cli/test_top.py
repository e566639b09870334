"""`logfs top` and `logfs status`, of a mount and of a log directory, in a pipe and on a terminal."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import termios
import time
from typing import TYPE_CHECKING

import orjson
import pytest

from logfs.cli import main, watch
from logfs.cli.watch import parse_metrics
from logfs.store.directory import mount_table
from logfs.store.observe.metrics import Family, Sample, render
from logfs.store.store import Store
from tests.support import command_line
from tests.support.command_line import ok
from tests.support.processes import stopped, wait_for
from tests.support.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.mounts import Mount

LOGFS = (sys.executable, "-m", "logfs")


def call(*words: object) -> subprocess.CompletedProcess[str]:
    """Run a command of logfs."""
    done = command_line.call(*map(str, words))
    printed = done.stdout.decode(), done.stderr.decode()
    return subprocess.CompletedProcess(done.args, done.returncode, *printed)


def columns(text: str) -> dict[str, dict[str, str]]:
    """Return the rows of a table by partition, each as its values by heading."""
    lines = text.splitlines()
    number = next(n for n, line in enumerate(lines) if line.startswith("PARTITION"))
    headings = re.split(r"\s{2,}", lines[number])
    rows = [re.split(r"\s{2,}", line) for line in lines[number + 1 :] if line.strip()]
    return {row[0]: dict(zip(headings, row, strict=False)) for row in rows}


@pytest.fixture
def filled(mount: Mount) -> Mount:
    """A mount with three partitions of different sizes."""
    for name, count in (("small-0", 1), ("large-0", 300), ("middle-0", 30)):
        path = mount.partition(name)
        (path / "append").write_bytes(b"hello\n" * count)
    return mount


def test_top_parses_metrics_as_they_are_written() -> None:
    hostile = 'a\\b"c\nd}, {x="1"'
    text = render([Family("x_y", "X.", [Sample(1.5, {"a": hostile, "b": 2}), Sample(3)])])
    assert parse_metrics(text.decode()) == {"x_y": {(("a", hostile), ("b", "2")): 1.5, (): 3.0}}


# One table.


def test_one_table_of_a_mount(filled: Mount) -> None:
    """In a pipe the table is plain text, with sizes, segments, offsets and states, in the order asked for."""
    (filled.path / "small-0/groups/billing").write_text("earliest")
    (filled.path / "middle-0/ctl").write_text("pause")
    (filled.path / "large-0/ctl").write_text("roll")
    done = call("top", filled.path, "--interval", "0.1", "--sort", "size")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert done.stdout.startswith(f"{filled.path}: 4 partitions, ")
    found = columns(done.stdout)
    sizes = [name for name in found if not name.startswith("__")]
    assert sizes == ["large-0", "middle-0", "small-0"]
    assert found["large-0"]["SEGMENTS"] == "2"
    assert (found["large-0"]["START"], found["large-0"]["END"]) == ("0", "300")
    assert found["large-0"]["REC/S"] == "0"
    assert found["middle-0"]["STATE"] == "paused"
    assert found["small-0"]["LAG"] == "1"
    assert found["large-0"]["LAG"] == "-"
    first = call("top", filled.path, "--once", "--interval", "0.1", "-n", "1", "--sort", "name")
    (name,) = columns(first.stdout)
    assert name.startswith("__consumer_offsets-")


def test_rates_are_those_between_two_readings(filled: Mount) -> None:
    with subprocess.Popen(
        [*LOGFS, "top", str(filled.path), "--once", "--interval", "1.5"], stdout=subprocess.PIPE
    ) as top:
        # Appends last as long as the command, so that some are between its two readings.
        while top.poll() is None:
            (filled.path / "small-0/append").write_bytes(b"hello\n" * 1000)
            (filled.path / "large-0/records").read_bytes()
            time.sleep(0.01)
        assert top.stdout is not None
        found = columns(top.stdout.read().decode())
    assert int(found["small-0"]["REC/S"]) > 1000
    assert float(found["small-0"]["MB/S IN"]) > 0
    assert found["middle-0"]["REC/S"] == "0"
    assert next(iter(found)) == "small-0", "sorted by what comes in"


def test_a_log_directory_that_a_mount_writes(filled: Mount) -> None:
    """The log directory is opened read-only beside the mount, and rates are those of the files."""
    log_dir = filled.log_dirs[0]
    done = call("top", log_dir, "--interval", "0.1")
    found = columns(done.stdout)
    assert found["large-0"]["END"] == "300"
    assert found["large-0"]["MB/S OUT"] == "-"
    status = call("status", log_dir)
    assert status.returncode == 0
    assert f"{log_dir}: a log directory, opened read-only" in status.stdout
    assert orjson.loads(call("status", "--json", log_dir).stdout)["partitions"] == 3


def test_an_offline_partition_has_a_row(tmp_path: Path) -> None:
    with Store(tmp_path / "other") as store:
        store.create("bad-0").append([b"x"])
        store.create("good-0").append([b"x"])
    (tmp_path / "other/bad-0/leader-epoch-checkpoint").write_bytes(b"nonsense\n")
    done = call("top", tmp_path / "other", "--interval", "0.1")
    assert columns(done.stdout)["bad-0"]["STATE"] == "offline"
    assert "1 offline" in done.stdout
    status = call("status", tmp_path / "other")
    assert status.returncode == 1
    assert "offline     bad-0: " in status.stdout


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--sort", "colour"], "--sort 'colour': give one of size, records"),
        (["--interval", "0"], "--interval 0.0: give seconds from 0.05"),
        (["-n", "0"], "-n 0: give a number"),
    ],
)
def test_wrong_options_say_what_to_give(tmp_path: Path, words: list[str], reason: str) -> None:
    done = call("top", tmp_path, *words)
    assert done.returncode == 2
    assert reason in done.stderr


def test_a_path_without_a_store_is_an_error(tmp_path: Path) -> None:
    assert "no logfs is mounted on this directory" in call("top", tmp_path).stderr
    assert "nowhere does not exist" in call("top", tmp_path / "nowhere").stderr


# On a terminal.


def end(live: Terminal) -> int:
    """Wait until `top` has left the terminal as it was, and return its exit code."""
    code = live.end()
    assert live.read().rstrip().endswith("\x1b[?25h\x1b[?1049l")
    return code


@pytest.fixture
def live(filled: Mount) -> Iterator[Terminal]:
    """A running `top` on a terminal, which has shown its first table."""
    terminal = Terminal(*LOGFS, "top", filled.path, "--interval", "0.2")
    terminal.expect("middle-0")
    yield terminal
    terminal.close()


def first_row(screen: str) -> str:
    """Return the name in the first row of the last complete table."""
    last = screen.rpartition("\x1b[J")[0].rpartition("\x1b[H")[2]
    table = last.partition("STATE\x1b[K\r\n")[2]
    return table.partition(" ")[0]


@pytest.mark.parametrize(("width", "missing"), [(200, ()), (60, ("DIRTY", "START", "SEGMENTS"))])
def test_a_narrow_terminal_shows_rates_and_lags(
    filled: Mount, width: int, missing: tuple[str, ...]
) -> None:
    """What a narrow line has no room for is left out column by column, and REMOTE if no log is tiered."""
    terminal = Terminal(*LOGFS, "top", filled.path, "--interval", "0.2", width=width)
    try:
        terminal.expect("middle-0")
        heading = next(line for line in terminal.read().splitlines() if "PARTITION" in line)
        assert all(each in heading for each in ("REC/S", "MB/S IN", "LAG", "STATE"))
        assert not any(each in heading for each in (*missing, "REMOTE"))
        assert width == 60 or "DIRTY" in heading
        terminal.type("q")
        assert end(terminal) == 0
    finally:
        terminal.close()


def test_live_top_follows_sorts_and_quits_with_q(live: Terminal, filled: Mount) -> None:
    live.type("s")
    live.expect("sort by size")
    wait_for(lambda: first_row(live.read()) == "large-0")
    live.type("n")
    live.expect("sort by name")
    (filled.path / "small-0/append").write_bytes(b"hello\n" * 122)
    live.expect(" 123 ")
    live.type("q")
    assert end(live) == 0


def test_live_top_uses_the_size_of_the_terminal(live: Terminal) -> None:
    """Lines are cut at the width of the terminal, and a new size is used at once."""
    live.resize(4, 30)

    def lines() -> list[str]:
        frame = live.read().rpartition("\x1b[J")[0].rpartition("\x1b[H")[2]
        return frame.replace("\x1b[K", "").split("\r\n")

    wait_for(lambda: 1 < len(lines()) <= 4)
    assert max(map(len, lines())) <= 30
    live.type("q")
    assert end(live) == 0


@pytest.mark.parametrize(("how", "code"), [("\x03", 0), (signal.SIGTERM, 143)])
def test_live_top_restores_the_terminal(
    live: Terminal, how: str | signal.Signals, code: int
) -> None:
    """After Ctrl-C and after SIGTERM the terminal is as it was before."""
    if isinstance(how, str):
        live.type(how)
    else:
        live.process.send_signal(how)
    assert end(live) == code


def test_live_top_ends_when_its_mount_goes_away(live: Terminal, filled: Mount) -> None:
    filled.stop()
    wait_for(lambda: live.read() and live.process.poll() is not None)
    assert live.process.returncode == 1
    assert termios.tcgetattr(live.slave) == live.before
    assert "logfs: " in live.seen


# The status.


def test_status_without_a_mount(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If nothing is mounted, `logfs status` fails, so that a script notices."""
    monkeypatch.setattr(watch, "mounts", lambda write_behind: [])
    assert main(["status"]) == 1
    assert capsys.readouterr().err == (
        "logfs: no logfs is mounted; mount one, or give a log directory\n"
    )


def test_status_of_a_mount_that_does_not_respond(
    mount: Mount, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mount that does not respond is reported, with exit code 1."""
    monkeypatch.setattr(mount_table, "PATIENCE_SECONDS", 1.0)
    assert mount.process is not None
    with stopped(mount.process.pid):
        # The kernel answers from its caches for a while.
        time.sleep(2)
        assert main(["status", str(mount.path)]) == 1
    assert capsys.readouterr().out == (
        f"{mount.path}: does not respond; its daemon is stopped or waiting for its disk\n"
    )
    assert main(["status", str(mount.path)]) == 0


def test_status_shows_the_last_and_the_next_upkeep(mount: Mount) -> None:
    keys = mount.partition("keys-0")
    (keys / "config/cleanup.policy").write_text("compact,delete")
    with (keys / "append.jsonl").open("wb") as append:
        append.write(b"".join(b'{"key":"k","value":"%d"}\n' % n for n in range(50)))
    (keys / "ctl").write_text("roll")
    (keys / "ctl").write_text("compact")
    wait_for(lambda: orjson.loads((keys / "status.json").read_bytes())["last_cleaning"])
    cleaning = orjson.loads((keys / "status.json").read_bytes())["last_cleaning"]
    assert cleaning["bytes_before"] > cleaning["bytes_after"] > 0
    assert cleaning["clean_up_to"] == 50
    (keys / "log-start-offset").write_text("-1")
    (keys / "ctl").write_text("retain")
    status = orjson.loads((keys / "status.json").read_bytes())
    assert status["last_retention"]["segments"] == 1
    assert status["last_retention"]["log_start_offset"] == 50
    assert status["next_due_ms"]["retention"] > status["last_retention"]["when_ms"] - 60_000
    text = ok("status", mount.path)
    assert re.search(r"compaction  keys-0: \d+ bytes became \d+ [\d.]+ s ago, in [\d.]+ s", text)
    assert re.search(r"retention   keys-0: 1 segments, \d+ bytes dropped [\d.]+ s ago", text)
    assert re.search(r"upkeep      (checkpoint|producers) in [\d.]+ (s|min)", text)
    (mount.path / ".logfs/ctl").write_text("pause")
    assert "upkeep      paused" in ok("status", mount.path)
    assert orjson.loads((keys / "status.json").read_bytes())["next_due_ms"] == {}


def test_status_shows_the_progress_of_a_compaction(mount: Mount) -> None:
    """A throttled round in progress is in status.json, in ctl, in the metrics, and in `status` and `top`."""
    own = mount.path / ".logfs"
    keys = mount.partition("keys-0")
    (keys / "config/cleanup.policy").write_text("compact")
    (own / "config/log.cleaner.io.max.bytes.per.second").write_text("100000")
    with (keys / "append.jsonl").open("wb") as append:
        for number in range(40):
            append.write(b'{"key":"%d","value":"%s"}\n' % (number, b"x" * 10_000))
    (keys / "ctl").write_text("roll")
    (keys / "ctl").write_text("compact")
    wait_for(lambda: orjson.loads((own / "status.json").read_bytes())["background"])
    (work,) = orjson.loads((own / "status.json").read_bytes())["background"]
    assert (work["what"], work["name"]) == ("compacting", "keys-0")
    assert work["total_bytes"] > 0
    assert "doing       compacting keys-0" in ok("status", mount.path)
    assert "compacting keys-0" in (keys / "ctl").read_text()
    assert (
        "compacting"
        in columns(call("top", mount.path, "--interval", "0.1").stdout)["keys-0"]["STATE"]
    )
    assert 'logfs_background_total_bytes{what="compacting"' in (own / "metrics").read_text()
