"""Requirements of tests: a missing one skips the test, or fails it with LOGFS_REQUIRE_ALL=1."""

from __future__ import annotations

import os
import shutil

import pytest

REQUIRE_ALL = os.environ.get("LOGFS_REQUIRE_ALL") == "1"


# Whether the tests run with the large numbers of `scripts/crash`.
DEEP = os.environ.get("LOGFS_HYPOTHESIS") == "deep"


def need(condition: object, what: str) -> None:
    """Skip the test if the condition is false; fail it with LOGFS_REQUIRE_ALL=1."""
    if condition:
        return
    if REQUIRE_ALL:
        pytest.fail(f"{what}, and LOGFS_REQUIRE_ALL=1 asks for it")
    pytest.skip(what)


def need_fuse() -> None:
    """Require what a FUSE mount needs."""
    need(os.access("/dev/fuse", os.R_OK | os.W_OK), "/dev/fuse cannot be opened")
    need(shutil.which("fusermount3"), "fusermount3 is not installed")


def need_command(name: str) -> str:
    """Require a program and return its path."""
    path = shutil.which(name)
    need(path, f"{name} is not installed")
    assert path is not None
    return path


def need_root() -> None:
    """Require root."""
    need(os.geteuid() == 0, "not root")
