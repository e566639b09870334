"""`logfs spark import`: append Parquet, JSON envelopes or lines of text to topics, all records or none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.cli.spark.common import add_session, bar, session
from logfs.errors import InvalidUsage

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: files, log directories, how rows become records, and the session."""
    parser.add_argument(
        "words",
        nargs="+",
        metavar="SOURCE… LOGDIR[,LOGDIR…]",
        help="files, directories or globs, and the log directories",
    )
    parser.add_argument(
        "--format",
        default="parquet",
        help="parquet (default); json: envelopes, one per line; text: each line is a value",
    )
    parser.add_argument("--topic", help="the target topic; overrides the topics in the files")
    parser.add_argument(
        "--key",
        metavar="NAME",
        help="the column of parquet, or the field of text lines in JSON, that holds the key",
    )
    parser.add_argument(
        "--value", metavar="NAME", help="the column of parquet that holds the value"
    )
    parser.add_argument(
        "--key-separator",
        metavar="TEXT",
        type=_separator,
        help=r"the separator between key and value in a line of text; \t is a tab",
    )
    parser.add_argument(
        "--partitions",
        metavar="N",
        type=int,
        help="create missing topics with N partitions, and a missing log directory",
    )
    parser.add_argument(
        "--id",
        metavar="NAME",
        help="import only once: for seven days, another import with this id changes nothing",
    )
    parser.add_argument(
        "--repartition",
        action="store_true",
        help="choose partitions by key; ignore the partitions in the files",
    )
    add_session(parser)


def _separator(text: str) -> str:
    return text.encode("latin-1", "backslashreplace").decode("unicode_escape")


def run(arguments: argparse.Namespace) -> int:
    """Append the rows of the files, and print the offsets [first, next) of the new records in each partition.

    If an import with the same `--id` was done in the last seven days, append nothing, and only say so.
    """
    *sources, log_dirs = arguments.words
    if not sources:
        raise InvalidUsage(
            f"{log_dirs}: is the only path; give one or more sources, and a log directory"
        )
    with session(arguments, "import") as spark, bar("importing") as progress:
        from logfs.spark.jobs import import_

        done = import_(
            spark,
            sources,
            log_dirs.split(","),
            format=arguments.format,
            topic=arguments.topic,
            key=arguments.key,
            value=arguments.value,
            key_separator=arguments.key_separator,
            partitions=arguments.partitions,
            repartition=arguments.repartition,
            id=arguments.id,
            progress=progress,
        )
    if done.already:
        print(f"the import {arguments.id} was done before: nothing is changed")
        return 0
    for name, (first, end) in sorted(done.offsets.items()):
        print(f"{name}: {first}..{end}")
    print(f"{done.files} files, {done.records} records")
    return 0
