"""The rows of `keys/`: the cost of finding the newest record of a key."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from harness import Bench, Failed, Result, expect, logfs, percentile, say
from rows import in_turns, numbers_below, read_path, row

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# The number of lines in each write.
LINES_AT_ONCE = 1000


def value_of(number: int) -> bytes:
    """Return the value of the key with that number."""
    return b"status=200 path=/orders/%08d" % number


def fill(partition: Path, count: int) -> None:
    """Append `count` records by `append.jsonl`; the key of each is the number of its offset."""
    partition.mkdir()
    with (partition / "append.jsonl").open("ab", buffering=0) as file:
        for first in range(0, count, LINES_AT_ONCE):
            numbers = range(first, first + LINES_AT_ONCE)
            lines = (b'{"key":"%08d","value":"%s"}\n' % (n, value_of(n)) for n in numbers)
            data = b"".join(lines)
            expect("bytes taken", file.write(data), len(data))


@row
def keys(bench: Bench) -> list[Result]:
    """Random `keys/K` at 10^5 and 10^6 keys, and `offsets/N`: open, read, close."""
    sizes = [10**5, bench.pick(10**6, 3 * 10**5)]
    scratch = bench.directory("keys")
    with logfs(scratch, scratch / "log") as mount:
        firsts = []
        for size in sizes:
            say(f"  {size:,} records with keys")
            partition = mount.path / f"keys-{size}"
            fill(partition, size)
            began = time.perf_counter()
            expect("the first key asked for", read_path(f"{partition}/keys/{0:08d}"), value_of(0))
            firsts.append(time.perf_counter() - began)

        def by(name: str, size: int, shift: int = 0) -> Callable[[int], None]:
            def once(number: int) -> None:
                number = (number + shift) % size
                if read_path(f"{mount.path}/keys-{size}/{name % number}") != value_of(number):
                    raise Failed(f"{name % number} is another record")

            return once

        sides = [by("keys/%08d", size) for size in sizes]
        # Records other than those just found by key, which the kernel still has in its caches.
        sides.append(by("offsets/%d", sizes[-1], sizes[-1] // 2))
        chunks = numbers_below(bench.pick(20_000, 4_000), 10**9)
        small, large, offset = (percentile(each, 0.5) for each in in_turns(chunks, *sides))
    what = f"keys/K p50 at {' / '.join(f'{size:,}' for size in sizes)} keys, last to first"
    measured = f"{small:,.0f} / {large:,.0f} µs"
    more: dict[str, object] = {"first_question_seconds": [round(each, 3) for each in firsts]}
    peer = f"{offset:,.0f} µs offsets/N"
    bench.directory("keys")
    return [
        Result(
            "keys growth",
            what,
            large / small,
            measured,
            "its own first",
            1.3,
            at_most=True,
            more=more,
        ),
        Result(
            "keys",
            "random keys/K: open, read, close, p50",
            large / offset,
            f"{large:,.0f} µs",
            peer,
            at_most=True,
        ),
    ]
