"""Leader epochs (kafka-storage 10.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from logfs.errors import Corrupt, NotWritable
from logfs.format.base import names
from logfs.log.disk.disk import Disk, ReadOnlyDisk
from logfs.log.state.leader_epochs import LeaderEpochs

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def epochs(tmp_path: Path) -> LeaderEpochs:
    return LeaderEpochs(Disk(), tmp_path)


def filled(epochs: LeaderEpochs, *entries: tuple[int, int]) -> LeaderEpochs:
    for epoch, offset in entries:
        epochs.assign(epoch, offset)
    return epochs


def test_a_new_partition_has_an_empty_file(epochs: LeaderEpochs, tmp_path: Path) -> None:
    """A new partition has a zero-length leader-epoch-checkpoint (kafka-storage 1.1)."""
    assert (tmp_path / names.LEADER_EPOCHS).read_bytes() == b""
    assert epochs.entries == []
    assert epochs.latest == -1


def test_an_assignment_is_written_at_once(epochs: LeaderEpochs, tmp_path: Path) -> None:
    """Each change is written at once, in Kafka's format, and can be read back (kafka-storage 1.4)."""
    filled(epochs, (0, 0), (5, 1234))
    assert (tmp_path / names.LEADER_EPOCHS).read_bytes() == b"0\n2\n0 0\n5 1234\n"
    assert LeaderEpochs(Disk(), tmp_path).entries == [(0, 0), (5, 1234)]


def test_calls_that_change_nothing_write_no_file(epochs: LeaderEpochs, tmp_path: Path) -> None:
    """The latest epoch at a higher offset makes no new entry (kafka-storage 10.1)."""
    filled(epochs, (3, 10))
    (tmp_path / names.LEADER_EPOCHS).unlink()
    epochs.assign(3, 10)
    epochs.assign(3, 500)
    epochs.truncate_from_end(11)
    epochs.truncate_from_start(10)
    assert not (tmp_path / names.LEADER_EPOCHS).exists()
    assert epochs.entries == [(3, 10)]


@pytest.mark.parametrize(
    ("entries", "left"),
    [
        ([(1, 5), (0, 6)], [(0, 6)]),
        ([(2, 6), (1, 10)], [(1, 10)]),
        ([(1, 5), (2, 5)], [(2, 5)]),
        ([(1, 5), (1, 3)], [(1, 3)]),
        ([(0, 0), (1, 10), (2, 20), (1, 15)], [(0, 0), (1, 15)]),
        ([(0, 0), (1, 10), (2, 20), (3, 10)], [(0, 0), (3, 10)]),
        ([(0, 0), (4, 10), (9, 20)], [(0, 0), (4, 10), (9, 20)]),
    ],
)
def test_epochs_and_starts_only_increase(epochs: LeaderEpochs, entries, left) -> None:
    """An assignment removes the entries that it contradicts (Kafka's tests of leader epochs)."""
    assert filled(epochs, *entries).entries == left


def test_the_epoch_of_an_offset(epochs: LeaderEpochs) -> None:
    """An offset has the last epoch that starts at or before it, and -1 before all epochs (kafka-storage 10.1)."""
    filled(epochs, (2, 5), (4, 10))
    assert [epochs.epoch_for(offset) for offset in (0, 4, 5, 9, 10, 99)] == [-1, -1, 2, 2, 4, 4]


@pytest.mark.parametrize(
    ("offset", "left"),
    [(0, []), (5, []), (6, [(2, 5)]), (10, [(2, 5)]), (11, [(2, 5), (4, 10)]), (99, 3)],
)
def test_truncation_from_the_end(epochs: LeaderEpochs, offset: int, left) -> None:
    """Entries that start at or beyond the offset are dropped (kafka-storage 10.1)."""
    everything = [(2, 5), (4, 10), (7, 20)]
    filled(epochs, *everything).truncate_from_end(offset)
    assert epochs.entries == (everything if left == 3 else left)


@pytest.mark.parametrize(
    ("offset", "left"),
    [
        (4, [(2, 5), (4, 10), (7, 20)]),
        (5, [(2, 5), (4, 10), (7, 20)]),
        (7, [(2, 7), (4, 10), (7, 20)]),
        (10, [(4, 10), (7, 20)]),
        (15, [(4, 15), (7, 20)]),
        (20, [(7, 20)]),
        (99, [(7, 99)]),
    ],
)
def test_truncation_from_the_start_keeps_the_covering_epoch(
    epochs: LeaderEpochs, offset: int, left
) -> None:
    """The epoch that covers the new log start begins there (Kafka's tests of leader epochs)."""
    filled(epochs, (2, 5), (4, 10), (7, 20)).truncate_from_start(offset)
    assert epochs.entries == left


@pytest.mark.parametrize("data", [b"1\n0\n", b"0\n2\n0 0\n", b"0\n1\nx 0\n", b"\xff", b"0\n1\n0\n"])
def test_a_damaged_file_is_not_tolerated(tmp_path: Path, data: bytes) -> None:
    """A corrupt epoch file prevents the partition from loading, and the error names it (kafka-storage 1.4)."""
    (tmp_path / names.LEADER_EPOCHS).write_bytes(data)
    with pytest.raises(Corrupt, match=names.LEADER_EPOCHS):
        LeaderEpochs(Disk(), tmp_path)


def test_a_read_only_store_makes_no_file(tmp_path: Path) -> None:
    """Without a file a read-only store begins with no epochs, and it writes no file."""
    epochs = LeaderEpochs(ReadOnlyDisk(), tmp_path)
    assert epochs.entries == []
    epochs.assign(1, 2)
    assert epochs.entries == [(1, 2)]
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(NotWritable):
        ReadOnlyDisk().replace_file(tmp_path / names.LEADER_EPOCHS, b"")
