"""`logfs delete`: delete a partition as Kafka does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.cli.common import add_target, open_for_writing

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the TARGET argument: the partition to delete."""
    add_target(parser)


def run(arguments: argparse.Namespace) -> int:
    """Rename the partition's directory to a name that ends in `-delete`.

    The next upkeep or opening after `file.delete.delay.ms` removes the files.
    """
    # Load the other partitions, too: they hold the offsets that groups have committed for this one.
    store, partition = open_for_writing(arguments.target, alone=False)
    with store:
        store.delete(partition.name.directory)
        print(f"{partition.directory}: will be removed after file.delete.delay.ms")
    return 0
