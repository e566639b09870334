"""`logfs delete`: delete a partition as Kafka does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.cli.common import add_target, ask, existing_target

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the TARGET argument: the partition to delete."""
    add_target(parser)


def run(arguments: argparse.Namespace) -> int:
    """Rename the partition's directory to a name that ends in `-delete`.

    The next upkeep or opening after `file.delete.delay.ms` removes the files.
    """
    from logfs.store.admin.requests import Delete

    wanted = existing_target(arguments.target)
    done = ask(wanted.log_dirs, Delete(wanted.name))
    print(f"{done['directory']}: will be removed after file.delete.delay.ms")
    return 0
