"""Fixtures of the tests of mounts."""

from __future__ import annotations

import shutil
import sys
import tempfile
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import pytest

import logfs
from tests.support.processes import NOBODY, as_nobody
from tests.support.requirements import need, need_root

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.mounts import Mount

ROOT = Path(logfs.__file__).parents[1]

_numbers = count()


@pytest.fixture
def topic(shared: Mount) -> Path:
    """The directory of a new, empty partition on the module's mount `shared`."""
    return shared.partition(f"topic{next(_numbers)}-0")


@pytest.fixture(scope="module")
def public() -> Iterator[Path]:
    """A directory that every user may enter: the directories of pytest are closed to other users."""
    path = Path(tempfile.mkdtemp(prefix="logfs-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def python_for_all() -> tuple[str, str]:
    """Return a Python that an ordinary user may run, and the PYTHONPATH with which it finds logfs."""
    need_root()
    site = Path(orjson.__file__).parents[1]
    path = f"{ROOT}:{site}"
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    for python in (sys.executable, f"/usr/bin/python{version}"):
        if as_nobody(f"PYTHONPATH={path} {python} -c 'import pyfuse3, logfs'").returncode == 0:
            return python, path
    need(False, f"no Python {version} that uid {NOBODY} may run")
    raise AssertionError
