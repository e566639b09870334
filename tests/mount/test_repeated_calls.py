"""A call of a node that had to be repeated, because it would have waited, gives what a call gives that did not."""

from __future__ import annotations

import os
import random
import shutil
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyfuse3")

from logfs.mount.admin_requests import AdminRequests
from logfs.mount.errnos import ErrorLog
from logfs.mount.nodes.base import Caller, Context, DirectoryNode, FileNode, Node
from logfs.mount.nodes.root import RootDirectory
from logfs.store.store import Store
from tests.support.disks import EventLoop, event_loop
from tests.support.stores import Clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from logfs.mount.nodes.base import Handle

PART = (b"x" * 999 + b"\n") * 1047
# Ends in the middle of a line.
PART += b"y" * ((1 << 20) - len(PART))
KEYED = b"".join(b'{"key":"k%d","value":"v%d"}\n' % (n % 7, n) for n in range(60))
# More locks and reads than any call needs.
ALL = 1_000_000
# What is written to which file, one write(2) for each item; None reopens the file.
WRITES: dict[str, tuple[str, list[bytes | None]]] = {
    "lines": ("orders-0/append", [b"a\nb", b"c\n", b"d", None]),
    "many lines": ("orders-0/append", [b"x" * 99 + b"\n", (b"x" * 99 + b"\n") * 4000]),
    "a divided write": ("orders-0/append", [PART, b"y" * 3000 + b"\ngood\n", b"rest\n"]),
    "the rest is written again": (
        "orders-0/append",
        [PART, b"y" * 3000 + b"\n", b"y" * 3000 + b"\n", b"good\n"],
    ),
    "a line in two writes is refused": (
        "orders-0/append",
        [b"z" * 1500, b"z" * (1 << 20) + b"\n", b"z" * (1 << 20) + b"\n", b"good\n"],
    ),
    "a long line": (
        "orders-0/append",
        [b"z" * 1500, b"z" * 1500, b"z" * 1500 + b"\ngood\n", b"g\n"],
    ),
    "envelopes": ("orders-0/append.jsonl", [KEYED, b'{"value":"a"}\n', b"wrong\n", b'{"val']),
    "lines of a topic": ("topics/orders/append", [b"a\nb", b"c\n", b"x" * 99 + b"\n"]),
    "envelopes of a topic": (
        "topics/orders/append.jsonl",
        [KEYED, b'{"value":"a"}\n', b"wrong\n", b'{"val'],
    ),
    "groups": ("orders-0/groups/g", [b"1\n", b"latest\n", b"9\n"]),
    "groups of a topic": ("topics/orders/groups/g", [b"1\n", b"0 1\n1 0\n", b"wrong\n"]),
    "settings": ("orders-0/config/retention.ms", [b"3600000\n", b"wrong\n", None, b"\n"]),
    "broker settings": (".logfs/config/log.retention.ms", [b"3600000\n", b"wrong\n"]),
    "log start": ("orders-0/log-start-offset", [b"1\n", b"99\n", b"-1\n"]),
    "commands": ("orders-0/ctl", [b"pause\n", b"wrong\n", b"roll\n", b"retain\n"]),
    "commands of the store": (".logfs/ctl", [b"pause\n", b"wrong\n", b"retain\n"]),
    "requests": (".logfs/admin", [b"wrong\n", b"wr", b"ong\n", b"[" * 100_000 + b"\n"]),
}


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    """The event loop that makes the calls of a test."""
    with event_loop() as loop:
        yield loop


def outcome(loop: EventLoop, work: Callable[[], Any], at_hand: int | None) -> object:
    """Return what a call returns, or its error. Without `at_hand`, it is made in a thread that may wait."""
    try:
        return work() if at_hand is None else loop.call(work, at_hand)
    except Exception as error:
        return type(error), str(error)


class Session:
    """A store, and a file of it that is written."""

    def __init__(self, directory: Path, loop: EventLoop, path: str) -> None:
        random.seed(7)
        self.store = Store(directory, clock=Clock())
        self.loop = loop
        self.outcomes: list[object] = []
        self.store.settings.set_topic("orders", "max.message.bytes", "2000")
        for number in range(2):
            self.store.create(f"orders-{number}").append([b"a", b"b"])
        context = Context(self.store, ErrorLog(self.store.clock), "0", AdminRequests())
        node: Node = RootDirectory(context)
        for name in path.split("/"):
            assert isinstance(node, DirectoryNode)
            is_new = name == "g"
            node = node.adopt(name, node.create(name, 0)) if is_new else node.lookup(name)
        assert isinstance(node, FileNode)
        self.file = node
        self.handle: Handle = node.open(os.O_RDWR, Caller(0, 0, 1))

    def run(self, writes: list[bytes | None], number: int | None, at_hand: int) -> bool:
        """Write. In the call of this number, so many locks and reads are at hand. Return whether it had to wait.

        Without a number, every call is made in a thread that may wait.
        """
        waited = False
        steps: list[Callable[[], Any]] = [
            step for data in writes for step in (self.write(data), self.read, self.size)
        ]
        for each, step in enumerate([*steps, self.release]):
            few = at_hand if each == number else ALL
            self.outcomes.append(outcome(self.loop, step, None if number is None else few))
            waited |= self.loop.waited
        return waited

    def write(self, data: bytes | None) -> Callable[[], Any]:
        """Return what writes `data`, or opens the file again."""
        return self.reopen if data is None else lambda: self.handle.write(data)

    def reopen(self) -> None:
        """Close the file and open it again."""
        self.handle.release()
        self.handle = self.file.open(os.O_RDWR, Caller(0, 0, 1))

    def read(self) -> bytes:
        """Return what the open file shows."""
        return self.handle.read(0, 1 << 20)

    def size(self) -> int:
        """Return the size of the file."""
        return self.file.stat().size

    def release(self) -> None:
        """Close the file."""
        self.handle.release()

    def state(self) -> dict[str, object]:
        """Return what the store holds."""
        store = self.store
        found: dict[str, object] = {"outcomes": self.outcomes, "paused": store.registry.is_paused}
        for name in sorted(store):
            log = store[name]
            values = [(record.key, record.value) for record in log.read()]
            found[name] = values, log.log_start_offset, log.is_paused, len(log.segments)
        found["orders"] = dict(store.settings.topic_overrides("orders"))
        found["broker"] = dict(store.settings.broker_overrides)
        return found


@pytest.mark.drawn(6)
@pytest.mark.parametrize("name", WRITES)
def test_a_repeated_call_changes_what_one_call_changes(
    tmp_path: Path, loop: EventLoop, name: str
) -> None:
    """Whichever lock or read a write, a read, a `stat` or a close would have had to wait for."""
    path, writes = WRITES[name]
    numbers = count()

    def run(number: int | None, at_hand: int) -> tuple[bool, dict[str, object]]:
        directory = tmp_path / str(next(numbers))
        session = Session(directory, loop, path)
        with session.store:
            waited = session.run(writes, number, at_hand)
            found = session.state()
        shutil.rmtree(directory)
        return waited, {key: _without(value, directory) for key, value in found.items()}

    _, wanted = run(None, ALL)
    for number in range(3 * len(writes) + 1):
        for at_hand in count():
            waited, found = run(number, at_hand)
            assert found == wanted, f"call {number} waited after {at_hand} locks and reads"
            if not waited:
                break


def _without(value: object, directory: Path) -> str:
    return repr(value).replace(str(directory), "")
