"""The version is in pyproject.toml; everything that names it agrees."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.support.command_line import ok

ROOT = Path(__file__).parents[2]


def test_the_version_is_the_same_everywhere() -> None:
    """`logfs --version`, the newest heading of the changelog and pyproject.toml agree, and no module has its own."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert ok("--version") == f"logfs {version}\n"
    changelog = (ROOT / "docs/changelog.md").read_text()
    headings = re.findall(r"^## (.*)$", changelog, re.MULTILINE)
    assert re.fullmatch(rf"{re.escape(version)} \((unreleased|\d{{4}}-\d\d-\d\d)\)", headings[0])
    for path in (ROOT / "logfs").rglob("*.py"):
        assert not re.search(r"^__version__ = ", path.read_text(), re.MULTILINE), path


def test_the_debian_changelog_is_made_from_the_changelog() -> None:
    """Each item is in it, in lines of at most 80 letters; headings are in brackets, and links are their text."""
    printed = subprocess.run(
        [sys.executable, ROOT / "scripts/packaging/debian/changelog.py", "Ann <ann@example.org>"],
        capture_output=True,
        check=True,
        text=True,
        env={"SOURCE_DATE_EPOCH": "1638100400"},
    ).stdout
    changelog = (ROOT / "docs/changelog.md").read_text()
    assert len(re.findall(r"^  \* ", printed, re.MULTILINE)) == changelog.count("\n- ")
    headings = re.findall(r"^### (.*)$", changelog, re.MULTILINE)
    assert re.findall(r"^  \[ (.*) \]$", printed, re.MULTILINE) == headings
    assert "](" not in printed
    assert max(map(len, printed.splitlines())) <= 80
    assert printed.endswith(" -- Ann <ann@example.org>  Sun, 28 Nov 2021 11:53:20 -0000\n\n")
