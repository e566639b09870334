"""Builds the packages, and makes fresh machines to install them on."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.packaging.machine import Machine, base_archive
from tests.support.requirements import need_command, need_fuse, need_root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]
# The part of scripts/package that makes the .deb: `deb`, or `deb:RELEASE`. `scripts/package --check` sets it.
DEB = os.environ.get("LOGFS_PACKAGES", "")
# The image has the .deb of this machine's release.
collect_ignore = {"": ["test_deb.py", "test_fresh.py", "test_image.py"], "deb": []}.get(
    DEB, ["test_image.py"]
)


def build(directory: Path, *parts: str, **environment: str) -> Path:
    """Build packages into a directory, and return it."""
    command = [ROOT / "scripts/package", "--to", directory, *parts]
    subprocess.run(command, check=True, env={**os.environ, **environment})
    return directory


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, beside its sdist."""
    need_command("git")
    (found,) = build(tmp_path_factory.mktemp("wheel"), "wheel").glob("*.whl")
    return found


@pytest.fixture(scope="session")
def deb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Debian package."""
    need_command("dpkg-deb")
    (found,) = build(tmp_path_factory.mktemp("deb"), DEB).glob("*.deb")
    return found


@pytest.fixture(scope="module")
def make_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Machine]]:
    """Return a function that makes a machine with the smallest Debian. The machines are removed at the end."""
    need_root()
    need_fuse()
    archive = base_archive(DEB.partition(":")[2])
    machines: list[Machine] = []

    def make() -> Machine:
        machines.append(Machine(archive, tmp_path_factory.mktemp("machine")))
        return machines[-1]

    yield make
    for each in machines:
        shutil.rmtree(each.root)


@pytest.fixture(scope="module")
def machine(make_machine: Callable[[], Machine]) -> Machine:
    """A machine for all tests of a module."""
    return make_machine()
