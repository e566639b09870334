"""`logfs delete`: delete a partition, or a topic, as Kafka does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.cli.common import add_partition_or_topic, ask, check_names, target, with_whole_store

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the TARGET argument: the partition, or the topic, to delete."""
    add_partition_or_topic(parser)


def run(arguments: argparse.Namespace) -> int:
    """Delete the partition, or all partitions of the topic: rename each directory so that it ends in `-delete`.

    For each partition, print either the time until which `logfs undelete` can bring it back, or that it is deleted
    for good. When this time has passed, a mount removes the files in the background; without a mount, the next
    opening of the store for writing removes them.
    """
    from logfs.format.base.quantities import format_time
    from logfs.store.admin.requests import Delete

    wanted = target(arguments.target, for_writing=True)
    check_names(wanted)
    # Pass all log directories of the store: the committed offsets, which are deleted too, may be in any of them.
    done = ask(with_whole_store(wanted.log_dirs), Delete(wanted.name))
    for directory, until_ms in zip(done["directories"], done["until_ms"], strict=True):
        if until_ms is None:
            print(f"{directory}: deleted for good")
        else:
            until = format_time(until_ms)
            print(
                f"{directory}: deleted; 'logfs undelete {directory}' brings it back until {until}"
            )
    return 0
