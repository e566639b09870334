"""What a test needs of the machine: a missing part skips the test, or fails it under LOGFS_REQUIRE_ALL=1."""

from __future__ import annotations

import os
import shutil

import pytest

REQUIRE_ALL = os.environ.get("LOGFS_REQUIRE_ALL") == "1"


# The form of `scripts/crash`.
DEEP = os.environ.get("LOGFS_HYPOTHESIS") == "deep"


def need(condition: object, what: str) -> None:
    """Skip the test where a part is missing; under LOGFS_REQUIRE_ALL=1 fail it."""
    if condition:
        return
    if REQUIRE_ALL:
        pytest.fail(f"{what}, and LOGFS_REQUIRE_ALL=1 asks for it")
    pytest.skip(what)


def need_fuse() -> None:
    """The test mounts."""
    need(os.access("/dev/fuse", os.R_OK | os.W_OK), "/dev/fuse cannot be opened")
    need(shutil.which("fusermount3"), "fusermount3 is not installed")


def need_command(name: str) -> str:
    """The test calls a program; its path."""
    path = shutil.which(name)
    need(path, f"{name} is not installed")
    assert path is not None
    return path


def need_root() -> None:
    """The test does what only root can do."""
    need(os.geteuid() == 0, "not root")
