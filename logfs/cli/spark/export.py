"""`logfs spark export`: write a log to Parquet files, JSON files or Iceberg tables, by topic and date."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.cli.common import add_isolation
from logfs.cli.spark.common import add_session, add_topics, bar, session
from logfs.errors import InvalidUsage

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: log directories, the target directory, what to export, the file format, and the session."""
    parser.add_argument(
        "words",
        nargs="+",
        metavar="LOGDIR… TARGET",
        help="log directories, and the directory for the files",
    )
    parser.add_argument(
        "--format",
        default="parquet",
        help="parquet (default); json: envelopes, one per line; iceberg: a table for each topic",
    )
    parser.add_argument(
        "--compression",
        metavar="CODEC",
        help="zstd (default for parquet), none (default for json), gzip; for parquet also snappy, lz4",
    )
    parser.add_argument(
        "--values",
        default="mixed",
        help="form of bytes in json: mixed (default): strings, but base64 if not UTF-8; text: only strings; "
        "base64: only base64",
    )
    parser.add_argument(
        "--mode",
        default="errorifexists",
        help="errorifexists (default); append: keep files of earlier exports; overwrite: replace those of the "
        "exported partitions",
    )
    parser.add_argument(
        "--incremental",
        action="store_true",
        help="export only records after the last incremental export into TARGET, and remember where this one ends",
    )
    add_topics(parser)
    add_isolation(parser)
    parser.add_argument(
        "-o",
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of a read, such as startingTimestamp=…; may be given several times",
    )
    add_session(parser)


def run(arguments: argparse.Namespace) -> int:
    """Write the files, and print the numbers of files, records and bytes."""
    *log_dirs, target = arguments.words
    if not log_dirs:
        raise InvalidUsage(
            f"{target}: is the only path; give one or more log directories, and a directory for the files"
        )
    options = {"isolationLevel": arguments.isolation}
    for option in arguments.option:
        name, equals, value = option.partition("=")
        if not equals:
            raise InvalidUsage(f"-o {option!r}: give an option as NAME=VALUE")
        options[name] = value
    with session(arguments, "export") as spark, bar("exporting") as progress:
        from logfs.spark.jobs import export

        done = export(
            spark,
            log_dirs,
            target,
            format=arguments.format,
            topics=arguments.topics,
            options=options,
            compression=arguments.compression,
            values=arguments.values,
            mode=arguments.mode,
            incremental=arguments.incremental,
            progress=progress,
        )
    print(f"{target}: {done.files} files, {done.records} records, {done.size_bytes} bytes")
    return 0
