"""A leased partition: what comes back to the holder of the lock, and what a crash leaves."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, cast

import pytest

from logfs.errors import StoreLocked
from logfs.format.base import names
from logfs.format.batches.record import Record
from logfs.store.directory.lease import Lease, LeasedLogDir
from logfs.store.directory.log_dir import CLEAN_SHUTDOWN
from logfs.store.store import Store
from tests.support.stores import assert_clean

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.stores import Clock

USERS = names.parse_directory("users-0")


@pytest.fixture
def closed(log_dir: Path, clock: Clock) -> Path:
    """A cleanly closed log directory with a compacted partition of several segments, and another partition."""
    with Store(log_dir, clock=clock) as store:
        store.settings.set_topic("users", "cleanup.policy", "compact")
        users = store.create("users-0")
        for _ in range(3):
            for number in range(20):
                users.append([Record(b"%d" % users.log_end_offset, b"key %d" % (number % 5))])
            users.roll(clock())
        store.create("orders-0").append([b"not theirs"])
    return log_dir


def files_of(log_dir: Path) -> dict[str, tuple[int, bytes]]:
    """Return the inode and the content of each file of the directory itself."""
    return {
        path.name: (path.stat().st_ino, path.read_bytes())
        for path in log_dir.iterdir()
        if path.is_file()
    }


def newest(store: Store) -> list[tuple[int, bytes | None]]:
    """Return the offset and the key of each record of users-0."""
    return [(record.offset, record.key) for record in store["users-0"].read()]


def test_only_the_holder_writes_the_files_of_the_directory(closed: Path, clock: Clock) -> None:
    """A leased store compacts its partition, and returns the new entries of the checkpoints to the holder."""
    with Store(closed, clock=clock, only="") as holder:
        before = files_of(closed)
        lease = pickle.loads(pickle.dumps(Lease.of(holder.log_dirs[0], USERS)))
        with pytest.raises(StoreLocked):
            Store(closed, only="users-0")
        with Store(lease, clock=clock, only="users-0") as store:
            home = cast("LeasedLogDir", store.registry.homes["users-0"])
            assert list(store) == ["users-0"]
            store.compact("users-0")
            left = newest(store)
        assert len(left) == 5
        assert files_of(closed) == before
        returned = home.returned()
        assert returned.clean
        assert returned.recovery_point == 60
        assert returned.cleaner_offset == 60
        assert holder.log_dirs[0].cleaner_offsets == {}
        holder.log_dirs[0].set_cleaner_offsets({USERS: 60})


def test_the_death_of_the_holder_is_like_any_crash(closed: Path, clock: Clock) -> None:
    """If the holder noted before that offsets may be missing, the gaps are not treated as damage afterwards."""
    holder = Store(closed, clock=clock, only="")
    log_dir = holder.log_dirs[0]
    log_dir.set_cleaner_offsets({USERS: 0})
    with Store(Lease.of(log_dir, USERS), clock=clock, only="users-0") as store:
        store.compact("users-0")
        left = newest(store)
    # Nothing is written, and nothing is closed, as if the holder were killed now.
    log_dir.close()
    assert not (closed / CLEAN_SHUTDOWN).exists()
    with Store(closed, clock=clock) as store:
        assert newest(store) == left
        assert [record.value for record in store["orders-0"].read()] == [b"not theirs"]
    assert_clean(closed)


def test_two_attempts_take_turns_and_the_second_recovers_after_a_kill(
    closed: Path, clock: Clock
) -> None:
    """Of two processes with the same lease one waits; if the first is killed, the second recovers the partition."""
    with Store(closed, clock=clock, only="") as holder:
        lease = Lease.of(holder.log_dirs[0], USERS)
        code = (
            "import pickle, sys, time\n"
            "from logfs.format.batches.record import Record\n"
            "from logfs.store.store import Store\n"
            "store = Store(pickle.load(sys.stdin.buffer), only='users-0')\n"
            "store['users-0'].append([Record(b'not flushed', b'key')])\n"
            "print('at work', flush=True)\n"
            "time.sleep(600)\n"
        )
        first = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        try:
            assert first.stdin is not None
            assert first.stdout is not None
            first.stdin.write(pickle.dumps(lease))
            first.stdin.close()
            assert first.stdout.readline() == b"at work\n"
            ends: list[int] = []

            def work() -> None:
                with Store(lease, clock=clock, only="users-0") as store:
                    ends.append(store["users-0"].log_end_offset)
                    ends.append(store.recovered_bytes)

            second = threading.Thread(target=work)
            second.start()
            second.join(0.5)
            assert second.is_alive(), "did not wait for its turn"
            first.kill()
            second.join(60)
            assert not second.is_alive()
        finally:
            first.kill()
            first.wait()
            first.stdout.close()
    end, recovered = ends
    assert end == 61
    assert recovered > 0
    assert not (closed / "users-0/logfs.lease").exists()
