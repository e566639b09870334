"""What several commands share: targets, stores, ranges, progress, output."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from logfs.errors import InvalidName, InvalidSetting, UnknownPartition

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Sequence

    from logfs.log.committed import Isolation
    from logfs.log.partition import Partition
    from logfs.log.reader import Reader
    from logfs.store.store import Store


class Target(NamedTuple):
    """A partition and where to look for it."""

    log_dirs: Sequence[Path]
    name: str


def add_target(parser: argparse.ArgumentParser) -> None:
    """Let a command take a TARGET."""
    parser.add_argument(
        "target", nargs="+", metavar="TARGET", help="LOGDIR/PARTITION, or LOGDIR… PARTITION"
    )


def add_isolation(parser: argparse.ArgumentParser) -> None:
    """Let a command take an isolation level."""
    parser.add_argument(
        "--isolation",
        metavar="LEVEL",
        default="read_uncommitted",
        help="read_uncommitted (all records), or read_committed: no aborted or open transactions",
    )


def isolation_level(text: str) -> Isolation:
    """The isolation level of that name; `InvalidSetting` for another."""
    from logfs.log.committed import Isolation

    try:
        return Isolation(text)
    except ValueError:
        levels = ", ".join(level.value for level in Isolation)
        raise InvalidSetting(f"isolation {text!r}: give one of {levels}") from None


def add_log_dirs(parser: argparse.ArgumentParser) -> None:
    """Let a command take log directories."""
    parser.add_argument("log_dirs", nargs="+", type=Path, metavar="LOGDIR", help="a log directory")


def log_dirs_of(words: Iterable[str | Path]) -> list[Path]:
    """The log directories that words mean: of a mountpoint, those mounted there. `InvalidStore` if one is missing."""
    from logfs.store import door

    found = [Path(path) for path in door.log_dirs_of(words)]
    door.check_there(found)
    return found


def target(words: Sequence[str]) -> Target:
    """The partition that the words of a TARGET name; below a mountpoint it is that of a log directory there."""
    from logfs.store import door

    *log_dirs, name = words
    if not log_dirs:
        path = Path(name).absolute()
        log_dirs, name = [str(path.parent)], path.name
    return Target([Path(path) for path in door.log_dirs_of(log_dirs)], name)


def open_for_reading(words: Sequence[str]) -> tuple[Store, Partition]:
    """The partition of a TARGET in a store that is open read-only."""
    from logfs.store.store import Store

    wanted = target(words)
    store = Store(wanted.log_dirs, read_only=True, only=wanted.name, progress=recovery_progress())
    return store, partition(store, wanted)


def open_for_writing(words: Sequence[str], *, alone: bool = True) -> tuple[Store, Partition]:
    """The partition of a TARGET in a store that this process has for itself; `alone`: no other one is loaded."""
    from logfs.store import door
    from logfs.store.store import Store

    wanted = target(words)
    door.check_there(wanted.log_dirs)
    only = wanted.name if alone else None
    store = Store(wanted.log_dirs, only=only, progress=recovery_progress())
    try:
        return store, partition(store, wanted)
    except BaseException:
        store.close()
        raise


def partition(store: Store, wanted: Target) -> Partition:
    """The partition of a target; `UnknownPartition` says where it was looked for."""
    if wanted.name not in store and wanted.name not in store.offline:
        where = ", ".join(str(path) for path in wanted.log_dirs)
        raise UnknownPartition(
            f"{where}: has no partition {wanted.name!r}; 'logfs create' makes one"
        )
    return store[wanted.name]


_NUMBER = re.compile(r"[0-9]{1,19}")


def offset_range(text: str) -> tuple[int | None, int | None]:
    """N (that record), A..B, A.., ..B or -N (the last N, as a negative start): (start, end)."""
    first, dots, last = text.partition("..")
    if not dots and _NUMBER.fullmatch(text):
        return int(text), int(text) + 1
    if not dots and text.startswith("-") and _NUMBER.fullmatch(text[1:]):
        return int(text), None
    if dots and all(not part or _NUMBER.fullmatch(part) for part in (first, last)):
        return int(first) if first else None, int(last) if last else None
    raise InvalidName(f"{text!r} is no offset: give N, A..B, A.., ..B or -N for the last N")


def time_range(text: str, partition: Reader) -> tuple[int | None, int | None]:
    """The offsets of a time (from it on) or of a range of times A..B."""
    from logfs.format.times import parse_time

    first, _, last = text.partition("..")
    bounds = []
    for part in (first, last):
        timestamp = parse_time(part) if part else None
        if part and timestamp is None:
            raise InvalidName(f"{part!r} is no time: give ms since 1970, or ISO 8601")
        found = None if timestamp is None else partition.offset_for_time(timestamp)
        if part and found is None:
            bounds.append(partition.log_end_offset)
        else:
            bounds.append(None if found is None else found.offset)  # type: ignore[arg-type]
    return bounds[0], bounds[1]


def recovery_progress() -> Callable[[str, int, int], None]:
    """A progress bar on a terminal for what a store does while it opens; silence elsewhere."""
    bar: Any = None

    def report(name: str, done: int, total: int) -> None:
        nonlocal bar
        if not sys.stderr.isatty():
            return
        if bar is None or bar.desc != f"recovering {name}: ":
            if bar is not None:
                bar.close()
            bar = progress_bar(f"recovering {name}", total)
        bar.update(done - bar.n)
        if done >= total:
            bar.close()

    return report


def progress_bar(title: str, total_bytes: int | None) -> Any:
    """A bar in bytes on standard error: shown on a terminal, nothing in a pipe."""
    from tqdm import tqdm

    return tqdm(
        total=total_bytes,
        desc=title,
        unit="B",
        unit_scale=True,
        unit_divisor=1024,
        disable=None,
        leave=False,
        file=sys.stderr,
    )
