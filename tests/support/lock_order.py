"""Locks that check the order in which they are taken, as the kernel's lockdep does: `install` puts them into logfs.

A thread that waits for a lock holds only locks of earlier levels (`logfs/locks.py`), and it waits for a file, a sync
or the network only if each lock that it holds allows that. Where the environment has `STRICT`, what breaks a rule
raises `WrongOrder`, and is kept in `found`, because nothing may catch the error of a thread in the background.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import logfs.locks
from logfs.locks import Level, Wait

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from logfs.log.disk.disk import Disk

# What the calls of a disk wait for.
_WAITS = {
    "sync": Wait.SYNCS,
    "sync_map": Wait.SYNCS,
    "sync_directory": Wait.SYNCS,
    "check_may_fetch": Wait.NETWORK,
    "open": Wait.FILES,
    "read": Wait.FILES,
    "write": Wait.FILES,
    "scan": Wait.FILES,
    "stat": Wait.FILES,
    "size": Wait.FILES,
    "rename_unsynced": Wait.FILES,
    "unlink": Wait.FILES,
}
# Set in the tests whose threads must keep the rules, and in the programs that they start.
STRICT = "LOGFS_LOCK_ORDER"
# What broke a rule, each with its stack.
found: list[str] = []
# The threads that must not wait for the disk: `Disk.forbid_blocking`.
loops: set[int] = set()
# The disks of stores that are buckets: there a file is an object, and to read one is to ask for it.
_of_buckets: WeakSet[Disk] = WeakSet()
_own = threading.local()


class WrongOrder(AssertionError):
    """A lock was taken, or something waited for, that a held lock forbids."""


def held() -> list[CheckedLock]:
    """Return the locks that the calling thread holds, from the first one taken on."""
    try:
        return _own.locks
    except AttributeError:
        _own.locks = []
        return _own.locks


class CheckedLock:
    """A lock of a level. It does what the lock does that it wraps, and checks first."""

    def __init__(self, level: Level, lock: Any) -> None:
        self.level = level
        self._lock = lock

    def check(self) -> None:
        """Raise `WrongOrder` if the calling thread holds a lock that forbids to wait for this one."""
        own = held()
        if self in own:
            return
        if threading.get_ident() in loops and self.level.wait > Wait.NOTHING:
            refuse(f"{self.level.name} in the thread of the event loop")
        commits = any(other.level is Level.COMMITS for other in own)
        for other in own:
            if commits and {other.level, self.level} <= {Level.FLUSH, Level.PARTITION}:
                # A commit holds both locks of each of its partitions, and no other commit runs.
                continue
            if other.level.rank >= self.level.rank:
                refuse(f"{self.level.name} under {other.level.name}")

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock. An attempt that does not wait is always allowed."""
        if blocking:
            self.check()
        if not self._lock.acquire(blocking, timeout):
            return False
        held().append(self)
        return True

    def release(self) -> None:
        """Release the lock."""
        own = held()
        for number in range(len(own) - 1, -1, -1):
            if own[number] is self:
                del own[number]
                break
        self._lock.release()

    def locked(self) -> bool:
        """Whether any thread holds the lock."""
        return self._lock.locked()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def refuse(what: str) -> None:
    """Keep, print and raise a broken rule, in the tests that hold the rules."""
    if STRICT not in os.environ:
        return
    found.append(what + "\n" + "".join(traceback.format_stack(limit=25)[:-2]))
    print(f"WrongOrder: {found[-1]}", file=sys.stderr)
    raise WrongOrder(what)


def check_wait(wait: Wait, what: str) -> None:
    """Raise `WrongOrder` if a lock of the calling thread forbids to wait for this."""
    own = held()
    may_sync = any(lock.level in (Level.FLUSH, Level.REBUILDING) for lock in own)
    for lock in own:
        if lock.level.wait < wait and not (
            # What appends have to wait for: closing, truncation, a commit, the swap of a move, a missing index.
            lock.level in (Level.PARTITION, Level.NAMING) and wait is Wait.SYNCS and may_sync
        ):
            refuse(f"{what} under {lock.level.name}")


@contextmanager
def elsewhere() -> Iterator[None]:
    """Forget the locks that the calling thread holds: what follows stands for another process or thread."""
    own, _own.locks = held(), []
    try:
        yield
    finally:
        _own.locks = own


def install() -> None:
    """Have every lock that logfs makes under `STRICT` check its order, and the disk what it is waited for."""
    logfs.locks.make_lock = _made_by(threading.Lock)
    logfs.locks.make_rlock = _made_by(threading.RLock)
    from logfs.log.disk.disk import Disk
    from logfs.log.remote.bucket_disk import BucketDisk
    from logfs.log.remote.tiered_disk import TieredDisk
    from logfs.log.state.leader_epochs import LeaderEpochs

    for name, wait in _WAITS.items():
        setattr(Disk, name, _checked(getattr(Disk, name), wait))
    hold, set_loop_thread, replace_epochs = Disk.hold, Disk._set_loop_thread, LeaderEpochs._replace
    make_bucket = BucketDisk.__init__

    def checked_hold(self: Disk, lock: Any) -> Any:
        if threading.get_ident() not in loops and isinstance(lock, CheckedLock):
            lock.check()
        return hold(self, lock)

    def note_loop(self: Disk, thread: int) -> None:
        loops.discard(self._loop_thread)
        loops.update({thread} - {-1})
        set_loop_thread(self, thread)

    def epochs_apart(self: LeaderEpochs, *arguments: Any) -> None:
        # The one file that is synced under the lock of a partition alone, at its first append and at new epochs.
        with elsewhere():
            replace_epochs(self, *arguments)

    def note_bucket(self: BucketDisk, *arguments: Any, **named: Any) -> None:
        make_bucket(self, *arguments, **named)
        if not isinstance(self, TieredDisk):
            _of_buckets.update((self, self._local))

    BucketDisk.__init__ = note_bucket  # type: ignore[assignment, method-assign]
    Disk.hold = checked_hold  # type: ignore[method-assign]
    Disk._set_loop_thread = note_loop  # type: ignore[method-assign]
    LeaderEpochs._replace = epochs_apart  # type: ignore[method-assign]


def _made_by(make: Callable[[], Any]) -> Callable[[Level], Any]:
    """Return a function that makes a lock: a plain one where no test holds the rules.

    Programs that tests interrupt have plain locks. Ctrl-C in the Python code of a checked lock may leave it locked
    forever; a lock of `threading` has no Python code.
    """
    return lambda level: CheckedLock(level, make()) if STRICT in os.environ else make()


def _checked(method: Callable[..., Any], wait: Wait) -> Callable[..., Any]:
    def checked(disk: Disk, *arguments: Any, **named: Any) -> Any:
        if held():
            check_wait(Wait.FILES if disk in _of_buckets else wait, method.__name__)
        return method(disk, *arguments, **named)

    return checked
