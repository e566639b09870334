"""The event loop of a mount: no request keeps it for long, whatever the store holds."""

from __future__ import annotations

import os
import subprocess
from itertools import islice
from typing import TYPE_CHECKING

import orjson

from logfs.store.store import Store
from tests.support.mounts import Mount
from tests.support.processes import wait_for
from tests.support.requirements import need_fuse
from tests.support.stores import assert_clean

if TYPE_CHECKING:
    from pathlib import Path

PARTITIONS = 400
KEYS = 30_000
# A step of the event loop is to take at most a millisecond of a quiet processor. This limit allows for one that is
# not, and for the first use of code and memory.
MOST_MS = 10.0
# Each request below is made so often.
TIMES = 3
MIB = 1 << 20


def read_everything(directory: Path) -> None:
    """List, stat and read what a partition directory shows."""
    for name in ("records", "records.jsonl", "status.json", "ctl"):
        (directory / name).read_bytes()
    for name in ("", "offsets", "time", "segments", "config", "keys", "groups"):
        for entry in islice(os.scandir(directory / name), 50):
            entry.stat(follow_symlinks=False)
        os.listdir(directory / name)
    for offset in (0, 7, 20_000, 29_999):
        (directory / f"offsets/{offset}").read_bytes()
        (directory / f"offsets/{offset}.json").read_bytes()
    (directory / "offsets/0..10000").read_bytes()
    (directory / "time/0").read_bytes()
    (directory / "keys/k29999").read_bytes()


def test_no_request_keeps_the_event_loop(tmp_path: Path) -> None:
    """Large and small appends, reads, lookups and listings, in a store with many partitions and many keys."""
    need_fuse()
    log_dir, report = tmp_path / "log", tmp_path / "steps.json"
    with Store(log_dir) as store:
        for number in range(PARTITIONS):
            store.create(f"many-{number}").append_lines(b"x" * 99 + b"\n")
        store.settings.set_topic("keyed", "max.message.bytes", str(4 * MIB))
        store.create("keyed-0")
        store.create("packed-0")
        store.settings.set_topic("packed", "compression.type", "zstd")
    program = ("tests.support.step_watch", str(report))
    mount = Mount(tmp_path / "mnt", [log_dir], program=program, is_forked=False)
    try:
        mount.start()
        status = mount.path / ".logfs/status.json"
        wait_for(lambda: not orjson.loads(status.read_bytes())["unloaded"])
        envelopes = b"".join(b'{"key":"k%d","value":"v%d"}\n' % (n, n) for n in range(KEYS))
        lines = (b"y" * 99 + b"\n") * 20_000
        for _ in range(TIMES):
            (mount.path / "keyed-0/append.jsonl").write_bytes(envelopes)
            for name in ("keyed-0", "packed-0"):
                with (mount.path / name / "append").open("ab", buffering=0) as append:
                    for size in (100, 128 * 1024, MIB):
                        append.write(lines[:size])
        for _ in range(TIMES):
            for name in ("keyed-0", "packed-0", "many-7"):
                if name == "keyed-0":
                    read_everything(mount.path / name)
                else:
                    (mount.path / name / "records").read_bytes()
            for name in ("status.json", "metrics", "errors", "ctl"):
                (mount.path / ".logfs" / name).read_bytes()
            for entry in os.scandir(mount.path):
                entry.stat()
            subprocess.run(["tail", "-n", "5", mount.path / "keyed-0/records"], check=True)
    finally:
        mount.stop()
    assert_clean(log_dir)
    told = orjson.loads(report.read_bytes())
    assert {"getattr", "lookup", "open", "read", "readdir", "write"} <= {*told["seen"]}
    slow: dict[str, list[float]] = told["slow"]
    often = {
        name: times for name, times in slow.items() if sum(t > MOST_MS for t in times) >= TIMES
    }
    assert often == {}
