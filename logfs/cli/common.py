"""Code shared by several commands: arguments, targets, stores, requests, progress bars, tables."""

from __future__ import annotations

import argparse
import os
import re
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, AnyStr, NamedTuple

from logfs.errors import (
    InvalidName,
    InvalidStore,
    InvalidUsage,
    NotWritable,
    UnknownPartition,
    did_you_mean,
)
from logfs.format.base import names
from logfs.log.disk.bucket_path import BucketPath, as_path

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence

    from logfs.log.append.partition import Partition
    from logfs.log.read.log import Log
    from logfs.store.admin.requests import Answer, Request
    from logfs.store.store import Store


class Target(NamedTuple):
    """The name of a partition (or of a topic), and the log directories to search for it."""

    log_dirs: Sequence[Path]
    name: str


def path_argument(text: str) -> Path:
    """Return an argument as a path. Raises `ArgumentTypeError` for "", and for a URL other than a bucket's (s3://…).

    An empty argument usually comes from an unset shell variable. As a path it would mean the working directory.
    """
    try:
        return as_path(not_empty(text))
    except InvalidStore as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def not_empty(text: str) -> str:
    """Return an argument of the command line unchanged. Raises `ArgumentTypeError` if it is empty."""
    if not text:
        raise argparse.ArgumentTypeError("the value is empty; is a variable unset?")
    return text


def address_argument(text: str) -> tuple[str, int]:
    """Return the host and the port in `PORT`, `HOST:PORT` or `[HOST]:PORT`. Without a host, it is 127.0.0.1.

    Raises `ArgumentTypeError` for any other text.
    """
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) < 1 << 16):
        raise argparse.ArgumentTypeError(f"{text!r} is not [ADDRESS:]PORT, such as 9308")
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)


def group_name(text: str) -> str:
    """Return the name of a consumer group, unchanged. Raises `ArgumentTypeError` if it is empty or not UTF-8."""
    try:
        not_empty(text).encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{os.fsencode(text)!r} is not UTF-8") from None
    return text


def regular_expression(option: str, text: AnyStr) -> re.Pattern[AnyStr]:
    """Return `text`, the value of the option named `option`, as a pattern.

    Raises `InvalidUsage` if `text` is no regular expression of Python.
    """
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise InvalidUsage(
            f"{option} {os.fsdecode(text)!r} is not a Python regular expression: {error}"
        ) from None


def add_target(parser: argparse.ArgumentParser, *, topics: bool = False) -> None:
    """Add the TARGET argument, which names a partition: LOGDIR/PARTITION, or LOGDIR… PARTITION.

    With `topics`, it may also name a topic, or several partitions and topics, separated by commas.
    """
    what = "LOGDIR/PARTITION, or LOGDIR… PARTITION"
    if topics:
        what += "; also a topic in place of the partition, or several of both, separated by commas"
    parser.add_argument("target", nargs="+", type=not_empty, metavar="TARGET", help=what)


def add_partition_or_topic(parser: argparse.ArgumentParser) -> None:
    """Add the TARGET argument of a command that accepts a partition or a topic. The function `target` parses it."""
    what = "LOGDIR/PARTITION or LOGDIR/TOPIC, or LOGDIR… PARTITION or TOPIC"
    parser.add_argument("target", nargs="+", type=not_empty, metavar="TARGET", help=what)


def add_isolation(parser: argparse.ArgumentParser) -> None:
    """Add the option for the isolation level."""
    parser.add_argument(
        "--isolation",
        metavar="LEVEL",
        default="read_uncommitted",
        help="read_uncommitted (all records), or read_committed: no aborted or open transactions",
    )


def add_log_dirs(parser: argparse.ArgumentParser) -> None:
    """Add the argument that names the log directories."""
    parser.add_argument(
        "log_dirs", nargs="+", type=path_argument, metavar="LOGDIR", help="a log directory"
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the option `--json`. A command with this option prints its JSON output with `print_json`."""
    parser.add_argument("--json", action="store_true", help="one JSON object per line")


def print_json(row: Mapping[str, object]) -> None:
    """Print one JSON object as a line."""
    import json

    print(json.dumps(row, ensure_ascii=False, separators=(",", ":")))


def log_dirs_of(
    words: Iterable[str | Path], *, may_be_empty: bool = False, for_writing: bool = False
) -> list[Path]:
    """Return the log directories that `words` name; a mountpoint stands for the log directories mounted there.

    Raises `InvalidStore` for any other path; the message says what the path is. With `may_be_empty` an empty
    directory is accepted, too: it becomes a log directory when a store is opened in it. With `for_writing`, raises
    `NotWritable` for the mountpoint of a read-only mount.
    """
    from logfs.store.directory import recognition

    found = [as_path(path) for path in recognition.log_dirs_of(words, for_writing=for_writing)]
    recognition.check_log_dirs(found, may_be_empty=may_be_empty)
    return found


def split_name(words: Sequence[Path]) -> tuple[Sequence[Path], str]:
    """Return ([LOGDIR], NAME) if the only word is LOGDIR/NAME, the path of an existing partition or topic.

    Otherwise return (words, "").
    """
    from logfs.store.directory.recognition import PathKind, recognise

    roots = (PathKind.LOG_DIR, PathKind.MOUNTPOINT)
    if len(words) == 1 and not isinstance(words[0], BucketPath):
        path = words[0].absolute()
        if recognise(path).kind not in roots and recognise(path.parent).kind in roots:
            partitions = partitions_in(log_dirs_of([path.parent]))
            if partitions.intersection(names.partitions_named(path.name, partitions)):
                return [path.parent], path.name
    return words, ""


def split_topic(directories: Sequence[Path]) -> tuple[Sequence[Path], str]:
    """Return ([LOGDIR], TOPIC) for LOGDIR/TOPIC; otherwise return (directories, "").

    LOGDIR/PARTITION is not split, because a partition has no settings. Neither TOPIC nor PARTITION need exist.
    """
    from logfs.store.directory.recognition import PathKind, recognise

    found, name = split_name(directories)
    if not name and len(directories) == 1 and recognise(directories[0]).kind is PathKind.MISSING:
        parent = directories[0].parent
        with suppress(InvalidName):
            names.parse_directory(directories[0].name)
            return directories, ""
        if recognise(parent).kind in (PathKind.LOG_DIR, PathKind.MOUNTPOINT):
            return [parent], directories[0].name
    return (directories, "") if (found[0] / name).is_dir() else (found, name)


def target(
    words: Sequence[str], *, may_be_empty: bool = False, for_writing: bool = False
) -> Target:
    """Return the partition or topic that a TARGET argument names: LOGDIR/NAME, or LOGDIR… NAME.

    `words` are the words of the argument, one or several. NAME need not exist. If LOGDIR is a mountpoint, it stands
    for the log directories mounted there. Raises `InvalidStore` if a LOGDIR is not a log directory, or if there is
    only one word, and this is the path of a log directory or a mountpoint. With `may_be_empty` an empty directory is
    accepted as a LOGDIR. With `for_writing`, raises `NotWritable` for a read-only mount.
    """
    *log_dirs, name = words
    if not log_dirs:
        path = as_path(name).absolute()
        _check_no_log_dir(path)
        log_dirs, name = [str(path.parent)], path.name
    found = log_dirs_of(log_dirs, may_be_empty=may_be_empty, for_writing=for_writing)
    return Target(found, name)


def with_whole_store(log_dirs: Sequence[Path]) -> list[Path]:
    """Return the given log directories, then the other existing log directories of the same store.

    Use this to find the committed offsets of groups: they may be in any log directory of the store. The file
    `logfs.dirs` in each log directory lists all log directories of the store. If this file of a given directory
    cannot be read, it is ignored. If that of another directory cannot be read, raises `OSError`.
    """
    from logfs.log.disk.disk import ReadOnlyDisk
    from logfs.store.directory.log_dir import store_dirs, whole_store

    disk = ReadOnlyDisk()
    here = {Path(os.path.realpath(each)) for each in log_dirs if not isinstance(each, BucketPath)}
    others = sorted(whole_store((disk, path) for path in here) - here)
    # Leave out a path in the file `logfs.dirs` that now has another store, or is a mountpoint with nothing mounted.
    return [*log_dirs, *(path for path in others if here & store_dirs(disk, path).all)]


def partitions_in(log_dirs: Iterable[Path]) -> set[str]:
    """Return the names of the partitions in log directories. A directory that cannot be read counts as empty.

    A partition that is being moved counts even if only its copy (`-future`) or its original (`-stray`) is there.
    """
    found: set[str] = set()
    for path in log_dirs:
        with suppress(OSError):
            found |= _partitions_in(path)
    return found


def entries(path: Path) -> list[str]:
    """Return the names in a directory; none if it cannot be listed, such as one that was deleted meanwhile."""
    try:
        return os.listdir(path)
    except OSError:
        return []


def _partitions_in(log_dir: Path, *, deleted: bool = False) -> set[str]:
    found = set()
    with os.scandir(log_dir) as entries:
        for entry in entries:
            with suppress(InvalidName):
                kind, parsed = names.classify_directory(entry.name)
                if (deleted or kind is not names.DirectoryKind.DELETED) and entry.is_dir():
                    found.add(parsed.directory)
    return found


def check_names(wanted: Target) -> list[str]:
    """Return the names of the partitions that a target stands for: one, or those of a topic.

    Raises the errors of `check_partition_exists`.
    """
    found = names.partitions_named(wanted.name, partitions_in(wanted.log_dirs))
    for name in found:
        check_partition_exists(wanted._replace(name=name))
    return found


def existing_target(words: Sequence[str]) -> Target:
    """Return the partition to change that a TARGET argument stands for, after a check that it exists.

    Raises the errors of `target` and `check_partition_exists`.
    """
    wanted = target(words, for_writing=True)
    check_partition_exists(wanted)
    return wanted


def _check_no_log_dir(path: Path) -> None:
    """Raise `InvalidStore` if the path of a TARGET is a log directory or a mountpoint instead of a partition."""
    from logfs.store.directory.recognition import PathKind, recognise

    found = recognise(path)
    if found.kind in (PathKind.LOG_DIR, PathKind.MOUNTPOINT):
        what = "a log directory" if found.kind is PathKind.LOG_DIR else "a mountpoint of logfs"
        raise InvalidStore(
            f"{path} is {what}, not a partition: name a partition in it, {path}/TOPIC-NUMBER"
        )


def ask(log_dirs: Sequence[Path], request: Request, title: str = "") -> Answer:
    """Execute an administrative request: by the mount of the log directories or, without a mount, in this process.

    A bar with the title `title` shows the progress of a long request; with "" there is no bar. Raises the errors of
    `client.call`.
    """
    from logfs.store.admin import client

    bar: Any = None

    def report(done: int, total: int) -> None:
        nonlocal bar
        if title and total:
            bar = bar or progress_bar(title, total)
            bar.update(done - bar.n)

    try:
        return client.call(log_dirs, request, report=report, recovery=recovery_progress())
    finally:
        if bar is not None:
            bar.close()


def open_for_writing(words: Sequence[str], *, recover: bool = False) -> tuple[Store, Partition]:
    """Open a store with the partition of a TARGET for writing, and return both. The caller must close the store.

    The store locks the log directories, so no other process can write to them. With `recover` the partition is
    recovered from its beginning. Raises the errors of `existing_target`, `partition` and opening a store.
    """
    from logfs.log.append.partition import writable
    from logfs.store.store import Store

    wanted = existing_target(words)
    store = Store(
        wanted.log_dirs,
        only=wanted.name,
        recover=recover,
        progress=recovery_progress(),
        create=False,
    )
    try:
        return store, writable(partition(store, wanted))
    except BaseException:
        store.close()
        raise


def partition(store: Store, wanted: Target) -> Log:
    """Return the partition `wanted` of an open store.

    Raises `UnknownPartition`, with the log directories in the message, if the store lacks the partition. For an
    offline partition, raises the error that made it offline.
    """
    if wanted.name not in store and wanted.name not in store.offline:
        raise _unknown(wanted)
    return store[wanted.name]


def check_partition_exists(wanted: Target) -> None:
    """Raise `UnknownPartition` if no log directory has a directory of the partition.

    A directory of the partition that ends in `-delete` also counts: a move leaves one in the old log directory. The
    command then goes on, and its own error says where the partition is now. Raises `OSError` if the partition is not
    found and a log directory could not be searched, and `NotWritable` for a bucket.

    Call this before the store is opened for writing, which rewrites the clean-shutdown marker: a command for a
    missing partition must not change the directories.
    """
    error = None
    for path in wanted.log_dirs:
        _check_local(path)
        try:
            # A move leaves a `-delete` directory in the old log directory for a while. Count this directory, too, so
            # that the command goes on, and its error says where the partition is now.
            if wanted.name in _partitions_in(path, deleted=True):
                return
        except OSError as failed:
            error = failed
    raise error or _unknown(wanted)


def _check_local(path: Path) -> None:
    if isinstance(path, BucketPath):
        raise NotWritable(f"{path}: a bucket can only be read; give a local log directory")


def check_deleted(wanted: Target) -> None:
    """Raise `UnknownPartition` if no log directory of `wanted` has an entry whose name ends in `-delete`.

    The name in `wanted` is not checked: an entry for another partition is enough. Call this before the store is
    opened for writing: the opening rewrites the clean-shutdown marker, but a command that cannot restore anything
    must not change the directories. Raises `NotWritable` for a bucket, and `OSError` for a directory that cannot be
    read.
    """
    for path in wanted.log_dirs:
        _check_local(path)
        if any(name.endswith(names.DirectoryKind.DELETED.value) for name in os.listdir(path)):
            return
    where = ", ".join(str(path) for path in wanted.log_dirs)
    raise UnknownPartition(
        f"{where}: {wanted.name} cannot be brought back: there is no deleted partition, or its file.delete.delay.ms "
        "has passed"
    )


def _unknown(wanted: Target) -> UnknownPartition:
    where = ", ".join(str(path) for path in wanted.log_dirs)
    partitions = partitions_in(wanted.log_dirs)
    found = names.partitions_named(wanted.name, partitions)
    if found != [wanted.name]:
        return UnknownPartition(
            f"{where}: {wanted.name} is a topic: name one of its partitions, such as {found[0]}"
        )
    from logfs.store.store import Store

    with Store(wanted.log_dirs, read_only=True, only="") as store:
        elsewhere = store.registry.elsewhere(wanted.name)
    if elsewhere:
        return UnknownPartition(f"{wanted.name}: {elsewhere}")
    topics = {each.rpartition("-")[0] for each in partitions}
    hint = did_you_mean(wanted.name, [*topics, *partitions])
    return UnknownPartition(
        f"{where}: has no partition {wanted.name!r}{hint}; 'logfs describe' lists all, 'logfs create' creates one"
    )


def warn(text: str) -> None:
    """Flush standard output, so that earlier output comes first, and print a warning to standard error."""
    sys.stdout.flush()
    print(f"logfs: {text}", file=sys.stderr)


def recovery_progress() -> Callable[[str, int, int], None]:
    """Return a callback that shows the progress of a store's recovery while the store opens.

    The callback takes the name of a partition, the bytes read so far, and the bytes to read. It draws a bar on
    standard error, but only on a terminal.
    """
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


def parse_changes(words: Iterable[str], *, of_topic: bool) -> list[tuple[str, str]]:
    """Return the (name, value) pairs of words of the form NAME=VALUE.

    With `of_topic` the names are topic settings, otherwise broker settings. An empty VALUE stands for the default.
    Raises `InvalidUsage` for a word without "=", and `InvalidSetting` for an unknown name or a value that is not
    allowed.
    """
    from logfs.setting import broker_setting, topic_setting

    changes = []
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise InvalidUsage(f"{word!r}: give a setting as NAME=VALUE")
        known = topic_setting(name) if of_topic else broker_setting(name)
        if value.strip():
            known.parse_typed(value)
        changes.append((name, value))
    return changes


class _NoBar:
    """A stand-in for a progress bar where none is shown, with the parts of `tqdm` that commands use."""

    n = 0
    total: int | None = None

    def __enter__(self) -> _NoBar:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing. The other methods also do nothing."""

    def update(self, size: int) -> None: ...

    def clear(self) -> None: ...

    def close(self) -> None: ...


def progress_bar(title: str, total_bytes: int | None) -> Any:
    """Return a progress bar (`tqdm`) in bytes on standard error; without a terminal, return a bar that shows nothing.

    `total_bytes` is None if the total is not known yet.
    """
    if not sys.stderr.isatty():
        return _NoBar()
    from tqdm import tqdm

    # Use no monitor thread and no lock between processes: when memory runs out, the start of either may hang.
    tqdm.monitor_interval = 0
    tqdm.set_lock(threading.RLock())
    return tqdm(
        total=total_bytes,
        desc=title,
        unit="B",
        unit_scale=True,
        unit_divisor=1024,
        miniters=1,
        leave=False,
        file=sys.stderr,
    )


def table_lines(rows: Sequence[Sequence[str]], *, numbers: Container[int] = ()) -> list[str]:
    """Return rows of cells as lines of aligned columns; the first row is the heading.

    `numbers` are the columns to align on the right, counted from 0.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if column in numbers else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
