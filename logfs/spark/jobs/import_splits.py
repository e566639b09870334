"""Finds the files of an import, and orders and merges the file ranges that tasks read.

A file range has consecutive rows of one file (class `FileRange`).
"""

from __future__ import annotations

import errno
import glob
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from logfs.errors import InvalidSetting
from logfs.spark.options import local_path
from logfs.spark.workers import NotOnHost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    # A topic and a partition. Either is None if the file does not specify it.
    Name = tuple[str | None, int | None]


@dataclass(frozen=True)
class FileRange:
    """Consecutive rows of a file.

    In a file with lines, the file range has the lines that begin at the byte positions [`start`, `end`). In a Parquet
    file, it has the row groups with the numbers [`start`, `end`). None as `end` stands for the end of the file.
    `size_bytes` is the size of the file range. `file_bytes` is the size that the whole file had when the import was
    planned. `names` has the (topic, partition) pairs of the rows.

    `offsets` has the offset of the first row and the greatest offset of all rows. For a Parquet file, it has the
    least and the greatest offset, which are in the footer. It is None unless all offsets are known, and all rows are
    of the same known partition.
    """

    path: str
    start: int
    end: int | None
    size_bytes: int
    names: frozenset[Name] = frozenset()
    offsets: tuple[int, int] | None = None
    file_bytes: int = 0

    def check_here(self) -> None:
        """In a task: raise `NotOnHost` if the file is missing or shorter than planned on this machine.

        Raises `OSError`.
        """
        try:
            size = os.stat(self.path).st_size
        except (FileNotFoundError, NotADirectoryError):
            raise NotOnHost.because(f"{self.path}: does not exist") from None
        if size < self.file_bytes:
            raise NotOnHost.because(
                f"{self.path}: has {size} bytes, but should have at least {self.file_bytes}"
            )


def find_files(sources: Iterable[str | os.PathLike[str]]) -> list[str]:
    """Return the absolute paths of the files in `sources`, which are files, directories and globs.

    All files below a directory are included. As in Spark, the exceptions are files and folders whose names begin with
    `_` or `.`. The files of a directory, and the matches of a glob, are sorted by name. Raises `FileNotFoundError`
    for a source that does not exist, and `InvalidSetting` if the sources contain no files.
    """
    found: dict[str, None] = {}
    texts = [os.fspath(source) for source in sources]
    for source in texts:
        text = local_path(source)
        named = [text] if os.path.exists(text) else sorted(glob.glob(text))
        if not named:
            raise FileNotFoundError(errno.ENOENT, "no such file or directory", text)
        for name in named:
            path = Path(name).absolute()
            found.update(dict.fromkeys(_below(path) if path.is_dir() else [str(path)]))
    if not found:
        raise InvalidSetting(
            f"{', '.join(texts) or 'sources'}: no files to import (names that begin with '_' or '.' are skipped)"
        )
    return list(found)


def _below(directory: Path) -> Iterator[str]:
    for path, directories, files in os.walk(directory):
        directories[:] = sorted(name for name in directories if name[0] not in "_.")
        yield from (os.path.join(path, name) for name in sorted(files) if name[0] not in "_.")


def from_path(path: str, column: str) -> str | None:
    """Return the value of `column` from the path of a file with a folder `column=value`; None without such a folder.

    If there are several such folders, the nearest to the file counts. Hive and Spark percent-encode the values; the
    result is decoded.
    """
    for folder in reversed(Path(path).parent.parts):
        name, equals, value = folder.partition("=")
        if equals and name == column:
            return unquote(value)
    return None


# The functions from here on order the file ranges.


def in_order(file_ranges: Sequence[FileRange]) -> list[list[FileRange]]:
    """Return the file ranges in groups, in the order of import. The rows of a group must be merged by offset.

    If all file ranges have offsets that ascend within each file, as in the files of an export, the file ranges are
    sorted by topic, partition and offset. File ranges of one partition whose offsets overlap are then one group: an
    export has a file for each date, and the offsets of two dates may interleave. In all other cases, the order is
    unchanged, and each file range is a group of its own.
    """
    if not all(file_range.offsets for file_range in file_ranges) or not _ascend(file_ranges):
        return [[file_range] for file_range in file_ranges]
    groups: list[list[FileRange]] = []
    previous: frozenset[Name] | None = None
    last = -1
    for file_range in sorted(file_ranges, key=_place):
        first, end = file_range.offsets or (0, 0)
        if file_range.names == previous and first <= last:
            groups[-1].append(file_range)
        else:
            groups.append([file_range])
            last = -1
        previous, last = file_range.names, max(last, end)
    return groups


def _place(file_range: FileRange) -> tuple[str, int, int, str, int]:
    ((topic, partition),) = file_range.names
    first, _ = file_range.offsets or (0, 0)
    return topic or "", partition or 0, first, file_range.path, file_range.start


def _ascend(file_ranges: Sequence[FileRange]) -> bool:
    """Whether within each file the offsets of each partition ascend."""
    last: dict[tuple[str, frozenset[Name]], int] = {}
    for file_range in file_ranges:
        first, end = file_range.offsets or (0, 0)
        file = file_range.path, file_range.names
        if first <= last.get(file, -1):
            return False
        last[file] = end
    return True


# The code from here on merges file ranges by offset.


class _Head(NamedTuple):
    """Rows of a file range that are not merged yet.

    `offsets` has the value by which each row is merged: the greatest offset of this row and all rows before it in the
    file range. So the rows of the file range keep their order.
    """

    rows: pa.RecordBatch
    offsets: NDArray[np.int64]


def merged(
    file_ranges: Sequence[FileRange], read: Callable[[FileRange], Iterator[pa.RecordBatch]]
) -> Iterator[pa.RecordBatch]:
    """Merge the rows of file ranges by the column `offset`, and yield them. Rows of a file range keep their order.

    `read` yields the rows of a file range as batches with the schema `SCHEMA`. It is called only when the merge
    reaches the first offset of the file range, so that few files are open.
    """
    if len(file_ranges) == 1:
        yield from read(file_ranges[0])
        return
    waiting = sorted(file_ranges, key=lambda file_range: file_range.offsets or (0, 0), reverse=True)
    streams: list[Iterator[_Head]] = []
    heads: list[_Head] = []
    while heads or waiting:
        limit = min((int(head.offsets[-1]) for head in heads), default=None)
        if waiting and (limit is None or (waiting[-1].offsets or (0, 0))[0] <= limit):
            stream = _heads(read(waiting.pop()))
            head = next(stream, None)
            if head is not None:
                streams.append(stream)
                heads.append(head)
            continue
        assert limit is not None
        taken = []
        for number in reversed(range(len(heads))):
            rows, offsets = heads[number]
            count = int(np.searchsorted(offsets, limit, "right"))
            taken.append(_Head(rows.slice(0, count), offsets[:count]))
            rest = _Head(rows.slice(count), offsets[count:])
            left = rest if len(rest.offsets) else next(streams[number], None)
            if left is None:
                del heads[number], streams[number]
            else:
                heads[number] = left
        yield _by_offset([head for head in taken if len(head.offsets)])


def _by_offset(taken: Sequence[_Head]) -> pa.RecordBatch:
    if len(taken) == 1:
        return taken[0].rows
    order = np.argsort(np.concatenate([head.offsets for head in taken]), kind="stable")
    return pa.concat_batches([head.rows for head in taken]).take(pa.array(order))


def _heads(batches: Iterable[pa.RecordBatch]) -> Iterator[_Head]:
    last = np.int64(-1)
    for batch in batches:
        if not len(batch):
            continue
        column = batch.column("offset").fill_null(-1).to_numpy(zero_copy_only=False)
        offsets = np.maximum.accumulate(np.maximum(column, last))
        last = offsets[-1]
        yield _Head(batch, offsets)
