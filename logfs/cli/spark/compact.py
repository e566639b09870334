"""`logfs spark compact`: keep only the newest record of each key, in many partitions at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.cli.common import add_log_dirs
from logfs.cli.spark.common import add_session, add_topics, bar, print_visits, session

if TYPE_CHECKING:
    import argparse

    from logfs.log.compaction.cleaning import Cleaned


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: log directories, topics, whether to seal and compact active segments, and the session."""
    add_log_dirs(parser)
    add_topics(parser)
    parser.add_argument(
        "--roll", action="store_true", help="seal active segments first, so that they are compacted"
    )
    add_session(parser)


def run(arguments: argparse.Namespace) -> int:
    """Compact partitions, and print the size of each before and after; exit code 1 if one could not be compacted."""
    with session(arguments, "compact") as spark, bar("compacting") as progress:
        from logfs.spark.jobs import compact

        visits = compact(
            spark,
            arguments.log_dirs,
            topics=arguments.topics,
            roll=arguments.roll,
            progress=progress,
        )
    if not visits:
        print("nothing to do: no partition has 'compact' in its cleanup.policy")
        return 0
    failed = print_visits(visits, _describe)
    done = [visit.result for visit in visits if visit.result is not None]
    before = sum(each.bytes_before for each in done)
    after = sum(each.bytes_after for each in done)
    print(
        f"{len(visits)} partitions: {failed} could not be compacted, {before} bytes became {after}"
    )
    return 1 if failed else 0


def _describe(done: Cleaned) -> str:
    return (
        f"{done.bytes_before} bytes in {done.segments_before} segments became {done.bytes_after} in "
        f"{done.segments_after}; compacted up to offset {done.first_dirty}"
    )
