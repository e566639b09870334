"""`logfs delete`: delete a partition, or a topic, as Kafka does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.cli.common import ask, existing_partitions, not_empty

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the TARGET argument: the partition, or the topic, to delete."""
    parser.add_argument(
        "target",
        nargs="+",
        type=not_empty,
        metavar="TARGET",
        help="LOGDIR/PARTITION or LOGDIR/TOPIC, or LOGDIR… PARTITION or TOPIC",
    )


def run(arguments: argparse.Namespace) -> int:
    """Rename the directories of the partitions to names that end in `-delete`.

    The next upkeep or opening after `file.delete.delay.ms` removes the files.
    """
    from logfs.store.admin.requests import Delete

    log_dirs, _ = existing_partitions(arguments.target)
    done = ask(log_dirs, Delete(arguments.target[-1].rstrip("/").rpartition("/")[2]))
    for directory in done["directories"]:
        print(f"{directory}: will be removed after file.delete.delay.ms")
    return 0
