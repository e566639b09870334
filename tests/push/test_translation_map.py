"""The map of offsets: what it keeps over crashes, and the offsets of groups that it translates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logfs.errors import ClusterError
from logfs.push.translation_map import TranslationMap, runs_of

if TYPE_CHECKING:
    from pathlib import Path

TOPIC, ID = "orders", "8NbM3dZBRPmN3L0yUxq5Aw"
HEAD = "# cluster A\ntopic,partition,offset,records,to_partition,to_offset,check\n"

# For each record in the order of its arrival: the partition here, how many offsets are left out before it, and the
# partition there.
records = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 2)), max_size=60)
sizes = st.lists(st.integers(1, 9), min_size=1)


def opened(path: Path) -> TranslationMap:
    """Return a map that no other push keeps from being used."""
    offsets = TranslationMap(path, "A")
    offsets.close()
    return offsets


def end_of(offsets: TranslationMap, here: int, there: int) -> int:
    """Return the offset here up to which the map has records that went to a partition there."""
    runs = offsets.sent(TOPIC, here).get(there)
    return runs[-1].end if runs else 0


def placed(moves: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Return (partition here, offset here, partition there) of records."""
    ends = [0, 0, 0]
    found = []
    for here, skipped, there in moves:
        offset = ends[here] + skipped
        ends[here] = offset + 1
        found.append((here, offset, there))
    return found


def fill(
    path: Path, moves: list[tuple[int, int, int]], batches: list[int]
) -> dict[tuple[int, int], tuple[int, int]]:
    """Write a map as a translation does, in batches of some sizes; return (there, offset there) by place here."""
    offsets = opened(path)
    offsets.begin(TOPIC, ID)
    ends = [0, 0, 0]
    found: dict[tuple[int, int], tuple[int, int]] = {}
    rows = placed(moves)
    turn = 0
    while rows:
        size = batches[turn % len(batches)]
        turn += 1
        some, rows = rows[:size], rows[size:]
        for there in {row[2] for row in some}:
            mine = [row[:2] for row in some if row[2] == there]
            offsets.add(runs_of(TOPIC, mine, there, ends[there]))
            for place in mine:
                found[place] = there, ends[there]
                ends[there] += 1
    return found


def ends_of(found: dict[tuple[int, int], tuple[int, int]]) -> dict[int, int]:
    """Return the log ends in the cluster if all of these records are there."""
    return {n: sum(there == n for there, _ in found.values()) for n in range(3)}


@given(
    moves=records,
    batches=sizes,
    committed=st.lists(st.none() | st.integers(0, 80), min_size=3, max_size=3),
)
def test_groups_miss_nothing_and_go_on_as_far_as_they_can(
    tmp_path_factory: pytest.TempPathFactory,
    moves: list[tuple[int, int, int]],
    batches: list[int],
    committed: list[int | None],
) -> None:
    """In each partition there a group begins with the first record that it has not read, or at the end.

    A local partition without a committed offset is unread. A partition there gets an offset only if the group has
    committed one for a local partition with records in it.
    """
    path = tmp_path_factory.mktemp("map") / "map"
    found = fill(path, moves, batches)
    ends = ends_of(found)
    offsets = opened(path)
    known = {number: offset for number, offset in enumerate(committed) if offset is not None}
    there = offsets.translated(TOPIC, known, ends)
    for number in there:
        unread = [
            offset
            for (here, at), (n, offset) in found.items()
            if n == number and at >= known.get(here, 0)
        ]
        assert there[number] == min(unread, default=ends[number])
    assert set(there) == {number for (here, _), (number, _) in found.items() if here in known}


@given(moves=records.filter(bool), batches=sizes, data=st.data())
def test_a_map_that_was_cut_off_goes_on(
    tmp_path_factory: pytest.TempPathFactory,
    moves: list[tuple[int, int, int]],
    batches: list[int],
    data: st.DataObject,
) -> None:
    """Whatever a crash leaves of the last line: the map has the records that are in the cluster, and no others."""
    path = tmp_path_factory.mktemp("map") / "map"
    found = fill(path, moves, batches)
    whole = path.read_bytes()
    # The first two lines are there at once, as the file is.
    cut = data.draw(st.integers(len(HEAD), len(whole)))
    path.write_bytes(whole[:cut])
    lines = [line for line in whole[:cut].decode().split("\n")[2:-1] if line[0] != "#"]
    ends = {0: 0, 1: 0, 2: 0}
    for line in lines:
        _, _, _, count, there, to_offset, _ = line.split(",")
        ends[int(there)] = int(to_offset) + int(count)
    # The records of the last line in each partition need not have arrived.
    arrived = {
        n: end if data.draw(st.booleans()) else last_start(lines, n) for n, end in ends.items()
    }
    offsets = opened(path)
    for _ in range(2):
        # The second time there is nothing to remove.
        offsets.keep_sent(TOPIC, arrived)
    for here in range(3):
        for there in range(3):
            sent = [
                at
                for (p, at), (n, to) in found.items()
                if (p, n) == (here, there) and to < arrived[n]
            ]
            assert end_of(offsets, here, there) == max(sent, default=-1) + 1
    offsets.begin(TOPIC, ID)
    offsets.add(runs_of(TOPIC, [(0, 1000)], 0, arrived[0]))
    again = opened(path)
    assert end_of(again, 0, 0) == 1001


def last_start(lines: list[str], number: int) -> int:
    """Return where the last run of a partition there begins; 0 without one."""
    starts = [line.split(",")[5] for line in lines if line.split(",")[4] == str(number)]
    return int(starts[-1]) if starts else 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\0\1\2",
        "# cluster A",
        "# cluster A\n",
        HEAD.replace("A", "B"),
        "orders,0,0,1,0,0\n",
        HEAD.replace(",check", ""),
        *(
            f"{HEAD}# topic orders {ID}\n{row}\n"
            for row in (
                "orders,0,0,1,0,ffffffff",
                "orders,0,x,1,0,0,ffffffff",
                "orders,0,-1,1,0,0,ffffffff",
                "orders,0,0,1,0,0,ffffffff",
                "orders,0,0,1,0,0",
                "../up,0,0,1,0,0,ffffffff",
                f"orders,0,{'9' * 22},1,0,0,ffffffff",
            )
        ),
        "\0\n" * 9,
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    """A map of another cluster, or another file, is an error that names it, and it is not changed."""
    path = tmp_path / "map"
    path.write_text(text)
    with pytest.raises(ClusterError, match="map: "):
        opened(path)
    assert path.read_text() == text


@given(moves=records.filter(bool), batches=sizes, data=st.data())
def test_a_map_that_was_changed_is_refused(
    tmp_path_factory: pytest.TempPathFactory,
    moves: list[tuple[int, int, int]],
    batches: list[int],
    data: st.DataObject,
) -> None:
    """Lines are lost, doubled, moved or edited: the map is refused, unless it tells the same as before."""
    path = tmp_path_factory.mktemp("map") / "map"
    found = fill(path, moves, batches)
    ends = dict.fromkeys(range(3), 100)
    whole = path.read_bytes()
    if data.draw(st.booleans()):
        lines = whole.splitlines(keepends=True)
        at, to = (data.draw(st.integers(0, len(lines) - 1)) for _ in "ab")
        moved = lines.pop(at)
        if data.draw(st.booleans()):
            lines[to:to] = [moved] * data.draw(st.integers(1, 2))
        path.write_bytes(b"".join(lines))
    else:
        at = data.draw(st.integers(0, len(whole) - 1))
        changed = data.draw(st.sampled_from([b"", b"0", b"7", b",", b"\n", b"\r"]))
        path.write_bytes(whole[:at] + changed + whole[at + 1 :])
    try:
        offsets = opened(path)
        if TOPIC not in offsets:
            # Nothing is known of the topic, which has records in the cluster: the plan refuses it.
            return
        offsets.check_source(TOPIC, ID, ends)
        offsets.keep_sent(TOPIC, ends_of(found))
    except ClusterError:
        return
    if {there for there, end in ends_of(found).items() if end} - offsets.partitions_of(TOPIC):
        # Nothing is known of a partition that has records in the cluster: the plan refuses it, too.
        return
    for here in range(3):
        for there in range(3):
            sent = [at for (p, at), (n, _) in found.items() if (p, n) == (here, there)]
            assert end_of(offsets, here, there) == max(sent, default=-1) + 1


def test_the_map_of_another_log_is_refused(tmp_path: Path) -> None:
    """Another topic of the same name has another id; a log that ends before the runs do is not that of the map."""
    path = tmp_path / "map"
    fill(path, [(0, 0, 0)] * 9, [4])
    opened(path).check_source(TOPIC, ID, {0: 9})
    opened(path).check_source("payments", "another", {0: 0})
    with pytest.raises(ClusterError, match=f"another topic orders, with the id {ID}"):
        opened(path).check_source(TOPIC, "another", {0: 9})
    with pytest.raises(ClusterError, match="up to offset 9, but the local log ends at 8"):
        opened(path).check_source(TOPIC, ID, {0: 8})


def test_other_records_in_the_cluster_are_told(tmp_path: Path) -> None:
    """A log that ends elsewhere than by the map has other records, too."""
    offsets = opened(tmp_path / "map")
    offsets.begin(TOPIC, ID)
    offsets.add(runs_of(TOPIC, [(0, 0), (0, 1)], 0, 0))
    for end in (1, 3):
        with pytest.raises(ClusterError, match=f"ends at offset {end} in the cluster, but at"):
            opened(tmp_path / "map").keep_sent(TOPIC, {0: end})
    with pytest.raises(FileNotFoundError):
        opened(tmp_path / "nowhere/map")


def test_one_push_at_a_time_uses_a_map(tmp_path: Path) -> None:
    """The next one is refused until the first ends, and leaves the map as it is; nothing is left beside it."""
    path = tmp_path / "map"
    first = TranslationMap(path, "A")
    first.begin(TOPIC, ID)
    with pytest.raises(ClusterError, match="another push uses this map"):
        TranslationMap(path, "A")
    first.add(runs_of(TOPIC, [(0, 0)], 0, 0))
    first.close()
    assert end_of(opened(path), 0, 0) == 1
    assert [each.name for each in tmp_path.iterdir()] == ["map"]


@pytest.mark.parametrize("other", ["/dev/zero", "/dev/null", "/"])
def test_what_is_no_file_is_refused(tmp_path: Path, other: str) -> None:
    """A device without an end is not read, and nothing is made beside it."""
    (tmp_path / "map").symlink_to(other)
    with pytest.raises(ClusterError, match="is no map of offsets"):
        opened(tmp_path / "map")
    assert [each.name for each in tmp_path.iterdir()] == ["map"]
