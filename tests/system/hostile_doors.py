"""Every interface to a log directory, called in this process, and the checks of the results."""

from __future__ import annotations

import io
import logging
import re
import traceback
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from crc32c import crc32c

from logfs import cli
from logfs.errors import Corrupt, LogfsError
from logfs.format.batches.batch import HEADER_SIZE, parse_header
from logfs.format.batches.legacy import LegacyBatch, is_legacy
from logfs.format.text import envelope
from logfs.format.text.rendering import View
from logfs.log.scan import scan_split
from logfs.log.segment.batch_iterator import DamagedRange
from logfs.store.observe.status import partition_status, store_status
from logfs.store.store import Store
from tests.system.hostile_corpus import NOW, Template, covered, seen

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator
    from pathlib import Path

    from logfs.format.batches.record import Record
    from logfs.log.append.partition import Partition
    from logfs.log.read.reader import Reader

_TIMES = (0, 1, NOW - 50_000, NOW, NOW + 2, 2**62, 2**63 - 1, 10**19 - 1)
_KEYS = (b"k0", b"k1", b"only 2", b"nosuch", b"")
# The offset field of an envelope.
_OFFSET = re.compile(rb'"offset":\d+,')
# The number of damaged ranges after which reading on is given up.
_MOST_DAMAGES = 200
_SOME = 10
# More than any file of the templates has, and more than a small batch that decompresses to a very large size.
_MOST_BYTES = 8 << 20


@dataclass
class Findings:
    """The errors found, by a key that tells one from another."""

    found: dict[str, str] = field(default_factory=dict)

    def add(self, key: str, details: str) -> None:
        self.found.setdefault(key, details)

    def exception(self, door: str, error: BaseException) -> None:
        """Add an exception that no interface may raise. The key is its type and its last place in logfs."""
        frames = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in frames if "/logfs/" in frame.filename]
        place = frames[-1] if not ours else ours[-1]
        name = place.filename.rpartition("/logfs/")[2]
        key = f"{type(error).__name__} at {name}:{place.name}:{place.lineno}"
        details = "".join(traceback.format_exception(error))
        self.add(key, f"{door}\n{details[-3000:]}")


def _start_of(file: Path) -> bytes:
    """Return the start of a file. More zeros than fit in memory may follow."""
    with file.open("rb") as opened:
        return opened.read(_MOST_BYTES)


class _Swallowed(logging.Handler):
    """Adds each error that logfs logs with a traceback: logfs did not expect that error."""

    def __init__(self, findings: Findings) -> None:
        super().__init__()
        self.findings = findings

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            self.findings.exception(f"logged: {record.getMessage()[:200]}", error)


class Doors:
    """All interfaces to one log directory."""

    def __init__(
        self, root: Path, template: Template, chance: random.Random, findings: Findings
    ) -> None:
        self.root = root
        self.template = template
        self.chance = chance
        self.findings = findings
        # A value that is appended may take the offset of one of these records.
        self.made = {name: [*records.values()] for name, records in template.records.items()}
        # The partitions in which a mutation made a batch with a right CRC.
        self.forged = {name for name in template.records if self._is_forged(name)}

    def _is_forged(self, name: str) -> bool:
        """Whether the files of a partition have a batch with a right CRC that was never in its log."""
        known = self.template.sealed[name]
        # Staged batches are in no log yet.
        logs = {
            batch
            for path, data in self.template.files.items()
            if path.startswith(f"{name}/") and ".log" in path
            for batch in _valid(data)
        }
        for file in (self.root / name).glob("*"):
            if file.is_symlink() or not file.is_file():
                continue
            if ".log" in file.name or file.name.endswith(".staged"):
                data = _start_of(file)
                is_as_it_was = data == self.template.files.get(f"{name}/{file.name}")
                here = logs if ".log" in file.name else known
                if not is_as_it_was and any(new not in here for new in _valid(data)):
                    return True
        return False

    @contextmanager
    def _guarded(self, door: str) -> Iterator[None]:
        """Add every exception of the block, except for errors of logfs and of the system."""
        try:
            yield
        except (LogfsError, OSError):
            pass
        except Exception as error:
            self.findings.exception(door, error)

    def go_through(self, *, live: bool) -> None:
        """Use all interfaces, the one that writes last."""
        handler = _Swallowed(self.findings)
        logging.getLogger("logfs").addHandler(handler)
        try:
            self._commands()
            self._read_only("read only")
            if not live and self.chance.random() < 0.5:
                lost = self._before_writing()
                self._writing()
                self._read_only("read only, after writing")
                self._still_there(lost)
        finally:
            logging.getLogger("logfs").removeHandler(handler)

    # Commands.

    def _command(self, *words: str) -> bytes:
        out, errors = io.BytesIO(), io.BytesIO()
        # The streams are set up as Python sets up the standard streams.
        stdout = io.TextIOWrapper(out, encoding="utf-8", errors="strict", write_through=True)
        stderr = io.TextIOWrapper(errors, encoding="utf-8", errors="backslashreplace")
        with self._guarded(" ".join(words)), redirect_stdout(stdout), redirect_stderr(stderr):
            try:
                cli.main(words)
            except SystemExit:
                self.findings.add(f"exit of {words[0]}", repr(words))
        stdout.flush()
        return out.getvalue()

    def _commands(self) -> None:
        chance, root = self.chance, str(self.root)
        self._command("check", root)
        if chance.random() < 0.1:
            self._command("describe", root)
            self._command("groups", root)
        for name in self.template.records:
            target = f"{root}/{name}"
            what: tuple[str, ...] = chance.choice(
                (
                    (),
                    (),
                    ("-J",),
                    ("-F", "%s %k %h %o %T %t %p %S %K\\n"),
                    ("-t", str(chance.choice(_TIMES))),
                    ("--newest", chance.choice(("k1", "nosuch"))),
                    ("-o", chance.choice(("0", "3..", "-5", "..7", str(2**63 - 1)))),
                    ("-J", "--isolation", "read_committed"),
                )
            )
            said = self._command("cat", target, *what)
            if not what:
                self._check_lines(name, said, self.template.lines[name], "cat")
            if "-J" in what:
                self._check_lines(name, said, self.template.envelopes[name], "cat -J")
        files = [str(file) for file in sorted(self.root.glob("*/[0-9]*")) if file.is_file()]
        how = chance.choice(
            (
                ("--deep-iteration", "--print-data-log"),
                ("--deep-iteration", "--json"),
                ("--offsets-decoder", "--print-data-log"),
                ("--index-sanity-check",),
                ("--verify-index-only",),
            )
        )
        if files:
            self._command("dump", *how, *files)

    # The Python interface.

    def _read_only(self, door: str) -> None:
        with self._guarded(door), Store(self.root, read_only=True, clock=lambda: NOW) as store:
            with self._guarded(f"{door}: status"):
                store_status(store)
            with self._guarded(f"{door}: groups"):
                for name in store:
                    store.groups.of(name)
                list(store.groups)
            for name in store:
                if name in self.template.records:
                    self._partition(store, store[name], door)

    def _partition(self, store: Store, partition: Partition, door: str) -> None:
        name = partition.name.directory
        with self._guarded(f"{door}: status of {name}"):
            partition_status(partition, store)
        records = self._read(partition, door)
        whole = self._texts(partition, door)
        # Records of a forged batch may lie outside the offsets that its header gives.
        if records is not None and whole is not None and name not in self.forged:
            made = b"".join((value or b"") + b"\n" for value in records)
            if made != whole:
                self.findings.add("lines differ from records", f"{door}\n{made!r}\n{whole!r}")
        with self._guarded(f"{door}: pieces"):
            self._pieces(self.chance.choice((partition, partition.committed)), door)
        if self.chance.random() < 0.5:
            self._lookups(self.chance.choice((partition, partition.committed)), door)

    def _read(self, partition: Partition, door: str) -> list[bytes | None] | None:
        """Return the values of all records, or None if there is damage."""
        name = partition.name.directory
        values: list[bytes | None] = []
        start = partition.log_start_offset
        is_whole = True
        with self._guarded(f"{door}: read"):
            for _ in range(_MOST_DAMAGES):
                try:
                    for record in partition.read(start):
                        self._check(name, record.offset, seen(record), "read")
                        values.append(record.value)
                    break
                except DamagedRange as damage:
                    is_whole = False
                    start = max(damage.next_offset, start + 1)
            else:
                self.findings.add("endless damage", f"{door}: {start}")
            if not is_whole or name in self.forged:
                return None
            columns = partition.columns()
            found = [record.value for record in columns.records()]
            if found != values:
                self.findings.add("columns differ from records", f"{door}\n{found}\n{values}")
            return values
        return None

    def _pieces(self, reader: Reader, door: str) -> None:
        """Read as a Spark task does: the result must be the same records, or damage among them."""
        name = reader.name.directory
        first, end = reader.log_start_offset, reader.log_end_offset
        found: list[Record] = []
        is_whole = True
        for piece in scan_split.plan(
            reader, first, end, split_bytes=self.chance.choice((1, 1 << 20))
        ):
            for columns in scan_split.read(piece):
                if isinstance(columns, DamagedRange):
                    is_whole = False
                else:
                    found += columns.records()
        for record in found:
            self._check(name, record.offset, seen(record), "pieces")
        if is_whole and name not in self.forged:
            records = list(reader.read(first))
            if found != records:
                self.findings.add("pieces differ", f"{door}\n{found}\n{records}")

    def _texts(self, partition: Partition, door: str) -> bytes | None:
        """Return the lines, or None if there is damage."""
        name = partition.name.directory
        whole: bytes | None = None
        known = {View.LINES: self.template.lines, View.ENVELOPES: self.template.envelopes}
        for view in View:
            start = None if view is View.LINES else self.chance.choice((None, None, 1, 5, 30))
            with self._guarded(f"{door}: {view.value}"):
                text = partition.text(view, start)
                data = text.read(0, text.size + 1)
                self._check_lines(name, data, known[view][name], f"{door}: {view.value}")
                if view is View.LINES:
                    whole = data
        return whole

    def _lookups(self, reader: Reader, door: str) -> None:
        name = reader.name.directory
        first, end = reader.log_start_offset, reader.log_end_offset
        near = [first, end - 1, end, 2**63 - 1, -1]
        near += [self.chance.randint(first, max(end, first)) for _ in range(_SOME)]
        for offset in near:
            with self._guarded(f"{door}: record"):
                record = reader.record(offset)
                if record is not None:
                    self._check(name, record.offset, seen(record), "record")
                    if record.offset != offset:
                        self.findings.add("another record", f"{door}: {offset} {record}")
        for time in (*self.chance.sample(_TIMES, 3), self.chance.randrange(-3, 0)):
            with self._guarded(f"{door}: time"):
                found = reader.offset_for_time(time, shown=time >= 0)
                if time >= 0 and found is not None:
                    self._check_time(reader, time, found.offset, found.timestamp)
        for key in self.chance.sample(_KEYS, 2):
            with self._guarded(f"{door}: newest"):
                newest = reader.newest(key)
                if newest is not None:
                    self._check(name, newest.offset, seen(newest), "newest")
                    if newest.key != key:
                        self.findings.add("another key", f"{door}: {key!r} {newest}")
        with self._guarded(f"{door}: ends"):
            reader.first_offset_from(first)
            reader.last_offset()
            reader.offset_of_last(3)

    # The checks.

    def _check(self, name: str, offset: int, record: tuple[object, ...], door: str) -> None:
        if name in self.forged or name not in self.template.records:
            return
        known = self.template.records[name].get(offset)
        if known == record:
            return
        if record in self.made[name]:
            # No CRC covers the base offset of a batch, so a wrong one may fit in a log with gaps. And a commit that
            # waits is made wherever the log ends.
            if not self.template.gaps and self.template.name != "commit":
                self.findings.add(f"moved record by {door}", f"{name} {offset}: {record}")
            return
        self.findings.add(f"wrong record by {door}", f"{name} {offset}: {record} for {known}")

    def _check_time(self, reader: Reader, time: int, offset: int, timestamp: int) -> None:
        name = reader.name.directory
        if timestamp < time:
            self.findings.add("a time before the one asked for", f"{time} {offset} {timestamp}")
        if name in self.forged or name not in self.template.records:
            return
        known = self.template.records[name].get(offset)
        if known is not None and known[3] != timestamp and not self.template.gaps:
            self.findings.add("another time", f"{time}: {offset} {timestamp}, is {known[3]}")

    def _check_lines(self, name: str, data: bytes, known: set[bytes], door: str) -> None:
        if name in self.forged or name not in self.template.records:
            return
        if self.template.gaps or self.template.name == "commit":
            # The offsets may differ: see `_check`.
            return
        wrong = (
            set(data.splitlines(keepends=True)) - known if b"\r" in data else _lines(data, known)
        )
        if wrong:
            # An envelope may be right except for its offset.
            is_moved = {_OFFSET.sub(b"", line) for line in wrong} <= {
                _OFFSET.sub(b"", line) for line in known
            }
            what = "moved record" if is_moved else "wrong line"
            self.findings.add(f"{what} by {door}", f"{name}: {sorted(wrong)[:3]}")

    # Writing.

    def _writing(self) -> None:
        with self._guarded("writing"), Store(self.root, clock=lambda: NOW) as store:
            for name in self.template.records:
                with self._guarded(f"writing to {name}"):
                    if name in store:
                        self._append(store[name])

    def _append(self, partition: Partition) -> None:
        from logfs.format.batches.record import Record

        value = b"appended"
        offset = partition.append([Record(value, b"k1")])
        record = partition.record(offset)
        if record is None or (record.offset, record.value) != (offset, value):
            self.findings.add("what was appended is not there", f"{offset}: {record}")
        partition.flush()
        name = partition.name.directory
        if record is not None:
            # From now on the record is one of the log's.
            self.template.records[name][offset] = seen(record)
            self.template.lines[name] |= {value + b"\n"}
            line = envelope.encode(record, envelope.prefix(partition.name))
            self.template.envelopes[name] |= {line}

    def _before_writing(self) -> dict[str, dict[str, bytes]]:
        """Return the present content of the .log files."""
        return {
            name: {
                file.name: _start_of(file)
                for file in (self.root / name).glob("*.log")
                if file.is_file() and not file.is_symlink()
            }
            for name in self.template.records
        }

    def _still_there(self, before: dict[str, dict[str, bytes]]) -> None:
        """Check that no batch that was valid is gone, whatever the other files contain."""
        for name, files in before.items():
            here = b"".join(
                _start_of(file)
                for file in (self.root / name).glob("*")
                # Not the indexes, which have space for many entries.
                if file.is_file() and not file.is_symlink() and "index" not in file.name
            )
            for file, data in files.items():
                for start, end in _batches(data):
                    if data[start + 21 : end] not in here:
                        self.findings.add("a valid batch is gone", f"{name}/{file}: byte {start}")
                        return


def _lines(data: bytes, known: set[bytes]) -> set[bytes]:
    return {line + b"\n" for line in data.split(b"\n")[:-1]} - known


def _batches(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield the start and end of the valid batches of magic 2 that follow one another from the start of a file."""
    at = 0
    while at + HEADER_SIZE <= len(data):
        header = parse_header(data, at)
        end = at + header.size_bytes
        if header.magic != 2 or not at + HEADER_SIZE <= end <= len(data):
            return
        if crc32c(data[at + 21 : end]) != header.crc:
            return
        yield at, end
        at = end


_HEAD = np.dtype([("offset", ">i8"), ("size", ">i4"), ("unchecked", ">i4"), ("magic", "u1")])


def _valid(data: bytes) -> Iterator[bytes]:
    """Yield the bytes under the CRC of every valid batch in `data`, wherever the batch begins."""
    room = len(data) - 25
    if room <= 0:
        return
    heads = np.ndarray(room, _HEAD, data, strides=(1,))
    sizes = heads["size"].astype(np.int64) + 12
    fits = (heads["magic"] <= 2) & (sizes >= 26) & (sizes <= len(data) - np.arange(room))
    for at in np.flatnonzero(fits).tolist():
        whole = memoryview(data)[at : at + int(sizes[at])]
        if not is_legacy(whole):
            if len(whole) >= HEADER_SIZE and crc32c(whole[21:]) == parse_header(whole).crc:
                yield covered(whole, 2)
            continue
        try:
            LegacyBatch.parse(whole)
        except Corrupt:
            continue
        yield covered(whole, whole[16])
