"""`logfs promote`: make a mirrored topic an ordinary one, to which any process may append."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.cli.common import ask, log_dirs_of, not_empty, split_topic
from logfs.errors import InvalidUsage
from logfs.log.disk.bucket_path import as_path

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: log directories, and the topics."""
    parser.add_argument("target", nargs="+", type=not_empty, metavar="LOGDIR… TOPIC[,TOPIC]")


def run(arguments: argparse.Namespace) -> int:
    """Promote the topics one after the other, and print their names.

    Raises `InvalidSetting` for a topic that is not a mirror, and `UnknownPartition` for a missing one. None is then
    promoted.
    """
    from logfs.store.admin.requests import Promote, check_mirror
    from logfs.store.store import Store

    *words, topics = arguments.target
    if not words:
        paths, topics = split_topic([as_path(topics)])
        if not topics:
            raise InvalidUsage(f"{paths[0]}: name a mirrored topic, as in LOGDIR/TOPIC")
        words = [str(path) for path in paths]
    log_dirs = log_dirs_of(words, for_writing=True)
    wanted = dict.fromkeys(topics.split(","))
    with Store(log_dirs, read_only=True, only="") as store:
        for topic in wanted:
            check_mirror(store, topic)
    for topic in wanted:
        ask(log_dirs, Promote(topic))
        print(f"{topic}: is an ordinary topic now")
    return 0
