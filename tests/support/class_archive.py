"""Archives of the classes that a JVM has loaded: the next JVM with the same class path starts in half the time.

Most of the time in which Spark or a broker starts, its JVM loads and verifies classes. The archives are in build/,
which git ignores, and are made once.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

CACHE = Path(__file__).parents[2] / "build" / "jvm"


def options(class_path: str, train: Callable[[str], object]) -> list[str]:
    """Return the options of a JVM that takes its classes from the archive for a class path, which is made if needed.

    `train` runs a JVM with the option that it gets, lets it load what others will need, and waits for its end. There
    are no options if that brings no archive, or while another process makes it, which may take a minute: then a JVM
    starts as slowly as without one.
    """
    known = f"{_version()}\0{class_path}\0" + "".join(map(_stamp, class_path.split(os.pathsep)))
    archive = CACHE / f"{hashlib.sha256(known.encode()).hexdigest()[:16]}.jsa"
    if not archive.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with archive.with_suffix(".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return []
            if not archive.exists():
                new = archive.with_suffix(".new")
                new.unlink(missing_ok=True)
                train(f"-XX:ArchiveClassesAtExit={new}")
                # An empty archive is ignored by the JVM, and keeps the next process from trying again in vain.
                new.touch()
                new.rename(archive)
    if not archive.stat().st_size:
        return []
    # If the archive does not fit after all, the JVM goes on without it, and says nothing.
    return [f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", "-Xlog:cds*=off"]


@functools.cache
def _version() -> str:
    done = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def _stamp(jar: str) -> str:
    """Return what the JVM compares before it uses an archive."""
    try:
        status = os.stat(jar)
    except FileNotFoundError:
        return "none"
    return f"{status.st_size} {status.st_mtime_ns}\0"
