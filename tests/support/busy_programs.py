"""Programs that open a log directory, change its logs and close it again and again, and take turns."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import logfs
from logfs.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOGS = {"plain-0", "compacted-0", "damaged-0"}
# What each program does with the open store; `chance` is a random generator.
_DEEDS = {
    "append": """
        log = store["plain-0"]
        for _ in range(chance.randrange(12)):
            log.append_many([b"x" * chance.randrange(200) for _ in range(chance.randrange(1, 9))])
        if chance.random() < 0.2:
            log.delete_records(max(log.log_end_offset - 300, 0))
            store.retain()
        """,
    "compact": """
        log = store["compacted-0"]
        for _ in range(chance.randrange(12)):
            log.append(b"x" * chance.randrange(200), key=b"%d" % chance.randrange(5))
        log.compact()
        """,
    "commit": """
        with store.transaction("id") as transaction:
            for _ in range(chance.randrange(1, 9)):
                transaction.append("plain-0", b"x" * chance.randrange(200))
                transaction.append("compacted-0", b"y", key=b"%d" % chance.randrange(5))
            if chance.random() < 0.5:
                transaction.abort()
        store.groups.commit("g", {"plain-0": store["plain-0"].log_end_offset})
        """,
}
_PROGRAM = """
import random, sys, time
import logfs
chance = random.Random(sys.argv[2])
while True:
    try:
        store = logfs.open(sys.argv[1])
    except logfs.StoreLocked:
        time.sleep(0.001)
        continue
    with store:{deeds}
    time.sleep(chance.random() / 100)
"""


def make_logs(path: Path) -> Path:
    """Create the logs that the programs change, and `damaged-0`, which has a wrong index. Return the index's path."""
    with logfs.open(path, create=True) as store:
        for topic in ("plain", "compacted", "damaged"):
            store.create_topic(topic, 1)
            store.topic(topic).settings["index.interval.bytes"] = "100"
        store.topic("plain").settings["segment.bytes"] = "5000"
        store.topic("compacted").settings["segment.bytes"] = "5000"
        store.topic("compacted").settings["cleanup.policy"] = "compact"
        for number in range(20):
            store["damaged-0"].append(f"value {number}")
    with Store(path) as engine:
        engine["damaged-0"].roll(engine.clock())
    index = path / "damaged-0" / f"{0:020}.index"
    with index.open("r+b") as file:
        file.seek(12)
        file.write(b"\x00\x00\x00\x01")
    return index


@contextmanager
def busy_programs(path: Path, seed: object) -> Iterator[None]:
    """Run a program of each kind; at the end of the block, all of them must still be running."""
    running: list[subprocess.Popen[Any]] = []
    try:
        for kind, deeds in _DEEDS.items():
            words = [sys.executable, "-c", _PROGRAM.format(deeds=deeds), path, f"{seed} {kind}"]
            running.append(subprocess.Popen(words))
        yield
        assert [each.poll() for each in running] == [None] * len(_DEEDS)
    finally:
        for each in running:
            each.kill()
            each.wait()
