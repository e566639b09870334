"""What is in the way of a push, as far as it is gaps: those of compaction, wherever they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from logfs.format.batches.record import Record
from logfs.push.exact_push import exact_batches, first_offset
from logfs.push.obstacles import find_obstacles
from logfs.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from logfs.log.read.reader import Reader

NAME = "orders-0"


@given(
    batches=st.lists(
        st.lists(st.sampled_from([b"a", b"b", b"c"]), min_size=1, max_size=3),
        min_size=1,
        max_size=8,
    ),
    tombstones=st.booleans(),
    start=st.integers(0, 8),
)
def test_offsets_that_are_missing_are_found(
    tmp_path_factory: pytest.TempPathFactory,
    batches: Sequence[Sequence[bytes]],
    tombstones: bool,
    start: int,
) -> None:
    """At the beginning, in between, at the end, in a batch: a log is pushed as it is if nothing is missing."""
    log_dir = tmp_path_factory.mktemp("log")
    with Store(log_dir) as store:
        partition = store.create(NAME)
        store.settings.set_topic("orders", "cleanup.policy", "compact,delete")
        store.settings.set_topic("orders", "delete.retention.ms", "0")
        for keys in batches:
            partition.append([Record(None if tombstones else b"v", key) for key in keys])
        store.delete_records(NAME, min(start, partition.log_end_offset))
        check(partition)
        store.compact(NAME, roll=True)
        check(partition)
        partition.append([Record(b"last", b"z")])
        check(partition)


def check(reader: Reader) -> None:
    """Compare what is found with the offsets that batches have."""
    found = list(reader.batches(reader.log_start_offset))
    begin = first_offset(reader)
    offsets = [offset for batch in found for offset in batch.offsets()]
    is_whole = offsets == list(range(begin, reader.log_end_offset))
    reasons = find_obstacles(reader, max(begin, reader.log_start_offset)).reasons
    assert (not reasons) == is_whole, (reasons, offsets, begin, reader.log_end_offset)
    if is_whole:
        sent = [out for (out,) in exact_batches(reader, begin, reader.log_end_offset)]
        assert [out.offset for out in sent] == [batch.header.base_offset for batch in found]
        assert sum(out.records for out in sent) == len(offsets)
