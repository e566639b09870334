"""A plugin of pytest that appends the duration of each test to the file LOGFS_MUTANTS_DURATIONS."""

from __future__ import annotations

import csv
import os
import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Note how long a test took, with its fixtures."""
    began = time.monotonic()
    try:
        return (yield)
    finally:
        with open(os.environ["LOGFS_MUTANTS_DURATIONS"], "a", newline="") as file:
            test = item.nodeid.partition("@")[0] if "@" in item.nodeid else item.nodeid
            csv.writer(file).writerow([test, f"{time.monotonic() - began:.3f}"])
