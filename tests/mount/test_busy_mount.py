"""A mount whose disk is never ready: each request that has to wait waits in a worker thread, and is answered."""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import pytest

from logfs.store.store import Store
from tests.support.batches import Producer
from tests.support.mounts import Mount
from tests.support.requirements import need_fuse
from tests.support.stores import assert_clean

if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO

TOPICS = ("orders", "clicks")
MOST_NAMES = 12


def use(path: Path) -> None:
    """Look at everything below a directory, as `find -ls` and `grep -r` do."""
    with suppress(OSError):
        path.lstat()
        for name in os.listxattr(path, follow_symlinks=False):
            os.getxattr(path, name, follow_symlinks=False)
    if path.is_symlink():
        with suppress(OSError):
            path.read_bytes()
    elif path.is_dir():
        with suppress(OSError):
            for name in os.listdir(path)[:MOST_NAMES]:
                use(path / name)
    else:
        with suppress(OSError):
            path.read_bytes()


def use_opened(files: list[BinaryIO]) -> None:
    """Look at the sizes of open files, and read what is new in them."""
    for file in files:
        with suppress(OSError):
            os.fstat(file.fileno())
            file.read()


def change(store: Store, round: int) -> None:
    """Change each log in some way: appends, transactions, a new segment, a later log start, a new partition."""
    for topic in TOPICS:
        for number in range(2):
            log = store[f"{topic}-{number}"]
            log.append([b"round %d" % round] * 3)
            producer = Producer(log, 7 + round)
            producer.send(f"k{round}")
            producer.end(commit=round % 2 == 0)
            if round % 3 == 1:
                log.roll(store.clock())
    if round == 2:
        store.delete_records("orders-0", store["orders-0"].log_end_offset - 2)
    if round == 3:
        store.create("orders-2").append([b"new"])
    store.groups.commit("billing", "orders-0", store["orders-0"].log_end_offset)
    for log in store.registry.partitions.values():
        log.flush()


@pytest.mark.drawn(1)
@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("mode", ["ro", "rw"])
def test_every_request_is_answered(tmp_path: Path, mode: str, isolation: str) -> None:
    """On each kind of mount, whatever another process changes: no request fails because it had to wait."""
    need_fuse()
    log_dir = tmp_path / "log"
    with Store(log_dir) as store:
        for topic in TOPICS:
            store.topic(topic).create(2)
        change(store, 0)
    options = ["-o", f"{mode},isolation={isolation}"]
    mount = Mount(tmp_path / "mnt", [log_dir], options, program=("tests.support.busy_mount",))
    with ExitStack() as stack:
        stack.callback(mount.stop)
        mount.start()
        files: list[BinaryIO] = []
        for round in range(1, 4):
            for topic in TOPICS:
                for name in (f"{topic}-0/records", f"topics/{topic}/records"):
                    with suppress(OSError):
                        file = stack.enter_context((mount.path / name).open("rb", buffering=0))
                        files.append(file)
            use_opened(files)
            use(mount.path)
            if mode == "ro":
                with Store(log_dir) as store:
                    change(store, round)
            else:
                for topic in TOPICS:
                    for name in (f"{topic}-1", f"topics/{topic}"):
                        (mount.path / name / "append").write_bytes(b"round %d\n" % round)
            use_opened(files)
        errors = mount.errors()
    assert errors == ""
    assert_clean(log_dir)
