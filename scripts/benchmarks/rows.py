"""The rows: functions that each measure one kind of work and return lines of the table."""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from harness import (
    FIRST_MS,
    GIB,
    MIB,
    PARTITION,
    STEP_MS,
    Bench,
    Failed,
    Lines,
    Result,
    Ticking,
    alternate,
    build,
    expect,
    faster,
    in_rounds,
    logfs,
    nullfs,
    percentile,
    say,
    settle,
    shell,
    speed,
    timed,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness import Daemon

MOST_IDLE_MB = 120

ROWS: dict[str, Callable[[Bench], list[Result]]] = {}

# `cat` writes 128 KiB at a time, so a batch of a log that was filled with it holds this many bytes of lines.
CAT_BYTES = 128 * 1024


def row(function: Callable[[Bench], list[Result]]) -> Callable[[Bench], list[Result]]:
    """Register a function as a row, under its name with dashes."""
    ROWS[function.__name__.replace("_", "-")] = function
    return function


def crc_of(path: Path) -> int:
    """Return the CRC-32C of a file's bytes."""
    from crc32c import crc32c

    value = 0
    with path.open("rb", buffering=0) as file:
        while data := file.read(MIB):
            value = crc32c(data, value)
    return value


# Appending in bulk.


def append_in_bulk(
    bench: Bench, name: str, line_bytes: int, codec: str | None = None
) -> list[Result]:
    """Measure `cat f >> append` against `cat f > file`, and without a codec also until synced, and by `dd bs=1M`."""
    scratch = bench.directory(name)
    lines = Lines(line_bytes)
    source, plain = scratch / "source", scratch / "plain"
    count = lines.file(source, bench.pick(GIB, 256 * MIB))
    size = source.stat().st_size
    crc = crc_of(source)
    done = 0
    with logfs(scratch, scratch / "log") as mount:
        mount.partition.mkdir()
        if codec:
            (mount.partition / "config/compression.type").write_text(codec)

        def into(command: str, target: Path) -> Callable[[], float]:
            def once() -> float:
                nonlocal done
                plain.unlink(missing_ok=True)
                settle()
                seconds = timed(lambda: shell(command, source, target))
                if target is plain:
                    expect("bytes in the plain file", plain.stat().st_size, size)
                else:
                    done += 1
                    status = json.loads((mount.partition / "status.json").read_text())
                    expect("records in the log", status["log_end_offset"], done * count)
                return seconds

            return once

        append = mount.partition / "append"
        repeats = bench.pick(5, 3)
        cat = 'cat "$1" >> "$2"'
        with nullfs(scratch) as null:
            ours, to_plain, to_null = in_rounds(
                repeats,
                into(cat, append),
                into('cat "$1" > "$2"', plain),
                lambda: timed(lambda: shell(cat, source, null.partition / "append")),
            )
        floor = 0.4 if line_bytes == 100 and codec is None else None
        what = f"bulk append, {line_bytes} B lines{_of(codec)}"
        results = [
            _bulk(f"{name} cat", what, size, (ours, to_plain), "cat", floor),
            _against_nullfs(name, size, ours, to_null),
        ]
        results[0].more["records_per_second"] = round(count / statistics.median(ours))
        if codec is None:
            # The same until the data is on the disk, and with larger writes.
            sync = '; sync -d "$2"'
            dd = 'dd if="$1" of="$2" bs=1M conv=notrunc status=none'
            by_sync = alternate(repeats, into(cat + sync, append), into(cat + sync, plain))
            by_dd = alternate(repeats, into(dd, append), into(dd, plain))
            results += [
                _bulk(f"{name} synced", f"{what}, until on the disk", size, by_sync, "cat, sync"),
                _bulk(f"{name} dd", f"{what}, by dd bs=1M", size, by_dd, "dd"),
            ]
        say("  checking")
        # The first `count` records of the log must equal the source, to the byte.
        check = mount.partition / f"offsets/0..{count}"
        expect("CRC of the records", crc_of(check), crc)
    if codec:
        results.append(_against_codec(bench, name, codec, lines, size, ours))
    for path in (source, plain):
        path.unlink(missing_ok=True)
    bench.directory(name)
    return results


def _of(codec: str | None) -> str:
    return f", {codec}" if codec else ""


def _bulk(
    name: str,
    what: str,
    size: int,
    seconds: tuple[list[float], list[float]],
    tool: str,
    floor: float | None = None,
) -> Result:
    ratio, spread = faster(*seconds)
    peer = f"{speed(size, seconds[1])} {tool} to a plain file"
    return Result(name, what, ratio, speed(size, seconds[0]), peer, floor, 0.6, spread=spread)


def _against_nullfs(name: str, size: int, seconds: list[float], dropped: list[float]) -> Result:
    """Compare with nullfs, which drops what it gets: the most that `cat` can append through FUSE."""
    ratio, spread = faster(seconds, dropped)
    peer = f"{speed(size, dropped)} nullfs, which drops it"
    what = "the same against nullfs"
    return Result(
        f"{name} nullfs", what, ratio, speed(size, seconds), peer, None, 0.5, spread=spread
    )


def _against_codec(
    bench: Bench, name: str, codec: str, lines: Lines, size: int, seconds: list[float]
) -> Result:
    """Compare with the codec library alone, on the same text in buffers of the size of one batch's input."""
    from logfs.format.batches import compression

    number = compression.Codec[codec.upper()]
    some = [bytes(b) for b in lines.buffers(64 * MIB // lines.line_bytes, CAT_BYTES)]
    alone = [
        timed(lambda: [compression.compress(number, buffer, None) for buffer in some])
        for _ in range(bench.pick(5, 3))
    ]
    alone = [value * size / sum(map(len, some)) for value in alone]
    ratio = statistics.median(alone) / statistics.median(seconds)
    what = f"the same against {codec} alone on one core"
    return Result(f"{name} codec", what, ratio, speed(size, seconds), speed(size, alone), None, 0.8)


@row
def append_lines(bench: Bench) -> list[Result]:
    """1 GiB of 100-byte lines through the mount."""
    return append_in_bulk(bench, "append-lines", 100)


@row
def append_kib(bench: Bench) -> list[Result]:
    """1 GiB of 1 KiB lines through the mount."""
    return append_in_bulk(bench, "append-kib", 1024)


@row
def append_lz4(bench: Bench) -> list[Result]:
    """1 GiB of 100-byte lines into a topic with lz4."""
    return append_in_bulk(bench, "append-lz4", 100, "lz4")


@row
def append_zstd(bench: Bench) -> list[Result]:
    """1 GiB of 100-byte lines into a topic with zstd."""
    return append_in_bulk(bench, "append-zstd", 100, "zstd")


# Looking up.


def read_path(path: str) -> bytes:
    """Open, read and close a file; return its content."""
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)


def follow_time(path: str) -> int:
    """Read and open a link; return the offset that it leads to."""
    target = os.readlink(path)
    os.close(os.open(path, os.O_RDONLY))
    return int(target.rpartition("/")[2])


def in_turns(chunks: list[list[int]], *sides: Callable[[int], None]) -> list[list[float]]:
    """Return the microseconds of each call of each side; the sides alternate after each chunk."""
    clock = time.perf_counter_ns
    found: list[list[float]] = [[] for _ in sides]
    for number, chunk in enumerate(chunks):
        say(f"  {number + 1}/{len(chunks)}")
        for side, times in zip(sides, found, strict=True):
            for target in chunk:
                start = clock()
                side(target)
                times.append((clock() - start) / 1000)
    return found


def numbers_below(count: int, below: int) -> list[list[int]]:
    """Return `count` random numbers, the same in each run, in chunks for `in_turns`."""
    numbers = random.Random(5)
    return [[numbers.randrange(below) for _ in range(500)] for _ in range(count // 500)]


def _compared(
    name: str, what: str, times: list[list[float]], floor: float | None, target: float | None
) -> list[Result]:
    results = []
    for label, share in (("p50", 0.5), ("p99", 0.99)):
        ours, peer = (percentile(each, share) for each in times)
        limits = (floor, target) if label == "p50" else (None, target)
        absolute = f"{ours:,.0f} µs", f"{peer:,.0f} µs nullfs"
        results.append(
            Result(
                f"{name} {label}", f"{what}, {label}", ours / peer, *absolute, *limits, at_most=True
            )
        )
    return results


@row
def offsets(bench: Bench) -> list[Result]:
    """Random `offsets/N`: open, read, close."""
    count = 1_000_000
    log_dir, lines = bench.log(count, CAT_BYTES)
    scratch = bench.directory("offsets")
    with logfs(scratch, log_dir) as mount, nullfs(scratch) as null:

        def ours(number: int) -> None:
            if read_path(f"{mount.partition}/offsets/{number}") != lines.value(number):
                raise Failed(f"offset {number} is another record")

        def peer(number: int) -> None:
            read_path(f"{null.partition}/offsets/{number}")

        times = in_turns(numbers_below(bench.pick(30_000, 6_000), count), ours, peer)
    return _compared("offsets", "random offsets/N: open, read, close", times, 2.0, 1.5)


@row
def time_links(bench: Bench) -> list[Result]:
    """Random `time/T`: readlink and open."""
    count = 1_000_000
    log_dir, lines = bench.log(count, CAT_BYTES)
    scratch = bench.directory("time")
    batch = CAT_BYTES // lines.line_bytes
    firsts = first_offsets(lines, count, batch)
    with logfs(scratch, log_dir) as mount, nullfs(scratch) as null:

        def ours(number: int) -> None:
            found = follow_time(f"{mount.partition}/time/{FIRST_MS + number}")
            if found != firsts[-(-number // STEP_MS) - 1 if number else 0]:
                raise Failed(f"time {FIRST_MS + number} leads to {found}")

        def peer(number: int) -> None:
            follow_time(f"{null.partition}/time/{FIRST_MS + number}")

        below = len(firsts) * STEP_MS
        times = in_turns(numbers_below(bench.pick(20_000, 4_000), below), ours, peer)
    return _compared("time", "random time/T: readlink, open", times, None, 1.3)


def first_offsets(lines: Lines, count: int, each: int) -> list[int]:
    """Return the first offset of each batch that `build` made."""
    firsts, at = [], 0
    for buffer in lines.buffers(count, each * lines.line_bytes):
        firsts.append(at)
        at += len(buffer) // lines.line_bytes
    return firsts


@row
def growth(bench: Bench) -> list[Result]:
    """offsets/N and time/T as the log grows: 10^5, 10^6, 10^7 and 10^8 records."""
    sizes = [10**5, 10**6, *([3 * 10**6] if bench.quick else [10**7, 10**8])]
    lines = Lines(100)
    scratch = bench.directory("growth")
    for number, size in enumerate(sizes):
        say(f"  building a log of {size:,} records")
        build(scratch / "log", f"grown-{number}", lines, size, CAT_BYTES)
    numbers = random.Random(6)
    chunks = [[numbers.randrange(10**9) for _ in range(200)] for _ in range(bench.pick(40, 15))]
    results = []
    with logfs(scratch, scratch / "log") as mount:

        def offset_of(partition: int, size: int) -> Callable[[int], None]:
            def once(number: int) -> None:
                value = read_path(f"{mount.path}/grown-{partition}/offsets/{number % size}")
                if value != lines.value(number % size):
                    raise Failed(f"offset {number % size} is another record")

            return once

        def time_of(partition: int, size: int) -> Callable[[int], None]:
            span = len(first_offsets(lines, size, CAT_BYTES // 100)) * STEP_MS

            def once(number: int) -> None:
                # Only readlink: in a small log the times lead to few records, and the kernel caches those.
                os.readlink(f"{mount.path}/grown-{partition}/time/{FIRST_MS + number % span}")

            return once

        for name, side in (("offsets/N", offset_of), ("time/T", time_of)):
            times = in_turns(chunks, *(side(*each) for each in enumerate(sizes)))
            middle = [percentile(each, 0.5) for each in times]
            measured = " / ".join(f"{value:,.0f}" for value in middle) + " µs"
            what = f"{name} p50 at {' / '.join(f'{size:.0e}' for size in sizes)} records, last to first"
            what = what.replace("e+0", "e")
            results.append(
                Result(
                    f"growth {name}",
                    what,
                    middle[-1] / middle[0],
                    measured,
                    "its own first",
                    1.3,
                    at_most=True,
                )
            )
    bench.directory("growth")
    return results


# Reading in bulk.


@row
def records(bench: Bench) -> list[Result]:
    """`cat records`, with a cold cache against nullfs, and again against a plain file."""
    count = bench.pick(GIB, 256 * MIB) // 100
    log_dir, lines = bench.log(count, CAT_BYTES)
    scratch = bench.directory("records")
    size = count * lines.line_bytes
    plain = scratch / "plain"
    lines.file(plain, size)
    settle()
    crc = crc_of(plain)
    first: tuple[list[float], list[float]] = ([], [])
    again: tuple[list[float], list[float], list[float]] = ([], [], [])

    def cat(path: Path) -> float:
        expect("size", path.stat().st_size, size)
        return timed(lambda: shell('cat "$1" > /dev/null', path))

    repeats = bench.pick(5, 3)
    for number in range(repeats):
        say(f"  {number + 1}/{repeats}")
        with logfs(scratch, log_dir) as mount, nullfs(scratch, size) as null:
            for segment in log_dir.glob("*/*.log"):
                shell('cat "$1" > /dev/null', segment)
            first[0].append(cat(mount.partition / "records"))
            first[1].append(cat(null.partition / "records"))
            for _ in range(3):
                again[0].append(cat(mount.partition / "records"))
                again[1].append(cat(plain))
                again[2].append(cat(null.partition / "records"))
            expect("CRC of the records", crc_of(mount.partition / "records"), crc)
    bench.directory("records")
    cold, cold_spread = faster(*first)
    warm, warm_spread = faster(again[0], again[1])
    same, same_spread = faster(again[0], again[2])
    peers = [
        f"{speed(size, first[1])} nullfs",
        f"{speed(size, again[1])} plain file",
        f"{speed(size, again[2])} nullfs",
    ]
    return [
        Result(
            "records cold",
            "cat records, the mount's cache cold",
            cold,
            speed(size, first[0]),
            peers[0],
            0.4,
            0.7,
            spread=cold_spread,
        ),
        Result(
            "records again",
            "cat records again",
            warm,
            speed(size, again[0]),
            peers[1],
            0.9,
            0.9,
            spread=warm_spread,
        ),
        Result(
            "records cached",
            "the same against nullfs read again",
            same,
            speed(size, again[0]),
            peers[2],
            None,
            0.9,
            spread=same_spread,
        ),
    ]


@row
def tail(bench: Bench) -> list[Result]:
    """`tail -n 10 records` of a large log on a fresh mount."""
    size = bench.pick(2 * GIB, 512 * MIB)
    count = size // 100
    log_dir, lines = bench.log(count, MIB)
    scratch = bench.directory("tail")
    wanted = b"".join(lines.value(n) + b"\n" for n in range(count - 10, count)).decode()
    seconds, again = [], []
    for _ in range(bench.pick(7, 5)):
        with logfs(scratch, log_dir) as mount:
            found = ""

            def once(mount: Daemon = mount) -> None:
                nonlocal found
                found = shell('tail -n 10 "$1"', mount.partition / "records")

            seconds.append(timed(once) * 1000)
            expect("the last ten", found, wanted)
            again.append(timed(once) * 1000)
    middle = statistics.median(seconds)
    what = f"tail -n 10 of {size / GIB:g} GiB, fresh mount, of 100 ms"
    measured = f"{middle:.1f} ms, again {statistics.median(again):.1f} ms"
    return [
        Result(
            "tail",
            what,
            middle / 100,
            measured,
            "100 ms, and 50 ms is the target",
            1.0,
            0.5,
            at_most=True,
        )
    ]


# Starting, and memory.


@row
def recovery(bench: Bench) -> list[Result]:
    """Opening a store that was killed, against reading its bytes, which are not in the page cache."""
    scratch = bench.directory("recovery")
    lines = Lines(100)
    count = bench.pick(2 * GIB, 256 * MIB) // 100
    log_dir = scratch / "log"
    in_child(lambda: _build_and_die(log_dir, lines, count))
    segments = sorted(log_dir.glob("*/*.log"))
    size = sum(segment.stat().st_size for segment in segments)
    settle()

    def read_all() -> float:
        buffer = bytearray(MIB)

        def work() -> int:
            done = 0
            for segment in segments:
                with segment.open("rb", buffering=0) as file:
                    while got := file.readinto(buffer):
                        done += got
            return done

        evict(segments)
        start = time.perf_counter()
        expect("bytes read", work(), size)
        return time.perf_counter() - start

    def recover() -> float:
        evict(segments)
        # The child dies with the store open, so that the next one has the same work.
        return in_child(lambda: _recover(log_dir, count))

    read_all()
    ours, peer = alternate(bench.pick(5, 3), recover, read_all)
    bench.directory("recovery")
    ratio, spread = faster(ours, peer)
    what = f"recovery after kill, {size / GIB:.2g} GiB unflushed"
    measured = speed(size, ours), f"{speed(size, peer)} reading the bytes"
    return [Result("recovery", what, ratio, *measured, None, 0.6, spread=spread)]


def evict(files: list[Path]) -> None:
    """Drop files from the page cache."""
    for path in files:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _build_and_die(log_dir: Path, lines: Lines, count: int) -> float:
    from logfs.store.store import Store

    partition = Store(log_dir, clock=Ticking()).create(PARTITION)
    for buffer in lines.buffers(count, CAT_BYTES):
        partition.append_lines(buffer)
    return 0.0


def _recover(log_dir: Path, count: int) -> float:
    from logfs.format.kernel_warmup import warm_up
    from logfs.store.store import Store

    warm_up()
    start = time.perf_counter()
    store = Store(log_dir)
    seconds = time.perf_counter() - start
    expect("records recovered", store[PARTITION].log_end_offset, count)
    return seconds


def in_child(work: Callable[[], float]) -> float:
    """Call `work` in a child process that then dies without closing anything; return its result."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        answer = b"failed"
        try:
            answer = repr(work()).encode()
        except BaseException as error:
            print(f"\n{error!r}", file=sys.stderr)
        finally:
            os.write(writing, answer)
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    if answer == b"failed":
        raise Failed("the child failed")
    return float(answer)


@row
def memory(bench: Bench) -> list[Result]:
    """Resident memory of a mount: idle, and after appends, reads and lookups."""
    scratch = bench.directory("memory")
    lines = Lines(100)
    source = scratch / "source"
    count = lines.file(source, bench.pick(GIB, 256 * MIB))
    with logfs(scratch, scratch / "log") as mount:
        mount.partition.mkdir()
        idle = mount.memory()
        shell('cat "$1" >> "$2"', source, mount.partition / "append")
        shell('cat "$1" > /dev/null', mount.partition / "records")
        for number in random.Random(8).sample(range(count), bench.pick(30_000, 5_000)):
            read_path(f"{mount.partition}/offsets/{number}")
        after, most = mount.memory(), mount.memory("VmHWM")
    bench.directory("memory")
    peer = f"{MOST_IDLE_MB} MB"
    return [
        Result(
            "memory idle",
            "resident memory, idle, of 120 MB",
            idle / MOST_IDLE_MB,
            f"{idle:.0f} MB",
            peer,
            None,
            1.0,
            at_most=True,
        ),
        Result(
            "memory loaded",
            "the same after the load, of 120 MB",
            after / MOST_IDLE_MB,
            f"{after:.0f} MB, at most {most:.0f} MB",
            peer,
            at_most=True,
        ),
    ]


@row
def cli(bench: Bench) -> list[Result]:
    """The duration of `logfs --help` and of `logfs cat --offset N`."""
    log_dir, lines = bench.log(1_000_000, CAT_BYTES)
    command = str(Path(sys.executable).with_name("logfs"))
    results = []
    for words, limit_ms in (
        (["--help"], 150),
        (["cat", "--offset", "777777", f"{log_dir}/{PARTITION}"], 300),
    ):
        found = ""

        def ours(words: list[str] = words) -> float:
            nonlocal found
            start = time.perf_counter()
            found = shell('"$@"', command, *words)
            return time.perf_counter() - start

        def peer() -> float:
            return timed(lambda: shell('"$1" -c pass', sys.executable))

        seconds, empty = alternate(bench.pick(11, 5), ours, peer)
        if words[0] == "cat":
            expect("the record", found.rstrip("\n").encode(), lines.value(777_777))
        middle = statistics.median(seconds) * 1000
        other = f"{limit_ms} ms; python -c pass {statistics.median(empty) * 1000:.0f} ms"
        what = f"logfs {' '.join(words[:2])}{' N' if words[0] == 'cat' else ''}".replace(
            " 777777", ""
        )
        what = f"{what}, of {limit_ms} ms"
        results.append(
            Result(
                f"cli {words[0]}",
                what,
                middle / limit_ms,
                f"{middle:.0f} ms",
                other,
                None,
                1.0,
                at_most=True,
            )
        )
    return results


# The engine alone, to distinguish its part of a row's time from the mount's.


def engine_speed(
    bench: Bench, name: str, what: str, moved: int, work: Callable[[], object]
) -> Result:
    """Return one line of an engine row: the bytes per second of repeated calls of `work`."""
    seconds = [timed(work) for _ in range(bench.pick(9, 5))]
    return Result(f"engine {name}", f"engine: {what}", None, speed(moved, seconds), "-")


@row
def engine_append(bench: Bench) -> list[Result]:
    """The engine without a mount: append_lines against os.write of the same buffers."""
    from logfs.format.kernel_warmup import warm_up
    from logfs.store.store import Store

    warm_up()
    lines = Lines(100)
    count = bench.pick(512 * MIB, 128 * MIB) // 100
    results = []
    for label, buffer_bytes in (("128 KiB", CAT_BYTES), ("1 MiB", MIB)):
        buffers = list(lines.buffers(count, buffer_bytes))

        def append(buffers: list[bytes] = buffers) -> float:
            with Store(bench.directory("engine")) as store:
                partition = store.create(PARTITION)
                settle()
                seconds = timed(lambda: [partition.append_lines(buffer) for buffer in buffers])
                expect("records", partition.log_end_offset, count)
            return seconds

        def plain(buffers: list[bytes] = buffers) -> float:
            path = bench.directory("engine") / "plain"
            settle()
            with path.open("wb", buffering=0) as file:
                return timed(lambda: [file.write(buffer) for buffer in buffers])

        ours, peer = alternate(bench.pick(5, 3), append, plain)
        ratio, spread = faster(ours, peer)
        what = f"engine: append_lines of {label}"
        absolute = speed(count * 100, ours), f"{speed(count * 100, peer)} os.write of the same"
        results.append(Result(f"engine append {label}", what, ratio, *absolute, spread=spread))
    bench.directory("engine")
    return results


@row
def engine_encode(bench: Bench) -> list[Result]:
    """The engine without a mount: lines to batches in memory, and its two largest parts."""
    import numpy as np

    from logfs.format.encoding.batch_builder import BatchFormat, build_lines, line_ends
    from logfs.format.kernel_warmup import warm_up
    from logfs.format.kernels import batch_kernels

    warm_up()
    lines = Lines(100)
    buffers = list(lines.buffers(64 * MIB // 100, CAT_BYTES))
    moved = sum(map(len, buffers))
    form = BatchFormat()

    def build_all() -> None:
        for buffer in buffers:
            expect("bytes", build_lines(buffer, form, FIRST_MS).consumed, len(buffer))

    arrays = [np.frombuffer(buffer, np.uint8) for buffer in buffers]
    ends = line_ends(arrays[0])
    out = np.empty(len(arrays[0]) * 2, np.uint8)

    def find_newlines() -> None:
        for array in arrays:
            line_ends(array)

    def encode() -> None:
        for array in arrays[:-1]:
            batch_kernels.encode_lines(array, ends, 0, 0, len(out), out, 0)

    return [
        engine_speed(bench, "build", "lines to a sealed batch, 128 KiB", moved, build_all),
        engine_speed(bench, "newlines", "finding the newlines", moved, find_newlines),
        engine_speed(bench, "encode", "encode kernel", moved - len(buffers[-1]), encode),
    ]


@row
def engine_read(bench: Bench) -> list[Result]:
    """The engine without a mount: batches to columns, the text views, one record by offset."""
    from logfs.format.kernel_warmup import warm_up
    from logfs.format.text.rendering import View
    from logfs.log.read.text_view import TextView
    from logfs.store.store import Store

    warm_up()
    count = 1_000_000
    log_dir, lines = bench.log(count, CAT_BYTES)
    results = []
    with Store(log_dir, read_only=True) as store:
        partition = store[PARTITION]

        def decode() -> None:
            expect("records decoded", len(partition.columns()), count)

        size = partition.size_bytes
        results.append(
            engine_speed(bench, "columns", "checked and decoded to columns", size, decode)
        )
        for label, view in (("records", View.LINES), ("records.jsonl", View.ENVELOPES)):
            text = TextView(partition, view)

            def read(text: TextView = text, size: int = text.size) -> None:
                done = sum(len(text.read(at, MIB)) for at in range(0, size, MIB))
                expect("bytes of text", done, size)

            what = f"text view of {label}"
            results.append(engine_speed(bench, f"view {label}", what, text.size, read))
        times = []
        for number in random.Random(9).sample(range(count), 2_000):
            start = time.perf_counter()
            found = partition.record(number)
            times.append((time.perf_counter() - start) * 1e6)
            expect("a record's value", found and found.value, lines.value(number))
    one = f"{percentile(times, 0.5):.0f} µs"
    results.append(Result("engine record", "engine: one record by offset, p50", None, one, "-"))
    return results
