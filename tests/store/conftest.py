"""An S3 server for the tests of buckets and of tiered logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from logfs.log.remote import object_store
from tests.support.object_server import ObjectServer, environment, object_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def running() -> Iterator[ObjectServer]:
    """One server for all tests."""
    with object_server() as server:
        yield server


@pytest.fixture
def server(
    running: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ObjectServer]:
    """The server, found by the environment, with an empty bucket, an empty cache, and short times."""
    for key in running.stored_keys():
        running.delete(key)
    running.requests.clear()
    for name, value in environment(running).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(object_store, "_REQUEST_SECONDS", 2)
    monkeypatch.setattr(object_store, "_RETRY_SECONDS", 3)
    monkeypatch.setattr(object_store, "_PAUSE_SECONDS", 0.02)
    yield running
    running.fault = lambda request: None
