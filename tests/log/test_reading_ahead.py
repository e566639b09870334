"""Blocks of a text view that other threads render before they are asked for."""

from __future__ import annotations

import errno
import os
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from logfs.format.text.rendering import View
from logfs.log.disk.disk import Disk, WouldBlock
from logfs.log.read import text_renderer
from logfs.log.read.text_renderer import BlockCache
from logfs.log.read.text_view import TextView
from logfs.log.segment import pipeline
from tests.support.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from logfs.log.append.partition import Partition
    from logfs.log.disk.disk import File
    from logfs.store.store import Store

LINES = b"".join(
    b"line %7d of a text that is read from its beginning to its end\n" % n for n in range(1600)
)
TIMES = 60
REQUEST = 128 * 1024


@pytest.fixture
def orders(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[Partition]:
    """A log of some megabytes, on a machine with two processors, and nothing of it rendered yet."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(pipeline, "_threads", None)
    monkeypatch.setattr(text_renderer, "_cache", BlockCache())
    orders = store.create("orders-0")
    for _ in range(TIMES):
        orders.append_lines(LINES)
    orders.flush()
    return orders


def chunks(view: TextView) -> Iterator[bytes]:
    """Read a view from its beginning to its end, as the kernel does; before each request the work ahead ends."""
    for position in range(0, view.size, REQUEST):
        pipeline.CallAhead(lambda: None).future.result(60)
        yield view.read(position, REQUEST)


def reads_of(
    monkeypatch: pytest.MonkeyPatch, before: Callable[[threading.Thread], object]
) -> list[threading.Thread]:
    """Call `before` with the thread of each read of a file; return the list to which each such thread is added."""
    threads: list[threading.Thread] = []
    read = Disk.read

    def noted(self: Disk, file: File, position: int, size: int) -> bytes:
        threads.append(threading.current_thread())
        before(threads[-1])
        return read(self, file, position, size)

    monkeypatch.setattr(Disk, "read", noted)
    return threads


@pytest.mark.parametrize("view", list(View))
def test_a_sequential_read_is_rendered_ahead(
    orders: Partition, monkeypatch: pytest.MonkeyPatch, view: View
) -> None:
    """Other threads render a part of the text, and the text is the same."""
    whole = TextView(orders, view).read(0, 1 << 30)
    monkeypatch.setattr(text_renderer, "_cache", BlockCache())
    threads = reads_of(monkeypatch, lambda _: None)
    assert b"".join(chunks(TextView(orders, view))) == whole
    assert {*threads} - {threading.main_thread()}


def test_single_reads_are_not_rendered_ahead(
    orders: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that jumps about causes no reads of what it has not asked for."""
    threads = reads_of(monkeypatch, lambda _: None)
    view = TextView(orders, View.LINES)
    for position in range(view.size - REQUEST, 0, -REQUEST):
        view.read(position, 10)
    assert {*threads} == {threading.main_thread()}


def test_an_error_ahead_is_not_seen(orders: Partition, monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails ahead of its use is done again when it is needed, and then succeeds or tells the error."""

    def fail(thread: threading.Thread) -> None:
        if thread is not threading.main_thread():
            raise OSError(errno.EMFILE, "no descriptor for work ahead")

    threads = reads_of(monkeypatch, fail)
    assert b"".join(chunks(TextView(orders, View.LINES))) == LINES * TIMES
    assert {*threads} - {threading.main_thread()}


def test_a_thread_that_must_not_wait_does_not_wait_for_the_work_ahead(
    orders: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets `WouldBlock` while another thread renders the block, and the block afterwards."""
    begun, may_end = threading.Event(), threading.Event()

    def hold(thread: threading.Thread) -> None:
        if thread is not threading.main_thread():
            begun.set()
            assert may_end.wait(60)

    reads_of(monkeypatch, hold)
    view = TextView(orders, View.LINES)
    found: list[bytes] = []

    def read_next() -> bool:
        found.append(view.read(sum(map(len, found)), REQUEST))
        return True

    def goes_on() -> bool:
        try:
            return read_next()
        except WouldBlock:
            return False

    with ExitStack() as stack:
        stack.callback(may_end.set)
        while not begun.wait(0.01):
            read_next()
        orders.disk.forbid_blocking()
        stack.callback(orders.disk.allow_blocking)
        # The requests before the block that is held.
        while goes_on():
            pass
        assert not goes_on()
        may_end.set()
        wait_for(goes_on)
    whole = LINES * TIMES
    assert b"".join(found) == whole[: sum(map(len, found))]
