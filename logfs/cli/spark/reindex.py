"""`logfs spark reindex`: rebuild all indexes of many partitions at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.cli.common import add_log_dirs
from logfs.cli.spark.common import add_session, add_topics, bar, print_visits, session

if TYPE_CHECKING:
    import argparse

    from logfs.spark.jobs import Reindexed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: log directories, topics, and the session."""
    add_log_dirs(parser)
    add_topics(parser)
    add_session(parser)


def run(arguments: argparse.Namespace) -> int:
    """Rebuild the indexes, and print the number of segments and the log end offset of each partition.

    The exit code is 1 if a partition could not be read or is damaged.
    """
    with session(arguments, "reindex") as spark, bar("reindexing") as progress:
        from logfs.spark.jobs import reindex

        visits = reindex(spark, arguments.log_dirs, topics=arguments.topics, progress=progress)
    failed = print_visits(visits, _describe)
    damaged = sum(visit.result.damaged for visit in visits if visit.result is not None)
    print(f"{len(visits)} partitions: {failed} could not be read, {damaged} segments are damaged")
    return 1 if failed or damaged else 0


def _describe(found: Reindexed) -> str:
    text = f"{found.segments} segments, log end offset {found.log_end_offset}"
    return (
        f"{text}; {found.damaged} segments are damaged (see 'logfs check')"
        if found.damaged
        else text
    )
