"""A disk that fails at each single call: acknowledged data survives, and later calls report no false success."""

from __future__ import annotations

import errno
import os
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from logfs.errors import LogDirFailed, LogfsError, PartitionFailed
from logfs.format.batches.record import Record
from logfs.log.append.partition import Partition
from logfs.log.disk.checked_disk import CheckedDisk
from logfs.log.disk.disk import Disk, File
from logfs.log.segment.segment import Segment
from logfs.store.directory.log_dir import CLEAN_SHUTDOWN
from logfs.store.store import Store
from tests.support import crashdisk
from tests.support.crashdisk import LOG, FaultDisk, Stopped, Workload
from tests.support.examples import seed_of
from tests.support.stores import assert_clean
from tests.system.workloads import WORKLOADS, first_states

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.crashdisk import State

# At how many of its calls each workload fails.
RUNS = int(os.environ.get("LOGFS_DISK_FAULTS", "12"))
SEED = seed_of("LOGFS_DISK_FAULTS_SEED")

pytestmark = pytest.mark.usefixtures("quiet_log", "small_key_indexes", "buckets")


def use(work: Workload) -> None:
    """Use every kind of operation in few disk calls."""
    work.create("a-0")
    work.append("a-0", b"one")
    work.flush("a-0")
    for number in range(3):
        work.append("a-0", b"number %d " % number + b"x" * 60, b"and another")
    work.roll("a-0")
    work.append("a-0", b"in the second segment")
    work.flush("a-0")
    work.configure("a", "flush.ms", "1000")
    work.append("a-0", b"last", b"of all")
    work.flush("a-0")
    work.checkpoint()
    work.truncate("a-0", 8)
    work.append("a-0", b"instead")


def use_commits(work: Workload) -> None:
    """Commit to two partitions, to one of them over several segments."""
    work.create("a-0")
    work.create("b-0")
    work.append("b-0", b"before")
    work.commit("q", 0, {"a-0": (b"a0", b"a1", b"a2"), "b-0": (b"b0",)})
    large = tuple(b"a%d " % number + b"x" * 90 for number in range(3, 12))
    work.commit("q", 1, {"a-0": large, "b-0": (b"b1",)})
    work.replay(0)


class Run:
    """A workload on a disk that fails at one point, and the files that it leaves."""

    def __init__(
        self,
        at: int,
        number: int,
        *,
        persistent: bool = False,
        use: Callable[[Workload], None] = use,
    ) -> None:
        self.opened = False
        self._use = use
        with crashdisk.scratch() as root:
            self.disk = FaultDisk(root, at, number, persistent=persistent)
            try:
                self._run()
                self.log_dirs = crashdisk.log_dirs(root)
                self.marked_clean = [
                    path for path in self.log_dirs if (path / CLEAN_SHUTDOWN).exists()
                ]
                if self.marked_clean:
                    assert_clean(*self.marked_clean)
                self.image = crashdisk.tree(root)
                self.states = crashdisk.crash_states(self.disk, since=len(self.disk.ops))
            finally:
                self.disk.close()

    def _run(self) -> None:
        try:
            self.work = Workload(self.disk)
        except (LogfsError, OSError):
            # The store could not be opened, so nothing was promised.
            return
        self.opened = True
        with suppress(Stopped):
            self._use(self.work)
        self._reads()
        self.work.close()
        for partition in self.work.store.registry.partitions.values():
            if partition.failure is not None:
                self._refuses(partition)

    def _reads(self) -> None:
        """Check that a partition that accepts records shows those that it took, also before any recovery."""
        self.disk.armed = False
        for name, partition in self.work.store.registry.partitions.items():
            if (
                partition.failure is None
                and name in self.work.logs
                and name not in self.work.waiting
            ):
                found = {record.offset: record.value for record in partition.read()}
                sent = {offset: sent.value for offset, sent in enumerate(self.work.logs[name])}
                assert found.items() <= sent.items(), name
                may_be_gone = self.work.gone[name] | self.work.going[name]
                assert sent.keys() - found.keys() <= may_be_gone, name
        self.disk.armed = True

    def _refuses(self, partition: Partition) -> None:
        """Check that a failed partition accepts nothing more and does not use the disk again."""
        calls = self.disk.calls
        with pytest.raises(PartitionFailed):
            partition.append([Record(b"no", b"key")])
        with pytest.raises(PartitionFailed):
            partition.flush()
        assert self.disk.calls == calls, "a failed partition tried the disk again"

    def verify(self) -> Counter[str]:
        """Check the promises for the files as they are, and for those after a power cut."""
        oracle = self.disk.oracles[-1][1]
        if self.opened:
            for partition in self.work.failed:
                assert partition.directory.parent not in self.marked_clean, "clean after a failure"
        total = crashdisk.verify_state(crashdisk.State(self.image, oracle, -1))
        for state in crashdisk.sample(self.states, 1, seed=self.disk.at):
            total += crashdisk.verify_state(state)
        return total


def calls(use: Callable[[Workload], None]) -> list[str]:
    """Return the kinds of disk call that a workload makes, in order."""
    run = Run(-1, 0, use=use)
    assert not run.work.failures
    assert run.marked_clean == run.log_dirs
    run.verify()
    return run.disk.seen


# The workloads that fail at some call of theirs.
USES = {use.__name__: use, use_commits.__name__: use_commits, **WORKLOADS}


@pytest.mark.drawn(6)
@pytest.mark.parametrize("persistent", [False, True], ids=["once", "for ever"])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
@pytest.mark.parametrize("name", USES)
def test_an_error_at_any_call_loses_nothing_that_was_acknowledged(
    name: str, number: int, persistent: bool
) -> None:
    """An error at any disk call, once or from then on, loses no flushed record and invents none."""
    campaign(USES[name], number, persistent=persistent)


def campaign(
    use: Callable[[Workload], None],
    number: int,
    *,
    persistent: bool,
    runs: int = RUNS,
    seed: int = SEED,
) -> None:
    """Let a workload fail at about `runs` of its calls, chosen by `seed`, or at every call."""
    seen = calls(use)
    stride = -(-len(seen) // runs)
    total: Counter[str] = Counter()
    for at in range(seed % stride, len(seen), stride):
        run = Run(at, number, persistent=persistent, use=use)
        assert run.disk.failed, f"call {at} never came"
        try:
            total += run.verify()
        except AssertionError as error:
            raise AssertionError(f"call {at} of {len(seen)}, {seen[at]}: {error}") from error
        total[run.disk.failed[0]] += 1
    print(f"{use.__name__}: {errno.errorcode[number]} at {len(seen)} calls: {dict(total)}")
    assert total["states"] >= len(seen) // stride


@pytest.mark.drawn(1)
@pytest.mark.parametrize("what", ["recovery", "clean close", "reindex"])
def test_an_error_while_a_store_recovers_loses_nothing(what: str) -> None:
    """After a power cut, an error at any call of the recovery leaves a log that the next recovery makes whole."""
    action = crashdisk.AFTER_A_CRASH[what]
    kinds: Counter[str] = Counter()
    for state in first_states(2, SEED):
        seen = _recover(state, action).calls
        stride = -(-seen // max(RUNS // 4, 1))
        for at in range(SEED % stride, seen, stride):
            run = _recover(state, action, at, (errno.EIO, errno.ENOSPC)[at % 2])
            kinds.update(run.failed)
            try:
                crashdisk.verify_state(state._replace(image=run.image))
            except AssertionError as error:
                raise AssertionError(f"call {at} of {seen}, {run.failed}: {error}") from error
    print(f"{what}: {dict(kinds)}")
    assert kinds


class Recovery(NamedTuple):
    """An action after a power cut: its number of disk calls, the kinds of those that failed, and what it left."""

    calls: int
    failed: list[str]
    image: crashdisk.Image


def _recover(
    state: State, action: Callable[[Path, Disk], None], at: int = -1, number: int = 0
) -> Recovery:
    """Call an action after a power cut. The disk call `at` of it fails with the errno `number`."""
    with crashdisk.scratch() as root:
        crashdisk.write_image(root, state.image)
        disk = FaultDisk(root, at, number)
        try:
            action(root, disk)
        except (LogfsError, OSError):
            assert disk.failed
        finally:
            disk.close()
        return Recovery(disk.calls, disk.failed, crashdisk.read_image(root))


def open_work(root: object, at_kind: str) -> Workload:
    """Return a store with one flushed record on a disk that `fail_next` can make fail."""
    disk = FaultDisk(root)  # type: ignore[arg-type]
    work = Workload(disk)
    work.create("a-0")
    work.append("a-0", b"durable")
    work.flush("a-0")
    assert not work.failures
    assert at_kind in FaultDisk.KINDS
    return work


def fail_next(work: Workload, kind: str, number: int, *, persistent: bool = False) -> None:
    """Make the next call of a kind fail, whatever calls come before it."""
    disk = work.disk
    assert isinstance(disk, FaultDisk)
    disk.armed, disk.number = True, number
    plain = disk._may_fail

    def may_fail(called: str, path: object) -> None:
        if called == kind and (persistent or not disk.failed):
            disk.inject(called, path)
        plain(called, path)

    disk._may_fail = may_fail  # type: ignore[method-assign]


@pytest.mark.parametrize("kind", ["write", "sync", "sync_directory"])
def test_after_an_io_error_nothing_is_taken_until_the_store_is_reopened(kind: str) -> None:
    """EIO at a write or an fsync fails the log directory until the store is reopened, which recovers it."""
    with crashdisk.scratch() as root:
        work = open_work(root, kind)
        try:
            partition = work.store["a-0"]
            work.roll("a-0")
            fail_next(work, kind, errno.EIO)
            work.append("a-0", b"perhaps")
            work.flush("a-0")
            assert [type(error) for error in work.failures[:1]] == [LogDirFailed]
            assert partition.failure is not None
            assert work.store.offline == {"a-0": partition.failure}
            syncs = [op.kind for op in work.disk.ops].count("sync")
            for _ in range(3):
                with pytest.raises(PartitionFailed):
                    partition.flush()
                with pytest.raises(PartitionFailed):
                    partition.append([b"no"])
            assert [op.kind for op in work.disk.ops].count("sync") == syncs, "fsync was tried again"
            with pytest.raises(LogDirFailed):
                partition.record(0)
            work.close()
            assert not (root / LOG / CLEAN_SHUTDOWN).exists()
            oracle = work.disk.oracles[-1][1]
            crashdisk.verify(root, oracle)
        finally:
            work.disk.close()


def test_an_fsync_that_a_full_disk_has_refused_is_not_tried_again() -> None:
    """The kernel regards the pages as clean since then: another fsync would succeed, and make nothing durable."""
    with crashdisk.scratch() as root:
        work = open_work(root, "sync")
        try:
            work.append("a-0", b"perhaps")
            fail_next(work, "sync", errno.ENOSPC)
            work.flush("a-0")
            assert [type(error) for error in work.failures] == [PartitionFailed]
            partition = work.store["a-0"]
            assert partition.recovery_point == 1
            syncs = [op.kind for op in work.disk.ops].count("sync")
            for _ in range(3):
                with pytest.raises(PartitionFailed):
                    partition.flush()
            assert [op.kind for op in work.disk.ops].count("sync") == syncs, "fsync was tried again"
            work.close()
            assert not (root / LOG / CLEAN_SHUTDOWN).exists()
            crashdisk.verify(root, work.disk.oracles[-1][1])
        finally:
            work.disk.close()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_leaves_the_partition_as_it_was(number: int) -> None:
    """ENOSPC, EDQUOT and EFBIG refuse the append, which leaves nothing behind. The next append succeeds."""
    with crashdisk.scratch() as root:
        work = open_work(root, "write")
        try:
            fail_next(work, "write", number)
            work.append("a-0", b"too much")
            assert [error.errno for error in work.failures] == [number]  # type: ignore[attr-defined]
            partition = work.store["a-0"]
            assert partition.log_end_offset == 1
            assert partition.size_bytes == partition.active.path.stat().st_size
            work.append("a-0", b"fits again")
            work.flush("a-0")
            assert [record.value for record in partition.read()] == [b"durable", b"fits again"]
            work.close()
            assert (root / LOG / CLEAN_SHUTDOWN).exists()
            crashdisk.verify(root, work.disk.oracles[-1][1])
        finally:
            work.disk.close()


class _Full(Disk):
    """A disk with space for `left` more changes of a file's length. None means no bound."""

    left: int | None = None

    def truncate(self, file: File, size: int) -> None:
        if self.left == 0:
            self.left = None
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file.path))
        if self.left is not None:
            self.left -= 1
        super().truncate(file, size)


@pytest.mark.parametrize("left", range(3))
def test_a_full_disk_while_index_space_is_allocated(tmp_path: Path, left: int) -> None:
    """The index space that an append allocated before ENOSPC is gone after a clean close.

    The first append allocates space in three files.
    """
    with Store(tmp_path) as store:
        store.create("a-0")
    disk = _Full()
    with Store(tmp_path, disk=disk) as store:
        disk.left = left
        with pytest.raises(OSError, match="No space left"):
            store["a-0"].append([b"no room"])
        disk.left = None
    assert (tmp_path / CLEAN_SHUTDOWN).exists()
    assert_clean(tmp_path)


@pytest.mark.parametrize("left", range(12))
def test_a_failed_creation_of_a_partition_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    """A partition that cannot be created because descriptors run out leaves no directory behind.

    It can then be created in the same or another log directory.
    """
    roots = [tmp_path / "one", tmp_path / "two"]
    real, made = {"open": os.open, "scandir": os.scandir}, 0

    def exhausted(name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal made
            made += 1
            if made > left:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(args[0]))
            return real[name](*args, **kwargs)

        return call

    with Store(roots) as store:
        for name in real:
            monkeypatch.setattr(os, name, exhausted(name))
        with suppress(OSError):
            store.create("a-0")
        monkeypatch.undo()
        if "a-0" not in store:
            assert not [root for root in roots if (root / "a-0").exists()]
            store.create("a-0")
        store["a-0"].append([b"record"])
    with Store(roots) as store:
        assert [record.value for record in store["a-0"].read()] == [b"record"]
    assert_clean(roots[0], roots[1])


def test_a_short_write_is_carried_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that the kernel takes in parts is written whole."""
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, bytes(data)[:7], at))
    with crashdisk.scratch() as root:
        work = open_work(root, "write")
        try:
            work.append("a-0", b"in many pieces")
            work.close()
            crashdisk.verify(root, work.disk.oracles[-1][1])
        finally:
            work.disk.close()


# The tests above must detect a broken engine.


def _ignore_short_write(patch: pytest.MonkeyPatch) -> None:
    pwrite = os.pwrite
    patch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, bytes(data)[:7], at))
    patch.setattr(
        Disk, "write", lambda self, file, position, data: os.pwrite(file.fd, data, position)
    )


def _no_truncation_after_enospc(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Segment, "cut_back", lambda self: None)


def _swallow_eio(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Partition, "fail", lambda self, what, error: PartitionFailed(what))
    patch.setattr(CheckedDisk, "fail", lambda self, reason: LogDirFailed(reason))


def _retry_fsync(patch: pytest.MonkeyPatch) -> None:
    flush = Segment.flush

    def twice(self: Segment, *, indexes: bool) -> None:
        try:
            flush(self, indexes=indexes)
        except OSError:
            flush(self, indexes=indexes)

    patch.setattr(Segment, "flush", twice)


def _keep_half_a_roll(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Segment, "discard", lambda self: None)


def _clean_after_failure(patch: pytest.MonkeyPatch) -> None:
    close = Partition.close
    patch.setattr(Partition, "close", lambda self: close(self) or True)


MUTANTS: tuple[Callable[[pytest.MonkeyPatch], None], ...] = (
    _ignore_short_write,
    _no_truncation_after_enospc,
    _swallow_eio,
    _retry_fsync,
    _keep_half_a_roll,
    _clean_after_failure,
)


@pytest.mark.drawn(3)
@pytest.mark.parametrize("mutate", MUTANTS, ids=[mutate.__name__ for mutate in MUTANTS])
def test_the_faults_catch_a_broken_engine(
    mutate: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each seeded fault of the engine makes one of the tests above fail."""

    def all_tests() -> None:
        if mutate is _ignore_short_write:
            test_a_short_write_is_carried_on(monkeypatch)
        test_a_full_disk_leaves_the_partition_as_it_was(errno.ENOSPC)
        test_after_an_io_error_nothing_is_taken_until_the_store_is_reopened("sync")
        test_an_fsync_that_a_full_disk_has_refused_is_not_tried_again()
        campaign(use, errno.EIO, persistent=False, runs=32, seed=0)
        # After EIO no call can be tried again, but a broken engine could repeat an fsync after ENOSPC.
        campaign(use, errno.ENOSPC, persistent=False, runs=32, seed=0)

    mutate(monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        all_tests()
