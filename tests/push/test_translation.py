"""What a push by translation sends: each committed record once, also if the number of partitions changes between."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from logfs.format.batches.record import Record
from logfs.push.translation import Translation
from logfs.push.translation_map import TranslationMap

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from logfs.store.store import Store

TOPIC, ID = "orders", "8NbM3dZBRPmN3L0yUxq5Aw"


def push(store: Store, path: Path, ends: Mapping[int, int]) -> dict[int, int]:
    """Send what is new to a cluster whose logs end at `ends`, and return where they end then."""
    offsets = TranslationMap(path, "A")
    try:
        offsets.keep_sent(TOPIC, ends)
        offsets.begin(TOPIC, ID)
        found = dict(ends)
        for some in Translation(store.topic(TOPIC), ends, offsets).batches():
            for batch in some:
                assert batch.offset == found[batch.partition]
                found[batch.partition] += batch.records
        return found
    finally:
        offsets.close()


def fill(store: Store, name: str, count: int) -> None:
    """Append records with different keys, and some without a key."""
    partition = store[name] if name in store else store.create(name)
    partition.append([Record(b"v", b"%d" % n if n % 3 else None) for n in range(count)])


@pytest.mark.parametrize("counts", [(2, 3, 2), (3, 2, 3), (1, 2, 2), (2, 2, 1)])
def test_nothing_is_sent_twice_if_the_number_of_partitions_changes(
    store: Store, tmp_path: Path, counts: tuple[int, ...]
) -> None:
    """Each push goes to a cluster that has `counts` partitions then, and has a partition more here than the last."""
    ends: dict[int, int] = {}
    for number, count in enumerate(counts):
        fill(store, f"{TOPIC}-{number}", 10 * (number + 1))
        ends |= {each: ends.get(each, 0) for each in range(max(count, len(ends)))}
        before = sum(ends.values())
        ends = push(store, tmp_path / "map", ends)
        assert sum(ends.values()) == before + 10 * (number + 1)
        assert push(store, tmp_path / "map", ends) == ends
    lines = (tmp_path / "map").read_text().splitlines()
    rows = [line.split(",") for line in lines[2:] if line[0] != "#"]
    for partition in range(len(counts)):
        runs = sorted((int(row[2]), int(row[3])) for row in rows if row[1] == str(partition))
        assert all(offset + records == later for (offset, records), (later, _) in pairwise(runs))
        assert sum(records for _, records in runs) == 10 * (partition + 1)
