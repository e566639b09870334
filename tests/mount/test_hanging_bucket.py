"""A mount whose object store does not answer: only what is in the object store waits."""

from __future__ import annotations

import subprocess
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

import orjson
import pytest

from logfs.store.store import Store
from tests.support.mounts import Mount
from tests.support.object_server import BUCKET, ObjectServer, Request, environment, object_server
from tests.support.processes import Threads, wait_for
from tests.support.requirements import need_fuse
from tests.support.stores import assert_clean, set_topic

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LINES = b"".join(b"line %06d\n" % n for n in range(2000))
PARTITIONS = 12


class Outage:
    """A time in which the object store takes requests and does not answer them."""

    def __init__(self, server: ObjectServer) -> None:
        self._server = server
        self._ended = threading.Event()
        self.waiting = 0

    def begin(self) -> None:
        """Answer no request any more."""
        self._server.fault = self._hang

    def _hang(self, request: Request) -> None:
        self.waiting += 1
        self._ended.wait()

    def end(self) -> None:
        """Answer all requests."""
        self._ended.set()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    """A server that programs find by the environment, and an empty cache."""
    need_fuse()
    with object_server() as server:
        for name, value in environment(server).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        yield server


def run(*command: str | Path) -> bytes:
    """Return the output of a command that must succeed, and must not wait for the outage to end."""
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def make_store(log_dir: Path) -> None:
    """Make a store with a tiered topic, of which nearly everything is remote, and with a local one."""
    with Store(log_dir) as store:
        store.settings.set_broker("remote.storage.url", f"s3://{BUCKET}")
        set_topic(
            store,
            "orders",
            remote_storage_enable="true",
            segment_bytes=4000,
            local_retention_bytes=5000,
            file_delete_delay_ms=0,
        )
        store.create("local-0").append_lines(LINES)
        for number in range(PARTITIONS):
            orders = store.create(f"orders-{number}")
            for start in range(0, len(LINES), 1200):
                orders.append_lines(LINES[start : start + 1200])
            store.tier(f"orders-{number}")
        store.retain()
        assert all(log.segments[0].is_tiered for log in store.topic("orders").partitions)


def test_what_is_local_does_not_wait(tmp_path: Path, server: ObjectServer) -> None:
    """Listings, sizes, changes, and every local record, while many readers wait for the object store."""
    log_dir = tmp_path / "log"
    make_store(log_dir)
    mount = Mount(tmp_path / "mnt", [log_dir]).start()
    path, readers, outage = mount.path, Threads([]), Outage(server)
    # The kernel sends one lookup in a directory at a time: those in `orders` are all of local records.
    orders, local = path / f"orders-{PARTITIONS - 1}", path / "local-0"
    with ExitStack() as stack:
        stack.callback(mount.stop)
        wait_for(lambda: not orjson.loads((path / ".logfs/status.json").read_bytes())["unloaded"])
        texts = [
            stack.enter_context((path / f"orders-{number}/{each}").open("rb", buffering=0))
            for number in range(PARTITIONS - 1)
            for each in ("records", "records.jsonl")
        ]
        # On a slow machine the requests of the readers may have failed.
        stack.callback(readers.join)
        stack.callback(outage.end)
        outage.begin()
        for number in range(PARTITIONS - 1):
            for each in ("offsets/7", "time/0"):
                name = path / f"orders-{number}" / each
                readers.start(lambda name=name: name.read_bytes())
        for file in texts:
            readers.start(lambda file=file: file.read(100))
        wait_for(lambda: outage.waiting >= 8)
        assert b"orders-0" in run("ls", "-la", path)
        assert b"records" in run("ls", "-la", orders)
        run("ls", "-la", local, path / "topics/local", path / ".logfs", orders / "segments")
        run("df", path)
        run("mkdir", path / "new-0", path / "gone-0", path / "topics/new-topic")
        for name in (".logfs/status.json", ".logfs/metrics", "local-0/status.json", "local-0/ctl"):
            assert run("cat", path / name)
        assert orjson.loads(run("cat", orders / "status.json"))
        for partition in (local, orders, path / "new-0", path / "topics/local"):
            run("sh", "-c", f"echo new >> {partition}/append")
        assert run("cat", local / "records") == LINES + b"new\nnew\n"
        assert run("cat", local / "offsets/7", local / "offsets/1999") == b"line 000007line 001999"
        assert run("cat", orders / "offsets/2000") == b"new"
        assert b"earliest" in run("ls", local / "offsets")
        run("sh", "-c", f"echo 3600000 > {local}/config/retention.ms; chmod 600 {local}/append")
        run("sh", "-c", f"echo 5 > {local}/groups/billing; rmdir {path}/gone-0")
    assert_clean(log_dir)
