"""Lines from writes: what one write holds is seen by readers in other threads whole or not at all."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

import pytest

from logfs.errors import RecordTooLarge
from logfs.format.text.rendering import View
from logfs.log.append.line_framer import LineFramer
from logfs.log.read.text_view import TextView
from tests.support.processes import Threads
from tests.support.stores import set_topic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logfs.store.store import Store

NAME = "orders-0"
LINES = 7


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    """Threads take turns as often as the interpreter can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("frequent_switches")
def test_a_write_of_several_lines_is_seen_whole_or_not_at_all(store: Store) -> None:
    """While writes of seven lines are appended, the log end and the size of the text grow by seven lines."""
    orders = store.create(NAME)
    framer = LineFramer(orders)
    write = b"".join(b"%05d\n" % n for n in range(LINES))
    ended = threading.Event()
    seen: set[int] = set()

    def look() -> None:
        view = TextView(orders, View.LINES)
        while not ended.is_set():
            end, size = orders.log_end_offset, view.size
            seen.add(end)
            assert end % LINES == 0
            assert size % len(write) == 0

    readers = Threads([])
    for _ in range(2):
        readers.start(look)
    rounds = 0
    while len(seen) < 20 and not readers.errors:
        assert framer.write(write).consumed == len(write)
        rounds += 1
    ended.set()
    readers.join()
    assert readers.errors == []
    assert orders.log_end_offset == rounds * LINES


def test_a_line_that_was_continued_is_over_when_the_next_one_is_refused(store: Store) -> None:
    """The beginning of a line does not come back in front of the next line."""
    set_topic(store, "orders", max_message_bytes=200)
    orders = store.create(NAME)
    framer = LineFramer(orders)
    assert framer.write(b"be").consumed == 2
    done = framer.write(b"gun\n" + b"x" * 1000 + b"\n")
    assert done.consumed == 4
    assert isinstance(done.refused, RecordTooLarge)
    assert framer.write(b"next\n").consumed == 5
    assert [record.value for record in orders.read()] == [b"begun", b"next"]
