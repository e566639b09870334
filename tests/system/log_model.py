"""What a log must have, as a plain list of records; what readers are asked; and how often each pair was met."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from logfs.format.text.rendering import View
from logfs.log.read.read_committed import Isolation

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Sequence

    from logfs.log.read.reader import Reader

UNCOMMITTED, COMMITTED = Isolation.READ_UNCOMMITTED, Isolation.READ_COMMITTED
PRODUCERS = (1, 2, 3)
KEYS = 12


class Sent(NamedTuple):
    """A record of a log. `producer` is the id of the producer whose transaction it belongs to, or 0."""

    offset: int
    key: bytes
    value: bytes | None
    timestamp: int
    producer: int


class Model:
    """What a log must have: its records, the markers of its transactions, and its two ends."""

    def __init__(self) -> None:
        self.start = self.end = 0
        # The records by offset, in order.
        self.records: dict[int, Sent] = {}
        # The markers in order: producer id, offset, whether it commits.
        self.markers: list[tuple[int, int, bool]] = []
        # The offset below which compaction may have dropped records.
        self.cleaned = 0
        # The highest offset that compaction has dropped.
        self.dropped = -1
        # How often records left the log in the middle or at its end, so that open texts may end.
        self.breaks = 0

    def transactions(self) -> tuple[set[int], int]:
        """Return the offsets of aborted records, and the last stable offset."""
        aborted: set[int] = set()
        own: dict[int, list[int]] = {producer: [] for producer in (0, *PRODUCERS)}
        for offset, each in self.records.items():
            own[each.producer].append(offset)
        # How many records of a producer lie before its last marker.
        ended = dict.fromkeys(PRODUCERS, 0)
        for producer, marker, commit in self.markers:
            first, ended[producer] = ended[producer], bisect_left(own[producer], marker)
            if not commit:
                aborted.update(own[producer][first : ended[producer]])
        open_from = [own[each][ended[each]] for each in PRODUCERS if ended[each] < len(own[each])]
        return aborted, max(min([self.end, *open_from]), self.start)

    def begins_within_transactions(self) -> bool:
        """Whether records of an open transaction lie below the log start: an opening forgets these."""
        start, self.start = self.start, 0
        unstable = self.transactions()[1]
        self.start = start
        return unstable < start

    def opens_compacted_transaction(self, end: int) -> bool:
        """Whether a cut at `end` opens a transaction again of which compaction may have removed the first records."""
        before = dict.fromkeys(PRODUCERS, -1)
        for producer, marker, _ in self.markers:
            if marker >= end and before[producer] + 1 < self.cleaned:
                return True
            before[producer] = marker
        return False

    def shown(self, isolation: Isolation) -> list[Sent]:
        """Return the records that readers of an isolation level see, in order."""
        found = [each for each in self.records.values() if each.offset >= self.start]
        if isolation is Isolation.READ_UNCOMMITTED:
            return found
        aborted, stable = self.transactions()
        return [each for each in found if each.offset < stable and each.offset not in aborted]

    def text(self, isolation: Isolation) -> bytes:
        """Return the lines of the records that readers of an isolation level see."""
        return lines(self.shown(isolation))

    def cut(self, end: int) -> None:
        """Drop everything from an offset on."""
        self.breaks += 1
        self.end, self.start = end, min(self.start, end)
        self.cleaned = min(self.cleaned, end)
        self.records = {offset: each for offset, each in self.records.items() if offset < end}
        self.markers = [marker for marker in self.markers if marker[1] < end]

    def compact(self, left: set[int], bound: int, cleaned: int) -> None:
        """Drop the records that compaction has removed, and keep those with the offsets `left`.

        It has removed none from `bound` on. Below the cleaner offset `cleaned`, it has left only the newest records.
        """
        aborted, stable = self.transactions()
        self.cleaned = max(self.cleaned, min(bound, stable))
        newest, newest_cleaned = (
            {
                each.key: each
                for each in self.records.values()
                if each.offset < limit and each.offset not in aborted
            }
            for limit in (min(stable, bound), cleaned)
        )
        old = {offset for offset in self.records if offset < cleaned}
        old -= {each.offset for each in newest_cleaned.values()}
        assert not old & left, old & left
        kept = {offset for offset in self.records if offset >= bound or offset >= stable}
        # A null value may be removed once it is old enough.
        kept |= {each.offset for each in newest.values() if each.value is not None}
        self.dropped = max([self.dropped, *(self.records.keys() - left)])
        wanted = {offset for offset in kept if offset >= self.start}
        assert wanted <= left <= set(self.records), (wanted - left, left - set(self.records))
        self.records = {offset: each for offset, each in self.records.items() if offset in left}


def lines(records: Iterable[Sent]) -> bytes:
    """Return the text of records, a line each."""
    return b"".join((each.value or b"") + b"\n" for each in records)


def merged(models: Sequence[Model], isolation: Isolation) -> list[Sent]:
    """Return the records of several logs in the order of (greatest timestamp so far, log, offset)."""
    rows = []
    for number, model in enumerate(models):
        reached = -1
        for each in model.shown(isolation):
            reached = max(reached, each.timestamp)
            rows.append((reached, number, each))
    return [each for _, _, each in sorted(rows)]


def check_reader(reader: Reader, model: Model, isolation: Isolation, chance: random.Random) -> None:
    """Ask a reader one of several questions, and compare the answer with the model."""
    shown = model.shown(isolation)
    kind = chance.randrange(7)
    if kind == 0:
        assert [(r.offset, r.value) for r in reader.read()] == [(r.offset, r.value) for r in shown]
    elif kind == 1:
        first = chance.randrange(model.start, model.end + 1)
        last = chance.randrange(first, model.end + 1)
        found = reader.columns(first, last)
        expected = [each.offset for each in shown if first <= each.offset < last]
        assert found.offsets.tolist() == expected
    elif kind == 2:
        text = reader.text(View.LINES)
        assert (text.size, text.read(0, 1 << 20)) == (len(lines(shown)), lines(shown))
    elif kind == 3 and model.end > model.start:
        known = {each.offset: each.value for each in shown}
        offset = chance.randrange(model.start, model.end)
        if offset < reader.log_end_offset:
            record = reader.record(offset)
            assert (record.value if record else None) == known.get(offset)
    elif kind == 4:
        times = [each.timestamp for each in shown] or [0]
        time = max(chance.choice(times) + chance.randrange(-1, 2), 0)
        at = reader.offset_for_time(time, shown=True)
        expected = [each.offset for each in shown if each.timestamp >= time]
        assert (at.offset if at else None) == (expected[0] if expected else None)
    elif kind == 5:
        count = chance.randrange(6)
        start = reader.offset_of_last(count)
        last_ones = shown[-count:] if count else []
        assert [each for each in shown if each.offset >= start] == last_ones
    else:
        newest = {each.key: each.value for each in shown}
        key = b"k%d" % chance.randrange(KEYS)
        record = reader.newest(key)
        assert (record.value if record else None) == newest.get(key)


class Pairs:
    """How often a change was followed by another one, and how often an observer looked after a change."""

    def __init__(self, changes: Iterable[str], observers: Iterable[str]) -> None:
        self.changes, self.observers = [*changes], [*observers]
        self.followed: Counter[tuple[str, str]] = Counter()
        self.looked: Counter[tuple[str, str]] = Counter()

    def print(self) -> None:
        """Print the two tables, and the pairs that were never met."""
        for title, counted, columns in (
            ("a change after a change", self.followed, self.changes),
            ("an observer after a change", self.looked, self.observers),
        ):
            every = [(row, column) for row in self.changes for column in columns]
            never = [f"{row}/{column}" for row, column in every if not counted[row, column]]
            met = f"{len(every) - len(never)} pairs of {len(every)}"
            print(f"\n{title}: {sum(counted.values())} times, {met}")
            print(" " * 15, *(f"{column[:7]:>7}" for column in columns))
            for row in self.changes:
                print(f"{row:>15}", *(f"{counted[row, column]:7}" for column in columns))
            print("never:", ", ".join(never) or "none")
