"""Worker threads of a mount, and what must run in them."""

from __future__ import annotations

from queue import Empty
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyfuse3")

import trio
import trio.testing

from logfs.log.disk.disk import WouldBlock
from logfs.mount import threads
from logfs.mount.admin_requests import AdminRequests
from logfs.mount.errnos import ErrorLog
from logfs.mount.nodes.base import Caller, Context, DirectoryNode, Handle, Node
from logfs.mount.nodes.root import RootDirectory
from logfs.mount.protocol import Operations
from logfs.store.store import Store
from tests.support.disks import HeldDisk
from tests.support.processes import wait_for

if TYPE_CHECKING:
    from pathlib import Path

CALLERS = 6


class TakenJobs:
    """A queue whose only job another thread takes at the last moment; waiting for it would never end."""

    def get(self, timeout: float | None = None) -> object:
        assert timeout is not None, "waits for a job that another thread has taken"
        raise Empty

    def get_nowait(self) -> object:
        raise Empty

    def qsize(self) -> int:
        return 1


def test_an_idle_thread_does_not_wait_for_a_job_that_another_one_takes() -> None:
    """A thread whose idle time is over ends if the job in the queue goes to another thread."""
    pool = threads._Pool()
    pool._jobs = TakenJobs()  # type: ignore[assignment]
    assert pool._next(0.01) is None


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("orders-0/config/retention.ms", b"3600000"),
        ("orders-0/log-start-offset", b"1"),
        (".logfs/config/log.retention.ms", b"3600000"),
    ],
)
def test_a_value_is_set_in_a_worker_thread(store: Store, path: str, value: bytes) -> None:
    """A write that syncs files raises `WouldBlock` in the thread that must not wait, and changes nothing (rule 8)."""
    orders = store.create("orders-0")
    orders.append([b"a", b"b"])
    before = orders.config.retention_ms, orders.log_start_offset
    handle = opened(store, path)
    store.disk.forbid_blocking()
    try:
        with pytest.raises(WouldBlock):
            handle.write(value)
        assert (orders.config.retention_ms, orders.log_start_offset) == before
    finally:
        store.disk.allow_blocking()
    assert handle.write(value) == len(value)
    assert (orders.config.retention_ms, orders.log_start_offset) != before


def test_fsyncs_of_different_files_share_one_sync(log_dir: Path) -> None:
    """While one fsync of a partition runs, those of other handles wait; one more sync makes all records durable.

    The handlers are called without a kernel, because a sync that lasts cannot be had on a real disk.
    """
    disk = HeldDisk()
    with Store(log_dir, disk=disk) as store:
        orders = store.create("orders-0")
        operations = Operations(
            RootDirectory(Context(store, ErrorLog(store.clock), "0", AdminRequests()))
        )
        answered: list[int] = []
        disk.released.clear()

        async def fsync(number: int) -> None:
            datasync = False
            await operations.fsync(number, datasync)
            answered.append(orders.recovery_point)

        async def write_and_fsync() -> None:
            threads.start()
            async with trio.open_nursery() as nursery:
                try:
                    for number in range(CALLERS):
                        name = "append.jsonl" if number % 2 else "append"
                        handle = operations._handles[number] = opened(store, f"orders-0/{name}")
                        assert handle.write(b'{"value":"x"}\n') > 0
                        nursery.start_soon(fsync, number)
                        await trio.to_thread.run_sync(wait_for, lambda: disk.syncs == 1)
                    await trio.testing.wait_all_tasks_blocked()
                finally:
                    disk.released.set()

        trio.run(write_and_fsync)
        assert answered == [1, *[CALLERS] * (CALLERS - 1)]
        assert disk.syncs == 2


def opened(store: Store, path: str) -> Handle:
    """Return a handle of a file of the mount, opened for writing."""
    node: Node = RootDirectory(Context(store, ErrorLog(store.clock), "0", AdminRequests()))
    for name in path.split("/"):
        assert isinstance(node, DirectoryNode)
        node = node.known(name) or node.adopt(name, node.find(name))
    return node.open(1, Caller(0, 0, 1, 0o022))
