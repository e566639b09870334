"""`logfs top`: show a live table of the partitions of a mount or a log directory."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from logfs.cli.common import add_json, path_argument, print_json, table_lines
from logfs.cli.watch import source
from logfs.errors import InvalidUsage
from logfs.format.base.quantities import format_size

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from logfs.cli.watch import Source, StoreSnapshot

_IN = "kafka_server_brokertopicmetrics_messagesin_total"
_BYTES_IN = "kafka_server_brokertopicmetrics_bytesin_total"
_BYTES_OUT = "kafka_server_brokertopicmetrics_bytesout_total"


class Row(NamedTuple):
    """One partition in the table. None stands for an unknown value.

    `size` is the size in bytes of the .log files in the partition's directory. For a tiered log, `remote` is the size
    in bytes of the .log files in the object store. `start` and `end` are the log start and end offsets. `records` is
    the number of records appended per second, and `bytes_in` and `bytes_out` are the numbers of bytes appended and
    read per second. `dirty` is the cleaner's dirty ratio, from 0 to 1, and `lag` the largest lag of a consumer group,
    in offsets. `state` has words such as "offline" and "damaged", separated by commas, or is empty.
    """

    name: str
    size: float
    segments: float
    start: float
    end: float
    records: float | None = None
    bytes_in: float | None = None
    bytes_out: float | None = None
    dirty: float | None = None
    lag: float | None = None
    state: str = ""
    remote: float | None = None


# The possible sort orders, by name: the letter that selects one in the live table, and the `key` function for
# `sorted`.
SORTS: Mapping[str, tuple[str, Callable[[Row], float]]] = {
    "size": ("s", lambda row: -row.size),
    "records": ("r", lambda row: -(row.records or 0)),
    "in": ("i", lambda row: -(row.bytes_in or 0)),
    "out": ("o", lambda row: -(row.bytes_out or 0)),
    "dirty": ("d", lambda row: -(row.dirty or 0)),
    "lag": ("l", lambda row: -(row.lag or 0)),
    "segments": ("g", lambda row: -row.segments),
    "name": ("n", lambda row: 0),
}
# The names of the fields of a `Row` in JSON, in the order of the fields.
_KEYS = (
    "partition",
    "sizeBytes",
    "segments",
    "logStartOffset",
    "logEndOffset",
    "recordsPerSecond",
    "bytesInPerSecond",
    "bytesOutPerSecond",
    "dirtyRatio",
    "lag",
    "state",
    "remoteBytes",
)
_HEADINGS = (
    "PARTITION",
    "SIZE",
    "REMOTE",
    "SEGMENTS",
    "START",
    "END",
    "REC/S",
    "MB/S IN",
    "MB/S OUT",
    "DIRTY",
    "LAG",
    "STATE",
)


# The columns to leave out on a narrow terminal, in the order in which they are left out.
_LEAST_WANTED = ("DIRTY", "START", "SEGMENTS", "MB/S OUT", "REMOTE", "SIZE", "END")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: a mount or a log directory, the interval, and the form of the table."""
    parser.add_argument(
        "target",
        type=path_argument,
        nargs="?",
        help="a mount or a log directory; without it, the only mount",
    )
    keys = ", ".join(f"{name} ({letter})" for name, (letter, _) in SORTS.items())
    parser.add_argument(
        "--sort",
        default="in",
        metavar="KEY",
        help=f"sort by {keys}; in the live table, press the letter",
    )
    parser.add_argument("-n", "--rows", type=int, metavar="N", help="show the first N partitions")
    parser.add_argument(
        "--interval", type=float, default=2.0, metavar="SECONDS", help="time between updates (2)"
    )
    parser.add_argument(
        "--once", action="store_true", help="print one plain table, as in a pipe, and exit"
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Show the table until `q` or Ctrl-C.

    With `--once` or `--json`, or without a terminal, print it once instead. Raises `InvalidUsage` for an option out
    of range. Raises `InvalidStore` if the target is no mount, log directory or bucket, or if no target is given and
    the number of mounts is not one.
    """
    if arguments.sort not in SORTS:
        raise InvalidUsage(f"--sort {arguments.sort!r}: give one of {', '.join(SORTS)}")
    if not 0.05 <= arguments.interval <= 3600:
        raise InvalidUsage(f"--interval {arguments.interval}: give seconds from 0.05 to 3600")
    if arguments.rows is not None and arguments.rows < 1:
        raise InvalidUsage(f"-n {arguments.rows}: give a number of partitions, 1 or more")
    watched = source(arguments.target)
    try:
        if arguments.once or arguments.json or not (sys.stdout.isatty() and sys.stdin.isatty()):
            _print_once(watched, arguments)
        else:
            _Live(watched, arguments).run()
    except KeyboardInterrupt:
        return 0
    finally:
        watched.close()
    return 0


# The functions below compute the rows of the table, and format them as text.


def rows(before: StoreSnapshot, after: StoreSnapshot, seconds: float) -> list[Row]:
    """Return a row for each partition of `after`, with the rates since `before`; offline partitions come last.

    `seconds` is the time between the two snapshots.
    """
    work = {each["name"]: each["what"] for each in after.status["background"]}
    lags: dict[tuple[tuple[str, str], ...], float] = {}
    for labels, lag in after.metrics.get("logfs_group_lag", {}).items():
        lags[labels[1:]] = max(lags.get(labels[1:], 0), lag)
    # A read-only store cannot count appends, because another process makes them. So compute the rates from the log
    # end offsets and the sizes.
    is_followed = bool(after.status["read_only"])

    found = []
    for labels, size in after.metrics.get("kafka_log_log_size", {}).items():

        def value(name: str, look: StoreSnapshot = after, key: object = labels) -> float | None:
            return look.metrics.get(name, {}).get(key)  # type: ignore[call-overload,no-any-return]

        def rate(name: str) -> float | None:
            new, old = value(name), value(name, before)
            if new is None or old is None:
                return None
            return max(new - old, 0) / seconds

        name = "-".join(text for _, text in labels)
        states = [word for word in ("failed", "paused") if value(f"logfs_partition_{word}")]
        if value("logfs_damaged_ranges"):
            states.append("damaged")
        if name in work:
            states.append(work[name])
        found.append(
            Row(
                name,
                size,
                value("kafka_log_log_numlogsegments") or 0,
                value("kafka_log_log_logstartoffset") or 0,
                value("kafka_log_log_logendoffset") or 0,
                rate("kafka_log_log_logendoffset" if is_followed else _IN),
                rate("kafka_log_log_size" if is_followed else _BYTES_IN),
                None if is_followed else rate(_BYTES_OUT),
                value("logfs_cleaner_dirty_ratio"),
                lags.get(labels),
                ",".join(states),
                value("kafka_server_brokertopicmetrics_remotelogsizebytes"),
            )
        )
    return found + [Row(name, 0, 0, 0, 0, state="offline") for name in after.status["offline"]]


def table(
    found: Sequence[Row], sort: str, count: int | None, width: int | None = None
) -> list[str]:
    """Return the table of the rows `found` as lines, the heading first.

    `sort` is a key of `SORTS`. `count` is the largest number of partitions to show, None for all. If a line is
    longer than `width`, columns are left out in the order of `_LEAST_WANTED`, only as many as necessary. The column
    REMOTE is shown only if a log is tiered.
    """
    cells = [
        _HEADINGS,
        *(
            (
                row.name,
                format_size(row.size),
                "-" if row.remote is None else format_size(row.remote),
                f"{row.segments:.0f}",
                f"{row.start:.0f}",
                f"{row.end:.0f}",
                _optional(row.records, "{:.0f}"),
                _optional(row.bytes_in and row.bytes_in / 1e6, "{:.2f}"),
                _optional(row.bytes_out and row.bytes_out / 1e6, "{:.2f}"),
                _optional(row.dirty, "{:.2f}"),
                _optional(row.lag, "{:.0f}"),
                row.state,
            )
            for row in _chosen(found, sort, count)
        ),
    ]
    columns = list(zip(*cells, strict=True))
    if all(row.remote is None for row in found):
        columns = [each for each in columns if each[0] != "REMOTE"]
    for heading in (None, *_LEAST_WANTED):
        columns = [each for each in columns if each[0] != heading]
        lines = table_lines(list(zip(*columns, strict=True)), numbers=range(1, len(columns) - 1))
        if width is None or max(map(len, lines)) <= width:
            break
    return lines


def _chosen(found: Sequence[Row], sort: str, count: int | None) -> Sequence[Row]:
    return sorted(sorted(found, key=lambda row: row.name), key=SORTS[sort][1])[:count]


def _whole(value: object) -> object:
    """Return a float without a fraction as an int, and any other value unchanged. (Metrics are floats.)"""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _optional(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _summary(watched: Source, look: StoreSnapshot, found: Sequence[Row]) -> str:
    status = look.status
    text = f"{watched.name}: {status['partitions']} partitions, {format_size(sum(row.size for row in found))}"
    rate = sum(row.bytes_in or 0 for row in found) / 1e6
    text += f", {sum(row.records or 0 for row in found):.0f} records/s, {rate:.2f} MB/s in"
    if status["unloaded"]:
        text += f", {status['unloaded']} not loaded yet"
    if status["offline"]:
        text += f", {len(status['offline'])} offline"
    return text + (", upkeep paused" if (status["upkeep"] or {}).get("paused") else "")


def _print_once(watched: Source, arguments: argparse.Namespace) -> None:
    before, began = watched.look(), time.monotonic()
    time.sleep(arguments.interval)
    after = watched.look()
    found = rows(before, after, time.monotonic() - began)
    if arguments.json:
        for row in _chosen(found, arguments.sort, arguments.rows):
            print_json(dict(zip(_KEYS, map(_whole, row), strict=True)))
        return
    print(_summary(watched, after, found))
    print("\n".join(table(found, arguments.sort, arguments.rows)))


# The class and the function below show the table live on a terminal.


class _Live:
    def __init__(self, watched: Source, arguments: argparse.Namespace) -> None:
        self.watched = watched
        self.interval = arguments.interval
        self.rows = arguments.rows
        self.sort = arguments.sort
        self.found: list[Row] = []

    def run(self) -> None:
        before, seen = self.watched.look(), time.monotonic()
        after = before
        self.found = rows(before, after, 1)
        with _terminal() as (keys, resized):
            due = seen + self.interval
            while True:
                self._draw(after)
                left = max(due - time.monotonic(), 0)
                ready, _, _ = select.select([keys, resized], [], [], left)
                if resized in ready:
                    os.read(resized, 512)
                if keys in ready and not self._press(os.read(keys, 64).decode("ascii", "replace")):
                    return
                if time.monotonic() >= due:
                    after, now = self.watched.look(), time.monotonic()
                    self.found = rows(before, after, now - seen)
                    before, seen, due = after, now, now + self.interval

    def _press(self, pressed: str) -> bool:
        """Apply the pressed keys: change the sort order, or return False for `q`.

        Also returns False if `pressed` is "", because the terminal is closed.
        """
        for name, (letter, _) in SORTS.items():
            if letter in pressed:
                self.sort = name
        return bool(pressed) and "q" not in pressed

    def _draw(self, look: StoreSnapshot) -> None:
        # Ask the terminal for its size: the environment variables COLUMNS and LINES do not follow a resize.
        width, height = os.get_terminal_size(sys.stdout.fileno())
        keys = " ".join(f"{letter}:{name}" for name, (letter, _) in SORTS.items())
        head = [
            _summary(self.watched, look, self.found),
            f"q:quit  sort by {self.sort} ({keys})",
            "",
        ]
        lines = head + table(self.found, self.sort, self.rows, width)
        # Each line erases the rest of the old line. Clearing the whole screen first would flicker.
        shown = "".join(f"{line[:width]}\x1b[K\n" for line in lines[: height - 1])
        sys.stdout.write(f"\x1b[H{shown}\x1b[J")
        sys.stdout.flush()


@contextmanager
def _terminal() -> Iterator[tuple[int, int]]:
    """Set up the terminal for the live table, and restore it at the end, also after an exception.

    Yields two descriptors to wait for: one to read pressed keys from, and one that is readable after a resize.
    """
    import termios
    import tty

    keys = sys.stdin.fileno()
    saved = termios.tcgetattr(keys)
    resized, wake = os.pipe()
    os.set_blocking(wake, False)
    old_wake = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    old_winch = signal.signal(signal.SIGWINCH, lambda *_: None)
    old_term = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        tty.setcbreak(keys)
        # Switch to the alternate screen, and hide the cursor.
        sys.stdout.write("\x1b[?1049h\x1b[?25l\x1b[2J")
        yield keys, resized
    finally:
        sys.stdout.write("\x1b[?25h\x1b[?1049l")
        sys.stdout.flush()
        termios.tcsetattr(keys, termios.TCSADRAIN, saved)
        signal.signal(signal.SIGTERM, old_term)
        signal.signal(signal.SIGWINCH, old_winch)
        signal.set_wakeup_fd(old_wake)
        os.close(resized)
        os.close(wake)
