"""TAB in real shells, and the manual pages: both come from the parser, so both know every command and option."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from logfs.cli import COMMANDS, whole_parser
from logfs.cli.completion import SHELLS
from logfs.store.store import Store
from tests.support.processes import wait_for
from tests.support.requirements import need_command
from tests.support.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
# What a terminal shows in bold, say.
_STYLES = re.compile(r"\x1b(\[[0-9;?]*[A-Za-z]|\(B)")
# How each shell is started without the user's own settings, and made to read the script.
START = {
    "bash": ("bash --norc --noprofile", "source ./_logfs"),
    "zsh": ("zsh -f", "fpath=($PWD $fpath); autoload -U compinit; compinit -u -D"),
    "fish": ("fish --no-config", "source ./_logfs"),
}


@pytest.fixture(scope="module", params=SHELLS)
def shell(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Terminal]:
    """A shell on a terminal that has read its script, in a directory with a log directory."""
    start, read = START[request.param]
    words = start.split()
    words[0] = need_command(words[0])
    directory = tmp_path_factory.mktemp(request.param)
    directory.joinpath("orders-log").mkdir()
    directory.joinpath("file.txt").touch()
    with Store(directory / "real-log") as store:
        store.create("orders-0").append([b"a"])
        store.groups.commit("billing", "orders-0", 1)
    script = directory / "_logfs"
    command = [sys.executable, "-m", "logfs", "completion", request.param]
    script.write_bytes(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    terminal = Terminal(
        "env",
        f"HOME={directory}",
        "TERM=xterm",
        # `logfs` is the one that is tested.
        f"PATH={Path(sys.executable).parent}:{os.environ['PATH']}",
        "sh",
        "-c",
        f"cd {directory}; exec {start}",
        width=200,
    )
    terminal.type(f"{read}; echo re''ady\n")
    terminal.expect("ready")
    yield terminal
    os.killpg(terminal.process.pid, 9)
    terminal.process.wait()


@pytest.mark.drawn(8)
@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("logfs umo", "logfs umount"),
        ("logfs mount --write-b", "logfs mount --write-behind"),
        ("logfs spark rein", "logfs spark reindex"),
        ("logfs describe ord", "logfs describe orders-log/"),
        ("logfs completion zs", "logfs completion zsh"),
        ("logfs groups real-log -g bil", "logfs groups real-log -g billing"),
        ("logfs consume real-log/orders -g bil", "logfs consume real-log/orders -g billing"),
        ("logfs config real-log log.retention.mi", "logfs config real-log log.retention.minutes"),
    ],
)
def test_tab_completes(shell: Terminal, typed: str, completed: str) -> None:
    """Commands, options, commands of commands, directories and choices are completed as they are typed."""
    shell.type(f"{typed}\t")
    rest = completed.removeprefix(typed)
    wait_for(lambda: rest in _STYLES.sub("", shell.read()))
    # An empty line, for the next one.
    shell.type("\x15")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The manual pages."""
    need_command("man")
    directory = tmp_path_factory.mktemp("man")
    script = ROOT / "scripts/packaging/manpages.py"
    subprocess.run([sys.executable, script, directory], check=True, cwd=ROOT)
    return directory


@pytest.mark.parametrize("name", ["logfs", *(f"logfs-{command}" for command in COMMANDS)])
def test_each_page_can_be_read_and_found(pages: Path, name: str) -> None:
    """`man` shows it without a warning, it tells every option, and `apropos` can index it."""
    page = pages / f"{name}.1"
    shown = subprocess.run(
        ["man", "--warnings", "-E", "UTF-8", "-l", page],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "MANWIDTH": "500", "LC_ALL": "C.UTF-8", "MANPAGER": "cat"},
    )
    assert shown.stderr == ""
    indexed = subprocess.run(["lexgrog", page], capture_output=True, text=True, check=True).stdout
    assert f'"{name} - ' in indexed
    if name == "logfs":
        assert all(f"logfs-{command}(1)" in shown.stdout for command in COMMANDS)
        return
    (commands,) = (a for a in whole_parser()._actions if isinstance(a, argparse._SubParsersAction))
    for option in options_of(commands.choices[name.removeprefix("logfs-")]):
        assert option in shown.stdout


def options_of(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the options of a command and of its commands."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from options_of(each)
        elif action.help != argparse.SUPPRESS:
            yield from set(action.option_strings) - {"-h", "--help"}
