"""A power cut at any moment: every state that it can leave keeps the promises (see `tests/support/crashdisk.py`)."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from logfs.format.batches.batch import Batch
from logfs.log import recovery
from logfs.log.append import staged_batches
from logfs.log.append.flusher import Flusher
from logfs.log.append.partition import Partition
from logfs.log.append.staged_batches import StagedWriter
from logfs.log.disk.disk import Disk
from logfs.log.read import key_index
from logfs.log.segment.index import SparseIndex
from logfs.log.segment.segment import Segment
from logfs.store.maintenance.mover import Mover
from logfs.store.staged_commits import Commits
from logfs.store.store import Store
from tests.support import crashdisk
from tests.support.crashdisk import RecordingDisk, State, Workload
from tests.support.examples import seed_of
from tests.support.requirements import DEEP
from tests.system.workloads import (
    WORKLOADS,
    closing,
    committing,
    committing_late,
    committing_over_segments,
    compacting,
    first_states,
    line,
    looking_up,
    moving_once,
    one_by_one,
    retaining_once,
    rolling,
    settings_change,
    states_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from logfs.format.files.commit_file import CommitLog, Pending, StagedFile
    from logfs.log.append.staged_batches import StagedAppend
    from logfs.log.disk.disk import File
    from logfs.log.segment.batch_iterator import Damage
    from logfs.store.staged_commits import Committed

pytestmark = pytest.mark.usefixtures("quiet_log", "small_key_indexes", "buckets")

STATES = int(os.environ.get("LOGFS_CRASH_STATES", "240"))
SEED = seed_of("LOGFS_CRASH_SEED")


def campaign(states: Iterable[State]) -> Counter[str]:
    """Check each state against the promises, and return what was seen, counted."""
    total: Counter[str] = Counter()
    for state in states:
        total += crashdisk.verify_state(state)
    return total


@pytest.mark.drawn(5)
@pytest.mark.parametrize("name", WORKLOADS)
def test_a_power_cut_at_any_step_keeps_what_was_flushed(
    name: str, record_property: Callable[[str, object], None]
) -> None:
    """After a power cut flushed records are there, the others are a prefix or reported damage, and none is invented.

    Before, during and after the swap of a compaction, the same records are there (Kafka's tests of compaction).
    """
    states = states_of(WORKLOADS[name])
    chosen = crashdisk.sample(states, -(-STATES // len(WORKLOADS)), SEED)
    total = campaign(chosen)
    print(f"{name}: seed {SEED}, {len(states)} states, {dict(total)}")
    record_property("crash states", str(dict(total)))
    assert total["states"] == len(chosen)


def test_a_partition_that_is_created_again_has_no_commits_of_the_one_before() -> None:
    """After any power cut: a group must not pass over the records of a new partition of the same name."""
    with crashdisk.scratch() as root:
        disk = RecordingDisk(root)
        try:
            work = Workload(disk)
            # The files of the indexes of `__consumer_offsets` have 10 MB otherwise.
            work.store.settings.set_broker("log.index.size.max.bytes", "4096")
            work.create("a-0")
            for number in range(4):
                work.append("a-0", line(number))
            work.flush("a-0")
            work.store.groups.commit("g", "a-0", 4)
            work.store.groups.log_of("g").flush()
            work.store.delete("a-0")
            deleted = len(disk.ops)
            work.store.create("a-0")
            work.store["a-0"].append([b"new"])
            work.store["a-0"].flush()
            work.store.groups.commit("other", "a-0", 1)
            assert not work.failures
            states = crashdisk.crash_states(disk, since=deleted)
        finally:
            disk.close()
    seen = Counter[bool]()
    for state in crashdisk.sample(states, 400 if DEEP else 50, SEED):
        with crashdisk.scratch() as root:
            crashdisk.write_image(root, state.image)
            with Store(crashdisk.log_dirs(root)) as store:
                if "a-0" in store:
                    assert "g" not in store.groups.of("a-0")
                seen["a-0" in store] += 1
    assert seen[True]


@pytest.mark.drawn(1)
@pytest.mark.parametrize("what", crashdisk.AFTER_A_CRASH)
@pytest.mark.xdist_group("second cut")
def test_a_second_power_cut_keeps_what_was_flushed(what: str) -> None:
    """Recovery and the actions after it are safe against a power cut at any step and after the last one."""
    wanted = STATES // 10
    bases = first_states(max(wanted // 300, 1), SEED)
    total: Counter[str] = Counter()
    for state in bases:
        states = crashdisk.second_states(state, crashdisk.AFTER_A_CRASH[what])
        last = max(state.after for state in states)
        ends = [state for state in states if state.after == last]
        share = -(-wanted // len(bases))
        chosen = crashdisk.sample(states, -(-share // 2), SEED)
        total += campaign(chosen + crashdisk.sample(ends, share // 2, SEED))
        total["first crashes"] += 1
        total["states in all"] += len(states)
    print(f"second cut, {what}: seed {SEED}, {dict(total)}")
    assert total["states"] >= wanted // 2


# The tests must detect a broken engine. Each of these functions breaks the engine in one place.


def _flush_without_fsync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Segment, "flush", lambda self, *, indexes: None)


def _flush_without_directory(patch: pytest.MonkeyPatch) -> None:
    sync = Flusher._sync
    patch.setattr(Flusher, "_sync", lambda self, *segments: sync(self, *segments[:-1], False))


def _rename_without_directory(patch: pytest.MonkeyPatch) -> None:
    def replace_file(self: Disk, path: Path, data: bytes) -> None:
        self.put_file(path, data, sync=True)

    patch.setattr(Disk, "replace_file", replace_file)


def _replace_without_fsync(patch: pytest.MonkeyPatch) -> None:
    def replace_file(self: Disk, path: Path, data: bytes) -> None:
        self.put_file(path, data, sync=False)
        self.sync_directory(path.parent)

    patch.setattr(Disk, "replace_file", replace_file)


def _replace_in_place(patch: pytest.MonkeyPatch) -> None:
    def replace_file(self: Disk, path: Path, data: bytes) -> None:
        file = self.open(path, write=True, create=True)
        self.truncate(file, 0)
        self.write(file, 0, data)
        self.sync(file)
        file.close()
        self.sync_directory(path.parent)

    patch.setattr(Disk, "replace_file", replace_file)


def _no_crc(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Batch, "is_valid", property(lambda self: True))


def _cut_too_much(patch: pytest.MonkeyPatch) -> None:
    cut = recovery._LogLoader._cut

    def too_many(self: recovery._LogLoader, segment: Segment, damage: Damage) -> None:
        cut(self, segment, damage._replace(start=max(damage.start - 8, 0)))

    patch.setattr(recovery._LogLoader, "_cut", too_many)


def _clean_marker_without_fsync(patch: pytest.MonkeyPatch) -> None:
    def close(self: Partition) -> bool:
        for segment in self.segments:
            segment.close()
        return True

    patch.setattr(Partition, "close", close)


def _flush_the_active_segment_alone(patch: pytest.MonkeyPatch) -> None:
    sync = Flusher._sync
    patch.setattr(Flusher, "_sync", lambda self, segments, *rest: sync(self, segments[-1:], *rest))


def _stale_index_kept(patch: pytest.MonkeyPatch) -> None:
    """Recovery adds its entries to those that the index held before."""
    collect = SparseIndex.collect
    patch.setattr(
        SparseIndex, "collect", lambda self, *limit, **_: collect(self, *limit, keep=True)
    )


def _swap_without_directory(patch: pytest.MonkeyPatch) -> None:
    """The old segment is removed while the names of the new one may still be lost."""
    replace = Partition.replace

    def careless(self: Partition, *arguments: object) -> None:
        sync, self.disk.sync_directory = self.disk.sync_directory, lambda path: None  # type: ignore[method-assign]
        try:
            replace(self, *arguments)  # type: ignore[arg-type]
        finally:
            self.disk.sync_directory = sync  # type: ignore[method-assign]

    patch.setattr(Partition, "replace", careless)


def _rebuilt_without_fsync(patch: pytest.MonkeyPatch) -> None:
    """The clean marker covers rebuilt indexes that were never synced, and no read rebuilds them.

    Each of the two faults is harmless without the other: a wrong index is rebuilt when it is used.
    """
    patch.setattr(SparseIndex, "flush", lambda self: None)
    patch.setattr(Segment, "_repaired", lambda self, number: None)


def _cleaned_without_fsync(patch: pytest.MonkeyPatch) -> None:
    """A cleaned segment replaces the old one before it is on disk."""
    flush = Segment.flush

    def careless(self: Segment, *, indexes: bool) -> None:
        if self.path.suffix != ".cleaned":
            flush(self, indexes=indexes)

    patch.setattr(Segment, "flush", careless)


def _dropped_without_checkpoint(patch: pytest.MonkeyPatch) -> None:
    """Segments are renamed for deletion, in any order, while the log start offset is still before them."""
    retain = Store.retain

    def careless(self: Store) -> int:
        self.checkpoints.write = lambda: None  # type: ignore[method-assign]
        try:
            return retain(self)
        finally:
            del self.checkpoints.write

    patch.setattr(Store, "retain", careless)


def _tip_before_write(patch: pytest.MonkeyPatch) -> None:
    """A flush advances the recovery point without a sync, so readable records are treated as durable."""

    def flush(self: Partition) -> int:
        end_offset = self.log_end_offset
        self.flusher.recovery_point = end_offset
        return end_offset

    patch.setattr(Partition, "flush", flush)


def _staged_without_fsync(patch: pytest.MonkeyPatch) -> None:
    """A task reports a staged file that is not on disk."""

    def close(self: StagedWriter) -> StagedFile:
        sync, self._disk.sync = self._disk.sync, lambda file: None  # type: ignore[method-assign]
        try:
            return closing_it(self)
        finally:
            self._disk.sync = sync  # type: ignore[method-assign]

    closing_it = StagedWriter.close
    patch.setattr(StagedWriter, "close", close)


def _commit_undecided(patch: pytest.MonkeyPatch) -> None:
    """The logs are written, but no commit file records that the commit must be finished."""

    def careless(self: Commits, home: Path, log: CommitLog) -> None:
        if log.pending is None:
            write(self, home, log)
        else:
            self._known[home] = log

    write = Commits._write
    patch.setattr(Commits, "_write", careless)


def _commit_noted_before_it_is_durable(patch: pytest.MonkeyPatch) -> None:
    def land(
        self: Commits, home: Path, decided: Pending, staged_appends: Sequence[StagedAppend]
    ) -> None:
        for staged_append in staged_appends:
            staged_append.write()
            staged_append.publish(self._registry.clock())

    patch.setattr(Commits, "_land", land)


def _commit_not_rolled_forward(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Commits, "finish", lambda self: None)


def _commit_without_taking_stock(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Commits, "reconcile", lambda self, *_: False)


def _commit_without_a_look_back(patch: pytest.MonkeyPatch) -> None:
    """A commit that was made before is made again when it is sent again."""

    def careless(
        self: Commits, writer: str, sequence: int, staged: Iterable[StagedFile]
    ) -> Committed:
        self.finish()
        return self._commit(writer, sequence, [*staged])

    patch.setattr(Commits, "commit", careless)


def _commit_that_keeps_its_place(patch: pytest.MonkeyPatch) -> None:
    """A part of a commit whose place retention has passed counts as done."""
    patch.setattr(Commits, "clear_place", lambda self, name: None)


def _stock_that_cuts_too_late(patch: pytest.MonkeyPatch) -> None:
    """Half of a commit stays in the log, as if another writer had appended it."""
    patch.setattr(staged_batches._ExistingBatches, "cut", lambda self, part: None)


def _any_key_map_is_believed(patch: pytest.MonkeyPatch) -> None:
    """A key index file is accepted although the records that it covers were truncated."""
    patch.setattr(key_index.KeyIndex, "_is_anchored", lambda self, anchor: True)


def _swap_of_directories_without_fsync(patch: pytest.MonkeyPatch) -> None:
    """The copy gets its name while the original may still have it."""
    swap = Mover._swap

    def careless(self: Mover, *arguments: Any) -> None:
        RecordingDisk.sync_directory = lambda self, path: None  # type: ignore[method-assign]
        try:
            swap(self, *arguments)
        finally:
            RecordingDisk.sync_directory = sync  # type: ignore[method-assign]

    sync = RecordingDisk.sync_directory
    patch.setattr(Mover, "_swap", careless)


def _copied_without_fsync(patch: pytest.MonkeyPatch) -> None:
    """The original is removed while the copy is only in the page cache."""
    sync = RecordingDisk.sync

    def careless(self: RecordingDisk, file: File) -> None:
        if not file.path.parent.name.endswith("-future"):
            sync(self, file)

    patch.setattr(RecordingDisk, "sync", careless)


MUTANTS = (
    (_flush_without_fsync, one_by_one),
    (_flush_without_directory, rolling),
    (_rename_without_directory, settings_change),
    (_replace_without_fsync, settings_change),
    (_replace_in_place, settings_change),
    (_no_crc, one_by_one),
    (_cut_too_much, one_by_one),
    (_clean_marker_without_fsync, closing),
    (_flush_the_active_segment_alone, rolling),
    (_stale_index_kept, rolling),
    (_tip_before_write, one_by_one),
    (_swap_without_directory, compacting),
    (_cleaned_without_fsync, compacting),
    (_staged_without_fsync, committing),
    (_replace_without_fsync, committing),
    (_commit_undecided, committing),
    (_commit_noted_before_it_is_durable, committing),
    (_commit_not_rolled_forward, committing),
    (_commit_without_taking_stock, committing),
    (_commit_without_a_look_back, committing),
    (_stock_that_cuts_too_late, committing_over_segments),
    (_commit_that_keeps_its_place, committing_late),
    (_dropped_without_checkpoint, retaining_once),
    (_any_key_map_is_believed, looking_up),
    (_swap_of_directories_without_fsync, moving_once),
    (_copied_without_fsync, moving_once),
)


@pytest.mark.drawn(6)
@pytest.mark.parametrize(("mutate", "workload"), MUTANTS, ids=[m.__name__ for m, _ in MUTANTS])
def test_the_enumerator_catches_a_broken_engine(
    mutate: Callable[[pytest.MonkeyPatch], None],
    workload: Callable[[Workload], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each seeded fault of the engine makes a campaign of some hundred states fail."""
    mutate(monkeypatch)
    with pytest.raises((AssertionError, ValueError)):
        campaign(crashdisk.sample(states_of(workload), 2000, seed=3))


def test_a_second_power_cut_catches_a_broken_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second crash shows a fault that one crash alone does not show."""
    states = crashdisk.sample(states_of(rolling), 12, seed=37)
    _rebuilt_without_fsync(monkeypatch)
    action = crashdisk.AFTER_A_CRASH["clean close"]
    second = (
        s for state in states for s in crashdisk.sample(crashdisk.second_states(state, action), 60)
    )
    with pytest.raises((AssertionError, ValueError)):
        campaign(second)
