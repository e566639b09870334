"""`logfs undelete`: bring back a deleted partition or topic, as long as its files are still there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.cli.common import add_partition_or_topic, ask, check_deleted, target, with_whole_store

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the TARGET argument: the partition, or the topic, to bring back."""
    add_partition_or_topic(parser)


def run(arguments: argparse.Namespace) -> int:
    """Bring back the partitions, their topic's settings and the groups' committed offsets, and print the paths."""
    from logfs.store.admin.requests import Undelete

    wanted = target(arguments.target, for_writing=True)
    check_deleted(wanted)
    done = ask(with_whole_store(wanted.log_dirs), Undelete(wanted.name))
    for directory in done["directories"]:
        print(f"{directory}: is back")
    return 0
