"""Flipped bits in the indexes of the last segment of a log that was closed cleanly: they cost time, no record."""

from __future__ import annotations

import shutil
from itertools import product
from typing import TYPE_CHECKING

import pytest

from logfs.format.batches.record import Record
from logfs.store.store import Store
from tests.support.examples import drawn
from tests.support.stores import set_topic

if TYPE_CHECKING:
    from pathlib import Path

NAME = "orders-0"
FIRST_MS = 1_700_000_000_000
STEP_MS = 1000
COUNT = 9
NOW_MS = FIRST_MS + COUNT * STEP_MS
VALUES = [b"value %d" % number for number in range(COUNT)]


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """A log whose last segment has an entry in each index for nearly every record."""
    with Store(tmp_path / "log", clock=lambda: NOW_MS) as store:
        orders = store.create(NAME)
        set_topic(store, "orders", index_interval_bytes=1)
        for number, value in enumerate(VALUES):
            orders.append([Record(value, timestamp=FIRST_MS + number * STEP_MS)])
    return tmp_path / "log"


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("kind", ["index", "timeindex", "textindex"])
def test_a_flipped_bit_in_an_index_costs_time(log_dir: Path, kind: str, read_only: bool) -> None:
    """Every record is found by offset and by time, and the log rolls, takes appends and is closed cleanly."""
    (path,) = (log_dir / NAME).glob(f"*.{kind}")
    whole = path.read_bytes()
    assert len(whole) > 8 * COUNT // 2
    copy = log_dir.with_name("copy")
    for at, bit in drawn(product(range(len(whole)), (0x80, 0x10, 0x01)), 40):
        shutil.copytree(log_dir, copy)
        damaged = bytearray(whole)
        damaged[at] ^= bit
        (copy / NAME / path.name).write_bytes(damaged)
        with Store(copy, read_only=read_only, clock=lambda: NOW_MS) as store:
            orders = store[NAME]
            assert [record.value for record in orders.read()] == VALUES
            for number, value in enumerate(VALUES):
                record = orders.record(number)
                assert record is not None
                assert record.value == value
                found = orders.offset_for_time(FIRST_MS + number * STEP_MS - 1)
                assert found is not None
                assert found.offset == number
            if not read_only:
                orders.roll(NOW_MS)
                assert orders.append([b"after"]) == COUNT
        assert store.registry.failed == []
        shutil.rmtree(copy)
