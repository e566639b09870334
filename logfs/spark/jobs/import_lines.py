"""The import formats in which a line is a record: its value, or a JSON object for the record (an envelope).

Large files are divided between tasks at the beginnings of lines.
"""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from logfs.errors import InvalidEnvelope, InvalidRecord
from logfs.format.encoding.arrow_batches import binary_array
from logfs.format.encoding.arrow_layout import gather
from logfs.format.text.envelope import decode_placed
from logfs.format.text.envelope_parser import parse
from logfs.spark.jobs.import_formats import BATCH_ROWS, SCHEMA, ImportFormat, batch_of
from logfs.spark.jobs.import_splits import FileRange
from logfs.spark.jobs.job_runner import TASK_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from logfs.format.text.envelope import PlacedRecord
    from logfs.format.text.envelope_parser import Envelopes
    from logfs.spark.jobs.import_splits import Name

_BLOCK_BYTES = 4 << 20
# The most bytes in a line. Lines with records are shorter, so a file with a longer line is probably not text.
_LONGEST_LINE = 1 << 30
# A decoder of JSON that keeps the text of numbers. orjson rounds numbers with many digits, and shortens 1.10 to 1.1.
_WITH_NUMBERS_AS_WRITTEN = json.JSONDecoder(parse_int=orjson.Fragment, parse_float=orjson.Fragment)
_CODECS = {".gz": "gzip", ".zst": "zstd", ".lz4": "lz4", ".bz2": "bz2"}
# The beginning of a JSON envelope in the form in which an export writes it. All envelopes of a partition have the
# same text in the first group.
_PREFIX = re.compile(
    rb'(\{"topic":"([a-zA-Z0-9._-]+)","partition":(0|[1-9][0-9]{0,8}),"offset":)([0-9]{1,18}),'
)


class LinesFormat(ImportFormat):
    """The base class of `TextFormat` and `EnvelopeFormat`: a file has one record per line."""

    def cut(self, path: str) -> list[FileRange]:
        size = Path(path).stat().st_size
        if Path(path).suffix in _CODECS or size <= TASK_BYTES:
            return [FileRange(path, 0, None, size, file_bytes=size)] if size else []
        return [
            FileRange(
                path, start, start + TASK_BYTES, min(TASK_BYTES, size - start), file_bytes=size
            )
            for start in range(0, size, TASK_BYTES)
        ]

    def read(self, file_range: FileRange) -> Iterator[pa.RecordBatch]:
        for position, block in blocks(file_range):
            yield from self._rows(file_range, position, block)

    @abstractmethod
    def _rows(self, file_range: FileRange, position: int, block: bytes) -> Iterator[pa.RecordBatch]:
        """Yield the rows of `block`, which has whole lines. Its first byte is at `position` in the file."""


class TextFormat(LinesFormat):
    """Reads files in which a line is the value of a record, or its key and value.

    With the option `key_separator`, the text before the first separator is the key, and the text after it is the
    value. A line without a separator is a value without a key. With the option `key`, each line must be a JSON
    object. The field of this name is the key, and the whole line is the value.
    """

    def look_bytes(self, file_range: FileRange) -> int:
        return 0

    def look(self, file_range: FileRange) -> list[FileRange]:
        return [replace(file_range, names=frozenset([(self.options.topic, None)]))]

    def _rows(self, file_range: FileRange, position: int, block: bytes) -> Iterator[pa.RecordBatch]:
        data = np.frombuffer(block, np.uint8)
        ends = np.flatnonzero(data == ord("\n"))
        starts = np.concatenate([[0], ends[:-1] + 1])
        lengths = (ends - starts).astype(np.int32)
        separator = self.options.key_separator
        if self.options.key is not None:
            lines = block[:-1].split(b"\n")
            keys = pa.array(self._fields(file_range, position, lines), SCHEMA.field("key").type)
        elif separator is not None:
            values = binary_array(gather(data, starts, lengths))
            found = pc.find_substring(values, separator.encode()).to_numpy(zero_copy_only=False)
            keys = binary_array(gather(data, starts, found.astype(np.int32)))
            behind = np.where(found < 0, 0, found + len(separator.encode()))
            starts, lengths = starts + behind, lengths - behind.astype(np.int32)
        else:
            keys = pa.nulls(len(starts), SCHEMA.field("key").type)
        values = binary_array(gather(data, starts, lengths))
        kind = SCHEMA.field("value").type
        yield batch_of(len(starts), key=keys.cast(kind), value=values.cast(kind))

    def _fields(self, file_range: FileRange, position: int, lines: Sequence[bytes]) -> list[Any]:
        """Return the key of each line, which is the value of the line's JSON field `options.key`.

        `lines` are the lines of the block that begins at byte `position` of the file. A string is returned as it is.
        A number, list or other value is returned as JSON, in bytes, with numbers as they are written. None stands for
        a field that is null or missing. Raises `InvalidRecord` for a line that is not a JSON object, or is nested too
        deeply.
        """
        found = []
        for number, line in enumerate(lines):
            try:
                value = orjson.loads(line)
                if not isinstance(value, dict):
                    raise ValueError("not a JSON object")
                found.append(_key(line, value.get(self.options.key), self.options.key))
            except (ValueError, RecursionError, orjson.JSONEncodeError) as error:
                _refuse(
                    file_range,
                    position,
                    number,
                    f"{error}; the key is taken from its field {self.options.key!r}",
                )
        return found


class EnvelopeFormat(LinesFormat):
    """Reads files of JSON envelopes, one per line, as in a JSON export and in `records.jsonl` of a mount."""

    def look_bytes(self, file_range: FileRange) -> int:
        return file_range.size_bytes

    def look(self, file_range: FileRange) -> list[FileRange]:
        """Read a file range, and return a list with a copy of it that has `names` and `offsets` set.

        `names` are the partitions of the envelopes; the option `topic` replaces their topic. `offsets` are their
        first and their greatest offset; None if they have several partitions, or if the partition or an offset is
        missing. The list is empty if no line begins in the file range. The file is read in blocks of whole lines. If
        all lines in a block begin like the lines of an export of one partition, only the beginnings of the first and
        the last line are parsed.
        """
        names: set[Name] = set()
        offsets: list[int | None] = []
        for position, block in blocks(file_range):
            found = _same_prefix(block)
            if found is None:
                placed = list(self._decoded(file_range, position, block))
                names |= {(each.topic, each.partition) for each in placed}
                here = [each.offset for each in placed]
            else:
                names.add(found[0])
                here = list(found[1])
            known = [offset for offset in here if offset is not None]
            offsets += [known[0], max(known)] if len(known) == len(here) else [None]
        if not names:
            # No line begins in the file range: it is inside a line that belongs to an earlier file range.
            return []
        alone = len(names) == 1 and None not in {partition for _, partition in names}
        bounds = None
        if alone and None not in offsets:
            bounds = offsets[0] or 0, max(offset or 0 for offset in offsets)
        return [replace(file_range, names=self._named(names), offsets=bounds)]

    def _named(self, names: set[Name]) -> frozenset[Name]:
        topic = self.options.topic
        return frozenset((topic or own, partition) for own, partition in names)

    def _rows(self, file_range: FileRange, position: int, block: bytes) -> Iterator[pa.RecordBatch]:
        head = _PREFIX.match(block)
        parsed = None if head is None else parse(block, head[1])
        if head is not None and parsed is not None:
            yield self._canonical(head[2].decode(), int(head[3]), parsed)
            return
        placed = list(self._decoded(file_range, position, block))
        for start in range(0, len(placed), BATCH_ROWS):
            yield self._batch(placed[start : start + BATCH_ROWS])

    def _canonical(self, topic: str, partition: int, found: Envelopes) -> pa.RecordBatch:
        """Convert envelopes of one partition, in the form in which an export writes them, to an Arrow batch.

        `topic` and `partition` name the partition, and `found` are the parsed envelopes. No Python object is made for
        each record.
        """
        count = len(found.offsets)

        def gathered(starts: NDArray[np.int64], lengths: NDArray[np.int32], kind: Any) -> pa.Array:
            return binary_array(gather(found.data, starts, lengths), kind)

        names = gathered(found.header_key_starts, found.header_key_lengths, pa.string())
        values = gathered(found.header_value_starts, found.header_value_lengths, pa.binary())
        kind = SCHEMA.field("headers").type
        pairs = pa.StructArray.from_arrays([names, values], fields=list(kind.value_type))
        columns = {
            "topic": pa.repeat(topic, count),
            "key": gathered(found.key_starts, found.key_lengths, pa.binary()),
            "value": gathered(found.value_starts, found.value_lengths, pa.binary()),
            "headers": pa.ListArray.from_arrays(pa.array(found.header_offsets), pairs, kind),
            "timestamp": pa.array(found.timestamps),
            "offset": pa.array(found.offsets),
        }
        if not self.options.repartition:
            columns["partition"] = pa.repeat(partition, count)
        arrays = {name: column.cast(SCHEMA.field(name).type) for name, column in columns.items()}
        return batch_of(count, **arrays)

    def _batch(self, placed: Sequence[PlacedRecord]) -> pa.RecordBatch:
        records = [each.record for each in placed]
        columns: dict[str, list[Any]] = {
            "topic": [each.topic for each in placed],
            "partition": [None if self.options.repartition else each.partition for each in placed],
            "key": [record.key for record in records],
            "value": [record.value for record in records],
            "headers": [
                [
                    {"key": name.encode("utf-8", "surrogateescape"), "value": value}
                    for name, value in record.headers
                ]
                for record in records
            ],
            "timestamp": [record.timestamp for record in records],
            "offset": [each.offset for each in placed],
        }
        arrays = {name: _array(name, column) for name, column in columns.items()}
        return batch_of(len(placed), **arrays)

    def _decoded(
        self, file_range: FileRange, position: int, block: bytes
    ) -> Iterator[PlacedRecord]:
        for number, line in enumerate(block[:-1].split(b"\n")):
            try:
                yield decode_placed(line)
            except InvalidEnvelope as error:
                _refuse(
                    file_range,
                    position,
                    number,
                    f"{error} (for lines that are not envelopes, use format text)",
                )


def _key(line: bytes, value: Any, field: str | None) -> str | bytes | None:
    """Return the key that is in the field `field` of a line of JSON. `value` is the parsed value of this field.

    A string or None is returned as it is, any other value as JSON, in bytes, with numbers as they are written.
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int) and value:
        # The result is the number as it is written: an integer has only one text, except 0, which can also be -0.
        return orjson.dumps(value)
    return orjson.dumps(_WITH_NUMBERS_AS_WRITTEN.decode(line.decode())[field])


def _array(name: str, column: list[Any]) -> pa.Array:
    kind = SCHEMA.field(name).type
    if name == "headers":
        # In a log, a header name can be any bytes. Use the unsafe cast, which does not check that names are UTF-8.
        pairs = pa.struct([("key", pa.binary()), ("value", pa.binary())])
        return pa.array(column, pa.list_(pairs)).cast(kind, safe=False)
    if name == "timestamp":
        return pa.array(column, pa.int64()).cast(kind)
    return pa.array(column, kind)


def _same_prefix(block: bytes) -> tuple[Name, tuple[int, int]] | None:
    """Return the partition of the envelopes in a block, and the offsets of the first and the last envelope.

    Return None unless every line begins like a line of an export, and all lines have the same partition.
    """
    head = _PREFIX.match(block)
    last = block.rfind(b"\n", 0, len(block) - 1) + 1
    tail = _PREFIX.match(block, last)
    if head is None or tail is None:
        return None
    if block.count(b"\n" + head[1]) + 1 != block.count(b"\n"):
        return None
    return (head[2].decode(), int(head[3])), (int(head[4]), int(tail[4]))


# The functions from here on read files with lines.


def blocks(file_range: FileRange) -> Iterator[tuple[int, bytes]]:
    """Yield (position of the first byte, block) for blocks of whole lines: all lines that begin in the file range.

    Positions in a compressed file count its uncompressed bytes. Every block ends with a newline, which is added if
    the file does not end with one. Raises `InvalidRecord` if the file cannot be decompressed or a line is too long,
    `NotOnHost` if the file is missing or shorter than planned on this machine, and `OSError`.
    """
    file_range.check_here()
    with _open(file_range.path) as file:
        position = max(file_range.start - 1, 0)
        end = file_range.end
        if position:
            file.seek(position)
        # If the file range begins inside a line, skip the rest of this line, which belongs to an earlier file range.
        # Begin to read one byte earlier: if this byte is a newline, a line begins at the start of the file range.
        skips = file_range.start > 0
        rest = b""
        while end is None or position < end:
            data = _read(file_range, file, max(_BLOCK_BYTES, len(rest)))
            rest += data
            if skips:
                newline = rest.find(b"\n") + 1
                if not newline and data:
                    position, rest = position + len(rest), b""
                    continue
                position, rest, skips = position + newline, rest[newline:], False
                if not data or (end is not None and position >= end):
                    return
            if not data:
                if rest:
                    yield position, rest + b"\n"
                return
            if end is not None and position + len(rest) >= end:
                cut = rest.find(b"\n", end - 1 - position) + 1
                if cut:
                    yield position, rest[:cut]
                    return
            else:
                cut = rest.rfind(b"\n") + 1
            if cut:
                yield position, rest[:cut]
                position, rest = position + cut, rest[cut:]
            elif len(rest) > _LONGEST_LINE:
                _refuse(
                    file_range,
                    position,
                    0,
                    f"is longer than {_LONGEST_LINE} bytes; is the file text?",
                )


def _open(path: str) -> BinaryIO:
    codec = _CODECS.get(Path(path).suffix)
    if codec is None:
        return Path(path).open("rb", buffering=0)
    file: BinaryIO = pa.input_stream(path, codec)
    return file


def _read(file_range: FileRange, file: BinaryIO, size: int) -> bytes:
    try:
        return file.read(size)
    except (pa.ArrowException, OSError) as error:
        # Errors of the decompressor do not name the file.
        raise InvalidRecord(f"{file_range.path}: {error}") from None


def _refuse(file_range: FileRange, position: int, number: int, why: str) -> NoReturn:
    """Raise `InvalidRecord` for a line of a block. `number` counts the lines of the block from 0.

    The block begins at byte `position` of the file. The message has the number of the line in the file: this function
    counts the lines before the block.
    """
    before = 0
    with _open(file_range.path) as file:
        while position > 0 and (data := file.read(min(_BLOCK_BYTES, position))):
            before += data.count(b"\n")
            position -= len(data)
    raise InvalidRecord(f"{file_range.path}, line {before + number + 1}: {why}")
