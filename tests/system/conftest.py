"""Fixtures that the campaigns share."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from logfs.log.read import key_index
from tests.support.spawner import Spawner
from tests.system import workloads

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def spawner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spawner]:
    """A server that forks all processes of a module."""
    server = Spawner(tmp_path_factory.mktemp("outputs"))
    yield server
    server.close()


@pytest.fixture(scope="module")
def buckets() -> Iterator[None]:
    """Remove the directories that stand for buckets of a workload, after all that it has left was checked."""
    yield
    while workloads.BUCKETS:
        shutil.rmtree(workloads.BUCKETS.pop())


@pytest.fixture
def small_key_indexes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Key index files are written for every three keys."""
    monkeypatch.setattr(key_index, "SMALLEST_BYTES", 1)
    monkeypatch.setattr(key_index, "MEMORY_KEYS", 3)
