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
    assert (done.returncode, done.stderr) == (0, b""), done
    return done.stdout.decode()


def misused(*words: str | Path, stdin: bytes = b"") -> str:
    """Run `logfs …` with wrong words: it must fail with exit code 2 and one line on standard error, the result."""
    return fails(*words, stdin=stdin, code=2)


def fails(*words: str | Path, stdin: bytes = b"", code: int = 1) -> str:
    """Run `logfs …`, which must fail with an exit code and one line on standard error; return that line."""
    done = call(*words, stdin=stdin)
    assert done.returncode == code, done
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("logfs: ")
    assert "Traceback" not in line
    assert "[Errno" not in line
    return line
