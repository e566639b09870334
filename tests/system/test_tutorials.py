"""The tutorials of docs/: their commands run as they stand, and print what the page shows."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.support.requirements import need_fuse
from tests.system.test_documented_commands import ROOT, run

if TYPE_CHECKING:
    from pathlib import Path

CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Printed after each command. No page has it.
END = "-- end of the command --"


def steps(page: str) -> list[tuple[str, str]]:
    """Return each command of a page with the output that the page shows."""
    text = "".join(CONSOLE.findall((ROOT / "docs" / page).read_text()))
    found = [step.partition("\n") for step in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]]
    return [(command, output) for command, _, output in found]


def pattern(output: str) -> str:
    """Return the regular expression of a shown output, in which … stands for anything, lines included."""
    return ".*".join(map(re.escape, output.split("…")))


def follow(page: str, home: Path, servers: str = "localhost:9092") -> None:
    """Run every command of a page in one shell and a fresh home, and compare what it prints with the page.

    `servers` is the address of the broker that the page has at localhost:9092.
    """
    tutorial = steps(page)
    assert len(tutorial) > 10
    # Outputs and errors of a command come before the line that ends it.
    script = "".join(f"{command}\necho '{END}'\n" for command, _ in tutorial)
    script = script.replace("localhost:9092", servers)
    try:
        shown = run(["bash", "-c", f"exec 2>&1\n{script}"], home)
    finally:
        subprocess.run(["fusermount3", "-quz", home / "mnt"], check=False)
    for (command, output), printed in zip(tutorial, shown.split(f"{END}\n"), strict=False):
        assert re.fullmatch(pattern(output), printed, re.DOTALL), f"$ {command}\n{printed}"
    assert shown.count(END) == len(tutorial)


@pytest.mark.parametrize("page", ["first-log.md", "shell-tools.md", "backup.md"])
@pytest.mark.usefixtures("mounts_alone")
def test_a_tutorial_runs_as_it_is_written(page: str, tmp_path: Path) -> None:
    """Every command of the page prints what the page shows beside it."""
    need_fuse()
    follow(page, tmp_path)
