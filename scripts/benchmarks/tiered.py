"""The row of tiered storage: reading a log from an object store, against downloading its objects."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

from harness import (
    FIRST_MS,
    GIB,
    HERE,
    MIB,
    PARTITION,
    Bench,
    Lines,
    Result,
    alternate,
    build,
    expect,
    faster,
    speed,
    timed,
)
from rows import row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

# How late the server answers, as one in the same region does, and how fast the network is.
LATE_MS = 20
RATES = {"2 Gbit/s": 250_000_000, "any rate": 0}
CHUNK_BYTES = 4 * MIB
# As many requests at a time as logfs sends.
PARALLEL = 8


@contextmanager
def slow_server(directory: Path, rate: int) -> Iterator[str]:
    """Serve the files below a directory as objects, each answer late; yield the URL of the server."""
    server = str(HERE / "range_server.py")
    command = [sys.executable, server, str(directory), str(LATE_MS), str(rate)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{server.stdout.readline().strip()}"
        finally:
            server.stdin.close()


def tiered_log(scratch: Path, size: int) -> tuple[Path, Path]:
    """Make a log whose sealed segments are in a directory that stands for a bucket; return both directories."""
    from logfs.store.store import Store

    log_dir, bucket = scratch / "log", scratch / "bucket"
    log_dir.mkdir()
    bucket.mkdir()
    lines = Lines(100)
    build(log_dir, PARTITION, lines, size // 100, MIB)
    topic = PARTITION.rpartition("-")[0]
    with Store(log_dir, clock=lambda: FIRST_MS) as store:
        partition = store[PARTITION]
        store.settings.set_broker("remote.storage.url", f"file://{bucket}")
        for name, value in (("remote.storage.enable", "true"), ("local.retention.bytes", "0")):
            store.settings.set_topic(topic, name, value)
        partition.roll(FIRST_MS)
        store.tier(PARTITION)
        store.retain()
        expect("local segments", len(partition.local_segments), 1)
    return log_dir, bucket


@row
def tiered_read(bench: Bench) -> list[Result]:
    """Reading a tiered log from beginning to end, against a plain parallel download of the same objects."""
    scratch = bench.directory("tiered")
    log_dir, bucket = tiered_log(scratch, bench.pick(GIB, 256 * MIB))
    results = [_read(bench, scratch, log_dir, bucket, rate) for rate in RATES]
    bench.directory("tiered")
    return results


def _read(bench: Bench, scratch: Path, log_dir: Path, bucket: Path, rate: str) -> Result:
    from logfs.log.disk.bucket_path import BucketPath
    from logfs.log.remote.object_store import ObjectStore
    from logfs.store.store import Store

    objects = {path: path.stat().st_size for path in bucket.rglob("*.log")}
    stored = sum(objects.values())
    chunks = [
        (str(path.relative_to(bucket)), at)
        for path, length in sorted(objects.items())
        for at in range(0, length, CHUNK_BYTES)
    ]
    with slow_server(bucket, RATES[rate]) as url:
        os.environ |= {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "none",
            "AWS_SECRET_ACCESS_KEY": "none",
            "AWS_REGION": "us-east-1",
            "XDG_CACHE_HOME": str(scratch / "cache"),
        }
        with Store(log_dir, clock=lambda: FIRST_MS) as store:
            store.settings.set_broker("remote.storage.url", "s3://bench")
        plain = ObjectStore(BucketPath("s3://bench"))

        def download() -> None:
            def fetch(number: int) -> int:
                data = plain.get(*chunks[number], CHUNK_BYTES)
                return (scratch / "files" / str(number)).write_bytes(data)

            with ThreadPoolExecutor(PARALLEL) as pool:
                found = pool.map(fetch, range(len(chunks)))
                expect("bytes downloaded", sum(found), stored)

        def read() -> None:
            with Store(log_dir, read_only=True) as store:
                found = sum(len(batch.data) for batch in store[PARTITION].batches(0))
                expect("bytes read", found, stored)

        def from_nothing(work: Callable[[], None]) -> float:
            for each in ("cache", "files"):
                shutil.rmtree(scratch / each, ignore_errors=True)
            (scratch / "files").mkdir()
            return timed(work)

        ours, theirs = alternate(
            bench.pick(5, 3), lambda: from_nothing(read), lambda: from_nothing(download)
        )
    ratio, spread = faster(ours, theirs)
    what = f"reading a tiered log, {LATE_MS} ms away at {rate}, cold"
    peer = f"{speed(stored, theirs)} download into files, {PARALLEL} at a time"
    measured = speed(stored, ours)
    return Result(f"tiered read, {rate}", what, ratio, measured, peer, 0.5, 0.8, spread=spread)
