"""`logfs spark stats`: count records, bytes and keys, and records by time; print and plot the numbers."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from logfs.cli.common import add_log_dirs, table_lines
from logfs.cli.spark.common import add_session, add_topics, bar, session

if TYPE_CHECKING:
    from logfs.spark.jobs import Stats

_COLUMNS = [
    "topic",
    "partitions",
    "segments",
    "records",
    "~keys",
    "null-keys",
    "null-values",
    "bytes",
    "gain",
]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: log directories, topics, the form of the output, and the session."""
    add_log_dirs(parser)
    add_topics(parser)
    parser.add_argument("-J", "--json", action="store_true", help="one JSON object per topic")
    parser.add_argument(
        "--plot", type=_file, metavar="FILE", help="also draw a plot: .png, .svg or .pdf"
    )
    parser.add_argument(
        "--bucket",
        type=int,
        metavar="MS",
        help="count records by time, in intervals of MS milliseconds (default: chosen for a readable plot)",
    )
    add_session(parser)


def _file(text: str) -> Path:
    """Return `text`, the argument of `--plot`, as a path.

    Raises `ArgumentTypeError` if the directory of the file does not exist. Otherwise the command would notice this
    only when it writes the plot, after it has counted all records.
    """
    path = Path(text)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{path.parent}: is not a directory")
    return path


def run(arguments: argparse.Namespace) -> int:
    """Count the records of each topic, print the numbers as a table or as JSON, and with `--plot` draw a plot."""
    with session(arguments, "stats") as spark, bar("counting") as progress:
        from logfs.spark.jobs import plot, stats

        found = stats(
            spark,
            arguments.log_dirs,
            topics=arguments.topics,
            bucket_ms=arguments.bucket,
            progress=progress,
        )
    if arguments.json:
        _print_json(found)
    else:
        _print_table(found)
    if arguments.plot is not None:
        plot(found, arguments.plot)
    return 0


def _print_table(found: Stats) -> None:
    rows = [_COLUMNS]
    for each in found.topics:
        counts = each.counts
        numbers = (
            each.partitions,
            each.segments,
            counts.records,
            each.keys,
            counts.null_keys,
            counts.null_values,
            counts.log_bytes,
        )
        rows.append([each.topic, *map(str, numbers), f"{each.compression:.2f}"])
    print("\n".join(table_lines(rows, numbers=range(1, len(_COLUMNS)))))


def _print_json(found: Stats) -> None:
    import orjson

    for each in found.topics:
        counts = each.counts
        told = {
            "topic": each.topic,
            "partitions": each.partitions,
            "segments": each.segments,
            "batches": counts.batches,
            "records": counts.records,
            "estimated_keys": each.keys,
            "null_keys": counts.null_keys,
            "null_values": counts.null_values,
            "log_bytes": counts.log_bytes,
            "plain_bytes": counts.plain_bytes,
            "value_bytes": counts.value_bytes,
            "damaged_bytes": counts.damaged,
            "codecs": dict(sorted(counts.codecs.items())),
            "bucket_ms": found.bucket_ms,
            "times": sorted(counts.times.items()),
        }
        print(orjson.dumps(told).decode())
