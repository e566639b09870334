"""The version is in pyproject.toml; everything that names it agrees."""

from __future__ import annotations

import re
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
