"""The examples of the README and of docs/prompt.md, as they stand, from top to bottom in a fresh home."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.requirements import need, need_fuse

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(name: str) -> list[tuple[str, str]]:
    """Return the language and the text of each block of a document."""
    return BLOCK.findall((ROOT / name).read_text())


def run(words: list[str], home: Path) -> str:
    """Run a command with a home of its own; it must succeed. Return what it has printed."""
    (home / "bin").mkdir(exist_ok=True)
    logfs = home / "bin/logfs"
    if not logfs.exists():
        logfs.write_text(f'#!/bin/sh\nexec {sys.executable} -m logfs "$@"\n')
        logfs.chmod(0o755)
    environment = {
        **os.environ,
        "HOME": str(home),
        "PATH": f"{home}/bin:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "XDG_CACHE_HOME": str(home / "cache"),
    }
    done = subprocess.run(
        words,
        env=environment,
        cwd=home,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=240,
        check=False,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.usefixtures("mounts_alone")
def test_the_readme(tmp_path: Path) -> None:
    """A log of one's own by the mount, then the same without a mount, then in Python."""
    need_fuse()
    by_mount, by_command = [
        text for language, text in blocks("README.md") if language == "sh" and "~/log" in text
    ]
    in_python = next(text for language, text in blocks("README.md") if "logfs.open" in text)
    try:
        shown = run(["bash", "-euo", "pipefail", "-c", by_mount], tmp_path)
    finally:
        subprocess.run(["fusermount3", "-quz", tmp_path / "mnt"], check=False)
    assert "first" in shown
    assert "100000\n" in shown
    assert "in any partition" in shown
    assert shown.endswith("clean\n")
    shown = run(["bash", "-eu", "-c", by_command], tmp_path)
    assert '"key":"k","value":"v"' in shown
    assert "99\n990\n991\n" in shown
    assert "100000\n3\n" in shown
    assert "mail" in shown
    assert (tmp_path / "log2/payments-0").is_dir()
    assert "b'world'" in run([sys.executable, "-c", in_python], tmp_path)


def test_the_readme_in_spark(tmp_path: Path) -> None:
    """The block for Spark, after the one for Python."""
    need(shutil.which("java"), "java is not installed")
    in_python, in_spark = [text for language, text in blocks("README.md") if language == "python"]
    run(["sh", "-c", "logfs create -p ~/log/orders-0"], tmp_path)
    run([sys.executable, "-c", in_python], tmp_path)
    shown = run([sys.executable, "-c", in_spark], tmp_path)
    assert re.search(r"\|\s+0\|\s+3\|", shown)


def test_the_prompt(tmp_path: Path) -> None:
    """Every block of docs/prompt.md, one after the other."""
    shown = [
        run(["bash", "-eu", "-c", text], tmp_path)
        for language, text in blocks("docs/prompt.md")
        if language == "sh"
    ]
    assert "alice=3" in shown[0]
    assert "no key" in shown[3]
    assert "ZeroDivisionError" in shown[3]
    assert shown[1].splitlines()[-2] == '{"id":7,"who":"Zoe"}'
    assert '"value":{"id":7,"who":"Zoe"}' in shown[1]
    assert (tmp_path / "payments.gz").stat().st_size > 50
