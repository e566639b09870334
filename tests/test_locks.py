"""The locks: the check of their order, and the table of them in docs/threads.md.

`python -m tests.test_locks` prints the table.
"""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from logfs import locks
from logfs.locks import Level, Wait
from logfs.log.disk.disk import Disk
from tests.support import lock_order
from tests.support.lock_order import WrongOrder

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
# A lock that logfs does not make here, and why: `tqdm` asks for the lock of its own output.
FOREIGN = {"cli/common.py": "tqdm.set_lock(threading.RLock())"}
HEAD = "| lock | in `logfs/` | a holder may wait for | protects |\n|---|---|---|---|\n"
WAITS = {
    Wait.NOTHING: "nothing",
    Wait.FILES: "reads and writes of files",
    Wait.SYNCS: "files and their syncs",
    Wait.NETWORK: "anything",
}


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """Forget the rules that these tests break on purpose."""
    yield
    lock_order.found.clear()


def makers() -> dict[str, list[str]]:
    """Return the modules that make a lock of each level, below logfs/ and without the suffix."""
    found: dict[str, list[str]] = {level.name: [] for level in Level}
    for path in sorted((ROOT / "logfs").rglob("*.py")):
        module = path.relative_to(ROOT / "logfs").with_suffix("").as_posix()
        text = path.read_text()
        for name in dict.fromkeys(re.findall(r"\bLevel\.(\w+)", text)):
            if module != "locks" and re.search(r"\bmake_r?lock\(", text):
                found[name].append(module)
    return found


def table() -> str:
    """Return the table of the locks, in their order."""
    made = makers()
    return HEAD + "".join(
        f"| `{level.names.replace(', ', '`, `')}` | {', '.join(made[level.name])} | {WAITS[level.wait]} "
        f"| {level.protects} |\n"
        for level in Level
    )


def test_the_table_in_the_documents_is_that_of_the_code() -> None:
    assert table() in (ROOT / "docs/threads.md").read_text(), "python -m tests.test_locks"


def test_every_level_is_used_and_every_lock_has_one() -> None:
    assert [name for name, modules in makers().items() if not modules] == []
    for path in (ROOT / "logfs").rglob("*.py"):
        module = path.relative_to(ROOT / "logfs").as_posix()
        text = path.read_text().replace(FOREIGN.get(module, ""), "")
        if module != "locks.py":
            assert not re.search(r"threading\.R?Lock\(\)|allocate_lock\(", text), module


def test_the_order_is_checked() -> None:
    """A lock may be taken under one of an earlier level only, and never under another of its own."""
    outer, inner = locks.make_rlock(Level.REGISTRY), locks.make_rlock(Level.PARTITION)
    with outer, inner, outer:
        pass
    with inner, pytest.raises(WrongOrder, match="REGISTRY under PARTITION"), outer:
        pass
    with (
        inner,
        pytest.raises(WrongOrder, match="PARTITION under"),
        locks.make_rlock(Level.PARTITION),
    ):
        pass
    with inner:
        # An attempt that does not wait cannot wait for ever.
        assert outer.acquire(blocking=False)
        outer.release()
    assert len(lock_order.found) == 2


def test_what_a_holder_waits_for_is_checked(tmp_path: Path) -> None:
    """Under the lock of a partition nothing is synced, unless appends have to wait for it; nor is a bucket asked."""
    disk = Disk()
    file = disk.open(tmp_path / "file", write=True, create=True)
    with locks.make_rlock(Level.PARTITION):
        disk.write(file, 0, b"x")
        with pytest.raises(WrongOrder, match="sync under PARTITION"):
            disk.sync(file)
        with pytest.raises(WrongOrder, match="check_may_fetch under PARTITION"):
            disk.check_may_fetch()
    with locks.make_rlock(Level.FLUSH), locks.make_rlock(Level.PARTITION):
        disk.sync(file)
    with locks.make_lock(Level.VIEWS), pytest.raises(WrongOrder, match="read under VIEWS"):
        disk.read(file, 0, 1)


def test_the_event_loop_waits_for_no_lock_that_is_held_long() -> None:
    disk = Disk()
    disk.forbid_blocking()
    try:
        with locks.make_lock(Level.VIEWS):
            pass
        with disk.hold(locks.make_rlock(Level.PARTITION)):
            pass
        with pytest.raises(WrongOrder, match="event loop"), locks.make_rlock(Level.PARTITION):
            pass
    finally:
        disk.allow_blocking()


def test_a_rule_that_a_background_thread_breaks_is_kept() -> None:
    def work() -> None:
        with pytest.raises(WrongOrder), locks.make_lock(Level.VIEWS), locks.make_lock(Level.KEYS):
            pass

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert [each.partition("\n")[0] for each in lock_order.found] == ["KEYS under VIEWS"]


if __name__ == "__main__":
    print(table(), end="")
