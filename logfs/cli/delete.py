"""`logfs delete`: delete a partition, as Kafka does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.cli.common import add_target, open_for_writing

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """TARGET."""
    add_target(parser)


def run(arguments: argparse.Namespace) -> int:
    """Rename it to `-delete`; its files go after `file.delete.delay.ms`, at the next upkeep or opening."""
    # Not alone: what groups have committed for it is in other partitions.
    store, partition = open_for_writing(arguments.target, alone=False)
    with store:
        store.delete(partition.name.directory)
        print(f"{partition.directory}: removed once file.delete.delay.ms have passed")
    return 0
