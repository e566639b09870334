"""Fixtures that the campaigns share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.spawner import Spawner

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def spawner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spawner]:
    """A server that forks all processes of a module."""
    server = Spawner(tmp_path_factory.mktemp("outputs"))
    yield server
    server.close()
