"""Index files that another program damages: they cost time, whether the store is open or not, and end no process."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import combinations
from typing import TYPE_CHECKING

import pytest

from logfs.format.batches.record import Record
from logfs.format.text.rendering import View
from logfs.store.observe.check import Severity, check
from logfs.store.store import Store
from tests.support.examples import drawn

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from logfs.log.append.partition import Partition
    from logfs.log.read.log import Log

FIRST_MS = 1_700_000_000_000
COUNT = 40
KINDS = ("index", "timeindex", "textindex")


def value(number: int) -> bytes:
    """Return the value of the record at an offset."""
    return b"value %d" % number * 3


def fill(store: Store) -> Partition:
    """Create a log of three segments with an entry in each index for nearly every record."""
    store.settings.set_topic("orders", "index.interval.bytes", "0")
    orders = store.create("orders-0")
    for number in range(3 * COUNT):
        record = Record(value(number), b"k%d" % number, timestamp=FIRST_MS + 10 * number)
        orders.append([record])
        if number % COUNT == COUNT - 1:
            orders.roll(FIRST_MS)
    return orders


def assert_right(orders: Log, numbers: Sequence[int]) -> None:
    """Assert that records are found by offset, by time, by key, in a range and in the text."""
    text = orders.text(View.LINES)
    for number in numbers:
        record = orders.record(number)
        assert record is not None
        assert record.value == value(number)
        found = orders.offset_for_time(FIRST_MS + 10 * number - 5)
        assert found is not None
        assert found.offset == number
        newest = orders.newest(b"k%d" % number)
        assert newest is not None
        assert newest.offset == number
        assert next(each.offset for each in orders.read(number, number + 3)) == number
        line = value(number) + b"\n"
        assert text.read(text.position_of(number), len(line)) == line


def path_of(orders: Log, kind: str, base: int = 0) -> Path:
    return orders.directory / f"{base:020}.{kind}"


@pytest.mark.parametrize("is_used", [False, True])
@pytest.mark.parametrize("size", [0, 8, 12, 32, 100])
@pytest.mark.parametrize("kind", KINDS)
def test_a_sealed_index_that_is_cut_in_an_open_store(
    tmp_path: Path, kind: str, size: int, is_used: bool
) -> None:
    """Each lookup is right at its first try, also if the index was in use when it was cut."""
    with Store(tmp_path, clock=lambda: FIRST_MS) as store:
        orders = fill(store)
        if is_used:
            assert_right(orders, [3])
        os.truncate(path_of(orders, kind), size)
        assert_right(orders, range(0, COUNT, 7))


@pytest.mark.parametrize("read_only", [False, True])
def test_an_index_of_zeros_is_rebuilt_by_the_first_lookup_of_a_time(
    tmp_path: Path, read_only: bool
) -> None:
    """To rebuild the offset index replaces the time index, too, in which the lookup is just then."""
    with Store(tmp_path, clock=lambda: FIRST_MS) as store:
        path = path_of(fill(store), "index", COUNT)
    path.write_bytes(bytes(path.stat().st_size))
    with Store(tmp_path, read_only=read_only, clock=lambda: FIRST_MS) as store:
        orders = store["orders-0"]
        found = orders.offset_for_time(FIRST_MS + 10 * (COUNT + 3))
        assert found is not None
        assert found.offset == COUNT + 3
        assert_right(orders, range(COUNT, 2 * COUNT, 7))


def test_an_index_that_is_damaged_again_after_it_was_rebuilt(tmp_path: Path) -> None:
    """The bytes of another segment's index tell of earlier times, so that the segment would be passed over."""
    with Store(tmp_path, clock=lambda: FIRST_MS) as store:
        orders = fill(store)
        other = path_of(orders, "timeindex").read_bytes()
        index = path_of(orders, "index", COUNT)
    index.write_bytes(bytes(index.stat().st_size))
    with Store(tmp_path, clock=lambda: FIRST_MS) as store:
        orders = store["orders-0"]
        assert_right(orders, [COUNT + 3])
        path_of(orders, "timeindex", COUNT).write_bytes(other)
        assert_right(orders, range(COUNT, 2 * COUNT, 3))


@pytest.mark.parametrize("read_only", [False, True])
def test_any_two_entries_of_a_text_index_may_be_damaged(tmp_path: Path, read_only: bool) -> None:
    """The last one, after which no other tells how much text follows, and any other."""
    with Store(tmp_path, clock=lambda: FIRST_MS) as store:
        path = path_of(fill(store), "textindex")
    whole = path.read_bytes()
    last = len(whole) // 32 - 1
    for pair in [(0, last), *drawn(combinations(range(last + 1), 2), 20)]:
        damaged = bytearray(whole)
        for number in pair:
            damaged[32 * number + 7] ^= 5
        path.write_bytes(damaged)
        with Store(tmp_path, read_only=read_only, clock=lambda: FIRST_MS) as store:
            assert_right(store["orders-0"], range(0, COUNT, 11))
        path.write_bytes(whole)


CUT = """
import os, sys
from logfs.store.store import Store
with Store(sys.argv[1]) as store:
    store.settings.set_topic("orders", "index.interval.bytes", "0")
    orders = store.create("orders-0")
    for number in range(9):
        orders.append([b"%d" % number])
        for kind in ("index", "timeindex", "textindex") if number % 3 == 2 else ():
            os.truncate(orders.directory / f"{0:020}.{kind}", 0)
    print(*(record.value.decode() for record in orders.read()), orders.record(7).offset)
"""


def test_an_active_index_that_is_cut_ends_no_process(tmp_path: Path) -> None:
    """A store into a mapping beyond the end of its file raises SIGBUS."""
    done = subprocess.run(
        [sys.executable, "-c", CUT, str(tmp_path / "log")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "0 1 2 3 4 5 6 7 8 7\n"


def test_an_audit_finds_an_offset_that_does_not_rise(tmp_path: Path) -> None:
    """The entry has the position of a batch, and the offset of the next entry."""
    with Store(tmp_path, clock=lambda: FIRST_MS) as store:
        path = path_of(fill(store), "index")
    with path.open("r+b") as file:
        file.seek(8 * 5)
        following = file.read(4)
        file.seek(8 * 4)
        file.write(following)
    found = [each for each in check(tmp_path) if each.severity is Severity.ERROR]
    assert [each.path for each in found] == [path]
    assert "entry 5 is out of order" in found[0].text


def test_an_audit_finds_a_time_entry_after_the_end(tmp_path: Path) -> None:
    """Its timestamp is right, and its offset that of no batch of the segment."""
    with Store(tmp_path, clock=lambda: FIRST_MS) as store:
        path = path_of(fill(store), "timeindex")
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(bytes([COUNT]))
    found = [each for each in check(tmp_path) if each.severity is Severity.ERROR]
    assert [each.path for each in found] == [path]
    assert f"offset {COUNT} is after the last batch" in found[0].text
