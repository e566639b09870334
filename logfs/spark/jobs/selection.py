"""Selects the log directories of a job, and the topics in them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from logfs.errors import InvalidName, UnknownPartition
from logfs.format.base import names
from logfs.spark.options import local_log_dir
from logfs.store.directory.recognition import log_dirs_of
from logfs.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


def log_dirs(paths: Paths, *, for_writing: bool = False) -> list[str]:
    """Return the log directories for `paths`. A mountpoint stands for the log directories that are mounted there.

    With `for_writing`, raises `NotWritable` for the mountpoint of a read-only mount.
    """
    named = [paths] if isinstance(paths, (str, os.PathLike)) else paths
    found = [local_log_dir(os.fspath(path)) for path in named]
    return log_dirs_of(found, for_writing=for_writing)


def of_topics(topics: Iterable[str] | None) -> Callable[[str], bool]:
    """Return a function that takes the name of a partition directory, and tells whether its topic is in `topics`.

    If `topics` is None, the function returns True for every name.
    """
    wanted = None if topics is None else frozenset(topics)

    def says(directory: str) -> bool:
        try:
            return wanted is None or names.parse_directory(directory).topic in wanted
        except InvalidName:
            return False

    return says


def check_topics(topics: Iterable[str] | None, directories: Iterable[str], store: Store) -> None:
    """Raise `UnknownPartition` for a topic of which no partition is in `directories`.

    If `topics` is None, there is nothing to check. `directories` are names of partition directories. `store` is used
    only for the names of the log directories in the message.
    """
    there = {names.parse_directory(name).topic for name in directories}
    for topic in topics or ():
        if topic not in there:
            where = ", ".join(str(log_dir.path) for log_dir in store.log_dirs)
            raise UnknownPartition(
                f"{where}: has no topic {topic!r}; 'logfs describe' lists the topics and partitions"
            )


def opened(paths: Paths, topics: Iterable[str] | None) -> Store:
    """Return a read-only store of the log directories `paths`. The caller must close it.

    It has the partitions of `topics`, or all partitions if `topics` is None. Raises `UnknownPartition` for a topic
    that does not exist, and the errors of opening a store read-only.
    """
    wanted = None if topics is None else list(topics)
    store = Store(log_dirs(paths), read_only=True, only=of_topics(wanted))
    try:
        check_topics(wanted, (*store, *store.offline), store)
    except BaseException:
        store.close()
        raise
    return store
