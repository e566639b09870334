"""Pairs of operations on one log, the one stopped at every point where another thread may run while the other runs.

A reader beside a change must see the log as it was before or as it is after. Two changes must leave what one of them
leaves after the other, in either order. `scripts/crash -k interleavings` stops at every point; the suite stops at
some, chosen by a seed.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from logfs.errors import LogfsError
from logfs.format.batches.record import Record
from logfs.format.text.rendering import View
from logfs.store.store import Store
from tests.support.batches import Producer
from tests.support.examples import seed_of
from tests.support.scheduler import Beside, Scheduler, WatchedDisk, WatchedReadOnlyDisk
from tests.support.stores import Clock, errors_of, set_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from logfs.log.append.partition import Partition

NAME = "orders-0"
# In the suite, one of so many points of a pair is tried; the seed chooses which.
STEP = 1 if "LOGFS_INTERLEAVINGS" in os.environ else 47
SEED = seed_of("LOGFS_INTERLEAVINGS_SEED")


class World(NamedTuple):
    """A store of two log directories with one log, whose topic is tiered, compacted and deleted by size."""

    store: Store
    clock: Clock
    log_dirs: list[Path]

    @property
    def log(self) -> Partition:
        return self.store[NAME]

    def send(self, producer_id: int, *keys: str) -> None:
        """Append a batch within the transaction of a producer."""
        producer = Producer(self.log, producer_id)
        known = self.log.producers[producer_id]
        producer.sequence = known.last_sequence + 1
        producer.send(*keys)

    def end(self, producer_id: int, *, commit: bool) -> None:
        self.log.end_transaction(producer_id, 0, commit=commit)

    def append(self, *keys: str) -> None:
        self.log.append([Record(f"plain {key}".encode(), key.encode()) for key in keys])

    def retain(self) -> None:
        """Drop the first segment."""
        self.store.delete_records(NAME, 5)
        self.store.retain([NAME])


CHANGES: dict[str, Callable[[World], object]] = {
    "append": lambda world: world.append("k", "l"),
    "send": lambda world: world.send(1, "a", "m"),
    "send-open": lambda world: world.send(2, "n"),
    "abort": lambda world: world.end(2, commit=False),
    "commit": lambda world: world.end(2, commit=True),
    "roll": lambda world: world.log.roll(world.clock()),
    "flush": lambda world: world.log.flush(),
    "truncate": lambda world: world.store.truncate(NAME, 8),
    "truncate-marker": lambda world: world.store.truncate(NAME, 4),
    "delete-records": lambda world: world.store.delete_records(NAME, 7),
    "retain": lambda world: world.retain(),
    "compact": lambda world: world.store.compact(NAME),
    "move": lambda world: world.store.move(NAME, world.log_dirs[1]),
    "upkeep": lambda world: world.store.upkeep(),
}


def records(reader: Any) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.value) for record in reader.read()]


def text(reader: Any) -> bytes:
    view = reader.text(View.LINES)
    data: bytes = view.read(0, 1 << 20)
    return data


# Changes that may be refused as a whole if another change comes between their first look at the log and their work: a
# round of compaction, and a producer that has read its last sequence number before a truncation.
OVERTAKEN = {
    "compact": "CleaningAborted",
    "send": "OutOfOrderSequence",
    "send-open": "OutOfOrderSequence",
}


def tail(reader: Any) -> object:
    """The last two records by the offset at which they begin, and whether a text from this offset on has any."""
    offset = reader.offset_of_last(2)
    return [(each.offset, each.value) for each in reader.read(offset)], reader.text(
        View.LINES, offset
    ).size > 0


# What readers ask, of a log or of its committed records. Each answer is that of one moment.
LOOKS: dict[str, Callable[[Any], object]] = {
    "read": records,
    "columns": lambda reader: reader.columns().offsets.tolist(),
    "text": text,
    "ends": lambda reader: (reader.state.log_start_offset, reader.state.log_end_offset),
    "newest": lambda reader: getattr(reader.newest(b"a"), "offset", None),
    "last": lambda reader: reader.offset_of_last(2),
    "tail": tail,
    "last-offset": lambda reader: reader.last_offset(),
    "time": lambda reader: reader.offset_for_time(0, shown=True),
}


def observe(reader: Any, look: Callable[[Any], object]) -> object:
    """Return what a reader sees, or the kind of error that it gets."""
    try:
        return look(reader)
    except LogfsError as error:
        return type(error).__name__


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two log directories, closed, with one log of three segments.

    0 a, 1 b (aborted), 2 abort, 3 c (committed), 4 commit | 5 a, 6 d (aborted), 7 e (open), 8 abort | 9 f, 10 g.
    """
    root = tmp_path_factory.mktemp("begun")
    log_dirs = [root / "one", root / "two"]
    clock = Clock()
    with Store(log_dirs, clock=clock) as store:
        set_topic(
            store,
            "orders",
            cleanup_policy="compact,delete",
            file_delete_delay_ms=0,
            retention_ms=-1,
            segment_bytes=2000,
            max_message_bytes=1000,
            index_interval_bytes=100,
        )
        store.create(NAME)
        world = World(store, clock, log_dirs)
        world.append("a")
        world.send(1, "b")
        world.end(1, commit=False)
        world.send(1, "c")
        world.end(1, commit=True)
        world.log.roll(clock())
        world.append("a")
        world.send(1, "d")
        world.send(2, "e")
        world.end(1, commit=False)
        world.log.roll(clock())
        world.append("f")
        world.append("g")
        store.checkpoints.set_cleaner_offset(world.log, 0)
        if world.log.directory.parent != log_dirs[0]:
            store.move(NAME, log_dirs[0])
    return log_dirs


@contextmanager
def opened(begun: list[Path], root: Path, scheduler: Scheduler | None = None) -> Iterator[World]:
    """A copy of the world, opened; the log directories are audited after it is closed."""
    log_dirs = [shutil.copytree(path, root / path.name) for path in begun]
    clock = Clock()
    disk = WatchedDisk()
    with Store(log_dirs, clock=clock, disk=disk) as store:
        disk.scheduler = scheduler
        try:
            yield World(store, clock, log_dirs)
        finally:
            disk.scheduler = None
    assert errors_of(log_dirs) == []
    shutil.rmtree(root)


def outcome(world: World) -> object:
    """Return the whole log as all observers see it."""
    log = world.log
    parts = [observe(reader, look) for reader in (log, log.committed) for look in LOOKS.values()]
    return parts, log.last_stable_offset


def attempt(world: World, change: Callable[[World], object]) -> str | None:
    """Make a change; return the kind of error that refuses it."""
    try:
        change(world)
    except LogfsError as error:
        return type(error).__name__
    return None


def is_left_out(number: int, *what: str, tried: int = 6) -> bool:
    """Whether readers do not look at a point: the suite tries one of `tried`."""
    return STEP > 1 and random.Random(f"{SEED} {number} {what}").randrange(tried) > 0


def look_at(log: Partition, look: str) -> list[object]:
    """Return what a reader of all records sees, and one of the committed records."""
    return [observe(each, LOOKS[look]) for each in (log, log.committed)]


# What a reader looks at. In the suite, two readers of each change share all looks and some of the points.
READERS = {look: [look] for look in LOOKS}
if STEP > 1:
    READERS = {"first": [*LOOKS][::2], "second": [*LOOKS][1::2]}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("change", CHANGES)
def test_a_reader_beside_a_change_sees_one_moment(
    begun: list[Path], tmp_path: Path, change: str, reader: str
) -> None:
    """At each point of a change, readers see the log before it, after it, or at one of the states between them."""
    with opened(begun, tmp_path / "plain") as world:
        before = {look: look_at(world.log, look) for look in LOOKS}
        attempt(world, CHANGES[change])
        after = {look: look_at(world.log, look) for look in LOOKS}

    chance = random.Random(f"{SEED} {change} {reader}")
    seen: list[tuple[int, str, list[object]]] = []
    waiting: dict[str, Beside] = {}

    def at_point(number: int) -> None:
        if is_left_out(number, change, reader, tried=3):
            return
        log, look = world.log, chance.choice(READERS[reader])
        if look not in waiting:
            beside = Beside(lambda: look_at(log, look))
            if beside.is_waiting:
                waiting[look] = beside
            else:
                assert beside.error is None, beside.error
                seen.append((number, look, beside.result))  # type: ignore[arg-type]

    scheduler = Scheduler(at_point)
    with opened(begun, tmp_path / "watched", scheduler) as world, scheduler.watching():
        attempt(world, CHANGES[change])
    for beside in waiting.values():
        beside.wait()
    assert scheduler.points > 0
    for number, look, answers in seen:
        for answer, *known in zip(answers, before[look], after[look], strict=True):
            assert answer in known, (number, change, look)


def run_after(begun: list[Path], root: Path, *names: str) -> tuple[object, ...]:
    """Return what changes leave, each after the one before, and their errors in the order of names."""
    with opened(begun, root) as world:
        errors = {name: attempt(world, CHANGES[name]) for name in names}
        return outcome(world), sorted(errors.items())


def outcomes(
    begun: list[Path], root: Path, first: str, second: str
) -> list[tuple[object, list[tuple[str, str | None]]]]:
    """Return what two changes may leave at the same time, each with the errors in the order of names."""
    found: list[Any] = [
        run_after(begun, root, *order) for order in ((first, second), (second, first))
    ]
    for refused, other in ((first, second), (second, first)):
        if refused in OVERTAKEN:
            left, errors = run_after(begun, root, other)
            found.append((left, sorted([(refused, OVERTAKEN[refused]), *errors])))  # type: ignore[misc]
    return found


@pytest.mark.parametrize("look", ["read", "newest", "text"])
@pytest.mark.parametrize("change", ["abort", "commit", "truncate-marker", "retain", "compact"])
def test_a_reader_that_is_overtaken_leaves_nothing_old_behind(
    begun: list[Path], tmp_path: Path, change: str, look: str
) -> None:
    """A change and a second reader come at a point of a first reader; the next one sees what the change left."""
    number = random.Random(f"{SEED} {change}{look}").randrange(1, STEP + 1)
    points = number
    while number <= points:
        points = overtake(begun, tmp_path / "world", change, look, number)
        number += STEP


def overtake(begun: list[Path], root: Path, change: str, look: str, number: int) -> int:
    """Let a change and a reader come at one point of a reader; return how many points that reader has."""
    beside: list[Beside] = []

    def ask() -> object:
        return observe(world.log.committed, LOOKS[look])

    def change_and_ask() -> None:
        attempt(world, CHANGES[change])
        ask()

    def at_point(reached: int) -> None:
        if reached == number:
            beside.append(Beside(change_and_ask))

    scheduler = Scheduler(at_point)
    with opened(begun, root, scheduler) as world:
        with scheduler.watching():
            ask()
        for each in beside:
            each.wait()
            assert each.error is None, each.error
        with Store(world.log_dirs, read_only=True, clock=world.clock) as cold:
            assert ask() == observe(cold[NAME].committed, LOOKS[look]), (number, change)
    return scheduler.points


# What another process sees of a truncation or a move is several steps.
FOLLOWED = [name for name in CHANGES if not name.startswith(("truncate", "move"))]


@pytest.mark.parametrize("change", FOLLOWED)
def test_another_process_sees_one_moment(begun: list[Path], tmp_path: Path, change: str) -> None:
    """At each point of a change, a read-only store that looks sees the log before the change, or after it."""

    def ask(log: Partition) -> list[object]:
        return [observe(each, look) for each in (log, log.committed) for look in LOOKS.values()]

    def at_point(number: int) -> None:
        # At each point: this thread may hold a lock that both stores share here, and processes do not.
        beside.refresh()
        if not is_left_out(number, change, tried=3):
            seen.append((number, ask(beside[NAME])))

    seen: list[tuple[int, list[object]]] = []
    scheduler = Scheduler(at_point)
    with opened(begun, tmp_path / "world", scheduler) as world:
        before = ask(world.log)
        with Store(world.log_dirs, read_only=True, clock=world.clock) as beside:
            assert ask(beside[NAME]) == before
            with scheduler.watching():
                attempt(world, CHANGES[change])
            after = ask(world.log)
            beside.refresh()
            assert ask(beside[NAME]) == after
    assert scheduler.points > 0
    for number, answers in seen:
        for answer, *known, name in zip(answers, before, after, [*LOOKS] * 2, strict=True):
            assert answer in known, (number, name)


@pytest.mark.parametrize("look", LOOKS)
def test_a_reader_beside_a_refresh_sees_one_moment(
    begun: list[Path], tmp_path: Path, look: str
) -> None:
    """At each point of a refresh, other readers of a read-only store see the log before it, or after it."""
    log_dirs = [shutil.copytree(path, tmp_path / path.name) for path in begun]
    clock = Clock()
    seen: list[tuple[int, object]] = []
    waiting: list[Beside] = []
    disk = WatchedReadOnlyDisk()

    def ask(log: Partition) -> list[object]:
        return [observe(each, LOOKS[look]) for each in (log, log.committed)]

    def at_point(number: int) -> None:
        if is_left_out(number, look):
            return
        if not any(each.is_waiting for each in waiting):
            beside = Beside(lambda: ask(reading[NAME]))
            (waiting if beside.is_waiting else []).append(beside)
            if not beside.is_waiting:
                assert beside.error is None, beside.error
                seen.append((number, beside.result))

    scheduler = Scheduler(at_point)
    with (
        Store(log_dirs, clock=clock) as store,
        Store(log_dirs, read_only=True, clock=clock, disk=disk) as reading,
    ):
        world = World(store, clock, log_dirs)
        disk.scheduler = scheduler
        for change in FOLLOWED:
            seen.clear()
            before = ask(world.log)
            reading.refresh()
            assert ask(reading[NAME]) == before
            attempt(world, CHANGES[change])
            after = ask(world.log)
            with scheduler.watching():
                reading.refresh()
            for beside in waiting:
                beside.wait()
            assert ask(reading[NAME]) == after
            for number, answers in seen:
                for answer, *known in zip(answers, before, after, strict=True):  # type: ignore[call-overload]
                    assert answer in known, (change, number)
        disk.scheduler = None
    assert scheduler.points > 0
    assert errors_of(log_dirs) == []


def pairs() -> list[tuple[str, str]]:
    """Return pairs of changes: all, or in the suite a few in which each change is once."""
    if STEP == 1:
        return [*itertools.permutations(CHANGES, 2)]
    mixed = random.Random(SEED).sample([*CHANGES], len(CHANGES))
    return [*zip(mixed[::2], mixed[1::2], strict=True)]


@pytest.mark.parametrize(("first", "second"), pairs())
def test_two_changes_are_one_after_the_other(
    begun: list[Path], tmp_path: Path, first: str, second: str
) -> None:
    """Whatever point of a change another change comes at, the log is as if one had waited for the other."""
    expected = outcomes(begun, tmp_path / "serial", first, second)
    number = random.Random(f"{SEED} {first} {second}").randrange(1, STEP + 1)
    while True:
        found, points = run_at_point(begun, tmp_path / "pair", first, second, number)
        if number > points:
            break
        assert found in expected, (first, second, number)
        number += STEP


def run_at_point(
    begun: list[Path], root: Path, first: str, second: str, number: int
) -> tuple[tuple[object, ...], int]:
    """Run the second change when the first is at a point; return what they leave, and how many points there are."""
    beside: list[Beside] = []

    def at_point(reached: int) -> None:
        if reached == number:
            beside.append(Beside(lambda: attempt(world, CHANGES[second])))

    scheduler = Scheduler(at_point)
    with opened(begun, root, scheduler) as world:
        with scheduler.watching():
            errors = {first: attempt(world, CHANGES[first])}
        for each in beside:
            each.wait()
            assert each.error is None, (first, second, number, each.error)
            errors[second] = each.result  # type: ignore[assignment]
        return (outcome(world), sorted(errors.items())), scheduler.points
