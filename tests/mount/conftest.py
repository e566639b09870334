"""Fixtures of the tests of mounts."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.mounts import Mount

_numbers = count()


@pytest.fixture
def topic(shared: Mount) -> Path:
    """The directory of a new, empty partition on the module's mount `shared`."""
    return shared.partition(f"topic{next(_numbers)}-0")
