"""Sizes, inodes, mappings and cached pages of growing files, as their readers see them."""

from __future__ import annotations

import errno
import mmap
import os
import re
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from logfs.format.tiered.metadata_record import TOPIC as METADATA_TOPIC
from logfs.mount.growing_sizes import CONFIRMED_SECONDS
from logfs.store.store import Store
from tests.support.command_line import call
from tests.support.processes import wait_for
from tests.support.stores import set_topic

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.mounts import Mount


def append(orders: Path, text: str) -> None:
    """Append text through `append`."""
    with (orders / "append").open("a") as file:
        file.write(text)


@pytest.mark.parametrize(
    "name", ["records", "records.jsonl", "offsets/0..", "segments/00000000000000000000.log"]
)
def test_a_file_keeps_its_inode_number_while_it_grows(orders: Path, name: str) -> None:
    """`st_ino` is the same by name and by descriptor, before and after appends, for one and for several readers."""
    append(orders, "one\n")
    with (orders / name).open("rb") as first:
        number = os.fstat(first.fileno()).st_ino
        append(orders, "two\n")
        with (orders / name).open("rb") as second:
            append(orders, "three\n")
            found = {os.fstat(first.fileno()).st_ino, os.fstat(second.fileno()).st_ino}
            found.add((orders / name).stat().st_ino)
    append(orders, "four\n")
    assert found | {(orders / name).stat().st_ino} == {number}


def test_records_are_readable_through_every_descriptor(orders: Path) -> None:
    """When a write has returned, the record is readable through every open descriptor, and through a new one."""
    append(orders, "0\n")
    files = [os.open(orders / "records", os.O_RDONLY) for _ in range(5)]
    try:
        expected = b"0\n"
        for number in range(1, 50):
            append(orders, f"{number}\n")
            expected += b"%d\n" % number
            for file in [*files, os.open(orders / "records", os.O_RDONLY)]:
                assert os.fstat(file).st_size == len(expected)
                assert os.pread(file, 65536, 0) == expected
                if file not in files:
                    os.close(file)
    finally:
        for file in files:
            os.close(file)


def test_threads_that_share_a_descriptor_see_every_record(orders: Path) -> None:
    """When a write has returned, all threads that share a descriptor read the record, also if another thread has seen
    the new size first.
    """
    append(orders, "0\n")
    file = os.open(orders / "records", os.O_RDONLY)
    wrong: list[bytes] = []
    written = b"0\n"

    def read_on() -> None:
        while len(written) < 2000:
            before = written
            found = os.pread(file, 65536, 0)
            if not found.startswith(before):
                wrong.append(found)

    threads = [threading.Thread(target=read_on) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        number = 0
        while len(written) < 2000:
            number += 1
            append(orders, f"{number}\n")
            written += b"%d\n" % number
    finally:
        written = written.ljust(2000)
        for thread in threads:
            thread.join()
        os.close(file)
    assert not wrong


def test_a_second_open_by_descriptor_works(orders: Path) -> None:
    """`/dev/stdin` opens an open file again without a lookup of its name, and reads all current records."""
    append(orders, "one\n")
    with (orders / "records").open("rb") as file:
        append(orders, "two\n")
        for _ in range(3):
            done = subprocess.run(
                ["cat", "/dev/stdin"], stdin=file, capture_output=True, check=True
            )
            assert done.stdout == b"one\ntwo\n"


def test_mappings(orders: Path) -> None:
    """Files that cannot grow can be mapped, and so can `records`; the log of the active segment cannot (ENODEV)."""
    append(orders, "one\ntwo\nthree\n")
    (orders / "ctl").write_text("roll\n")
    append(orders, "four\n")
    for name, expected in {
        "records": b"one\ntwo\nthree\nfour\n",
        "offsets/1..3": b"two\nthree\n",
        "offsets/0": b"one",
        "segments/00000000000000000000.log": None,
    }.items():
        with (
            (orders / name).open("rb") as file,
            mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ) as view,
        ):
            assert view[:] == (file.read() if expected is None else expected)
    with (
        (orders / "segments/00000000000000000003.log").open("rb") as file,
        pytest.raises(OSError, match=os.strerror(errno.ENODEV)),
    ):
        mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ)


def test_tail_follows_by_name(orders: Path) -> None:
    """`tail -F` sees the same file while it grows, and reports no replacement."""
    append(orders, "one\n")
    tail = subprocess.Popen(
        ["tail", "-s", "0.05", "-F", str(orders / "records")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert tail.stdout is not None
        assert tail.stderr is not None
        assert tail.stdout.readline() == b"one\n"
        for number in range(20):
            append(orders, f"{number}\n")
            assert tail.stdout.readline() == b"%d\n" % number
    finally:
        tail.terminate()
        _, errors = tail.communicate()
    assert errors == b""


def test_a_reader_in_another_pid_namespace_reads_all_records(orders: Path) -> None:
    """A process in another pid namespace, which the daemon can see, reads all records."""
    append(orders, "one\n")
    script = "import sys; sys.stdout.write(open(sys.argv[1]).read())"
    command = [
        "unshare",
        "--user",
        "--map-root-user",
        "--pid",
        "--fork",
        sys.executable,
        "-c",
        script,
    ]
    done = subprocess.run([*command, str(orders / "records")], capture_output=True, check=False)
    if b"unshare failed" in done.stderr:
        pytest.skip("namespaces cannot be made here")
    assert done.stdout == b"one\n"


def test_the_log_of_remote_segments_grows_for_a_reader_that_waits(
    make_mount: Callable[..., Mount], tmp_path: Path
) -> None:
    """`tail -f` of it sees the description of a segment that is copied, although no client has appended it."""
    log_dir = tmp_path / "log"
    (tmp_path / "bucket").mkdir()
    with Store(log_dir) as store:
        store.settings.set_broker("remote.storage.url", f"file://{tmp_path / 'bucket'}")
        set_topic(store, "orders", remote_storage_enable="true", segment_bytes=200)
        orders = store.create("orders-0")
        for number in range(2):
            for _ in range(20):
                orders.append([b"%d" % number])
            store.tier("orders-0")
        name = next(name for name in store if name.startswith(METADATA_TOPIC))
    mount = make_mount()
    path, seen = mount.path / name / "records.jsonl", tmp_path / "seen"
    # A process with one thread: the kernel may keep the size for no other.
    words = ["tail", "-f", "-s", "0.2", "-c", "+1", path]
    with seen.open("wb") as file, subprocess.Popen(words, stdout=file) as tail:
        try:
            wait_for(lambda: seen.stat().st_size == path.stat().st_size)
            size = seen.stat().st_size
            # Now it asks for the size a few times, and the size has not changed for long enough to be kept.
            time.sleep(1 + CONFIRMED_SECONDS)
            append(mount.path / "orders-0", "line\n" * 300)
            assert call("tier", log_dir).returncode == 0
            wait_for(lambda: seen.stat().st_size > size)
        finally:
            tail.kill()


def test_an_unchanged_log_is_read_from_the_page_cache(mount: Mount, orders: Path) -> None:
    """The second reader of an unchanged log gets every byte from the page cache, and none from the daemon."""
    append(orders, ("x" * 100 + "\n") * 2000)
    (orders / "records").read_bytes()
    before = bytes_out(mount)
    assert before > 0
    assert len((orders / "records").read_bytes()) == 101 * 2000
    assert bytes_out(mount) == before


def bytes_out(mount: Mount) -> int:
    """Return the number of bytes that the daemon has returned to readers."""
    metrics = (mount.path / ".logfs/metrics").read_text()
    found = re.findall(r"^\S*bytesout\S* (\d+)", metrics, re.MULTILINE)
    assert found, metrics
    return sum(map(int, found))
