"""`logfs promote`: make a mirrored topic a log of its own, to which everybody may append."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.cli.common import ask, log_dirs_of, not_empty

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: a log directory or several, and the topics."""
    parser.add_argument("target", nargs="+", type=not_empty, metavar="LOGDIR… TOPIC[,TOPIC]")


def run(arguments: argparse.Namespace) -> int:
    """Promote topics, and print their names. Raises `InvalidSetting` for a topic that is no mirror."""
    from logfs.store.admin.requests import Promote

    *words, topics = arguments.target
    log_dirs = log_dirs_of(words)
    for topic in topics.split(","):
        ask(log_dirs, Promote(topic))
        print(f"{topic}: is a log of its own now")
    return 0
