"""Run `logfs` commands, each in a process of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support import spawner

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path


def call(
    *words: str | Path, stdin: bytes = b"", cwd: Path | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run `logfs …` in a process of its own, and return the result, whether it succeeds or fails."""
    return spawner.shared().run(*words, stdin=stdin, cwd=cwd)


def ok(*words: str | Path, stdin: bytes = b"") -> str:
    """Run `logfs …`, which must succeed and print nothing on standard error; return its output."""
    done = call(*words, stdin=stdin)
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout.decode()


def fails(*words: str | Path, stdin: bytes = b"") -> str:
    """Run `logfs …`, which must fail with exit code 1 and one line on standard error; return that line."""
    done = call(*words, stdin=stdin)
    assert done.returncode == 1, done
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("logfs: ")
    assert "Traceback" not in line
    assert "[Errno" not in line
    return line
